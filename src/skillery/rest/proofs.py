"""Endpoints with which clients verify a version without trust in this server: the text of its digest, the signed
statements about it, and the keys of the registry.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec

from skillery.attestations.attestations import read_envelopes
from skillery.attestations.signing import read_chain
from skillery.errors import InvalidParams
from skillery.formats.bundle import files_text
from skillery.formats.names import parse_skill_name
from skillery.formats.version_spec import parse_version_spec
from skillery.formats.wording import quoted
from skillery.http.gate import ANONYMOUS
from skillery.http.operations import Operation, Response, in_query
from skillery.http.requests import only, query_of, segments_of
from skillery.proof import KEYS_ADDRESS
from skillery.proof.statements import TYPES
from skillery.registry.resolution import resolve
from skillery.rest.exports import (
    ASK_AGAIN,
    FOR_EVER,
    DownloadParts,
    DownloadResponse,
    cache_control,
    reader_of,
    send_download,
)
from skillery.skills.files import files_of

FILES, STATEMENTS = ".files", ".intoto.jsonl"
PREDICATE = in_query("predicate", "Only statements of this kind, for `.intoto.jsonl`.", enum=[*TYPES])
KEYS_OPERATIONS = (
    Operation(
        "GET",
        KEYS_ADDRESS,
        "The keys of the registry",
        {200: Response("The signed statements about the keys, oldest first.", dict[str, Any])},
        is_open=True,
        description="The keys that sign statements about versions. Each statement is signed by the keys before it.",
    ),
)


async def send_files_text(parts: DownloadParts, scope: Any, send: Any, headers: dict[str, str]) -> None:
    """Send the text whose SHA-256 is the digest of a version: `/skills/{name}/{version}.files`."""
    _, name, file = segments_of(scope, 3)
    identity = await reader_of(parts, scope, headers)
    spec = parse_version_spec(file.removesuffix(FILES))

    def look(connection: Any) -> tuple[str, str, bytes]:
        row = resolve(connection, identity, parse_skill_name(name), spec, manages=True)
        files = files_of(connection, row.version_id)
        return row.version, row.digest, files_text((each.path, each.sha256, each.executable) for each in files)

    version, digest, text = await parts.registry.read_page(look)
    cache = cache_control(identity, FOR_EVER if file == f"{version}{FILES}" else ASK_AGAIN)
    answer = DownloadResponse.of_bytes("text/plain; charset=utf-8", text, cache, _about(version, digest))
    await send_download(parts, scope, send, headers, answer)


async def send_statements(parts: DownloadParts, scope: Any, send: Any, headers: dict[str, str]) -> None:
    """Send the signed statements about a version, one envelope a line: `/skills/{name}/{version}.intoto.jsonl`."""
    predicate = query_of(scope, PREDICATE.name).get(PREDICATE.name, "")
    if predicate and predicate not in TYPES:
        raise InvalidParams(f"the parameter 'predicate' is {quoted(predicate)}", hint=f"Write {', '.join(TYPES)}.")
    _, name, file = segments_of(scope, 3)
    # The statements name publishers and reviewers, which callers without credentials do not see.
    identity = await parts.gate.admit_reader(scope, headers, or_anonymous=False)
    spec = parse_version_spec(file.removesuffix(STATEMENTS))
    work = partial(read_envelopes, identity=identity, name=parse_skill_name(name), spec=spec, predicate=predicate)
    row, envelopes = await parts.registry.read_page(work)
    content = "".join(f"{envelope}\n" for envelope in envelopes).encode()
    kind, cache = "application/jsonl; charset=utf-8", cache_control(identity, ASK_AGAIN)
    answer = DownloadResponse.of_bytes(kind, content, cache, _about(row.version, row.digest))
    await send_download(parts, scope, send, headers, answer)


async def send_keys(parts: DownloadParts, scope: Any, _receive: Any, send: Any, headers: dict[str, str]) -> None:
    """Send the chain of the registry's keys. Public keys need no login."""
    only(scope, "GET", "HEAD")
    statements = await parts.registry.read(read_chain)
    content = msgspec.json.encode({"statements": [msgspec.Raw(envelope.encode()) for envelope in statements]})
    answer = DownloadResponse.of_bytes("application/json", content, cache_control(ANONYMOUS, ASK_AGAIN))
    await send_download(parts, scope, send, headers, answer)


def _about(version: str, digest: str) -> list[tuple[str, str]]:
    return [("x-skillery-version", version), ("x-skillery-digest", digest)]
