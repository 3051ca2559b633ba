"""add_hold, list_holds and remove_hold: legal holds, which stop retention and purges for the data that they name."""

from __future__ import annotations

import secrets
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Any, Literal

import msgspec
from sqlalchemy import ColumnElement, Connection, Select, and_, exists, insert, or_, select, update

from skillery import audit
from skillery.backends import Identity
from skillery.database import in_utc, is_past
from skillery.database.registry import Registry
from skillery.database.tables import blobs, holds, runs, skills, workspaces
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
    of_skills = select(skills.c.id).where(skills.c.name.in_(_held("skill")))
    return (
        runs.c.id.not_in(_held("run")),
        runs.c.identity.not_in(_held("identity")),
        or_(runs.c.skill_id.is_(None), runs.c.skill_id.not_in(of_skills)),
    )


def unheld_blobs() -> tuple[ColumnElement[bool], ...]:
    """Return the SQL conditions for blobs that no live hold keeps: those of other identities and of other runs."""
    is_of_free_run = exists().where(runs.c.id == blobs.c.run_id, *unheld_runs())
    return blobs.c.owner.not_in(_held("identity")), or_(blobs.c.run_id.is_(None), is_of_free_run)


def unheld_workspaces() -> ColumnElement[bool]:
    """Return the SQL condition for workspaces that no live hold keeps."""
    return workspaces.c.identity.not_in(_held("identity"))


def _held(kind: Kind) -> Select[Any]:
    return select(holds.c.name).where(holds.c.kind == kind, _is_live(datetime.now(UTC)))


def _is_live(now: datetime) -> ColumnElement[bool]:
    return and_(holds.c.removed_at.is_(None), or_(holds.c.until.is_(None), holds.c.until > now))


def refuse_held(connection: Connection, name: str, publisher: str, version_id: int) -> None:
    """Raise Conflict if a live hold keeps a version: on its skill, its publisher, or a run of it."""
    is_about = or_(
        and_(holds.c.kind == "skill", holds.c.name == name),
        and_(holds.c.kind == "identity", holds.c.name == publisher),
        and_(holds.c.kind == "run", exists().where(runs.c.id == holds.c.name, runs.c.version_id == version_id)),
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
