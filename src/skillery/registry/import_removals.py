"""Skills that are no longer in the tree of their source."""

from __future__ import annotations

from collections.abc import Set
from datetime import UTC, datetime

import msgspec
from sqlalchemy import Connection, select, update

from skillery.backends import Identity
from skillery.database.tables import RESOLVABLE, import_aliases, skill_versions, skills
from skillery.formats.semver import Version
from skillery.identity import access
from skillery.registry.lifecycle import yank
from skillery.registry.visibility import sees_skill


class Removed(msgspec.Struct, frozen=True):
    """A skill that is no longer in the tree of its source. `yanked` lists the versions that the import yanked."""

    name: str
    stated: str
    version: str
    yanked: tuple[str, ...] = ()


def note_removed(
    connection: Connection, identity: Identity, namespace: str, source: str, kept: Set[str], *, prune: bool
) -> list[Removed]:
    """Return the skills that the source owns and that are not in the tree. `kept` contains the paths of the tree's
    skills.

    With `prune`, the published and deprecated versions of these skills are yanked. Skills that were pruned before, and
    skills that the identity may not publish or see, are omitted.
    """
    columns = import_aliases.c
    of_source = columns.namespace == namespace, columns.source == source, columns.owns, columns.removed_at.is_(None)
    rows = connection.execute(
        select(columns.path, columns.stated, columns.name, columns.version, skills.c.id, skills.c.visibility)
        .join_from(import_aliases, skills, skills.c.name == columns.name)
        .where(*of_source)
        .order_by(columns.name)
    ).all()
    removed = []
    for path, stated, name, version, skill_id, visibility in rows:
        if (
            path in kept
            or not access.publishes(identity, name)
            or not sees_skill(connection, identity, skill_id, name, visibility)
        ):
            continue
        yanked = _yank_all(connection, identity, name, source) if prune else ()
        if prune:
            gone = update(import_aliases).where(*of_source, columns.path == path)
            connection.execute(gone.values(removed_at=datetime.now(UTC)))
        removed.append(Removed(name, stated, version, yanked))
    return removed


def _yank_all(connection: Connection, identity: Identity, name: str, source: str) -> tuple[str, ...]:
    resolving = connection.scalars(
        select(skill_versions.c.version)
        .join(skills, skills.c.id == skill_versions.c.skill_id)
        .where(skills.c.name == name, skill_versions.c.status.in_(RESOLVABLE))
        .order_by(skill_versions.c.precedence)
    ).all()
    for version in resolving:
        yank(connection, identity, name, Version.parse(version), f"no longer in {source}")
    return tuple(resolving)
