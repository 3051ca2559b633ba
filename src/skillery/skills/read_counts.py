"""How often programs of agents read skills, by day and program.

A read is counted in memory, because it must stay as quick as before. A background job and the end of the server write
the counts. So a killed server loses the reads of its last seconds.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Literal, NamedTuple

from sqlalchemy import Connection, delete, select
from sqlalchemy.dialects import postgresql, sqlite

from skillery.context.request import current
from skillery.database import Change
from skillery.database.registry import Registry
from skillery.database.tables import read_days, skills
from skillery.registry.usage import first_day

ReadKind = Literal["loads", "reads"]
Key = tuple[str, str, str]
"""Skill, day in UTC, client."""
OTHER = "other"
MOST_CLIENTS = 50
"""Different clients that a server counts between two writes. Further ones are counted as OTHER, because a caller can
send a new name with each request.
"""
MOST_COUNTS = 20_000
"""Different keys that a server counts between two writes. Reads of further ones are not counted."""
INSTRUCTIONS = "SKILL.md"
_PRODUCT = re.compile(r"[A-Za-z][A-Za-z0-9._-]{0,63}")
_COUNTED = ("loads", "reads")
_AT_ONCE = 500

_ADD = Change(
    {
        dialect.__name__.rpartition(".")[2]: dialect.insert(read_days).on_conflict_do_update(
            index_elements=["skill_id", "day", "client"],
            set_={name: read_days.c[name] + dialect.insert(read_days).excluded[name] for name in _COUNTED},
        )
        for dialect in (sqlite, postgresql)
    },
    ("skill_id", "day", "client", *_COUNTED),
)


def client_of(agent: str) -> str:
    """Return the name of a program from its User-Agent: `claude-code` for `claude-code/2.1.330 (cli)`.

    Return "" for browsers, which people use, and for programs that do not name themselves.
    """
    match = _PRODUCT.match(agent)
    name = match[0].lower() if match else ""
    return "" if name == "mozilla" else name


class ReadCounts:
    """The reads that are not written yet. All methods run on the event loop."""

    def __init__(self) -> None:
        self._counts: dict[Key, dict[str, int]] = {}
        self._clients: set[str] = set()

    def note(self, skill: str, kind: ReadKind) -> None:
        """Count a read by the program of the current request. A program without a name is not counted."""
        request = current.get()
        client = client_of(request.agent) if request is not None else ""
        if not client:
            return
        if client not in self._clients:
            if len(self._clients) >= MOST_CLIENTS:
                client = OTHER
            self._clients.add(client)
        key = (skill, datetime.now(UTC).date().isoformat(), client)
        if key not in self._counts and len(self._counts) >= MOST_COUNTS:
            return
        counted = self._counts.setdefault(key, dict.fromkeys(_COUNTED, 0))
        counted[kind] += 1

    def note_file(self, skill: str, path: str) -> None:
        self.note(skill, "loads" if path == INSTRUCTIONS else "reads")

    def take(self) -> dict[Key, dict[str, int]]:
        """Return the counts, and begin again with none."""
        taken, self._counts = self._counts, {}
        self._clients.clear()
        return taken

    def put_back(self, counts: Mapping[Key, Mapping[str, int]]) -> None:
        """Add counts that could not be written."""
        for key, counted in counts.items():
            kept = self._counts.setdefault(key, dict.fromkeys(_COUNTED, 0))
            for name in _COUNTED:
                kept[name] += counted[name]


def add_reads(connection: Connection, counts: Mapping[Key, Mapping[str, int]]) -> None:
    """Add counts to those of the days. Counts of skills that do not exist are dropped."""
    names = sorted({skill for skill, _, _ in counts})
    ids: dict[str, int] = {}
    for at in range(0, len(names), _AT_ONCE):
        statement = select(skills.c.name, skills.c.id).where(skills.c.name.in_(names[at : at + _AT_ONCE]))
        ids |= {row.name: row.id for row in connection.execute(statement)}
    # In one order on all servers, so that two transactions cannot wait for each other.
    rows = sorted((ids[skill], day, client) for skill, day, client in counts if skill in ids)
    names_of = {skill_id: name for name, skill_id in ids.items()}
    _ADD.run_many(
        connection,
        [
            {"skill_id": skill_id, "day": day, "client": client, **counts[names_of[skill_id], day, client]}
            for skill_id, day, client in rows
        ],
    )


def forget_reads(connection: Connection) -> None:
    """Delete the days before the last 30."""
    connection.execute(delete(read_days).where(read_days.c.day < first_day().isoformat()))


class ContentParts(NamedTuple):
    """The parts of the core that the methods use which read the contents of skills."""

    registry: Registry
    reads: ReadCounts
