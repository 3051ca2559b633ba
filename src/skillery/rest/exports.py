"""Downloads of skills in the form of Agent Skills.

The addresses are `/skills/…` for a skill by name and version, and `/.well-known/…` and `/n/{namespace}/.well-known/…`
for indexes and the skills in them.
"""

from __future__ import annotations

import base64
import hashlib
import math
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import chain
from typing import Any, Literal, NamedTuple
from urllib.parse import quote

import msgspec

from skillery.backends import Identity
from skillery.contents.kept_contents import MadeContent, SignedDownloads
from skillery.context.threads import ARCHIVES
from skillery.database.registry import Registry
from skillery.environments.queries import EnvironmentQueries
from skillery.errors import InvalidName
from skillery.exports import KINDS, Export, Exports, Kind
from skillery.exports.marketplaces import Marketplaces
from skillery.formats.archives import FORMS, MEDIA_TYPES, Form
from skillery.formats.names import parse_namespace, parse_skill_name
from skillery.formats.version_spec import Digest, Exact, VersionSpec, parse_version_spec
from skillery.http.gate import ANONYMOUS, Gate
from skillery.http.requests import CHUNK_BYTES, nothing_here, only, segments_of, send_elsewhere, send_pieces
from skillery.registry.revocations import revocation_of
from skillery.registry.uses import Uses
from skillery.registry.visibility import WAS_PUBLISHED
from skillery.runs.statements import RunStatements

MOST_TAGS = 4096
"""At most this many characters of an If-None-Match header are read."""
FOR_EVER = "max-age=31536000, immutable"
"""Cache-Control of content that never changes. 31536000 s are a year."""
ASK_AGAIN = "no-cache"
"""Cache-Control of content that clients have to validate before each use."""
MARKDOWN = "text/markdown; charset=utf-8"
"""The Content-Type of SKILL.md.

Other files may be web pages with scripts, so browsers are told to store them and not to display them.
"""


class DownloadResponse(NamedTuple):
    """The response to a download."""

    kind: str
    """The Content-Type."""
    size: int
    sha256: str
    """The SHA-256 of the content in hex."""
    cache: str
    headers: list[tuple[str, str]]
    pieces: Iterable[bytes]
    memory: int = CHUNK_BYTES
    """The bytes of memory that the response takes while it is sent."""
    is_hashed: bool = True
    """Whether `sha256` is the SHA-256 of the content. If not, `sha256` is only the value of the ETag."""
    remade_content: MadeContent | None = None
    """Makes the pieces again, in order to copy the content to the storage. None if callers never download this content
    from the storage.
    """

    @classmethod
    def of_bytes(
        cls, kind: str, content: bytes, cache: str, headers: Iterable[tuple[str, str]] = ()
    ) -> DownloadResponse:
        """Return the response with a content that stays in memory until it is sent."""
        size, sha256 = len(content), hashlib.sha256(content).hexdigest()
        return cls(kind, size, sha256, cache, [*headers], [content], memory=size)


class DownloadParts(NamedTuple):
    """The parts of the server that the endpoints for downloads use."""

    gate: Gate
    exports: Exports
    uses: Uses
    signed: SignedDownloads
    are_public: bool
    """Whether callers without credentials may download public skills."""
    marketplaces: Marketplaces
    has_git: bool
    """Whether the server has Git repositories."""
    public_url: str
    """The value of the setting `public_url`."""
    registry: Registry
    environments: EnvironmentQueries
    run_statements: RunStatements


async def send_archive(parts: DownloadParts, scope: Any, _receive: Any, send: Any, headers: dict[str, str]) -> None:
    """Send a version as an archive: `/skills/{name}/{version}.tar.gz` or `.zip`."""
    only(scope, "GET", "HEAD")
    _, name, file = segments_of(scope, 3)
    form = next((form for form in FORMS if file.endswith(f".{form}") and len(file) > len(form) + 1), None)
    if form is None:
        raise nothing_here("An archive ends with .tar.gz or .zip, a single file is /skills/{name}/{version}/{path}.")
    identity = await reader_of(parts, scope, headers)
    spec = parse_version_spec(file[: -len(form) - 1])
    export = await parts.exports.find(identity, parse_skill_name(name), spec)
    await answer_export(parts, scope, send, headers, identity, export, spec, form)


async def answer_export(
    parts: DownloadParts,
    scope: Any,
    send: Any,
    headers: dict[str, str],
    identity: Identity,
    export: Export,
    spec: VersionSpec,
    form: Form | Literal["inline"],
) -> None:
    """Send all files of a version to an authenticated caller. `spec` is the version spec that selected the version.

    The `form` "inline" is a JSON object with a zip in base64, the inline skill of a hosted shell.
    """
    cache = _caching(identity, export, spec)
    parts.uses.note(export.row.name, "loads", export.row.version_id)
    response = _inline(export, cache) if form == "inline" else _archive(export, form, cache)
    await send_download(parts, scope, send, headers, response)


