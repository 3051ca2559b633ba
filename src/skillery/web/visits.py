"""Requests of browsers: the session in a cookie, and the checks of a form. All pages use this module.

Only pages read cookies. `/rpc`, `/mcp`, `/v1`, `/blobs` and all other endpoints for programs read only the header
Authorization, so a page of another origin can never use a session there.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple
from urllib.parse import parse_qsl

from skillery.errors import NotAllowed
from skillery.http.gate import FORBIDDEN, without_port
from skillery.http.requests import HttpRefusal
from skillery.identity.web_session_rows import WebSession
from skillery.methods.errors import INVALID_REQUEST, plain_error

# -- The cookies of this server ----------------------------------------------------------------------------------------
# Behind TLS, the names begin with `__Host-`: browsers then accept a cookie only from this host, over TLS, and send it
# to no other host. On loopback without TLS, browsers refuse such cookies, so the names have no prefix.


NAME = "skillery"
Header = tuple[str, str]


class Cookies(NamedTuple):
    """The names and attributes of cookies on the address of a request. `is_secure` is true behind TLS."""

    is_secure: bool

    @property
    def session(self) -> str:
        """The name of the cookie with the secret of the session."""
        return self._named(NAME)

    @property
    def login(self) -> str:
        """The name of the cookie of an unfinished login at an identity provider."""
        return self._named(f"{NAME}-login")

    def _named(self, name: str) -> str:
        return f"__Host-{name}" if self.is_secure else name

    def setting(self, name: str, value: str, seconds: int = 365 * 24 * 3600) -> Header:
        """Return the header that sets a cookie for `seconds`, which are a year by default."""
        # Lax, because a return from an identity provider and links in a chat begin on another site.
        secure = "; Secure" if self.is_secure else ""
        return "set-cookie", f"{name}={value}; Path=/; Max-Age={seconds}; HttpOnly; SameSite=Lax{secure}"

    def dropping(self, name: str) -> Header:
        """Return the header that deletes a cookie."""
        return self.setting(name, "", 0)


def cookies_of(scope: Any, headers: Mapping[str, str]) -> Cookies:
    """Return the cookie names for a request. Raise HttpRefusal 400 if the connection is neither encrypted nor local."""
    if scope["scheme"] == "https":
        return Cookies(True)
    host = headers.get("host", "").lower()
    if _is_local(without_port(host)):
        return Cookies(False)
    raise HttpRefusal(
        400,
        plain_error(
            INVALID_REQUEST,
            f"browsers sign in over https:// only, and this request for {host[:100]!r} came over http://",
            "tls_required",
            "Put a proxy with TLS in front of the server, which sends X-Forwarded-Proto, and list its address in the "
            "setting trusted_proxies.",
        ),
    )


def _is_local(name: str) -> bool:
    """Return whether a host name is loopback."""
    try:
        return name == "localhost" or ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def cookie_of(headers: Mapping[str, str], name: str) -> str | None:
    """Return the value of a cookie, or None if the request has no such cookie, or two of the same name."""
    # Browsers accept a comma in a value, and a byte in a name that Python strips as white space. With such a cookie for
    # the whole domain, another host would set a cookie of ours, in spite of the prefix `__Host-`.
    pairs = [pair.strip(" \t").partition("=") for pair in headers.get("cookie", "").split(";")]
    values = [value for key, _, value in pairs if key == name]
    return values[0] if len(values) == 1 and values[0] else None


# Forms of browsers: the protection from forged requests, the fields, and the address that the browser opens next.


FORM = "application/x-www-form-urlencoded"
MOST_FORM_BYTES = 64 * 1024
MOST_KEPT_BYTES = 128 * 1024
"""The maximum size of a form whose text is given back to the user after the end of a session."""
FORM_TOKEN = "form_token"  # noqa: S105 - the name of a field
VALUE_OF_SECRET = "value_of_secret"  # noqa: S105 - the name of a field
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


def pairs_of(text: bytes, most_fields: int) -> list[tuple[str, str]]:
    """Return the fields of a form or query in order. Raise HttpRefusal 400 for invalid texts and too many fields."""
    try:
        return parse_qsl(text.decode("ascii"), keep_blank_values=True, max_num_fields=most_fields, errors="strict")
    except ValueError:
        message = f"the fields of the request cannot be read; a form has at most {most_fields} fields"
        raise HttpRefusal(400, plain_error(INVALID_REQUEST, message, "invalid_form", f"Send {FORM}.")) from None


def kept_fields(pairs: Iterable[tuple[str, str]]) -> Pairs:
    """Return the fields that a page may give back to the user."""
    return [(name, value) for name, value in pairs if name not in {FORM_TOKEN, VALUE_OF_SECRET}]


def safe_next(address: str) -> str:
    """Return `address` if it is a path of this server, or "" if it could lead to another host."""
    return address if len(address) <= MOST_NEXT and _NEXT.fullmatch(address) else ""


class Visit(NamedTuple):
    """The cookies and the session of a browser's request."""

    cookies: Cookies
    secret: str | None
    """The secret in the session cookie, valid or not. None if there is no cookie."""
    session: WebSession | None
    """The session, or None if the browser is not signed in."""
