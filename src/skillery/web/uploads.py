"""Forms with files (multipart/form-data), and uploads of skills. Origin and form token are checked first."""

from __future__ import annotations

import asyncio
import io
import zipfile
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from typing import Any, NamedTuple

import msgspec
from multipart import MultipartError, MultipartSegment, PushMultipartParser, parse_options_header

from skillery.context.budget import body_room
from skillery.context.threads import IMPORTS
from skillery.errors import BlobNotFound, InvalidArchive
from skillery.http.requests import HttpRefusal, chunks_of
from skillery.importing.entries import Archive, ImportLimits
from skillery.methods.errors import INVALID_REQUEST, plain_error
from skillery.web.frame import Form, PageRequest
from skillery.web.visits import FORM_TOKEN, MOST_KEPT_BYTES, OutdatedForm, Pairs, check_same_origin

MULTIPART = "multipart/form-data"
MOST_PARTS = 25_000
MOST_TEXT_BYTES = 1024 * 1024
"""The maximum size of all fields of a form that are not files."""


class UploadedFile(NamedTuple):
    """A file in a form, before its content is read. `kind` is its media type."""

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
    fields = _Fields()
    parts = _parts(request, most_bytes)
    async for name, file, content in parts:
        if file is None:
            await fields.take(name, content)
        elif not request.is_own_form(fields.tokens):
            raise OutdatedForm(await _remaining_texts(request, parts, fields))
        elif file.name:
            fields.pairs.append((name, await on_file(file, content)))
    if not request.is_own_form(fields.tokens):
        raise OutdatedForm(fields.pairs)
    request.sent = fields.pairs
    return Form(tuple(fields.pairs))


async def read_texts(request: PageRequest) -> Pairs | None:
    """Return the fields of a form that are not files, or None for a large form.

    Raise the errors of `read_multipart`, except OutdatedForm.
    """
    check_same_origin(request.scope, request.headers)
    return await _remaining_texts(request, _parts(request, MOST_KEPT_BYTES), _Fields())


async def _remaining_texts(request: PageRequest, parts: _Parts, fields: _Fields) -> Pairs | None:
    """Read the remaining parts of a form, without its files. Return all fields, or None for a large form, unread."""
    length = request.headers.get("content-length", "")
    if not length.isdecimal() or int(length[:20]) > MOST_KEPT_BYTES:
        return None
    async for name, file, content in parts:
        if file is None:
            await fields.take(name, content)
    return fields.pairs


_Parts = AsyncIterator[tuple[str, UploadedFile | None, AsyncIterator[bytes]]]
"""The parts of a form: field, file or None, and the content, which must be read before the next part."""


class _Fields:
    """The fields of a form that are not files. The size of all together is limited."""

    def __init__(self) -> None:
        self.pairs: Pairs = []
        self.tokens: list[str] = []
        self._bytes_left = MOST_TEXT_BYTES

    async def take(self, name: str, content: AsyncIterator[bytes]) -> None:
        """Read a field. Raise HttpRefusal 413 if all fields together are too large."""
        value = bytearray()
        async for chunk in content:
            value += chunk
            self._bytes_left -= len(chunk)
            if self._bytes_left < 0:
                raise too_large("the fields of the form", MOST_TEXT_BYTES)
        text = value.decode("utf-8", "replace")
        if name == FORM_TOKEN:
            self.tokens.append(text)
        else:
            self.pairs.append((name, text))


async def _parts(request: PageRequest, most_bytes: int) -> _Parts:
    """Yield the parts of a form. The unread rest of a part is skipped."""
    events = _events(request, most_bytes)
    async for event in events:
        if not isinstance(event, MultipartSegment):
            continue
        content = _content(events)
        kind = event.content_type or "application/octet-stream"
        file = None if event.filename is None else UploadedFile(event.filename, kind)
        yield event.name or "", file, content
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


# -- Uploads for publishing: the files of a folder or an archive, stored for an hour as a blob of the user -------------


