"""HTTP functions that all endpoints share: refusals, headers, request bodies with a size limit, and JSON responses."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from typing import Any, BinaryIO
from urllib.parse import parse_qs, unquote_to_bytes

from skillery.context.budget import answer_room, body_room
from skillery.context.threads import within
from skillery.errors import InvalidParams, SkilleryError
from skillery.formats.wording import quoted
from skillery.http.exchanges import PIECE_BYTES, ClientGone
from skillery.methods.errors import INVALID_REQUEST, NOT_FOUND, codes_of, encode, error_object, plain_error

JSON = "application/json"
CHUNK_BYTES = 256 * 1024
"""The size of a read from the storage. Small reads cost many thread switches, and large ones memory."""
LARGE_BODY = 1024 * 1024
BODY_SILENCE_SECONDS = 60
Part = bytes | memoryview
"""A part of the body of a request or response."""


class HttpRefusal(Exception):
    """Raised to answer a request with an HTTP status and an error object, without calling a method."""

    def __init__(self, status: int, error: dict[str, Any], headers: Iterable[tuple[str, str]] = ()) -> None:
        self.message: str = error["message"]
        super().__init__(self.message)
        self.status = status
        self.error = error
        self.data: Mapping[str, Any] = error.get("data", {})
        self.hint: str = self.data.get("hint", "")
        self.headers = list(headers)


def headers_of(scope: Any) -> dict[str, str]:
    """Return the headers of a request, by name in lower case. Repeated headers are joined with commas (RFC 9110
    §5.3).
    """
    headers: dict[str, str] = {}
    for raw_name, raw_value in scope["headers"]:
        name, value = raw_name.decode("latin-1"), raw_value.decode("latin-1")
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    return headers


def check_json(headers: dict[str, str]) -> None:
    """Raise HttpRefusal 415 if the Content-Type is not JSON.

    The check protects the server from web pages: a browser sends JSON to another origin only after a preflight request,
    which this server does not answer.
    """
    kind = headers.get("content-type", "")
    if kind.partition(";")[0].strip().lower() != JSON:
        raise HttpRefusal(
            415,
            plain_error(
                INVALID_REQUEST, f"the Content-Type is {kind[:80]!r}", "unsupported_media_type", f"Send {JSON}."
            ),
        )


def address_of(scope: Any) -> str:
    """Return the IP address of the client, or "" if it is unknown."""
    address: str = (scope.get("client") or ("", None))[0]
    return address


async def chunks_of(receive: Any) -> AsyncIterator[bytes]:
    """Yield the chunks of the request body. Raise the errors of `_next_chunk`."""
    has_more = True
    while has_more:
        chunk, has_more = await _next_chunk(receive)
        if chunk:
            yield chunk


async def _next_chunk(receive: Any) -> tuple[bytes, bool]:
    """Return the next chunk of the request body, and whether there are more.

    Raise ClientGone if the client disconnects. Raise HttpRefusal 408 if no byte arrives for BODY_SILENCE_SECONDS.
    """
    try:
        message = await within(BODY_SILENCE_SECONDS, receive())
    except TimeoutError:
        silence = f"nothing of the body came for {BODY_SILENCE_SECONDS} seconds"
        raise HttpRefusal(408, plain_error(INVALID_REQUEST, silence, "request_timeout")) from None
    if message["type"] == "http.disconnect":
        raise ClientGone
    return message.get("body", b""), message.get("more_body", False)


async def disconnected(receive: Any) -> None:
    """Wait until the client has disconnected. Call this function only after the request body has been read."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def read_body(receive: Any, headers: dict[str, str], max_bytes: int) -> bytes:
    """Return the request body.

    Raise HttpRefusal 413 if the body is larger than `max_bytes`. Raise Busy if the budget has no room. If the client
    sends a Content-Length, both are checked before the body is read. Busy can still be raised later, because other
    requests may use the room first. Raise the errors of `_next_chunk`.
    """
    declared = headers.get("content-length", "")
    if declared.isdecimal() and int(declared[:20]) > max_bytes:
        raise _too_large(max_bytes)
    room = body_room.get()
    if declared.isdecimal():
        room.check(int(declared))
    parts: list[bytes] = []
    size, has_more = 0, True
    while has_more:  # not `chunks_of`, because the event loop registers each asynchronous generator
        chunk, has_more = await _next_chunk(receive)
        size += len(chunk)
        if size > max_bytes:
            raise _too_large(max_bytes)
        if chunk:
            room.take(len(chunk))
            parts.append(chunk)
    # Joining large parts would block the event loop.
    return await asyncio.to_thread(b"".join, parts) if size > LARGE_BODY else b"".join(parts)


