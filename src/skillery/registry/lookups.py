"""The statements that find one version by its name and a version spec."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, bindparam, func, literal_column, select, union_all

from skillery.database import Statement
from skillery.database.tables import RESOLVABLE, labels, skill_versions, skills
from skillery.formats.ranges import Segment
from skillery.formats.version_spec import Digest, Exact, Label, Latest, Range, VersionSpec

_shown_labels = labels.alias("shown_labels")
# A literal, because a Statement supports no parameter of this kind.
_JOINED = func.aggregate_strings(_shown_labels.c.label, literal_column("','"))  # type: ignore[arg-type]
COLUMNS = (
    skill_versions.c.id,
    skills.c.name,
    skill_versions.c.version,
    skill_versions.c.digest,
    skill_versions.c.kind,
    skill_versions.c.status,
    skill_versions.c.manifest_json,
    skill_versions.c.frontmatter_json,
    skill_versions.c.warnings_json,
    skill_versions.c.skill_id,
    skills.c.visibility,
    skill_versions.c.publisher,
    skill_versions.c.publisher_kind,
    skill_versions.c.standing_json,
    # A column of each row, because a separate statement would be another round trip to Postgres.
    select(_JOINED).where(_shown_labels.c.version_id == skill_versions.c.id).scalar_subquery().label("labels_text"),
    skill_versions.c.checks_json,
    skill_versions.c.provenance_json,
)

"""The columns of a VersionRow, in its order."""


class Lookup:
    """The statements that find the version that a version spec selects.

    `further` are columns that the rows have in addition: a separate statement would be another round trip to Postgres.
    """

    def __init__(self, *further: ColumnElement[Any]) -> None:
        columns = (*COLUMNS, *further)
        self._keys = [str(column.key) for column in columns]
        of_skill = select(*columns).join_from(skill_versions, skills, skills.c.id == skill_versions.c.skill_id)
        self._of_named_skill = of_skill.where(skills.c.name == bindparam("name"))
        self._latest = Statement(
            select(*columns)
            .join_from(skills, skill_versions, skill_versions.c.id == skills.c.latest_version_id)
            .where(skills.c.name == bindparam("name"))
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

    def rows(self, connection: Connection, name: str, spec: VersionSpec, **further: Any) -> list[Any]:
        """Return the row of the version, or []. `further` are the parameters of the further columns."""
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
        """Return the row of the highest version in any segment, or [] if there is none. Each segment needs one index
        scan.
        """
        if not segments:
            return []
        statement = self._range_statement(tuple((segment.release, segment.high is not None) for segment in segments))
        parameters: dict[str, Any] = {"name": name, **further}
        for place, segment in enumerate(segments):
            parameters[f"low_{place}"] = segment.low
            if segment.high is not None:
                parameters[f"high_{place}"] = segment.high
        return statement.rows(connection, **parameters)

    def _make_range_statement(self, shape: tuple[tuple[bool, bool], ...]) -> Statement:
        """Return the statement for segments of the given shape, which has a pair for each segment.

        The pair states whether the segment has releases (else pre-releases), and whether it has an upper bound.
        """
        parts = [self._segment_statement(place, *one).subquery() for place, one in enumerate(shape)]
        found = union_all(*(select(part) for part in parts)).subquery()
        newest = select(found).order_by(found.c.precedence.desc()).limit(literal_column("1")).subquery()
        return Statement(select(*(newest.c[key] for key in self._keys)))

    def _segment_statement(self, place: int, is_release: bool, has_high: bool) -> Select[Any]:
        precedence = skill_versions.c.precedence
        statement = self._of_named_skill.add_columns(precedence).where(
            skill_versions.c.status.in_([literal_column(f"'{status}'") for status in RESOLVABLE]),
            skill_versions.c.is_release.is_(is_release),
            precedence >= bindparam(f"low_{place}"),
        )
        if has_high:
            statement = statement.where(precedence < bindparam(f"high_{place}"))
        return statement.order_by(precedence.desc()).limit(literal_column("1"))


PLAIN = Lookup()
"""Finds versions without further columns."""
