"""Endpoints with which clients verify versions and runs without trust in this server: the text of a digest, signed
statements, bills of materials, seals, the keys of the registry, and the feed of advisories.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, NamedTuple

import msgspec
from litestar.openapi.spec.enums import OpenAPIType

from skillery import __version__
from skillery.attestations.attestations import read_envelopes
from skillery.attestations.origins import find_origin
from skillery.attestations.seals import read_seals
from skillery.attestations.signing import read_chain
from skillery.errors import InvalidParams, NotFound
from skillery.exports.sbom import Source, make_sbom, source_of
from skillery.formats.bundle import files_text
from skillery.formats.names import parse_skill_name
from skillery.formats.npm import NPM_LOCK
from skillery.formats.requirements import LOCK
from skillery.formats.script_blocks import script_locks
from skillery.formats.version_spec import parse_version_spec
from skillery.formats.wording import quoted
from skillery.http.gate import ANONYMOUS
from skillery.http.operations import Operation, Response, in_query
from skillery.http.requests import nothing_here, only, query_of, segments_of, send_bytes
from skillery.proof import ADVISORIES_ADDRESS, KEYS_ADDRESS, SEALS_ADDRESS
from skillery.proof.statements import TYPES
from skillery.registry.resolution import resolve
from skillery.registry.version_rows import VersionRow
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
from skillery.versions.advisories import MOST_DIGESTS, AdvisoryPage, read_advisories

FILES, STATEMENTS, SBOM, ORIGIN = ".files", ".intoto.jsonl", ".cdx.json", ".origin.json"
CYCLONEDX = "application/vnd.cyclonedx+json"
PREDICATE = in_query("predicate", "Only statements of this kind, for `.intoto.jsonl`.", enum=[*TYPES])
DISCLOSE = in_query("disclose", "`args` adds the args of the run.", enum=["args"])
AFTER_SEAL = in_query("after", "Only seals behind the seal with this number.", OpenAPIType.INTEGER)
SEALS_AT_ONCE = 1000
AFTER = in_query("after", "Only advisories that have changed after the one with this number.", OpenAPIType.INTEGER)
DIGESTS = in_query("digests", f"Only advisories about these digests, at most {MOST_DIGESTS}, separated by commas.")


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


async def send_origin(parts: DownloadParts, scope: Any, send: Any, headers: dict[str, str]) -> None:
    """Send the statements of the registry from which a mirror has copied a version, as the mirror has sent them:
    `/skills/{name}/{version}.origin.json`. Raise NotFound if there are none.
    """
    _, name, file = segments_of(scope, 3)
    identity = await parts.gate.admit_reader(scope, headers, or_anonymous=False)
    spec = parse_version_spec(file.removesuffix(ORIGIN))

    def look(connection: Any) -> tuple[VersionRow, bytes]:
        row = resolve(connection, identity, parse_skill_name(name), spec, manages=True)
        if (document := find_origin(connection, row.version_id)) is None:
            raise NotFound(
                f"'{row.name}' {row.version} has no statements of another registry",
                hint="A mirror with --keys (skillery mirror add) keeps those of the versions that it copies.",
            )
        return row, document

    row, document = await parts.registry.read_page(look)
    cache = cache_control(identity, ASK_AGAIN)
    answer = DownloadResponse.of_bytes("application/json", document, cache, _about(row.version, row.digest))
    await send_download(parts, scope, send, headers, answer)


async def send_sbom(parts: DownloadParts, scope: Any, send: Any, headers: dict[str, str]) -> None:
    """Send the bill of materials of a version: `/skills/{name}/{version}.cdx.json`."""
    _, name, file = segments_of(scope, 3)
    identity = await reader_of(parts, scope, headers)
    spec = parse_version_spec(file.removesuffix(SBOM))

    def look(connection: Any) -> tuple[VersionRow, Source, list[str]]:
        row, envelopes = read_envelopes(
            connection, identity, name=parse_skill_name(name), spec=spec, predicate="provenance"
        )
        # Like the statements themselves, callers without credentials do not see the source.
        source = Source() if identity is ANONYMOUS else source_of(row, envelopes)
        files = {file.path: file.sha256 for file in files_of(connection, row.version_id)}
        declares = bool((msgspec.json.decode(row.manifest_json).get("runtime") or {}).get("dependencies"))
        paths = [*([LOCK] if declares else []), NPM_LOCK, *script_locks(files)]
        return row, source, [files[path] for path in paths if path in files]

    row, source, digests = await parts.registry.read_page(look)
    locks = (locked for digest in digests if (locked := parts.environments.locked(digest)) is not None)
    content = await asyncio.to_thread(make_sbom, row, locks, source, __version__)
    answer = DownloadResponse.of_bytes(
        CYCLONEDX, content, cache_control(identity, ASK_AGAIN), _about(row.version, row.digest)
    )
    await send_download(parts, scope, send, headers, answer)


async def send_keys(parts: DownloadParts, scope: Any, _receive: Any, send: Any, headers: dict[str, str]) -> None:
    """Send the chain of the registry's keys. Public keys need no login."""
    only(scope, "GET", "HEAD")
    statements = await parts.registry.read(read_chain)
    content = msgspec.json.encode({"statements": [msgspec.Raw(envelope.encode()) for envelope in statements]})
    answer = DownloadResponse.of_bytes("application/json", content, cache_control(ANONYMOUS, ASK_AGAIN))
    await send_download(parts, scope, send, headers, answer)


