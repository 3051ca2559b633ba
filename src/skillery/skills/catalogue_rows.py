"""The rows of the catalogue: the latest version of each skill, and versions that are drafts, in review, rejected or
yanked. The transaction that changes a version also updates its row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

import msgspec
from sqlalchemy import Connection, bindparam, delete, insert, literal_column, or_, select, update

from skillery.database import Change, Statement, in_utc, select_row
from skillery.database.tables import (
    catalogue,
    catalogue_hosts,
    catalogue_tags,
    import_aliases,
    search_words,
    skill_files,
    skill_versions,
    skills,
)
from skillery.formats.bundle import Bundle
from skillery.formats.network import parse_network_pattern
from skillery.registry.uses import NO_USE, Sums, sums_of
from skillery.registry.version_rows import VersionValues
from skillery.registry.visibility import has_visibility
from skillery.skills.catalogue_filters import (
    CHOICES,
    FLAGS,
    LISTED,
    Checks,
    Choice,
    Flag,
    Manifest,
    VersionParts,
    stored_tag,
)
from skillery.skills.catalogue_order import Standing, claim_marks, rank_later, ranked

OTHERS = ("draft", "in_review", "rejected", "yanked")
"""The statuses of versions that have a row of their own, next to the latest version of the skill."""


class _Step(msgspec.Struct):
    at: datetime


class _Standing(msgspec.Struct):
    approval: _Step | None = None


class _Version(NamedTuple):
    """The values of a version that its row in the catalogue follows from."""

    name: str
    visibility: str
    namespace: str
    publisher: str
    status: str
    kind: str
    created_at: datetime
    manifest_json: str
    checks_json: str | None
    frontmatter_json: str
    standing_json: str | None


_manifest = msgspec.json.Decoder(Manifest)
_checks = msgspec.json.Decoder(Checks)
_standing = msgspec.json.Decoder(_Standing)

_others = skill_versions.c.status.in_([literal_column(f"'{status}'") for status in OTHERS])
_WANTED = Statement(
    select(skill_versions.c.id, skill_versions.c.status)
    .join_from(skills, skill_versions, skill_versions.c.skill_id == skills.c.id)
    .where(skills.c.id == bindparam("of_skill"), or_(skill_versions.c.id == skills.c.latest_version_id, _others))
)
_PRESENT = Statement(
    select(catalogue.c.version_id, catalogue.c.status).where(catalogue.c.skill_id == bindparam("of_skill"))
)
_NAME = Statement(select(skills.c.name).where(skills.c.id == bindparam("of_skill")))
_VERSION = Statement(
    select_row(_Version, skill_versions, skills)
    .join_from(skill_versions, skills, skills.c.id == skill_versions.c.skill_id)
    .where(skill_versions.c.id == bindparam("of_version"))
)
_PATHS = Statement(select(skill_files.c.path).where(skill_files.c.version_id == bindparam("of_version")))
_FILTERS: Mapping[str, Flag | Choice] = {**FLAGS, **CHOICES}
_ADD = Change(insert(catalogue), tuple(column.name for column in catalogue.c))
_ADD_TAGS = Change(insert(catalogue_tags), ("version_id", "tag"))
_ADD_HOSTS = Change(insert(catalogue_hosts), ("version_id", "host"))


def update_catalogue(connection: Connection, skill_id: int, *, rebuild: bool = False) -> None:
    """Make the rows of a skill those of its present versions. Call this after a change of a version or a status.

    With `rebuild`, compute all its rows again.
    """
    # The status of each version, by its id.
    wanted = dict(_WANTED.rows(connection, of_skill=skill_id))
    present = dict(_PRESENT.rows(connection, of_skill=skill_id))
    outdated = [version_id for version_id, status in present.items() if rebuild or wanted.get(version_id) != status]
    if outdated:
        for table in (catalogue_hosts, catalogue_tags, catalogue):
            connection.execute(delete(table).where(table.c.version_id.in_(outdated)))
    added = [version_id for version_id, status in wanted.items() if rebuild or present.get(version_id) != status]
    sums = sums_of(connection, [skill_id])[skill_id] if added and (rebuild or present) else NO_USE
    for version_id in added:
        [row] = _VERSION.rows(connection, of_version=version_id)
        paths = [path for (path,) in _PATHS.rows(connection, of_version=version_id)]
        _add(connection, skill_id, version_id, _Version(*row), paths, sums)
    if outdated or added:
        [(name,)] = _NAME.rows(connection, of_skill=skill_id)
        rank_later(connection, name)


def add_first(connection: Connection, bundle: Bundle, values: VersionValues, version_id: int, visibility: str) -> None:
    """Add the row of the first version of a skill."""
    stored: dict[str, Any] = {name: value for name, value in values._asdict().items() if name in _Version._fields}
    row = _Version(**stored, name=bundle.manifest.name, visibility=visibility, standing_json=None)
    if row.status in (*LISTED, *OTHERS):
        paths = [file.path for file in bundle.files]
        if _add(connection, values.skill_id, version_id, row, paths, NO_USE):
            rank_later(connection, row.name)


def update_visibility(connection: Connection, skill_id: int, visibility: str) -> None:
    """Store the skill's visibility in its rows."""
    connection.execute(update(catalogue).where(catalogue.c.skill_id == skill_id).values(visibility=visibility))


