"""A copy of the package without one step, for mutation tests.

The changed code is in the launcher, in the prologue, or in the modules that lock down the code.
"""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType

import skillery_bubblewrap
from cellblock.parts import INSIDE
from skillery_bubblewrap import process, run, sandbox

Edit = tuple[str, str, str]
"""File, old text, new text. The old text must occur exactly once."""


def changed_copy(folder: Path, edits: Iterable[Edit]) -> Path:
    changed = folder / "changed"
    for source, name in ((Path(skillery_bubblewrap.__file__).parent, "package"), (INSIDE, "inside")):
        shutil.copytree(source, changed / name, ignore=shutil.ignore_patterns("__pycache__"))
    for file, old, new in edits:
        path = changed / file
        source_text = path.read_text()
        assert source_text.count(old) == 1, f"{file} holds {old!r} {source_text.count(old)} times"
        path.write_text(source_text.replace(old, new))
    return changed


def module(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"changed_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def use_changed(folder: Path, put: Callable[[object, str, object], None]) -> None:
    """Let all sandboxes that start later use the copy."""
    command = module(folder / "package" / "command.py")
    command.__dict__["OWN"] = folder / "package" / "inside"
    command.__dict__["INSIDE"] = folder / "inside"
    put(process, "LAUNCHER", folder / "package" / "inside" / "launcher.py")
    put(process, "INSIDE", folder / "inside")
    put(run, "command", command)
    put(sandbox, "fixed", command.fixed)
