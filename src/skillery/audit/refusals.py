"""Refused attempts. They are written to the audit trail after the answer was sent.

If there are many attempts of one kind in a minute, the trail has the first ones and a count of the others.
"""

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
"""Most single entries a minute for one kind of attempt of a known identity. Of unknown callers, only the first attempt
of a
kind has a single entry.
"""
MOST_OF_ONE = 60
"""Most single entries a minute for one identity, and for all unknown callers together. So no caller can use up the
entries
of another caller.
"""
MOST_SINGLE = 600
"""Most single entries a minute for all identities together."""
MOST_KINDS = 100
"""Most kinds of attempts that are counted separately in one minute. All other kinds have one count."""
MOST_WAITING = 1000
"""Most entries in memory while the database is unreachable."""
BATCH = 100
RETRY_SECONDS = 1.0


class _Kind(NamedTuple):
    """The fields that attempts must share to be counted together."""

    identity: str | None
    network: str
    action: str
    code: int


class Refusals:
    """The refused attempts of one server. The server writes at most MOST_SINGLE + MOST_KINDS + 1 entries a minute.

    Use this class on the event loop only. `close` writes the remaining entries.
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
        """Note an attempt that was refused with this error. The method returns before the entry is written."""
        if time.monotonic() >= self._ends:
            self._end_minute()
        if self._timer is None:
            # The counts of a minute are written even if no other attempt follows.
            self._timer = asyncio.get_running_loop().call_later(MINUTE, self._tick)
        entry = entry_of(actor, action, subject, outcome="refused", code=code, error_type=error_type)
        # For a known identity the address does not matter.
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
        """Write all noted attempts. If the database is unreachable, log them."""
        self._closing.set()
        if self._timer is not None:
            self._timer.cancel()
        self._end_minute()
        while self._writing is not None:
            await self._writing
            self._writing = None
            # The attempts that were counted while too many were waiting. Those that the database refused are not tried
            # again.
            if self._counted and not self._waiting:
                self._end_minute()

    def _may_be_single(self, kind: _Kind) -> bool:
        if len(self._waiting) >= MOST_WAITING or sum(self._singles_of.values()) >= MOST_SINGLE:
            return False
        if self._singles_of[kind.identity] >= MOST_OF_ONE:
            return False
        return self._singles.get(kind, 0) < (APIECE if kind.identity else 1)

    def _count(self, kind: _Kind, entry: Entry) -> None:
        """Add an attempt to the count of its kind. The count keeps only the fields that all its attempts share."""
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
        """Write the counts of the minute, and start with new counts."""
        # If too many entries wait already, counting continues.
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
                # The same error would come again, and the entries behind this one must not wait forever.
                log.exception("%d refused attempts could not be written to the audit trail", len(batch))
            for _ in batch:
                self._waiting.popleft()

    async def _pause(self) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._closing.wait(), RETRY_SECONDS)
