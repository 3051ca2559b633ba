"""`POST /import`: import an archive of skills of any size, and report the outcome of each skill.

The report is one JSON document. Clients that accept `application/x-ndjson` get it line by line during the import: first
`begun`, then `skill` for each skill, then `summary`.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator
from typing import Any, BinaryIO, NamedTuple, cast, get_args
from urllib.parse import parse_qs

import msgspec

from skillery.backends import Identity
from skillery.errors import ArchiveTooLarge, InvalidParams, SkilleryError
from skillery.formats.names import parse_namespace, parse_skill_name
from skillery.formats.wording import did_you_mean, quoted
from skillery.http.exchanges import ClientGone
from skillery.http.gate import Gate
from skillery.http.operations import BINARY, JSON, Body, Operation, Response, in_query
from skillery.http.requests import BODY_SILENCE_SECONDS, HttpRefusal, chunks_of, disconnected, only, send_bytes
from skillery.importing import Begun, Importer, ImportOptions, SkillReport, Summary
from skillery.importing.finder import Nested
from skillery.importing.zips import ALLOWED_ENCODINGS
from skillery.methods.errors import INVALID_REQUEST, encode, error_object, is_refusal, plain_error, unexpected
from skillery.publishing.package_locks import Mode

# -- The query of `POST /import`: the parameters that become the options of an import ----------------------------------


MAX_PARAM = 64 * 1024
_PARAMS = {
    "namespace": "Namespace that is put before the names of all skills.",
    "permissions": "Permissions of skills without a skill.toml, as a JSON object.",
    "name": "Name of the archive. A skill at its root without a name gets this name.",
    "source": "Source of the archive. A later import finds a skill again by its source and path.",
    "default_source": "The source, if no source is stated. Without both, the source is `name`.",
    "take_over": "Names of skills of other sources that this source takes over, separated by commas.",
    "prune": "true: yank the skills that the source does not contain anymore.",
    "dry_run": "true: report what the import would do, and change nothing.",
    "review": "true: each new version waits for a review.",
    "packages": "infer: lock undeclared packages too. declared: only declared packages. newest: infer, without dates.",
    "commit_dates": "true: times in a tar are of commits. Packages are locked as of 90 days after them.",
    "commit": "Hash of the git commit with the files. With commit_dates, only skills whose files have a time get it.",
    "names": "Encoding of the names in a zip that are not UTF-8, e.g. gb18030.",
    "keep_bytes": "true: scripts keep CR LF at the ends of their lines.",
    "nested": "A SKILL.md inside of another skill: a skill (split), a file (keep), or a skill if listed (auto).",
}
_PACKAGES: dict[str, Mode] = {"infer": "lock", "declared": "off", "newest": "lock"}
MOST_TAKEN_OVER = 1000
_HASH = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
_FLAGS = {"true": True, "1": True, "false": False, "0": False, "": True}
PARAMETERS = tuple(in_query(name, description) for name, description in _PARAMS.items())


def options_of(scope: Any) -> ImportOptions:
    """Return the options of the import from the query. Raise InvalidParams or InvalidName if an option is invalid."""
    query = parse_qs(scope.get("query_string", b"").decode("latin-1"), keep_blank_values=True)
    unknown = sorted(query.keys() - set(_PARAMS))
    if unknown:
        near = did_you_mean(unknown[0], _PARAMS)
        raise InvalidParams(
            f"there is no parameter {quoted(unknown[0])}{near}", hint=f"POST /import takes {', '.join(_PARAMS)}."
        )
    fields = {key: values[-1] for key, values in query.items()}
    name = fields.get("name", "")[:200]
    stated, default = (_source(fields, key) for key in ("source", "default_source"))
    default = default or (name if name.isprintable() else "")
    if "prune" in fields and not (stated or default):
        raise InvalidParams(
            "'prune' needs 'source': 'prune' yanks skills that are gone from the source",
            hint="Give both.",
            param="prune",
        )
    return ImportOptions(
        namespace=parse_namespace(fields.get("namespace", "")),
        permissions=_permissions(fields["permissions"]) if "permissions" in fields else None,
        name=name,
        source=stated or default,
        is_default_source=not stated,
        take_over=_names(fields.get("take_over", ""), prune="prune" in fields),
        prune=_flag(fields, "prune"),
        dry_run=_flag(fields, "dry_run"),
        review=_flag(fields, "review"),
        packages=_packages(fields["packages"]) if "packages" in fields else None,
        newest=fields.get("packages") == "newest",
        commit_dates=_flag(fields, "commit_dates"),
        commit=_commit(fields.get("commit", "")),
        names=_encoding(fields["names"]) if "names" in fields else "",
        keep_bytes=_flag(fields, "keep_bytes"),
        nested=_nested(fields.get("nested", "auto")),
    )


def _source(values: dict[str, str], key: str) -> str:
    source = values.get(key, "")
    if len(source) > 200 or not source.isprintable():
        raise InvalidParams(f"the parameter '{key}' is longer than 200 characters or not printable", param=key)
    host = source.partition("://")[2].partition("/")[0]
    if "@" in host or (host and "?" in source):
        raise InvalidParams(
            f"the parameter '{key}' is an address with a user, password or query, and readers of the skill see it",
            hint="Pass the address without them.",
            param=key,
        )
    return source


def _names(text: str, *, prune: bool) -> frozenset[str]:
    """Return the names of the parameter `take_over`. Raise InvalidParams or InvalidName if they are invalid."""
    names = frozenset(parse_skill_name(name.strip()) for name in text.split(",") if name.strip())
    if names and prune:
        raise InvalidParams(
            "'take_over' and 'prune' exclude each other: a sync never takes over a name",
            hint="Import it once with 'take_over', then sync it.",
            param="take_over",
        )
    if len(names) > MOST_TAKEN_OVER:
        raise InvalidParams(
            f"'take_over' has {len(names)} names, at most {MOST_TAKEN_OVER} are allowed", param="take_over"
        )
    return names


def _commit(text: str) -> str:
    if text and not _HASH.fullmatch(text):
        raise InvalidParams(
            f"the parameter 'commit' is {quoted(text, 80)}", hint="Write the complete hash of a commit.", param="commit"
        )
    return text


def _packages(text: str) -> Mode:
    if text not in _PACKAGES:
        raise InvalidParams(
            f"the parameter 'packages' is {quoted(text)}", hint="Write infer, declared or newest.", param="packages"
        )
    return _PACKAGES[text]


def _permissions(text: str) -> dict[str, Any]:
    """Return the decoded parameter `permissions`. Raise InvalidParams if it is not a JSON object."""
    try:
        return msgspec.json.decode(text[:MAX_PARAM], type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError):
        raise InvalidParams(
            "the parameter 'permissions' is not a JSON object",
            hint='Send the [permissions] of a skill.toml as JSON, e.g. {"network": ["https://api.example.org"]}.',
            param="permissions",
        ) from None


def _flag(values: dict[str, str], key: str) -> bool:
    """Return a parameter as a bool. Raise InvalidParams if it is neither true nor false."""
    text = values.get(key, "false").lower()
    if text not in _FLAGS:
        raise InvalidParams(f"the parameter {key!r} is {quoted(text)}", hint="Write true or false.", param=key)
    return _FLAGS[text]


def _encoding(text: str) -> str:
    name = text.lower().replace("euc_", "euc-")
    if name not in ALLOWED_ENCODINGS:
        near = did_you_mean(name, ALLOWED_ENCODINGS)
        raise InvalidParams(
            f"the parameter 'names' is {quoted(text)}{near}",
            hint=f"Write one of {', '.join(sorted(ALLOWED_ENCODINGS))}.",
            param="names",
        )
    return name


def _nested(text: str) -> Nested:
    if text not in get_args(Nested):
        raise InvalidParams(
            f"the parameter 'nested' is {quoted(text)}", hint="Write auto (the default), keep or split.", param="nested"
        )
    return cast(Nested, text)


ACTION = "create_skill"
"""The action in the audit trail if an import, or one skill in it, is refused."""
LINES = "application/x-ndjson"
Object = dict[str, Any]
GATHERED_BYTES = 1024 * 1024
"""The number of bytes of the body that are written to the file at once."""
SLOWEST_BYTES = 8 * 1024
"""The number of bytes per second that an upload must reach on average.

