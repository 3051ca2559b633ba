"""add_hold, list_holds and remove_hold: legal holds, which stop retention and purges for the data that they name."""

from __future__ import annotations

import secrets
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Any, Literal

import msgspec
from sqlalchemy import (
    ARRAY,
    ColumnElement,
    CompoundSelect,
    Connection,
    ScalarSelect,
    Select,
    Text,
    and_,
    case,
    cast,
    exists,
    func,
    insert,
    not_,
    or_,
    select,
    true,
    union_all,
    update,
)

from skillery import audit
from skillery.backends import Identity
from skillery.database import in_utc, is_past
from skillery.database.registry import Registry
from skillery.database.tables import blobs, holds, runs, skills, workspace_snapshots, workspaces
from skillery.errors import Conflict, HoldNotFound, RunNotFound, SkillNotFound
from skillery.formats.texts import parse_id, parse_identity, parse_sentence
from skillery.formats.timestamps import parse_until
from skillery.formats.wording import quoted
from skillery.identity import access
from skillery.method import Given, Method, Params, Sentence, about

Kind = Literal["skill", "identity", "run"]
MOST_HOLDS = 1000


class Hold(msgspec.Struct, frozen=True):
    """A hold on a skill, an identity or a run."""

    id: str
    kind: Kind
    name: str
    reason: str
    status: Literal["live", "expired", "removed"]
    by: str
    at: datetime
    until: datetime | None
    removed_by: str | None
    removed_at: datetime | None
    removed_reason: str | None


class HoldList(msgspec.Struct, frozen=True):
    """The newest 1,000 holds, newest first."""

    holds: list[Hold]


# -- What holds keep: SQL conditions for data that a sweep may delete --------------------------------------------------


def unheld_runs() -> tuple[ColumnElement[bool], ...]:
    """Return the SQL conditions for runs that no live hold keeps."""
    return (
        runs.c.id.not_in(_held_trees()),
        runs.c.identity.not_in(_held("identity")),
        or_(runs.c.skill_id.is_(None), runs.c.skill_id.not_in(_held_skills())),
    )


def unheld_blobs(dialect: str) -> tuple[ColumnElement[bool], ...]:
    """Return the SQL conditions for blobs that no live hold keeps.

    A held identity keeps its own blobs. A held run keeps the blobs that it wrote, those that its args name, and those
    with the contents of its inputs, which the evidence of the run lists.
    """
    return (
        blobs.c.owner.not_in(_held("identity")),
        or_(blobs.c.run_id.is_(None), blobs.c.run_id.not_in(_held_runs())),
        blobs.c.id.not_in(_values_in(dialect, runs.c.args_json, "blob:[0-9A-Za-z_]+")),
        blobs.c.sha256.not_in(_values_in(dialect, runs.c.evidence_json, "[0-9a-f]{64}")),
    )


def unheld_workspaces(dialect: str, workspace_id: str | None = None) -> tuple[ColumnElement[bool], ...]:
    """Return the SQL conditions for workspaces that no live hold keeps, neither of their owner nor of their runs.

    With `workspace_id`, the conditions hold for this workspace only, and read no runs of other identities.
    """
    owner = None if workspace_id is None else _owner_of(workspace_id)
    of_workspace = workspace_snapshots.c.workspace_id == workspaces.c.id
    is_evidence = exists().where(of_workspace, not_(and_(*_unheld_by_runs(dialect, owner))))
    return workspaces.c.identity.not_in(_held("identity")), not_(is_evidence)


def unheld_snapshots(dialect: str, workspace_id: str) -> tuple[ColumnElement[bool], ...]:
    """Return the SQL conditions for snapshots of a workspace that no live hold keeps, neither of its owner nor of its
    runs.
    """
    owner = _owner_of(workspace_id)
    return owner.not_in(_held("identity")), *_unheld_by_runs(dialect, owner)


def number_of_holds() -> ScalarSelect[int]:
    """Return the number of all holds in SQL. No hold is deleted, so the number changes with each new hold."""
    return select(func.count()).select_from(holds).scalar_subquery()


def _owner_of(workspace_id: str) -> ScalarSelect[str]:
    # An alias, because a statement about workspaces must not replace the condition by its own.
    owned = workspaces.alias()
    return select(owned.c.identity).where(owned.c.id == workspace_id).scalar_subquery()


