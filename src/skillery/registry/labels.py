"""Labels of a skill. A label points to one version, is moved by publishers, and can be rolled back move by move.

`label_moves` is append-only and complete; `labels` is its last row for each label, for resolving. A move names the move
that a rollback goes back to (`back_id`), so that repeated rollbacks go down the history instead of back and forth.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Literal, NamedTuple

import msgspec
from sqlalchemy import Connection, Select, delete, func, insert, select
from sqlalchemy.dialects import postgresql, sqlite

from skillery import audit
from skillery.backends import Identity
from skillery.database.tables import RESOLVABLE, label_moves, labels, skill_versions
from skillery.errors import NothingToGoBackTo, NotPublished, TooManyLabels
from skillery.formats.timestamps import timestamp_text
from skillery.formats.version_spec import VersionSpec
from skillery.identity import access
from skillery.registry.cursors import make_cursor, read_cursor
from skillery.registry.lifecycle import lock_skill
from skillery.registry.pages import NextCursor
from skillery.registry.resolution import find_skill, label_not_found, resolve, skill_not_found

MoveName = Literal["set", "rollback", "remove"]
MOST_LABELS = 100
"""Limit on the labels of a skill: an answer lists all of them."""

_DIALECTS = {"sqlite": sqlite, "postgresql": postgresql}
_of_version = skill_versions.alias("of_version")
_of_previous = skill_versions.alias("of_previous")


class MovedLabel(msgspec.Struct, frozen=True):
    """The answer of each move. A removed label has no version."""

    name: str
    label: str
    version: str | None
    status: str | None
    digest: str | None
    previous: str | None
    """The version that the label pointed to before."""


class Label(msgspec.Struct, frozen=True):
    """The version that a label points to, and the identity that moved it there."""

    label: str
    version: str
    digest: str
    status: str
    by: str
    kind: str
    at: str


class LabelMove(msgspec.Struct, frozen=True):
    """A move of a label."""

    label: str
    move: MoveName
    version: str | None
    digest: str | None
    previous: str | None
    by: str
    kind: str
    at: str


class Labels(msgspec.Struct, frozen=True):
    """The labels of a skill, and a page of their moves, newest first."""

    name: str
    labels: list[Label]
    history: list[LabelMove]
    next_cursor: NextCursor


class _Move(NamedTuple):
    """The last move of a label."""

    id: int
    version_id: int | None
    version: str | None
    back_id: int | None


class _Goal(NamedTuple):
    version_id: int
    version: str
    status: str
    digest: str
    back_id: int | None
    """`back_id` of the move that the rollback goes back to."""


# -- moving --------------------------------------------------------------------------------------------------------


def set_label(connection: Connection, identity: Identity, name: str, label: str, spec: VersionSpec) -> MovedLabel:
    """Point a label to the version that the spec means now.

    A move to the same version is recorded, and rollbacks skip it. Raises NotAllowed, SkillNotFound, VersionNotFound,
    LabelNotFound; NotPublished if the version is not published; TooManyLabels.
    """
    access.require_namespace(identity, "publish", name)
    skill_id = lock_skill(connection, identity, name)
    row = resolve(connection, identity, name, spec)
    if row.status not in RESOLVABLE:
        raise NotPublished(
            f"'{name}' {row.version} is {row.status.replace('_', ' ')}: no label points to it",
            hint="A label points to a published or deprecated version.",
            name=name,
            version=row.version,
            status=row.status,
        )
    last = _last_move(connection, skill_id, label)
    if last is None or last.version_id is None:
        _check_number(connection, skill_id, name)
    back_id = last and (last.back_id if last.version_id in (None, row.version_id) else last.id)
    _move(connection, identity, skill_id, label, "set", row.version_id, last, back_id)
    moved = MovedLabel(name, label, row.version, row.status, row.digest, last and last.version)
    return _audited(connection, identity, "set_label", moved)


def rollback_label(connection: Connection, identity: Identity, name: str, label: str) -> MovedLabel:
    """Point a label to its version before the last move; repeated calls go further back.

    Versions that no longer resolve, because they were yanked, are skipped. A removed label is restored. Raises
    NotAllowed, SkillNotFound, LabelNotFound, NothingToGoBackTo.
    """
    access.require_namespace(identity, "publish", name)
    skill_id = lock_skill(connection, identity, name)
    last = _last_move(connection, skill_id, label)
    if last is None:
        raise label_not_found(connection, skill_id, name, label)
    goal = _goal(connection, last)
    if goal is None:
        raise NothingToGoBackTo(
            f"the label '{label}' of '{name}' has no version to go back to: "
            + ("no earlier version still resolves" if last.back_id else "this was its first version"),
            hint="Move it with set_label, or remove it with remove_label; list_labels shows its history.",
            name=name,
            label=label,
        )
    if last.version_id is None:
        _check_number(connection, skill_id, name)
    _move(connection, identity, skill_id, label, "rollback", goal.version_id, last, goal.back_id)
    moved = MovedLabel(name, label, goal.version, goal.status, goal.digest, last.version)
    return _audited(connection, identity, "rollback_label", moved)


def remove_label(connection: Connection, identity: Identity, name: str, label: str) -> MovedLabel:
    """Remove a label. Its history stays, and a rollback restores it. Raise the errors of `rollback_label`."""
    access.require_namespace(identity, "publish", name)
    skill_id = lock_skill(connection, identity, name)
    last = _last_move(connection, skill_id, label)
    if last is None or last.version_id is None:
        raise label_not_found(connection, skill_id, name, label)
    _move(connection, identity, skill_id, label, "remove", None, last, last.id)
    return _audited(connection, identity, "remove_label", MovedLabel(name, label, None, None, None, last.version))


def _audited(connection: Connection, identity: Identity, action: str, moved: MovedLabel) -> MovedLabel:
    before, after = ({"version": version} for version in (moved.previous, moved.version))
    audit.record(connection, identity, action, f"{moved.name}@{moved.label}", before=before, after=after)
    return moved


def _last_move(connection: Connection, skill_id: int, label: str) -> _Move | None:
    statement = (
        select(label_moves.c.id, label_moves.c.version_id, skill_versions.c.version, label_moves.c.back_id)
        .outerjoin_from(label_moves, skill_versions, skill_versions.c.id == label_moves.c.version_id)
        .where(label_moves.c.skill_id == skill_id, label_moves.c.label == label)
        .order_by(label_moves.c.id.desc())
        .limit(1)
    )
    found = connection.execute(statement).one_or_none()
    return _Move(*found) if found else None


def _goal(connection: Connection, last: _Move) -> _Goal | None:
    """Return the nearest earlier version that resolves and differs from the current one."""
    columns = (label_moves.c.id, label_moves.c.version_id, label_moves.c.back_id)
    way = select(*columns).where(label_moves.c.id == last.back_id).cte("way", recursive=True)
    way = way.union_all(select(*columns).join(way, label_moves.c.id == way.c.back_id))
    of = skill_versions.c
    statement = (
        select(of.id, of.version, of.status, of.digest, way.c.back_id)
        .join_from(way, skill_versions, of.id == way.c.version_id)
        .where(of.status.in_(RESOLVABLE), of.id != (last.version_id or 0))
        .order_by(way.c.id.desc())
        .limit(1)
    )
    found = connection.execute(statement).one_or_none()
    return _Goal(*found) if found else None


def _check_number(connection: Connection, skill_id: int, name: str) -> None:
    if (connection.scalar(select(func.count()).where(labels.c.skill_id == skill_id)) or 0) >= MOST_LABELS:
        raise TooManyLabels(
            f"'{name}' has {MOST_LABELS} labels, the most that a skill may have",
            hint="Move an existing label, or remove one with remove_label.",
            name=name,
        )


def _move(
    connection: Connection,
    identity: Identity,
    skill_id: int,
    label: str,
    move: MoveName,
    version_id: int | None,
    last: _Move | None,
    back_id: int | None,
) -> None:
    moved = insert(label_moves).values(
        skill_id=skill_id,
        label=label,
        move=move,
        version_id=version_id,
        previous_version_id=last and last.version_id,
        back_id=back_id,
        identity=identity.name,
        identity_kind=identity.kind,
        created_at=datetime.now(UTC),
    )
    move_id = connection.execute(moved).inserted_primary_key[0]  # type: ignore[index]  # one row, one key
    if version_id is None:
        connection.execute(delete(labels).where(labels.c.skill_id == skill_id, labels.c.label == label))
        return
    now = {"version_id": version_id, "move_id": move_id}
    place = _DIALECTS[connection.dialect.name].insert(labels).values(skill_id=skill_id, label=label, **now)
    connection.execute(place.on_conflict_do_update(index_elements=["skill_id", "label"], set_=now))


# -- looking -------------------------------------------------------------------------------------------------------


def list_labels(
    connection: Connection, identity: Identity, key: bytes, *, name: str, label: str, limit: int, cursor: str
) -> Labels:
    """Return the labels as they are now, and a page of their history, newest first.

    `label` "" is all labels; a removed label still has its history. Raises SkillNotFound, LabelNotFound, InvalidCursor.
    """
    skill_id = find_skill(connection, identity, name)
    if skill_id is None:
        raise skill_not_found(connection, identity, name)
    if label and _last_move(connection, skill_id, label) is None:
        raise label_not_found(connection, skill_id, name, label)
    bound_to = ("list_labels", name, label)
    before = int(read_cursor(key, bound_to, cursor, 1)[0]) if cursor else None
    rows = connection.execute(_history(skill_id, label, before).limit(limit + 1)).all()
    page, more = rows[:limit], len(rows) > limit
    return Labels(
        name,
        [_label(row) for row in connection.execute(_now(skill_id, label))],
        [_moved(row) for row in page],
        make_cursor(key, bound_to, (str(page[-1].id),)) if more else None,
    )


def _now(skill_id: int, label: str) -> Select[Any]:
    of = skill_versions.c
    by = (label_moves.c.identity, label_moves.c.identity_kind, label_moves.c.created_at)
    statement = (
        select(labels.c.label, of.version, of.digest, of.status, *by)
        .join_from(labels, skill_versions, of.id == labels.c.version_id)
        .join(label_moves, label_moves.c.id == labels.c.move_id)
        .where(labels.c.skill_id == skill_id)
        .order_by(labels.c.label)
    )
    return statement.where(labels.c.label == label) if label else statement


def _history(skill_id: int, label: str, before: int | None) -> Select[Any]:
    statement = (
        select(label_moves, _of_version.c.version, _of_version.c.digest, _of_previous.c.version.label("previous"))
        .outerjoin_from(label_moves, _of_version, _of_version.c.id == label_moves.c.version_id)
        .outerjoin(_of_previous, _of_previous.c.id == label_moves.c.previous_version_id)
        .where(label_moves.c.skill_id == skill_id)
        .order_by(label_moves.c.id.desc())
    )
    if label:
        statement = statement.where(label_moves.c.label == label)
    return statement if before is None else statement.where(label_moves.c.id < before)


def _label(row: Any) -> Label:
    return Label(row.label, row.version, row.digest, row.status, *_by(row))


def _moved(row: Any) -> LabelMove:
    return LabelMove(row.label, row.move, row.version, row.digest, row.previous, *_by(row))


def _by(row: Any) -> tuple[str, str, str]:
    return row.identity, row.identity_kind, timestamp_text(row.created_at) or ""
