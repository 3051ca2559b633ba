"""The functions of the guest, which a run calls. See `cellblock.Guest`."""

from __future__ import annotations

import os
import sys

# All of them are imported before runs are forked, because many runs need them.
from . import _asking, _gathering, _restoring, _skills, _snapshots, blobs, log  # noqa: F401

TYPE_CHECKING = False  # importing `typing` for this costs every run milliseconds
if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec
    from typing import Any

    from cellblock.runtime import _run
else:
    from . import _run

_package: Any = sys.modules[__name__.rpartition(".")[0]]
_package.__doc__ = """Functions for code in a sandbox.

from runtime import blobs, log, progress, summary

text = blobs.read_text(blob_id)
new_id = blobs.write_json({"rows": 3})
log.info("three rows")
progress(3, 10, "reading")
summary("Read three rows.")
"""
_package.SkillError = _asking.SkillError  # code imports it from `runtime`, like `blobs` and `log`
_package.__all__ = sorted([*_package.__all__, "SkillError", "blobs", "log"])

_plain = _run.REMEDIES["missing"]


def definition(code: str | None, name: str) -> Any:
    """Return what to write in code or in a module that does not define its function."""
    try:
        if code is not None:
            from . import _forgotten

            return f"write these three lines:\n{_forgotten.lines(code, name)}"
    except Exception:  # noqa: BLE001, S110 - the code may have broken builtins
        pass
    return _plain(code, name)


_run.REMEDIES |= {"large": ": write a blob instead", "missing": definition}
_owner: list[int] = []
"""The process of the run, until it has stored the open figures. Its forked children have other pids."""


def before(job: Any, ask: Any) -> None:
    """Mount the skills, and write kept files and input files to the workspace. Raise NotWritten if this fails."""
    if job is None or "collect" in job:
        return
    _owner.append(os.getpid())
    _asking.mount_blobs(job["blobs"])
    _skills.FINDER.mount(job["skills"])
    if job["spread"]:
        from . import _functions

        _functions.JOB.update(job)
    if job["home"]:
        _restoring.restore(job)
    if job["files"]:
        _restoring.place(job["files"], job["workspace"])


def start(job: Any) -> None:
    """Let matplotlib find the list of fonts of the packages, which are mounted now."""
    if job is None or "collect" in job:
        return
    for folder in job["packages"]:
        if os.access(folder + "/.caches", os.F_OK):
            from . import _pictures

            _pictures.link_list_of_fonts(folder)


def replace(value: Any) -> Any:
    """Store a figure or an image as a blob, and return its reference.

    Raise InvalidOutput if it cannot be stored, TypeError for any other value. The error may name a remedy.
    """
    from . import _pictures

    keep_figures()
    return _pictures.reference(value)


def after(job: Any, ask: Any, failure: BaseException | None) -> None:
    """Keep open figures and files of a run, or those of another run that was stopped."""
    if job is None:
        return
    if "collect" in job:
        _gathering.collect(job["collect"])
        return
    if failure is None or type(failure) is _run.InvalidOutput:
        keep_figures()
    keep_files(job)


def keep_files(job: dict[str, Any]) -> None:
    """Store the files below `out` in the working directory, and the files that the caller requested, also after a
    failure of the code.

    For a script, `_scripts` has stored the files in `out` already. This function never raises an exception.
    """
    try:
        folder, outputs = job["workspace"], job["outputs"]
        # Most runs have no such folder.
        has_out = not job["is_script"] and os.access(folder + "/out", os.F_OK)
        if has_out or outputs:
            _run.note(_gathering.leave(folder, outputs, with_out=has_out))
    except:  # noqa: E722, S110 - the code may have broken builtins
        pass


def keep_figures() -> None:
    """Store the figures that the code left open, before those of the output. If that fails, the result stays."""
    if _owner == [os.getpid()] and "matplotlib.pyplot" in sys.modules:
        from . import _pictures

        _owner.clear()
        _run.note(_pictures.keep_open_figures())


def modules(name: str) -> ModuleSpec | None:
    """Return the spec of a skill, or of a parent of one."""
    return _skills.FINDER.find_spec(name)