def _unheld_by_runs(dialect: str, owner: ScalarSelect[str] | None) -> tuple[ColumnElement[bool], ...]:
    """Return the SQL conditions for snapshots that no held run of their owner has saved, started with, or left."""
    saved_by, digest = workspace_snapshots.c.run_id, workspace_snapshots.c.digest
    used = _values_in(dialect, runs.c.workspace_json, "sha256:[0-9a-f]{64}", owner)
    return or_(saved_by.is_(None), saved_by.not_in(_held_runs(owner))), digest.not_in(used)


def _held(kind: Kind) -> Select[Any]:
    return select(holds.c.name).where(holds.c.kind == kind, _is_live(datetime.now(UTC)))


def _held_skills() -> Select[Any]:
    return select(skills.c.id).where(skills.c.name.in_(_held("skill")))


def _held_trees() -> Select[Any]:
    """Return the ids of the runs that holds name, and of the runs that the code of these runs has called."""
    named = select(cast(holds.c.name, Text).label("id")).where(holds.c.kind == "run", _is_live(datetime.now(UTC)))
    tree = named.cte(recursive=True)
    tree = tree.union(select(cast(runs.c.id, Text)).where(runs.c.parent_run_id == tree.c.id))
    return select(tree.c.id)


def _held_runs(owner: ScalarSelect[str] | None = None) -> CompoundSelect[Any]:
    """Return the ids of all held runs, or of those of an identity. Each part reads an index of `runs`."""
    of_owner = true() if owner is None else runs.c.identity == owner
    named = _held_trees() if owner is None else select(runs.c.id).where(of_owner, runs.c.id.in_(_held_trees()))
    of_identities = select(runs.c.id).where(of_owner, runs.c.identity.in_(_held("identity")))
    return union_all(named, of_identities, select(runs.c.id).where(of_owner, runs.c.skill_id.in_(_held_skills())))


def _values_in(
    dialect: str, column: ColumnElement[Any], pattern: str, owner: ScalarSelect[str] | None = None
) -> Select[Any]:
    """Return the texts in a JSON column of held runs, of all or of an identity, that match a regular expression.

    On SQLite, which has no regular expressions, return all texts with the first characters of the pattern.
    """
    prefix = pattern.partition("[")[0]
    of_held = runs.c.id.in_(_held_runs(owner)), column.contains(prefix)
    if dialect == "postgresql":
        # Not jsonb, which refuses JSON that callers may send: NUL characters and very large numbers.
        matches = func.regexp_matches(column, pattern, "g", type_=ARRAY(Text))
        return select(matches[1]).where(*of_held)
    tree = func.json_tree(case((func.json_valid(column) == 1, column), else_="[]")).table_valued("atom")
    return select(tree.c.atom).select_from(runs.join(tree, true())).where(*of_held, tree.c.atom.startswith(prefix))


def _is_live(now: datetime) -> ColumnElement[bool]:
    return and_(holds.c.removed_at.is_(None), or_(holds.c.until.is_(None), holds.c.until > now))


def refuse_held(connection: Connection, name: str, publisher: str, version: tuple[str, int]) -> None:
    """Raise Conflict if a live hold keeps a version: on its skill, its publisher, or a run that called or mounted it.

    `version` is its number and its id.
    """
    number, version_id = version
    mounts = runs.c.evidence_json.contains(f'["{name}","{number}",', autoescape=True)
    has_used = exists().where(runs.c.id.in_(_held_trees()), or_(runs.c.version_id == version_id, mounts))
    is_about = or_(
        and_(holds.c.kind == "skill", holds.c.name == name),
        and_(holds.c.kind == "identity", holds.c.name == publisher),
        and_(holds.c.kind == "run", has_used),
    )
    row = connection.execute(select(holds).where(is_about, _is_live(datetime.now(UTC))).limit(1)).one_or_none()
    if row is not None:
        raise Conflict(
            f"the hold {row.hold} on the {row.kind} {quoted(row.name)} keeps this version: {row.reason}",
            hint="Nothing was purged. An admin may end the hold.",
        )


# -- add_hold ----------------------------------------------------------------------------------------------------------


class AddHold(Params, frozen=True, kw_only=True):
    """Keep the runs, blobs, workspaces and versions of a skill, an identity or a run until the hold ends."""

    kind: Annotated[Kind, about("What the hold names")]
    name: Annotated[Given, about("Name of the skill or identity, or id of the run")]
    reason: Annotated[Sentence, about("Reason, for admins")]
    until: Annotated[Given, about("End of the hold: '2027-01-31', a time, or '90d'; omit for no end")] = ""


