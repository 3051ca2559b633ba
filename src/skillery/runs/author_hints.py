"""Hints for authors: what to change in the code or in skill.toml after a usual failure of a run.

A table maps each failure to its hint. The first row that matches gives the hint.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from skillery.backends import CodeCall, Failure, FailureType, HandlerCall, Job, SkillCall
from skillery.formats.wording import quoted

Remedy = Callable[[Job, Failure, re.Match[str]], str | None]
"""Function that returns the hint for a failure whose message matches, or None if no hint applies."""


class _Row(NamedTuple):
    types: frozenset[str]
    message: re.Pattern[str]
    remedy: Remedy


def author_hint(job: Job, failure: Failure) -> str | None:
    """Return what the author changes after this failure, or None if there is no hint."""
    for row in _ROWS:
        found = row.message.search(failure.message) if failure.type in row.types else None
        if found is not None and (hint := row.remedy(job, failure, found)):
            return hint
    return None


def _limit(job: Job, key: str) -> str:
    where = "limits" if isinstance(job.call, CodeCall) else "[runtime.limits] of skill.toml"
    return f"raise {key} in {where}; the setting max_limits.{key} is the maximum"


def _memory(job: Job, *_: object) -> str:
    return f"{_limit(job, 'memory_mb')}, or process the data in pieces"


def _time(job: Job, *_: object) -> str:
    return "pass a larger timeout_ms, or do less in one run; the setting max_limits.timeout_ms is the maximum"


def _disk(job: Job, *_: object) -> str:
    limits = job.limits
    return (
        f"/workspace has {limits.disk_mb} MiB and {limits.disk_files} files, /tmp has {limits.tmp_mb} MiB: "
        f"{_limit(job, 'disk_mb')}, for /workspace"
    )


def _file_of_skill(job: Job, _: Failure, found: re.Match[str]) -> str | None:
    """Return how to open a file of the skill. The working directory of a run is empty."""
    path = found[1].removeprefix("./")
    if not isinstance(job.call, SkillCall | HandlerCall) or path.startswith("/") or ".." in path.split("/"):
        return None
    skill = job.skills[0]
    start = job.call.path if isinstance(job.call, HandlerCall) else skill.entrypoint or ""
    if not (skill.folder / path).is_file():
        return None
    up = start.count("/")
    return f"the file is in the skill, not in the working directory: Path(__file__).parents[{up}] / {quoted(path)}"


def _variable(job: Job, failure: Failure, found: re.Match[str]) -> str | None:
    if isinstance(job.call, CodeCall) or "environ" not in failure.traceback:
        return None
    return (
        f"a run has no variables of the server, only secrets of its skill: write secrets = [{quoted(found[1])}] below "
        "[permissions] in skill.toml"
    )


def _no_input(job: Job, *_: object) -> str:
    return "a run has no keyboard: declare the value below [inputs], and read it from args"


def _object(job: Job, _: Failure, found: re.Match[str]) -> str | None:
    if not isinstance(job.call, SkillCall):
        return None
    name = job.call.function
    return f"a run passes one argument, the object of all inputs: write def {name}(args): and read args['NAME']"


def _installer(job: Job, _: Failure, found: re.Match[str]) -> str:
    program = next(group for group in found.groups() if group)
    if program in _NODE_INSTALLERS:
        return (
            "a run cannot install packages: bundle the JavaScript modules with the skill, in a folder of another name"
        )
    if isinstance(job.call, CodeCall):
        return "a run cannot install packages: name an environment that has them"
    return 'a run cannot install packages: declare them, dependencies = ["PACKAGE"] below [runtime] in skill.toml'


_NODE_INSTALLERS = frozenset({"npm", "npx", "yarn", "pnpm"})
_INSTALLERS = "pip3?|uv|conda|npm|npx|yarn|pnpm"
_INSTALLER = re.compile(
    rf"No module named '?(pip)\b|No such file or directory: '({_INSTALLERS})'|\b({_INSTALLERS}): (?:command )?not found"
    rf"|Command '\[[^\]]{{0,200}}'-m', '(pip)'|Command '\['(?:[^']*/)?({_INSTALLERS})'|spawn ({_INSTALLERS}) ENOENT"
)
_ANY = re.compile("")
_ROWS = (
    _Row(frozenset({FailureType.MEMORY_LIMIT_EXCEEDED, "MemoryError"}), _ANY, _memory),
    _Row(frozenset({FailureType.TIMEOUT}), re.compile(r"^the run took longer than"), _time),
    _Row(frozenset({"OSError", "Error"}), re.compile(r"\[Errno (?:27|28)\]|\b(?:ENOSPC|EFBIG)\b"), _disk),
    _Row(
        frozenset(
            {"FileNotFoundError", "CalledProcessError", "ModuleNotFoundError", "Error", FailureType.PROCESS_EXITED}
        ),
        _INSTALLER,
        _installer,
    ),
    _Row(
        frozenset({"FileNotFoundError"}), re.compile(r"No such file or directory: '([^'\n]{1,300})'$"), _file_of_skill
    ),
    _Row(frozenset({"KeyError"}), re.compile(r"^'([A-Z][A-Z0-9_]{1,100})'$"), _variable),
    _Row(frozenset({"EOFError"}), re.compile("^EOF when reading a line$"), _no_input),
    _Row(frozenset({"AttributeError"}), re.compile(r"^'dict' object has no attribute '(\w+)'$"), _object),
    _Row(frozenset({"TypeError"}), re.compile(r"^(\w+)\(\) (?:takes|missing) "), _object),
)
