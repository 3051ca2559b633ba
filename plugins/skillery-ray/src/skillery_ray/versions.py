"""The versions that must be the same on servers and nodes."""

from __future__ import annotations

import platform
from importlib.metadata import version


def versions() -> dict[str, str]:
    """Return the versions that must be the same on servers and nodes."""
    return {
        "Skillery": version("skillery"),
        "skillery-ray": version("skillery-ray"),
        "Python": ".".join(platform.python_version_tuple()[:2]),
    }
