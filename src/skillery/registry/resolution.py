"""Resolution of a name and a version spec to one version, usually with one SQL statement."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, bindparam, exists, literal_column, select, true

from skillery.backends import Identity
from skillery.context.tracing import note_skill
from skillery.database import Statement
from skillery.database.tables import RESOLVABLE, labels, skill_versions, skills
from skillery.errors import LabelNotFound, SkillNotFound, VersionNotFound
from skillery.formats.semver import Version
from skillery.formats.skill_uris import skill_uri
from skillery.formats.version_spec import Digest, Exact, Label, Range, VersionSpec
from skillery.formats.wording import near_words
from skillery.registry.development import overlay_of
from skillery.registry.lookups import PLAIN, Lookup
from skillery.registry.version_rows import VersionRow, version_purged
from skillery.registry.visibility import (
    SEEN_BY_ALL,
    is_own,
    parameters,
    seen_by_name,
    sees_skill,
    sees_version,
    view_of,
)

_MOST_OWN = 200
"""The maximum number of private skills of the identity that are compared with a misspelt name."""


_of_skill = skill_versions.alias("of_skill")
_SKILL = Statement(
    select(
        skills.c.id,
        skills.c.visibility,
        exists()
        .where(
            _of_skill.c.skill_id == skills.c.id,
            _of_skill.c.status.in_([literal_column(f"'{status}'") for status in SEEN_BY_ALL]),
        )
        .label("is_seen_by_all"),
    ).where(skills.c.name == bindparam("name"))
)
_VERSIONS = Statement(
    select(skill_versions.c.status, skill_versions.c.publisher)
    .where(skill_versions.c.skill_id == bindparam("skill_id"))
    .distinct()
)


def resolve(connection: Connection, identity: Identity, name: str, spec: VersionSpec) -> VersionRow:
    """Return the version that `spec` selects. If `spec` selects a development version of the identity, return that one.

    Raise SkillNotFound, VersionNotFound or LabelNotFound, with suggestions, if the identity sees no such version. A
    version that the identity may not see is treated as absent, also in the texts of errors. Raise VersionPurged, which
    is a VersionNotFound, if an admin has purged the version.
    """
    return resolve_with(PLAIN, connection, identity, name, spec)[0]


def resolve_with(
    lookup: Lookup, connection: Connection, identity: Identity, name: str, spec: VersionSpec, **further: Any
) -> tuple[VersionRow, tuple[Any, ...] | None]:
    """Return the version like `resolve`, and the values of the further columns of `lookup`, or None for a development
    version. `further` are the parameters of these columns.
    """
    overlay = overlay_of(identity)
    if overlay is not None and (own := overlay.find(name, spec)) is not None:
        return own, None
    match = lookup.find(connection, name, spec, **further)
    if match and _sees(connection, identity, row := match[0]) and _is_asked(row, spec):
        if row.status == "purged":
            raise version_purged(row)
        note_skill(row.name, row.version, skill_uri)
        return match
    raise _not_found(connection, identity, name, spec)


def _is_asked(row: VersionRow, spec: VersionSpec) -> bool:
    """Return whether a version has the build metadata that the caller asked for, if any."""
    return not (isinstance(spec, Exact) and spec.version.build) or str(spec.version) == row.version


def version_if_there(connection: Connection, identity: Identity, name: str, version: Version) -> VersionRow | None:
    """Return exactly this version, or None if the identity sees no such version.

    Unlike `resolve`, this function returns purged versions. It does not search for similar names, and is faster for
    absent versions.
    """
    match = PLAIN.find(connection, name, Exact(version))
    return match[0] if match and _sees(connection, identity, match[0]) else None


def _sees(connection: Connection, identity: Identity, row: VersionRow) -> bool:
    return sees_version(identity, row.name, row.status, row.publisher) and sees_skill(
        connection, identity, row.skill_id, row.name, row.visibility
    )


# -- errors for absent skills, versions and labels -------------------------------------------------------------------


def skill_not_found(connection: Connection, identity: Identity, name: str) -> SkillNotFound:
    """Return the error for an absent skill. A skill that the identity may not see gets the same text."""
    near = _near_names(connection, identity, name)
    hint = f"Did you mean {_either(near)}?" if near else "list_skills shows all skills."
    return SkillNotFound(f"there is no skill '{name}'", hint=hint, name=name, near=near)


def find_skill(connection: Connection, identity: Identity, name: str) -> int | None:
    """Return the id of a skill, or None if the identity sees no version of the skill. Versions of any status count."""
    rows = _SKILL.rows(connection, name=name)
    if not rows:
        return None
    [(skill_id, visibility, is_seen_by_all)] = rows
    if not sees_skill(connection, identity, skill_id, name, visibility):
        return None
    if is_seen_by_all:
        return int(skill_id)
    versions = _VERSIONS.rows(connection, skill_id=skill_id)
    is_seen = any(sees_version(identity, name, status, publisher) for status, publisher in versions)
    return int(skill_id) if is_seen else None


def _not_found(
    connection: Connection, identity: Identity, name: str, spec: VersionSpec
) -> SkillNotFound | VersionNotFound | LabelNotFound:
    skill_id = find_skill(connection, identity, name)
    if skill_id is None:
        return skill_not_found(connection, identity, name)
    if isinstance(spec, Label):
        return _label_leads_nowhere(connection, skill_id, name, spec.label)
    newest = _newest_versions(connection, skill_id)
    hint = (
        f"The newest versions are {', '.join(newest)}."
        if newest
        else "No version of the skill resolves: list_versions shows all versions. "
        "A draft or a yanked version is found by its exact version only."
    )
    request = _shown(spec)
    return VersionNotFound(
        f"'{name}' has no version '{request}'", hint=hint, name=name, version=request, versions=newest
    )


def label_not_found(connection: Connection, skill_id: int, name: str, label: str) -> LabelNotFound:
    of_skill = select(labels.c.label).where(labels.c.skill_id == skill_id).order_by(labels.c.label)
    there = list(connection.scalars(of_skill))
    hint = f"The labels are {', '.join(there)}." if there else "The skill has no labels."
    return LabelNotFound(f"'{name}' has no label '{label}'", hint=hint, name=name, label=label, labels=there)


def _label_leads_nowhere(
    connection: Connection, skill_id: int, name: str, label: str
) -> VersionNotFound | LabelNotFound:
    """Return the error for a label that does not exist, or of a version that was yanked or purged later."""
    pointed_to = connection.execute(
        select(skill_versions.c.version, skill_versions.c.status)
        .join_from(labels, skill_versions, skill_versions.c.id == labels.c.version_id)
        .where(labels.c.skill_id == skill_id, labels.c.label == label)
    ).one_or_none()
    if pointed_to is None:
        return label_not_found(connection, skill_id, name, label)
    version, status = pointed_to
    by_version = "; a yanked version is found by its exact version or digest only." if status == "yanked" else "."
    return VersionNotFound(
        f"the label '{label}' of '{name}' points to {version}, which was {status}",
        hint=f"Move the label with set_label, or back with rollback_label{by_version}",
        name=name,
        version=label,
        versions=_newest_versions(connection, skill_id),
    )


def _shown(spec: VersionSpec) -> str:
    match spec:
        case Exact(version):
            return str(version)
        case Range(text, _):
            return text
        case Digest(digest):
            return digest
        case Label(label):
            return label
    return "latest"


def _newest_versions(connection: Connection, skill_id: int) -> list[str]:
    statement = (
        select(skill_versions.c.version)
        .where(skill_versions.c.skill_id == skill_id, skill_versions.c.status.in_(RESOLVABLE))
        .order_by(skill_versions.c.is_release.desc(), skill_versions.c.precedence.desc())
        .limit(5)
    )
    return list(connection.scalars(statement))


def _near_names(connection: Connection, identity: Identity, name: str) -> list[str]:
    """Return similar names of skills that the identity sees.

    The candidates are limited: neighbours of `name` in the index, and names with the same first segment.
    """
    view, values = view_of(identity), parameters(identity)
    listed = select(skills.c.name).where(skills.c.latest_version_id.is_not(None))
    first = name.partition(".")[0]
    names: set[str] = set()
    for method in [true()] if view is None else seen_by_name(view):
        seen = listed.where(method)
        looks = (
            seen.where(skills.c.name >= name).order_by(skills.c.name).limit(20),
            seen.where(skills.c.name < name).order_by(skills.c.name.desc()).limit(20),
            seen.where(skills.c.name >= first, skills.c.name < first + "/").order_by(skills.c.name).limit(40),
        )
        names.update(value for look in looks for value in connection.scalars(look, values))
    if view is not None:
        names.update(connection.scalars(listed.where(is_own()).limit(_MOST_OWN), values))
    return near_words(name, sorted(names))


def _either(names: list[str]) -> str:
    return " or ".join(f"'{name}'" for name in names)
