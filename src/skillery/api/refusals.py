"""Which errors are refusals, and what they were about: for the audit trail."""

from __future__ import annotations

import re

import msgspec

from skillery.errors import Conflict, NotAllowed, NotFound, Refused, SkilleryError
from skillery.formats.tokens import PREFIX

OF_CHANGES = (NotAllowed, NotFound, Conflict, Refused)
"""What a change can be refused with. A call that is malformed, too large or too early was not refused."""
MOST_BYTES = 256 * 1024
"""Params beyond that are not looked through for the sake of a record."""
OTHERWISE_NAMED_BY = ("name", "run_id", "blob_id")
"""What a call is about that changes nothing: the first of these params that it has."""
_WHAT_FOLLOWS_AN_ID = re.compile(rf"({PREFIX}[0-9A-Za-z]{{0,12}})\w{{16,}}")
_names = msgspec.json.Decoder(dict[str, msgspec.Raw])
_text = msgspec.json.Decoder(str)


def is_refusal(error: SkilleryError, audits: str | None) -> bool:
    """Of a method whose `audits` is that: whatever it does, a caller can be not allowed to; only of changes it is
    recorded that their thing was not found, or in no state for them."""
    return isinstance(error, OF_CHANGES if audits != "" else NotAllowed)


def subject_of(params: bytes | msgspec.Raw, named_by: str) -> str:
    """`name@version`, `name` or an id, as the params of a call say it; "" where they don't.

    Somebody may have sent a whole token for its id: nothing that looks like one is kept.
    """
    found = _subject(params, named_by) if len(params) <= MOST_BYTES else ""
    return _WHAT_FOLLOWS_AN_ID.sub(r"\1", found)


def _subject(params: bytes | msgspec.Raw, named_by: str) -> str:
    try:
        given = _names.decode(params)
        if not named_by:
            named_by = next((name for name in OTHERWISE_NAMED_BY if name in given), "")
        if named_by == "manifest":
            given, named_by = _names.decode(given.get("manifest", b"{}")), "name"
    except (msgspec.DecodeError, RecursionError):
        return ""
    found, version = _text_of(given, named_by), _text_of(given, "version")
    return f"{found}@{version}" if version else found


def _text_of(given: dict[str, msgspec.Raw], key: str) -> str:
    try:
        return _text.decode(given.get(key, b'""'))
    except msgspec.DecodeError:
        return ""
