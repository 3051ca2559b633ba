"""Unsent forms: the server does not process a form without a valid session, and gives its text back to the user.

A session can end while a user types. The text then goes into the page: first next to the login, and after the login
into a form that the user sends again. Nothing is stored on the server.
"""

from __future__ import annotations

from typing import Any, NamedTuple
from urllib.parse import urlencode

from skillery.http.requests import HttpRefusal, read_body
from skillery.web.forms import (
    FORM_TOKEN,
    MOST_KEPT_BYTES,
    OutdatedForm,
    Pairs,
    check_form_type,
    check_same_origin,
    pairs_of,
    safe_next,
)
from skillery.web.frame import Page, PageRequest, typed_lines
from skillery.web.uploads import is_multipart, read_texts

MOST_KEPT_FIELDS = 2000
KEPT, ADDRESS = "kept", "kept_for"
"""The fields of the login form that carry the text of another form, and the address of that form."""


class Unsent(NamedTuple):
    """The text of a form that was not processed."""

    address: str
    """The address to which the form was sent."""
    pairs: Pairs | None
    """The fields of the form. None if the form was too large."""

    def as_field(self) -> str:
        """Return the fields as one text, which the login form carries."""
        return urlencode(self.pairs or [])

    def shown(self) -> list[tuple[str, str]]:
        """Return the fields that have a text, for the user."""
        return [(name, typed_lines(value)) for name, value in self.pairs or [] if value.strip()]


async def read_unsent(request: PageRequest) -> Unsent:
    """Return the text of a form from a browser that is not signed in.

    Raise HttpRefusal if a page of another origin has sent the form, or if the form cannot be read.
    """
    if is_multipart(request.headers):
        return Unsent(request.address, await read_texts(request))
    check_same_origin(request.scope, request.headers)
    check_form_type(request.headers)
    try:
        body = await read_body(request.receive, request.headers, MOST_KEPT_BYTES)
        pairs = pairs_of(body, MOST_KEPT_FIELDS)
    except HttpRefusal as refusal:
        if refusal.status != 413:
            raise
        return Unsent(request.address, None)
    return Unsent(request.address, [(name, value) for name, value in pairs if name != FORM_TOKEN])


def unsent_of(fields: dict[str, str]) -> Unsent | None:
    """Return the text of another form that a login form carries, or None. Raise the errors of `pairs_of`."""
    address = safe_next(fields.get(ADDRESS, ""))
    if not address or not fields.get(KEPT):
        return None
    return Unsent(address, pairs_of(fields[KEPT].encode(), MOST_KEPT_FIELDS))


def page_with_form(request: PageRequest) -> str:
    """Return the path of the page that has sent the form, or "" if the browser does not say it."""
    referrer = request.headers.get("referer", "")
    origin_with_slash = f"{request.server}/"
    return safe_next(referrer[len(origin_with_slash) - 1 :]) if referrer.lower().startswith(origin_with_slash) else ""


def outdated_page(request: PageRequest, error: OutdatedForm) -> Page:
    """Return the page for a form of another session, from which the user can send the text again."""
    return unsent_page(request, Unsent(request.address, error.pairs), 403)


def unsent_page(request: PageRequest, unsent: Unsent, status: int = 200) -> Page:
    """Return the page from which a signed-in user sends the text of a form again."""
    values: dict[str, Any] = {"unsent": unsent, "back": page_with_form(request)}
    return Page("unsent.html", "Nothing was sent yet", values, status=status)
