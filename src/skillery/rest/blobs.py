"""`POST /blobs` and `GET /blobs/{blob_id}`: upload and download a blob of any size with constant memory."""

from __future__ import annotations

import asyncio
import re
from datetime import timedelta
from functools import partial
from typing import Any, NamedTuple
from urllib.parse import parse_qs, quote

import msgspec
from litestar.openapi.spec import Parameter, Schema
from litestar.openapi.spec.enums import OpenAPIType

from skillery.backends import Identity
from skillery.contents.blob_rows import BlobRow, NewBlob
from skillery.contents.blobs import MOST_TTL, Blobs
from skillery.contents.kept_contents import SignedDownloads
from skillery.contents.store import Content
from skillery.errors import InvalidParams
from skillery.formats.wording import quoted
from skillery.http.gate import Gate
from skillery.http.operations import BINARY, ELSEWHERE, Body, Operation, Response, in_query
from skillery.http.requests import CHUNK_BYTES, HttpRefusal, chunks_of, only, send_bytes, send_elsewhere, send_stream
from skillery.identity.idempotency import Once, digest_of, parse_key
from skillery.methods.errors import INVALID_REQUEST, NOT_FOUND, encode, plain_error

DEFAULT_KIND = "application/octet-stream"
ANY_KIND = "*/*"
MOST_RANGE = 200
"""At most this many characters of a Range header are read. Python refuses to parse numbers with thousands of digits."""
OPERATIONS = (
    Operation(
        "POST",
        "/blobs",
        "Store a blob of any size",
        {201: Response("The same result as of create_blob. Location is the address of the blob.", NewBlob)},
        (400, 408, 409, 413),
        "run",
        description="The Content-Type is the kind of the blob. Requests with one Idempotency-Key store one blob.",
        parameters=(
            in_query("ttl", "Lifetime in seconds.", OpenAPIType.INTEGER, minimum=1, maximum=MOST_TTL),
            Parameter("Idempotency-Key", "header", schema=Schema(type=OpenAPIType.STRING, min_length=1)),
        ),
        body=Body(DEFAULT_KIND, BINARY, "The content."),
    ),
    Operation(
        "GET",
        "/blobs/{blob_id}",
        "Download a blob, or a range of it",
        {
            200: Response("The content.", kinds=(ANY_KIND,)),
            206: Response("The range of the content.", kinds=(ANY_KIND,)),
            307: ELSEWHERE,
        },
        (404, 416),
        "read",
        description="The Content-Type is the kind of the blob.",
        parameters=(Parameter("Range", "header", schema=Schema(type=OpenAPIType.STRING)),),
    ),
)
_DIGITS = re.compile(r"[0-9]{1,9}")
_RANGE = re.compile(r"bytes=(\d*)-(\d*)")


class BlobParts(NamedTuple):
    """The parts of the server that the endpoints for blobs use."""

    gate: Gate
    blobs: Blobs
    signed: SignedDownloads
    once: Once


async def blobs_endpoint(parts: BlobParts, scope: Any, receive: Any, send: Any, headers: dict[str, str]) -> None:
    """Answer `/blobs` and `/blobs/{blob_id}`.

    One mounted app gets both addresses, because mounts of Litestar take no parameters.
    """
    address = scope["raw_path"].partition(b"?")[0]
    if address != b"/blobs" and not address.startswith(b"/blobs/"):
        # A mount also gets other addresses that begin with /blobs.
        raise HttpRefusal(404, plain_error(NOT_FOUND, "there is nothing at this address", "not_found"))
    blob_id = scope["path"].strip("/")
    if blob_id:
        await send_blob(parts, scope, send, headers, blob_id)
    else:
        await receive_blob(parts, scope, receive, send, headers)


async def receive_blob(parts: BlobParts, scope: Any, receive: Any, send: Any, headers: dict[str, str]) -> None:
    """Store the body of the request as a blob. With an idempotency key, store it at most once."""
    only(scope, "POST")
    identity = await parts.gate.admit(scope, headers, "run", "create_blob")
    kind = headers.get("content-type") or DEFAULT_KIND
    ttl = _ttl(scope)
    key = headers.get("idempotency-key")
    first, is_again = None, False
    if key is not None:
        first = partial(_first, parts.once, identity, parse_key(key), kind, ttl)
        is_again = await parts.once.is_answered(identity, key)
    blob = await parts.blobs.receive(identity, gathered(chunks_of(receive)), kind, ttl, first, is_again=is_again)
    await send_bytes(send, 201, encode(blob), headers=[("location", f"/blobs/{blob.blob_id}")])


def _first(
    once: Once,
    identity: Identity,
    key: str,
    kind: str,
    ttl: timedelta | None,
    connection: Any,
    content: Content,
    made: NewBlob,
) -> NewBlob:
    """Return the blob that the first request with the idempotency key `key` has stored.

    If this request is the first one, return `made`, the blob that it has stored. Raise IdempotencyKeyReused if the
    content, kind or ttl of the first request was different.
    """
    digest = digest_of(b"POST /blobs", kind.encode(), content.sha256.encode(), str(ttl or "").encode())
    answer = once.at_once(identity, key, connection, digest, encode(made))
    return msgspec.json.decode(answer, type=NewBlob)


