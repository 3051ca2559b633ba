"""The owner's own code inside a run: at most five functions of one module (`cellblock.Guest`).

The files of its folder become modules of the package `runtime`. They run with the rights of the run.
"""

from __future__ import annotations

import importlib
import sys

from . import _failure

TYPE_CHECKING = False  # importing `typing` for this costs every run milliseconds
if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec
    from typing import Any


def before(job: Any, ask: Any) -> None:
    """Prepare the run. Called before any code of the run, while its mounts are made. An error fails the set-up of the
    run.
    """


def start(job: Any) -> None:
    """Finish the preparation. Called when all mounts of the run are there, directly before its code. An error fails the
    run.
    """


def replace(value: Any) -> Any:
    """Return a replacement for a value that is not JSON. Raise TypeError if there is none."""
    raise TypeError(f"Object of type {_failure.type_name(value)} is not JSON serializable")


def after(job: Any, ask: Any, failure: BaseException | None) -> None:
    """End the run. Called when its code has returned a value or raised `failure`. An error fails the run."""


def modules(name: str) -> ModuleSpec | None:
    """Return the spec of a module that the guest provides, or None. Called for each import, before other finders."""
    return None


FUNCTIONS = ("before", "start", "replace", "after", "modules")
USED = {name: globals()[name] for name in FUNCTIONS}
"""The functions of the guest, and those of this module for the ones that it does not have."""


def load(folder: str, module: str) -> None:
    """Import the module of the guest, before any code of a run."""
    package = sys.modules[__name__.rpartition(".")[0]]
    package.__path__.append(folder)
    _failure.NOT_THEIRS = (*_failure.NOT_THEIRS, f"{folder}/")
    guest = importlib.import_module(f"{package.__name__}.{module}")
    USED.update((name, vars(guest)[name]) for name in FUNCTIONS if name in vars(guest))
