"""Idempotent calls: a call with the same `Idempotency-Key` gets the first answer again.

Each key is a row, so keys survive the server and are shared by all servers of a database. A row without an answer
belongs to a call that its server is making. If that server dies, `settle` ends the call: with the answer of its run,
or, if the call did not start a run, as if the call was never made.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import nullcontext
from contextvars import ContextVar
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, TypeVar

import msgspec
from sqlalchemy import ColumnElement, Connection, and_, delete, select, update
from sqlalchemy.dialects import postgresql, sqlite

from skillery.backends import Identity
from skillery.context.threads import BIG_TEXT, without_collecting
from skillery.database import Database, in_utc
from skillery.database.tables import idempotency_keys
from skillery.errors import CallUnderWay, IdempotencyKeyReused, InvalidIdempotencyKey, SkilleryError
from skillery.formats.wording import quoted

log = logging.getLogger(__name__)
T = TypeVar("T")
LONGEST_KEY = 255
KEPT = timedelta(hours=24)
RETRY_MS = 1000
NOTE_SECONDS = 1.0


class Claim(msgspec.Struct, frozen=True):
    """The right to execute a call. Its holder must call `keep` with the answer, or `release`."""

    identity: str
    key: str
    server: str


class Kept(msgspec.Struct, frozen=True):
    """The answer of an earlier call with the same key."""

    result_json: str


claimed: ContextVar[Claim | None] = ContextVar("claimed", default=None)
"""The claim of the current call, or None. If the call starts a run, the run is recorded with the claim."""

_INSERT = {
    dialect.__name__.rpartition(".")[2]: dialect.insert(idempotency_keys)
    .on_conflict_do_nothing(index_elements=["identity", "key"])
    .execution_options(preserve_rowcount=True)
    for dialect in (sqlite, postgresql)
}


def parse_key(text: str) -> str:
    """Return the key unchanged.

    Raise InvalidIdempotencyKey if the key is empty, blank, over 255 characters, or not printable ASCII.
    """
    if 1 <= len(text) <= LONGEST_KEY and text.isascii() and text.isprintable() and text.strip():
        return text
    message = f"{quoted(text)} is not an Idempotency-Key" if text else "the Idempotency-Key is empty"
    raise InvalidIdempotencyKey(
        message, hint=f"Send 1 to {LONGEST_KEY} printable ASCII characters, for example a random UUID."
    )


def digest_of(*parts: bytes) -> str:
    """Return a digest of the parts. If a part or a boundary between parts differs, the digest differs too."""
    hasher = hashlib.sha256()
    for part in parts:
        hasher.update(len(part).to_bytes(8, "big") + part)
    return hasher.hexdigest()


def canonical(params: bytes) -> bytes:
    """Return a normal form of JSON: equal values give equal bytes. JSON that cannot be re-encoded is returned
    unchanged.
    """
    try:
        with without_collecting() if len(params) > BIG_TEXT else nullcontext():
            return msgspec.json.encode(msgspec.json.decode(params), order="sorted")
    except (msgspec.MsgspecError, RecursionError, OverflowError, UnicodeError):
        return params


def claim(connection: Connection, *, identity: Identity, key: str, digest: str, server: str) -> Claim | Kept:
    """Return the right to execute the call, or the answer of the earlier call with this key. `digest` is a digest of
    method and params.

    If several callers ask at the same time, on any servers, only one gets the right. Raise CallUnderWay if the call is
    being executed. Raise IdempotencyKeyReused if the key was used for a call with another digest.
    """
    now = datetime.now(UTC)
    row = {"identity": identity.name, "key": key, "asked": digest, "server": server, "created_at": now}
    new_claim = Claim(identity.name, key, server)
    expired = and_(_is(new_claim), idempotency_keys.c.created_at < now - KEPT)
    for _ in range(2):
        if connection.execute(_INSERT[connection.dialect.name], row).rowcount:
            return new_claim
        if not connection.execute(delete(idempotency_keys).where(expired)).rowcount:
            break
    return _earlier_answer(connection, new_claim, digest)


def _earlier_answer(connection: Connection, held: Claim, digest: str) -> Kept:
    """Return the stored answer of the key. Raise IdempotencyKeyReused or CallUnderWay if `claim` does."""
    row = connection.execute(select(idempotency_keys).where(_is(held))).one_or_none()
    if row is not None and row.asked != digest:
        called_at = in_utc(row.created_at)
        raise IdempotencyKeyReused(
            f"the Idempotency-Key {quoted(held.key)} belongs to another call, made at {called_at:%Y-%m-%dT%H:%M:%SZ}",
            hint="Send the same method and params as in that call, or choose a new key for a new call.",
        )
    if row is not None and row.result_json is not None:
        return Kept(row.result_json)
    raise CallUnderWay(
        f"the call with the Idempotency-Key {quoted(held.key)} is under way",
        hint="Send it again after retry_after_ms, with the same key, to get the answer.",
        retry_after_ms=RETRY_MS,
    )


def keep(connection: Connection, claim: Claim, result_json: str) -> None:
    """Store the JSON answer of the call. The answer is kept until 24 hours after the claim."""
    connection.execute(update(idempotency_keys).where(_is_open(claim)).values(result_json=result_json))


def release(connection: Connection, claim: Claim) -> None:
    """Free the key, because the call was refused and changed nothing.

    If the call has started a run, the key is kept: it gets the answer of that run.
    """
    is_free = and_(_is_open(claim), idempotency_keys.c.run_id.is_(None))
    connection.execute(delete(idempotency_keys).where(is_free))


def note_run(connection: Connection, claim: Claim, run_id: str) -> None:
    """Record that the call has started this run. Even if the server dies, the key gets the answer of the run."""
    connection.execute(update(idempotency_keys).where(_is_open(claim)).values(run_id=run_id))


def workers(connection: Connection) -> list[str]:
    """Return the ids of servers with open calls, also of dead servers."""
    table = idempotency_keys
    return list(connection.scalars(select(table.c.server).where(table.c.result_json.is_(None)).distinct()))


def settle(
    connection: Connection, servers: Sequence[str], result_of: Callable[[str], str | None], *, only_runs: bool
) -> None:
    """End the open calls of these servers. The servers are dead, unless `only_runs` is set.

    A call that has started a run gets the answer that `result_of` returns for the run's id. If there is no run or no
    answer, the call counts as never made, and its key is freed; with `only_runs`, the call stays open.
    """
    is_unanswered = and_(idempotency_keys.c.server.in_(servers), idempotency_keys.c.result_json.is_(None))
    for row in connection.execute(select(idempotency_keys).where(is_unanswered)).all():
        claim = Claim(row.identity, row.key, row.server)
        result = result_of(row.run_id) if row.run_id else None
        if result is not None:
            keep(connection, claim, result)
        elif not only_runs:
            connection.execute(delete(idempotency_keys).where(_is_open(claim)))


def forget_keys(connection: Connection, *, limit: int) -> int:
    """Delete at most `limit` keys that are older than 24 hours. Return the number of deleted keys."""
    table = idempotency_keys
    old = select(table.c.identity, table.c.key).where(table.c.created_at < datetime.now(UTC) - KEPT)
    rows = connection.execute(old.order_by(table.c.created_at).limit(limit)).all()
    for identity, key in rows:
        connection.execute(delete(table).where(table.c.identity == identity, table.c.key == key))
    return len(rows)


class Once:
    """Executes each call with an idempotency key only once."""

    def __init__(self, database: Database, server: str) -> None:
        self._database = database
        self._server = server
        self._working: set[asyncio.Task[Any]] = set()

    async def call(self, identity: Identity, key: str, digest: str, work: Callable[[], Awaitable[bytes]]) -> bytes:
        """Return the JSON that `work` returns, or the JSON of the earlier call with this key.

        The work continues if the caller disconnects. If the work raises an error and has started no run, the key can be
        used again. Raise the errors of `claim` and `parse_key`.
        """
        outcome = await self._database.write(
            partial(claim, identity=identity, key=parse_key(key), digest=digest, server=self._server)
        )
        if isinstance(outcome, Kept):
            return outcome.result_json.encode()
        return await asyncio.shield(self._start(self._make(outcome, work)))

    async def is_answered(self, identity: Identity, key: str) -> bool:
        """Return whether a call with this key has an answer."""
        table, oldest = idempotency_keys, datetime.now(UTC) - KEPT
        is_it = and_(_is(Claim(identity.name, key, self._server)), table.c.result_json.is_not(None))
        answered = select(table.c.key).where(is_it, table.c.created_at >= oldest)
        return await self._database.read(lambda connection: connection.scalar(answered) is not None)

    def at_once(self, identity: Identity, key: str, connection: Connection, digest: str, result: bytes) -> bytes:
        """Return the stored answer for this key. If there is none, store and return `result`. Call this method in a
        transaction.

        Raise the errors of `claim` and `parse_key`.
        """
        outcome = claim(connection, identity=identity, key=parse_key(key), digest=digest, server=self._server)
        if isinstance(outcome, Kept):
            return outcome.result_json.encode()
        keep(connection, outcome, result.decode())
        return result

    async def _make(self, held: Claim, work: Callable[[], Awaitable[bytes]]) -> bytes:
        """Execute the call and store its answer. If it raises an error, release the key."""
        claimed.set(held)
        try:
            result = await work()
        except Exception:
            await self._note(partial(release, claim=held))
            raise
        await self._note(partial(keep, claim=held, result_json=result.decode()))
        return result

    async def _note(self, note: Callable[[Connection], None]) -> None:
        """Update the row of a key. Repeat this while the database is unreachable, because an open call blocks its
        key for a day.
        """
        try:
            await self._database.write(note)
        except SkilleryError:
            self._start(self._note_later(note))

    async def _note_later(self, note: Callable[[Connection], None]) -> None:
        """Repeat the write every `NOTE_SECONDS` seconds until the database accepts it."""
        while True:
            await asyncio.sleep(NOTE_SECONDS)
            try:
                return await self._database.write(note)
            except SkilleryError as error:
                log.debug("a key could not be settled: %s", error.message)

    def _start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.create_task(work)
        self._working.add(task)
        task.add_done_callback(self._working.discard)
        return task

    def close(self) -> None:
        for task in self._working:
            task.cancel()


def _is(claim: Claim) -> ColumnElement[bool]:
    return and_(idempotency_keys.c.identity == claim.identity, idempotency_keys.c.key == claim.key)


def _is_open(claim: Claim) -> ColumnElement[bool]:
    """Return the SQL condition that the call is still open and belongs to the server of the claim."""
    return and_(_is(claim), idempotency_keys.c.server == claim.server, idempotency_keys.c.result_json.is_(None))
