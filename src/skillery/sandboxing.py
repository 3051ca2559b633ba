"""Deprecated names of the parts of sandboxes. Import them from `cellblock.parts` and `skillery.jobs`.

The next release removes this module.
"""

from __future__ import annotations

import importlib
import warnings

_RENAMED = {"Course": "RunSession"}
_OF_JOBS = frozenset({
    "COLLECTING_LIMITS", "Collection", "Dialogue", "LogPipe", "NoHost", "Places", "RunSession", "collect",
    "collecting_dialogue", "collection_of", "copy_seconds", "filling_seconds", "job_header", "run_probes",
    "try_to_collect",
})  # fmt: skip
"""The names that belong to the jobs of Skillery. All others are parts of `cellblock`."""


def __getattr__(name: str) -> object:
    """Return the object for an old name, with a DeprecationWarning."""
    new = _RENAMED.get(name, name)
    module = importlib.import_module("skillery.jobs" if new in _OF_JOBS else "cellblock.parts")
    if new.startswith("_") or not hasattr(module, new):
        raise AttributeError(f"module 'skillery.sandboxing' has no attribute '{name}'")
    warnings.warn(f"skillery.sandboxing.{name} is now {module.__name__}.{new}", DeprecationWarning, stacklevel=2)
    return getattr(module, new)