async def send_elsewhere(send: Any, address: str, headers: Iterable[tuple[str, str]] = ()) -> None:
    """Answer 307: the content is at another address, which is valid for a short time."""
    reply = [*headers, ("location", address), ("cache-control", "private, no-store"), ("content-length", "0")]
    raw = [(name.encode(), value.encode()) for name, value in reply]
    await send({"type": "http.response.start", "status": 307, "headers": raw})
    await send({"type": "http.response.body", "body": b""})


def _too_large(max_bytes: int) -> HttpRefusal:
    message = f"the body is larger than this server takes ({max_bytes} bytes)"
    hint = "Send large content to POST /blobs, which takes any size."
    return HttpRefusal(413, plain_error(-32005, message, "body_too_large", hint))


def only(scope: Any, *methods: str) -> None:
    """Raise HttpRefusal 405 if the request has an HTTP method that is not in `methods`."""
    if scope["method"] not in methods:
        allowed = ", ".join(methods)
        raise HttpRefusal(
            405,
            plain_error(INVALID_REQUEST, f"{scope['path']} takes {allowed}", "method_not_allowed"),
            [("allow", allowed)],
        )


async def send_bytes(
    send: Any, status: int, body: bytes, kind: str = JSON, headers: Iterable[tuple[str, str]] = ()
) -> None:
    fixed = [(b"content-type", kind.encode()), (b"content-length", str(len(body)).encode())]
    more = [(name.encode(), value.encode("latin-1")) for name, value in headers]
    await send({"type": "http.response.start", "status": status, "headers": [*fixed, *more]})
    await send({"type": "http.response.body", "body": body})


