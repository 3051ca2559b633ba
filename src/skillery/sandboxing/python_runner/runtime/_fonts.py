"""matplotlib looks for fonts where it has been told they lie, and asks `fc-list` for more when it is first imported.

A sandbox may show that program of the host and not its settings, without which it has nothing to say but an error in
the log of every run that draws.
"""

# ruff: noqa: PTH110 - importing pathlib would cost every such run milliseconds
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
        """With no program to be found meanwhile: matplotlib goes on without."""
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
    """None where the usual finders do."""
    spec = None if os.path.exists(SETTINGS) else PathFinder.find_spec(FONT_MANAGER, path)
    if spec is None or type(spec.loader) is not SourceFileLoader:
        return None
    spec.loader = FontLoader(FONT_MANAGER, spec.loader.path)
    return spec
