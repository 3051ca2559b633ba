"""Resolution of a name and a version spec to one version, usually with one SQL statement."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Select,
    bindparam,
    exists,
    func,
    literal_column,
    select,
    true,
    union_all,
)

from skillery.backends import Identity
from skillery.context.request import note_skill
from skillery.database import Statement, select_row
from skillery.database.tables import RESOLVABLE, labels, skill_versions, skills
from skillery.errors import LabelNotFound, SkillNotFound, VersionNotFound
from skillery.formats.ranges import Segment
from skillery.formats.semver import Version
from skillery.formats.skill_uris import skill_uri
from skillery.formats.version_spec import Digest, Exact, Label, Latest, Range, VersionSpec
from skillery.formats.wording import near_words
from skillery.registry.development import overlay_of
from skillery.registry.revocations import require_readable, version_purged
from skillery.registry.version_rows import VersionRow
from skillery.registry.visibility import (
    SEEN_BY_ALL,
    is_for,
    is_own,
    parameters,
    seen_by_name,
    sees_skill,
    sees_version,
    view_of,
)

# -- The statements that find one version by its name and a version spec -----------------------------------------------


_shown_labels = labels.alias("shown_labels")
# A literal, because a Statement supports no parameter of this kind.
_JOINED = func.aggregate_strings(_shown_labels.c.label, literal_column("','"))  # type: ignore[arg-type]
# A column of each row, because a separate statement would be another round trip to Postgres.
_labels_text = select(_JOINED).where(_shown_labels.c.version_id == skill_versions.c.id).scalar_subquery()
_VERSION = select_row(VersionRow, skill_versions, skills, version_id=skill_versions.c.id, labels_text=_labels_text)


class Lookup:
    """The statements that find the version that a version spec selects. `further` are additional columns of the rows,
    because a separate statement would be another round trip to Postgres.
    """

    def __init__(self, *further: ColumnElement[Any]) -> None:
        version = _VERSION.add_columns(*further)
        self._keys = version.selected_columns.keys()
        self._width = len(_VERSION.selected_columns)
        of_skill = version.join_from(skill_versions, skills, skills.c.id == skill_versions.c.skill_id)
        self._of_named_skill = of_skill.where(skills.c.name == bindparam("name"))
        self._latest = Statement(
            version.join_from(skills, skill_versions, skill_versions.c.id == skills.c.latest_version_id).where(
                skills.c.name == bindparam("name")
            )
        )
        self._exact = Statement(self._of_named_skill.where(skill_versions.c.precedence == bindparam("precedence")))
        self._by_digest = Statement(
            self._of_named_skill.where(skill_versions.c.digest == bindparam("digest"))
            .order_by(skill_versions.c.precedence.desc())
            .limit(literal_column("1"))
        )
        self._by_label = Statement(
            self._of_named_skill.join(labels, labels.c.version_id == skill_versions.c.id).where(
                labels.c.skill_id == skills.c.id,
                labels.c.label == bindparam("label"),
                skill_versions.c.status.in_([literal_column(f"'{status}'") for status in RESOLVABLE]),
            )
        )
        # The cache is small because callers choose the shape, and a compiled statement holds up to a megabyte.
        self._range_statement = lru_cache(64)(self._make_range_statement)

    def find(
        self, connection: Connection, name: str, spec: VersionSpec, **further: Any
    ) -> tuple[VersionRow, tuple[Any, ...]] | None:
        """Return the version and the values of the additional columns, or None. `further` are the SQL parameters of the
        additional columns.
        """
        for row in self._rows(connection, name, spec, further):
            return VersionRow(*row[: self._width]), tuple(row[self._width :])
        return None

    def _rows(self, connection: Connection, name: str, spec: VersionSpec, further: dict[str, Any]) -> list[Any]:
        """Return a list with the row of the selected version, or an empty list."""
        match spec:
            case Latest():
                return self._latest.rows(connection, name=name, **further)
            case Exact(version):
                return self._exact.rows(connection, name=name, precedence=version.precedence, **further)
            case Digest(digest):
                return self._by_digest.rows(connection, name=name, digest=digest, **further)
            case Label(label):
                return self._by_label.rows(connection, name=name, label=label, **further)
            case Range(_, segments):
                return self._highest_in(connection, name, segments, further)

    def _highest_in(
        self, connection: Connection, name: str, segments: tuple[Segment, ...], further: dict[str, Any]
    ) -> list[Any]:
        """Return a list with the row of the highest version in any segment, or an empty list. Each segment needs one
        index scan.
        """
        if not segments:
            return []
        statement = self._range_statement(tuple((segment.release, segment.high is not None) for segment in segments))
        parameters: dict[str, Any] = {"name": name, **further}
        for number, segment in enumerate(segments):
            parameters[f"low_{number}"] = segment.low
            if segment.high is not None:
                parameters[f"high_{number}"] = segment.high
        return statement.rows(connection, **parameters)

    def _make_range_statement(self, shape: tuple[tuple[bool, bool], ...]) -> Statement:
        """Return the statement for a range of segments with this shape, a pair for each segment.

        A pair says whether the segment has releases (else pre-releases), and whether it has an upper bound.
        """
        parts = [self._segment_statement(number, *segment).subquery() for number, segment in enumerate(shape)]
        candidates = union_all(*(select(part) for part in parts)).subquery()
        newest = select(candidates).order_by(candidates.c.precedence.desc()).limit(literal_column("1")).subquery()
        return Statement(select(*(newest.c[key] for key in self._keys)))

    def _segment_statement(self, number: int, is_release: bool, has_high: bool) -> Select[Any]:
        """Return the SELECT of the highest version in the segment with the given number."""
        precedence = skill_versions.c.precedence
        statement = self._of_named_skill.add_columns(precedence).where(
            skill_versions.c.status.in_([literal_column(f"'{status}'") for status in RESOLVABLE]),
            skill_versions.c.is_release.is_(is_release),
            precedence >= bindparam(f"low_{number}"),
        )
        if has_high:
            statement = statement.where(precedence < bindparam(f"high_{number}"))
        return statement.order_by(precedence.desc()).limit(literal_column("1"))


PLAIN = Lookup()
"""The look-up of versions without additional columns."""


_MOST_OWN = 200
"""The maximum number of the identity's own private skills that are compared with a misspelt name."""

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


