"""Totals and facets of the catalogue: how many rows pass the filters, by value.

The counts are computed from the rows, so no transaction maintains them. They are kept in memory until the audit trail
grows, because every change of the catalogue has an audit entry. Large counts that took long are kept longer.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import msgspec
from msgspec import Meta
from sqlalchemy import ColumnElement, Connection, func, literal_column, select

from skillery.backends import Identity
from skillery.database import Statement
from skillery.database.tables import audit_head, catalogue, catalogue_tags
from skillery.registry.visibility import parameters, view_of
from skillery.skills.catalogue_filters import (
    CHOICES,
    FLAGS,
    CatalogueFilter,
    FilterStatus,
    condition_parameters,
    conditions,
    is_listed,
)

MOST_TOTAL = 1000
MOST_TAGS_SHOWN = 30
MOST_TAGGED = 5000
"""Tags are counted in this number of matching rows, the newest ones: counting the tags of all rows would be slow."""
MOST_NAMESPACES_SHOWN = 100
SLOW_SECONDS = 0.02
UNLISTED: tuple[FilterStatus, ...] = ("draft", "in_review", "rejected", "yanked")
KEPT_SECONDS = 10.0
"""Counts of more than MOST_TOTAL rows that took longer than SLOW_SECONDS may be this old."""
_MOST_KEPT = 512
_SEQ = Statement(select(audit_head.c.seq))


class FacetValue(msgspec.Struct, frozen=True):
    """A value of a facet, and the number of rows that have the value."""

    value: Annotated[str | bool, Meta(description="As the param with the name of the facet takes it")]
    count: int


class _FacetsOfTexts(msgspec.Struct, frozen=True):
    namespace: Annotated[list[FacetValue], Meta(description="One level below the param; at most 100")]
    kind: list[FacetValue]
    language: list[FacetValue]
    tags: Annotated[list[FacetValue], Meta(description="In lower case, of the newest 5,000 matching rows; at most 30")]


if TYPE_CHECKING:
    _FacetsOfFlags = _FacetsOfTexts
else:
    _FacetsOfFlags = msgspec.defstruct(
        "_FacetsOfFlags",
        [(name, list[FacetValue]) for name in (*FLAGS, *CHOICES)],
        bases=(_FacetsOfTexts,),
        module=__name__,
        frozen=True,
    )


class Facets(_FacetsOfFlags, frozen=True):
    """The numbers of matching rows by value. Each facet has the name of a param. The highest number is first."""

    status: list[FacetValue]

    def of(self, name: str) -> list[FacetValue]:
        """Return the facet with this name."""
        facet: list[FacetValue] = getattr(self, name)
        return facet


NO_FACETS = Facets(*([] for _ in Facets.__struct_fields__))


class Counts(msgspec.Struct, frozen=True):
    """The number of matching rows, and the facets."""

    total: int
    """At most MOST_TOTAL."""
    total_is_more: bool
    facets: Facets


class _Cached(NamedTuple):
    """Counts, the number of audit entries before they were computed, and the monotonic time until which they are valid
    despite further entries.
    """

    counts: Counts
    entries: int
    until: float


class CountsCache:
    """The recent counts of this server."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._cached: OrderedDict[Hashable, _Cached] = OrderedDict()
        """The counts by filter and view."""

    def get(self, connection: Connection, key: Hashable, count: Callable[[], Counts]) -> Counts:
        """Return the counts for `key`. Call `count` if there are none, or if they are outdated."""
        # The number is read before the counts: a change in between makes them outdated, and never wrong.
        entries = _audit_entries(connection)
        with self._lock:
            cached = self._cached.get(key)
        if cached is not None and (cached.entries == entries or self._clock() < cached.until):
            return cached.counts
        started = self._clock()
        counts = count()
        ended = self._clock()
        is_slow = counts.total_is_more and ended - started > SLOW_SECONDS
        with self._lock:
            self._cached[key] = _Cached(counts, entries, ended + (KEPT_SECONDS if is_slow else 0))
            self._cached.move_to_end(key)
            if len(self._cached) > _MOST_KEPT:
                self._cached.popitem(last=False)
        return counts


def count_catalogue(connection: Connection, identity: Identity, filters: CatalogueFilter, cache: CountsCache) -> Counts:
    """Return the counts of the rows that pass the filters and that the identity sees."""

    def count() -> Counts:
        where = conditions(filters, view_of(identity))
        return _count(connection, where, condition_parameters(filters, identity), filters.namespace)

    return cache.get(connection, _key(filters, identity), count)


