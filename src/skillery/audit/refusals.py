"""Refused attempts, which are written to the audit trail after the answer was sent.

During a flood of attempts, most attempts are only counted: one entry stands for many attempts of the same kind.
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

from skillery.audit import Actor, AuditEntry, append, entry_of
from skillery.database import Database
from skillery.errors import Unavailable
from skillery.formats.network import network_of

log = logging.getLogger(__name__)

MINUTE = 60.0
APIECE = 20
"""Limit of the single entries per minute for one kind of attempt by a known identity. For unknown callers, the limit
is 1.
"""
MOST_OF_ONE = 60
"""Limit of the single entries per minute for one identity, and for all unknown callers together. So no caller can
use up the entries of the others.
"""
MOST_SINGLE = 600
"""Limit of the single entries per minute for all kinds and identities together."""
MOST_KINDS = 100
"""Limit of the kinds of attempts that are counted separately in one minute. All further kinds are counted together."""
MOST_WAITING = 1000
"""Limit of the entries in memory that wait for the database."""
BATCH = 100
RETRY_SECONDS = 1.0


class _Kind(NamedTuple):
    """The common fields of attempts that are counted together. `network` is "" for a known identity, and `token` is ""
    without an ended token.
    """

    identity: str | None
    network: str
    action: str
    code: int
    token: str = ""


class Refusals:
    """Writes the refused attempts of one server: at most MOST_SINGLE + MOST_KINDS + 1 entries per minute.

    Call the methods on the event loop. `close` writes the remaining entries.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._waiting: deque[AuditEntry] = deque()
        self._singles: dict[_Kind, int] = {}
        self._singles_of: Counter[str | None] = Counter()
        self._counted: dict[_Kind | None, AuditEntry] = {}
        self._ends = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._writing: asyncio.Task[None] | None = None
        self._closing = asyncio.Event()

    def note(
        self,
        actor: Actor | None,
        action: str,
        subject: str,
        *,
        code: int,
        error_type: str,
        reason: str = "",
        token: str = "",
    ) -> None:
        """Record that an attempt was refused. Return at once: a background task writes the entry.

        `actor` is None for an unknown caller. `code` and `error_type` belong to the error that the caller got. `reason`
        is a text for admins only. It must not contain a secret. `token` says how the token of the caller ended, and its
        name.
        """
        if time.monotonic() >= self._ends:
            self._end_minute()
        if self._timer is None:
            # The counts of a minute are written even if no other attempt follows.
            self._timer = asyncio.get_running_loop().call_later(MINUTE, self._tick)
        texts = {key: text for key, text in (("reason", reason), ("token", token)) if text}
        details = msgspec.json.encode(texts).decode() if texts else None
        entry = entry_of(
            actor, action, subject, outcome="refused", code=code, error_type=error_type, after_json=details
        )
        # Attempts of one identity from several addresses are one kind.
        network = "" if entry.identity else network_of(entry.address or "")
        kind = _Kind(entry.identity, network, action, code, token)
        if self._may_be_single(kind):
            self._singles[kind] = self._singles.get(kind, 0) + 1
            self._singles_of[entry.identity] += 1
            self._waiting.append(entry)
            self._write()
        else:
            self._count(kind, entry)

    async def close(self) -> None:
        """Write all recorded attempts. If the database is unavailable, log their number instead."""
        self._closing.set()
        if self._timer is not None:
            self._timer.cancel()
        self._end_minute()
        while self._writing is not None:
            await self._writing
            self._writing = None
            # Write the attempts that were only counted because too many entries were waiting. After a failure of the
            # database, entries still wait, and closing does not try again.
            if self._counted and not self._waiting:
                self._end_minute()

    def _may_be_single(self, kind: _Kind) -> bool:
        """Return whether the attempt gets its own entry: if neither the queue, the minute, the identity nor the kind
        has too many.
        """
        if len(self._waiting) >= MOST_WAITING or sum(self._singles_of.values()) >= MOST_SINGLE:
            return False
        if self._singles_of[kind.identity] >= MOST_OF_ONE:
            return False
        return self._singles.get(kind, 0) < (APIECE if kind.identity else 1)

    def _count(self, kind: _Kind, entry: AuditEntry) -> None:
        """Count the attempt with the other attempts of its kind, in one entry without subject and request id, and with
        the network as its address. If there are MOST_KINDS kinds, further kinds share one entry.
        """
        is_known = kind in self._counted or len(self._counted) < MOST_KINDS
        earlier = self._counted.get(kind if is_known else None)
        if earlier is not None:
            entry_with_count = msgspec.structs.replace(earlier, count=earlier.count + 1)
        elif is_known:
            entry_with_count = msgspec.structs.replace(
                entry,
                address=kind.network or None,
                request_id=None,
                subject="",
                after_json=entry.after_json if kind.token else None,
            )
        else:
            entry_with_count = AuditEntry(
                at=entry.at,
                identity=None,
                identity_kind=None,
                address=None,
                request_id=None,
                action="*",
                subject="",
                outcome="refused",
            )
        self._counted[kind if is_known else None] = entry_with_count

    def _end_minute(self) -> None:
        """Write an entry for each kind of counted attempts, and start counting again."""
        # If too many entries wait for the database, the counts are kept and grow further.
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
        """Write the waiting entries in batches. If the database is unavailable, try again, but log their number if
        `close` was called.
        """
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
                # A second attempt would fail too, and the later entries must not wait forever.
                log.exception("%d refused attempts could not be written to the audit trail", len(batch))
            for _ in batch:
                self._waiting.popleft()

    async def _pause(self) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._closing.wait(), RETRY_SECONDS)
