"""The table of the endpoints that download skills, with their descriptions for OpenAPI. `/marketplace.json`."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple

from litestar import HttpMethod, route
from litestar.openapi.spec import Parameter, Schema
from litestar.openapi.spec.enums import OpenAPIType
from litestar.types import ASGIApp

from skillery.errors import InvalidParams
from skillery.exports import KINDS
from skillery.exports.marketplaces import SOURCE_KINDS, Asked, SourceKind
from skillery.formats.archives import MEDIA_TYPES
from skillery.formats.names import parse_namespace
from skillery.formats.version_spec import LATEST, parse_label
from skillery.formats.wording import quoted
from skillery.http.operations import ELSEWHERE, Operation, Response, in_query
from skillery.http.requests import only, query_of, segments_of
from skillery.methods.errors import encode
from skillery.rest.exports import (
    ASK_AGAIN,
    DownloadParts,
    DownloadResponse,
    cache_control,
    reader_of,
    send_archive,
    send_download,
    send_file,
    send_index,
    send_indexed_file,
)
from skillery.rest.proofs import (
    CYCLONEDX,
    FILES,
    ORIGIN,
    PREDICATE,
    SBOM,
    STATEMENTS,
    send_files_text,
    send_origin,
    send_sbom,
    send_statements,
)

# -- `/marketplace.json`: the skills of the registry as plugins of a marketplace, for clients that do not read git -----


PARAMETERS = (
    in_query("namespace", "Only the skills of this namespace and below it."),
    in_query("label", "The versions with this label. Without it, the latest version of each skill."),
    in_query(
        "sources",
        "Where clients get a plugin. `archive` is a zip with its SHA-256, which clients download only over https. "
        "`git` is the repository of the skill. Without it, `archive` over https, else `git`.",
        enum=SOURCE_KINDS,
    ),
)


async def send_marketplace(parts: DownloadParts, scope: Any, _receive: Any, send: Any, headers: dict[str, str]) -> None:
    """Send the marketplace of the skills that the caller sees, `/marketplace.json`."""
    only(scope, "GET", "HEAD")
    identity = await reader_of(parts, scope, headers)
    query = query_of(scope, *(parameter.name for parameter in PARAMETERS))
    # The gate has checked that the Host is a name of this server.
    address = (parts.public_url or f"{scope['scheme']}://{headers['host']}").rstrip("/")
    label = query.get("label", LATEST)
    request = Asked(
        parse_namespace(query.get("namespace", "")),
        label if label == LATEST else parse_label(label),
        _sources(query.get("sources", ""), address, has_git=parts.has_git),
        address,
    )
    content = encode(await parts.marketplaces.find(identity, request))
    answer = DownloadResponse.of_bytes("application/json", content, cache_control(identity, ASK_AGAIN))
    await send_download(parts, scope, send, headers, answer)


def _sources(text: str, address: str, *, has_git: bool) -> SourceKind:
    """Return the kind of source for plugins: the value of the query, or a default for the server's address.

    Raise InvalidParams if the value is unknown or not available on this server.
    """
    if not text:
        return "archive" if address.startswith("https:") or not has_git else "git"
    if text not in SOURCE_KINDS:
        raise InvalidParams(f"the parameter 'sources' is {quoted(text)}", hint=f"Write {' or '.join(SOURCE_KINDS)}.")
    if text == "git" and not has_git:
        raise InvalidParams(
            "this server has no git repositories", hint="Pass sources=archive, or ask an admin to set git = true."
        )
    return text


# -- A version in one response: as an archive, the text of its digest, and the signed statements about it --------------


async def send_version(parts: DownloadParts, scope: Any, receive: Any, send: Any, headers: dict[str, str]) -> None:
    """Send a version in the form of the ending: `/skills/{name}/{version}.tar.gz`, `.zip`, `.files`, `.intoto.jsonl`,
    `.origin.json` or `.cdx.json`.
    """
    only(scope, "GET", "HEAD")
    file = segments_of(scope, 3)[2]
    if file.endswith(SBOM):
        await send_sbom(parts, scope, send, headers)
    elif file.endswith(STATEMENTS):
        await send_statements(parts, scope, send, headers)
    elif file.endswith(ORIGIN):
        await send_origin(parts, scope, send, headers)
    elif file.endswith(FILES):
        await send_files_text(parts, scope, send, headers)
    else:
        await send_archive(parts, scope, receive, send, headers)


Object = dict[str, Any]
ANY = "application/octet-stream"
_TYPE = re.compile(r":\w+(?=\})")
_KNOWN = Parameter("If-None-Match", "header", schema=Schema(type=OpenAPIType.STRING))


class Download(NamedTuple):
    """One endpoint for GET and HEAD that downloads something."""

    group: str
    """The name of the endpoint in metrics and in the server's log."""
    paths: tuple[str, ...]
    """Paths in the notation of Litestar."""
    endpoint: Callable[[DownloadParts, Any, Any, Any, dict[str, str]], Awaitable[None]]
    summary: str
    description: str
    answer: Response
    may_be_elsewhere: bool = False
    """Whether the answer may be a redirect to a signed address of the storage."""
    parameters: tuple[Parameter, ...] = ()
    """The parameters of the query, for OpenAPI."""

    @property
    def operations(self) -> tuple[Operation, ...]:
        """The descriptions of the endpoint for OpenAPI, one for each path."""
        answers = {200: self.answer, 304: Response("If-None-Match contains the ETag of the content.", kinds=())}
        answers |= {307: ELSEWHERE} if self.may_be_elsewhere else {}
        return tuple(
            Operation(
                "GET",
                _TYPE.sub("", path),
                self.summary,
                answers,
                (400, 404),
                "read",
                description=self.description,
                parameters=(_KNOWN, *self.parameters),
                tag="Agent Skills",
            )
            for path in self.paths
        )


