"""The cookies of this server.

Behind TLS, the names begin with `__Host-`: browsers then accept a cookie only from this host, over TLS, and send it to
no other host. On loopback without TLS, browsers refuse such cookies, so the names have no prefix.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from typing import Any, NamedTuple

from skillery.http.gate import without_port
from skillery.http.requests import HttpRefusal
from skillery.methods.errors import INVALID_REQUEST, plain_error

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

    def setting(self, name: str, value: str, seconds: int) -> Header:
        """Return the header that sets a cookie for `seconds`."""
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