async def add_hold(registry: Registry, identity: Identity, params: AddHold) -> Hold:
    reason = parse_sentence(params.reason, "reason")
    until = parse_until(params.until, datetime.now(UTC))
    work = partial(_add, identity=identity, kind=params.kind, name=params.name, reason=reason, until=until)
    return await registry.write(work)


def _add(
    connection: Connection, *, identity: Identity, kind: Kind, name: str, reason: str, until: datetime | None
) -> Hold:
    """Insert a hold, and return it. Raise SkillNotFound or RunNotFound if there is no such skill or run."""
    access.require(identity, "admin")
    parse_identity(name)
    if kind == "skill" and connection.scalar(select(skills.c.id).where(skills.c.name == name)) is None:
        raise SkillNotFound(f"there is no skill {quoted(name)}", hint="list_skills shows all skills.", name=name)
    if kind == "run" and connection.scalar(select(runs.c.id).where(runs.c.id == name)) is None:
        raise RunNotFound(f"there is no run {quoted(name)}", hint="list_runs shows all runs.", run_id=name)
    values = {"hold": f"hold_{secrets.token_hex(8)}", "kind": kind, "name": name, "reason": reason, "until": until}
    by = {"identity": identity.name, "identity_kind": identity.kind, "created_at": datetime.now(UTC)}
    connection.execute(insert(holds).values(**values, **by))
    hold = _find(connection, values["hold"])
    after = {"id": hold.id, "kind": kind, "reason": reason, **({"until": until.isoformat()} if until else {})}
    audit.record(connection, identity, "add_hold", name, after=after)
    return hold


# -- list_holds --------------------------------------------------------------------------------------------------------


class ListHolds(Params, frozen=True, kw_only=True):
    """List holds, also those that have ended."""

    live: Annotated[bool, about("Only holds that have not ended", default=False)] = False


async def list_holds(registry: Registry, identity: Identity, params: ListHolds) -> HoldList:
    return await registry.read(partial(_list, is_live=params.live))


def _list(connection: Connection, *, is_live: bool) -> HoldList:
    newest = select(holds).order_by(holds.c.id.desc()).limit(MOST_HOLDS)
    now = datetime.now(UTC)
    return HoldList([_hold(row, now) for row in connection.execute(newest.where(_is_live(now)) if is_live else newest)])


# -- remove_hold -------------------------------------------------------------------------------------------------------


class RemoveHold(Params, frozen=True, kw_only=True):
    """End a hold. Retention and purges then apply again."""

    id: Annotated[Given, about("Id of the hold")]
    reason: Annotated[Sentence, about("Reason, for admins")]


async def remove_hold(registry: Registry, identity: Identity, params: RemoveHold) -> Hold:
    hold_id, reason = parse_id(params.id), parse_sentence(params.reason, "reason")
    return await registry.write(partial(_remove, identity=identity, hold_id=hold_id, reason=reason))


def _remove(connection: Connection, *, identity: Identity, hold_id: str, reason: str) -> Hold:
    """End a hold, and return it. A second call changes nothing. Raise HoldNotFound if there is no such hold."""
    access.require(identity, "admin")
    hold = _find(connection, hold_id)
    if hold.removed_at is None:
        values = {"removed_at": datetime.now(UTC), "removed_by": identity.name, "removed_reason": reason}
        connection.execute(update(holds).where(holds.c.hold == hold_id, holds.c.removed_at.is_(None)).values(**values))
        before = {"kind": hold.kind, "name": hold.name, "status": hold.status}
        audit.record(
            connection, identity, "remove_hold", hold_id, before=before, after={"status": "removed", "reason": reason}
        )
    return _find(connection, hold_id)


def _find(connection: Connection, hold_id: object) -> Hold:
    row = connection.execute(select(holds).where(holds.c.hold == hold_id)).one_or_none()
    if row is None:
        raise HoldNotFound(f"there is no hold {quoted(str(hold_id))}", hint="list_holds shows all holds.")
    return _hold(row, datetime.now(UTC))


def _hold(row: Any, now: datetime) -> Hold:
    return Hold(
        id=row.hold,
        kind=row.kind,
        name=row.name,
        reason=row.reason,
        status="removed" if row.removed_at else "expired" if is_past(row.until, now) else "live",
        by=row.identity,
        at=in_utc(row.created_at),
        until=in_utc(row.until),
        removed_by=row.removed_by,
        removed_at=in_utc(row.removed_at),
        removed_reason=row.removed_reason,
    )


METHODS = (
    Method(add_hold, "admin", audits="name"),
    Method(list_holds, "admin", audits=""),
    Method(remove_hold, "admin", audits="id"),
)
