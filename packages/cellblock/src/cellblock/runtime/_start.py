"""Start a Python file or module as `python` does, with its folder and its packages importable.

The program is `python _start.py ORDER ARGUMENT…`, where ORDER is a JSON object.

`python FILE` with PYTHONPATH would not work: this interpreter ignores PYTHONPATH, which would come before the standard
library.
"""

# ruff: noqa: PTH120, PTH123 - importing pathlib costs every such run time
from __future__ import annotations

import _sitebuiltins
import builtins
import json
import os
import sys
from types import ModuleType

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType
    from typing import Any


def start(order: dict[str, Any], arguments: list[str]) -> None:
    add_builtins()
    path = order["path"]
    sys.argv = [path, *arguments]
    sys.excepthook = show
    if order["module"]:
        sys.path[0] = order["root"]  # like `python -m` in that folder
        sys.path += order["packages"]
        import runpy

        runpy.run_module(order["module"], run_name="__main__", alter_sys=True)
        return
    sys.path[0] = os.path.dirname(path)
    sys.path += [*order["packages"], order["root"]]
    run_file(path)


def add_builtins() -> None:
    """Add the names that the module `site` adds. It is not imported, because it would add the packages of the host."""
    for name in ("exit", "quit"):
        setattr(builtins, name, _sitebuiltins.Quitter(name, "Ctrl-D (i.e. EOF)"))
    builtins.help = _sitebuiltins._Helper()


def run_file(path: str) -> None:
    module = ModuleType("__main__")
    module.__file__ = path
    sys.modules["__main__"] = module
    with open(path, "rb") as file:
        content = file.read()
    exec(compile(content, path, "exec", dont_inherit=True), module.__dict__)  # noqa: S102 - runs the code of the file


def show(kind: type[BaseException], error: BaseException, frames: TracebackType | None) -> None:
    """Print an exception without the frames of this file."""
    while frames is not None and frames.tb_frame.f_code.co_filename == __file__:
        frames = frames.tb_next
    sys.__excepthook__(kind, error.with_traceback(frames), frames)


if __name__ == "__main__":
    start(json.loads(sys.argv[1]), sys.argv[2:])
