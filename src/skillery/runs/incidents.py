"""get_incident: what a version, a secret, an identity or a host has touched, and the commands that stop it."""

from __future__ import annotations

import shlex
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, date, datetime
from functools import partial
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, get_args

import msgspec
from msgspec import Meta
from sqlalchemy import ColumnElement, Connection, Select, and_, func, or_, select

from skillery.backends import Identity, NetworkUse
from skillery.database import in_utc
from skillery.database.registry import Registry
from skillery.database.tables import (
    RESOLVABLE,
    catalogue_hosts,
    runs,
    secret_grants,
    skill_versions,
    skills,
    use_days,
    version_steps,
)
from skillery.errors import InvalidParams, VersionNotFound
from skillery.formats.names import parse_secret_name
from skillery.formats.network import parse_network_pattern
from skillery.formats.texts import parse_identity
from skillery.formats.timestamps import parse_timestamp
from skillery.formats.wording import quoted
from skillery.method import Cursor, Method, PageLimit, Params, about
from skillery.registry.cursors import NextCursor, make_cursor
from skillery.runs.queries import LISTED, behind, position_of
from skillery.skills.figures import covering

T = TypeVar("T")
Subject = Literal["version", "secret", "identity", "host"]
SUBJECTS: tuple[Subject, ...] = get_args(Subject)
MOST_READ = 5000
"""The number of the newest runs with connections whose hosts are counted."""
MOST_CANCELLED = 20
EARLIEST = datetime(2000, 1, 1, tzinfo=UTC)


class IncidentRun(msgspec.Struct, frozen=True):
    """A run that the incident concerns."""

    run_id: str
    status: str
    skill: Annotated[str, Meta(description='The run version as name@version; "" for run_code')]
    identity: str
    client: Annotated[str, Meta(description='The program of the caller, such as claude-code; "" if unknown')]
    started_at: datetime
    hosts: Annotated[list[str], Meta(description="Hosts that the run reached")]


class IncidentCaller(msgspec.Struct, frozen=True):
    """A caller of these runs."""

    identity: str
    kind: str
    runs: int
    last_at: datetime


class IncidentVersion(msgspec.Struct, frozen=True):
    """A version that the incident concerns, with its part of the runs."""

    name: str
    version: str
    status: str
    publisher: str
    runs: int


class IncidentStep(msgspec.Struct, frozen=True):
    """A step of one of these versions, or of the identity: published, submitted, approved and so on."""

    name: str
    version: str
    step: str
    identity: str
    note: str
    at: datetime


class IncidentHost(msgspec.Struct, frozen=True):
    """A host and port that these runs connected to, or were refused."""

    host: str
    port: int
    runs: int
    refused: int
    bytes_out: int
    bytes_in: int


class IncidentCopy(msgspec.Struct, frozen=True):
    """A caller whose program has loaded a version, and may have a copy."""

    name: str
    version: str
    identity: str
    client: str
    loads: int
    last_day: date


class IncidentCommand(msgspec.Struct, frozen=True):
    command: str
    effect: str


class Incident(msgspec.Struct, frozen=True):
    """The result of get_incident. `runs` has pages, every other list at most `limit` rows."""

    subject: Subject
    name: str
    runs_total: int
    active: Annotated[int, Meta(description="Runs that have not ended")]
    first_at: datetime | None
    last_at: datetime | None
    runs: Annotated[list[IncidentRun], Meta(description="Newest first")]
    callers: Annotated[list[IncidentCaller], Meta(description="Most runs first")]
    versions: Annotated[list[IncidentVersion], Meta(description="Most runs first, then newest first")]
    approvals: Annotated[
        list[IncidentStep], Meta(description="Steps of these versions or of the identity, newest first")
    ]
    hosts: Annotated[list[IncidentHost], Meta(description="Of the newest 5,000 runs with connections; most runs first")]
    copies: Annotated[list[IncidentCopy], Meta(description="Loads of the last 35 days; newest first")]
    grants: Annotated[list[str], Meta(description="Skills and namespaces that may have the secret")]
    commands: list[IncidentCommand]
    cut: Annotated[list[str], Meta(description="Names of lists that have more rows than `limit`")]
    next_cursor: NextCursor


