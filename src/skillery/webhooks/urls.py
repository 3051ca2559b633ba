"""Addresses of webhooks."""

from __future__ import annotations

from typing import NamedTuple, cast
from urllib.parse import urlsplit

from skillery.errors import InvalidParams
from skillery.formats.wording import quoted
from skillery.sandboxing.egress.policy import Denied, Scheme, Target, parse_target

MOST_CHARACTERS = 2000


class WebhookUrl(NamedTuple):
    """A checked URL: the host and port to connect to, and the path with the query."""

    target: Target
    path: str

    @property
    def authority(self) -> str:
        """The value of the header `Host`."""
        return self.target.origin.partition("://")[2]


def parse_webhook_url(text: str) -> WebhookUrl:
    """Return the parts of a URL. Raise InvalidParams if it is not an http(s) URL with a DNS name.

    The rules for host names are those of the network of runs: no IP address, no user, no escape.
    """
    if len(text) > MOST_CHARACTERS or not text.isascii() or not text.isprintable() or " " in text or "\\" in text:
        raise _invalid(text, f"has characters other than printable ASCII, or more than {MOST_CHARACTERS}")
    try:
        parts = urlsplit(text)
    except ValueError:
        raise _invalid(text, "is not a URL") from None
    if parts.scheme not in {"http", "https"} or parts.fragment:
        raise _invalid(text, "is not an http or https URL without a fragment")
    try:
        target = parse_target(cast(Scheme, parts.scheme), parts.netloc)
    except Denied as error:
        raise _invalid(text, f"is not allowed: {error.reason}") from None
    return WebhookUrl(target, (parts.path or "/") + (f"?{parts.query}" if parts.query else ""))


def origin_of(text: str) -> str:
    """Return the origin of a URL, or "" if the URL is invalid. Many targets accept any caller that knows the path."""
    try:
        return parse_webhook_url(text).target.origin
    except InvalidParams:
        return ""


def _invalid(text: str, problem: str) -> InvalidParams:
    return InvalidParams(
        f"'url' {quoted(text[:200])} {problem}",
        hint="Write a URL such as https://hooks.example.org/skillery.",
        param="url",
    )
