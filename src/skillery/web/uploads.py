"""Forms with files (multipart/form-data): origin and form token are checked before a file is read."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, NamedTuple

from multipart import MultipartError, MultipartSegment, PushMultipartParser, parse_options_header

from skillery.edge.http import HttpRefusal, chunks_of
from skillery.methods.errors import INVALID_REQUEST, plain_error
from skillery.web.forms import FORM_TOKEN, MOST_FORM_BYTES, check_same_origin
from skillery.web.frame import Form, PageRequest

MULTIPART = "multipart/form-data"
MOST_PARTS = 25_000


class UploadedFile(NamedTuple):
    """A file of a form, before its content is read."""

    field: str
    name: str
    """The name or path that the browser gives. It is not checked."""
    kind: str


OnFile = Callable[[UploadedFile, AsyncIterator[bytes]], Awaitable[str]]
"""Function that takes the content of a file and returns the value of its field."""


def is_multipart(headers: dict[str, str]) -> bool:
    return headers.get("content-type", "").partition(";")[0].strip().lower() == MULTIPART


async def read_multipart(request: PageRequest, on_file: OnFile, most_bytes: int) -> Form:
    """Return the fields of a form. `on_file` gets each file that the user has chosen, as a stream.

    The field `form_token` must come before the files. Raise HttpRefusal 403 if a page of another origin has sent the
    form, 400 if the form cannot be read, or 413 if the form has more than `most_bytes`. Raise NotAllowed if the form
    belongs to another session.
    """
    check_same_origin(request.scope, request.headers)
    events = _events(request, most_bytes)
    pairs: list[tuple[str, str]] = []
    tokens: list[str] = []
    is_checked = False
    left = MOST_FORM_BYTES * 16
    async for part in events:
        if not isinstance(part, MultipartSegment):
            continue
        content = _content(events)
        name = part.name or ""
        if part.filename is None:
            value = bytearray()
            async for chunk in content:
                value += chunk
                left -= len(chunk)
                if left < 0:
                    raise too_large("the fields of the form", MOST_FORM_BYTES * 16)
            text = value.decode("utf-8", "replace")
            if name == FORM_TOKEN:
                tokens.append(text)
            else:
                pairs.append((name, text))
            continue
        if not is_checked:
            request.site.visits.check_form_token(request.visit, tokens)
            is_checked = True
        if part.filename:
            file = UploadedFile(name, part.filename, part.content_type or "application/octet-stream")
            pairs.append((name, await on_file(file, content)))
        async for _ in content:
            pass
    if not is_checked:
        request.site.visits.check_form_token(request.visit, tokens)
    return Form(tuple(pairs))


async def _content(events: AsyncIterator[Any]) -> AsyncIterator[bytes]:
    """Yield the content of the current part."""
    async for one in events:
        if one is None:
            return
        yield bytes(one)


async def _events(request: PageRequest, most_bytes: int) -> AsyncIterator[Any]:
    """Yield a MultipartSegment for the start of a part, bytes for its content, and None for its end."""
    kind, options = parse_options_header(request.headers.get("content-type", ""))
    boundary = options.get("boundary", "")
    if kind != MULTIPART or not 0 < len(boundary) <= 200:
        message = f"the Content-Type is {request.headers.get('content-type', '')[:80]!r}"
        raise HttpRefusal(415, plain_error(INVALID_REQUEST, message, "unsupported_media_type", f"Send {MULTIPART}."))
    length = request.headers.get("content-length", "")
    if length.isdigit() and int(length[:20]) > most_bytes:
        raise too_large("the form", most_bytes)
    received = 0
    try:
        with PushMultipartParser(boundary, max_segment_count=MOST_PARTS) as parser:
            async for chunk in chunks_of(request.receive):
                received += len(chunk)
                if received > most_bytes:
                    raise too_large("the form", most_bytes)
                for one in parser.parse(chunk):
                    yield one
    except MultipartError as error:
        message = f"the form cannot be read: {error}"
        raise HttpRefusal(400, plain_error(INVALID_REQUEST, message, "invalid_form", "Send the form again.")) from None


def too_large(what: str, most_bytes: int) -> HttpRefusal:
    message = f"{what} has more than {most_bytes // 1_000_000} MB"
    return HttpRefusal(413, plain_error(INVALID_REQUEST, message, "too_large", "Send less, or use the API."))
