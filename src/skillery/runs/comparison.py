"""`compare_runs`: the inputs, the values of the output and the files in which two runs differ, and rows of tables."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import partial
from itertools import islice
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
from msgspec import Meta
from sqlalchemy import Connection, Row

from skillery.backends import Identity
from skillery.contents.blob_rows import BlobRow, OutputFile, output_blobs
from skillery.database.registry import Registry
from skillery.formats.version_diffs import MOST_CHANGES, MOST_FILES, ValueChange, value_changes
from skillery.method import Method, Params, about
from skillery.runs.queries import find_run, listed
from skillery.runs.results import RunRow

_BLOB = re.compile(r"blob:\w+", re.ASCII)


class CompareRuns(Params, frozen=True, kw_only=True):
    """Compare two runs: their inputs, their output by paths, and the files that they wrote."""

    run_id: Annotated[str, about("The run's id")]
    other: Annotated[str, about("The id of the other run, which is the old one of each pair")]


class OutputFileChange(msgspec.Struct, frozen=True):
    """A file whose content differs. null: the run wrote no file with this path."""

    path: str
    old: OutputFile | None
    new: OutputFile | None


class RunsDiff(msgspec.Struct, frozen=True):
    """Result of `compare_runs`. `left_out` counts further values and files."""

    old: RunRow
    new: RunRow
    values: Annotated[list[ValueChange], Meta(description="The paths begin with inputs or output")]
    files: list[OutputFileChange]
    has_inputs: Annotated[bool, Meta(description="false: large args of a run are not kept, so no inputs are compared")]
    left_out: int


async def compare_runs(registry: Registry, identity: Identity, params: CompareRuns) -> RunsDiff:
    # Slow: the outputs are parsed.
    return await registry.read_page(partial(read_differences, identity=identity, old=params.other, new=params.run_id))


def read_differences(connection: Connection, *, identity: Identity, old: str, new: str) -> RunsDiff:
    """Return the differences of two runs. Raise the errors of `find_run`."""
    rows = [find_run(connection, identity, run_id) for run_id in (old, new)]
    written = [output_blobs(connection, row.id) for row in rows]
    has_inputs = all(row.args_json is not None for row in rows)
    before, after = (
        {"inputs": msgspec.json.decode(row.args_json if has_inputs else "null"), "output": _output(row, blobs)}
        for row, blobs in zip(rows, written, strict=True)
    )
    changes = value_changes(before, after)
    listed_changes = list(islice(changes, MOST_CHANGES))
    old_files, new_files = ({blob.path: blob for blob in blobs if blob.path is not None} for blobs in written)
    paths = sorted(
        path for path in {*old_files, *new_files} if _digest(old_files.get(path)) != _digest(new_files.get(path))
    )
    files = [
        OutputFileChange(path, _file(old_files.get(path)), _file(new_files.get(path))) for path in paths[:MOST_FILES]
    ]
    left_out = sum(1 for _ in changes) + len(paths) - len(files)
    return RunsDiff(listed(rows[0]), listed(rows[1]), listed_changes, files, has_inputs, left_out)


def _output(row: Row[Any], written: Sequence[BlobRow]) -> Any:
    """Return the output of a run. Blobs have names and digests in place of their ids, so equal contents are equal."""
    names = {blob.id: json.dumps(f"{blob.path or blob.kind} {blob.sha256[:8]}")[1:-1] for blob in written}
    return msgspec.json.decode(_BLOB.sub(lambda match: names.get(match[0], match[0]), row.output_json or "null"))


def _digest(blob: BlobRow | None) -> str:
    return blob.sha256 if blob else ""


def _file(blob: BlobRow | None) -> OutputFile | None:
    return OutputFile(blob.path or "", blob.id, blob.kind, blob.size_bytes) if blob else None


# -- Rows of two tables, by their first column -------------------------------------------------------------------------


MOST_ROWS = 500
MOST_CELL = 80


class RowChange(NamedTuple):
    """A row that differs. `cells` are pairs of an old and a new text, in the order of the head."""

    kind: Literal["added", "removed", "changed"]
    cells: list[tuple[str, str]]


class TableDiff(NamedTuple):
    """The first rows that differ of two tables. `left_out` counts further ones."""

    head: list[str]
    rows: list[RowChange]
    left_out: int


def compare_rows(
    old_head: list[str], old_rows: list[list[str]], new_head: list[str], new_rows: list[list[str]]
) -> TableDiff | None:
    """Compare two tables whose rows are as long as their heads. Rows with the same first cell are compared.

    Return None if a table has two rows with the same first cell, or if the first columns have different names.
    """
    old, new = {row[0]: row for row in old_rows}, {row[0]: row for row in new_rows}
    if len(old) < len(old_rows) or len(new) < len(new_rows) or old_head[0] != new_head[0]:
        return None
    keys = [key for key in {**new, **old} if old_head != new_head or old.get(key) != new.get(key)]
    head = list(dict.fromkeys([*new_head, *old_head]))
    rows = []
    for key in keys[:MOST_ROWS]:
        before, after = (
            dict(zip(old_head, old.get(key, ()), strict=False)),
            dict(zip(new_head, new.get(key, ()), strict=False)),
        )
        cells = [(before.get(name, "")[:MOST_CELL], after.get(name, "")[:MOST_CELL]) for name in head]
        rows.append(RowChange("changed" if before and after else "added" if after else "removed", cells))
    return TableDiff(head, rows, len(keys) - len(rows))


METHODS = (Method(compare_runs, "read", audits="", for_auditors=True),)
