"""Seals: each minute, a server signs a statement that covers all runs that it has finished, all new attestations and
the audit trail. Each seal names the one before.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
from msgspec import Meta
from sqlalchemy import Connection, Row, insert, select, update

from skillery import audit, events
from skillery.attestations.run_leaves import (
    SPAN,
    close_span,
    find_left_over,
    find_unsealed,
    forget_leaves,
    head_of_advisories,
    keep_head,
    move_late_runs,
    open_span,
    read_leaves,
)
from skillery.attestations.signing import Signing, log_changed, sealed_digest, sha256_of
from skillery.backends import Identity
from skillery.database import Database, in_utc, take_turns
from skillery.database.registry import Registry
from skillery.database.tables import attestations, key_statements, seals
from skillery.errors import SkilleryError
from skillery.formats.timestamps import instant_text
from skillery.method import Method, PageLimit, Params, about
from skillery.proof.dsse import ProofError
from skillery.proof.merkle import leaf_hash, root_of
from skillery.proof.seals import Covered, Position, Seal, make_seal, read_seal
from skillery.registry.cursors import fitting_items
from skillery.settings.versions import Seals

log = logging.getLogger(__name__)
MOST_RUNS = 5_000
"""A batch of this many runs is sealed at once."""
MOST_ATTESTATIONS = 5_000
IDLE = timedelta(hours=1)
"""A registry without changes makes a seal this often, so that a reader notices old answers."""
ATTEMPTS = 20
"""The number of attempts to write a seal while other servers write theirs."""
CLOSE_SECONDS = 10.0


class Batch:
    """Runs of this server that one seal covers."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.runs = 0
        self.unfinished = 0
        """Runs whose last transaction has not ended."""


