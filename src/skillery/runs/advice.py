"""A word on failures that have to do with what a run may reach or import, or has to make first."""

from __future__ import annotations

import re

import msgspec

from skillery.backends import CodeCall, Failure, HandlerCall, Job, Log, Outcome
from skillery.formats.requirements import DEPENDENCIES
from skillery.runs.tool_calls import SESSION_SKILL

MOST = 1000
NO_FOLDER = re.compile(r"No such file or directory: '(?:/workspace/|\./)?out/")
NO_MODULE = re.compile(r"No module named '(?!skills\b)[A-Za-z0-9_.]+'")
NO_NETWORK = (
    "Name or service not known",
    "Temporary failure in name resolution",
    "Network is unreachable",
    "Could not resolve host",
    "EAI_AGAIN",
    "ENETUNREACH",
    "connect EACCES",
)
NO_SOCKET = re.compile(r"\[Errno 13\] Permission denied(?!:)")
"""A socket that was refused. A file that was refused is named behind a colon."""


def advised(job: Job, outcome: Outcome, why_less: str = "") -> Outcome:
    """The outcome; where code without any network has failed for want of one, its message and its log say what would
    allow it, or `why_less`: why it lacks what its skill lists."""
    failure = outcome.failure
    if failure is not None and failure.type == "FileNotFoundError" and NO_FOLDER.search(failure.message):
        word = "the folder out is made by who writes to it: os.makedirs('out', exist_ok=True)"
        return msgspec.structs.replace(outcome, failure=_with_word(failure, word))
    if failure is not None and failure.type == "ModuleNotFoundError" and NO_MODULE.fullmatch(failure.message):
        return msgspec.structs.replace(outcome, failure=_with_word(failure, where_packages_come_from(job)))
    if failure is None or job.network or not lacks_network(failure):
        return outcome
    word = why_less or how_to_allow(job)
    log = Log(outcome.log.head, outcome.log.tail + f"network: {word}\n".encode(), outcome.log.dropped)
    if not outcome.log.dropped:
        log = Log(outcome.log.head + outcome.log.tail + f"network: {word}\n".encode())
    return msgspec.structs.replace(outcome, failure=_with_word(failure, word), log=log)


def lacks_network(failure: Failure) -> bool:
    """Return whether the code failed because it tried to use the network."""
    said = failure.message + failure.traceback
    return any(word in said for word in NO_NETWORK) or bool(NO_SOCKET.search(failure.message))


def where_packages_come_from(job: Job) -> str:
    if isinstance(job.call, CodeCall):
        return "packages come with the environment of run_code: list_environments tells which there are"
    return f"a package that a skill imports stands in {DEPENDENCIES} of its skill.toml"


def _with_word(failure: Failure, word: str) -> Failure:
    return Failure(failure.type, f"{failure.message[: MOST - len(word) - 3]} ({word})", failure.traceback)


def how_to_allow(job: Job) -> str:
    line = 'permissions.network = ["https://HOST"]'
    if isinstance(job.call, HandlerCall) and job.call.skill == SESSION_SKILL:
        return f"a tool that lives in a session has no network; a skill with a tools.json and {line} may reach HOST"
    if not isinstance(job.call, CodeCall):
        return f"'{job.call.skill}' lists no host that it may reach; {line} in its skill.toml would allow HOST"
    return f"code of run_code has no network; a function of a mounted skill with {line} may reach HOST"
