"""The HTTP connection to a server: bounded in time and size, whatever the server answers."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import Any

import httpx

MOST_BYTES = 8 * 2**20
"""Largest answer that the suite reads."""
CONNECT_SECONDS = 10.0


class Unreachable(Exception):
    """The server gives no HTTP answer. The message says why, in one line."""


@dataclass(frozen=True)
class Reply:
    """An HTTP answer. `message` is its JSON, or None if it is not JSON."""

    status: int
    kind: str
    text: str
    message: Any
    seconds: float

    @property
    def result(self) -> Any:
        return self.message.get("result") if isinstance(self.message, dict) else None

    @property
    def error(self) -> Any:
        return self.message.get("error") if isinstance(self.message, dict) else None

    def problem(self) -> str | None:
        """Return why this is not an answer of JSON-RPC, or None."""
        if self.status in {401, 403}:
            return f"HTTP {self.status}: the server requires a token that may read, run and publish (--token-env NAME)"
        if "html" in self.kind:
            return f"HTTP {self.status} with a web page ({self.kind}): give the address of the JSON-RPC endpoint"
        if self.message is None:
            return f"HTTP {self.status}, and the answer is not JSON"
        if not isinstance(self.message, dict) or not {"result", "error"} & self.message.keys():
            return f"HTTP {self.status}, and the answer is not a JSON-RPC response"
        return None


class Connection:
    """Sends requests to one URL. Threads may share it."""

    def __init__(self, url: str, token: str | None, seconds: float) -> None:
        self.url = url
        self.seconds = seconds
        headers = {"content-type": "application/json", "accept": "application/json"}
        if token:
            headers["authorization"] = f"Bearer {token}"
        timeout = httpx.Timeout(seconds, connect=min(seconds, CONNECT_SECONDS))
        limits = httpx.Limits(keepalive_expiry=1)
        # Certificates are read for https only: reading them takes longer than many calls.
        self._http = httpx.Client(headers=headers, timeout=timeout, limits=limits, verify=url.startswith("https:"))

    def close(self) -> None:
        self._http.close()

    def post(self, message: object) -> Reply:
        """Send a JSON message, or text as it is. Raise Unreachable if there is no answer in time."""
        body = message if isinstance(message, str) else json.dumps(message)
        began = time.monotonic()
        try:
            with self._http.stream("POST", self.url, content=body.encode()) as response:
                text = self._read(response, began)
                return Reply(
                    response.status_code,
                    response.headers.get("content-type", "").partition(";")[0],
                    text,
                    _parsed(text),
                    time.monotonic() - began,
                )
        except httpx.TimeoutException as error:
            raise Unreachable(f"no answer within {self.seconds:g} s") from error
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise Unreachable(f"no connection: {' '.join(str(error).split()) or type(error).__name__}") from error

    def _read(self, response: httpx.Response, began: float) -> str:
        # A server that sends a byte now and then never reaches the limit of httpx, which is for one read.
        chunks = bytearray()
        for chunk in response.iter_bytes():
            chunks += chunk
            if len(chunks) > MOST_BYTES:
                raise Unreachable(f"the answer has more than {MOST_BYTES} bytes")
            if time.monotonic() - began > self.seconds:
                raise Unreachable(f"the answer is not complete within {self.seconds:g} s")
        return chunks.decode("utf-8", "replace")


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
