"""The functions of the guest, which a run calls. See `cellblock.Guest`."""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # importing `typing` for this costs every run milliseconds
if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec
    from typing import Any

    from cellblock.runtime import _run
else:
    from . import _run

_owner: list[int] = []
"""The process of the run, until it has stored the open figures. Its forked children have other pids."""


def before(job: Any, ask: Any) -> None:
    _owner.append(os.getpid())


def replace(value: Any) -> Any:
    """Store a figure or an image as a blob, and return its reference.

    Raise InvalidOutput if it cannot be stored, TypeError for any other value. The error may name a remedy.
    """
    from . import _pictures

    keep_figures()
    return _pictures.reference(value)


def after(job: Any, ask: Any, failure: BaseException | None) -> None:
    if failure is None or type(failure) is _run.InvalidOutput:
        keep_figures()


def keep_figures() -> None:
    """Store the figures that the code left open, before those of the output. If that fails, the result stays."""
    if _owner == [os.getpid()] and "matplotlib.pyplot" in sys.modules:
        from . import _pictures

        _owner.clear()
        _run.note(_pictures.keep_open_figures())


def modules(name: str) -> ModuleSpec | None:
    if name == "matplotlib.font_manager":
        from . import _fonts

        return _fonts.spec_of(sys.modules["matplotlib"].__path__)
    return None
