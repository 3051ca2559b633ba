"""The results of examples: what their runs returned and wrote is kept with the version, because runs are forgotten."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
from sqlalchemy import Connection, delete, exists, insert, select

from skillery import audit
from skillery.contents.blob_rows import BlobRow, output_blobs
from skillery.contents.store import record
from skillery.database import take_turns
from skillery.database.tables import RESOLVABLE, blobs, example_results, runs, skill_versions
from skillery.formats.check_results import CheckedExample
from skillery.formats.texts import new_blob_id

MOST_KEPT = 4 * 1024 * 1024
"""Bytes of the results that are kept with a version. Larger results of further examples are not kept."""


class ResultFile(msgspec.Struct, frozen=True):
    """A file of a result. `blob_id` is its id in the output, `kept_id` the blob of the server with the same content."""

    blob_id: str
    kept_id: str
    path: str | None
    kind: str
    sha256: str
    size_bytes: int
    is_output: bool
    """Whether the file is the output of the run, which was too large for an answer."""


class ExampleResult(msgspec.Struct, frozen=True):
    """What an example returned. `output_json` is None if the output is a file."""

    output_json: str | None
    files: list[ResultFile]


class LargeOutput(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The object that replaces a large output."""

    blob_id: str
    size_bytes: int
    preview: str


class PassedFile(msgspec.Struct, frozen=True):
    """A text that the run of an example wrote, with its id in the output."""

    id: str
    kind: str
    path: str | None
    content: str


class PassedResult(msgspec.Struct, frozen=True):
    """What an example returned, and the texts that it wrote."""

    output: Any
    files: list[PassedFile]


class PassedSkill(msgspec.Struct, frozen=True):
    """A bundle whose examples passed elsewhere. An example that is expected to fail has no result."""

    digest: str
    results: list[PassedResult | None]


class _Declared(msgspec.Struct):
    needs_permissions: bool = False


class _WithExamples(msgspec.Struct):
    """The examples in a stored manifest, in the order of their numbers."""

    examples: list[_Declared] = []
    tool_examples: list[_Declared] = []


def keep_results(connection: Connection, version_id: int, examples: Sequence[CheckedExample]) -> None:
    """Keep the results of the examples that passed, with copies of their files as blobs of the server.

    A result that needed permissions is not kept: every reader of the skill would see what only its callers may ask for.
    """
    manifest_json = connection.scalar(select(skill_versions.c.manifest_json).where(skill_versions.c.id == version_id))
    declared = msgspec.json.decode(manifest_json or "{}", type=_WithExamples)
    kept = set(connection.scalars(select(example_results.c.number).where(example_results.c.version_id == version_id)))
    results: dict[int, tuple[str, list[BlobRow]]] = {}
    left = MOST_KEPT
    pairs = zip([*declared.examples, *declared.tool_examples], examples, strict=False)
    for number, (example, checked) in enumerate(pairs, 1):
        if example.needs_permissions or checked.status != "passed" or not checked.run_id or number in kept:
            continue
        completed = select(runs.c.output_json).where(runs.c.id == checked.run_id, runs.c.status == "completed")
        output_json = connection.scalar(completed)
        written = output_blobs(connection, checked.run_id)
        size = len(output_json or "") + sum(blob.size_bytes for blob in written)
        if output_json is not None and size <= left:
            left -= size
            results[number] = output_json, written
    _insert_results(connection, version_id, results)


def versions_without_results(connection: Connection, passed: Iterable[PassedSkill]) -> dict[int, PassedSkill]:
    """Return the skills whose results are not kept with their version yet, by the id of the version."""
    skills = {skill.digest: skill for skill in passed}
    columns = skill_versions.c
    has_results = exists().where(example_results.c.version_id == columns.id)
    versions = select(columns.id, columns.digest).where(columns.digest.in_(skills), columns.status.in_(RESOLVABLE))
    return {version_id: skills[digest] for version_id, digest in connection.execute(versions.where(~has_results))}


def add_passed_results(connection: Connection, passed: Iterable[PassedSkill]) -> None:
    """Keep the results of these skills with their versions, for those whose results are not kept yet."""
    take_turns(connection, "example_results", "passed")  # several servers start at once
    for version_id, skill in versions_without_results(connection, passed).items():
        results: dict[int, tuple[str, list[BlobRow]]] = {}
        for number, result in enumerate(skill.results, 1):
            if result is None:
                continue
            contents = [file.content.encode() for file in result.files]
            written = [
                BlobRow(file.id, file.kind, len(data), hashlib.sha256(data).hexdigest(), True, "", path=file.path)
                for file, data in zip(result.files, contents, strict=True)
            ]
            record(connection, [(row.sha256, len(data), data) for row, data in zip(written, contents, strict=True)])
            results[number] = msgspec.json.encode(result.output).decode(), written
        _insert_results(connection, version_id, results)


def _insert_results(connection: Connection, version_id: int, results: Mapping[int, tuple[str, list[BlobRow]]]) -> None:
    """Insert the output and the written blobs of examples by number, with copies of the blobs."""
    rows: list[dict[str, Any]] = []
    copies: list[dict[str, Any]] = []
    shared = {"owner": audit.SERVER.name, "created_at": datetime.now(UTC)}
    for number, (output_json, written) in results.items():
        files = [_result_file(blob, output_json) for blob in written]
        output = None if any(file.is_output for file in files) else output_json
        files_json = msgspec.json.encode(files).decode()
        rows.append({"version_id": version_id, "number": number, "output_json": output, "files_json": files_json})
        copies += [
            {"id": file.kept_id, "kind": blob.kind, "size_bytes": blob.size_bytes, "sha256": blob.sha256}
            | {"is_text": blob.is_text, **shared}
            for file, blob in zip(files, written, strict=True)
        ]
    if copies:
        # The rows of contents are locked in one order by all writers.
        connection.execute(insert(blobs), sorted(copies, key=lambda copy: copy["sha256"]))
    if rows:
        connection.execute(insert(example_results), rows)


def _result_file(blob: BlobRow, output_json: str) -> ResultFile:
    try:
        large = msgspec.json.decode(output_json, type=LargeOutput).blob_id
    except msgspec.ValidationError:
        large = ""
    facts = blob.path, blob.kind, blob.sha256, blob.size_bytes
    return ResultFile(blob.id, new_blob_id(), *facts, is_output=blob.id == large and blob.path is None)


def read_results(connection: Connection, version_id: int | None) -> dict[int, ExampleResult]:
    """Return the kept results of a version by the number of their example."""
    rows = connection.execute(select(example_results).where(example_results.c.version_id == version_id))
    return {
        row.number: ExampleResult(row.output_json, msgspec.json.decode(row.files_json, type=list[ResultFile]))
        for row in rows
    }


def drop_results(connection: Connection, version_id: int) -> list[str]:
    """Delete the results of a version and the blobs with their files. Return the digests of the files."""
    files = [file for result in read_results(connection, version_id).values() for file in result.files]
    connection.execute(delete(blobs).where(blobs.c.id.in_([file.kept_id for file in files])))
    connection.execute(delete(example_results).where(example_results.c.version_id == version_id))
    return [file.sha256 for file in files]
