"""The vectors of searches by meaning: one server computes those of new versions, and each server passes them to its
ranker.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import msgspec
from sqlalchemy import Connection, bindparam, func, or_, select, update
from sqlalchemy.dialects import postgresql, sqlite

from skillery.backends import Ranker
from skillery.database import Database
from skillery.database.leases import Lease, claim, release, renew
from skillery.database.tables import (
    audit,
    audit_head,
    event_readers,
    search_vectors,
    search_words,
    skill_versions,
    skills,
)
from skillery.errors import SkilleryError
from skillery.versions.lifecycle_steps import STEPS

log = logging.getLogger(__name__)
INDEXER = "vectors"
"""The id of the row in `event_readers` whose lease the indexing server has."""
READS_NO_EVENTS = 2**62
"""Its position: the outbox keeps no events for it."""
SECONDS = 2.0
"""Seconds between two looks for changes."""
SECONDS_AFTER_FAILURE = 30.0
CHANGES = ("create_skill", *(step.method for step in STEPS.values()))
"""The actions in the audit trail that change latest versions."""
TEXTS_AT_ONCE = 64
VECTORS_AT_ONCE = 1000
DESCRIPTION = 600
"""The number of characters of a description that a vector is made of."""

_DIALECTS = {"sqlite": sqlite, "postgresql": postgresql}
_VECTORS = search_vectors.c


class SearchVectors:
    """Keeps the vectors of one server up to date, from `start` to `close`."""

    def __init__(self, database: Database, server: str, ranker: Ranker) -> None:
        self._database = database
        self._server = server
        self._ranker = ranker
        self._tasks: list[asyncio.Task[None]] = []
        self._indexed: int | None = None
        """The number of the last audit entry whose changes have vectors. None: this server has not looked yet."""
        self._held = 0
        """The last change that the ranker of this server has."""

    async def start(self) -> None:
        await self._database.write(_add_indexer)
        self._tasks = [asyncio.create_task(_repeat(work)) for work in (self.pass_on, self.index)]

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def pass_on(self) -> None:
        """Pass the changed vectors to the ranker. If it fails, begin with all vectors next time."""
        while True:
            read = partial(_changed, revision=self._ranker.revision, after=self._held)
            rows = await asyncio.to_thread(self._database.read_now, read)
            try:
                await self._ranker.hold([(row.skill_id, row.vector) for row in rows])
            except Exception:
                self._held = 0
                raise
            if rows:
                self._held = rows[-1].changed
            if len(rows) < VECTORS_AT_ONCE:
                return

    async def index(self) -> None:
        """Store the vectors of skills whose latest version has changed, unless another server does so now."""
        # Every change of a latest version has an entry in the audit trail.
        newest, is_due = await self._database.read(partial(_newest_entry, after=self._indexed))
        if not is_due:
            self._indexed = newest
            return
        lease = await self._database.write(
            partial(claim, table=event_readers, row_id=INDEXER, server=self._server),
        )
        if lease is None:
            return
        try:
            if await self._index_all(lease):
                self._indexed = newest
        finally:
            await asyncio.shield(self._database.write(partial(release, lease=lease)))

    async def _index_all(self, lease: Lease) -> bool:
        """Store all missing vectors. Return False if the lease is lost."""
        revision, after = self._ranker.revision, 0
        while True:
            read = partial(_missing, revision=revision, after=after)
            if not (missing := await asyncio.to_thread(self._database.read_now, read)):
                return await self._database.write(partial(_forget, lease=lease))
            began_at = time.monotonic()
            vectors = await self._ranker.vectors([text for _, _, text in missing])
            rows = [
                {"skill_id": row.skill_id, "version_id": row.version_id, "revision": revision, "vector": vector}
                for row, vector in zip(missing, vectors, strict=True)
            ]
            if not await self._database.write(partial(_store, lease=lease, rows=rows)):
                return False
            after = missing[-1].skill_id
            # Half of a processor, so that requests are answered while a model reads a whole registry.
            await asyncio.sleep(time.monotonic() - began_at)


async def _repeat(work: Callable[[], Awaitable[None]]) -> None:
    while True:
        pause = SECONDS
        try:
            await work()
        except SkilleryError as error:
            log.debug("vectors of the search: %s", error.message)
        except Exception:
            log.exception("vectors of the search failed")
            pause = SECONDS_AFTER_FAILURE
        await asyncio.sleep(pause)


# -- SQL ---------------------------------------------------------------------------------------------------------------


class _Missing(NamedTuple):
    """A skill without a vector of its latest version, and the text that the vector is made of."""

    skill_id: int
    version_id: int
    text: str


class _Summary(msgspec.Struct):
    description: str
    tags: Sequence[str] = ()


_summaries = msgspec.json.Decoder(_Summary)
_MISSING = (
    select(search_words.c.skill_id, search_words.c.version_id, skills.c.name, skill_versions.c.summary_json)
    .join_from(search_words, skills, skills.c.id == search_words.c.skill_id)
    .join(skill_versions, skill_versions.c.id == search_words.c.version_id)
    .outerjoin(search_vectors, _VECTORS.skill_id == search_words.c.skill_id)
    .where(
        search_words.c.skill_id > bindparam("after"),
        or_(
            _VECTORS.version_id.is_(None),
            _VECTORS.version_id != search_words.c.version_id,
            _VECTORS.revision != bindparam("revision"),
        ),
    )
    .order_by(search_words.c.skill_id)
    .limit(TEXTS_AT_ONCE)
)


def _newest_entry(connection: Connection, after: int | None) -> tuple[int, bool]:
    """Return the number of the last audit entry, and whether an entry after `after` is a change of a version."""
    newest = int(connection.scalar(select(audit_head.c.seq)) or 0)
    if after is None or newest == after:
        return newest, after is None
    changes = audit.c.action.in_(CHANGES) & (audit.c.outcome == "done")
    return newest, connection.scalar(select(audit.c.seq).where(audit.c.seq > after, changes).limit(1)) is not None


def _add_indexer(connection: Connection) -> None:
    adding = _DIALECTS[connection.dialect.name].insert(event_readers).on_conflict_do_nothing(index_elements=["id"])
    connection.execute(adding, {"id": INDEXER, "position": READS_NO_EVENTS})


def _missing(connection: Connection, revision: str, after: int) -> list[_Missing]:
    rows = connection.execute(_MISSING, {"revision": revision, "after": after})
    return [_Missing(row.skill_id, row.version_id, text_of(row.name, row.summary_json)) for row in rows]


def text_of(name: str, summary_json: str) -> str:
    """Return the text that a vector is made of: the words of the name, the description and the tags."""
    summary = _summaries.decode(summary_json)
    words = name.rpartition(".")[2].replace("-", " ").replace("_", " ")
    return "\n".join([words, summary.description[:DESCRIPTION], ", ".join(summary.tags)]).strip()


def _store(connection: Connection, lease: Lease, rows: Sequence[dict[str, Any]]) -> bool:
    """Store vectors. Return False if the lease is lost."""
    # The row of the lease is locked until the commit, so that the numbers of changes grow in the order of commits.
    if not renew(connection, lease):
        return False
    adding = _DIALECTS[connection.dialect.name].insert(search_vectors)
    values = {name: adding.excluded[name] for name in ("version_id", "revision", "changed", "vector")}
    changed = _last_change(connection)
    numbered = [row | {"changed": changed + number} for number, row in enumerate(rows, 1)]
    connection.execute(adding.on_conflict_do_update(index_elements=["skill_id"], set_=values), numbered)
    return True


def _forget(connection: Connection, lease: Lease) -> bool:
    """Remove the vectors of skills that the search has no more. Return False if the lease is lost."""
    if not renew(connection, lease):
        return False
    searched = select(search_words.c.skill_id).where(search_words.c.skill_id == _VECTORS.skill_id)
    gone = connection.scalars(select(_VECTORS.skill_id).where(_VECTORS.version_id.is_not(None), ~searched.exists()))
    for changed, skill_id in enumerate(gone.all(), _last_change(connection) + 1):
        connection.execute(
            update(search_vectors)
            .where(_VECTORS.skill_id == skill_id)
            .values(version_id=None, vector=None, changed=changed)
        )
    return True


def _last_change(connection: Connection) -> int:
    return int(connection.scalar(select(func.max(_VECTORS.changed))) or 0)


def _changed(connection: Connection, revision: str, after: int) -> Sequence[Any]:
    """Return the next changed vectors, in the order of their numbers."""
    present = or_(_VECTORS.vector.is_(None), _VECTORS.revision == revision)
    changed = select(_VECTORS.skill_id, _VECTORS.vector, _VECTORS.changed).where(_VECTORS.changed > after, present)
    return connection.execute(changed.order_by(_VECTORS.changed).limit(VECTORS_AT_ONCE)).all()