Few imports run at the same time, so a slow upload would block others.
"""
OPERATIONS = (
    Operation(
        "POST",
        "/import",
        "Import an archive of skills of any size",
        {200: Response("A report on each skill.", Object, (JSON, LINES))},
        (400, 408, 413),
        "publish",
        description=f"Clients that accept {LINES} get the report line by line during the import.",
        parameters=PARAMETERS,
        body=Body("application/octet-stream", BINARY, "A zip, or a tar with or without compression."),
    ),
)


class ImportParts(NamedTuple):
    """The parts of the server that the endpoint for imports uses."""

    gate: Gate
    importer: Importer


async def receive_archive(parts: ImportParts, scope: Any, receive: Any, send: Any, headers: dict[str, str]) -> None:
    """Import the archive in the body, and send the report."""
    only(scope, "POST")
    identity = await parts.gate.admit(scope, headers, "publish", ACTION)
    options = options_of(scope)
    with parts.importer.receive() as file:
        await spool(receive, headers, file, parts.importer.limits.max_bytes)
        reports = parts.importer.import_archive(identity, file, options)
        gone = asyncio.create_task(disconnected(receive))
        try:
            connected_reports = _while_heard(reports, gone)
            if LINES in headers.get("accept", ""):
                await _send_lines(parts, identity, send, connected_reports)
            else:
                await _send_document(parts, identity, send, connected_reports)
        finally:
            gone.cancel()
            await reports.aclose()


async def _while_heard(reports: AsyncIterator[Any], gone: asyncio.Task[None]) -> AsyncIterator[Any]:
    """Yield the reports. Raise ClientGone if the client has disconnected, so that no further skill is imported.

    The task `gone` ends when the client disconnects.
    """
    async for report in reports:
        if gone.done():
            raise ClientGone
        yield report


async def spool(receive: Any, headers: dict[str, str], file: BinaryIO, most: int) -> None:
    """Write the request body to `file`.

    Raise ArchiveTooLarge if the body has more than `most` bytes; with a Content-Length, before the body is read. Raise
    HttpRefusal 408 if the upload is too slow. Raise ClientGone if the client disconnects.
    """
    declared = headers.get("content-length", "")
    if declared.isdecimal() and len(declared) < 20 and int(declared) > most:
        raise _too_large(most)
    size = 0
    gathered = bytearray()
    started_at = time.monotonic()
    async for chunk in chunks_of(receive):
        size += len(chunk)
        if size > most:
            raise _too_large(most)
        if is_too_slow(size, time.monotonic() - started_at):
            message = f"the archive comes with fewer than {SLOWEST_BYTES} bytes a second"
            raise HttpRefusal(408, plain_error(INVALID_REQUEST, message, "request_timeout"))
        gathered += chunk
        if len(gathered) >= GATHERED_BYTES:
            await asyncio.to_thread(file.write, bytes(gathered))
            gathered.clear()
    await asyncio.to_thread(file.write, bytes(gathered))
    await asyncio.to_thread(file.flush)


def is_too_slow(size: int, seconds: float) -> bool:
    """Return whether an upload that has sent `size` bytes in `seconds` is too slow.

    No upload is too slow in its first BODY_SILENCE_SECONDS.
    """
    return seconds > BODY_SILENCE_SECONDS and size < SLOWEST_BYTES * seconds


def _too_large(most: int) -> ArchiveTooLarge:
    return ArchiveTooLarge(
        f"the archive has more than {most} bytes",
        hint="Nothing was imported. Split the archive, or ask an admin to raise the setting imports.max_mb.",
        max_bytes=most,
    )


async def _send_document(parts: ImportParts, identity: Identity, send: Any, reports: AsyncIterator[Any]) -> None:
    """Send the report of an import as one JSON document."""
    document: dict[str, Any] = {}
    skills: list[msgspec.Raw] = []
    async for report in reports:
        key, value = _line_of(parts, identity, report)
        if key == "skill":
            skills.append(msgspec.Raw(encode(value)))
        else:
            document |= value
    total = {"total": document.pop("total")}
    begun_fields = {key: document.pop(key) for key in ("left_out", "other_files", "searched")}
    answer = {**total, **document, **begun_fields, "skills": skills}
    await send_bytes(send, 200, encode(answer))


async def _send_lines(parts: ImportParts, identity: Identity, send: Any, reports: AsyncIterator[Any]) -> None:
    """Send the report of an import line by line. An error after the first line becomes the last line."""
    started = False
    try:
        async for report in reports:
            if not started:
                head = [(b"content-type", LINES.encode()), (b"x-accel-buffering", b"no")]
                await send({"type": "http.response.start", "status": 200, "headers": head})
                started = True
            await _send_line(send, *_line_of(parts, identity, report))
    except SkilleryError as error:
        if not started:
            raise
        await _send_line(send, "error", error_object(error))
    await send({"type": "http.response.body", "body": b""})


async def _send_line(send: Any, key: str, value: Any) -> None:
    await send({"type": "http.response.body", "body": encode({key: value}) + b"\n", "more_body": True})


def _line_of(parts: ImportParts, identity: Identity, report: Begun | SkillReport | Summary) -> tuple[str, Any]:
    """Return the key and the value of a line of the report. Record a refused skill in the audit trail."""
    if isinstance(report, Begun):
        return "begun", {
            "total": report.skills,
            "left_out": report.left_out,
            "other_files": report.other_files,
            "searched": report.searched,
        }
    if isinstance(report, Summary):
        return "summary", msgspec.structs.asdict(report)
    if report.error is None:
        return "skill", report
    error = report.error
    if isinstance(error, SkilleryError):
        if is_refusal(error, "manifest"):
            parts.gate.note_refusal(identity, ACTION, report.name, error)
        return "skill", msgspec.structs.replace(report, error=error_object(error))
    return "skill", msgspec.structs.replace(report, error=unexpected(error))