def count_unlisted(
    connection: Connection, identity: Identity, filters: CatalogueFilter, cache: CountsCache
) -> list[FacetValue]:
    """Return the numbers of versions that are not listed, by status: drafts, versions in review, rejected and yanked
    versions that pass the other filters and that the identity sees. Each number is at most MOST_TOTAL.
    """

    def count() -> Counts:
        numbers = {status: _number(connection, identity, filters, status) for status in UNLISTED}
        values = [FacetValue(status, number) for status, number in numbers.items() if number]
        return Counts(0, False, msgspec.structs.replace(NO_FACETS, status=values))

    return cache.get(connection, ("unlisted", *_key(filters, identity)), count).facets.status


def _number(connection: Connection, identity: Identity, filters: CatalogueFilter, status: FilterStatus) -> int:
    of_status = filters._replace(facts=filters.facts._replace(status=status))
    matching = select(catalogue.c.version_id).where(*conditions(of_status, view_of(identity))).limit(MOST_TOTAL)
    values = condition_parameters(of_status, identity)
    return connection.scalar(select(func.count()).select_from(matching.subquery()), values) or 0


def _key(filters: CatalogueFilter, identity: Identity) -> tuple[Hashable, ...]:
    return filters, view_of(identity), tuple(sorted(parameters(identity).items()))


def count_found(connection: Connection, skill_ids: Sequence[int], namespace: str, is_more: bool) -> Counts:
    """Return the counts of the latest versions of these skills. `is_more` says that a search has further results."""
    where = [is_listed(), catalogue.c.skill_id.in_(skill_ids)]
    counts = _count(connection, where, {}, namespace)
    return msgspec.structs.replace(counts, total=len(skill_ids), total_is_more=is_more)


# The order of the columns of ix_catalogue_facets.
_GROUPED = (
    catalogue.c.status,
    catalogue.c.kind,
    catalogue.c.language,
    *(catalogue.c[name] for name in (*FLAGS, *CHOICES)),
)


def _count(
    connection: Connection, where: Sequence[ColumnElement[bool]], values: dict[str, Any], namespace: str
) -> Counts:
    grouped = select(*_GROUPED, func.count().label("rows")).where(*where).group_by(*_GROUPED)
    groups = connection.execute(grouped, values).all()
    if not groups:
        return Counts(0, False, NO_FACETS)
    by_namespace = select(catalogue.c.namespace, func.count()).where(*where).group_by(catalogue.c.namespace)
    namespaces: Counter[str | bool] = Counter()
    for name, rows in connection.execute(by_namespace, values):
        namespaces[_level(name, namespace)] += rows
    total = sum(group.rows for group in groups)
    facets = {column.name: _values(_rows_by(groups, index)) for index, column in enumerate(_GROUPED)}
    return Counts(
        min(total, MOST_TOTAL),
        total > MOST_TOTAL,
        Facets(
            namespace=_values(namespaces)[:MOST_NAMESPACES_SHOWN], tags=_count_tags(connection, where, values), **facets
        ),
    )


def _rows_by(groups: Sequence[Any], index: int) -> Counter[str | bool]:
    """Return the numbers of rows by the value that the groups have at this index of _GROUPED."""
    counted: Counter[str | bool] = Counter()
    for group in groups:
        counted[group[index]] += group.rows
    return counted


def _values(counted: Counter[str | bool]) -> list[FacetValue]:
    ordered = sorted(counted.items(), key=lambda item: (-item[1], str(item[0])))
    return [FacetValue(value, count) for value, count in ordered if value != ""]


def _count_tags(
    connection: Connection, where: Sequence[ColumnElement[bool]], values: dict[str, Any]
) -> list[FacetValue]:
    newest_first = catalogue.c.published_at.desc(), catalogue.c.version_id.desc()
    newest = select(catalogue.c.version_id).where(*where).order_by(*newest_first).limit(MOST_TAGGED).subquery("newest")
    counted = (
        select(catalogue_tags.c.tag, func.count().label("rows"))
        .join_from(newest, catalogue_tags, catalogue_tags.c.version_id == newest.c.version_id)
        # Long tags are stored as a hash after a line feed. The concatenation keeps SQLite from reading all tags.
        .where(catalogue_tags.c.tag.concat(literal_column("''")) >= " ")
        .group_by(catalogue_tags.c.tag)
        .order_by(func.count().desc(), catalogue_tags.c.tag)
        .limit(MOST_TAGS_SHOWN)
    )
    return [FacetValue(tag, rows) for tag, rows in connection.execute(counted, values)]


def _level(name: str, above: str) -> str:
    """Return the part of a namespace that is one level below `above`."""
    depth = above.count(".") + 2 if above else 1
    return ".".join(name.split(".")[:depth])


def _audit_entries(connection: Connection) -> int:
    rows = _SEQ.rows(connection)
    return int(rows[0][0]) if rows else 0
