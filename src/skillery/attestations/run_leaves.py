"""Rows as seals cover them: records of ended runs, which are JSON texts with fixed members, their batches, and the last
advisory. Also the newest seal in a file.
"""

from __future__ import annotations

import hashlib
import logging
import os
import secrets
from collections.abc import Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Raw
from sqlalchemy import Connection, Row, Select, delete, func, insert, or_, select, update

from skillery.attestations.signing import sha256_of
from skillery.database import Database, in_utc, take_turns
from skillery.database.tables import advisories, runs, seal_spans, seals, servers, skill_versions, skills
from skillery.formats.timestamps import instant_text
from skillery.proof.dsse import ProofError
from skillery.proof.merkle import HASH_BYTES, leaf_hash
from skillery.proof.seals import RUN_LEAF_1, Position, read_seal

log = logging.getLogger(__name__)
SPAN = 1 << 32
"""The number of batches of one process."""
_VALUES = ("parent_run_id", "method", "tool", "status", "identity", "identity_kind", "duration_ms")
_TIMES = ("started_at", "begun_at", "finished_at")
_TEXTS = ("network", "limits", "used", "degraded", "environment", "workspace")
"""Members of a record that are JSON in a column."""
# These columns may change after the end of a run, or say nothing about the run.
_UNSEALED = {"version_id", "skill_id", "queued", "progress_json", "followed_until"}
_CANCELLED = {"cancel_requested_at", "cancel_requested_by"}
_ROWS: Select[Any] = (
    select(
        *(column for column in runs.c if column.name not in _UNSEALED | _CANCELLED),
        skills.c.name.label("skill_name"),
        skill_versions.c.version.label("skill_version"),
        skill_versions.c.digest,
    )
    .outerjoin(skill_versions, skill_versions.c.id == runs.c.version_id)
    .outerjoin(skills, skills.c.id == skill_versions.c.skill_id)
)


class _Error(msgspec.Struct):
    type: str


_members = msgspec.json.Decoder(dict[str, Raw])
_errors = msgspec.json.Decoder(_Error)
_syntax = msgspec.json.Decoder(Raw)


def find_ended_run(connection: Connection, run_id: str) -> Row[Any] | None:
    """Return the row of a run for `record_of`, or None if there is no such run or it has not ended."""
    return connection.execute(_ROWS.where(runs.c.id == run_id, runs.c.status != "started")).one_or_none()


def record_of(row: Row[Any]) -> bytes:
    """Return the record of an ended run: JSON with the members RUN_LEAF_1. `row` comes from `_ROWS`.

    JSON columns become part of the record without being encoded again. Return b"" if a column is not JSON: the row was
    changed in the database.
    """
    try:
        record = _record(row)
        _syntax.decode(record)
    except (msgspec.MsgspecError, UnicodeDecodeError, AttributeError):
        return b""
    return record


def _record(row: Row[Any]) -> bytes:
    members: dict[str, Any] = _members.decode(row.evidence_json or "{}")
    salt = msgspec.json.decode(members.get("salt", b'""'))
    if not members and row.digest:  # the server died in the run, so that nothing more is known
        members["mounts"] = [(row.skill_name, row.skill_version, row.digest)]
    members["run_id"] = row.id
    members["error_type"] = _errors.decode(row.error_json).type if row.error_json else None
    members["rest"] = _rest(row, salt)
    members |= {name: getattr(row, name) for name in _VALUES}
    members |= {name: instant_text(in_utc(getattr(row, name))) for name in _TIMES}
    members |= {name: Raw((getattr(row, f"{name}_json") or "null").encode()) for name in _TEXTS}
    return msgspec.json.encode({name: members.get(name) for name in RUN_LEAF_1})


def _rest(row: Row[Any], salt: str) -> str:
    """Return a digest of the columns that statements do not show. The salt keeps readers from guessing them."""
    args = row.args_json if salt else None
    log = row.logs_preview, row.logs_blob, row.log_head_bytes, row.log_dropped_bytes
    texts = (row.server, row.summary, row.output_json, row.error_json, args, *log)
    return hashlib.sha256(salt.encode() + msgspec.json.encode(texts)).hexdigest()


# -- batches -----------------------------------------------------------------------------------------------------------


def read_leaves(connection: Connection, batch: int) -> list[tuple[str, bytes]]:
    """Return ids and leaves of the ended runs of a batch, in the order of the ids. The leaf of a changed row is b""."""
    of_batch = _ROWS.where(runs.c.seal_batch == batch, runs.c.status != "started").order_by(runs.c.id)
    records = [(row.id, record_of(row)) for row in connection.execute(of_batch)]
    return [(run_id, leaf_hash(record) if record else b"") for run_id, record in records]


def split_leaves(kept: bytes) -> Sequence[bytes]:
    """Return the leaves in `seals.run_leaves`."""
    return [kept[at : at + HASH_BYTES] for at in range(0, len(kept), HASH_BYTES)]