async def send_file(parts: DownloadParts, scope: Any, _receive: Any, send: Any, headers: dict[str, str]) -> None:
    """Send one file of a version: `/skills/{name}/{version}/{path}`."""
    only(scope, "GET", "HEAD")
    _, name, version, *path = segments_of(scope, 4, more=True)
    identity = await reader_of(parts, scope, headers)
    spec = parse_version_spec(version)
    export = await parts.exports.find(identity, parse_skill_name(name), spec)
    response = _file(export, "/".join(path), _caching(identity, export, spec))
    parts.uses.note_file(export.row.name, "/".join(path), export.row.version_id)
    await send_download(parts, scope, send, headers, response)


async def send_index(parts: DownloadParts, scope: Any, _receive: Any, send: Any, headers: dict[str, str]) -> None:
    """Send an index of skills: `/.well-known/{kind}/index.json`, also below `/n/{namespace}`.

    `kind` is `agent-skills` or `skills`.
    """
    only(scope, "GET", "HEAD")
    namespace, kind, _ = _in_index(scope)
    identity = await reader_of(parts, scope, headers)
    index = await parts.exports.index(identity, namespace, kind)
    cache = cache_control(identity, ASK_AGAIN)
    size = len(index.content)
    # The whole index stays in memory until it is sent.
    answer = DownloadResponse(
        "application/json", size, index.sha256, cache, headers=[], pieces=[index.content], memory=size
    )
    await send_download(parts, scope, send, headers, answer)


async def send_indexed_file(
    parts: DownloadParts, scope: Any, _receive: Any, send: Any, headers: dict[str, str]
) -> None:
    """Send a file of the latest version of a skill in an index: `/.well-known/{kind}/{index name}/{path}`.

    The address may also be below `/n/{namespace}`.
    """
    only(scope, "GET", "HEAD")
    namespace, _, (indexed_name, *path) = _in_index(scope)
    identity = await reader_of(parts, scope, headers)
    export = await parts.exports.find_in_index(identity, namespace, indexed_name)
    response = _file(export, "/".join(path), cache_control(identity, ASK_AGAIN))
    parts.uses.note_file(export.row.name, "/".join(path), export.row.version_id)
    await send_download(parts, scope, send, headers, response)


# -- addresses -------------------------------------------------------------------------------------------------


def _in_index(scope: Any) -> tuple[str, Kind, list[str]]:
    """Return the namespace and the kind of the index in the address, and the later segments of the address.

    The namespace is "" for the index of all skills. Raise HttpRefusal 404 if the address does not belong to an index.
    """
    parts = segments_of(scope, 3, more=True)
    namespace = ""
    if parts[0] == "n":
        namespace, parts = parts[1], parts[2:]
        try:
            parse_namespace(namespace)
        except InvalidName:
            raise nothing_here() from None
    kind = next((kind for kind in KINDS if len(parts) > 2 and parts[1] == kind), None)
    if parts[0] != ".well-known" or kind is None:
        raise nothing_here()
    return namespace, kind, parts[2:]


async def reader_of(parts: DownloadParts, scope: Any, headers: dict[str, str]) -> Identity:
    """Return the caller, or ANONYMOUS if public skills can be downloaded. Raise the errors of `Gate.admit_reader`."""
    return await parts.gate.admit_reader(scope, headers, or_anonymous=parts.are_public)


# -- responses -----------------------------------------------------------------------------------------------------


def _archive(export: Export, form: Form, cache: str) -> DownloadResponse:
    """Return the response with a version as an archive."""
    row, facts = export.row, export.facts
    version = quote(row.version, safe="")
    file = f"{facts.name}-{row.version}.{form}"
    headers = [
        *_about(export),
        ("content-disposition", f'attachment; filename="{file}"'),
        ("content-location", f"/skills/{row.name}/{version}.{form}"),
    ]
    sha256 = facts.archives[form]
    remade_content = MadeContent(export.row.version_id, partial(export.archive, form))
    size = export.archive_size(form)
    return DownloadResponse(
        MEDIA_TYPES[form], size, sha256, cache, headers, remade_content.make(), remade_content=remade_content
    )


def _inline(export: Export, cache: str) -> DownloadResponse:
    """Return the response with a version as an inline skill."""
    facts = export.facts
    source = {"type": "base64", "media_type": MEDIA_TYPES["zip"], "data": ""}
    skill = {"type": "inline", "name": facts.name, "description": facts.description, "source": source}
    start, end = msgspec.json.encode(skill).removesuffix(b'"}}'), b'"}}'
    size_in_base64 = 4 * math.ceil(export.archive_size("zip") / 3)
    size = len(start) + size_in_base64 + len(end)
    pieces = chain([start], _in_base64(export.archive("zip")), [end])
    # The archive determines all members, and the address differs from that of the archive.
    sha256 = facts.archives["zip"]
    return DownloadResponse("application/json", size, sha256, cache, _about(export), pieces, is_hashed=False)


