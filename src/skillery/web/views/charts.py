"""Charts: sparks and bars as SVG, and charts of tables as the lines, labels and paths that a template writes as SVG."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple, get_args

from markupsafe import Markup
from msgspec import Struct

from skillery.web.display import without_hidden
from skillery.web.views.tables import Table, Type, Wanted, is_plain_number, number_in

_SPARK_HEIGHT = 24
_LEAST_ROWS, _MOST_ROWS = 2, 5000
_MOST_COLUMNS, _MOST_TIMES, _MOST_TITLES, _BINS, _MOST_SERIES = 60, 16, 120, 12, 3
_SIMILAR = 20
"""Columns whose largest numbers differ by a higher factor do not share a chart."""
_LONG_LABEL = 14
_LARGEST = 1e15
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 8, 10, 26
Kind = Literal["columns", "stacked columns", "line", "points", "histogram"]
KINDS: tuple[Kind, ...] = get_args(Kind)
Cells = dict[str, list[float | None]]
"""The numbers of the columns of numbers, by the name of the column."""


class Mark(Struct, frozen=True):
    """A column, or all columns, points or lines of one series, as a path. `series` is a number from 1."""

    series: int
    path: str
    title: str = ""


class Drawing(Struct, frozen=True):
    """A chart in one width. The lines and the labels have their place in pixels."""

    width: int
    height: int
    lines: list[tuple[float, str]]
    labels: list[tuple[float, str]]
    marks: list[Mark]


class Chart(Struct, frozen=True):
    """A chart of a table, for wide windows and for phones. `xs` and `ys` are the columns that its form offers."""

    kind: Kind
    x: str
    title: str
    words: str
    names: list[str]
    drawings: list[Drawing]
    xs: list[str]
    ys: list[str]


def spark(values: Sequence[int], failed: Sequence[int], words: str) -> Markup:
    """Return a small picture of columns, one for each value, with the part of `failed` in red. `words` describe it."""
    highest, unit = max(*values, 1), _SPARK_HEIGHT - 2
    paths = ["", ""]
    for place, (value, failures) in enumerate(zip(values, failed, strict=True)):
        x, foot = 4 * place + 1.5, float(_SPARK_HEIGHT)
        for kind, part in ((1, failures), (0, value - failures)):
            if part > 0:
                # A column is at least a pixel high, and not higher than the picture.
                top = max(1.0, foot - max(1.0, unit * part / highest))
                paths[kind] += f"M{x:g} {foot:.3g}V{top:.3g}"
                foot = top
    width = 4 * len(values) - 1
    failures_path = Markup('<path class="fail" d="{}"/>').format(paths[1]) if paths[1] else ""
    return Markup(
        '<svg class="spark" viewBox="0 0 {} {}" preserveAspectRatio="none" role="img" aria-label="{}">'
        '<path class="base" d="M0 23.5H{}"/><path d="{}"/>{}</svg>'
    ).format(width, _SPARK_HEIGHT, words, width, paths[0], failures_path)


def spans(parts: Iterable[tuple[str, float, float]], end: float, words: str) -> Markup:
    """Return a bar for the time from 0 to `end`. A part has its CSS class, start and end. `words` describe the bar."""
    paths: dict[str, str] = {}
    for css, start, stop in parts:
        left = 100 * min(max(start, 0.0), end) / (end or 1)
        right = max(left + 0.5, 100 * min(stop, end) / (end or 1))
        paths[css] = f"{paths.get(css, '')}M{left:.4g} 1.5H{right:.4g}"
    path = Markup('<path class="{}" d="{}"/>')
    return Markup(
        '<svg class="span" viewBox="0 0 100 3" preserveAspectRatio="none" role="img" aria-label="{}">'
        '<path class="all" d="M0 1.5H100"/>{}</svg>'
    ).format(words, Markup().join(path.format(css, line) for css, line in paths.items()))


def share(used: float, allowed: float) -> Markup:
    """Return a bar that shows how much of a limit is used: from 80 % on, and at the limit, in another colour."""
    percent = 100 * used / (allowed or 1)
    css = "full" if percent >= 100 else "near" if percent >= 80 else ""
    return spans([(css, 0, used)], allowed, f"{percent:.0f} percent used")


# -- The chart of a table: its columns, their sums, and its kind -------------------------------------------------------


class _Drawn(NamedTuple):
    """The numbers of each series by its name, one for each label. Points have no labels, and two series: x and y."""

    kind: Kind
    title: str
    labels: list[str]
    series: dict[str, list[float]]


def chart_of(table: Table, types: Sequence[Type], rows: list[list[str]], wanted: Wanted, width: int) -> Chart | None:
    """Return the chart that `wanted` names, or the one that fits the columns. Return None if no chart fits."""
    places = {name: place for place, name in enumerate(table.head)}
    cells: Cells = {name: [_bounded(row[at]) for row in rows] for name, at in places.items() if types[at] == "number"}
    numbers = [name for name in cells if not is_plain_number(name)] or list(cells)
    if wanted.chart == "none" or not numbers or not _LEAST_ROWS <= len(rows) <= _MOST_ROWS:
        return None
    others = sorted((name for name in places if name not in cells), key=lambda name: types[places[name]] != "time")
    x = wanted.x if wanted.x in places else "".join(others[:1])
    names = [wanted.y] if wanted.y in cells else _alike(numbers, cells)
    kind = next((kind for kind in KINDS if kind == wanted.chart), None)
    if (kind == "points" and len(cells) > 1) or (not (kind or x) and len(numbers) > 1):
        x = x if x in cells else next(name for name in [*numbers, *cells] if name != wanted.y)
        drawn = _points(x, next(name for name in [wanted.y, *numbers, *cells] if name in cells and name != x), cells)
    elif kind in {"points", "histogram"} or not x:
        x, drawn = "", _histogram(names[0], cells)
    else:
        labels = [row[places[x]] or "empty" for row in rows]
        is_time = types[places[x]] == "time"
        drawn = _by_label(kind, x, labels, {name: cells[name] for name in names}, wanted.agg, is_time=is_time)
    if len(next(iter(drawn.series.values()))) < _LEAST_ROWS:
        return None
    words = without_hidden(f"{drawn.kind} of {drawn.title}: {_extremes(drawn)}")
    drawings = [_drawing(drawn, width, 240, _MOST_TITLES), _drawing(drawn, 344, 200, 0)]
    shown = list(drawn.series) if drawn.kind != "points" else []
    return Chart(drawn.kind, x, _capital(drawn.title), _capital(words), shown, drawings, list(places), numbers)


def _capital(words: str) -> str:
    return f"{words[0].upper()}{words[1:]}"


def _bounded(cell: str) -> float | None:
    value = number_in(cell)
    return value if value is not None and abs(value) < _LARGEST else None


def _alike(numbers: list[str], cells: Cells) -> list[str]:
    """Return the first column of numbers, and up to two others with numbers of similar size."""
    sizes = {name: max((abs(value) for value in cells[name] if value), default=0.0) for name in numbers}
    low, high = (sizes[numbers[0]] * factor for factor in (1 / _SIMILAR, _SIMILAR))
    return [name for name in numbers if low <= sizes[name] <= high][:_MOST_SERIES]


def _points(x: str, y: str, cells: Cells) -> _Drawn:
    pairs = [(left, right) for left, right in zip(cells[x], cells[y], strict=True) if None not in (left, right)]
    return _Drawn("points", f"{y} by {x}", [], {n: [pair[at] or 0.0 for pair in pairs] for at, n in enumerate((x, y))})


def _histogram(name: str, cells: Cells) -> _Drawn:
    """Return the number of rows in each of about 12 bins. The label of a bin is its first number."""
    values = [value for value in cells[name] if value is not None] or [0.0]
    ticks = _ticks(values, _BINS)
    counts = [0.0] * (len(ticks) - 1)
    for value in values:
        counts[min(len(counts) - 1, int((value - ticks[0]) / (ticks[1] - ticks[0])))] += 1
    return _Drawn("histogram", f"rows by {name}", [_short(tick) for tick in ticks[:-1]], {"rows": counts})


def _by_label(kind: Kind | None, x: str, labels: list[str], cells: Cells, agg: str, *, is_time: bool) -> _Drawn:
    """Return the sums, the means or the number of the rows with the same label.

    Times are in their order. If rows share a label, the highest labels come first. Columns show only the first labels.
    """
    cells = cells if agg not in {"mean", "count"} else dict(list(cells.items())[:1])
    values: list[list[float | None]] = [[1.0] * len(labels)] if agg == "count" else list(cells.values())
    totals = {label: [0.0] * len(values) for label in labels}
    counts = dict.fromkeys(labels, 0)
    for row, label in enumerate(labels):
        totals[label] = [total + (column[row] or 0.0) for total, column in zip(totals[label], values, strict=True)]
        counts[label] += values[0][row] is not None
    if agg == "mean":
        totals = {label: [total[0] / (counts[label] or 1)] for label, total in totals.items()}
    *first, last = cells
    title = "rows" if agg == "count" else " and ".join([*filter(None, [", ".join(first)]), last])
    if len(totals) < len(labels):
        title = title if agg == "count" else f"{agg or 'sum'} of {title}"
        totals = dict(sorted(totals.items(), key=lambda item: -item[1][0]))
    if is_time:
        totals = dict(sorted(totals.items()))
        kind = kind or ("line" if len(totals) > _MOST_TIMES else None)
    shown = list(totals)[: None if kind == "line" else _MOST_COLUMNS]
    series = {name: [totals[label][at] for label in shown] for at, name in enumerate(cells)}
    is_stacked = len(series) > 1 and kind != "columns" and min(map(min, series.values())) >= 0
    kind = kind if kind == "line" else "stacked columns" if is_stacked else "columns"
    return _Drawn(kind, f"{title} by {x}", shown, series)


def _extremes(drawn: _Drawn) -> str:
    """Return the number of values, the lowest and the highest in words."""
    totals = [sum(column) for column in zip(*drawn.series.values(), strict=True)]
    if not drawn.labels:
        return f"{len(totals):,} points"
    ends = [(words, totals.index(value)) for words, value in (("lowest", min(totals)), ("highest", max(totals)))]
    texts = (f"{words} {drawn.labels[at][:40]} with {totals[at]:,.6g}" for words, at in ends)
    return f"{len(totals):,} values, {', '.join(texts)}"


# -- Places in pixels --------------------------------------------------------------------------------------------------


def _drawing(drawn: _Drawn, width: int, height: int, most_titles: int) -> Drawing:
    kind, labels, series = drawn.kind, drawn.labels, list(drawn.series.items())
    shown = series[1:] if kind == "points" else series
    columns = zip(*(values for _, values in shown), strict=True)
    heights = [sum(values) if kind == "stacked columns" else value for values in columns for value in values]
    ticks = _ticks(heights if kind in {"line", "points"} else [*heights, 0.0])
    foot = height - _BOTTOM
    scale = (foot - _TOP) / (ticks[-1] - ticks[0])
    x_ticks = _ticks(series[0][1]) if kind == "points" else []
    labels = [_short(tick) for tick in x_ticks] or [without_hidden(label[:_LONG_LABEL]) for label in labels]
    band = (width - _LEFT - _RIGHT) / len(labels)
    centers = [_LEFT + band * (place + 0.5) for place in range(len(labels))]
    room = 16 + 7 * max(map(len, labels))
    under = list(zip([round(center, 1) for center in centers], labels, strict=True))[:: math.ceil(room / band)]
    if kind == "points":
        centers = [centers[0] + band * (value - x_ticks[0]) / (x_ticks[1] - x_ticks[0]) for value in series[0][1]]

    def y(value: float) -> float:
        return round(foot - (value - ticks[0]) * scale, 1)

    marks: list[Mark] = []
    bases = [0.0] * len(centers)
    for number, (name, values) in enumerate(shown, 1):
        if kind in {"line", "points"}:
            points = [f"{center:.1f} {y(value)}" for center, value in zip(centers, values, strict=True)]
            marks.append(Mark(number, f"M{'L'.join(points)}" if kind == "line" else f"M{'h0M'.join(points)}h0"))
            continue
        bar = 0.74 * band / (len(shown) if kind == "columns" else 1)
        offset = bar * (number - 1) * (kind == "columns") - 0.37 * band
        ends = [base + value for base, value in zip(bases, values, strict=True)]
        lefts = (center + offset for center in centers)
        paths = [
            f"M{left:.1f} {y(base)}H{left + bar:.1f}V{y(end)}H{left:.1f}z"
            for left, base, end in zip(lefts, bases, ends, strict=True)
        ]
        bases = ends if kind == "stacked columns" else bases
        if len(labels) * len(shown) > most_titles:
            paths, titles = ["".join(paths)], [""]
        else:
            titles = [f"{label}, {name[:80]}: {value:,.6g}" for label, value in zip(labels, values, strict=True)]
        marks += [Mark(number, path, without_hidden(title)) for path, title in zip(paths, titles, strict=True)]
    lines = [(y(tick), _short(tick)) for tick in ticks]
    return Drawing(width, height, lines, [(x, text) for x, text in under if x + room / 2 <= width + 8], marks)


def _ticks(values: Sequence[float], most: int = 5) -> list[float]:
    """Return round numbers at equal distances that enclose all values: at least two, and about `most`."""
    low, high = min(values), max(values)
    span = high - low if high - low > 1e-9 else max(abs(high), 1.0)
    power = 10.0 ** math.floor(math.log10(span / most))
    step = next(power * factor for factor in (1, 2, 5, 10, 20) if span / (power * factor) <= most)
    first, last = math.floor(low / step), math.ceil(high / step)
    return [number * step for number in range(first, max(last, first + 1) + 1)]


def _short(value: float) -> str:
    """Return a number for an axis, for example 1,500, 50k or 1.2M."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= 10 * size:
            return f"{value / size:.6g}{unit}"
    return f"{value:,.6g}"
