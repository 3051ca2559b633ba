"""Reach: the hosts, secrets and required skills that skills may use, and what their runs used or were refused."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from datetime import date, datetime
from functools import partial
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
from msgspec import Meta
from sqlalchemy import ColumnElement, Connection, FromClause, exists, func, or_, select, tuple_

from skillery.backends import Identity, NetworkUse
from skillery.database import Change
from skillery.database.tables import catalogue, catalogue_hosts, reach_days, skill_versions, skills, version_closure
from skillery.formats.names import parse_namespace, parse_skill_name
from skillery.formats.network import parse_network_pattern
from skillery.identity.secret_grants import granted
from skillery.method import Cursor, Method, PageLimit, Params, about
from skillery.registry.cursors import NextCursor, make_cursor, read_cursor
from skillery.registry.requires import declared_in, seen_closures
from skillery.registry.usage import adding, day_of, first_day
from skillery.registry.uses import ContentParts
from skillery.registry.visibility import parameters, sees_each, view_of
from skillery.skills.catalogue_filters import is_listed
from skillery.skills.descriptions import RequiredSkill, required_skills
from skillery.skills.figures import covering
from skillery.skills.insight import Days, InNamespace, insight_into, require_insight

# -- What runs used: counted in the transaction that ends a run --------------------------------------------------------


Kind = Literal["host", "secret"]
MOST_TARGETS = 100
"""Targets of a skill and day. Further refused hosts count as OTHERS: code can ask for any number of names."""
OTHERS = "…"
_KEY = ("skill_id", "day", "kind", "target")
COUNTED = ("runs", "refused", "bytes_out", "bytes_in")
_ADD = Change(adding(reach_days, _KEY), (*_KEY, *COUNTED))


class Target(NamedTuple):
    """A host or secret."""

    kind: Kind
    target: str


def count_reach(
    connection: Connection,
    skill_id: int,
    network: Sequence[NetworkUse],
    secrets: Collection[str],
    finished_at: datetime,
    *,
    allowed: Sequence[str] = (),
    refused: bool = False,
) -> None:
    """Count the connections of an ended run and the secrets that it got. `allowed` is its network list, and `refused`
    says that it got no secrets.
    """
    counts = defaultdict[Target, list[int]](lambda: [0, 0, 0, 0])
    for use in network:
        target = Target("host", use.reason if use.allowed else _refused(use, allowed))
        runs, failures, bytes_out, bytes_in = counts[target]
        runs, failures = max(runs, use.allowed), max(failures, not use.allowed)
        counts[target] = [int(runs), int(failures), bytes_out + use.bytes_out, bytes_in + use.bytes_in]
    for name in secrets:
        counts[Target("secret", name)] = [int(not refused), int(refused), 0, 0]
    day = day_of(finished_at)
    if any(not use.allowed for use in network):
        counts = _bounded(connection, skill_id, day, counts)
    # In one order, so that two transactions cannot wait for each other.
    rows = [{**key._asdict(), **dict(zip(COUNTED, counts[key], strict=True))} for key in sorted(counts)]
    _ADD.run_many(connection, [{"skill_id": skill_id, "day": day, **row} for row in rows])


def _refused(use: NetworkUse, allowed: Sequence[str]) -> str:
    """Return the target of refused connections: the entry of the network list that covers the host, else the host."""
    for pattern in map(parse_network_pattern, allowed):
        if not isinstance(pattern, str) and pattern.port == use.port:
            is_below = pattern.wildcard and use.host.endswith(f".{pattern.host}")
            if is_below or (use.host == pattern.host and not pattern.wildcard):
                return pattern.text
    return use.host if use.port in {0, 80, 443} else f"{use.host}:{use.port}"


def _bounded(connection: Connection, skill_id: int, day: str, counts: Mapping[Target, list[int]]) -> Any:
    """Return the counts, with new refused hosts as OTHERS if the day has MOST_TARGETS."""
    of_day = select(reach_days.c.kind, reach_days.c.target).where(
        reach_days.c.skill_id == skill_id, reach_days.c.day == day
    )
    present = {Target(*row) for row in connection.execute(of_day)}
    bounded: dict[Target, list[int]] = {}
    for key in sorted(counts, key=lambda key: (not counts[key][0], key)):
        is_new = key not in present and not counts[key][0] and key.kind == "host"
        if is_new and len(present | bounded.keys()) >= MOST_TARGETS:
            others = Target("host", OTHERS)
            bounded[others] = [0, 1, 0, 0]
        else:
            bounded[key] = counts[key]
    return bounded


# -- list_reach --------------------------------------------------------------------------------------------------------


class Reach(msgspec.Struct, frozen=True):
    """A host or secret of a skill."""

    kind: Kind
    target: Annotated[str, Meta(description="Entry of permissions.network, refused host, or name of a secret")]
    declared: Annotated[bool, Meta(description="Whether the latest version declares it")]
    granted: Annotated[bool | None, Meta(description="Whether the skill may have the secret; null for hosts")]
    runs: Annotated[int, Meta(description="Runs that connected to the host, or got the secret")]
    refused: Annotated[int, Meta(description="Runs that were refused")]
    bytes_out: int
    bytes_in: int
    last_day: date | None


class SkillReach(msgspec.Struct, frozen=True):
    """The hosts, secrets and required skills of a skill."""

    name: str
    version: str
    reach: Annotated[list[Reach], Meta(description="Hosts, then secrets, each by name")]
    requires: Annotated[list[RequiredSkill], Meta(description="All required versions, the direct ones first")]
    requires_hidden: Annotated[int, Meta(description="Number of further required skills, which the caller may not see")]


class ReachPage(msgspec.Struct, frozen=True):
    """A page of skills with network access, secrets or required skills, by namespace and name."""

    skills: list[SkillReach]
    next_cursor: NextCursor


class ListReach(Params, frozen=True, kw_only=True):
    """List which skills may reach which hosts, secrets and other skills, and whether their runs did."""

    namespace: InNamespace = ""
    skill: Annotated[str, about("Only this skill")] = ""
    target: Annotated[
        str, about("Only skills that may reach this host, secret or skill, also by calls of required skills")
    ] = ""
    days: Days = 90
    limit: PageLimit = 50
    cursor: Cursor = ""


def read_reach(connection: Connection, identity: Identity, key: bytes, params: ListReach) -> ReachPage:
    """Return a page of the skills that the identity has insight into. Raise InvalidCursor if the cursor belongs to
    another listing.
    """
    bound_to = ("list_reach", params.namespace, params.skill, params.target, str(params.days))
    after = read_cursor(key, bound_to, params.cursor, 2) if params.cursor else ("", "")
    first = first_day(params.days).isoformat()
    uses = reach_days.c.skill_id == catalogue.c.skill_id, reach_days.c.day >= first
    requires = exists().where(version_closure.c.version_id == catalogue.c.version_id)
    where = [or_(catalogue.c.network, catalogue.c.secrets, exists().where(*uses), requires)]
    if params.target:
        where = [or_(*_reaching(identity, params.target), exists().where(*uses, reach_days.c.target == params.target))]
    if params.skill:
        where.append(catalogue.c.name == params.skill)
    order = catalogue.c.namespace, catalogue.c.name  # an index has this order
    statement = (
        select(*order, catalogue.c.skill_id, skill_versions.c.version, skill_versions.c.manifest_json)
        .add_columns(catalogue.c.version_id)
        .join_from(catalogue, skill_versions, skill_versions.c.id == catalogue.c.version_id)
        .where(is_listed(), tuple_(*order) > tuple_(*after), *where)
        .where(insight_into(identity, params.namespace, catalogue, catalogue.c.skill_id))
        .order_by(*order)
        .limit(params.limit + 1)
    )
    rows: Sequence[Any] = connection.execute(statement, parameters(identity)).all()
    page = rows[: params.limit]
    hosts, counts = _hosts(connection, page), _counts(connection, page, first)
    closures = seen_closures(connection, identity, [row.version_id for row in page])
    listed = [
        SkillReach(
            row.name,
            row.version,
            _reach(connection, row, hosts[row.version_id], counts[row.skill_id]),
            required_skills(row, closures[row.version_id].required),
            closures[row.version_id].hidden,
        )
        for row in page
    ]
    return ReachPage(listed, make_cursor(key, bound_to, page[-1][:2]) if len(rows) > len(page) else None)


_required = skill_versions.alias("required")


def _reaching(identity: Identity, target: str) -> list[Any]:
    """Return the conditions for versions that declare a host or secret, or that require a skill that the identity
    sees: the target, or one whose calls may reach the target.
    """
    pattern = parse_network_pattern(target)
    hosts = [target] if isinstance(pattern, str) else covering(pattern)
    reaches = select(catalogue_hosts.c.version_id).where(catalogue_hosts.c.host.in_(hosts))

    def declares(text: str, rows: FromClause) -> ColumnElement[bool]:
        return rows.c.manifest_json.contains(msgspec.json.encode(text).decode(), autoescape=True)

    requires = select(version_closure.c.version_id).where(
        version_closure.c.depends_on_id == _required.c.id,
        skills.c.id == _required.c.skill_id,
        or_(skills.c.name == target, *(declares(host, _required) for host in hosts)),
    )
    if (view := view_of(identity)) is not None:
        requires = requires.where(sees_each(view, skills, skills.c.id))
    # A manifest has the name of its own skill, which has a dot. Names of secrets have none.
    by_name = [catalogue.c.secrets & declares(target, skill_versions)] if "." not in target else []
    return [catalogue.c.version_id.in_(reaches), *by_name, catalogue.c.version_id.in_(requires)]


def _hosts(connection: Connection, page: Sequence[Any]) -> Mapping[int, list[str]]:
    statement = select(catalogue_hosts).where(catalogue_hosts.c.version_id.in_([row.version_id for row in page]))
    hosts = defaultdict[int, list[str]](list)
    for version_id, host in connection.execute(statement):
        hosts[version_id].append(host)
    return hosts


def _counts(connection: Connection, page: Sequence[Any], first: str) -> Mapping[int, dict[Target, Any]]:
    sums = [func.sum(reach_days.c[name]) for name in COUNTED]
    by_target = reach_days.c.skill_id, reach_days.c.kind, reach_days.c.target
    statement = select(*by_target, *sums, func.max(reach_days.c.day)).group_by(*by_target)
    among = reach_days.c.skill_id.in_([row.skill_id for row in page]), reach_days.c.day >= first
    counts = defaultdict[int, dict[Target, Any]](dict)
    for skill_id, kind, target, *values, day in connection.execute(statement.where(*among)):
        counts[skill_id][Target(kind, target)] = [*map(int, values), date.fromisoformat(day)]
    return counts


def _reach(connection: Connection, row: Any, hosts: Sequence[str], counts: Mapping[Target, Any]) -> list[Reach]:
    secrets = declared_in(row.manifest_json).permissions.secrets
    declared = {*(Target("host", host) for host in hosts), *(Target("secret", name) for name in secrets)}
    allowed = granted(connection, row.name, secrets) if secrets else ()
    return [
        Reach(
            *key,
            declared=key in declared,
            granted=key.target in allowed if key.kind == "secret" else None,
            **dict(zip((*COUNTED, "last_day"), counts.get(key, (0, 0, 0, 0, None)), strict=True)),
        )
        for key in sorted(declared | counts.keys())
    ]


async def list_reach(contents: ContentParts, identity: Identity, params: ListReach) -> ReachPage:
    require_insight(identity)
    if params.namespace:
        parse_namespace(params.namespace)
    if params.skill:
        parse_skill_name(params.skill)
    work = partial(read_reach, identity=identity, key=contents.registry.cursor_key, params=params)
    return await contents.registry.read_page(work)


class TargetReach(NamedTuple):
    """A host or secret, and the skills of a page that may use it or tried to."""

    kind: Kind
    target: str
    skills: list[str]
    runs: int
    refused: int
    last_day: date | None


def by_target(page: ReachPage) -> list[TargetReach]:
    """Return the hosts and secrets of a page of skills, those of most skills first."""
    reaches = defaultdict[tuple[Kind, str], list[tuple[str, Reach]]](list)
    for skill in page.skills:
        for reach in skill.reach:
            reaches[reach.kind, reach.target].append((skill.name, reach))
    rows = []
    for key, uses in reaches.items():
        runs, refused = (sum(getattr(reach, name) for _, reach in uses) for name in ("runs", "refused"))
        last = max((reach.last_day for _, reach in uses if reach.last_day), default=None)
        rows.append(TargetReach(*key, [name for name, _ in uses], runs, refused, last))
    return sorted(rows, key=lambda row: (-len(row.skills), row.kind, row.target))


def secrets_of(skills: Sequence[SkillReach]) -> list[str]:
    """Return the names of the secrets that skills declare or got."""
    return [reach.target for skill in skills for reach in skill.reach if reach.kind == "secret"]


METHODS = (Method(list_reach, "publish", audits=""),)
