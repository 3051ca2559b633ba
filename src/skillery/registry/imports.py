"""Which skill of the registry an imported one is, and what was last published from it.

Where it comes from, a skill is called as its author liked; here names have a grammar. So each name as it was stated,
under the namespace that it was imported to, has a row that says which skill it became. It is never guessed again: the
same skill is found by it, and two that would be mended into one name (`a b` and `a.b-`) stay two.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from datetime import UTC, datetime
from typing import Any, NamedTuple

import msgspec
from sqlalchemy import Connection, Insert, and_, bindparam, literal_column, select, update
from sqlalchemy.dialects import postgresql, sqlite

from skillery import access
from skillery.backends import Identity
from skillery.database import Statement
from skillery.errors import NameTaken
from skillery.formats.names import MAX_LENGTH
from skillery.formats.semver import Version
from skillery.registry.inserting import NewVersion
from skillery.registry.lifecycle import yank_version
from skillery.registry.seeing import sees_skill, sees_version
from skillery.tables import RESOLVABLE, imports, skill_versions, skills

_FOUND = Statement(
    select(
        imports.c.name,
        imports.c.version,
        imports.c.source_digest,
        imports.c.source,
        imports.c.removed_at,
        skill_versions.c.digest,
        skill_versions.c.status,
        skill_versions.c.publisher,
        skills.c.id,
        skills.c.visibility,
    )
    .outerjoin_from(imports, skills, skills.c.name == imports.c.name)
    .outerjoin(
        skill_versions, and_(skill_versions.c.skill_id == skills.c.id, skill_versions.c.version == imports.c.version)
    )
    .where(imports.c.namespace == bindparam("namespace"), imports.c.stated == bindparam("stated"))
)
_IS_SKILL = Statement(select(literal_column("1")).where(skills.c.name == bindparam("name")))
_IS_ALIAS = Statement(select(literal_column("1")).where(imports.c.name == bindparam("name")).limit(literal_column("1")))
_VERSIONS = Statement(
    select(skill_versions.c.version)
    .join(skills, skills.c.id == skill_versions.c.skill_id)
    .where(skills.c.name == bindparam("name"))
)
# Another alias of the same namespace: `team.pdf` and, imported to `team`, `pdf` may well be one skill.
_OTHERS = Statement(
    select(literal_column("1"))
    .where(imports.c.name == bindparam("name"), imports.c.namespace == bindparam("namespace"))
    .where(imports.c.stated != bindparam("stated"))
    .limit(literal_column("1"))
)


class Alias(NamedTuple):
    """What a skill is called where it comes from."""

    namespace: str
    stated: str


class Imported(NamedTuple):
    """What an alias stands for. `version` is what was last published from it."""

    name: str
    version: str
    source_digest: str
    source: str | None
    is_removed: bool
    digest: str | None
    status: str | None
    is_seen: bool
    """False: a version that the identity may not see, for example a draft of somebody else's."""


class Removed(msgspec.Struct, frozen=True):
    """A skill that its folder does not hold any more; `yanked` are the versions that are yanked for it."""

    name: str
    stated: str
    version: str
    yanked: tuple[str, ...] = ()


def find_imported(connection: Connection, identity: Identity, alias: Alias) -> Imported | None:
    """Raises NameTaken where it is a skill that the identity may not see."""
    rows = _FOUND.rows(connection, namespace=alias.namespace, stated=alias.stated)
    if not rows:
        return None
    name, version, source_digest, source, removed_at, digest, status, publisher, skill_id, visibility = rows[0]
    if skill_id is not None and not sees_skill(connection, identity, skill_id, name, visibility):
        raise NameTaken(f"the name '{name}' is taken", hint="Import it under another namespace.", name=name)
    is_seen = status is None or sees_version(identity, name, status, publisher)
    return Imported(name, version, source_digest, source, removed_at is not None, digest, status, is_seen)


def name_for(
    connection: Connection, alias: Alias, wanted: str, is_claimed: Callable[[str], bool], *, is_mended: bool
) -> str:
    """The name for a skill that no alias stands for yet.

    It is `wanted` where the skill states just that, and it was not made up for another. Where it is `is_mended`,
    or taken so, it gets the lowest number behind it that makes it a name which nobody has. `is_claimed` says of a name
    whether it is about to be taken.
    """
    if not is_mended and not is_claimed(wanted) and not _is_of_another(connection, alias, wanted):
        return wanted
    name, number = wanted, 1
    while is_claimed(name) or _IS_SKILL.rows(connection, name=name) or _IS_ALIAS.rows(connection, name=name):
        number += 1
        ending = f"-{number}"
        name = wanted[: MAX_LENGTH - len(ending)].rstrip("-_.") + ending
    return name


