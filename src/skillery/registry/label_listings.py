"""list_labels: the current targets of a skill's labels, and the history of the labels."""

from __future__ import annotations

from typing import Any

import msgspec
from sqlalchemy import Connection, Select, select

from skillery.backends import Identity
from skillery.database.tables import label_moves, labels, skill_versions
from skillery.formats.timestamps import timestamp_text
from skillery.registry.cursors import make_cursor, read_cursor
from skillery.registry.labels import MoveName, last_move, of_previous, of_version
from skillery.registry.pages import NextCursor
from skillery.registry.resolution import find_skill, label_not_found, skill_not_found


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


def list_labels(
    connection: Connection, identity: Identity, key: bytes, *, name: str, label: str, limit: int, cursor: str
) -> Labels:
    """Return the current labels, and a page of their history, newest first.

    `label` "" selects all labels. A removed label still has its history. Raise SkillNotFound if the identity sees no
    such skill, LabelNotFound if the label never existed, and InvalidCursor if the cursor belongs to another listing.
    """
    skill_id = find_skill(connection, identity, name)
    if skill_id is None:
        raise skill_not_found(connection, identity, name)
    if label and last_move(connection, skill_id, label) is None:
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
        select(label_moves, of_version.c.version, of_version.c.digest, of_previous.c.version.label("previous"))
        .outerjoin_from(label_moves, of_version, of_version.c.id == label_moves.c.version_id)
        .outerjoin(of_previous, of_previous.c.id == label_moves.c.previous_version_id)
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
