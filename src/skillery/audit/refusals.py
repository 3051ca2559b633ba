"""What was refused, written after the answer is on its way; a flood of it is counted, not stored one by one."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import time
from collections import Counter, deque
from functools import partial
from typing import NamedTuple

import msgspec

from skillery.audit.entries import Actor, Entry, append, entry_of
from skillery.database import Database
from skillery.errors import Unavailable
from skillery.formats.addresses import network_of

log = logging.getLogger(__name__)

MINUTE = 60.0
APIECE = 20
"""Entries of their own that attempts of one kind get in a minute, where it is known who makes them; else the first."""
MOST_OF_ONE = 60
"""Entries of their own in a minute for one identity, and for all together of whom it is not known who they are: nobody
can hide what another does."""
MOST_SINGLE = 600
"""The same for all kinds and all identities."""
MOST_KINDS = 100
"""Kinds of attempts that are counted apart in a minute; all others are counted together."""
MOST_WAITING = 1000
"""Entries that a database which is away is waited for with."""
BATCH = 100
RETRY_SECONDS = 1.0


class _Kind(NamedTuple):
    """Attempts that are counted together."""

    identity: str | None
    network: str
    action: str
    code: int


class Refusals:
    """The refused attempts of one server. At most MOST_SINGLE + MOST_KINDS + 1 entries a minute, whatever comes.

    Used on the event loop. `close` writes what is left.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._waiting: deque[Entry] = deque()
        self._singles: dict[_Kind, int] = {}
        self._singles_of: Counter[str | None] = Counter()
        self._counted: dict[_Kind | None, Entry] = {}
        self._ends = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._writing: asyncio.Task[None] | None = None
        self._closing = asyncio.Event()

    def note(self, actor: Actor | None, action: str, subject: str, *, code: int, error_type: str) -> None:
        """An attempt that was refused with this error just now. Waits for nothing."""
        if time.monotonic() >= self._ends:
            self._end_minute()
        if self._timer is None:
            # Counts of a minute are written even where no other attempt follows.
            self._timer = asyncio.get_running_loop().call_later(MINUTE, self._tick)
        entry = entry_of(actor, action, subject, outcome="refused", code=code, error_type=error_type)
        # Where it is known who it is, it does not matter from where.
        network = "" if entry.identity else network_of(entry.address or "")
        kind = _Kind(entry.identity, network, action, code)
        if self._may_be_single(kind):
            self._singles[kind] = self._singles.get(kind, 0) + 1
            self._singles_of[entry.identity] += 1
            self._waiting.append(entry)
            self._write()
        else:
            self._count(kind, entry)

    async def close(self) -> None:
        """Everything noted is in the database when this returns, or named in the log where that is away."""
        self._closing.set()
        if self._timer is not None:
            self._timer.cancel()
        self._end_minute()
        while self._writing is not None:
            await self._writing
            self._writing = None
            # What was counted where too much was waiting; never again what the database did not take.
            if self._counted and not self._waiting:
                self._end_minute()

    def _may_be_single(self, kind: _Kind) -> bool:
        if len(self._waiting) >= MOST_WAITING or sum(self._singles_of.values()) >= MOST_SINGLE:
            return False
        if self._singles_of[kind.identity] >= MOST_OF_ONE:
            return False
        return self._singles.get(kind, 0) < (APIECE if kind.identity else 1)

    def _count(self, kind: _Kind, entry: Entry) -> None:
        """With those of its kind; what tells them apart is left out."""
        is_known = kind in self._counted or len(self._counted) < MOST_KINDS
        found = self._counted.get(kind if is_known else None)
        if found is not None:
            counted = msgspec.structs.replace(found, count=found.count + 1)
        elif is_known:
            counted = msgspec.structs.replace(entry, address=kind.network or None, request_id=None, subject="")
        else:
            counted = Entry(
                at=entry.at,
                identity=None,
                identity_kind=None,
                address=None,
                request_id=None,
                action="*",
                subject="",
                outcome="refused",
            )
        self._counted[kind if is_known else None] = counted

    def _end_minute(self) -> None:
        """What was counted is written, and counting begins anew."""
        # Where too much waits already, it is counted on.
        if len(self._waiting) < MOST_WAITING:
            self._waiting.extend(self._counted.values())
            self._counted.clear()
        self._singles.clear()
        self._singles_of.clear()
        self._ends = time.monotonic() + MINUTE
        if self._waiting:
            self._write()

    def _tick(self) -> None:
        self._timer = None
        self._end_minute()

    def _write(self) -> None:
        if self._writing is None or self._writing.done():
            self._writing = asyncio.get_running_loop().create_task(self._write_all())

    async def _write_all(self) -> None:
        while self._waiting:
            batch = list(itertools.islice(self._waiting, BATCH))
            try:
                await self._database.write(partial(append, entries=batch))
            except Unavailable as error:
                if self._closing.is_set():
                    log.error("%d refused attempts are not in the audit trail: %s", len(self._waiting), error)
                    return
                log.warning("refused attempts wait for the database: %s", error)
                await self._pause()
                continue
            except Exception:
                # Whatever it is, it would be the same again, and those behind it must not wait for ever.
                log.exception("%d refused attempts could not be written to the audit trail", len(batch))
            for _ in batch:
                self._waiting.popleft()

    async def _pause(self) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._closing.wait(), RETRY_SECONDS)
