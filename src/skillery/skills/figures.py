"""Figures: skills that reach a host, the most used skills, first skills, and `list_skill_usage`."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from functools import lru_cache, partial
from typing import Annotated

import msgspec
from msgspec import Meta
from sqlalchemy import Connection, bindparam, exists, func, literal_column, or_, select

from skillery.backends import Identity
from skillery.database import Database, Statement
from skillery.database.registry import Registry
from skillery.database.tables import catalogue, catalogue_hosts, skill_versions, skills, use_days, version_usage
from skillery.formats.names import parse_namespace
from skillery.formats.network import NetworkPattern, parse_network_pattern
from skillery.method import Cursor, Method, Params, about
from skillery.registry.cursors import NextCursor, make_cursor, read_cursor
from skillery.registry.usage import first_day
from skillery.registry.visibility import View, has_visibility, parameters, sees_each, view_of
from skillery.skills.catalogue_filters import is_listed

# -- How many published skills reach a host: what reviewers compare a new permission with ------------------------------


MOST_COUNTED = 1000


def count_host_uses(connection: Connection, identity: Identity, name: str, hosts: Sequence[str]) -> dict[str, int]:
    """Return for each host the number of other published skills that may reach it and that the identity sees.

    `hosts` are entries of `permissions.network`. `name` is the skill that is not counted. Each number is at most
    MOST_COUNTED.
    """
    return {host: _count(connection, identity, name, host) for host in hosts}


def _count(connection: Connection, identity: Identity, name: str, host: str) -> int:
    pattern = parse_network_pattern(host)
    if isinstance(pattern, str):
        return 0
    others = (
        select(catalogue.c.skill_id)
        .join_from(catalogue_hosts, catalogue, catalogue.c.version_id == catalogue_hosts.c.version_id)
        .where(catalogue_hosts.c.host.in_(covering(pattern)), is_listed(), catalogue.c.name != name)
        .distinct()
        .limit(MOST_COUNTED)
    )
    view = view_of(identity)
    if view is not None:
        others = others.where(sees_each(view, catalogue, catalogue.c.skill_id))
    counted = select(func.count()).select_from(others.subquery())
    return connection.scalar(counted, parameters(identity)) or 0


def covering(pattern: NetworkPattern) -> list[str]:
    """Return the entries that allow all hosts of `pattern`: the pattern itself, and wildcards of the domains above."""
    scheme, _, rest = pattern.text.partition("://")
    port = rest.removeprefix("*.").removeprefix(pattern.host)
    labels = pattern.host.split(".")
    above = [f"{scheme}://*.{'.'.join(labels[place:])}{port}" for place in range(1, len(labels))]
    return [pattern.text, *above]


# -- The most used skills, which new names are compared with -----------------------------------------------------------


_RUNS = func.sum(version_usage.c.runs)
_POPULAR = (
    select(skills.c.name)
    .join_from(version_usage, skill_versions, skill_versions.c.id == version_usage.c.version_id)
    .join(skills, skills.c.id == skill_versions.c.skill_id)
    .where(has_visibility("public"), skills.c.latest_version_id.is_not(None))
    .group_by(skills.c.name)
    .order_by(_RUNS.desc(), skills.c.name)
)


def popular_skills(database: Database, limit: int) -> list[str]:
    """Return the names of the public skills with the most runs, at most `limit`."""
    return database.read_now(lambda connection: list(connection.scalars(_POPULAR.limit(limit))))


# -- The question of a new server: whether a user has published a skill ------------------------------------------------


BUNDLED_BY = "skillery"
"""The identity that publishes the bundled skills."""


_OF_OTHERS = Statement(
    select(skill_versions.c.id)
    .where(skill_versions.c.publisher != literal_column(f"'{BUNDLED_BY}'"))
    .limit(literal_column("1"))
)


class FirstSkills:
    """Remembers that users have published skills: versions are never removed, so a yes is final."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._exist = False

    async def exist(self) -> bool:
        """Return whether a version exists that is not one of the bundled skills."""
        self._exist = self._exist or await self._registry.read(_has_version_of_others)
        return self._exist


def _has_version_of_others(connection: Connection) -> bool:
    return bool(_OF_OTHERS.rows(connection))


# -- list_skill_usage: how often skills were read and run in the last 30 days, and which programs read them ------------


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
    uses = use_days.c.skill_id == skills.c.id, use_days.c.day >= bindparam("first")
    is_run = exists().where(*uses, use_days.c.runs > literal_column("0"))
    is_read = exists().where(*uses, use_days.c.loads + use_days.c.reads > literal_column("0"))
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
    by_client = (
        select(
            use_days.c.skill_id, use_days.c.client, *(func.sum(use_days.c[name]) for name in ("loads", "reads", "runs"))
        )
        .where(use_days.c.skill_id.in_(ids), use_days.c.day >= first)
        .group_by(use_days.c.skill_id, use_days.c.client)
    )
    clients, runs_of = defaultdict[int, list[ClientReads]](list), Counter[int]()
    for skill_id, client, loads, reads, runs in connection.execute(by_client):
        runs_of[skill_id] += int(runs)
        if loads or reads:
            clients[skill_id].append(ClientReads(client, int(loads), int(reads)))
    return [_of_skill(name, runs_of[skill_id], clients[skill_id]) for skill_id, name in page]


def _of_skill(name: str, runs: int, clients: list[ClientReads]) -> SkillUsage:
    loads, reads = sum(client.loads for client in clients), sum(client.reads for client in clients)
    most_reads_first = sorted(clients, key=lambda client: (-client.loads - client.reads, client.client))
    return SkillUsage(name, loads, reads, runs, most_reads_first)


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
