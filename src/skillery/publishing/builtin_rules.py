"""Five rules that read the files of every new version, also on a server without a scanner: instructions against the
user, downloads that run, hidden characters, encoded data in scripts, and secrets.

The rules find careless and simple attacks. A scanner has more rules. The files may be from strangers, so each step
takes linear time: a rule reads lines up to a length, and every repetition in a pattern has a bound.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from skillery.backends import Finding
from skillery.formats.bundle import BundleFile

MOST_READ = 1024 * 1024
"""The maximum number of bytes of a file that the rules read."""
MOST_READ_IN_ALL = 4 * 1024 * 1024
MOST_IN_LINE = 4000
"""The maximum number of characters of a line that the rules read. The rest of the line counts as further lines."""
MOST_FINDINGS = 20
"""The maximum number of findings of one rule."""
NOT_READ = "not_read"
_FEW = 3
"""This many characters of zero width in a file may be typing errors. More can hide text."""
_SCRIPTS = (".py", ".js", ".mjs", ".cjs", ".ts", ".sh", ".bash", ".rb", ".pl", ".ps1")


class Rule(NamedTuple):
    """A rule that reads a file line by line."""

    name: str
    message: str
    hints: tuple[str, ...]
    """Words in lower case. A line without any of them is not searched, because `in` is faster than a pattern."""
    pattern: re.Pattern[str]
    is_for_scripts: bool = False


_TEXT_RULES = (
    Rule(
        "instruction_override",
        "tells a model to ignore its instructions or to hide something from the user",
        (
            "ignore",
            "disregard",
            "forget",
            "without telling",
            "not tell",
            "don't tell",
            "never tell",
            "inform",
            "mention",
        ),
        re.compile(
            r"\b(?:ignore|disregard|forget)\s{1,3}(?:all\s{1,3})?(?:of\s{1,3})?(?:the\s{1,3}|your\s{1,3}|any\s{1,3})?"
            r"(?:previous|prior|earlier|above|system|other)\s{1,3}(?:instruction|prompt|message|rule|guideline)"
            r"|\bwithout\s{1,3}telling\s{1,3}(?:the\s{1,3})?user"
            r"|\b(?:do\s{1,3}not|don't|never)\s{1,3}(?:tell|inform)\s{1,3}(?:the\s{1,3})?user"
            r"|\bdo\s{1,3}not\s{1,3}mention\s{1,3}(?:this|it)\s{1,3}to\s{1,3}(?:the\s{1,3})?user",
            re.IGNORECASE,
        ),
    ),
    Rule(
        "pipe_to_shell",
        "runs a program that it downloads",
        ("curl", "wget", "iwr", "irm", "invoke-webrequest"),
        re.compile(
            r"\b(?:curl|wget)\b[^|]{1,200}\|\s{0,4}(?:sudo\s{1,4})?(?:(?:ba|z|da)?sh|python[0-9.]{0,4}|perl|ruby|node)\b"
            r"|\b(?:ba|z|da)?sh\s{1,4}(?:-c\s{1,4})?[\"']?(?:<\(|\$\()\s{0,4}(?:curl|wget)\b"
            r"|\b(?:iwr|irm|invoke-webrequest)\b[^|]{1,200}\|\s{0,4}(?:iex|invoke-expression)\b",
            re.IGNORECASE,
        ),
    ),
    Rule(
        "encoded_data",
        "has more than 1 kB of encoded data in one line",
        ("",),
        re.compile(r"(?<![A-Za-z0-9+/_-])[A-Za-z0-9+/_-]{1024}"),
        is_for_scripts=True,
    ),
    Rule(
        "secret_in_file",
        "has a text that looks like a private key or a token",
        ("private key", "akia", "ghp_", "gho_", "ghs_", "github_pat_", "xox", "sk-", "sk_live_", "aiza", "glpat-"),
        re.compile(
            r"-----BEGIN (?:[A-Z]{2,10} ){0,2}PRIVATE KEY-----"
            r"|\bAKIA[0-9A-Z]{16}\b"
            r"|\bgh[posur]_[A-Za-z0-9]{36}"
            r"|\bgithub_pat_[A-Za-z0-9_]{40}"
            r"|\bxox[abprs]-[A-Za-z0-9-]{20}"
            r"|\bsk-(?:ant-|proj-)?[A-Za-z0-9_-]{32}"
            r"|\bsk_live_[A-Za-z0-9]{20}"
            r"|\bAIza[A-Za-z0-9_-]{35}"
            r"|\bglpat-[A-Za-z0-9_-]{20}"
        ),
    ),
)
HIDDEN_CHARACTERS = "hidden_characters"
RULES = (*(rule.name for rule in _TEXT_RULES), HIDDEN_CHARACTERS)
"""The names of the five rules."""
_STEERING = re.compile("[\u202a-\u202e\u2066-\u2069]")
_RIGHT_TO_LEFT = re.compile("[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc]")
# A flag of a region is a black flag, a few tags and a cancel tag. No text has two variation selectors in a row.
_FLAG = re.compile("\U0001f3f4[\U000e0030-\U000e0039\U000e0061-\U000e007a]{1,6}\U000e007f")
_TAGS = re.compile("[\U000e0001-\U000e007f]|[\ufe00-\ufe0f\U000e0100-\U000e01ef]{2}")
_ZERO_WIDTH = re.compile("[\u200b\u2060-\u2064\u180e\ufeff\u115f\u1160\u3164\uffa0]")


def builtin_findings(files: Sequence[BundleFile], others: Sequence[Finding] = ()) -> list[Finding]:
    """Return the findings of the five rules, all of severity warning, except at places where `others`, the findings of
    plugins, have one. Blocking.
    """
    places = {(other.file, other.line) for other in others}
    findings: list[Finding] = []
    counts = dict.fromkeys(RULES, 0)
    left, unread = MOST_READ_IN_ALL, list[str]()
    # Scripts and instructions come first: else, large data would keep them from being read.
    for file in sorted(files, key=lambda file: not _is_steering(file.path)):
        content = file.content[: min(MOST_READ, left)]
        # Shells ignore a NUL, which else marks binary files.
        if b"\0" in content[:8000] and not _is_steering(file.path):
            continue
        text = content.decode("utf-8", "replace")
        left -= min(len(file.content), MOST_READ, left)
        if len(file.content) > MOST_READ or not left:
            unread.append(file.path)
        for finding in _of_text(file.path, text):
            counts[finding.rule] += (finding.file, finding.line) not in places
            if (finding.file, finding.line) not in places and counts[finding.rule] <= MOST_FINDINGS:
                findings.append(finding)
    if unread:
        message = f"{len(unread)} large files were read only in part by the built-in rules"
        findings.append(Finding(NOT_READ, message, "warning" if any(map(_is_steering, unread)) else "info"))
    return findings


def _is_steering(path: str) -> bool:
    """Return whether a file is a script or a Markdown text, which models follow."""
    return path.lower().endswith((*_SCRIPTS, ".md"))


def _of_text(path: str, text: str) -> Iterator[Finding]:
    is_script = path.lower().endswith(_SCRIPTS)
    rules = [rule for rule in _TEXT_RULES if is_script or not rule.is_for_scripts]
    lowered = text.lower()
    likely = [rule for rule in rules if any(hint in lowered for hint in rule.hints)]
    if likely:
        last: dict[str, int] = {}
        for number, line in _lines(text):
            for rule in likely:
                if last.get(rule.name) != number and rule.pattern.search(line):
                    last[rule.name] = number
                    yield Finding(rule.name, rule.message, "warning", path, number)
    if not text.isascii():
        yield from _hidden(path, text.removeprefix("\ufeff"))


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield the parts of lines with their line numbers. A part overlaps the one before, so that no match is lost."""
    for number, line in enumerate(text.split("\n"), 1):
        yield number, line[:MOST_IN_LINE]
        for start in range(MOST_IN_LINE - 1200, len(line) - 1200, MOST_IN_LINE - 1200):
            yield number, line[start : start + MOST_IN_LINE]


def _hidden(path: str, text: str) -> Iterator[Finding]:
    zero_width = 0
    for number, line in enumerate(text.split("\n"), 1):
        if line.isascii():
            continue
        steers = bool(_STEERING.search(line)) and not _RIGHT_TO_LEFT.search(line)
        if steers or _TAGS.search(_FLAG.sub("", line)):
            yield Finding(HIDDEN_CHARACTERS, "has characters that hide or reorder text", "warning", path, number)
        before, zero_width = zero_width, zero_width + len(_ZERO_WIDTH.findall(line))
        if before <= _FEW < zero_width:
            message = f"has more than {_FEW} characters without a width, which can hide text"
            yield Finding(HIDDEN_CHARACTERS, message, "warning", path, number)