def hosts_of(network: Sequence[str]) -> list[str]:
    """Return the stored hosts of `permissions.network`, each once, without entries that no manifest may contain."""
    patterns = [parse_network_pattern(entry) for entry in network]
    return sorted({pattern.text for pattern in patterns if not isinstance(pattern, str)})


def tags_of(tags: Sequence[str]) -> list[str]:
    """Return the stored tags of a manifest, each once."""
    return sorted({stored_tag(tag) for tag in tags if tag.strip()})


def _add(
    connection: Connection,
    skill_id: int,
    version_id: int,
    row: _Version,
    paths: Sequence[str],
    sums: Sums,
) -> bool:
    """Add the row of a version, its tags and its hosts. Return whether its rank depends on other skills."""
    manifest = _manifest.decode(row.manifest_json)
    checks = _checks.decode(row.checks_json) if row.checks_json is not None else Checks()
    approval = _standing.decode(row.standing_json).approval if row.standing_json else None
    frontmatter = msgspec.json.decode(row.frontmatter_json, type=dict[str, Any])
    parts = VersionParts(manifest, checks, paths, row.kind, frontmatter, approval is not None)
    is_shown = row.status in LISTED
    standing = Standing(ranked(sums), None)
    if is_shown:
        standing = claim_marks(connection, skill_id, row.name, manifest.description, row.publisher, sums)
    _ADD.run_later(
        connection,
        version_id=version_id,
        skill_id=skill_id,
        name=row.name,
        namespace=row.namespace,
        visibility=row.visibility,
        publisher=row.publisher,
        status=row.status,
        kind=row.kind,
        language=parts.language,
        **{name: flag.of(parts) for name, flag in _FILTERS.items()},
        published_at=approval.at if approval else in_utc(row.created_at),
        **sums._asdict(),
        own_rank=standing.own_rank,
        used_rank=standing.own_rank,
        looks_like=standing.looks_like,
    )
    _ADD_TAGS.run_many(connection, [{"version_id": version_id, "tag": tag} for tag in tags_of(manifest.tags)])
    hosts = hosts_of(manifest.permissions.network)
    _ADD_HOSTS.run_many(connection, [{"version_id": version_id, "host": host} for host in hosts])
    return standing.looks_like is not None


# -- What a row has from other tables: subqueries for the entries of the catalogue -------------------------------------


_original = skills.alias("original")
_own_words, _same_words = search_words.alias("own_words"), search_words.alias("same_words")
LOOKS_LIKE = (
    select(_original.c.name)
    .where(_original.c.name == catalogue.c.looks_like, has_visibility("public", _original))
    .scalar_subquery()
)
"""The older skill that a skill looks like. The name of an older skill that has become private is not shown."""
_OLDER = (
    select(_same_words.c.skill_id)
    .join_from(_own_words, _same_words, _same_words.c.copy_key == _own_words.c.copy_key)
    .where(_own_words.c.skill_id == catalogue.c.skill_id, _same_words.c.skill_id < catalogue.c.skill_id)
    .order_by(_same_words.c.skill_id)
    .limit(literal_column("20"))
    .correlate(catalogue)
)
COPY_OF = (
    select(_original.c.name)
    .where(_original.c.id.in_(_OLDER), has_visibility("public", _original))
    .order_by(_original.c.id)
    .limit(literal_column("1"))
    .correlate(catalogue)
    .scalar_subquery()
)
"""The oldest public skill with the same contents, among the 20 oldest: private copies are without number."""
SOURCE = (
    select(import_aliases.c.source)
    .where(import_aliases.c.name == catalogue.c.name, import_aliases.c.owns)
    .limit(literal_column("1"))
    .scalar_subquery()
)
"""Where the skill was imported from."""