class Sealer:
    """Makes the seals of one server, from `start` to `close`. If the registry signs nothing, there are no seals."""

    def __init__(self, database: Database, signing: Signing, server: str, settings: Seals) -> None:
        """`server` is the id of this server."""
        self._database = database
        self._signing = signing
        self._server = server
        self._settings = settings
        self._current: Batch | None = None
        self._full: deque[Batch] = deque()
        """Batches that get no more runs, oldest first."""
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._cleaned_at = self._kept_at = -IDLE.total_seconds()  # the clock may begin with the start of the machine

    async def start(self) -> None:
        """Open the first batch, and begin to seal. Call this after the server has a heartbeat."""
        if self._signing.signs:
            self._current = Batch(await self._database.write(partial(open_span, server=self._server)) * SPAN)
            self._task = asyncio.create_task(self._run())

    async def close(self) -> None:
        """Seal the finished runs of this server. If that fails, the next start seals them."""
        if self._task is None or self._current is None:
            return
        self._task.cancel()
        await asyncio.wait({self._task})
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                await self._seal_batches()
                if not self._full:
                    await self._database.write(partial(close_span, span=self._current.number // SPAN))
        except (SkilleryError, TimeoutError) as error:
            log.warning("the last runs are not sealed yet: %s", error)
        except Exception:  # a row that was changed in the database must not stop the end of the server
            log.exception("the last runs are not sealed yet")

    @contextmanager
    def batch(self, count: int = 1) -> Iterator[int | None]:
        """Context manager for the transaction that finishes `count` runs. Yield the number of their batch, or None if
        there are no seals.
        """
        batch = self._current
        if batch is None:
            yield None
            return
        batch.runs += count
        batch.unfinished += 1
        if batch.runs >= MOST_RUNS:
            self._rotate()
        try:
            yield batch.number
        finally:
            batch.unfinished -= 1
            if batch is not self._current and not batch.unfinished:
                self._wake.set()

    def _rotate(self) -> None:
        """Begin the next batch."""
        assert self._current is not None
        self._full.append(self._current)
        self._current = Batch(self._current.number + 1)

    async def _run(self) -> None:
        """Seal each time a batch is full, and each time `seconds` have passed. Repeat failed attempts."""
        due_at = time.monotonic() + self._settings.seconds
        while True:
            try:
                async with asyncio.timeout(max(0.0, due_at - time.monotonic())):
                    await self._wake.wait()
                is_due = False
            except TimeoutError:
                is_due, due_at = True, time.monotonic() + self._settings.seconds
            self._wake.clear()
            try:
                await (self._seal_all() if is_due else self._seal_full())
            except SkilleryError as error:
                log.warning("runs wait for their seal: %s", error.message)
            except OSError as error:
                log.warning("the newest seal cannot be written to '%s': %s", self._settings.file, error.strerror)
            except Exception:
                log.exception("sealing failed and will be repeated")

    async def _seal_all(self) -> None:
        """Seal the batches of this server and of dead servers. Without any, seal attestations and audit entries."""
        has_sealed = await self._seal_batches()
        has_sealed = await self._seal_left_over() or has_sealed
        if not has_sealed and await self._database.read(needs_seal):
            await self._seal(None)
        if time.monotonic() - self._cleaned_at > IDLE.total_seconds() and self._settings.keep_days:
            self._cleaned_at = time.monotonic()
            before = datetime.now(UTC) - timedelta(days=self._settings.keep_days)
            await self._database.write(partial(forget_leaves, before=before))
        if self._settings.file and time.monotonic() - self._kept_at > IDLE.total_seconds():
            await asyncio.to_thread(keep_head, self._database, Path(self._settings.file))
            self._kept_at = time.monotonic()

    async def _seal_batches(self) -> bool:
        if self._current is not None and self._current.runs:
            self._rotate()
        return await self._seal_full()

    async def _seal_full(self) -> bool:
        """Seal full batches, oldest first. Return whether there is a new seal."""
        has_sealed = False
        while self._full and not self._full[0].unfinished:
            has_sealed = await self._seal(self._full[0].number) or has_sealed
            self._full.popleft()
        return has_sealed

    async def _seal_left_over(self) -> bool:
        """Seal the batches that dead processes have left. Return whether there is a new seal."""
        assert self._current is not None
        has_sealed, own = False, self._current.number // SPAN
        for span in await self._database.read(partial(find_left_over, server=self._server, own=own)):
            for batch in await self._database.read(partial(find_unsealed, span=span)):
                has_sealed = await self._seal(batch) or has_sealed
            await self._database.write(partial(close_span, span=span))
        return has_sealed

    async def _seal(self, batch: int | None) -> bool:
        """Seal a batch, or only attestations and the audit trail. Return whether there is a new seal. Raise Busy if
        the signer cannot be reached.
        """
        for _ in range(ATTEMPTS):
            draft = await asyncio.to_thread(self._database.read_now, partial(make_draft, batch=batch))
            if batch is not None and not draft.seal.runs.count:
                return False  # the ends of its runs could not be recorded
            [envelope] = await self._signing.envelopes([make_seal(draft.seal)])
            end = await self._database.write(partial(store_seal, draft=draft, envelope=envelope))
            if end == "stored":
                return True
            if end == "sealed":
                await self._move_late(draft.batch or 0)
                return False
        log.warning("other servers were faster in %d attempts to write a seal", ATTEMPTS)
        return False

    async def _move_late(self, batch: int) -> None:
        """Move runs to a new batch. Another server has sealed their batch without them: this one seemed dead."""
        assert self._current is not None
        with self.batch(0) as to:
            moved = await self._database.write(partial(move_late_runs, batch=batch, to=to or 0))
        self._current.runs += moved
        await self._database.write(partial(open_span, server=self._server, span=self._current.number // SPAN))


# -- the chain ---------------------------------------------------------------------------------------------------------


class Draft(NamedTuple):
    """A seal before it is signed, and what it covers."""

    seal: Seal
    batch: int | None
    leaves: bytes
    attestations: Sequence[int]
    """The ids of the attestations."""


def _head(connection: Connection) -> Row[Any] | None:
    return connection.execute(select(seals).order_by(seals.c.seq.desc()).limit(1)).one_or_none()


def make_draft(connection: Connection, batch: int | None) -> Draft:
    """Return the next seal of the chain, for a batch of runs or for none."""
    head = _head(connection)
    unsealed = select(attestations).where(attestations.c.seal_seq.is_(None)).order_by(attestations.c.id)
    made = connection.execute(unsealed.limit(MOST_ATTESTATIONS)).all()
    ended = read_leaves(connection, batch) if batch is not None else []
    for run_id in (run_id for run_id, leaf in ended if not leaf):
        log_changed(f"the run {run_id}")
    leaves = [leaf for _, leaf in ended if leaf]
    keys = select(key_statements.c.sha256).order_by(key_statements.c.seq.desc()).limit(1)
    at = datetime.now(UTC)
    seal = Seal(
        seq=head.seq + 1 if head else 1,
        previous=head.sha256 if head else None,
        # Clocks of servers may differ, and times in the chain never go back.
        at=instant_text(max(at, in_utc(head.at)) if head else at),
        audit=Position(*audit.head(connection)),
        attestations=_covered([leaf_hash(sealed_digest(row)) for row in made]),
        runs=_covered(leaves),
        keys=connection.scalar(keys) or "",
        advisories=head_of_advisories(connection),
    )
    return Draft(seal, batch, b"".join(leaves), [row.id for row in made])


def _covered(leaves: Sequence[bytes]) -> Covered:
    return Covered(len(leaves), root_of(leaves).hex())


def store_seal(connection: Connection, draft: Draft, envelope: str) -> Literal["stored", "sealed", "overtaken"]:
    """Store a signed seal, with the event `seal`. Return "sealed" if its batch has a seal already, and "overtaken" if
    another seal has become the last one of the chain. Then nothing is stored.
    """
    take_turns(connection, "seals", "")
    seal, head = draft.seal, _head(connection)
    if draft.batch is not None and connection.scalar(select(seals.c.seq).where(seals.c.batch == draft.batch)):
        return "sealed"
    if (head.sha256 if head else None) != seal.previous:
        return "overtaken"
    sha256 = sha256_of(envelope)
    row = {"seq": seal.seq, "at": datetime.fromisoformat(seal.at), "previous": seal.previous, "sha256": sha256}
    more = {"envelope": envelope, "batch": draft.batch, "run_leaves": draft.leaves}
    connection.execute(insert(seals).values({**row, **more}))
    if draft.attestations:
        covered = update(attestations).where(attestations.c.id.in_(draft.attestations))
        connection.execute(covered.values(seal_seq=seal.seq))
    sent: dict[str, Any] = {
        "seq": seal.seq,
        "sha256": sha256,
        "at": seal.at,
        "runs": seal.runs.count,
        "envelope": envelope,
    }
    events.record(connection, "seal", **sent)
    return "stored"


def needs_seal(connection: Connection) -> bool:
    """Return whether there are new attestations or audit entries, or the last seal is an hour old."""
    head = _head(connection)
    if head is None or datetime.now(UTC) - in_utc(head.at) >= IDLE:
        return True
    if connection.scalar(select(attestations.c.id).where(attestations.c.seal_seq.is_(None)).limit(1)):
        return True
    try:
        return audit.head(connection).seq != read_seal(head.envelope.encode()).audit.seq
    except ProofError:
        log_changed(f"seal {head.seq}")
        return True


# -- list_seals --------------------------------------------------------------------------------------------------------


class ListedSeal(msgspec.Struct, frozen=True):
    """A seal. `previous` is the SHA-256 of the envelope before."""

    seq: int
    at: datetime
    previous: str | None
    sha256: str
    envelope: str


class SealPage(msgspec.Struct, frozen=True):
    """A page of seals, oldest first. `after` of the next page is the last `seq`."""

    seals: Sequence[ListedSeal]


class ListSeals(Params, frozen=True, kw_only=True):
    """List the seals of this registry, oldest first."""

    after: Annotated[int, Meta(ge=0, lt=1 << 62), about("Only seals behind the seal with this number")] = 0
    newest: Annotated[bool, about("Only the newest seal")] = False
    limit: PageLimit = 50


async def list_seals(registry: Registry, _: Identity, params: ListSeals) -> SealPage:
    work = partial(read_seals, after=params.after, limit=params.limit, newest=params.newest)
    return SealPage(await registry.read_page(work))


def read_seals(connection: Connection, after: int, limit: int, newest: bool = False) -> Sequence[ListedSeal]:
    """Return the seals behind the seal `after`, oldest first, at most `limit`. With `newest`, return only the last."""
    chosen = select(seals.c.seq, seals.c.at, seals.c.previous, seals.c.sha256, seals.c.envelope)
    chosen = chosen.where(seals.c.seq > after)
    ordered = chosen.order_by(seals.c.seq.desc()).limit(1) if newest else chosen.order_by(seals.c.seq).limit(limit)
    rows = connection.execute(ordered)
    return fitting_items([
        ListedSeal(row.seq, in_utc(row.at), row.previous, row.sha256, row.envelope) for row in rows
    ])  # fmt: skip


METHODS = (Method(list_seals, "read", audits=""),)
