"""One query over one CSV: where, then group or select, then sort, then limit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from .aggregates import Aggregate, Figures
from .columns import position_of
from .csv_rows import CsvRows
from .expression import parse_where
from .sorting import Order

MOST_GROUPS = 100_000


class Query:
    """Checked when made (ValueError), run by iterating `rows()` once. `columns` are those of the result."""

    def __init__(
        self,
        source: str | Iterable[str],
        *,
        where: str = "",
        select: Sequence[str] = (),
        group_by: Sequence[str] = (),
        aggregate: Mapping[str, str] | None = None,
        sort: Sequence[str] = (),
        limit: int = 0,
        delimiter: str = "auto",
    ) -> None:
        if limit < 0:
            raise ValueError(f"limit is {limit}: give 0 for all rows, or a positive number")
        self.source = CsvRows(source, delimiter)
        self.matched = 0
        self.limit = limit
        columns = self.source.columns
        self._accepts = parse_where(where, columns)
        self._aggregates = [Aggregate(name, call, columns) for name, call in (aggregate or {}).items()]
        self._by = [position_of(name, columns) for name in group_by]
        self._grouped = bool(self._by or self._aggregates)
        made = [*group_by, *(each.name for each in self._aggregates)] if self._grouped else columns
        if len(set(made)) < len(made):
            raise ValueError(f"a column of the result is named twice: {', '.join(made):.300}")
        self._order = Order(sort, made)
        self._picked = [position_of(name, made) for name in select] or list(range(len(made)))
        self.columns = [made[position] for position in self._picked]

    def rows(self) -> Iterator[list[Any]]:
        found: Iterable[Sequence[Any]] = self._groups() if self._grouped else self._matching()
        if self._order:
            found = self._order.first(found, self.limit)
        for row in islice(found, self.limit or None):
            yield [row[position] for position in self._picked]

    def _matching(self) -> Iterator[list[str]]:
        for row in self.source:
            if self._accepts(row):
                self.matched += 1
                yield row

    def _groups(self) -> Iterator[list[Any]]:
        groups: dict[tuple[str, ...], list[Figures]] = {}
        if not self._by:
            groups[()] = [each.start() for each in self._aggregates]
        for row in self._matching():
            key = tuple(row[position] for position in self._by)
            figures = groups.get(key)
            if figures is None:
                figures = groups[key] = self._start_group(len(groups))
            for each, figure in zip(self._aggregates, figures, strict=True):
                each.add(figure, row)
        for key, figures in groups.items():
            yield [*key, *(each.result(figure) for each, figure in zip(self._aggregates, figures, strict=True))]

    def _start_group(self, groups: int) -> list[Figures]:
        if groups >= MOST_GROUPS:
            raise ValueError(f"more than {MOST_GROUPS} groups: group by fewer columns, or narrow the rows with where")
        return [each.start() for each in self._aggregates]


def query_csv(source: str | Iterable[str], **options: Any) -> list[dict[str, Any]]:
    """The rows of the result as objects; options are those of `Query`."""
    query = Query(source, **options)
    return [dict(zip(query.columns, row, strict=True)) for row in query.rows()]
