"""The parts of a run's result, by name: the values and files of its output, in the order of the output."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from msgspec import Struct

from skillery.web.views.kinds import stated_words, with_ending
from skillery.web.views.tables import Table, table_of_json
from skillery.web.views.trees import is_fact

LONG_TEXT = 200
"""A longer text in the output is a part."""
VALUES, WHOLE, RESULT = "values", "output.json", "result"
"""The names of the part of short values, of the part with the whole output, and of an output that is no object."""
EMPTY = {b"", b"null"}
_MARKDOWN = re.compile(r"#{1,6} |\|.*\|\s*\n\|? *:?-", re.ASCII)
_UNSAFE = re.compile(r"[\x00-\x1f\x7f/\\]")


class File(Struct, frozen=True):
    """A file of a run. `content` has its first bytes, or is None if the server has not read the file."""

    blob_id: str
    path: str
    media_type: str
    size_bytes: int
    content: bytes | None = None
    digest: str = ""

    @property
    def words(self) -> str:
        """What it is, if its content is not read."""
        return stated_words(self.media_type)


Role = Literal["", "values", "whole"]
"""Whether a part has the short values or the whole output. The names do not say it: files and keys have any name."""


class Part(NamedTuple):
    """A part before it has a view: a file, or a value of the output, which may be a table."""

    name: str
    value: Any = None
    file: File | None = None
    table: Table | None = None
    role: Role = ""


def decoded_json(content: bytes) -> Any:
    """Return the JSON value, or None if the text is no JSON, for example because it is cut."""
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        return None


def parts_of(output_json: bytes, files: Sequence[File]) -> list[Part]:
    """Return the short values, the named values and files of the output, further files, and the whole output."""
    output = decoded_json(output_json)
    values, _, named = split_output(output, files)
    used = {part.file.blob_id for part in named if part.file}
    others = sorted((file for file in files if file.blob_id not in used), key=lambda file: file.path)
    named += [
        Part(file.path or with_ending(f"file {number}", file.media_type), file=file)
        for number, file in enumerate(others, 1)
    ]
    parts = [Part(VALUES, values, role="values"), *named] if values else named
    if isinstance(output, dict | list) or (output is None and output_json not in EMPTY):
        parts.append(Part(WHOLE, output, role="whole"))
    return _with_unique_names(parts)


def split_output(output: Any, files: Sequence[File]) -> tuple[dict[str, Any], dict[str, Any], list[Part]]:
    """Return the short values of an output by name, its other values, and its parts: at the top and one level below."""
    values: dict[str, Any] = {}
    others: dict[str, Any] = {}
    named: list[Part] = []
    by_id = {file.blob_id: file for file in files}
    for key, value in output.items() if isinstance(output, dict) else [(RESULT, output)]:
        part = _part(key, value, by_id)
        is_split = part is None and isinstance(value, dict)
        for name, inner in [(f"{key}.{name}", inner) for name, inner in value.items()] if is_split else [(key, value)]:
            part = _part(name, inner, by_id) if is_split else part
            if part is not None:
                named.append(part)
            elif is_fact(inner) and not (name == RESULT and inner is None):
                values[name] = inner
            else:
                others[name] = inner
    return values, others, named


def _part(key: str, value: Any, files: dict[str, File]) -> Part | None:
    """Return a value as a part, or None if it is none: a file of the run, a table, Markdown or a long text."""
    name = _UNSAFE.sub("_", key)[:80].strip() or "part"
    name = "part" if name in {".", ".."} else name
    if isinstance(value, str):
        file = files.get(value)
        if file is not None:
            return Part(file.path or with_ending(name, file.media_type), file=file)
        if _MARKDOWN.match(value):
            return Part(with_ending(name, "text/markdown"), value)
        return Part(name, value) if len(value) > LONG_TEXT else None
    table = table_of_json(value)
    return None if table is None else Part(name, value, table=table)


def _with_unique_names(parts: list[Part]) -> list[Part]:
    """Return the parts with a number in the names that occur twice. Files keep their paths."""
    used = {part.name for part in parts if part.file and part.name == part.file.path}
    counts: dict[str, int] = {}
    named = []
    for part in parts:
        name = part.name
        if not (part.file and name == part.file.path):
            while name in used:
                counts[part.name] = counts.get(part.name, 1) + 1
                name = f"{part.name} ({counts[part.name]})"
            used.add(name)
        named.append(part._replace(name=name))
    return named
