"""Labels: movable names for versions (`stable`). No label has the form of a version, range or digest."""

from __future__ import annotations

import re

from skillery.errors import InvalidLabel, InvalidVersionSpec
from skillery.formats.ranges import parse_range
from skillery.formats.wording import quoted

MAX_LENGTH = 64
LATEST = "latest"

_LABEL = re.compile(r"[a-z][a-z0-9._-]*")
# Also matches mistyped versions: the error for `v1.2.3.4` says that the text is not a label, instead of that the label
# does not exist.
_LIKE_A_VERSION = re.compile(r"v*(?:[0-9]|x(?:\.|$)).*")
_HINT = (
    f"A label begins with a letter a-z, continues with a-z, 0-9, '.', '_' and '-', and has at most {MAX_LENGTH} "
    "characters, e.g. 'stable'."
)


def parse_label(text: str) -> str:
    """Return the label unchanged. Raise InvalidLabel, with the reason, if the text is not a valid label."""
    problem = label_problem(text)
    if problem:
        raise InvalidLabel(f"{quoted(text)} is not a label: {problem}", hint=_HINT, label=text[:MAX_LENGTH])
    return text


def label_problem(text: str) -> str | None:
    """Return the reason why `text` is not a valid label, or None if it is valid. The reason is a clause for a
    message.
    """
    if not text.strip():
        return "it is blank"
    if text == LATEST:
        return "'latest' is computed and cannot be set"
    if text.startswith("sha256:"):
        return "it reads as a digest"
    if len(text) > MAX_LENGTH:
        return f"it has {len(text)} characters"
    if _LIKE_A_VERSION.fullmatch(text) or _is_range(text):
        return "it reads as a version or a range of versions"
    return None if _LABEL.fullmatch(text) else "it has other characters than a label may have"


def _is_range(text: str) -> bool:
    try:
        parse_range(text)
    except InvalidVersionSpec:
        return False
    return True
