"""list_labels: the current targets of a skill's labels, and the history of the labels."""

from __future__ import annotations

from datetime import datetime
from functools import cache, lru_cache, partial
from typing import Annotated, Any

import msgspec
from msgspec import Meta
from sqlalchemy import Connection, bindparam, literal_column, select

from skillery.backends import Identity
from skillery.database import Statement, in_utc
from skillery.database.registry import Registry
from skillery.database.tables import label_moves, labels, skill_versions
from skillery.formats.names import parse_skill_name
from skillery.formats.timestamps import timestamp_text
from skillery.formats.version_spec import parse_label
from skillery.labels.labels import MoveName, RollbackGoal, last_move, of_previous, of_version, rollback_goals
from skillery.method import Cursor, Method, Params, SkillName, about
from skillery.registry.cursors import NextCursor, make_cursor, read_cursor
from skillery.registry.resolution import find_skill, label_not_found, skill_not_found

_BY = (label_moves.c.identity, label_moves.c.identity_kind, label_moves.c.created_at)


class Label(msgspec.Struct, frozen=True):
    """The version that a label points to, and the identity that moved it there."""

    label: str
    version: str
    digest: str
    status: str
    by: str
    kind: str
    at: str
    rollback_to: Annotated[str | None, Meta(description="The version to which rollback_label returns")]


class LabelMove(msgspec.Struct, frozen=True):
    """One move of a label."""

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


def read_labels(
    connection: Connection, identity: Identity, key: bytes, *, name: str, label: str, limit: int, cursor: str
) -> Labels:
    """Return the current labels of a skill, and a page of their history, newest first.

    A `label` of "" selects all labels. A removed label still has its history. `key` signs the cursors. Raise
    SkillNotFound if the identity sees no such skill, LabelNotFound if the label never existed, and InvalidCursor if the
    cursor belongs to another listing.
    """
    skill_id = find_skill(connection, identity, name)
    if skill_id is None:
        raise skill_not_found(connection, identity, name)
    if label and last_move(connection, skill_id, label) is None:
        raise label_not_found(connection, skill_id, name, label)
    bound_to = ("list_labels", name, label)
    before = int(read_cursor(key, bound_to, cursor, 1)[0]) if cursor else None
    values = {"skill_id": skill_id, "label": label, "before": before}
    rows = _history(bool(label), before is not None, limit + 1).rows(connection, **values)
    page, has_more = rows[:limit], len(rows) > limit
    goals = rollback_goals(connection, select(labels.c.move_id).where(labels.c.skill_id == skill_id))
    current = _current(bool(label)).rows(connection, skill_id=skill_id, label=label)
    return Labels(
        name,
        [_label(row, goals.get(row[0])) for row in current],
        [_moved(*row[1:]) for row in page],
        make_cursor(key, bound_to, (str(page[-1][0]),)) if has_more else None,
    )


@cache
def _current(is_of_label: bool) -> Statement:
    """Return the statement for the current labels of a skill, or for one label if `is_of_label`."""
    versions = skill_versions.c
    statement = (
        select(labels.c.label, versions.version, versions.digest, versions.status, *_BY)
        .join_from(labels, skill_versions, versions.id == labels.c.version_id)
        .join(label_moves, label_moves.c.id == labels.c.move_id)
        .where(labels.c.skill_id == bindparam("skill_id"))
        .order_by(labels.c.label)
    )
    return Statement(statement.where(labels.c.label == bindparam("label")) if is_of_label else statement)


@lru_cache(64)
def _history(is_of_label: bool, is_before: bool, rows: int) -> Statement:
    """Return the statement for `rows` moves of a skill's labels, newest first.

    With `is_of_label`, it reads only one label. With `is_before`, it starts after the position of a cursor.
    """
    moves = label_moves.c
    statement = (
        select(
            moves.id, moves.label, moves.move, of_version.c.version, of_version.c.digest, of_previous.c.version, *_BY
        )
        .outerjoin_from(label_moves, of_version, of_version.c.id == moves.version_id)
        .outerjoin(of_previous, of_previous.c.id == moves.previous_version_id)
        .where(moves.skill_id == bindparam("skill_id"))
        .order_by(moves.id.desc())
        .limit(literal_column(str(rows)))
    )
    if is_of_label:
        statement = statement.where(moves.label == bindparam("label"))
    return Statement(statement.where(moves.id < bindparam("before")) if is_before else statement)


def _label(row: Any, goal: RollbackGoal | None) -> Label:
    label, version, digest, status, *by = row
    return Label(label, version, digest, status, *_by(*by), goal and goal.version)


def _moved(
    label: str, move: MoveName, version: str | None, digest: str | None, previous: str | None, *by: Any
) -> LabelMove:
    return LabelMove(label, move, version, digest, previous, *_by(*by))


def _by(identity: str, kind: str, at: datetime | str) -> tuple[str, str, str]:
    """Return the last three fields of Label and LabelMove: the name and kind of the identity, and the time as text."""
    return identity, kind, timestamp_text(in_utc(at)) or ""


# -- list_labels -------------------------------------------------------------------------------------------------------


class ListLabels(Params, frozen=True, kw_only=True):
    """List the labels of a skill, and their moves, newest first."""

    name: SkillName
    label: Annotated[str, about("Only this label")] = ""
    limit: Annotated[int, Meta(ge=1, le=1000), about("Maximum number of moves", default=50)] = 50
    cursor: Cursor = ""


async def list_labels(registry: Registry, identity: Identity, params: ListLabels) -> Labels:
    work = partial(
        read_labels,
        identity=identity,
        key=registry.cursor_key,
        name=parse_skill_name(params.name),
        label=parse_label(params.label) if params.label else "",
        limit=params.limit,
        cursor=params.cursor,
    )
    return await registry.read(work)


METHODS = (Method(list_labels, "read", audits=""),)
