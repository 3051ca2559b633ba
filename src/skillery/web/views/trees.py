"""JSON values as pages show them: trees of bounded size, and facts, which are names with short values."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from msgspec import Struct

MOST_NODES = 200
MOST_NODES_ON_PAGE = 5000
"""The maximum number of nodes of a tree on a page of its own."""
DEEPEST = 12
"""The maximum number of levels of a tree."""
MOST_FACTS = 200
LONG_FACT = 200
_LISTED = 6
"""An array of at most this many short values is a fact."""


class Node(Struct, frozen=True):
    """A value of a JSON document, as a node of a tree."""

    key: str
    text: str
    nodes: list[Node]
    left_out: int
    """The number of values inside that are not shown."""


class Fact(Struct, frozen=True):
    """A name with a short value."""

    name: str
    text: str


def tree_of(value: Any, most: int = MOST_NODES) -> Node:
    """Return a JSON value as a tree of at most `most` nodes and DEEPEST levels. Upper levels come first."""
    return _node("", value, _shown_counts(value, most), 0)


def is_cut(node: Node) -> bool:
    """Return whether a tree leaves out values."""
    return bool(node.left_out) or any(is_cut(child) for child in node.nodes)


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
    key = key[:1000]
    if not isinstance(value, dict | list):
        return Node(key, json.dumps(value, ensure_ascii=False)[:4000], [], 0)
    pairs = _pairs(value)
    if not pairs:
        return Node(key, "{}" if isinstance(value, dict) else "[]", [], 0)
    words = _counted(value)
    if depth >= DEEPEST:
        return Node(key, f"{words}, not shown: it is {depth} levels deep", [], 0)
    nodes = [_node(name, child, shown_counts, depth + 1) for name, child in pairs[: shown_counts.get(id(value), 0)]]
    return Node(key, words, nodes, len(pairs) - len(nodes))


def _counted(value: dict[str, Any] | list[Any]) -> str:
    return f"{'object' if isinstance(value, dict) else 'array'} of {len(value)}"


# -- Facts -------------------------------------------------------------------------------------------------------------


def is_scalar(value: Any) -> bool:
    return not isinstance(value, dict | list)


def facts_of(pairs: Iterable[tuple[str, Any]]) -> list[Fact]:
    """Return the first MOST_FACTS names with their values as short texts."""
    return [Fact(name[:80], text_of(value)) for (name, value), _ in zip(pairs, range(MOST_FACTS), strict=False)]


def is_fact(value: Any) -> bool:
    """Return whether a value is short enough for a fact: a scalar, or an array of a few short scalars."""
    return is_scalar(value) or (
        isinstance(value, list) and len(value) <= _LISTED and all(is_scalar(x) and len(str(x)) <= 40 for x in value)
    )


def text_of(value: Any) -> str:
    """Return a JSON value as a short text for people."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None:
        return "none"
    if isinstance(value, str):
        if value.startswith("blob:"):
            return "a file"
        return f"{value[: LONG_FACT - 1]}…" if len(value) > LONG_FACT else value or "empty text"
    if isinstance(value, dict | list):
        return ", ".join(map(text_of, value)) if value and is_fact(value) else _counted(value) if value else "empty"
    return json.dumps(value)[:LONG_FACT]