def _in_base64(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the joined pieces in base64. Each yielded piece but the last one encodes a multiple of three bytes, so that
    only the last one contains padding.
    """
    rest = b""
    for piece in pieces:
        joined = rest + piece
        cut = len(joined) - len(joined) % 3
        rest = joined[cut:]
        yield base64.b64encode(joined[:cut])
    yield base64.b64encode(rest)


def _file(export: Export, path: str, cache: str) -> DownloadResponse:
    """Return the response with a file of a version. Raise FileNotInSkill if there is no such file."""
    file = export.file(path)
    is_text = path == "SKILL.md"
    headers = _about(export)
    if not is_text:
        headers += [("content-disposition", "attachment"), ("content-security-policy", "sandbox; default-src 'none'")]
    kind = MARKDOWN if is_text else "application/octet-stream"
    return DownloadResponse(kind, file.size, file.sha256, cache, headers, file.pieces)


def _about(export: Export) -> list[tuple[str, str]]:
    """Return the headers with the skill, its version and the digest of its stored bundle, which is also in locks, and
    with the advisory about a revoked version.
    """
    revocation = revocation_of(export.row)
    return [
        *([("x-skillery-advisory", revocation["advisory"])] if revocation else []),
        ("x-skillery-skill", export.row.name),
        ("x-skillery-version", export.row.version),
        ("x-skillery-digest", export.row.digest),
        ("x-skillery-skill-md", "generated" if export.facts.is_generated else "stored"),
    ]


def _caching(identity: Identity, export: Export, spec: VersionSpec) -> str:
    """Return the Cache-Control for a version that `spec` selected.

    Clients may keep an exact version that was published. They have to validate other versions.
    """
    exact = isinstance(spec, Digest) or (isinstance(spec, Exact) and str(spec.version) == export.row.version)
    # A copy of a revoked version is validated before each use: it may become malicious.
    is_settled = exact and export.row.status in WAS_PUBLISHED and revocation_of(export.row) is None
    return cache_control(identity, FOR_EVER if is_settled else ASK_AGAIN)


def cache_control(identity: Identity, cache: str) -> str:
    """Return `cache` as the value of Cache-Control.

    Responses to authenticated callers are `private`, because shared caches must not keep them.
    """
    return f"{'public' if identity is ANONYMOUS else 'private'}, {cache}"


async def send_download(
    parts: DownloadParts, scope: Any, send: Any, headers: dict[str, str], answer: DownloadResponse
) -> None:
    """Send a response: 304 if the client has the content, a redirect if the storage has it, else the content."""
    common_headers = [
        ("etag", f'"{answer.sha256}"'),
        ("cache-control", answer.cache),
        ("vary", "authorization"),
        *answer.headers,
    ]
    if _is_known(headers.get("if-none-match"), answer.sha256):
        await send({"type": "http.response.start", "status": 304, "headers": _raw(common_headers)})
        await send({"type": "http.response.body", "body": b""})
        return
    signed_address = await _signed(parts.signed, answer) if scope["method"] == "GET" else None
    if signed_address is not None:
        await send_elsewhere(
            send, signed_address, [header for header in common_headers if header[0] != "cache-control"]
        )
        return
    content_headers = [("content-type", answer.kind), ("content-length", str(answer.size))]
    if answer.is_hashed:
        digest = base64.b64encode(bytes.fromhex(answer.sha256)).decode()
        content_headers.append(("repr-digest", f"sha-256=:{digest}:"))
    raw = _raw([*content_headers, *common_headers])
    if scope["method"] == "HEAD":
        await send({"type": "http.response.start", "status": 200, "headers": raw})
        await send({"type": "http.response.body", "body": b""})
        return
    await send_pieces(send, raw, answer.pieces, min(answer.memory, answer.size))


async def _signed(signed: SignedDownloads, answer: DownloadResponse) -> str | None:
    """Return the address of the content in the storage, or None if this server has to send the content."""
    if answer.remade_content is None or not signed.covers(answer.size):
        return None
    response_headers = {"content-type": answer.kind, "content-disposition": dict(answer.headers)["content-disposition"]}
    return await ARCHIVES.run(signed.address, answer.sha256, response_headers, answer.remade_content)


def _is_known(header: str | None, sha256: str) -> bool:
    """Return whether an If-None-Match header contains the digest or `*` (RFC 9110 §13.1.2)."""
    if header is None:
        return False
    tags = {tag.strip().removeprefix("W/").strip('"') for tag in header[:MOST_TAGS].split(",")}
    return sha256 in tags or "*" in tags


def _raw(headers: list[tuple[str, str]]) -> list[tuple[bytes, bytes]]:
    return [(name.encode(), value.encode()) for name, value in headers]
