"""Remedies of failed runs: what failed, with the values of the run, and what to do next."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Literal, NamedTuple

import msgspec
from sqlalchemy import Connection, case, func, null, select

from skillery.backends import Identity
from skillery.database.tables import runs
from skillery.failure_types import FailureType
from skillery.formats.tracebacks import shape_of
from skillery.identity import access
from skillery.method import or_none
from skillery.runs.queries import RunFilter, find_run, listing
from skillery.runs.results import RunError, RunRecord, if_set

# -- Usual exceptions of code ------------------------------------------------------------------------------------------


_DATA = "Look at the failing line, and at the inputs"
_EXCEPTIONS: tuple[tuple[str, str, str], ...] = (
    ("KeyError", r"^(.{1,100})$", f"The data has no key {{0}}. {_DATA}."),
    ("IndexError", "", f"The code reads an entry behind the end of a list. {_DATA}: one may be empty."),
    ("ZeroDivisionError", "", f"The code divides by 0. {_DATA}: one may be 0 or empty."),
    (
        "FileNotFoundError|Error",
        r"(?:directory: |ENOENT.*)'([^'\n]{1,200})'",
        "The run has no file {0}. Pass it with the run, or create it first.",
    ),
    ("FileExistsError", r"'([^'\n]{1,200})'", "The file {0} exists already: write another file, or delete it first."),
    (
        "PermissionError|Error",
        r"(?:denied: |EACCES.*)'([^'\n]{1,200})'",
        "The run may not use {0}: it writes below /workspace and /tmp only.",
    ),
    (
        "ModuleNotFoundError",
        r"named '([^'\n]{1,100})'",
        "The module {0} is not installed for this skill: its author declares the package.",
    ),
    (
        "ImportError",
        r"name '([^'\n]{1,100})' from '([^'\n]{1,100})'",
        "The module {1} has no {0}: its version may be another than the author used.",
    ),
    (
        "NameError|UnboundLocalError|ReferenceError",
        r"^(?:name |cannot access local variable )?'?([\w$]{1,100})'? is(?: not defined)?",
        "The code uses {0} before it defines it: a fault of the code.",
    ),
    (
        "AttributeError",
        r"^'NoneType' object has no attribute '(\w{1,100})'",
        f"The code reads .{{0}} of a value that is missing (None). {_DATA}.",
    ),
    (
        "TypeError",
        r"properties of (?:undefined|null) \(reading '([^']{1,100})'\)",
        f"The code reads .{{0}} of a value that is missing. {_DATA}.",
    ),
    (
        "AttributeError",
        r"^'(\w{1,100})' object has no attribute '(\w{1,100})'",
        "The code reads .{1} of a value of type {0}, which has none: an input may have another type.",
    ),
    (
        "TypeError",
        r"missing \d+ required [a-z-]+ arguments?: (.{1,200})$",
        "The code calls a function without {0}: a fault of the code.",
    ),
    (
        "TypeError",
        r"unexpected keyword argument '(\w{1,100})'",
        "The code passes {0} to a function without it: a fault of the code, or another version of a package.",
    ),
    (
        "TypeError",
        r"(?:'NoneType' object|must be|unsupported operand)",
        f"A value has another type than the code expects. {_DATA}.",
    ),
    (
        "ValueError",
        r"^could not convert string to float: (.{1,100})$",
        "{0} is no number: correct the input that has it.",
    ),
    (
        "ValueError",
        r"^invalid literal for int\(\) with base \d+: (.{1,100})$",
        "{0} is no integer: correct the input that has it.",
    ),
    (
        "JSONDecodeError|SyntaxError",
        r"(line \d+ column \d+)",
        "A text is not JSON at {0}: a file or an answer has another format.",
    ),
    (
        "UnicodeDecodeError",
        r"'([\w-]{1,40})' codec can't decode byte (0x\w\w) in position (\d+)",
        "A file is not {0} text: it has the byte {1} at {2}. It may be binary, or have another encoding.",
    ),
    ("RecursionError|RangeError", "", "A function calls itself without an end, or the data is nested too deeply."),
    ("AssertionError", "", "A check in the code does not hold: look at the failing line."),
    ("NotImplementedError", "", "The author has not written this part of the skill."),
    ("CalledProcessError", r"exit status (\d+)", "A program that the code started ended with {0}. The log shows why."),
    (
        "gaierror|URLError|ConnectionError|ConnectTimeout|ConnectError|ConnectionRefusedError|TimeoutError",
        "",
        "A host did not answer, or the skill may not reach it: see Network.",
    ),
    (
        "HTTPError|HTTPStatusError",
        r"\b([45]\d\d)\b",
        "A host answered {0}: see Network. After 5xx, run it again later; after 4xx, correct the request.",
    ),
)
"""Types of exceptions, a pattern of their messages, and a sentence with the groups of the pattern. The first row that
matches counts."""
_ROWS = [(frozenset(types.split("|")), re.compile(pattern), words) for types, pattern, words in _EXCEPTIONS]
_OWN = "The code says this itself. Correct the input that the message is about, or look at the failing line."
LEAST_OF_HINT = 25
"""A shorter text in brackets is a part of the message."""


def words_of_exception(error_type: str, message: str) -> str:
    """Return what to do about an exception of code, or "" if it says nothing."""
    for types, pattern, words in _ROWS:
        if error_type in types and (match := pattern.search(message)):
            return words.format(*match.groups())
    return ""


def split_hint(message: str) -> tuple[str, str]:
    """Return a message and the hint in brackets at its end, or "" if it has none: skillery.runs.hints."""
    depth = 0
    for place in range(len(message) - 1, -1, -1) if message.endswith(")") else ():
        depth += {")": 1, "(": -1}.get(message[place], 0)
        if not depth:
            hint = message[place + 1 : -1]
            return (message[:place].rstrip(), hint) if len(hint) >= LEAST_OF_HINT else (message, "")
    return message, ""


def explained(message: str, error_type: str) -> tuple[str, str]:
    """Return a message without its hint, and what to do about the exception, or "" if nothing is known about it."""
    message, hint = split_hint(message)
    return message, _sentence(hint) or words_of_exception(error_type, message)


# -- The input that all failed runs have in common ---------------------------------------------------------------------


MOST_COMPARED = 200
MOST_ARGS = 4096
"""The size in characters of the args of one run. Larger args are not compared."""
MOST_LOOKED_AT = 2000
ENOUGH = 5
"""The failed and the completed runs that a comparison needs."""
MOST_COMPLETED = 0.01
"""The part of the completed runs that may have the value."""


def runs_before(connection: Connection, *, identity: Identity, run_id: str) -> list[str]:
    """Return the ids of the last earlier run of the same skill, and of the last completed one, that the identity sees.

    They can be the same. Return [] if there is none. Raise the errors of `find_run`.
    """
    row = find_run(connection, identity, run_id)
    if row.skill_name is None:
        return []
    owner, ids = "" if access.is_auditor(identity) else identity.name, list[str]()
    for filters in (RunFilter(row.skill_name), RunFilter(row.skill_name, "completed")):
        earlier = listing(owner, filters, datetime.now(UTC)).where(runs.c.started_at < row.started_at)
        ids += connection.scalars(earlier.order_by(runs.c.started_at.desc()).limit(1))
    return ids


class Telling(NamedTuple):
    """An input that all failed runs have in common, and nearly no completed run."""

    name: str
    value: Any
    is_given: bool
    """Whether the failed runs have the input. If not, the completed runs have it."""
    failed: int
    completed: int


def telling_input(connection: Connection, identity: Identity, run_id: str) -> Telling | None:
    """Return the input that tells the runs that failed like this one from the completed runs of the same version.

    Return None if there is no such input, or more than one. Raise RunNotFound if the identity may not see the run.
    """
    run = find_run(connection, identity, run_id)
    error = _error_of(run)
    if error is None or run.version_id is None or run.args_json is None:
        return None
    key = _key_of(run.skill_name, error)
    last = select(runs.c.id).where(runs.c.skill_id == run.skill_id).order_by(runs.c.started_at.desc())
    args = case((func.length(runs.c.args_json) <= MOST_ARGS, runs.c.args_json), else_=null()).label("args_json")
    compared = (
        select(args, runs.c.error_json)
        .where(runs.c.id.in_(last.limit(MOST_LOOKED_AT)), runs.c.version_id == run.version_id)
        .order_by(runs.c.started_at.desc())
        .limit(MOST_COMPARED)
    )
    failed = [
        _args_in(row.args_json)
        for row in connection.execute(compared.where(runs.c.status == "failed"))
        if row.args_json and (other := _error_of(row)) and _key_of(run.skill_name, other) == key
    ]
    completed = [
        _args_in(row.args_json)
        for row in connection.execute(compared.where(runs.c.status == "completed"))
        if row.args_json
    ]
    return common_input(_args_in(run.args_json), failed, completed)


def common_input(
    args: Mapping[str, Any], failed: Sequence[Mapping[str, Any]], completed: Sequence[Mapping[str, Any]]
) -> Telling | None:
    """Return the only input that all failed runs have in common with `args`, and nearly no completed run."""
    if len(failed) < ENOUGH or len(completed) < ENOUGH:
        return None
    names = {*args, *(name for other in completed for name in other)}
    telling = []
    for name in names:
        value = args.get(name, msgspec.UNSET)
        same = [
            sum(_is_same(other.get(name, msgspec.UNSET), value) for other in group) for group in (failed, completed)
        ]
        if same[0] == len(failed) and same[1] <= MOST_COMPLETED * len(completed):
            telling.append(Telling(name, args.get(name), name in args, len(failed), len(completed)))
    return telling[0] if len(telling) == 1 else None


def _is_same(value: Any, other: Any) -> bool:
    return type(value) is type(other) and bool(value == other)


def _args_in(text: str) -> dict[str, Any]:
    args = msgspec.json.decode(text)
    return args if isinstance(args, dict) else {}


def _error_of(row: Any) -> RunError | None:
    return msgspec.json.decode(row.error_json, type=RunError) if row.error_json else None


def _key_of(skill: str, error: RunError) -> str:
    return shape_of(skill, error.type, error.message, if_set(error.traceback) or "").key


# -- The remedy of a run -----------------------------------------------------------------------------------------------


NextStep = Literal["again", "correct", "change", "before", "completed", "owner"]
"""Run again, correct or change the inputs first, run again on the release before, look at completed runs, or ask the
owner of the skill.
"""


class Remedy(NamedTuple):
    """A failed run in words."""

    heading: str
    text: str
    """What to do, or ""."""
    message: str
    """The message of the failure without its hint. With the type of an exception, unless the heading has it."""
    step: NextStep = "again"


_LIMITS = {
    FailureType.MEMORY_LIMIT_EXCEEDED: ("memory_mb", 1.0, "It needs more memory than {0:g} MiB"),
    FailureType.TIMEOUT: ("timeout_ms", 1000.0, "It takes longer than {0:g} s"),
    FailureType.CPU_TIME_EXCEEDED: ("timeout_ms", 1000.0, "It takes more processor time than {0:g} s"),
}
"""The limit of each failure, its unit in that of the heading, and the heading."""


def remedy_of(run: RunRecord, telling: Telling | None, *, is_at_limit: bool) -> Remedy | None:
    """Return the failure of a run in words, or None if it has not failed. The first rule that applies counts."""
    error, skill, group = or_none(run.error), or_none(run.skill), or_none(run.same_failure)
    if error is None:
        return None
    # An exception of the code can have the name of a failure of the server. It has a traceback, like a timeout.
    failure = next((failure for failure in FailureType if failure == error.type), None)
    if failure is not None and not is_at_limit and error.traceback:
        failure = None
    if failure is FailureType.VALIDATION_ERROR:
        first, _, rest = error.message.partition("\n")
        return Remedy(first, "", rest, "correct")
    message, known = explained(error.message, error.type)
    hint = _sentence(split_hint(error.message)[1])
    name = run.tool or (skill.name if skill else "The code")
    heading = f"{name} raised {error.type}"
    text = known or _OWN
    step: NextStep = "again"
    refused = [use.host for use in run.network if not use.allowed]
    if failure is not None:
        heading, text = failure.cause.replace("`", "").rstrip("."), failure.remedy.replace("`", "")
        step = "owner" if failure is FailureType.SECRET_MISSING else step
        if failure in _LIMITS:
            key, unit, words = _LIMITS[failure]
            heading = words.format((msgspec.json.decode(run.limits) or {}).get(key, 0) / unit)
            step = "completed" if skill else "again"
    elif hint:  # its first sentence is the heading
        first, _, rest = hint.replace("; ", ". ", 1).partition(". ")
        heading, text = first.rstrip("."), f"{_sentence(rest)} {heading}.".strip()
    elif telling is not None and skill:
        message = f"{error.type}: {message}"
        heading, step = _told_apart(skill.version, telling), "change"
        if group and group.before:
            heading += f". {group.before.version} never failed this way"
        have = f"All of the last {telling.failed} runs that failed this way have it in common"
        text = f"{have}, and nearly none of the last {telling.completed} completed runs."
    elif group and group.before and skill and skill.version != group.before.version:
        heading, step = f"{group.before.version} never failed this way", "before"
        text = f"{name} raised {error.type} in {skill.version}. {text}".rstrip()
    elif refused:
        owner = "Its author adds it to permissions.network in skill.toml, and publishes a new version."
        heading, text = f"{refused[0]} is not in its permissions", owner
    if step == "again" and "permissions.network" in f"{heading} {text}".lower():
        step = "owner"
    return Remedy(heading, text, message, step)


def _told_apart(version: str, telling: Telling) -> str:
    if not telling.is_given:
        return f"{version} fails without {telling.name}"
    value = telling.value
    words = {True: "yes", False: "no"}[value] if isinstance(value, bool) else msgspec.json.encode(value).decode()[:80]
    return f"{version} fails when {telling.name} is {words}"


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:].rstrip('.')}." if text else ""
