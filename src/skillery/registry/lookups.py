"""The statements that find one version by its name and a version spec."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, bindparam, func, literal_column, select, union_all

from skillery.database import Statement, select_row
from skillery.database.tables import RESOLVABLE, labels, skill_versions, skills
from skillery.formats.ranges import Segment
from skillery.formats.version_spec import Digest, Exact, Label, Latest, Range, VersionSpec
from skillery.registry.version_rows import VersionRow

_shown_labels = labels.alias("shown_labels")
# A literal, because a Statement supports no parameter of this kind.
_JOINED = func.aggregate_strings(_shown_labels.c.label, literal_column("','"))  # type: ignore[arg-type]
# A column of each row, because a separate statement would be another round trip to Postgres.
_labels_text = select(_JOINED).where(_shown_labels.c.version_id == skill_versions.c.id).scalar_subquery()
_VERSION = select_row(VersionRow, skill_versions, skills, version_id=skill_versions.c.id, labels_text=_labels_text)


class Lookup:
    """The statements that find the version that a version spec selects.

    `further` are columns that the rows have in addition: a separate statement would be another round trip to Postgres.
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
        """Return the version and the values of the further columns, or None. `further` are their parameters."""
        for row in self._rows(connection, name, spec, further):
            return VersionRow(*row[: self._width]), tuple(row[self._width :])
        return None

    def _rows(self, connection: Connection, name: str, spec: VersionSpec, further: dict[str, Any]) -> list[Any]:
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
        """Return the row of the highest version in any segment, or [] if the segments contain no version. Each segment
        needs one index scan.
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
        parts = [self._segment_statement(place, *segment).subquery() for place, segment in enumerate(shape)]
        candidates = union_all(*(select(part) for part in parts)).subquery()
        newest = select(candidates).order_by(candidates.c.precedence.desc()).limit(literal_column("1")).subquery()
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
