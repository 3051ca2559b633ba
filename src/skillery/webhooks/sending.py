"""One attempt to send an event: a POST to an address that the rules of the egress proxy allow.

The request is signed by the Standard Webhooks scheme (https://www.standardwebhooks.com).
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import ipaddress
import secrets
import ssl
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any, NamedTuple, cast
from urllib.parse import urlsplit

import httpx
import msgspec

from cellblock.egress.lookups import Bounds, LookUpThreads, RunLookUps
from cellblock.egress.policy import Denied, Scheme, Target, parse_target
from cellblock.egress.resolver import AddressRules, checked_addresses, is_public
from cellblock.egress.streams import Caps
from skillery.backends import Event
from skillery.errors import InvalidParams
from skillery.formats.wording import quoted

MOST_ANSWER_BYTES = 64 * 1024
"""The maximum number of bytes that are read of an answer."""
GONE = 410
"""The HTTP status with which a target ends its webhook."""
MOST_CHARACTERS = 2000
"""The maximum length of a URL."""
PREFIX = "whsec_"
"""The prefix of secrets in the Standard Webhooks scheme."""
_SECRET_BYTES = 32


class Sent(NamedTuple):
    """The result of an attempt. `error` is None if the target accepted the event."""

    error: str | None
    status: int | None = None

    @property
    def is_gone(self) -> bool:
        return self.status == GONE


class Message(NamedTuple):
    """A message of the Standard Webhooks scheme. All attempts to send it have the same id and body."""

    id: str
    body: bytes


class Sender:
    """Sends messages. Each attempt resolves the host name again, and connects only to checked addresses."""

    def __init__(self, allow_private: Sequence[str], timeout: float, public_url: str, agent: str) -> None:
        """`timeout` limits a whole attempt, in seconds. `public_url` is the start of links in messages.

        Raise ValueError if an entry of `allow_private` is invalid.
        """
        self._rules = AddressRules(allow_private)
        self._timeout = timeout
        self._public_url = public_url.rstrip("/")
        self._agent = agent
        self._tls: ssl.SSLContext | None = None
        threads = LookUpThreads(bounds=Bounds(in_all=16, of_identity=16, of_run=16))
        # An admin has written the names, so they may be names of the network of this server.
        self._lookups = RunLookUps(threads, "webhooks", Caps(look_up_seconds=timeout), of_the_house=True)

    @asynccontextmanager
    async def connections(self) -> AsyncIterator[httpx.AsyncClient]:
        """Yield an HTTP client with one connection, for one target. The client ignores proxy variables of the
        process.
        """
        if self._tls is None:
            self._tls = await asyncio.to_thread(httpx.create_ssl_context)
        limits = httpx.Limits(max_connections=1)
        async with httpx.AsyncClient(verify=self._tls, trust_env=False, timeout=self._timeout, limits=limits) as client:
            yield client

    async def check(self, url: str) -> None:
        """Raise InvalidParams if the URL is invalid, and Denied if its host resolves to a forbidden address."""
        await self._addresses(parse_webhook_url(url))

    async def send(self, client: httpx.AsyncClient, url: str, secret: str, message: Message) -> Sent:
        """Send a message. The target accepts it with a status from 200 to 299."""
        try:
            async with asyncio.timeout(self._timeout):
                status = await self._post(client, parse_webhook_url(url), secret, message)
        except Denied as error:
            return Sent(f"not sent: {error.reason}")
        except TimeoutError:
            return Sent(f"no answer within {self._timeout:g} s")
        except (httpx.HTTPError, httpx.InvalidURL, ssl.SSLError, OSError) as error:
            return Sent(f"no answer: {_reason(error)}")
        return Sent(None if 200 <= status < 300 else f"the target answered {status}", status)

    def message_of(self, event: Event) -> Message:
        """Return the message of an event. If the event is about a version, its data has a `link` to the version."""
        data, (name, version) = dict(event.data), (event.data.get("name"), event.data.get("version"))
        if name and version:
            data["link"] = f"{self._public_url}/skills/{name}/{version}/SKILL.md"
        return message(event.id, event.type, event.at, data)

    async def _post(self, client: httpx.AsyncClient, url: WebhookUrl, secret: str, message: Message) -> int:
        """Send the message to the addresses of the host, in order, until one connects. Return the HTTP status."""
        headers = {"host": url.authority, "content-type": "application/json", "user-agent": self._agent}
        headers |= signed_headers(secret, message.id, int(time.time()), message.body)
        *others, last = await self._addresses(url)
        for address in others:
            try:
                return await _answer(client, url, address, headers, message.body)
            except httpx.ConnectError:
                continue
        return await _answer(client, url, last, headers, message.body)

    async def _addresses(self, url: WebhookUrl) -> list[str]:
        """Return the addresses of the host. Raise Denied if one is forbidden, or if http would leave the private
        network.
        """
        addresses = await checked_addresses(self._lookups, self._rules, url.target.host)
        if url.target.scheme == "http" and any(is_public(ipaddress.ip_address(address)) for address in addresses):
            raise Denied(f"{url.target.origin} is on the public Internet, where only https is allowed")
        return addresses


async def _answer(
    client: httpx.AsyncClient, url: WebhookUrl, address: str, headers: dict[str, str], body: bytes
) -> int:
    """Send the request to one address. Return the HTTP status of the answer."""
    host = f"[{address}]" if ":" in address else address
    address_url = f"{url.target.scheme}://{host}:{url.target.port}{url.path}"
    # The certificate must be valid for the name, not for the address.
    tls_options = {"sni_hostname": url.target.host}
    async with client.stream("POST", address_url, content=body, headers=headers, extensions=tls_options) as response:
        received = 0
        async for piece in response.aiter_raw():  # an answer that is read to its end leaves the connection usable
            received += len(piece)
            if received > MOST_ANSWER_BYTES:
                break
        return response.status_code


def message(message_id: str, kind: str, at: datetime, data: Mapping[str, Any]) -> Message:
    """Return a message. Its body is JSON with the members `type`, `timestamp` and `data`."""
    timestamp = at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return Message(message_id, msgspec.json.encode({"type": kind, "timestamp": timestamp, "data": data}))


def _reason(error: Exception) -> str:
    """Return the first line of an error's text, at most 200 characters."""
    text = str(error) or type(error).__name__
    return text.splitlines()[0][:200]


