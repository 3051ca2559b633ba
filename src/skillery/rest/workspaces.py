"""`/v1/workspaces/{id}/files/{path}` and `/v1/workspaces/{id}/archive.tar`: single files of a workspace, and all of
them.
"""

from __future__ import annotations

import asyncio
from typing import Any, NamedTuple
from urllib.parse import parse_qs, quote

from skillery.errors import InvalidParams
from skillery.formats.wording import quoted
from skillery.http.gate import Gate
from skillery.http.operations import BINARY, Body, Operation, Response, in_query
from skillery.http.requests import chunks_of, only, segments_of, send_bytes, send_pieces, send_stream
from skillery.methods.errors import encode
from skillery.rest.blobs import gathered
from skillery.workspaces.files import NewFile, WorkspaceInfo
from skillery.workspaces.methods import Workspaces

ANY = "application/octet-stream"
TAR = "application/x-tar"
FILE, ARCHIVE = "/v1/workspaces/{workspace_id}/files/{path}", "/v1/workspaces/{workspace_id}/archive.tar"
FILE_PATHS = ("/v1/workspaces/{workspace_id:str}/files/{path:path}",)
ARCHIVE_PATHS = ("/v1/workspaces/{workspace_id:str}/archive.tar",)
_YES = {"true": True, "false": False}
FILE_OPERATIONS = (
    Operation(
        "GET",
        FILE,
        "Download a file of a workspace",
        {200: Response("The content; of a symbolic link, its target.", kinds=(ANY,))},
        (404,),
        "read",
        tag="Workspaces",
    ),
    Operation(
        "PUT",
        FILE,
        "Add or replace a file of a workspace",
        {200: Response("The workspace with its new snapshot.", WorkspaceInfo)},
        (400, 404, 408, 413, 503),
        "run",
        description="While a run writes the workspace, the request fails with workspace_busy.",
        parameters=(in_query("executable", "Whether the file is executable, false by default.", enum=list(_YES)),),
        body=Body(ANY, BINARY, "The content."),
        tag="Workspaces",
    ),
)
ARCHIVE_OPERATIONS = (
    Operation(
        "GET",
        ARCHIVE,
        "Download all files of a workspace",
        {200: Response("A tar archive of the files, empty folders and symbolic links.", kinds=(TAR,))},
        (404,),
        "read",
        tag="Workspaces",
    ),
)


class WorkspaceParts(NamedTuple):
    """The parts of the server that the endpoints for workspaces use."""

    gate: Gate
    workspaces: Workspaces


async def file_endpoint(parts: WorkspaceParts, scope: Any, receive: Any, send: Any, headers: dict[str, str]) -> None:
    """Answer `/v1/workspaces/{id}/files/{path}`: GET sends the file, PUT replaces it with the body."""
    only(scope, "GET", "HEAD", "PUT")
    _, _, workspace_id, _, *segments = segments_of(scope, 5, more=True)
    path = "/".join(segments)
    if scope["method"] == "PUT":
        await _receive_file(parts, scope, receive, send, headers, workspace_id, path)
    else:
        await _send_file(parts, scope, send, headers, workspace_id, path)


async def archive_endpoint(
    parts: WorkspaceParts, scope: Any, _receive: Any, send: Any, headers: dict[str, str]
) -> None:
    """Send all files of a workspace as a tar archive: `/v1/workspaces/{id}/archive.tar`."""
    only(scope, "GET", "HEAD")
    identity = await parts.gate.admit(scope, headers, "read", "describe_workspace")
    workspace_id = segments_of(scope, 4)[2]
    files = parts.workspaces.files
    manifest = await files.manifest(identity, workspace_id)
    reply = [(b"content-type", TAR.encode()), *_SAFE, _attachment(f"{workspace_id}.tar")]
    await send_pieces(send, reply, () if scope["method"] == "HEAD" else files.archive(manifest))


async def _receive_file(
    parts: WorkspaceParts, scope: Any, receive: Any, send: Any, headers: dict[str, str], workspace_id: str, path: str
) -> None:
    identity = await parts.gate.admit(scope, headers, "run", "write_workspace_file")
    new = NewFile(path, _executable(scope), gathered(chunks_of(receive)))
    await send_bytes(send, 200, encode(await parts.workspaces.files.write(identity, workspace_id, new)))


async def _send_file(
    parts: WorkspaceParts, scope: Any, send: Any, headers: dict[str, str], workspace_id: str, path: str
) -> None:
    """Send a file of a workspace, or the target of a link."""
    identity = await parts.gate.admit(scope, headers, "read", "read_workspace_file")
    file = await parts.workspaces.files.find(identity, workspace_id, path)
    size = file.size_bytes if file.is_file else len(file.target.encode())
    reply = [
        (b"content-type", ANY.encode()),
        (b"content-length", str(size).encode()),
        (b"etag", f'"{file.sha256}"'.encode()),
        *_SAFE,
        _attachment(path.rpartition("/")[2]),
    ]
    with await asyncio.to_thread(parts.workspaces.files.open, file) as stream:
        await send_stream(send, 200, reply, stream, 0 if scope["method"] == "HEAD" else size)


# A file may be a web page with scripts. These headers keep browsers from running it as a page of this server.
_SAFE = [
    (b"cache-control", b"private, no-cache"),
    (b"content-security-policy", b"sandbox; default-src 'none'"),
]


def _attachment(name: str) -> tuple[bytes, bytes]:
    return b"content-disposition", f"attachment; filename*=UTF-8''{quote(name, safe='')}".encode()


def _executable(scope: Any) -> bool:
    """Return the value of `?executable=`, by default False. Raise InvalidParams if the query is invalid."""
    query = parse_qs(scope.get("query_string", b"").decode("latin-1"), keep_blank_values=True)
    unknown = sorted(query.keys() - {"executable"})
    if unknown:
        raise InvalidParams(f"there is no parameter {quoted(unknown[0])}", hint="PUT takes executable.")
    text = query.get("executable", ["false"])[-1]
    if text not in _YES:
        raise InvalidParams(
            f"the parameter 'executable' is {quoted(text)}", hint="Pass true or false.", param="executable"
        )
    return _YES[text]