def _ttl(scope: Any) -> timedelta | None:
    """Return the lifetime from the query `?ttl=SECONDS`, or None without `ttl`. Raise InvalidParams if the query is
    invalid.
    """
    query = parse_qs(scope.get("query_string", b"").decode("latin-1"), keep_blank_values=True)
    unknown = sorted(query.keys() - {"ttl"})
    if unknown:
        raise InvalidParams(f"there is no parameter {quoted(unknown[0])}", hint="POST /blobs takes ttl, in seconds.")
    if "ttl" not in query:
        return None
    text = query["ttl"][-1]
    if not _DIGITS.fullmatch(text) or not 1 <= int(text) <= MOST_TTL:
        raise InvalidParams(
            f"the parameter 'ttl' is {quoted(text)}",
            hint=f"Write a number of seconds from 1 to {MOST_TTL}.",
            param="ttl",
        )
    return timedelta(seconds=int(text))


async def gathered(chunks: Any) -> Any:
    """Yield the content with small chunks joined to larger ones, because each chunk needs a switch of threads."""
    gathered = bytearray()
    async for chunk in chunks:
        gathered += chunk
        if len(gathered) >= CHUNK_BYTES:
            yield bytes(gathered)
            gathered.clear()
    if gathered:
        yield bytes(gathered)


async def send_blob(parts: BlobParts, scope: Any, send: Any, headers: dict[str, str], blob_id: str) -> None:
    """Send a blob or the requested range of it, or redirect to the address of the blob in the storage."""
    only(scope, "GET", "HEAD")
    identity = await parts.gate.admit(scope, headers, "read", "read_blob")
    blob = await parts.blobs.find_blob(identity, blob_id)
    part = _range(headers.get("range"), blob.size_bytes)
    signed_address = await _signed(parts.signed, blob) if scope["method"] == "GET" else None
    if signed_address is not None:
        await send_elsewhere(send, signed_address, [("etag", f'"{blob.sha256}"')])
        return
    first, end = part or (0, blob.size_bytes)
    reply = [
        (b"content-type", blob.kind.encode()),
        (b"content-length", str(end - first).encode()),
        (b"accept-ranges", b"bytes"),
        (b"etag", f'"{blob.sha256}"'.encode()),
        # A blob may be a web page with scripts. These headers keep browsers from running it as a page of this server.
        (b"content-disposition", _attachment(blob.path)),
        (b"content-security-policy", b"sandbox; default-src 'none'"),
    ]
    if part:
        reply.append((b"content-range", f"bytes {first}-{end - 1}/{blob.size_bytes}".encode()))
    size_sent = 0 if scope["method"] == "HEAD" else end - first
    with await asyncio.to_thread(parts.blobs.open, blob) as stream:
        await asyncio.to_thread(stream.seek, first)
        await send_stream(send, 206 if part else 200, reply, stream, size_sent)


async def _signed(signed: SignedDownloads, blob: BlobRow) -> str | None:
    """Return the address of the blob in the storage, or None if this server has to send the blob."""
    if not signed.covers(blob.size_bytes):
        return None
    response_headers = {"content-type": blob.kind, "content-disposition": _attachment(blob.path).decode()}
    return await asyncio.to_thread(signed.address, blob.sha256, response_headers)


def _attachment(path: str | None) -> bytes:
    """Return the value of Content-Disposition for a download (RFC 6266 §4.3).

    `path` is the path of the file if a run has written the blob, else None.
    """
    name = (path or "").rpartition("/")[2]
    return f"attachment; filename*=UTF-8''{quote(name, safe='')}".encode() if name else b"attachment"


def _range(header: str | None, size: int) -> tuple[int, int] | None:
    """Return the first byte and the end (exclusive) of the requested range, for a blob of `size` bytes.

    `header` is the value of the header Range (RFC 9110 §14). Return None if the header is missing or is not one valid
    range: the whole blob is then sent. Raise HttpRefusal 416 if the range has no byte of the blob.
    """
    match = _RANGE.fullmatch((header or "")[:MOST_RANGE].replace(" ", ""))
    if match is None:
        return None
    first, last = match.groups()
    if not (first or last) or (first and last and int(last) < int(first)):
        return None
    if first:
        start, stop = int(first), min(size, int(last) + 1) if last else size
    else:
        start, stop = max(0, size - int(last)), size  # the last bytes: `last` is their number
    if start >= size or start >= stop:
        error = plain_error(INVALID_REQUEST, f"the blob has {size} bytes", "range_not_satisfiable")
        raise HttpRefusal(416, error, [("content-range", f"bytes */{size}")])
    return start, stop
