"""Nested skills in reports: SKILL.md files in folders below another skill's SKILL.md."""

from __future__ import annotations

import re
from typing import Any

from skillery.importing.entries import shown
from skillery.importing.finder import LocatedSkill

SPLIT = "--nested split imports each nested SKILL.md as a skill of its own"
_ITEM = re.compile(r"\s*(?:[-*+]|\d{1,9}[.)])\s")
_OTHERS = re.compile(r"\s*(?:#{1,6}(?:\s|$)|<!--|(?:-{3,}|\*{3,}|_{3,})\s*$)")
"""Matches headings, comments and rules, which may surround a list of skills."""


def nested_in(found: LocatedSkill, body: str | None = None) -> dict[str, Any]:
    """Return the fields `nested` and `suggestion` of a skill's report. `body` is the text of its SKILL.md, or None
    if unread.
    """
    if not found.nested:
        return {}
    nested: dict[str, Any] = {"nested": tuple(shown(path) for path in found.nested)}
    if body is None:
        return nested | {"suggestion": SPLIT}
    return nested | {"suggestion": f"its SKILL.md only lists skills: {SPLIT}"} if is_collection(body) else nested


def is_collection(body: str) -> bool:
    """Return whether a text consists only of lists (bullets, numbers or tables).

    Headings, and lines that end with a colon, may introduce a list. Indented lines continue an item.
    """
    lines = [line for line in body.splitlines() if line.strip()]
    has_item = any(_is_item(line) for line in lines)
    return has_item and all(_is_item(line) or _may_stand_around(line) for line in lines)


def _is_item(line: str) -> bool:
    return bool(_ITEM.match(line)) or line.lstrip().startswith("|")


def _may_stand_around(line: str) -> bool:
    return bool(_OTHERS.match(line)) or line.startswith((" ", "\t")) or line.rstrip().endswith(":")