class GetIncident(Params, frozen=True, kw_only=True):
    """Report what a version, a secret, an identity or a host has touched, and the commands that stop it."""

    subject: Annotated[Subject, about("What is suspected: version, secret, identity or host")]
    name: Annotated[
        Annotated[str, Meta(min_length=1, max_length=600)],
        about("Its name (e.g., 'sales.report@1.2.0', 'API_KEY', 'ann', 'api.example.com', '*.example.com')"),
    ]
    since: Annotated[str, about("Only runs since then (e.g., '2026-11-22T10:00:00Z' or '24h'); \"\" for all")] = "90d"
    limit: PageLimit = 50
    cursor: Cursor = ""


class _Scope(NamedTuple):
    """The rows that an incident concerns."""

    runs: ColumnElement[bool]
    versions: Select[Any]
    """Ids of versions that belong to it, also without a run."""
    steps: ColumnElement[bool] | None = None
    """The condition for steps. None: those of the versions."""
    copies: ColumnElement[bool] | None = None


_IDS = select(skill_versions.c.id)
_NAMED = skill_versions.join(skills, skills.c.id == skill_versions.c.skill_id)
_networks = msgspec.json.Decoder(list[NetworkUse])


def _scope(connection: Connection, params: GetIncident) -> _Scope:
    """Return the rows that the params name. Raise InvalidParams or VersionNotFound."""
    name = params.name
    if "\0" in name:
        raise InvalidParams("'name' contains a NUL character", param="name")
    if params.subject == "version":
        return _scope_of_version(connection, *name.rpartition("@")[::2])
    if params.subject == "identity":
        identity = parse_identity(name)
        published = _IDS.where(skill_versions.c.publisher == identity)
        steps, copies = version_steps.c.identity == identity, use_days.c.caller == identity
        return _Scope(runs.c.identity == identity, published, steps, copies)
    if params.subject == "secret":
        # The evidence of a run has the names of its secrets between two other fields: skillery.runs.statements.
        text = parse_secret_name(name).replace("_", "\\_")
        got = runs.c.evidence_json.like(f'%"secrets":[%"{text}"%],"allowed":%', escape="\\")
        asks = _IDS.where(skill_versions.c.manifest_json.contains(f'"{name}"', autoescape=True))
        # A run has its evidence when it ends.
        return _Scope(or_(got, and_(runs.c.status == "started", runs.c.version_id.in_(asks))), asks)
    pattern = parse_network_pattern(name)
    if isinstance(pattern, str):
        raise InvalidParams(f"{quoted(name)} is no host: {pattern}", hint="Write api.example.com.", param="name")
    text = f'.{pattern.host}","port":' if pattern.wildcard else f'"host":"{pattern.host}","port":'
    reached = runs.c.network_json.contains(text, autoescape=True)
    return _Scope(reached, select(catalogue_hosts.c.version_id).where(catalogue_hosts.c.host.in_(covering(pattern))))


def _scope_of_version(connection: Connection, name: str, version: str) -> _Scope:
    ids = select(skill_versions.c.id, skill_versions.c.skill_id).select_from(_NAMED)
    row = connection.execute(ids.where(skills.c.name == name, skill_versions.c.version == version)).one_or_none()
    if row is None:
        raise VersionNotFound(f"no version is called {quoted(f'{name}@{version}')}", hint="Write NAME@VERSION.")
    # Runs of code that mounted the skill have no version of their own.
    mounted = runs.c.evidence_json.contains(f'["{name}","{version}",', autoescape=True)
    own = and_(runs.c.skill_id == row.skill_id, runs.c.version_id == row.id)
    return _Scope(or_(own, mounted), _IDS.where(skill_versions.c.id == row.id))


