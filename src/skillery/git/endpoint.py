"""`/git/_all.git`, `/git/{namespace}.git` and `/git/n/{skill}.git`: read-only repositories over smart HTTP."""

from __future__ import annotations

import base64
import binascii
import zlib
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import parse_qsl

from skillery.backends import Identity
from skillery.context.budget import body_room
from skillery.context.threads import BODIES
from skillery.errors import InvalidName, ReadOnlyRepository
from skillery.formats.names import parse_namespace, parse_skill_name
from skillery.git.requests import Fetch, ListRefs, MalformedRequest, parse_v0, parse_v2
from skillery.git.responses import advertise_v0, advertise_v2, fetch_v0, fetch_v2, list_refs, refuse
from skillery.git_views import OpenRepository, Repositories, RepositoryAddress
from skillery.git_views.states import ALL
from skillery.http.gate import ANONYMOUS, Gate
from skillery.http.operations import Route
from skillery.http.requests import HttpRefusal, read_body, segments_of, send_bytes, send_pieces
from skillery.methods.errors import INVALID_REQUEST, NOT_FOUND, plain_error

# -- Credentials of git: Basic becomes Bearer, and a 401 makes git ask its credential helper ---------------------------


UNAUTHORIZED = 401
REALM = "Skillery"
MOST_CHARACTERS = 16_384


def with_bearer(headers: dict[str, str]) -> dict[str, str]:
    """Return the headers with the password of Basic credentials as a Bearer token. The user name is ignored.

    Other credentials, and credentials that cannot be decoded, are not changed, so the authenticator refuses them.
    """
    scheme, _, encoded = headers.get("authorization", "").partition(" ")
    if scheme.lower() != "basic" or len(encoded) > MOST_CHARACTERS:
        return headers
    try:
        _, _, password = base64.b64decode(encoded.strip(), validate=True).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError):
        return headers
    # A password with other characters would be a header that no client can send.
    if not password.isascii() or not password.isprintable():
        return headers
    return {**headers, "authorization": f"Bearer {password}"}


def challenged(refusal: HttpRefusal) -> list[tuple[str, str]]:
    """Return the headers of a refusal. A 401 also asks for Basic, because Git knows no other challenge."""
    if refusal.status != UNAUTHORIZED:
        return refusal.headers
    return [("www-authenticate", f'Basic realm="{REALM}", charset="UTF-8"'), *refusal.headers]


PREFIX = "/git"
UPLOAD_PACK, RECEIVE_PACK = "git-upload-pack", "git-receive-pack"
REQUEST = f"application/x-{UPLOAD_PACK}-request"
RESULT = f"application/x-{UPLOAD_PACK}-result"
ADVERTISEMENT = f"application/x-{UPLOAD_PACK}-advertisement"
TEXT = "text/plain; charset=utf-8"
MOST_BODY = 4 * 1024 * 1024
"""The maximum size of a request, packed or unpacked. A partial clone may name 80,000 objects."""
MEMORY_OF_ANSWER = 512 * 1024
"""The bytes of the memory budget that one pack takes while it is sent."""
NO_CACHE = [("cache-control", "no-cache, private"), ("vary", "authorization, git-protocol")]


class GitParts(NamedTuple):
    """The parts of the server that the endpoint for Git uses."""

    gate: Gate
    repositories: Repositories


class _Request(NamedTuple):
    """A request: the repository in its address, the HTTP method, and the operation of the Git protocol."""

    repository: RepositoryAddress
    verb: str
    operation: str
    service: str


def git_routes(parts: GitParts) -> list[Route]:
    async def endpoint(scope: Any, receive: Any, send: Any, headers: dict[str, str]) -> None:
        await _answer(parts, scope, receive, send, headers)

    return [Route(PREFIX, endpoint, (), is_mount=True, fail=_refuse)]


async def _answer(parts: GitParts, scope: Any, receive: Any, send: Any, headers: dict[str, str]) -> None:
    """Answer a request of a Git client. Raise HttpRefusal 401 for callers without credentials."""
    # Before anything else: callers without credentials learn nothing, and git asks for credentials only after a 401.
    # So public skills need credentials too.
    identity = await parts.gate.admit_reader(scope, with_bearer(headers), or_anonymous=True)
    if identity is ANONYMOUS:
        raise parts.gate.missing_credentials(scope, headers)
    request = _request_of(scope)
    if RECEIVE_PACK in (request.service, request.operation):
        raise ReadOnlyRepository("this repository is read-only", hint="Publish skills with `skillery publish`.")
    match request.verb, request.operation, request.service:
        case "GET" | "HEAD", "info/refs", service if service == UPLOAD_PACK:
            await _advertise(parts, identity, request, send, _version(headers))
        case "POST", operation, _ if operation == UPLOAD_PACK:
            await _upload(parts, identity, request, receive, send, headers)
        case _:
            raise _nothing_here()


async def _advertise(parts: GitParts, identity: Identity, request: _Request, send: Any, version: int) -> None:
    """Send what the server can do, and for protocols v0 and v1 all branches and tags."""
    state = await parts.repositories.find(identity, request.repository)
    if version == 2:
        body = advertise_v2()
    else:
        opened = await parts.repositories.open(state)
        opened.stream.close()
        body = advertise_v0(opened.table, version)
    await send_bytes(send, 200, b"" if request.verb == "HEAD" else body, ADVERTISEMENT, NO_CACHE)


