"""Skillery: keep, find, run and publish the skills of LLM agents."""

from importlib.metadata import version as _version

import pluggy

hookimpl = pluggy.HookimplMarker("skillery")

__version__ = _version("skillery")
__all__ = ["__version__", "hookimpl"]
