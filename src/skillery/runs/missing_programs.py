"""Adds the Debian package of a missing program to the outcome of the run that called the program."""

from __future__ import annotations

import re

import msgspec

from skillery.backends import Job, Outcome, ScriptCall
from skillery.formats.system_programs import package_of
from skillery.runs.display import with_line
from skillery.runs.scripts import script_answer

MOST = 1000
MOST_READ = 64 * 1024
_NAME = r"([A-Za-z0-9][A-Za-z0-9_.+-]{0,63})"
NOT_FOUND = (
    re.compile(rf"{_NAME}: command not found"),  # bash
    re.compile(rf": \d+: {_NAME}: not found"),  # dash
    re.compile(rf"env: [‘'`]{_NAME}[’']: No such file or directory"),
    re.compile(rf"spawn {_NAME} ENOENT"),  # Node.js
    re.compile(rf"wants '{_NAME}', and there is no such program"),
    re.compile(rf"the host has no '{_NAME}' where runs see it"),
)
"""Messages that appear only if a program is missing. The group matches the name of the program."""
NO_FILE = re.compile(rf"No such file or directory: '{_NAME}'")
"""Python has this message for missing programs and for missing files: only the name of a known program counts."""
PHRASES = (
    ("Is poppler installed and in PATH?", "pdfinfo"),
    ("tesseract is not installed or it's not in your PATH", "tesseract"),
    ("make sure the Graphviz executables are on your system", "dot"),
    ("No pandoc was found", "pandoc"),
    ("Couldn't find ffmpeg", "ffmpeg"),
)
"""Parts of messages of Python packages, with the program that is missing if the message appears."""


def name_missing_program(job: Job, outcome: Outcome) -> Outcome:
    """Return the outcome. If a program is missing, the error, or the `hint` of a script, names the program and its
    Debian package, if the package is known.
    """
    failure = outcome.failure
    if failure is not None:
        hint = hint_on(failure.message)
        if not hint or hint in failure.message:
            return outcome
        message = f"{failure.message[: MOST - len(hint) - 3]} ({hint})"
        return msgspec.structs.replace(outcome, failure=msgspec.structs.replace(failure, message=message))
    if isinstance(job.call, ScriptCall) and outcome.result is not None:
        return _of_script(outcome, outcome.result)
    return outcome


def _of_script(outcome: Outcome, result: bytes) -> Outcome:
    answer = script_answer(result)
    if answer is None or not answer.get("exit_code") or "hint" in answer:
        return outcome
    stderr = answer.get("stderr")
    # A long stderr is replaced by a blob, so its end is read from the log.
    text = stderr if isinstance(stderr, str) else (outcome.log.tail or outcome.log.head).decode("utf-8", "replace")
    hint = hint_on(text[-MOST_READ:])
    if not hint:
        return outcome
    encoded = msgspec.json.encode({**answer, "hint": hint})
    return msgspec.structs.replace(outcome, result=encoded, log=with_line(outcome.log, f"programs: {hint}"))


def hint_on(text: str) -> str:
    """Return a sentence about the missing program that the text mentions, or "" if the text mentions none."""
    program = missing_program(text)
    if not program:
        return ""
    package = package_of(program)
    where = f"Debian has it in the package '{package}'; an admin" if package else "an admin"
    return (
        f"the program '{program}' is missing where runs see programs: {where} installs it on the server, and "
        "skillery doctor shows what runs see"
    )


def missing_program(text: str) -> str:
    """Return the name of the missing program that the text mentions, or "" if the text mentions none."""
    for phrase, program in PHRASES:
        if phrase in text:
            return program
    for pattern in NOT_FOUND:
        if found := pattern.findall(text):
            return str(found[-1])
    known = [name for name in NO_FILE.findall(text) if package_of(name)]
    return str(known[-1]) if known else ""
