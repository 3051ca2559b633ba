"""Labels of a skill. A label points to one version. Publishers move labels, and roll back moves.

`label_moves` has all moves and is append-only. `labels` has the current target of each label, for fast look-up. Each
move stores the move to which a rollback returns (`back_id`), so that repeated rollbacks go further back in the history
instead of back and forth.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
from msgspec import Meta
from sqlalchemy import CTE, ColumnElement, Connection, Select, and_, delete, exists, func, insert, literal, select
from sqlalchemy.dialects import postgresql, sqlite

from skillery import audit
from skillery.backends import Identity
from skillery.database.registry import Registry
from skillery.database.tables import RESOLVABLE, label_moves, labels, skill_versions
from skillery.errors import Conflict, NothingToGoBackTo, NotPublished, TooManyLabels
from skillery.formats.names import parse_skill_name
from skillery.formats.version_spec import VersionSpec, parse_label, parse_version_spec
from skillery.identity import access
from skillery.method import Method, Params, SkillName, about
from skillery.registry.resolution import label_not_found, resolve
from skillery.versions.lifecycle_steps import lock_skill

MoveName = Literal["set", "rollback", "remove"]
MOST_LABELS = 100
MOST_BACK = 100
"""A rollback looks for its version in so many earlier moves of a label."""
"""The maximum number of labels of a skill, because answers list all labels."""

_DIALECTS = {"sqlite": sqlite, "postgresql": postgresql}
of_version = skill_versions.alias("of_version")
of_previous = skill_versions.alias("of_previous")


LabelName = Annotated[str, about("Label (e.g., 'stable')")]


class MovedLabel(msgspec.Struct, frozen=True):
    """The answer of `set_label`, `rollback_label` and `remove_label`. A removed label has no version."""

    name: str
    label: str
    version: str | None
    status: str | None
    digest: str | None
    previous: str | None
    """The version to which the label pointed before the move."""


class _Move(NamedTuple):
    """A move of a label, with the version to which it moved the label. `back_id` is the move to which a rollback
    returns.
    """

    id: int
    version_id: int | None
    version: str | None
    back_id: int | None


class RollbackGoal(NamedTuple):
    """The version to which a rollback returns."""

    version_id: int
    version: str
    status: str
    digest: str
    back_id: int | None
    """`back_id` of the move to which the rollback returns."""


# -- moves of labels -----------------------------------------------------------------------------------------------


def point_label(connection: Connection, identity: Identity, name: str, label: str, spec: VersionSpec) -> MovedLabel:
    """Point a label to the version that `spec` selects now.

    A move to the same version is recorded, but rollbacks skip it. Raise NotAllowed if the identity may not publish the
    skill. Raise SkillNotFound, VersionNotFound or LabelNotFound if `name` and `spec` select no version that the
    identity sees. Raise NotPublished if the version is neither published nor deprecated, and TooManyLabels if the skill
    already has MOST_LABELS labels.
    """
    access.require_namespace(identity, "publish", name)
    skill_id = lock_skill(connection, identity, name)
    row = resolve(connection, identity, name, spec, manages=True)
    if row.status not in RESOLVABLE:
        raise NotPublished(
            f"'{name}' {row.version} is {row.status.replace('_', ' ')}: a label cannot point to it",
            hint="A label points to a published or deprecated version.",
            name=name,
            version=row.version,
            status=row.status,
        )
    last = last_move(connection, skill_id, label)
    if last is None or last.version_id is None:
        _check_number(connection, skill_id, name)
    # A rollback returns to the last move, unless that move removed the label or led to the same version.
    back_id = last and (last.back_id if last.version_id in (None, row.version_id) else last.id)
    _move(connection, identity, skill_id, label, "set", row.version_id, last, back_id)
    moved = MovedLabel(name, label, row.version, row.status, row.digest, last and last.version)
    return _audited(connection, identity, "set_label", moved)


def restore_label(connection: Connection, identity: Identity, name: str, label: str, to: str) -> MovedLabel:
    """Point a label to the version of the move before the last one. Repeated calls go further back.

    Versions that are neither published nor deprecated are skipped. A removed label is restored. Raise NotAllowed if the
    identity may not publish the skill, SkillNotFound if the identity sees no such skill, LabelNotFound if the label
    never existed, NothingToGoBackTo if there is no version to return to, Conflict if that is not the version `to`, and
    TooManyLabels if a restored label would be one too many.
    """
    access.require_namespace(identity, "publish", name)
    skill_id = lock_skill(connection, identity, name)
    last = last_move(connection, skill_id, label)
    if last is None:
        raise label_not_found(connection, skill_id, name, label)
    goal = rollback_goals(connection, [last.id]).get(label)
    if goal is None:
        raise NothingToGoBackTo(
            f"the label '{label}' of '{name}' has no version to go back to: "
            + (
                f"no version of its last {MOST_BACK} moves still resolves"
                if last.back_id
                else "this was its first version"
            ),
            hint="Move it with set_label, or remove it with remove_label; list_labels shows its history.",
            name=name,
            label=label,
        )
    if to not in ("", goal.version):
        raise Conflict(
            f"the label '{label}' of '{name}' would go back to {goal.version}, not to {to}",
            hint="The label was moved since. list_labels shows where it goes back to.",
            name=name,
            label=label,
        )
    if last.version_id is None:
        _check_number(connection, skill_id, name)
    _move(connection, identity, skill_id, label, "rollback", goal.version_id, last, goal.back_id)
    moved = MovedLabel(name, label, goal.version, goal.status, goal.digest, last.version)
    return _audited(connection, identity, "rollback_label", moved)


def drop_label(connection: Connection, identity: Identity, name: str, label: str) -> MovedLabel:
    """Remove a label. Its history stays, and a rollback restores the label.

    Raise NotAllowed if the identity may not publish the skill, SkillNotFound if the identity sees no such skill, and
    LabelNotFound if the skill has no such label.
    """
    access.require_namespace(identity, "publish", name)
    skill_id = lock_skill(connection, identity, name)
    last = last_move(connection, skill_id, label)
    if last is None or last.version_id is None:
        raise label_not_found(connection, skill_id, name, label)
    _move(connection, identity, skill_id, label, "remove", None, last, last.id)
    return _audited(connection, identity, "remove_label", MovedLabel(name, label, None, None, None, last.version))


def _audited(connection: Connection, identity: Identity, action: str, moved: MovedLabel) -> MovedLabel:
    """Record a move in the audit trail. Return `moved`."""
    before, after = ({"version": version} for version in (moved.previous, moved.version))
    audit.record(connection, identity, action, f"{moved.name}@{moved.label}", before=before, after=after)
    return moved


def last_move(connection: Connection, skill_id: int, label: str) -> _Move | None:
    """Return the last move of a label, or None if the label never existed."""
    statement = (
        select(label_moves.c.id, label_moves.c.version_id, skill_versions.c.version, label_moves.c.back_id)
        .outerjoin_from(label_moves, skill_versions, skill_versions.c.id == label_moves.c.version_id)
        .where(label_moves.c.skill_id == skill_id, label_moves.c.label == label)
        .order_by(label_moves.c.id.desc())
        .limit(1)
    )
    row = connection.execute(statement).one_or_none()
    return _Move(*row) if row else None


def rollback_goals(connection: Connection, last_moves: Select[Any] | Sequence[int]) -> dict[str, RollbackGoal]:
    """Return the goal of a rollback of each label, by label. `last_moves` are the ids of the last moves of the labels.

    The goal is the nearest earlier version that is published or deprecated and is not the current version. Labels
    without such a version in MOST_BACK earlier moves are left out.
    """
    moves, versions = label_moves.c, skill_versions.c

    def is_goal(step: CTE) -> ColumnElement[bool]:
        is_resolvable = versions.status.in_(RESOLVABLE)
        return and_(versions.id == step.c.version_id, is_resolvable, versions.id != step.c.current)

    current = func.coalesce(moves.version_id, 0).label("current")
    last = select(moves.label, current, moves.version_id, moves.back_id, literal(0).label("number"))
    step = last.where(moves.id.in_(last_moves)).cte("step", recursive=True)
    before = select(step.c.label, step.c.current, moves.version_id, moves.back_id, step.c.number + 1)
    before = before.join_from(step, label_moves, moves.id == step.c.back_id).where(step.c.number < MOST_BACK)
    step = step.union_all(before.where(~exists().where(is_goal(step))))
    goals = select(step.c.label, versions.id, versions.version, versions.status, versions.digest, step.c.back_id)
    rows = connection.execute(goals.join_from(step, skill_versions, is_goal(step)))
    return {label: RollbackGoal(*goal) for label, *goal in rows}


def _check_number(connection: Connection, skill_id: int, name: str) -> None:
    """Raise TooManyLabels if the skill already has MOST_LABELS labels."""
    if (connection.scalar(select(func.count()).where(labels.c.skill_id == skill_id)) or 0) >= MOST_LABELS:
        raise TooManyLabels(
            f"'{name}' has {MOST_LABELS} labels, which is the limit",
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
    """Insert a move of a label, and set its current target. A `version_id` of None removes the label."""
    new_move = insert(label_moves).values(
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
    move_id = connection.execute(new_move).inserted_primary_key[0]  # type: ignore[index]  # one row, one key
    if version_id is None:
        connection.execute(delete(labels).where(labels.c.skill_id == skill_id, labels.c.label == label))
        return
    target = {"version_id": version_id, "move_id": move_id}
    upsert = _DIALECTS[connection.dialect.name].insert(labels).values(skill_id=skill_id, label=label, **target)
    connection.execute(upsert.on_conflict_do_update(index_elements=["skill_id", "label"], set_=target))


# -- set_label ---------------------------------------------------------------------------------------------------------


class SetLabel(Params, frozen=True, kw_only=True):
    """Point a label of a skill to a version."""

    name: SkillName
    label: LabelName
    version: Annotated[
        Annotated[str, Meta(min_length=1)],
        about("New target: a version, or a version spec to resolve now (another label, a range, 'latest')"),
    ]


async def set_label(registry: Registry, identity: Identity, params: SetLabel) -> MovedLabel:
    name, label, spec = parse_skill_name(params.name), parse_label(params.label), parse_version_spec(params.version)
    work = partial(point_label, identity=identity, name=name, label=label, spec=spec)
    return await registry.write(work)


# -- rollback_label ----------------------------------------------------------------------------------------------------


class RollbackLabel(Params, frozen=True, kw_only=True):
    """Point a label to its previous published version. Repeated calls go further back."""

    name: SkillName
    label: LabelName
    to: Annotated[str, about("Expected version; if the label would go back to another one, it stays")] = ""


async def rollback_label(registry: Registry, identity: Identity, params: RollbackLabel) -> MovedLabel:
    name, label = parse_skill_name(params.name), parse_label(params.label)
    return await registry.write(partial(restore_label, identity=identity, name=name, label=label, to=params.to))


# -- remove_label ------------------------------------------------------------------------------------------------------


class RemoveLabel(Params, frozen=True, kw_only=True):
    """Remove a label. A rollback restores it."""

    name: SkillName
    label: LabelName


async def remove_label(registry: Registry, identity: Identity, params: RemoveLabel) -> MovedLabel:
    name, label = parse_skill_name(params.name), parse_label(params.label)
    return await registry.write(partial(drop_label, identity=identity, name=name, label=label))


METHODS = (
    Method(set_label, "publish", audits="name"),
    Method(rollback_label, "publish", audits="name"),
    Method(remove_label, "publish", audits="name"),
)
