"""Prevent an error message of `fc-list` at the first import of matplotlib.

matplotlib searches known folders for fonts, and asks the program `fc-list` for more. A sandbox may contain this program
without its settings. Then it prints an error to the log of every run that draws.
"""

# ruff: noqa: PTH110 - importing pathlib costs every such run milliseconds
from __future__ import annotations

import os
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader

TYPE_CHECKING = False  # importing `typing` for this costs every run milliseconds
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

FONT_MANAGER = "matplotlib.font_manager"
SETTINGS = "/etc/fonts/fonts.conf"
NOWHERE = "/dev/null"


class FontLoader(SourceFileLoader):
    def exec_module(self, module: ModuleType) -> None:
        """Import the module with an empty PATH, because matplotlib works without `fc-list`."""
        before = os.environ.get("PATH")
        os.environ["PATH"] = NOWHERE
        try:
            super().exec_module(module)
        finally:
            if before is None:
                del os.environ["PATH"]
            else:
                os.environ["PATH"] = before


def spec_of(path: Any) -> ModuleSpec | None:
    """Return the module spec of matplotlib's font manager with `FontLoader`.

    Return None if the usual finders should import the module, for example because the sandbox has the settings.
    """
    spec = None if os.path.exists(SETTINGS) else PathFinder.find_spec(FONT_MANAGER, path)
    if spec is None or type(spec.loader) is not SourceFileLoader:
        return None
    spec.loader = FontLoader(FONT_MANAGER, spec.loader.path)
    return spec
