"""Requests to the server: bounded in time and size, repeated after passing failures, never redirected."""

from __future__ import annotations

import asyncio
import random
import ssl
import time
from typing import Any, NamedTuple
from urllib.parse import quote

import httpx
import msgspec

from skillery_openbao.failures import ServiceFailed, connection_failure, status_failure
from skillery_openbao.settings import ServerSettings

MOST_BYTES = 4 * 1024 * 1024
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 2.0
DOWN_SECONDS = 1.0
"""After a failure, requests fail at once for this time, so that runs do not wait in threads of the server."""
_CONNECTIONS = httpx.Limits(max_connections=8, max_keepalive_connections=4, keepalive_expiry=30)


class Answer(NamedTuple):
    """An answer of the server: its status, and its JSON object or None."""

    status: int
    body: dict[str, Any] | None
    """The JSON object of the answer, or None if the answer has no JSON object."""

    def part(self, name: str) -> dict[str, Any]:
        """Return the member `name` of the body if the member is an object, else an empty dict."""
        member = (self.body or {}).get(name)
        return member if isinstance(member, dict) else {}


class Service:
    """The server of the setting `address`. All methods run in one event loop."""

    def __init__(self, settings: ServerSettings) -> None:
        self._settings = settings
        self._client: httpx.AsyncClient | None = None
        self._down_until = 0.0
        self._failure: ServiceFailed | None = None

    async def send(self, method: str, path: str, token: str = "", body: object = None, *, once: bool = False) -> Answer:
        """Send a request, and repeat it for `retry_seconds` unless `once` is true. Return the answer.

        Raise ServiceFailed if no answer arrives, or if the answer is a failure that does not depend on the request.
        """
        self._refuse_while_down()
        deadline, pause = time.monotonic() + self._settings.retry_seconds, FIRST_PAUSE
        while True:
            try:
                answer = await self._send(method, path, token, body)
            except ServiceFailed as failure:
                wait = max(pause * random.uniform(0.5, 1.0), failure.retry_after)
                if once or not failure.is_temporary or time.monotonic() + wait > deadline:
                    self._note(failure)
                    raise
            else:
                self._failure = None
                return answer
            await asyncio.sleep(wait)
            pause = min(2 * pause, LONGEST_PAUSE)

    async def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    def _refuse_while_down(self) -> None:
        if self._failure is None:
            return
        now = time.monotonic()
        if now < self._down_until:
            raise self._failure.with_traceback(None)
        # This caller tries again. Others fail at once until the try has ended.
        self._down_until = now + self._settings.timeout_seconds + self._settings.retry_seconds

    def _note(self, failure: ServiceFailed) -> None:
        self._failure = failure if failure.is_temporary else None
        self._down_until = time.monotonic() + DOWN_SECONDS

    async def _send(self, method: str, path: str, token: str, body: object) -> Answer:
        """Send a request once. Raise ServiceFailed if no answer arrives, or if it fails for every request."""
        headers = {"x-vault-request": "true", "accept-encoding": "identity"}
        headers |= {"x-vault-token": token} if token else {}
        headers |= {"x-vault-namespace": self._settings.namespace} if self._settings.namespace else {}
        content = None if body is None else msgspec.json.encode(body)
        try:
            # The limit of httpx is for each read: an answer that drips would never reach it.
            async with asyncio.timeout(self._settings.timeout_seconds):
                async with self._open().stream(method, self._url(path), headers=headers, content=content) as response:
                    answer = Answer(response.status_code, _object_of(await _body_of(response)))
                    retry_after = _seconds_of(response.headers.get("retry-after", ""))
        except (TimeoutError, httpx.HTTPError, OSError) as error:
            raise connection_failure(self._settings, error) from None
        failure = status_failure(self._settings, *answer)
        if failure is not None:
            failure.retry_after = retry_after
            raise failure
        return answer

    def _url(self, path: str) -> str:
        plain_path, _, query = path.partition("?")
        return f"{self._settings.address.rstrip('/')}/v1/{quote(plain_path, safe='/')}" + (f"?{query}" if query else "")

    def _open(self) -> httpx.AsyncClient:
        if self._client is None:
            # The environment's proxies are not for secrets, and a redirect would send the token to another host.
            self._client = httpx.AsyncClient(
                verify=_tls_of(self._settings),
                timeout=self._settings.timeout_seconds,
                limits=_CONNECTIONS,
                trust_env=False,
            )
        return self._client


def _tls_of(settings: ServerSettings) -> ssl.SSLContext:
    """Return the TLS settings that check the certificate of the server."""
    if settings.address.startswith("http://"):
        return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # unused; the default context takes 40 ms to read certificates
    try:
        return ssl.create_default_context(cafile=settings.ca_file or None)
    except OSError:
        raise ServiceFailed("ca_file", f"'{settings.ca_file}' contains no certificate in PEM form") from None


async def _body_of(response: httpx.Response) -> bytes:
    body = bytearray()
    async for chunk in response.aiter_raw():
        body += chunk
        if len(body) > MOST_BYTES:
            raise ServiceFailed("address", f"the server answers with more than {MOST_BYTES} bytes")
    return bytes(body)


def _object_of(body: bytes) -> dict[str, Any] | None:
    try:
        decoded = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return decoded if isinstance(decoded, dict) else None


def _seconds_of(text: str) -> float:
    """Return the seconds of a header Retry-After, or 0. Dates are not supported, because OpenBao sends seconds."""
    return float(text) if text.isascii() and text.isdecimal() and len(text) < 6 else 0.0
