"""Commands that start a file, chosen by its suffix, else by its `#!` line."""

# ruff: noqa: PTH100, PTH113, PTH118, PTH119, PTH120, PTH123 - importing pathlib costs every such run time
from __future__ import annotations

import json
import os
import sys

from ._failure import failed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Job = dict[str, Any]

HERE = os.path.dirname(os.path.abspath(__file__))
START, SITE = os.path.join(HERE, "_start.py"), os.path.join(HERE, "_site")
NODE_ENDINGS, PYTHON_ENDING, SHELL_ENDING = (".js", ".mjs", ".cjs"), ".py", ".sh"
TYPES_ENDINGS = (".ts", ".mts", ".cts")
TYPES = "--experimental-transform-types"
"""The option of Node.js for TypeScript with enums and other syntax that is not only removed."""
QUIET = [f"--disable-warning={name}" for name in ("ExperimentalWarning", "MODULE_TYPELESS_PACKAGE_JSON")]
TYPES_SINCE = (22, 18)
PRELOAD = os.path.join(HERE, "_preload.cjs")
HEAP_SHARE = 0.75
"""Share of the run's memory for the heap of V8. The rest is for other memory of the process."""
SHEBANG = 256


def set_variables(job: Job) -> None:
    """Let Python programs that the program starts import its folder and its packages (`_site`)."""
    description = {
        "root": job["program"]["root"],
        "packages": job["packages"],
        "version": sys.version_info[:2],
    }
    os.environ.setdefault("PYTHONPATH", SITE)
    os.environ.setdefault("CELLBLOCK_PYTHON", json.dumps(description))


def preload_node() -> None:
    """Let every Node.js of the run load PRELOAD first."""
    os.environ["NODE_OPTIONS"] = f'--require "{PRELOAD}" {os.environ.get("NODE_OPTIONS", "")}'.rstrip()


def find(name: str) -> str | None:
    """Return the path of a program, or None if the run sees no program of this name."""
    folders = [*os.environ.get("PATH", "").split(":"), os.path.join(sys.base_prefix, "bin")]
    paths = (os.path.join(folder, name) for folder in folders if folder)
    return next((path for path in paths if os.path.isfile(path) and os.access(path, os.X_OK)), None)


def needed(name: str, language: str) -> str:
    path = find(name)
    if path is None:
        there = ["python", *(other for other, program in (("bash", "bash"), ("javascript", "node")) if find(program))]
        raise failed(
            "SandboxError",
            f"{language} cannot be run here: the host has no '{name}' where runs see it; there is {', '.join(there)}",
        )
    return path


def node(job: Job) -> list[str]:
    heap = max(16, int(job["program"]["memory_mb"] * HEAP_SHARE))
    return [needed("node", "javascript"), f"--max-old-space-size={heap}"]


def check_types(command: list[str], status: int) -> None:
    """Raise Told if Node.js is too old for TypeScript, and has therefore refused the options in the command."""
    if status != 9 << 8 or TYPES not in command:  # the status for an unknown option
        return
    import subprocess

    answer = subprocess.run([command[0], "--version"], stdout=subprocess.PIPE, text=True, check=False)
    version = answer.stdout.strip().lstrip("v")
    if tuple(map(int, version.split(".")[:2])) < TYPES_SINCE:
        needed = ".".join(map(str, TYPES_SINCE))
        raise failed("SandboxError", f"this host has Node.js {version}; TypeScript needs Node.js {needed} or later")


def python(job: Job) -> list[str]:
    """Return the command of the Python interpreter, without packages outside of the standard library."""
    return [job["program"].get("python") or sys.executable, "-u", "-E", "-s", "-S", "-B"]


def python_file(job: Job, path: str) -> list[str]:
    """Return the command for a Python file or the job's module. Packages and the folder `root` are importable."""
    program = job["program"]
    order = {"path": path, "root": program["root"], "packages": job["packages"], "module": program.get("module", "")}
    return [*python(job), START, json.dumps(order)]


def interpreter(job: Job, path: str) -> list[str]:
    """Return the command for a file, chosen by its suffix, or by its `#!` line."""
    if path.endswith(NODE_ENDINGS):
        return [*node(job), path]
    if path.endswith(TYPES_ENDINGS):
        return [*node(job), TYPES, *QUIET, path]
    if path.endswith(PYTHON_ENDING):
        return python_file(job, path)
    if path.endswith(SHELL_ENDING):
        return [needed("bash", "bash"), path]
    return by_first_line(job, job["program"]["name"], path)


def by_first_line(job: Job, name: str, path: str) -> list[str]:
    with open(path, "rb") as file:
        words = file.read(SHEBANG).partition(b"\n")[0].decode("utf-8", "replace").strip()
    if not words.startswith("#!") or not words[2:].split():
        endings = ", ".join((PYTHON_ENDING, SHELL_ENDING, *NODE_ENDINGS, *TYPES_ENDINGS))
        raise failed("OSError", f"'{name}' has no ending that says how to run it ({endings}) and no '#!' line")
    program, *options = words[2:].split()
    named = [option for option in options if not option.startswith("-")]
    wanted = named[0] if os.path.basename(program) == "env" and named else program
    if not os.access(program, os.X_OK) or find(wanted) is None:
        raise failed("OSError", f"'{name}' wants '{wanted}', and there is no such program in the sandbox")
    if os.path.basename(wanted) == "node" and options in ([], named):
        return [*node(job), path]
    # Many copied files have lost the executable bit. The kernel passes all options as one argument.
    return [path] if os.access(path, os.X_OK) else [program, *filter(None, [" ".join(options)]), path]