async def send_parts(send: Any, parts: deque[Part]) -> None:
    """Send JSON in parts. A text over PIECE_BYTES is not copied as a whole."""
    size = sum(map(len, parts))
    if size <= PIECE_BYTES:
        await send_bytes(send, 200, b"".join(parts))
        return
    headers = [(b"content-type", JSON.encode()), (b"content-length", str(size).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    for piece in _gathered(parts):
        await send({"type": "http.response.body", "body": piece, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


async def send_stream(
    send: Any, status: int, headers: Iterable[tuple[bytes, bytes]], stream: BinaryIO, size: int
) -> None:
    """Send `size` bytes of an open content, from its position on. If its first bytes cannot be read, the error is
    raised before the response begins, so that the client receives the error and not a cut response. Raise Busy if the
    budget of answers has no room.
    """
    left = size
    answer_room.get().take(min(CHUNK_BYTES, size))
    chunk = await _next(stream, left)
    await send({"type": "http.response.start", "status": status, "headers": list(headers)})
    while left := left - len(chunk):
        await send({"type": "http.response.body", "body": chunk, "more_body": True})
        chunk = await _next(stream, left)
    await send({"type": "http.response.body", "body": chunk})


async def _next(stream: BinaryIO, left: int) -> bytes:
    if left == 0:
        return b""
    chunk = await asyncio.to_thread(stream.read, min(CHUNK_BYTES, left))
    if not chunk:
        raise OSError("the content is shorter than its row says")
    return chunk


def _gathered(parts: deque[Part]) -> Iterator[Part]:
    """Yield the parts, with small parts joined. Remove each part from `parts` before it is yielded, to free its
    memory early.
    """
    small = bytearray()
    while parts:
        part = parts.popleft()
        if len(part) <= PIECE_BYTES:
            small += part
            part = b""
        if small and (part or len(small) > PIECE_BYTES):
            yield bytes(small)
            small.clear()
        if part:
            yield part
    if small:
        yield bytes(small)


async def send_refusal(send: Any, refusal: HttpRefusal, *, rpc: bool = False) -> None:
    body = {"jsonrpc": "2.0", "id": None, "error": refusal.error} if rpc else {"error": refusal.error}
    await send_bytes(send, refusal.status, encode(body), headers=refusal.headers)


def refusal_of(error: SkilleryError) -> HttpRefusal:
    """Return the answer to a request that raised an error of the core."""
    retry = error.data.get("retry_after_ms")
    return HttpRefusal(codes_of(error).http, error_object(error), [retry_after(retry)] if retry else [])


def retry_after(milliseconds: int) -> tuple[str, str]:
    return "retry-after", str(-(-milliseconds // 1000))


# -- The segments and the query of an address, for endpoints whose addresses have parameters ---------------------------


def segments_of(scope: Any, count: int, *, more: bool = False) -> list[str]:
    """Return the decoded segments of the address.

    Raise HttpRefusal 404 if there are fewer than `count` segments, or more than `count` and `more` is false, or if a
    segment is not UTF-8 or contains an encoded `/` or NUL.
    """
    raw = scope["raw_path"].partition(b"?")[0].removeprefix(b"/").split(b"/")
    try:
        segments = [unquote_to_bytes(part).decode() for part in raw]
    except UnicodeDecodeError:
        raise nothing_here() from None
    if (
        len(segments) < count
        or (len(segments) > count and not more)
        or any("/" in part or "\0" in part for part in segments)
    ):
        raise nothing_here()
    return segments


def query_of(scope: Any, *known: str) -> dict[str, str]:
    """Return the parameters of the query. Raise InvalidParams if the query has a parameter that is not in `known`."""
    query = parse_qs(scope.get("query_string", b"").decode("latin-1"), keep_blank_values=True)
    unknown = sorted(query.keys() - set(known))
    if unknown:
        raise InvalidParams(
            f"there is no parameter {quoted(unknown[0])}", hint=f"The parameters are {', '.join(known)}."
        )
    return {key: values[-1] for key, values in query.items()}


def nothing_here(hint: str | None = None) -> HttpRefusal:
    return HttpRefusal(404, plain_error(NOT_FOUND, "there is nothing at this address", "not_found", hint))


async def send_pieces(
    send: Any, headers: Iterable[tuple[bytes, bytes]], pieces: Iterable[bytes], memory: int = CHUNK_BYTES
) -> None:
    """Send the pieces, which are made in worker threads and take `memory` bytes. If the first ones cannot be made, the
    error is raised before the response begins. Raise Busy if the budget of answers has no room.
    """
    answer_room.get().take(memory)
    gathered = gathered_pieces(pieces)
    chunk = await asyncio.to_thread(next, gathered, b"")
    await send({"type": "http.response.start", "status": 200, "headers": list(headers)})
    while chunk:
        await send({"type": "http.response.body", "body": chunk, "more_body": True})
        chunk = await asyncio.to_thread(next, gathered, b"")
    await send({"type": "http.response.body", "body": b""})


def gathered_pieces(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the bytes of the pieces in chunks of about CHUNK_BYTES. Small chunks cost many thread switches, large
    chunks memory.
    """
    held = bytearray()
    for piece in pieces:
        for start in range(0, len(piece), CHUNK_BYTES):
            held += piece[start : start + CHUNK_BYTES]
            if len(held) >= CHUNK_BYTES:
                yield bytes(held)
                held.clear()
    if held:
        yield bytes(held)
