"""Refused calls in the audit trail: which errors count as refusals, and which subject a refused call has."""

from __future__ import annotations

import re

import msgspec

from skillery.errors import Conflict, NotAllowed, NotFound, Refused, SkilleryError
from skillery.formats.tokens import PREFIX
from skillery.webhooks.sending import origin_of

OF_CHANGES = (NotAllowed, NotFound, Conflict, Refused)
"""Errors that count as the refusal of a change. Errors of malformed, too large or too frequent calls do not count."""
MOST_BYTES = 256 * 1024
"""Limit of the bytes of params that are searched for a subject."""
OTHERWISE_NAMED_BY = ("name", "run_id", "blob_id")
"""Params that name the subject of a call if the method does not say which param does. The first present param
counts.
"""
_WHAT_FOLLOWS_AN_ID = re.compile(rf"({PREFIX}[0-9A-Za-z]{{0,12}})\w{{16,}}")
_names = msgspec.json.Decoder(dict[str, msgspec.Raw])
_text = msgspec.json.Decoder(str)


def is_refusal(error: SkilleryError, audits: str | None) -> bool:
    """Return whether the audit trail records the error of a call.

    `audits` is `Method.audits`. If `audits` is "" (a method without audited changes), only NotAllowed is recorded.
    Otherwise, NotFound, Conflict and Refused are recorded too.
    """
    return isinstance(error, OF_CHANGES if audits != "" else NotAllowed)


def subject_of(params: bytes | msgspec.Raw, named_by: str) -> str:
    """Return the subject of a call for the audit trail: `name@version`, `name`, an id, or "" if the params name no
    subject.

    `named_by` is the param that names the subject, or "". Of a URL, the subject is the origin. The secret part of
    anything that looks like a token is removed, because callers may pass a whole token in place of its id.
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
    if named_by == "url":
        return origin_of(_text_of(given, named_by))
    found, version = _text_of(given, named_by), _text_of(given, "version")
    return f"{found}@{version}" if version else found


def _text_of(given: dict[str, msgspec.Raw], key: str) -> str:
    try:
        return _text.decode(given.get(key, b'""'))
    except msgspec.DecodeError:
        return ""