def resolve(
    connection: Connection, identity: Identity, name: str, spec: VersionSpec, *, manages: bool = False
) -> VersionRow:
    """Return the version that `spec` selects, which may be a development version of the identity. An invisible version
    is treated as absent, also in the texts of errors. Raise SkillNotFound, VersionNotFound or LabelNotFound, with
    suggestions, or VersionPurged. Without `manages`, raise the errors of `require_readable` too.
    """
    row, _ = resolve_with(PLAIN, connection, identity, name, spec)
    if not manages and row.unstored is None:
        require_readable(identity, row)
    return row


def resolve_with(
    lookup: Lookup, connection: Connection, identity: Identity, name: str, spec: VersionSpec, **further: Any
) -> tuple[VersionRow, tuple[Any, ...] | None]:
    """Return the version like `resolve` for any audience, and the values of the additional columns of `lookup`, or None
    for a development version. `further` are the SQL parameters of the additional columns."""
    overlay = overlay_of(identity)
    if overlay is not None and (development_version := overlay.find(name, spec)) is not None:
        return development_version, None
    match = lookup.find(connection, name, spec, **further)
    build = str(spec.version) if isinstance(spec, Exact) and spec.version.build else ""
    if match is None or not _sees(connection, identity, match[0]) or build not in {"", match[0].version}:
        raise _not_found(connection, identity, name, spec)
    row, _ = match
    if row.status == "purged":
        raise version_purged(row)
    note_skill(row.name, row.version, skill_uri)
    return match


def version_if_there(connection: Connection, identity: Identity, name: str, version: Version) -> VersionRow | None:
    """Return exactly this version, or None if the identity sees no such version. Unlike `resolve`, this function
    returns purged versions. It does not search for similar names, so it is faster for absent versions.
    """
    match = PLAIN.find(connection, name, Exact(version))
    return match[0] if match and _sees(connection, identity, match[0]) else None


def _sees(connection: Connection, identity: Identity, row: VersionRow) -> bool:
    """Return whether the identity sees the version and its skill."""
    return sees_version(identity, row.name, row.status, row.publisher) and sees_skill(
        connection, identity, row.skill_id, row.name, row.visibility
    )


# -- errors for absent skills, versions and labels -------------------------------------------------------------------


def skill_not_found(connection: Connection, identity: Identity, name: str) -> SkillNotFound:
    """Return the error for an absent skill, with similar names. A hidden skill gets the same text."""
    near = near_names(connection, identity, name)
    hint = f"Did you mean {_either(near)}?" if near else "list_skills shows all skills."
    return SkillNotFound(f"there is no skill '{name}'", hint=hint, name=name, near=near)


def find_skill(connection: Connection, identity: Identity, name: str) -> int | None:
    """Return the id of a skill, or None if the identity sees no version of the skill, of any status."""
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
    """Return the error for a label that the skill does not have."""
    of_skill = select(labels.c.label).where(labels.c.skill_id == skill_id).order_by(labels.c.label)
    label_names = list(connection.scalars(of_skill))
    hint = f"The labels are {', '.join(label_names)}." if label_names else "The skill has no labels."
    return LabelNotFound(f"'{name}' has no label '{label}'", hint=hint, name=name, label=label, labels=label_names)


def _label_leads_nowhere(
    connection: Connection, skill_id: int, name: str, label: str
) -> VersionNotFound | LabelNotFound:
    """Return the error for a label that does not exist, or whose version was yanked or purged later."""
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
    """Return the text of a version spec, for messages."""
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
    """Return the five highest versions of a skill that resolve, for hints."""
    statement = (
        select(skill_versions.c.version)
        .where(skill_versions.c.skill_id == skill_id, skill_versions.c.status.in_(RESOLVABLE))
        .order_by(skill_versions.c.is_release.desc(), skill_versions.c.precedence.desc())
        .limit(5)
    )
    return list(connection.scalars(statement))


def near_names(connection: Connection, identity: Identity, name: str) -> list[str]:
    """Return similar names of skills that the identity sees and may start."""
    # To limit the cost, only neighbours of `name` in the index and names with the same first segment are compared.
    view, values = view_of(identity), parameters(identity)
    latest = skills.c.latest_version_id
    published = select(skills.c.name).where(latest.is_not(None), *is_for(identity, latest))
    first_segment = name.partition(".")[0]
    names: set[str] = set()
    for is_visible in [true()] if view is None else seen_by_name(view):
        visible = published.where(is_visible)
        neighbour_queries = (
            visible.where(skills.c.name >= name).order_by(skills.c.name).limit(20),
            visible.where(skills.c.name < name).order_by(skills.c.name.desc()).limit(20),
            visible.where(skills.c.name >= first_segment, skills.c.name < first_segment + "/")
            .order_by(skills.c.name)
            .limit(40),
        )
        names.update(value for look in neighbour_queries for value in connection.scalars(look, values))
    if view is not None:
        names.update(connection.scalars(published.where(is_own()).limit(_MOST_OWN), values))
    return near_words(name, sorted(names))


def _either(names: list[str]) -> str:
    return " or ".join(f"'{name}'" for name in names)