def read_incident(connection: Connection, *, key: bytes, params: GetIncident) -> Incident:
    """Return the report of an incident. Raise VersionNotFound, InvalidParams, or InvalidCursor."""
    scope, limit = _scope(connection, params), params.limit
    first = parse_timestamp(params.since, "since", datetime.now(UTC)) if params.since else EARLIEST
    concerned = [scope.runs, runs.c.started_at >= first]
    sums = select(func.count(), func.min(runs.c.started_at), func.max(runs.c.started_at)).where(*concerned)
    total, first_at, last_at = connection.execute(sums).one()
    active = connection.scalars(select(runs.c.id).where(*concerned, runs.c.status == "started")).all()
    listed, next_cursor = _runs(connection, key, params, concerned)
    count = func.count().label("runs")
    by_caller = select(runs.c.identity, runs.c.identity_kind, count, func.max(runs.c.started_at)).where(*concerned)
    by_caller = by_caller.group_by(runs.c.identity, runs.c.identity_kind).order_by(count.desc(), runs.c.identity)
    callers = _dated(IncidentCaller, connection.execute(by_caller.limit(limit + 1)))
    versions, ids = _versions(connection, scope, concerned, limit + 1)
    approvals, copies = _approvals(connection, scope, ids, limit + 1), _copies(connection, scope, ids, limit + 1)
    hosts = _hosts(connection, concerned)
    grantees = select(secret_grants.c.grantee).where(secret_grants.c.secret == params.name)
    grants = sorted(connection.scalars(grantees)) if params.subject == "secret" else []
    lists: dict[str, list[Any]] = {"callers": callers, "versions": versions, "approvals": approvals}
    lists |= {"hosts": hosts, "copies": copies, "grants": grants}
    bounded: dict[str, Any] = {word: rows[:limit] for word, rows in lists.items()}
    return Incident(
        subject=params.subject,
        name=params.name,
        runs_total=total,
        active=len(active),
        first_at=in_utc(first_at),
        last_at=in_utc(last_at),
        runs=listed,
        **bounded,
        commands=_commands(params, versions[:limit], grants[:limit], active[:MOST_CANCELLED]),
        cut=[word for word, rows in lists.items() if len(rows) > limit],
        next_cursor=next_cursor,
    )


def _runs(
    connection: Connection, key: bytes, params: GetIncident, concerned: Sequence[ColumnElement[bool]]
) -> tuple[list[IncidentRun], str | None]:
    """Return a page of the runs, and the cursor of the next page."""
    bound_to = ("get_incident", params.subject, params.name, params.since)
    statement = behind(LISTED.add_columns(runs.c.client, runs.c.network_json), key, bound_to, params.cursor)
    rows = connection.execute(statement.where(*concerned).limit(params.limit + 1)).all()
    page = [
        IncidentRun(
            row.id,
            row.status,
            f"{row.skill_name}@{row.skill_version}" if row.skill_name else "",
            row.identity,
            row.client,
            in_utc(row.started_at),
            sorted({use.host for use in _networks.decode(row.network_json) if use.allowed}),
        )
        for row in rows[: params.limit]
    ]
    return page, make_cursor(key, bound_to, position_of(rows[len(page) - 1])) if len(rows) > len(page) else None


def _dated(kind: Callable[..., T], rows: Iterable[Any]) -> list[T]:
    """Return the rows as values of a struct. The last column is a time."""
    return [kind(*values, in_utc(at)) for *values, at in rows]


def _versions(
    connection: Connection, scope: _Scope, concerned: Sequence[ColumnElement[bool]], most: int
) -> tuple[list[IncidentVersion], list[int]]:
    """Return the versions of the incident and their ids: those that were run, and those that belong to it anyway."""
    count = func.count()
    ran = select(runs.c.version_id, count).where(*concerned, runs.c.version_id.is_not(None))
    ran = ran.group_by(runs.c.version_id).order_by(count.desc()).limit(most)
    counts: dict[int, int] = dict(map(tuple, connection.execute(ran)))
    newest = scope.versions.order_by(scope.versions.selected_columns[0].desc()).limit(most)
    counts = counts | dict.fromkeys(set(connection.scalars(newest)) - counts.keys(), 0)
    columns = skill_versions.c.id, skill_versions.c.version, skill_versions.c.status, skill_versions.c.publisher
    statement = select(skills.c.name, *columns).select_from(_NAMED).where(skill_versions.c.id.in_(counts))
    rows = sorted(connection.execute(statement), key=lambda row: (-counts[row.id], -row.id))[:most]
    listed = [IncidentVersion(row.name, row.version, row.status, row.publisher, counts[row.id]) for row in rows]
    return listed, [row.id for row in rows]