# -- addresses and signatures ------------------------------------------------------------------------------------------


class WebhookUrl(NamedTuple):
    """The parts of a checked URL: the host and port to connect to, and the path with the query."""

    target: Target
    path: str

    @property
    def authority(self) -> str:
        """The value of the request header `Host`."""
        return self.target.origin.partition("://")[2]


def parse_webhook_url(text: str) -> WebhookUrl:
    """Return the parts of a URL. Raise InvalidParams if it is not an http or https URL with a DNS name.

    The rules for host names are the rules for hosts that runs reach: no IP address, no user, no escape.
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
    """Return the origin of a URL, or "" if the URL is invalid.

    The audit trail shows only the origin, because many targets accept any caller that knows the path.
    """
    try:
        return parse_webhook_url(text).target.origin
    except InvalidParams:
        return ""


def _invalid(text: str, problem: str) -> InvalidParams:
    """Return the error for an invalid URL."""
    return InvalidParams(
        f"'url' {quoted(text[:200])} {problem}",
        hint="Write a URL such as https://hooks.example.org/skillery.",
        param="url",
    )


def new_secret() -> str:
    """Return a secret of 256 random bits: `whsec_` and base64."""
    return PREFIX + base64.b64encode(secrets.token_bytes(_SECRET_BYTES)).decode()


def signed_headers(secret: str, message_id: str, timestamp: int, body: bytes) -> dict[str, str]:
    """Return the three headers that sign a message. `timestamp` is the time of this attempt, in Unix seconds."""
    key = base64.b64decode(secret.removeprefix(PREFIX))
    signed = f"{message_id}.{timestamp}.".encode() + body
    signature = base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
    return {
        "webhook-id": message_id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": f"v1,{signature}",
    }
