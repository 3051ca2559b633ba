"""Hints for authors of code that failed in a run: a forgotten mount, a path that is not writable, a wrong call."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from skillery.backends import CodeCall, Failure, FailureType, HandlerCall, Job, SkillCall
from skillery.formats.wording import quoted

# -- Hints for authors: what to change in the code or in skill.toml after a usual failure of a run ---------------------
# A table maps each failure to its hint. The first row that matches gives the hint.


Remedy = Callable[[Job, Failure, re.Match[str]], str | None]
"""Function that returns the hint for the failure of a job, or None if no hint applies. The third argument is the match
of the pattern of the row with the failure's message.
"""


class _Row(NamedTuple):
    """One row of the table: failures of one of the `types` whose message matches get the hint of `remedy`."""

    types: frozenset[str]
    message: re.Pattern[str]
    remedy: Remedy


def author_hint(job: Job, failure: Failure) -> str | None:
    """Return what the author can change after this failure, or None if no row of the table applies."""
    for row in _ROWS:
        match = row.message.search(failure.message) if failure.type in row.types else None
        if match is not None and (hint := row.remedy(job, failure, match)):
            return hint
    return None


def _limit(job: Job, key: str) -> str:
    """Return how to raise the limit `key` for the code of this job."""
    where = "limits" if isinstance(job.call, CodeCall) else "[runtime.limits] of skill.toml"
    return f"raise {key} in {where}; the setting max_limits.{key} is the maximum"


def _memory(job: Job, *_: object) -> str:
    return f"{_limit(job, 'memory_mb')}, or process the data in pieces"


def _time(job: Job, *_: object) -> str:
    return "pass a larger timeout_ms, or do less in one run; the setting max_limits.timeout_ms is the maximum"


def _disk(job: Job, *_: object) -> str:
    """Return the limits of /workspace and /tmp, and how to raise them."""
    limits = job.limits
    return (
        f"/workspace has {limits.disk_mb} MiB and {limits.disk_files} files, /tmp has {limits.tmp_mb} MiB: "
        f"{_limit(job, 'disk_mb')}, for /workspace"
    )


def _file_of_skill(job: Job, _: Failure, match: re.Match[str]) -> str | None:
    """Return how to open a file of the skill by a path that does not depend on the working directory.

    The working directory of a run is empty, so a relative path to a file of the skill fails.
    """
    path = match[1].removeprefix("./")
    if not isinstance(job.call, SkillCall | HandlerCall) or path.startswith("/") or ".." in path.split("/"):
        return None
    skill = job.skills[0]
    start = job.call.path if isinstance(job.call, HandlerCall) else skill.entrypoint or ""
    if not (skill.folder / path).is_file():
        return None
    up = start.count("/")
    return f"the file is in the skill, not in the working directory: Path(__file__).parents[{up}] / {quoted(path)}"


def _variable(job: Job, failure: Failure, match: re.Match[str]) -> str | None:
    """Return how to declare a secret, if the code reads an environment variable that is not set."""
    if isinstance(job.call, CodeCall) or "environ" not in failure.traceback:
        return None
    return (
        f"a run has no variables of the server, only secrets of its skill: write secrets = [{quoted(match[1])}] below "
        "[permissions] in skill.toml"
    )


def _no_input(job: Job, *_: object) -> str:
    return "a run has no keyboard: declare the value below [inputs], and read it from args"


def _object(job: Job, _: Failure, match: re.Match[str]) -> str | None:
    """Return how a function of a skill reads its inputs. The failure shows that it reads them as attributes."""
    if not isinstance(job.call, SkillCall):
        return None
    name = job.call.function
    return f"a run passes one argument, the object of all inputs: write def {name}(args): and read args['NAME']"


def _exit(job: Job, failure: Failure, _: re.Match[str]) -> str | None:
    """Return what to write instead of sys.exit, with the file and line of the last frame in a skill."""
    if not isinstance(job.call, SkillCall | HandlerCall):
        return None
    places = PLACE.findall(failure.traceback)
    place = ":".join(places[-1]) + ": " if places else ""
    return f"{place}return a value, or raise an error, instead of sys.exit"


def _installer(job: Job, _: Failure, match: re.Match[str]) -> str:
    """Return how to declare packages, if the code called a package installer such as pip or npm."""
    program = next(group for group in match.groups() if group)
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
PLACE = re.compile(r'^  File "/skills/[^/"\n]{1,200}/([^"\n]{1,300})", line (\d{1,9})', re.MULTILINE)
"""Matches a traceback line in a file of a skill. Groups: the path in the skill, and the line number."""
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
    _Row(frozenset({"SystemExit"}), _ANY, _exit),
    _Row(frozenset({"EOFError"}), re.compile("^EOF when reading a line$"), _no_input),
    _Row(frozenset({"AttributeError"}), re.compile(r"^'dict' object has no attribute '(\w+)'$"), _object),
    _Row(frozenset({"TypeError"}), re.compile(r"^(\w+)\(\) (?:takes|missing) "), _object),
)


NO_SKILL = re.compile(r"No module named '(skills(?:\.[A-Za-z0-9_.]{1,200})?)'")
"""Matches the import of a skill that is not mounted. Group: the dotted module, from `skills` on."""
READ_ONLY = re.compile(
    r"\[Errno (?:30|13)\] [A-Za-z -]{1,40}: '(?P<python>/[^']{0,300})'"
    r"|(?:EROFS|EACCES): [a-z -]{1,40}, [a-z]{1,20} '(?P<node>/[^']{0,300})'"
)
"""Matches a refused write. Group `python` or `node`: the path, by the language of the message."""
ABSENT = re.compile(
    r"\[Errno 2\] No such file or directory: '(?P<python>/[^']{0,300})'"
    r"|ENOENT: [a-z -]{1,40}, [a-z]{1,20} '(?P<node>/[^']{0,300})'"
)
"""Matches an open of a path that does not exist. Group `python` or `node`: the path."""
NO_NAME = re.compile(
    r"cannot import name '(?P<name>[A-Za-z0-9_]{1,128})' "
    r"from '(?P<parent>skills(?:\.[A-Za-z0-9_.]{1,200})?)' \(unknown location\)"
)
"""Matches `from PARENT import NAME` of a skill that is not mounted. PARENT is `skills` or a namespace below it."""
WRITABLE = ("/workspace", "/tmp")  # noqa: S108 - paths of the sandbox
WRONG_CALL = re.compile(r"^(\w{1,128})\(\) (?:takes|missing) ")
"""Matches a call with a wrong number of arguments. Group: the function."""
IN_WORKSPACE = re.compile(r"\[Errno 2\] No such file or directory: '(?:/workspace/)?([^/'][^']{0,300})'$")
"""Matches an open of a file below /workspace that does not exist. Group: its path in the workspace."""
MORE_OF_A_LIMIT = {
    "TimeoutError": "do less in one call, or pass a larger limits={'timeout_ms': ...}",
    "MemoryLimitExceeded": "read data in parts, or pass a larger limits={'memory_mb': ...}",
    "MemoryError": "read data in parts, or pass a larger limits={'memory_mb': ...}",
}
"""The hint of run_code for each type of failure that a limit causes."""
READABLE = ("/skills/", "/packages/", "/usr/", "/etc/", "/proc/", "/dev/")
"""Folders that every run can read. A path that is absent there gets no hint on writing."""
_IMPORTED = re.compile(
    r"\b(?:from|import)[ \t]++skills\.(?P<module>[A-Za-z0-9_.]{1,128})"
    r"|\bfrom[ \t]++skills[ \t]++import[ \t]++\(?[ \t]*+(?P<name>[A-Za-z0-9_]{1,64})"
)
MOST_CODE = 256 * 1024
"""Only this many characters of the code are searched for imports, because the search blocks the event loop."""


def code_hint(job: Job, failure: Failure) -> str | None:
    """Return a hint that says how to correct the code, or None if no hint applies.

    The hints are about skills that are not mounted, paths, and the code of run_code.
    """
    match = NO_SKILL.search(failure.message)
    if match is not None and failure.type in {"ModuleNotFoundError", "ImportError"}:
        return _how_to_mount(job, match[1])
    if (match := NO_NAME.search(failure.message)) is not None:
        return _how_to_mount(job, f"{match['parent']}.{match['name']}")
    if isinstance(job.call, CodeCall) and (hint := _code_only(job.call, failure)):
        return hint
    return author_hint(job, failure) or _how_to_write(failure.message)


def _code_only(call: CodeCall, failure: Failure) -> str | None:
    """Return a hint about the code of run_code, or None if no hint applies."""
    if failure.type == "SystemExit":
        return f"return a value from {call.function} instead"
    if failure.type == "SyntaxError" and call.code.lstrip().startswith("```"):
        return "send only the code, without the lines of ``` around it"
    if failure.type == "SyntaxError" and failure.message.startswith("'return' outside function"):
        return f"write the lines as a function, indented below def {call.function}(args):"
    if failure.type in MORE_OF_A_LIMIT:
        return MORE_OF_A_LIMIT[failure.type]
    wrong_call = WRONG_CALL.search(failure.message)
    if failure.type == "TypeError" and wrong_call and wrong_call[1] == call.function:
        return f"a run passes one argument, the object args: def {call.function}(args):"
    if failure.type == "FileNotFoundError" and (match := IN_WORKSPACE.search(failure.message)):
        return f"the workspace starts empty: files=[{{'path': {quoted(match[1])}, 'blob_id': ...}}] copies a blob there"
    return None


def _how_to_write(message: str) -> str | None:
    """Return where a run can read and write, if the message names a path it cannot. Else return None."""
    refused, absent = READ_ONLY.search(message), ABSENT.search(message)
    match = refused or absent
    path = (match["python"] or match["node"]) if match else ""
    if not path or path.startswith(WRITABLE):
        return None
    if not refused and path.startswith("/blobs/"):
        return "a run has the blobs of input_blobs: pass the id there; the name of the file is the whole id"
    if not refused and path.startswith(READABLE):
        return None
    return (
        "a run can write only below /workspace, its working directory, and /tmp; files below /workspace/out are kept: "
        "os.makedirs('out', exist_ok=True)"
    )


def _how_to_mount(job: Job, missing: str) -> str:
    """Return how to mount the skill of the module `missing` in run_code."""
    if not isinstance(job.call, CodeCall):
        return _how_to_import(job, missing)
    mounted = ", ".join(f"skills.{skill.name.replace('-', '_')}" for skill in job.skills if skill.entrypoint)
    skill_name = _skill_of(missing, job.call.code[:MOST_CODE])
    mounted_note = f"; mounted are {mounted}" if mounted else ""
    return f"mount the skill: mount_skills=[{quoted(skill_name, 128)}], where a name may have '-' for '_'{mounted_note}"


def _how_to_import(job: Job, missing: str) -> str:
    """Return why a run of a skill or a tool cannot import the module `missing`."""
    own_module = f"skills.{job.skills[0].name.replace('-', '_')}"
    if missing.startswith(f"{own_module}."):
        return f"the skill has no module {missing.removeprefix(f'{own_module}.')} next to its entrypoint"
    return "a run of a skill has no other skills; run_code mounts several with mount_skills"


def _skill_of(module: str, code: str) -> str:
    """Return the skill of the missing module `skills` or `skills.…`: the name in the first import of the code that
    needs this module, without `skills.`. If no import needs it, return the name of the module, or "NAME" for `skills`.
    """
    missing = module.removeprefix("skills").removeprefix(".")
    for match in _IMPORTED.finditer(code):
        name = (match["module"] or match["name"]).strip(".")
        if name == missing or name.startswith(f"{missing}." if missing else ""):
            return name
    return missing or "NAME"
