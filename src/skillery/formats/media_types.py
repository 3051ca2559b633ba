"""Which media type a file has by its name: the same on every machine, whatever types it has heard of itself."""

from __future__ import annotations

from mimetypes import MimeTypes

MARKDOWN = "text/markdown"
_PLAIN = "text/plain"
_OURS = {
    # What Python's own table does not know in every release, or takes for something else.
    ".bash": "application/x-sh",
    ".cfg": _PLAIN,
    ".csv": "text/csv",
    ".docx": "application/vnd.openxmlformats-officedocument.wordprocessingml.document",
    ".ini": _PLAIN,
    ".j2": _PLAIN,
    ".js": "text/javascript",
    ".jsonl": "application/jsonl",
    ".log": _PLAIN,
    ".markdown": MARKDOWN,
    ".md": MARKDOWN,
    ".mjs": "text/javascript",
    ".pptx": "application/vnd.openxmlformats-officedocument.presentationml.presentation",
    ".rst": "text/x-rst",
    ".sql": "application/sql",
    ".toml": "application/toml",
    ".ts": "text/x-typescript",
    ".tsx": "text/x-typescript",
    ".woff2": "font/woff2",
    ".xlsx": "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
    ".yaml": "application/yaml",
    ".yml": "application/yaml",
}
_theirs = MimeTypes().types_map[True]


def media_type_of(path: str) -> str | None:
    """None where the name says nothing."""
    name = path.rpartition("/")[2].lower()
    stem, dot, ending = name.rpartition(".")
    if not dot or not stem:
        return _PLAIN
    ending = f".{ending}"
    return _OURS.get(ending) or _theirs.get(ending)
