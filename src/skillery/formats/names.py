"""Skill names and namespaces: segments with dots between. Comparisons use whole segments."""

from __future__ import annotations

import re

from skillery.errors import InvalidName
from skillery.formats.wording import quoted

MAX_LENGTH = 128

_SEGMENT = r"[a-z0-9]+(?:[_-][a-z0-9]+)*"
PATTERN = rf"{_SEGMENT}(?:\.{_SEGMENT})*"
_NAME = re.compile(PATTERN)
_GRAMMAR = (
    "dot-separated segments of a-z and 0-9, with single '_' or '-' between, "
    f"at most {MAX_LENGTH} characters, e.g. 'sales.leads.sync'"
)


def parse_skill_name(text: str) -> str:
    """Return the skill name unchanged. Raise InvalidName if the text is not a valid skill name."""
    return _parse(text, "skill name")


def parse_namespace(text: str) -> str:
    """Return the namespace unchanged; "" is the root of all namespaces. Raise InvalidName if the text is not a valid
    namespace.
    """
    return _parse(text, "namespace") if text else text


def namespace_of(name: str) -> str:
    """Return all but the last segment of a name, or "" for a name of one segment."""
    return name.rpartition(".")[0]


def is_within(namespace: str, ancestor: str) -> bool:
    """Return whether `namespace` is `ancestor` or below it. Whole segments are compared: `ab` is not below `a`."""
    return not ancestor or namespace == ancestor or namespace.startswith(ancestor + ".")


def import_name(name: str) -> str:
    """Return the module name under which runs import a skill: `skills.user.my_skill` for `user.my-skill`."""
    return "skills." + name.replace("-", "_")


def _parse(text: str, kind: str) -> str:
    if len(text) > MAX_LENGTH:
        raise InvalidName(
            f"The {kind} {quoted(text)} has {len(text)} characters, at most {MAX_LENGTH} are allowed.",
            hint="Shorten it.",
        )
    if not _NAME.fullmatch(text):
        raise InvalidName(f"{quoted(text)} is not a {kind}.", hint=_hint(text, kind))
    return text


def _hint(text: str, kind: str) -> str:
    segments = (re.sub(r"[^a-z0-9]+", "-", segment).strip("-") for segment in text.lower().split("."))
    corrected = ".".join(segment for segment in segments if segment)
    hint = f"A {kind} is {_GRAMMAR}."
    return f"{hint} Perhaps {quoted(corrected)}?" if _NAME.fullmatch(corrected) else hint