async def _upload(
    parts: GitParts, identity: Identity, request: _Request, receive: Any, send: Any, headers: dict[str, str]
) -> None:
    """Answer a request for branches or objects."""
    kind = headers.get("content-type", "")
    # A browser sends this type to another origin only after a preflight request, which this server does not answer.
    if kind.partition(";")[0].strip().lower() != REQUEST:
        raise _refusal(415, "unsupported_media_type", f"the Content-Type is {kind[:80]!r}", f"Send {REQUEST}.")
    version = _version(headers)
    body = await read_body(receive, headers, MOST_BODY)
    try:
        git_request = await BODIES.run(_parsed, body, headers, version)
    except MalformedRequest as error:
        await send_bytes(send, 200, refuse(str(error)), RESULT, NO_CACHE)
        return
    del body
    body_room.get().release()
    # The caller may see other skills than before: each request finds the state again.
    state = await parts.repositories.find(identity, request.repository)
    if git_request is None:
        await send_bytes(send, 200, b"", RESULT, NO_CACHE)
        return
    opened = await parts.repositories.open(state)
    try:
        if isinstance(git_request, ListRefs):
            await send_bytes(send, 200, list_refs(opened.table, git_request), RESULT, NO_CACHE)
        else:
            await _send_objects(send, opened, git_request, version)
    finally:
        opened.stream.close()


def _parsed(body: bytes, headers: Mapping[str, str], version: int) -> Fetch | ListRefs | None:
    """Return the request in a body, or None if it asks for nothing.

    Raise MalformedRequest, or HttpRefusal 413 if the unpacked body is too large.
    """
    if headers.get("content-encoding", "").strip().lower() in ("gzip", "x-gzip"):
        body = _unpacked(body)
    return parse_v2(body) if version == 2 else parse_v0(body)


def _unpacked(body: bytes) -> bytes:
    """Return the body without its gzip compression. Raise MalformedRequest or HttpRefusal 413."""
    unpacking = zlib.decompressobj(wbits=16 + zlib.MAX_WBITS)
    try:
        unpacked = unpacking.decompress(body, MOST_BODY + 1)
    except zlib.error:
        raise MalformedRequest("the body is not gzip") from None
    if len(unpacked) > MOST_BODY:
        message = f"the unpacked body is larger than this server takes ({MOST_BODY} bytes)"
        raise _refusal(413, "body_too_large", message, "Fetch fewer objects at once.")
    if not unpacking.eof:
        raise MalformedRequest("the body is a gzip that is cut off")
    return unpacked


async def _send_objects(send: Any, opened: OpenRepository, wanted: Fetch, version: int) -> None:
    pieces = (fetch_v2 if version == 2 else fetch_v0)(opened, wanted)
    raw = [(name.encode(), value.encode()) for name, value in [("content-type", RESULT), *NO_CACHE]]
    try:
        await send_pieces(send, raw, pieces, MEMORY_OF_ANSWER)
    except MalformedRequest as error:  # before the response begins
        await send_bytes(send, 200, refuse(str(error)), RESULT, NO_CACHE)


# -- addresses and refusals ------------------------------------------------------------------------------------


def _request_of(scope: Any) -> _Request:
    """Return the repository and the operation in an address. Raise HttpRefusal 404 for other addresses."""
    _, *parts = segments_of(scope, 3, more=True)
    is_skill = parts[0] == "n" and len(parts) > 2
    name, *rest = parts[1:] if is_skill else parts
    if not name.endswith(".git") or name == ".git":
        raise _nothing_here()
    repository = _repository(name.removesuffix(".git"), is_skill)
    return _Request(repository, scope["method"], "/".join(rest), _service(scope))


def _service(scope: Any) -> str:
    try:
        query = parse_qsl(str(scope.get("query_string", b""), "latin-1"), max_num_fields=16)
    except ValueError:
        raise _nothing_here() from None
    return dict(query).get("service", "")


def _repository(name: str, is_skill: bool) -> RepositoryAddress:
    try:
        if is_skill:
            return RepositoryAddress(skill=parse_skill_name(name))
        return RepositoryAddress(namespace="" if name == ALL else parse_namespace(name))
    except InvalidName:
        raise _nothing_here() from None


def _version(headers: Mapping[str, str]) -> int:
    """Return the protocol version that the client requests with the header Git-Protocol: 0, 1 or 2."""
    options = headers.get("git-protocol", "")[:256].split(":")
    return 2 if "version=2" in options else 1 if "version=1" in options else 0


def _nothing_here() -> HttpRefusal:
    hint = "Addresses are /git/_all.git, /git/{namespace}.git and /git/n/{skill}.git."
    return HttpRefusal(404, plain_error(NOT_FOUND, "there is nothing at this address", "not_found", hint))


def _refusal(status: int, kind: str, message: str, hint: str) -> HttpRefusal:
    return HttpRefusal(status, plain_error(INVALID_REQUEST, message, kind, hint))


async def _refuse(scope: Any, send: Any, _headers: dict[str, str], refusal: HttpRefusal) -> None:
    """Send a refusal as text, because Git shows only text to its user."""
    error = refusal.error
    text = "\n".join(part for part in (error["message"], error["data"].get("hint")) if part)
    body = b"" if scope["method"] == "HEAD" else f"{text}\n".encode()
    await send_bytes(send, refusal.status, body, TEXT, challenged(refusal))