def move_late_runs(connection: Connection, batch: int, to: int) -> int:
    """Move runs of a sealed batch that the seal does not cover to the batch `to`. Return their number.

    Such runs ended on a server that was thought to be dead, after another server had sealed its batch.
    """
    sealed = set(split_leaves(connection.scalar(select(seals.c.run_leaves).where(seals.c.batch == batch)) or b""))
    late = [run_id for run_id, leaf in read_leaves(connection, batch) if leaf not in sealed]
    for run_id in late:
        connection.execute(update(runs).where(runs.c.id == run_id).values(seal_batch=to))
    return len(late)


def forget_leaves(connection: Connection, before: datetime) -> None:
    """Delete the leaves of old seals. Their runs get no more statements. Existing statements stay valid."""
    has_leaves = seals.c.at < before, func.length(seals.c.run_leaves) > 0
    connection.execute(update(seals).where(*has_leaves).values(run_leaves=b""))


# -- spans of batch numbers --------------------------------------------------------------------------------------------


def open_span(connection: Connection, server: str, span: int | None = None) -> int:
    """Note that a process of the server has unsealed batches. Return its span, a new one unless `span` is given."""
    take_turns(connection, "seals", "")
    if span is None:
        of_runs = select(func.max(runs.c.seal_batch)).where(runs.c.seal_batch.is_not(None))
        used = [connection.scalar(newest) or 0 for newest in (select(func.max(seals.c.batch)), of_runs)]
        span = 1 + max(connection.scalar(select(func.max(seal_spans.c.id))) or 0, *(batch // SPAN for batch in used))
    elif connection.scalar(select(seal_spans.c.id).where(seal_spans.c.id == span)):
        return span
    connection.execute(insert(seal_spans).values(id=span, server=server))
    return span


def close_span(connection: Connection, span: int) -> None:
    """Note that all batches of a process are sealed."""
    connection.execute(delete(seal_spans).where(seal_spans.c.id == span))


def find_left_over(connection: Connection, server: str, own: int) -> list[int]:
    """Return the spans of dead processes, whose open runs are closed already. `own` is the span of this process."""
    is_closed = seal_spans.c.server.not_in(select(servers.c.id))
    is_predecessor = (seal_spans.c.server == server) & (seal_spans.c.id != own)
    return list(connection.scalars(select(seal_spans.c.id).where(or_(is_closed, is_predecessor))))


def find_unsealed(connection: Connection, span: int) -> list[int]:
    """Return the batches of a span that have runs and no seal."""
    in_span = runs.c.seal_batch >= span * SPAN, runs.c.seal_batch < (span + 1) * SPAN
    unsealed = select(runs.c.seal_batch).where(*in_span, runs.c.seal_batch.not_in(_SEALED)).distinct()
    return list(connection.scalars(unsealed.order_by(runs.c.seal_batch)))


_SEALED = select(seals.c.batch).where(seals.c.batch.is_not(None))


# -- advisories --------------------------------------------------------------------------------------------------------


def head_of_advisories(connection: Connection) -> Position | None:
    """Return the number and a hash of the last change of an advisory, or None without advisories. With both, a reader
    of the feed notices that a server hides the newest advisories.
    """
    columns = (advisories.c.seq, advisories.c.advisory, advisories.c.severity, advisories.c.action)
    last = select(*columns, advisories.c.withdrawn_at.is_not(None)).order_by(advisories.c.seq.desc()).limit(1)
    row = connection.execute(last).one_or_none()
    if row is None:
        return None
    seq, *facts, is_withdrawn = row
    return Position(seq, sha256_of(msgspec.json.encode([seq, *facts, bool(is_withdrawn)]).decode()))


# -- the newest seal in a file -----------------------------------------------------------------------------------------


def keep_head(database: Database, file: Path) -> None:
    """Replace the seal in `file` by the newest one: a reader finds one of both, also after a crash. Blocking.

    If the chain has another seal in place of the one in the file, its history was rewritten: keep the file, and log an
    error. Raise OSError if the file cannot be written.
    """
    kept = file.read_bytes().strip() if file.exists() else b""
    try:
        newest = database.read_now(partial(_find_newest, kept=kept))
    except ProofError as error:
        log.error("the file '%s' %s: compare it with the database, then move it away", file, error)
        return
    if newest is None:
        return
    partial_file = file.with_name(f".{file.name}.{secrets.token_hex(4)}")
    try:
        with partial_file.open("xb") as written:
            written.write(newest.encode() + b"\n")
            written.flush()
            os.fsync(written.fileno())
        partial_file.replace(file)
    finally:
        partial_file.unlink(missing_ok=True)


def _find_newest(connection: Connection, kept: bytes) -> str | None:
    """Return the envelope of the newest seal, or None without any. Raise ProofError if `kept` is not in the chain."""
    envelopes = select(seals.c.envelope).order_by(seals.c.seq.desc()).limit(1)
    if kept:
        seq = read_seal(kept).seq
        if connection.scalar(envelopes.where(seals.c.seq == seq)) != kept.decode():
            raise ProofError(f"has a seal {seq} that the database does not have: its history was rewritten")
    newest: str | None = connection.scalar(envelopes)
    return newest