def _approvals(connection: Connection, scope: _Scope, ids: Sequence[int], most: int) -> list[IncidentStep]:
    where = version_steps.c.version_id.in_(ids) if scope.steps is None else scope.steps
    columns = version_steps.c.step, version_steps.c.identity, version_steps.c.note, version_steps.c.created_at
    source = version_steps.join(_NAMED, skill_versions.c.id == version_steps.c.version_id)
    statement = select(skills.c.name, skill_versions.c.version, *columns).select_from(source)
    rows = connection.execute(statement.where(where).order_by(version_steps.c.id.desc()).limit(most))
    return _dated(IncidentStep, rows)


def _copies(connection: Connection, scope: _Scope, ids: Sequence[int], most: int) -> list[IncidentCopy]:
    where = use_days.c.version_id.in_(ids) if scope.copies is None else scope.copies
    loads, last = func.sum(use_days.c.loads), func.max(use_days.c.day).label("last")
    by = skills.c.name, skill_versions.c.version, use_days.c.caller, use_days.c.client
    statement = select(*by, loads, last).select_from(
        use_days.join(_NAMED, skill_versions.c.id == use_days.c.version_id)
    )
    statement = statement.where(where, use_days.c.loads > 0, use_days.c.caller != "").group_by(*by)
    rows = connection.execute(statement.order_by(last.desc(), *by).limit(most))
    return [IncidentCopy(*row[:4], int(row[4]), date.fromisoformat(row.last)) for row in rows]


def _hosts(connection: Connection, concerned: Sequence[ColumnElement[bool]]) -> list[IncidentHost]:
    """Return the hosts of the newest runs with connections."""
    newest = select(runs.c.network_json).where(*concerned, runs.c.network_json != "[]")
    newest = newest.order_by(runs.c.started_at.desc()).limit(MOST_READ)
    sums = defaultdict[tuple[str, int], list[int]](lambda: [0, 0, 0, 0])
    for text in connection.scalars(newest):
        for use in _networks.decode(text):
            counted = (int(use.allowed), int(not use.allowed), use.bytes_out, use.bytes_in)
            sums[use.host, use.port] = [a + b for a, b in zip(sums[use.host, use.port], counted, strict=True)]
    hosts = [IncidentHost(host, port, *numbers) for (host, port), numbers in sums.items()]
    return sorted(hosts, key=lambda host: (-host.runs, -host.refused, host.host, host.port))


def _commands(
    params: GetIncident, versions: Sequence[IncidentVersion], grants: Sequence[str], active: Sequence[str]
) -> list[IncidentCommand]:
    """Return the commands that stop the subject, the widest first."""
    name, commands = shlex.quote(params.name), list[tuple[str, str]]()
    if params.subject == "identity":
        commands.append((f"skillery offboard {name}", "ends its tokens, sessions and runs"))
    if params.subject == "secret":
        commands.append((f"skillery secret set {name}", "replaces the value; change it at its service first"))
        for grantee in grants:
            commands.append((f"skillery secret revoke {name} {shlex.quote(grantee)}", "no later run gets the secret"))
    commands += [(f"skillery runs cancel {run}", "stops an active run") for run in active]
    severity = "malicious" if params.subject in ("version", "identity") else "security"
    for version in versions:
        is_own = params.subject != "identity" or version.publisher == params.name
        if version.status in RESOLVABLE and is_own:
            yank = f"skillery yank {shlex.quote(f'{version.name}@{version.version}')}"
            commands.append((f"{yank} --severity {severity} --reason …", "stops all runs and downloads"))
    if params.subject == "version":
        for publisher in sorted({version.publisher for version in versions}):
            commands.append((f"skillery offboard {shlex.quote(publisher)}", "ends the publisher"))
    return [IncidentCommand(*command) for command in commands]


async def get_incident(registry: Registry, _: Identity, params: GetIncident) -> Incident:
    return await registry.read_page(partial(read_incident, key=registry.cursor_key, params=params))


METHODS = (Method(get_incident, "admin", audits=""),)
