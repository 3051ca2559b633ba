"""Outputs and figures of runs: a JSON value as a tree, previews of files, phases and limits."""

from __future__ import annotations

import asyncio
import csv
import io
import json
from typing import Any, NamedTuple

import msgspec

from skillery.contents.blob_rows import BlobRow
from skillery.errors import SkilleryError
from skillery.method import or_none
from skillery.runs.results import RunRecord
from skillery.web.display import duration
from skillery.web.frame import PageRequest, path_of
from skillery.web.skill_files import HEAD_BYTES, kind_of

MOST_NODES = 200
MOST_NODES_ASKED = 5000
"""The maximum number of nodes after "show more"."""
MOST_JSON = 1024 * 1024
"""The maximum size in bytes of an output that is shown as a tree."""
DEEPEST = 12
"""The maximum number of levels of a tree."""
PREVIEWS = 8
"""The number of files with a preview."""
TEXT_BYTES = 16 * 1024
_CSV_ROWS, _CSV_COLUMNS = 100, 50
_DELIMITERS = ",;\t|"
_SAMPLE_LINES = 20


class LargeOutput(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The object that replaces a large output."""

    blob_id: str
    size_bytes: int
    preview: str


class Node(NamedTuple):
    """A value of a JSON document, as a node of a tree."""

    key: str
    text: str
    nodes: list[Any]
    """The shown values inside, of the type Node."""
    left_out: int
    """The number of values inside that are not shown."""


def tree_of(value: Any, most: int = MOST_NODES) -> Node:
    """Return a JSON value as a tree of at most `most` nodes and DEEPEST levels. Upper levels come first."""
    return _node("", value, _shown_counts(value, most), 0)


def _shown_counts(value: Any, most: int) -> dict[int, int]:
    """Return how many values of each object and array are shown, by the `id()` of the object or array."""
    shown_counts: dict[int, int] = {}
    level, nodes_left = [value], most - 1
    for _ in range(DEEPEST):
        next_level: list[Any] = []
        for container in level:
            inner = [value for _, value in _pairs(container)][:nodes_left]
            shown_counts[id(container)] = len(inner)
            nodes_left -= len(inner)
            next_level += [value for value in inner if isinstance(value, dict | list)]
        level = next_level
    return shown_counts


def _pairs(value: Any) -> list[tuple[str, Any]]:
    """Return the keys and values of an object, or the numbers and elements of an array, or []."""
    if isinstance(value, dict):
        return list(value.items())
    return [(str(number), element) for number, element in enumerate(value)] if isinstance(value, list) else []


def _node(key: str, value: Any, shown_counts: dict[int, int], depth: int) -> Node:
    """Return a value as a node. `shown_counts` comes from `_shown_counts`."""
    if not isinstance(value, dict | list):
        return Node(key, json.dumps(value, ensure_ascii=False)[:4000], [], 0)
    pairs = _pairs(value)
    if not pairs:
        return Node(key, "{}" if isinstance(value, dict) else "[]", [], 0)
    words = f"{'object' if isinstance(value, dict) else 'array'} of {len(pairs)}"
    if depth >= DEEPEST:
        return Node(key, f"{words}, not shown: it is {depth} levels deep", [], 0)
    nodes = [_node(name, child, shown_counts, depth + 1) for name, child in pairs[: shown_counts.get(id(value), 0)]]
    return Node(key, words, nodes, len(pairs) - len(nodes))


async def output_of(request: PageRequest, run: RunRecord) -> dict[str, Any]:
    """Return the template values for the output of a run.

    These are a tree, the node count for "show more", and the address and preview of a large output.
    """
    output = msgspec.json.decode(run.output)
    shown: dict[str, Any] = {"tree": None, "more_nodes": None, "output_blob": None, "output_text": None}
    if output is None:
        return shown
    wanted_text = request.query.get("nodes", "")
    wanted = int(wanted_text[:6]) if wanted_text.isdecimal() else 0
    most = min(max(wanted, MOST_NODES), MOST_NODES_ASKED)
    large = _large_output(run)
    if large is None:
        return {**shown, **await asyncio.to_thread(_shown, output, most)}
    shown |= {"output_blob": path_of("runs", run.run_id, "blobs", large.blob_id)}
    if large.size_bytes <= MOST_JSON:
        try:
            blob = await request.site.core.blobs.find_blob(request.identity, large.blob_id)
        except SkilleryError:
            return {**shown, "output_text": large.preview, "output_blob": None}  # it has expired
        content = await asyncio.to_thread(request.site.core.blobs.read_range, blob, 0, blob.size_bytes)
        try:
            value = await asyncio.to_thread(json.loads, content)
            return {**shown, **await asyncio.to_thread(_shown, value, most)}
        except (ValueError, RecursionError):
            pass  # a script has printed it
    return {**shown, "output_text": large.preview}


def _large_output(run: RunRecord) -> LargeOutput | None:
    """Return the object that replaces the output of a run, or None if the run has its output itself."""
    try:
        large = msgspec.json.decode(run.output, type=LargeOutput)
    except msgspec.ValidationError:
        return None
    return large if large.blob_id in run.output_blobs else None


def _shown(value: Any, most: int) -> dict[str, Any]:
    """Return the template values of a tree: the tree, and the node count for "show more" or None."""
    tree = tree_of(value, most)
    next_count = min(most * 5, MOST_NODES_ASKED)
    return {"tree": tree, "more_nodes": next_count if _is_cut(tree) and next_count > most else None}


def _is_cut(node: Node) -> bool:
    return bool(node.left_out) or any(_is_cut(child) for child in node.nodes)


class Preview(NamedTuple):
    """A file that a run has written: with its first lines, as a table, as an image, or without a preview."""

    name: str
    kind: str
    size_bytes: int
    address: str
    is_image: bool
    text: str
    table: list[list[str]]
    is_cut: bool


def names_of(run: RunRecord) -> dict[str, str]:
    """Return the paths of the files of a run, by blob id."""
    return {file.blob_id: file.path for file in or_none(run.files) or ()}


async def previews_of(request: PageRequest, run: RunRecord) -> list[Preview]:
    """Return the files and blobs that a run has written. The first PREVIEWS have a preview."""
    names = names_of(run)
    previews = []
    for number, blob_id in enumerate(run.output_blobs):
        name = names.get(blob_id, blob_id)
        address = path_of("runs", run.run_id, "blobs", blob_id)
        try:
            blob = await request.site.core.blobs.find_blob(request.identity, blob_id)
        except SkilleryError:
            previews.append(Preview(name, "expired", 0, "", False, "", [], False))
            continue
        head = b""
        if number < PREVIEWS:
            head = await asyncio.to_thread(
                request.site.core.blobs.read_range, blob, 0, min(HEAD_BYTES, blob.size_bytes)
            )
        previews.append(_preview(name, blob, head, address))
    return previews


def _preview(name: str, blob: BlobRow, head: bytes, address: str) -> Preview:
    """Return the preview of a file from its first bytes, or without content for other kinds."""
    kind = kind_of(name, head, blob.size_bytes) if head else None
    plain = Preview(name, blob.kind, blob.size_bytes, address, False, "", [], False)
    if kind is None:
        return plain
    if kind.group == "image":
        return plain._replace(is_image=blob.size_bytes <= 5_000_000)
    if kind.group != "text":
        return plain
    text = head[:TEXT_BYTES].decode("utf-8", "replace")
    is_cut = blob.size_bytes > TEXT_BYTES
    if "csv" in blob.kind or name.endswith(".csv"):
        rows = table_of(text, is_cut=is_cut)
        if rows:
            return plain._replace(table=rows, is_cut=is_cut or len(rows) > _CSV_ROWS)
    return plain._replace(text=text, is_cut=is_cut)


def table_of(text: str, *, is_cut: bool) -> list[list[str]]:
    """Return the first rows of a text with delimiters, or [] if the text has only one column.

    If `is_cut`, the last line is left out, because it may be incomplete.
    """
    if is_cut:
        text = text.rpartition("\n")[0]
    try:
        reader = csv.reader(io.StringIO(text), delimiter=_delimiter(text))
        rows = [[cell[:200] for cell in row[:_CSV_COLUMNS]] for _, row in zip(range(_CSV_ROWS), reader, strict=False)]
    except csv.Error:
        return []
    return rows if rows and len(rows[0]) > 1 else []


def _delimiter(text: str) -> str:
    """Return the delimiter that occurs equally often, outside quotes, in most of the first lines."""
    lines = ["".join(line.split('"')[::2]) for line in text.split("\n", _SAMPLE_LINES)[:_SAMPLE_LINES] if line.strip()]
    counts = {delimiter: [line.count(delimiter) for line in lines] or [0] for delimiter in _DELIMITERS}

    def rank(delimiter: str) -> tuple[int, int]:
        first = counts[delimiter][0]
        return counts[delimiter].count(first) if first else 0, first

    return max(_DELIMITERS, key=rank)


# -- Figures of a run: the phases of its time, and what it used of its limits ------------------------------------------


WIDTH = 600
MEBIBYTE = 1 << 20
LIMITS = {
    "timeout_ms": "Time",
    "memory_mb": "Memory",
    "processes": "Processes",
    "disk_mb": "Files in /workspace",
    "cpus": "Processors",
    "tmp_mb": "Files in /tmp",
    "blobs_mb": "Blobs",
    "log_kb": "Log",
}
_UNITS = {"memory_mb": "MiB", "disk_mb": "MiB", "tmp_mb": "MiB", "blobs_mb": "MiB", "log_kb": "KiB"}
WEAKER = {
    "isolation": "This server runs code without isolation: the code can do what the server can do.",
    "memory_tree": "This host has no control group for memory, so the server checks the memory of a run less exactly.",
    "landlock": "The kernel of this host has no Landlock, so the paths of the run are protected less strictly.",
    "processes": "This host does not enforce the limit of processes.",
    "cpus": "This host does not enforce the limit of processors.",
    "disk": "This host does not enforce the size of the files of a run.",
    "disk_files": "This host does not enforce the number of files of a run.",
    "network": "This host does not enforce the network permissions of a run.",
}
"""A sentence for each value of `degraded`."""


class Stage(NamedTuple):
    """A phase of a run's time. `x` and `width` are coordinates in the picture."""

    words: str
    ms: float
    x: float
    width: float


class Limit(NamedTuple):
    """A limit and its use as texts. `used` is "" if the use is not measured. `share` is in percent."""

    words: str
    used: str
    allowed: str
    share: float


def stages_of(run: RunRecord) -> list[Stage]:
    """Return the phases of an ended run in order: queued, prepared, running, collected."""
    if not run.started_at or not run.finished_at or run.duration_ms is None:
        return []
    used, running_ms = or_none(run.used), run.duration_ms
    outside_ms = max(0.0, (run.finished_at - run.started_at).total_seconds() * 1000 - running_ms)
    prepared = used.prepared_ms if used else None
    parts = {"queued": used.queued_ms} if used and used.queued_ms else {}
    if prepared is None:
        parts |= {"running": running_ms, "prepared and collected": outside_ms}
    else:
        parts |= {
            "prepared": min(prepared, outside_ms),
            "running": running_ms,
            "collected": max(0.0, outside_ms - prepared),
        }
    total_ms = max(sum(parts.values()), 1.0)
    stages, x = [], 0.0
    for words, ms in parts.items():
        width = WIDTH * ms / total_ms
        stages.append(Stage(words, ms, round(x, 1), round(width, 1)))
        x += width
    return stages


def limits_of(run: RunRecord) -> list[Limit]:
    """Return the limits of a run with their use."""
    limits = msgspec.json.decode(run.limits) or {}
    return [_limit(key, words, limits[key], _used(run, key)) for key, words in LIMITS.items() if key in limits]


def _used(run: RunRecord, key: str) -> float | None:
    """Return the amount that a run has used of a limit, in the unit of the limit, or None if it is not measured."""
    used = or_none(run.used)
    if key == "timeout_ms":
        return run.duration_ms
    if used is None:
        return None
    if key == "processes":
        return used.processes
    size = {"memory_mb": used.memory_bytes, "disk_mb": used.disk_bytes}.get(key)
    return None if size is None else size / MEBIBYTE


def _limit(key: str, words: str, allowed: float, used: float | None) -> Limit:
    """Return a limit with its use as texts. A small use or a large limit gets a better unit."""
    if key == "timeout_ms":
        used_text = "" if used is None else duration(used)
        return Limit(words, used_text, f"{allowed / 1000:g} s", _share(used, allowed))
    unit = _UNITS.get(key, "")
    if unit == "KiB" and allowed >= 1024 and used is None:
        allowed, unit = allowed / 1024, "MiB"
    used_text = "" if used is None else f"{used:.3g}" if used < 1000 else f"{used:.0f}"
    if used and used < 1 and unit == "MiB":
        used_text = f"{used * 1024:.0f} KiB"
    return Limit(words, used_text, f"{allowed:g} {unit}".strip(), _share(used, allowed))


def _share(used: float | None, allowed: float) -> float:
    """Return the used part of a limit in percent, at most 100."""
    return 0.0 if used is None or not allowed else round(min(100.0, 100 * used / allowed), 1)
