"""list_skill_usage: how often skills were read and run in the last 30 days, and by which programs they were read."""

from __future__ import annotations

from collections import defaultdict
from functools import lru_cache, partial
from typing import Annotated

import msgspec
from msgspec import Meta
from sqlalchemy import Connection, bindparam, exists, func, literal_column, or_, select

from skillery.backends import Identity
from skillery.database import Statement
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
    values = {"first": first, "after": after, "below": f"{namespace}.", "past": f"{namespace}/"}
    statement = _names(view_of(identity), bool(namespace), never_run, limit + 1)
    rows = statement.rows(connection, **values, **parameters(identity))
    page = [(int(skill_id), name) for skill_id, name in rows[:limit]]
    more = len(rows) > limit
    return SkillUsagePage(_usage(connection, page, first), make_cursor(key, bound_to, (page[-1][1],)) if more else None)


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
    return SkillUsage(
        name, loads, reads, runs, sorted(clients, key=lambda reader: (-reader.loads - reader.reads, reader.client))
    )


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
