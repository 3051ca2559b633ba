"""Forms with files (multipart/form-data). Origin and form token are checked before a file is read."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, NamedTuple

from multipart import MultipartError, MultipartSegment, PushMultipartParser, parse_options_header

from skillery.http.requests import HttpRefusal, chunks_of
from skillery.methods.errors import INVALID_REQUEST, plain_error
from skillery.web.frame import Form, PageRequest
from skillery.web.visits import FORM_TOKEN, MOST_KEPT_BYTES, OutdatedForm, Pairs, check_same_origin

MULTIPART = "multipart/form-data"
MOST_PARTS = 25_000
MOST_TEXT_BYTES = 1024 * 1024
"""The maximum size of all fields of a form that are not files."""


class UploadedFile(NamedTuple):
    """A file in a form, before its content is read. `kind` is its media type."""

    field: str
    name: str
    """The name or path that the browser sends. It is not checked."""
    kind: str


OnFile = Callable[[UploadedFile, AsyncIterator[bytes]], Awaitable[str]]
"""Function that consumes the content of a file, and returns the value for the field of the file."""


def is_multipart(headers: dict[str, str]) -> bool:
    return headers.get("content-type", "").partition(";")[0].strip().lower() == MULTIPART


async def read_multipart(request: PageRequest, on_file: OnFile, most_bytes: int) -> Form:
    """Return the fields of a form. Each chosen file is passed to `on_file` as a stream.

    The field `form_token` must come before the files. Raise HttpRefusal 403 if a page of another origin has sent the
    form, 400 if the form cannot be read, or 413 if the form has more than `most_bytes`. Raise OutdatedForm if the form
    belongs to another session: its files were not used, and a large form was not read.
    """
    check_same_origin(request.scope, request.headers)
    visits, visit = request.site.visits, request.visit
    fields = _Fields()
    parts = _parts(request, most_bytes)
    async for part in parts:
        if part.file is None:
            await fields.take(part)
        elif not visits.is_form_of(visit, fields.tokens):
            raise OutdatedForm(await _remaining_texts(request, parts, fields))
        elif part.file.name:
            fields.pairs.append((part.name, await on_file(part.file, part.content)))
    if not visits.is_form_of(visit, fields.tokens):
        raise OutdatedForm(fields.pairs)
    request.sent = fields.pairs
    return Form(tuple(fields.pairs))


async def read_texts(request: PageRequest) -> Pairs | None:
    """Return the fields of a form that are not files, or None for a large form.

    Raise the errors of `read_multipart`, except OutdatedForm.
    """
    check_same_origin(request.scope, request.headers)
    return await _remaining_texts(request, _parts(request, MOST_KEPT_BYTES), _Fields())


async def _remaining_texts(request: PageRequest, parts: AsyncIterator[_Part], fields: _Fields) -> Pairs | None:
    """Read the remaining parts of a form, without its files. Return all fields, or None for a large form, unread."""
    length = request.headers.get("content-length", "")
    if not length.isdecimal() or int(length[:20]) > MOST_KEPT_BYTES:
        return None
    async for part in parts:
        if part.file is None:
            await fields.take(part)
    return fields.pairs


class _Part(NamedTuple):
    """A part of a form. Its content must be read before the next part."""

    name: str
    file: UploadedFile | None
    """None for a field that is not a file."""
    content: AsyncIterator[bytes]


class _Fields:
    """The fields of a form that are not files. The size of all together is limited."""

    def __init__(self) -> None:
        self.pairs: Pairs = []
        self.tokens: list[str] = []
        self._bytes_left = MOST_TEXT_BYTES

    async def take(self, part: _Part) -> None:
        """Read a part into the fields. Raise HttpRefusal 413 if all fields together are too large."""
        value = bytearray()
        async for chunk in part.content:
            value += chunk
            self._bytes_left -= len(chunk)
            if self._bytes_left < 0:
                raise too_large("the fields of the form", MOST_TEXT_BYTES)
        text = value.decode("utf-8", "replace")
        if part.name == FORM_TOKEN:
            self.tokens.append(text)
        else:
            self.pairs.append((part.name, text))


async def _parts(request: PageRequest, most_bytes: int) -> AsyncIterator[_Part]:
    """Yield the parts of a form. The unread rest of a part is skipped."""
    events = _events(request, most_bytes)
    async for event in events:
        if not isinstance(event, MultipartSegment):
            continue
        content = _content(events)
        kind = event.content_type or "application/octet-stream"
        file = None if event.filename is None else UploadedFile(event.name or "", event.filename, kind)
        yield _Part(event.name or "", file, content)
        async for _ in content:
            pass


async def _content(events: AsyncIterator[Any]) -> AsyncIterator[bytes]:
    """Yield the content of the current part."""
    async for event in events:
        if event is None:
            return
        yield bytes(event)


async def _events(request: PageRequest, most_bytes: int) -> AsyncIterator[Any]:
    """Yield a MultipartSegment at the start of each part, then bytes of its content, then None.

    Raise HttpRefusal 400, 413 or 415 if the form is invalid or has more than `most_bytes`.
    """
    kind, options = parse_options_header(request.headers.get("content-type", ""))
    boundary = options.get("boundary", "")
    if kind != MULTIPART or not 0 < len(boundary) <= 200:
        message = f"the Content-Type is {request.headers.get('content-type', '')[:80]!r}"
        raise HttpRefusal(415, plain_error(INVALID_REQUEST, message, "unsupported_media_type", f"Send {MULTIPART}."))
    length = request.headers.get("content-length", "")
    if length.isdecimal() and int(length[:20]) > most_bytes:
        raise too_large("the form", most_bytes)
    received = 0
    try:
        with PushMultipartParser(boundary, max_segment_count=MOST_PARTS) as parser:
            async for chunk in chunks_of(request.receive):
                received += len(chunk)
                if received > most_bytes:
                    raise too_large("the form", most_bytes)
                for event in parser.parse(chunk):
                    yield event
    except MultipartError as error:
        message = f"the form cannot be read: {error}"
        raise HttpRefusal(400, plain_error(INVALID_REQUEST, message, "invalid_form", "Send the form again.")) from None


def too_large(subject: str, most_bytes: int) -> HttpRefusal:
    message = f"{subject} has more than {most_bytes // 1_000_000} MB"
    return HttpRefusal(413, plain_error(INVALID_REQUEST, message, "too_large", "Send less, or use the API."))
