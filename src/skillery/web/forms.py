"""Forms of browsers: the protection from forged requests, the fields, and the address that the browser opens next."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl

from skillery.errors import NotAllowed
from skillery.http.gate import FORBIDDEN
from skillery.http.requests import HttpRefusal
from skillery.methods.errors import INVALID_REQUEST, plain_error

FORM = "application/x-www-form-urlencoded"
MOST_FORM_BYTES = 64 * 1024
MOST_FIELDS = 20
MOST_KEPT_BYTES = 128 * 1024
"""The maximum size of a form whose text is given back to the user after the end of a session."""
FORM_TOKEN = "form_token"  # noqa: S105 - the name of a field
"""The hidden field with a signature of the session, so that no other site can send a form."""
MOST_NEXT = 1000
Pairs = list[tuple[str, str]]
"""The fields of a form, in order."""
# Browsers drop tabs and newlines in addresses and read a backslash as a slash: `/\t/x` would lead to the host x.
_NEXT = re.compile(r"/(?![/\\])[!-\[\]-~]*")


class OutdatedForm(NotAllowed):
    """Raised for a form of another session. `pairs` are its fields, or None if the form was too large to read."""

    def __init__(self, pairs: Pairs | None) -> None:
        super().__init__("this form is outdated, because you have signed in or out since", hint="Send the form again.")
        self.pairs = pairs


def check_same_origin(scope: Any, headers: Mapping[str, str]) -> None:
    """Raise HttpRefusal 403 unless the headers show that a page of this server has sent the request.

    The setting `allowed_origins` does not count here: other origins may call the API, but never use a session.
    """
    origin = headers.get("origin")
    own_origin = f"{scope['scheme']}://{headers.get('host', '')}".lower()
    if origin is None and headers.get("sec-fetch-site") == "same-origin":
        return
    if origin is not None and origin.lower() == own_origin:
        return
    message = f"the request comes from {origin[:100]!r}" if origin else "the request does not say where it comes from"
    hint = f"Send the form from a page of {own_origin[:200]}, with a browser that sends the header Origin."
    raise HttpRefusal(FORBIDDEN, plain_error(INVALID_REQUEST, message, "origin_not_allowed", hint))


def check_form_type(headers: Mapping[str, str]) -> None:
    """Raise HttpRefusal 415 if the Content-Type is not the one of a form."""
    kind = headers.get("content-type", "")
    if kind.partition(";")[0].strip().lower() != FORM:
        message = f"the Content-Type is {kind[:80]!r}"
        raise HttpRefusal(415, plain_error(INVALID_REQUEST, message, "unsupported_media_type", f"Send {FORM}."))


def fields_of(text: bytes) -> dict[str, str]:
    """Return the fields of a form or query by name. Fields that occur twice are left out. Raise the errors of
    `pairs_of`.
    """
    pairs = pairs_of(text, MOST_FIELDS)
    names = [name for name, _ in pairs]
    return {name: value for name, value in pairs if names.count(name) == 1}


def pairs_of(text: bytes, most_fields: int) -> list[tuple[str, str]]:
    """Return the fields of a form or query, in order.

    Raise HttpRefusal 400 if the text is invalid or has more than `most_fields` fields.
    """
    try:
        return parse_qsl(text.decode("ascii"), keep_blank_values=True, max_num_fields=most_fields, errors="strict")
    except ValueError:
        message = f"the fields of the request cannot be read; a form has at most {most_fields} fields"
        raise HttpRefusal(400, plain_error(INVALID_REQUEST, message, "invalid_form", f"Send {FORM}.")) from None


def safe_next(address: str) -> str:
    """Return `address` if it is a path of this server, or "" if it could lead to another host."""
    return address if len(address) <= MOST_NEXT and _NEXT.fullmatch(address) else ""