def _in_indexes(path: str) -> tuple[str, ...]:
    """Return the paths of `path` in all indexes: of both kinds, of all skills and of a namespace."""
    above = ("", "/n/{namespace:str}")
    return tuple(f"{place}/.well-known/{kind}/{path}" for place in above for kind in KINDS)


DOWNLOADS = (
    Download(
        "/skills",
        ("/skills/{name:str}/{archive:str}",),
        send_version,
        "A version of a skill as an archive, or what proves it",
        "`archive` is a version spec (`1.2.0`, `latest`, a label, a range, a digest) and an ending. `.tar.gz` and "
        "`.zip` are archives. `.files` is the text whose SHA-256 is the digest. `.intoto.jsonl` has the signed "
        "statements about the version, `.origin.json` those of the registry from which a mirror has copied it. "
        "`.cdx.json` is the bill of materials of CycloneDX 1.6: the locked packages.",
        Response(
            "The archive or text. The bytes of an archive depend only on its files.",
            kinds=(*MEDIA_TYPES.values(), "text/plain", "application/jsonl", "application/json", CYCLONEDX),
        ),
        may_be_elsewhere=True,
        parameters=(PREDICATE,),
    ),
    Download(
        "/skills",
        ("/skills/{name:str}/{version:str}/{path:path}",),
        send_file,
        "A file of a version of a skill",
        "The file as in the archive. SKILL.md conforms to Agent Skills.",
        Response("The file.", kinds=("text/markdown", ANY)),
    ),
    Download(
        "/.well-known",
        _in_indexes("index.json"),
        send_index,
        "An index of Agent Skills",
        "`agent-skills` is the index of discovery 0.2.0. `skills` is the older index, which lists files.",
        Response("The index of the skills that the caller sees.", Object),
    ),
    Download(
        "/.well-known",
        _in_indexes("{name:str}/{path:path}"),
        send_indexed_file,
        "A file of the latest version of a skill in an index",
        "`name` is the name of the skill in that index.",
        Response("The file.", kinds=("text/markdown", ANY)),
    ),
    Download(
        "/marketplace.json",
        ("/marketplace.json",),
        send_marketplace,
        "A marketplace of plugins",
        "Each skill is a plugin, for Claude Code and for clients that read its marketplaces.",
        Response("The marketplace of the skills that the caller sees.", Object),
        parameters=PARAMETERS,
    ),
)


def routed(paths: Sequence[str], methods: Sequence[str], app: ASGIApp) -> Any:
    """Return a route of Litestar for paths with parameters, which mounts do not support. `app` answers the requests."""

    @route(list(paths), http_method=[HttpMethod(method) for method in methods], status_code=200)
    async def handler() -> ASGIApp:
        return app

    return handler
