"""list_skill_usage: how often skills were read and run in the last 30 days, and by which programs they were read."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import lru_cache, partial
from typing import Annotated, Literal, NamedTuple

import msgspec
from msgspec import Meta
from sqlalchemy import Connection, bindparam, delete, exists, func, literal_column, or_, select
from sqlalchemy.dialects import postgresql, sqlite

from skillery.backends import Identity
from skillery.context.request import current
from skillery.database import Change, Statement
from skillery.database.registry import Registry
from skillery.database.tables import read_days, skills, usage_days
from skillery.formats.names import parse_namespace
from skillery.method import Cursor, Method, Params, about
from skillery.registry.cursors import NextCursor, make_cursor, read_cursor
from skillery.registry.usage import first_day
from skillery.registry.visibility import View, parameters, sees_each, view_of


class ClientReads(msgspec.Struct, frozen=True):
    """The reads of a skill by one program, as the program names itself."""

    client: str
    loads: int
    """Reads of SKILL.md, of `describe_skill` in full, and of whole versions."""
    reads: int
    """Reads of other files."""


class SkillUsage(msgspec.Struct, frozen=True):
    """The usage of a skill in the last 30 days, by all callers."""

    name: str
    loads: int
    reads: int
    runs: int
    """Ended runs, with runs that other runs started."""
    clients: list[ClientReads]


class SkillUsagePage(msgspec.Struct, frozen=True):
    """A page of skills that were read or run in the last 30 days, by name."""

    skills: list[SkillUsage]
    next_cursor: NextCursor


def read_skill_usage(
    connection: Connection,
    identity: Identity,
    key: bytes,
    *,
    namespace: str,
    never_run: bool,
    limit: int,
    cursor: str,
) -> SkillUsagePage:
    """Return the usage of skills that the identity sees and that were read or run in the last 30 days.

    `namespace` selects its skills and those of the namespaces below; "" selects all. `never_run` selects the skills
    that were read and not run. Raise InvalidCursor if the cursor belongs to another listing.
    """
    bound_to = ("list_skill_usage", namespace, str(never_run))
    [after] = read_cursor(key, bound_to, cursor, 1) if cursor else ("",)
    first = first_day().isoformat()
    # "/" follows "." in ASCII, so the names below a namespace are those between the two.
    values = {"first": first, "after": after, "below": f"{namespace}.", "past": f"{namespace}/"}
    statement = _names(view_of(identity), bool(namespace), never_run, limit + 1)
    rows = statement.rows(connection, **values, **parameters(identity))
    page = [(int(skill_id), name) for skill_id, name in rows[:limit]]
    next_cursor = None
    if len(rows) > limit:
        _, last_name = page[-1]
        next_cursor = make_cursor(key, bound_to, (last_name,))
    return SkillUsagePage(_usage(connection, page, first), next_cursor)


@lru_cache(256)
def _names(view: View | None, is_of_namespace: bool, never_run: bool, rows: int) -> Statement:
    is_read = exists().where(read_days.c.skill_id == skills.c.id, read_days.c.day >= bindparam("first"))
    is_run = exists().where(usage_days.c.skill_id == skills.c.id, usage_days.c.day >= bindparam("first"))
    statement = (
        select(skills.c.id, skills.c.name)
        .where(skills.c.name > bindparam("after"))
        .order_by(skills.c.name)
        .limit(literal_column(str(rows)))
    )
    statement = statement.where(is_read, ~is_run) if never_run else statement.where(or_(is_read, is_run))
    if is_of_namespace:
        statement = statement.where(skills.c.name >= bindparam("below"), skills.c.name < bindparam("past"))
    if view is not None:
        statement = statement.where(sees_each(view, skills, skills.c.id))
    return Statement(statement)


def _usage(connection: Connection, page: list[tuple[int, str]], first: str) -> list[SkillUsage]:
    ids = [skill_id for skill_id, _ in page]
    reads = (
        select(read_days.c.skill_id, read_days.c.client, func.sum(read_days.c.loads), func.sum(read_days.c.reads))
        .where(read_days.c.skill_id.in_(ids), read_days.c.day >= first)
        .group_by(read_days.c.skill_id, read_days.c.client)
    )
    runs = (
        select(usage_days.c.skill_id, func.sum(usage_days.c.runs))
        .where(usage_days.c.skill_id.in_(ids), usage_days.c.day >= first)
        .group_by(usage_days.c.skill_id)
    )
    clients = defaultdict[int, list[ClientReads]](list)
    for skill_id, client, loads, others in connection.execute(reads):
        clients[skill_id].append(ClientReads(client, int(loads), int(others)))
    runs_of = {skill_id: int(count) for skill_id, count in connection.execute(runs)}
    return [_of_skill(name, runs_of.get(skill_id, 0), clients[skill_id]) for skill_id, name in page]


def _of_skill(name: str, runs: int, clients: list[ClientReads]) -> SkillUsage:
    loads, reads = sum(client.loads for client in clients), sum(client.reads for client in clients)
    most_reads_first = sorted(clients, key=lambda client: (-client.loads - client.reads, client.client))
    return SkillUsage(name, loads, reads, runs, most_reads_first)


# -- list_skill_usage --------------------------------------------------------------------------------------------------


class ListSkillUsage(Params, frozen=True, kw_only=True):
    """List how often skills were read and run in the last 30 days."""

    namespace: Annotated[str, about("Only skills of this namespace and below it")] = ""
    never_run: Annotated[bool, about("Only skills that were read and not run", default=False)] = False
    limit: Annotated[int, Meta(ge=1, le=1000), about("Maximum number of skills", default=50)] = 50
    cursor: Cursor = ""


async def list_skill_usage(registry: Registry, identity: Identity, params: ListSkillUsage) -> SkillUsagePage:
    work = partial(
        read_skill_usage,
        identity=identity,
        key=registry.cursor_key,
        namespace=parse_namespace(params.namespace) if params.namespace else "",
        never_run=params.never_run,
        limit=params.limit,
        cursor=params.cursor,
    )
    return await registry.read_page(work)


METHODS = (Method(list_skill_usage, "read", audits=""),)


# -- How often programs of agents read skills, by day and program ------------------------------------------------------
# A read is counted in memory, because it must stay as quick as before. A background job and the end of the server write
# the counts. So a killed server loses the reads of its last seconds.


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