MOST_BYTES = 64_000_000
"""The maximum number of bytes of an upload, and of all unpacked files in it."""
MOST_FILES = 10_000
KEPT = timedelta(hours=1)
_KIND = "application/x-skillery-files"
_ARCHIVES = (".zip", ".tar.gz", ".tgz", ".skill")
_LIMITS = ImportLimits(max_bytes=MOST_BYTES, max_unpacked_bytes=MOST_BYTES, max_entries=MOST_FILES)
_LEFT_OUT = frozenset({"__pycache__", "__MACOSX", "node_modules"})


class Bundle(msgspec.Struct):
    """The files of an upload by path. Paths are relative to the folder of the skill."""

    files: dict[str, bytes]
    skipped: int = 0
    """The number of hidden files and caches that were left out."""

    def text(self, path: str) -> str:
        """Return the content of a file as text, or "" if the upload does not have the file."""
        return self.files.get(path, b"").decode("utf-8", "replace")

    def as_zip(self) -> bytes:
        """Return the files as a zip archive, for an import."""
        archive_bytes = io.BytesIO()
        with zipfile.ZipFile(archive_bytes, "w", zipfile.ZIP_DEFLATED) as archive:
            for path, content in self.files.items():
                archive.writestr(zipfile.ZipInfo(path), content)
        return archive_bytes.getvalue()


async def receive_bundle(request: PageRequest) -> Bundle:
    """Return the files of a sent form: those of a folder, or those in a single archive.

    Raise the errors of `read_multipart`. Raise InvalidArchive or ArchiveTooLarge if the archive cannot be read.
    """
    files: dict[str, bytes] = {}
    room = body_room.get()

    async def keep(file: UploadedFile, content: AsyncIterator[bytes]) -> str:
        if len(files) >= MOST_FILES:
            raise InvalidArchive(f"the folder has more than {MOST_FILES} files", hint="Leave some out.")
        gathered = bytearray()
        async for chunk in content:
            room.take(len(chunk))
            gathered += chunk
        files[file.name.replace("\\", "/")] = bytes(gathered)
        return file.name

    await read_multipart(request, keep, MOST_BYTES)
    if len(files) == 1 and next(iter(files)).lower().endswith(_ARCHIVES):
        importer = request.site.core.importer
        with importer.temporary_file() as temporary:
            await IMPORTS.run(temporary.write, *files.values())
            async with importer.opened(temporary, _LIMITS) as archive:
                room.take(sum(entry.size for entry in archive.entries))
                files = await IMPORTS.run(_unpacked, archive)
    return await asyncio.to_thread(_bundle_of, files)


def _bundle_of(files: dict[str, bytes]) -> Bundle:
    """Return the files without hidden ones and caches. A common top folder is removed from the paths."""
    kept = {path: content for path, content in files.items() if _is_kept(path)}
    root = next(iter(kept), "").partition("/")[0]
    if root and all(path.startswith(f"{root}/") for path in kept):
        kept = {path[len(root) + 1 :]: content for path, content in kept.items()}
    return Bundle(kept, len(files) - len(kept))


def _is_kept(path: str) -> bool:
    return not any(part.startswith(".") or part in _LEFT_OUT or not part for part in path.split("/"))


def _unpacked(archive: Archive) -> dict[str, bytes]:
    """Return the files in an archive. Links are left out. Raise InvalidArchive if a file cannot be read."""
    return {entry.path: archive.read(entry) for entry in archive.entries if not entry.target}


async def keep_bundle(request: PageRequest, bundle: Bundle) -> str:
    """Store an upload for an hour. Return its blob id, which only its user can use."""
    content = await asyncio.to_thread(msgspec.msgpack.encode, bundle)
    blob = await request.site.core.blobs.create_blob(request.identity, content, _KIND, KEPT)
    return blob.blob_id


async def find_bundle(request: PageRequest, upload: str) -> tuple[Bundle, str]:
    """Return an upload of the user and its digest. Raise BlobNotFound if the user has no such upload."""
    blob = await request.site.core.blobs.find_blob(request.identity, upload)
    if blob.kind != _KIND or blob.owner != request.identity.name:
        raise BlobNotFound(
            f"there is no upload '{upload[:80]}'", hint="Uploads expire after an hour. Upload the files again."
        )
    content: Any = await asyncio.to_thread(request.site.core.blobs.read_range, blob, 0, blob.size_bytes)
    return await asyncio.to_thread(msgspec.msgpack.decode, content, type=Bundle), blob.sha256
