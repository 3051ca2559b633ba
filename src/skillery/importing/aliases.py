"""Aliases of imported skills. An alias maps a path of a source to a skill of the registry.

The key of an alias is a namespace, a source and a path. The first import of the path records the alias, so later
imports publish to the same skill even if the stated name changes. An alias either owns its skill or refers to a skill
that another source owns. Only an alias that owns the skill publishes new versions of the skill.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from datetime import UTC, datetime
from typing import Any, NamedTuple

import msgspec
from sqlalchemy import ColumnElement, Connection, Insert, String, and_, bindparam, delete, func, select, update
from sqlalchemy.dialects import postgresql, sqlite

from skillery.backends import Identity
from skillery.database import Change, Statement
from skillery.database.tables import RESOLVABLE, import_aliases, skill_versions, skills
from skillery.errors import NameTaken
from skillery.formats.semver import Version
from skillery.identity import access
from skillery.importing.free_names import Alias, is_of_another
from skillery.registry.visibility import sees_skill, sees_version
from skillery.skills.catalogue_order import allow_same_source
from skillery.versions.lifecycle import yank
from skillery.versions.new_versions import NewVersion

_WITH_VERSION = (
    select(
        import_aliases.c.stated,
        import_aliases.c.name,
        import_aliases.c.version,
        import_aliases.c.source_digest,
        import_aliases.c.owns,
        import_aliases.c.removed_at,
        skill_versions.c.digest,
        skill_versions.c.status,
        skill_versions.c.publisher,
        skills.c.id,
        skills.c.visibility,
    )
    .outerjoin_from(import_aliases, skills, skills.c.name == import_aliases.c.name)
    .outerjoin(
        skill_versions,
        and_(skill_versions.c.skill_id == skills.c.id, skill_versions.c.version == import_aliases.c.version),
    )
)
FILES_PART = len("sha256:") + 48
"""Number of leading characters of a source digest that identify the files."""
_FOUND = Statement(
    _WITH_VERSION.where(
        import_aliases.c.namespace == bindparam("namespace"),
        import_aliases.c.source == bindparam("source"),
        import_aliases.c.path == bindparam("path"),
    )
)
_SAME_FILES = Statement(
    _WITH_VERSION.where(
        import_aliases.c.namespace == bindparam("namespace"),
        import_aliases.c.stated == bindparam("stated"),
        # The rest of a source digest depends on the inferred packages.
        func.substr(import_aliases.c.source_digest, 1, FILES_PART)
        == func.substr(bindparam("source_digest", type_=String), 1, FILES_PART),
        import_aliases.c.owns,
        import_aliases.c.removed_at.is_(None),
    ).order_by(import_aliases.c.imported_at, import_aliases.c.name)
)
_VERSIONS = Statement(
    select(skill_versions.c.version)
    .join(skills, skills.c.id == skill_versions.c.skill_id)
    .where(skills.c.name == bindparam("name"))
)


class KnownPath(NamedTuple):
    """An alias that an earlier import recorded."""

    alias: Alias
    stated: str
    name: str
    source_digest: str
    is_absent: bool


class Imported(NamedTuple):
    """The skill of an alias. `version` is the version that was last published through the alias."""

    stated: str
    name: str
    version: str
    source_digest: str
    owns: bool
    is_removed: bool
    """True if an import with `prune` yanked the versions of the skill."""
    digest: str | None
    status: str | None
    is_seen: bool
    """False if the identity may not see the version, for example a draft of another author."""


class AliasRecord(NamedTuple):
    """The values to record for an alias."""

    alias: Alias
    stated: str
    source_digest: str
    owns: bool
    before: Alias | None = None
    """The previous alias of a skill that has moved to another path."""
    takes_over: bool = False
    """True if the aliases of other sources that own the skill are deleted."""


def known_paths(connection: Connection, namespace: str, source: str) -> list[KnownPath]:
    """Return all aliases of a source in a namespace."""
    return _known(connection, and_(import_aliases.c.namespace == namespace, import_aliases.c.source == source))


def known_without_path(connection: Connection, namespace: str) -> list[KnownPath]:
    """Return the aliases that early releases recorded without a source."""
    return _known(connection, and_(import_aliases.c.namespace == namespace, import_aliases.c.path.like("/%")))


def is_removed(connection: Connection, name: str) -> bool:
    """Return whether the source that owns a skill does not have the skill any more."""
    columns = import_aliases.c
    since = func.coalesce(columns.absent_at, columns.removed_at)
    absences = list(connection.scalars(select(since).where(columns.name == name, columns.owns)))
    return bool(absences) and None not in absences


def _known(connection: Connection, condition: Any) -> list[KnownPath]:
    columns = import_aliases.c
    rows = connection.execute(
        select(
            columns.namespace,
            columns.source,
            columns.path,
            columns.stated,
            columns.name,
            columns.source_digest,
            columns.absent_at,
        )
        .where(condition)
        .order_by(columns.source, columns.path)
    )
    return [
        KnownPath(
            Alias(row.namespace, row.source, row.path),
            row.stated,
            row.name,
            row.source_digest,
            row.absent_at is not None,
        )
        for row in rows
    ]


def find_imported(connection: Connection, identity: Identity, alias: Alias) -> Imported | None:
    """Return the skill of an alias, or None if there is no such alias.

    Raise NameTaken if the alias exists and the identity may not see its skill.
    """
    rows = _FOUND.rows(connection, namespace=alias.namespace, source=alias.source, path=alias.path)
    if not rows:
        return None
    imported = _imported(connection, identity, rows[0])
    if imported is None:
        _, name, *_ = rows[0]
        raise NameTaken(f"the name '{name}' is taken", hint="Import it under another namespace.", name=name)
    return imported


def find_same_files(
    connection: Connection, identity: Identity, namespace: str, stated: str, source_digest: str
) -> Imported | None:
    """Return a skill that was imported from any source with the same files, stated name and namespace.

    Return None if the identity sees no such skill.
    """
    rows = _SAME_FILES.rows(connection, namespace=namespace, stated=stated, source_digest=source_digest)
    candidates = (_imported(connection, identity, row) for row in rows)
    return next(
        (candidate for candidate in candidates if candidate is not None and candidate.is_seen and candidate.digest),
        None,
    )


def _imported(connection: Connection, identity: Identity, row: Sequence[Any]) -> Imported | None:
    """Return the values of a row, or None if the identity may not see the skill."""
    stated, name, version, source_digest, owns, removed_at, digest, status, publisher, skill_id, visibility = row
    if skill_id is not None and not sees_skill(connection, identity, skill_id, name, visibility):
        return None
    is_seen = status is None or sees_version(identity, name, status, publisher)
    return Imported(stated, name, version, source_digest, bool(owns), removed_at is not None, digest, status, is_seen)


def taken_versions(connection: Connection, name: str) -> list[Version]:
    """Return every version that a skill has, in any status, lowest first."""
    versions = [Version.parse(row[0]) for row in _VERSIONS.rows(connection, name=name)]
    return sorted(versions, key=lambda version: version.precedence)


def record_import(connection: Connection, created: NewVersion, identity: Identity, recorded: AliasRecord) -> None:
    """Record the alias of a version, in the transaction that adds the version.

    Raise NameTaken if the alias should own the skill and another import has taken the name since the name was chosen.
    """
    alias, before = recorded.alias, recorded.before or recorded.alias
    if recorded.takes_over:
        of_others = import_aliases.c.name == created.name
        connection.execute(delete(import_aliases).where(of_others, import_aliases.c.owns))
    elif recorded.owns and is_of_another(connection, alias.source, created.name, alias.path, before.path):
        raise NameTaken(f"the name '{created.name}' has just been taken", hint="Import it again.", name=created.name)
    if before != alias:
        connection.execute(delete(import_aliases).where(_is(before)))
    values = {
        **alias._asdict(),
        "stated": recorded.stated,
        "name": created.name,
        "owns": recorded.owns,
        "version": created.version,
        "source_digest": recorded.source_digest,
        "removed_at": None,
        "absent_at": None,
        "identity": identity.name,
        "imported_at": datetime.now(UTC),
    }
    _UPSERT.run(connection, **values)
    allow_same_source(connection, created.name, alias.source)


def mark_absent(connection: Connection, namespace: str, source: str, is_present: Callable[[str], bool]) -> None:
    """Set `absent_at` of the aliases that have left the tree of the source, and clear it for those that have returned.

    `is_present` returns whether a path is in the tree.
    """
    for known in known_paths(connection, namespace, source):
        # Both are true, or neither: the mark is out of date.
        if is_present(known.alias.path) == known.is_absent:
            since = None if known.is_absent else datetime.now(UTC)
            connection.execute(update(import_aliases).where(_is(known.alias)).values(absent_at=since))


def _is(alias: Alias) -> ColumnElement[bool]:
    return and_(
        import_aliases.c.namespace == alias.namespace,
        import_aliases.c.source == alias.source,
        import_aliases.c.path == alias.path,
    )


_KEY = ("namespace", "source", "path")


def _upsert(insert: Any) -> Insert:
    made = insert(import_aliases)
    changed = {column.name: made.excluded[column.name] for column in import_aliases.c if column.name not in _KEY}
    upsert: Insert = made.on_conflict_do_update(index_elements=list(_KEY), set_=changed)
    return upsert


_UPSERT = Change(
    {dialect.__name__.rpartition(".")[2]: _upsert(dialect.insert) for dialect in (sqlite, postgresql)},
    [column.name for column in import_aliases.c],
)


# -- Skills that are no longer in the tree of their source -------------------------------------------------------------


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
