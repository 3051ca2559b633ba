"""Outputs of runs: a JSON value as a tree, and previews of files."""

from __future__ import annotations

import asyncio
import csv
import io
import json
from typing import Any, NamedTuple

from skillery.contents.blob_rows import BlobRow
from skillery.errors import SkilleryError
from skillery.web.frame import PageRequest, path_of
from skillery.web.skills.contents import HEAD_BYTES, kind_of

MOST_NODES = 200
MOST_NODES_ASKED = 5000
"""The most nodes that a reader gets with "show more"."""
MOST_JSON = 1024 * 1024
"""Bytes of an output that is shown as a tree."""
_LARGE_OUTPUT = {"blob_id", "size_bytes", "preview"}
"""The members that replace a large output."""
DEEPEST = 12
PREVIEWS = 8
_TEXT_BYTES = 16 * 1024
_CSV_ROWS, _CSV_COLUMNS = 100, 50


class Node(NamedTuple):
    """A value of a JSON document."""

    key: str
    text: str
    nodes: list[Any]
    """The values inside, of the type Node."""
    left_out: int


def tree_of(value: Any, most: int = MOST_NODES) -> Node:
    """Return a JSON value as a tree of at most `most` nodes. Values below twelve levels are texts."""
    return _node("", value, [most], 0)


def _node(key: str, value: Any, left: list[int], depth: int) -> Node:
    left[0] -= 1
    pairs: list[tuple[str, Any]] = []
    if isinstance(value, dict):
        pairs, words = list(value.items()), f"object of {len(value)}"
    elif isinstance(value, list):
        pairs, words = [(str(number), one) for number, one in enumerate(value)], f"array of {len(value)}"
    else:
        words = json.dumps(value, ensure_ascii=False)
    if not pairs:
        return Node(key, words[:4000] if not isinstance(value, dict | list) else "{}" if value == {} else "[]", [], 0)
    if depth >= DEEPEST:
        return Node(key, f"{words}, not shown: it is {depth} levels deep", [], 0)
    nodes = []
    for name, one in pairs:
        if left[0] <= 0:
            break
        nodes.append(_node(name, one, left, depth + 1))
    return Node(key, words, nodes, len(pairs) - len(nodes))


async def output_of(request: PageRequest, run: dict[str, Any]) -> dict[str, Any]:
    """Return the output of a run for its page: a tree, the number of nodes in a larger tree, and the blob that has a
    large output.
    """
    output = run["output"]
    found: dict[str, Any] = {"tree": None, "more_nodes": None, "output_blob": None, "output_text": None}
    if output is None:
        return found
    wanted = request.query.get("nodes", "")
    most = min(max(int(wanted[:6]), MOST_NODES), MOST_NODES_ASKED) if wanted.isdecimal() else MOST_NODES
    blob_id = str(output["blob_id"]) if isinstance(output, dict) and set(output) == _LARGE_OUTPUT else ""
    if blob_id not in run["output_blobs"]:
        return {**found, **await asyncio.to_thread(_shown, output, most)}
    found["output_blob"] = path_of("runs", run["run_id"], "blobs", blob_id)
    if output["size_bytes"] <= MOST_JSON:
        try:
            blob = await request.site.core.blobs.find_blob(request.identity, blob_id)
        except SkilleryError:
            return {**found, "output_text": output["preview"], "output_blob": None}  # it has expired
        content = await asyncio.to_thread(request.site.core.blobs.read_range, blob, 0, blob.size_bytes)
        try:
            value = await asyncio.to_thread(json.loads, content)
            return {**found, **await asyncio.to_thread(_shown, value, most)}
        except (ValueError, RecursionError):
            pass  # a script has printed it
    return {**found, "output_text": output["preview"]}


def _shown(value: Any, most: int) -> dict[str, Any]:
    tree = tree_of(value, most)
    more = min(most * 5, MOST_NODES_ASKED)
    return {"tree": tree, "more_nodes": more if _is_cut(tree) and more > most else None}


def _is_cut(node: Node) -> bool:
    return bool(node.left_out) or any(_is_cut(one) for one in node.nodes)


class Preview(NamedTuple):
    """A file of a run, with its first lines or as a picture."""

    name: str
    kind: str
    size_bytes: int
    address: str
    is_image: bool
    text: str
    table: list[list[str]]
    is_cut: bool


async def previews_of(request: PageRequest, run: dict[str, Any]) -> list[Preview]:
    """Return the files and blobs of a run. The first eight have a preview."""
    names = {one["blob_id"]: one["path"] for one in run.get("files") or ()}
    found = []
    for number, blob_id in enumerate(run["output_blobs"]):
        name = names.get(blob_id, blob_id)
        address = path_of("runs", run["run_id"], "blobs", blob_id)
        try:
            blob = await request.site.core.blobs.find_blob(request.identity, blob_id)
        except SkilleryError:
            found.append(Preview(name, "expired", 0, "", False, "", [], False))
            continue
        head = b""
        if number < PREVIEWS:
            head = await asyncio.to_thread(
                request.site.core.blobs.read_range, blob, 0, min(HEAD_BYTES, blob.size_bytes)
            )
        found.append(_preview(name, blob, head, address))
    return found


def _preview(name: str, blob: BlobRow, head: bytes, address: str) -> Preview:
    kind = kind_of(name, head, blob.size_bytes) if head else None
    plain = Preview(name, blob.kind, blob.size_bytes, address, False, "", [], False)
    if kind is None:
        return plain
    if kind.group == "image":
        return plain._replace(is_image=blob.size_bytes <= 5_000_000)
    if kind.group != "text":
        return plain
    text = head[:_TEXT_BYTES].decode("utf-8", "replace")
    is_cut = blob.size_bytes > _TEXT_BYTES
    if "csv" in blob.kind or name.endswith(".csv"):
        rows = _table(text, is_cut=is_cut)
        if rows:
            return plain._replace(table=rows, is_cut=is_cut or len(rows) > _CSV_ROWS)
    return plain._replace(text=text, is_cut=is_cut)


def _table(text: str, *, is_cut: bool) -> list[list[str]]:
    if is_cut:
        text = text.rpartition("\n")[0]
    try:
        dialect = csv.Sniffer().sniff(text[:2000], delimiters=",;\t|")
        reader = csv.reader(io.StringIO(text), dialect)
        rows = [[cell[:200] for cell in row[:_CSV_COLUMNS]] for _, row in zip(range(_CSV_ROWS), reader, strict=False)]
    except csv.Error:
        return []
    return rows if rows and len(rows[0]) > 1 else []