async def send_advisories(parts: DownloadParts, scope: Any, _receive: Any, send: Any, headers: dict[str, str]) -> None:
    """Send a page of the advisories about withdrawn versions."""
    only(scope, "GET", "HEAD")
    query = query_of(scope, AFTER.name, DIGESTS.name)
    after, digests = query.get(AFTER.name, "0"), list(filter(None, query.get(DIGESTS.name, "").split(",")))
    if not (after.isascii() and after.isdigit() and len(after) < 19):
        raise InvalidParams(f"the parameter 'after' is {quoted(after)}", hint="Write the number of an advisory.")
    if len(digests) > MOST_DIGESTS:
        raise InvalidParams(
            f"the parameter 'digests' has {len(digests)} digests", hint=f"Send at most {MOST_DIGESTS} in one request."
        )
    identity = await reader_of(parts, scope, headers)
    work = partial(read_advisories, identity=identity, after=int(after), digests=digests)
    content = msgspec.json.encode(await parts.registry.read_page(work))
    answer = DownloadResponse.of_bytes("application/json", content, cache_control(identity, ASK_AGAIN))
    await send_download(parts, scope, send, headers, answer)


async def send_seals(parts: DownloadParts, scope: Any, _receive: Any, send: Any, headers: dict[str, str]) -> None:
    """Send seals, oldest first."""
    only(scope, "GET", "HEAD")
    after = query_of(scope, AFTER_SEAL.name).get(AFTER_SEAL.name, "0")
    if not (after.isascii() and after.isdecimal() and len(after) < 19):
        raise InvalidParams(f"the parameter 'after' is {quoted(after)}", hint="Pass the number of a seal.")
    identity = ANONYMOUS
    if not parts.run_statements.has_public_seals:
        identity = await parts.gate.admit(scope, headers, "read", "list_seals")
    seals = await parts.registry.read_page(partial(read_seals, after=int(after), limit=SEALS_AT_ONCE))
    content = msgspec.json.encode({"seals": [msgspec.Raw(seal.envelope.encode()) for seal in seals]})
    answer = DownloadResponse.of_bytes("application/json", content, cache_control(identity, ASK_AGAIN))
    await send_download(parts, scope, send, headers, answer)


async def send_run_statement(
    parts: DownloadParts, scope: Any, _receive: Any, send: Any, headers: dict[str, str]
) -> None:
    """Send the envelope of a statement about a run: `/v1/runs/{run_id}.intoto.json`."""
    only(scope, "GET", "HEAD")
    identity = await parts.gate.admit(scope, headers, "read", "get_run_statement")
    run_id, _, ending = segments_of(scope, 3)[2].partition(".")
    if ending != "intoto.json":
        raise nothing_here("The statement about a run is /v1/runs/{run_id}.intoto.json.")
    disclose = query_of(scope, DISCLOSE.name).get(DISCLOSE.name, "")
    if disclose not in ("", "args"):
        raise InvalidParams(f"the parameter 'disclose' is {quoted(disclose)}", hint="Write args, or leave it out.")
    statement = await parts.run_statements.make(identity, run_id, with_args=disclose == "args")
    body = statement.envelope.encode() if scope["method"] == "GET" else b""
    await send_bytes(send, 200, body, headers=[("cache-control", "no-store")])


class ProofEndpoint(NamedTuple):
    """An endpoint of this module with an address of its own. `group` is its name in metrics."""

    group: str
    endpoint: Callable[[DownloadParts, Any, Any, Any, dict[str, str]], Awaitable[None]]
    operation: Operation
    paths: tuple[str, ...] = ()


ENDPOINTS = (
    ProofEndpoint(
        KEYS_ADDRESS,
        send_keys,
        Operation(
            "GET",
            KEYS_ADDRESS,
            "The keys of the registry",
            {200: Response("The signed statements about the keys, oldest first.", dict[str, Any])},
            is_open=True,
            description="The keys that sign statements about versions. Each statement is signed by the keys before it.",
        ),
    ),
    ProofEndpoint(
        ADVISORIES_ADDRESS,
        send_advisories,
        Operation(
            "GET",
            ADVISORIES_ADDRESS,
            "Advisories about withdrawn versions",
            {200: Response("Records of OSV, in the order of their last change.", AdvisoryPage)},
            (400,),
            "read",
            description="Advisories about the skills that the caller sees, or about the given digests of any skills.",
            parameters=(AFTER, DIGESTS),
        ),
    ),
    ProofEndpoint(
        SEALS_ADDRESS,
        send_seals,
        Operation(
            "GET",
            SEALS_ADDRESS,
            "The seals of the registry",
            {200: Response(f"At most {SEALS_AT_ONCE} seals, oldest first.", dict[str, Any])},
            (400,),
            "read",
            description="Signed statements about all runs, attestations and audit entries. Each one names the one "
            "before. With the setting `seals.public`, callers need no token.",
            parameters=(AFTER_SEAL,),
        ),
    ),
    ProofEndpoint(
        "/v1/runs",
        send_run_statement,
        Operation(
            "GET",
            "/v1/runs/{run_id}.intoto.json",
            "A signed statement about a run",
            {200: Response("The envelope, which is verified with the keys of the registry alone.", dict[str, Any])},
            (400, 404, 409, 503),
            "read",
            description="The statement exists as soon as a seal covers the run. Before, the status is 503.",
            parameters=(DISCLOSE,),
            tag="Runs",
        ),
        ("/v1/runs/{file:str}",),
    ),
)


def _about(version: str, digest: str) -> list[tuple[str, str]]:
    return [("x-skillery-version", version), ("x-skillery-digest", digest)]