def _is_of_another(connection: Connection, alias: Alias, name: str) -> bool:
    return bool(_OTHERS.rows(connection, name=name, namespace=alias.namespace, stated=alias.stated))


def taken_versions(connection: Connection, name: str) -> list[Version]:
    """Every version that there ever was of a skill, lowest first."""
    found = [Version.parse(row[0]) for row in _VERSIONS.rows(connection, name=name)]
    return sorted(found, key=lambda version: version.precedence)


def record_import(
    connection: Connection,
    created: NewVersion,
    identity: Identity,
    alias: Alias,
    source_digest: str,
    source: str | None,
) -> None:
    """In the transaction that adds the version. Raises NameTaken where another skill has just been given its name."""
    values = {"namespace": alias.namespace, "stated": alias.stated}
    if _is_of_another(connection, alias, created.name):
        raise NameTaken(f"the name '{created.name}' has just been taken", hint="Import it again.", name=created.name)
    fresh = {
        "name": created.name,
        "version": created.version,
        "source_digest": source_digest,
        "removed_at": None,
        "identity": identity.name,
        "imported_at": datetime.now(UTC),
        **({"source": source} if source else {}),
    }
    connection.execute(_UPSERT[connection.dialect.name, bool(source)], {"source": None, **values, **fresh})


def claim_import(connection: Connection, alias: Alias, source: str) -> None:
    """It is unchanged, and its folder is kept in step from now on."""
    connection.execute(_CLAIM, {"of_namespace": alias.namespace, "of_stated": alias.stated, "to_source": source})


def note_removed(
    connection: Connection, identity: Identity, source: str, kept: Set[Alias], *, prune: bool
) -> list[Removed]:
    """What was imported from a folder, and is not among what it holds now. `prune` yanks all versions of it that
    resolve. A skill that the identity may not publish, or does not see, is none of its business."""
    rows = connection.execute(
        select(
            imports.c.namespace, imports.c.stated, imports.c.name, imports.c.version, skills.c.id, skills.c.visibility
        )
        .join_from(imports, skills, skills.c.name == imports.c.name)
        .where(imports.c.source == source, imports.c.removed_at.is_(None))
        .order_by(imports.c.name)
    ).all()
    gone = [
        row
        for row in rows
        if Alias(row.namespace, row.stated) not in kept
        and _may(identity, row.name)
        and sees_skill(connection, identity, row.id, row.name, row.visibility)
    ]
    removed = []
    for row in gone:
        yanked = _yank_all(connection, identity, row.name, source) if prune else ()
        if prune:
            gone_row = and_(imports.c.namespace == row.namespace, imports.c.stated == row.stated)
            connection.execute(update(imports).where(gone_row).values(removed_at=datetime.now(UTC)))
        removed.append(Removed(row.name, row.stated, row.version, yanked))
    return removed


def _may(identity: Identity, name: str) -> bool:
    return access.is_admin(identity) or ("publish" in identity.scopes and access.covers(identity, name))


def _yank_all(connection: Connection, identity: Identity, name: str, source: str) -> tuple[str, ...]:
    resolving = connection.scalars(
        select(skill_versions.c.version)
        .join(skills, skills.c.id == skill_versions.c.skill_id)
        .where(skills.c.name == name, skill_versions.c.status.in_(RESOLVABLE))
        .order_by(skill_versions.c.precedence)
    ).all()
    for version in resolving:
        yank_version(connection, identity, name, Version.parse(version), f"no longer in {source}")
    return tuple(resolving)


_CHANGING = ("name", "version", "source_digest", "removed_at", "identity", "imported_at")
_CLAIM = (
    update(imports)
    .where(imports.c.namespace == bindparam("of_namespace"), imports.c.stated == bindparam("of_stated"))
    .values(source=bindparam("to_source"))
)


def _upsert(insert: Any, columns: Sequence[str]) -> Insert:
    made = insert(imports)
    changed = {column: made.excluded[column] for column in columns}
    upsert: Insert = made.on_conflict_do_update(index_elements=["namespace", "stated"], set_=changed)
    return upsert


_UPSERT = {
    (dialect.__name__.rpartition(".")[2], has_source): _upsert(
        dialect.insert, (*_CHANGING, "source") if has_source else _CHANGING
    )
    for dialect in (sqlite, postgresql)
    for has_source in (False, True)
}
