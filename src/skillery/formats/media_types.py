"""Media types by file name. The results are the same on every machine, because the machine's own table is not used."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from mimetypes import MimeTypes
from typing import Any, Literal

MARKDOWN = "text/markdown"
_PLAIN = "text/plain"
_OURS = {
    # Types that Python's table does not know in every release, or maps to another type.
    ".bash": "application/x-sh",
    ".cfg": _PLAIN,
    ".cjs": "text/javascript",
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
    ".mts": "text/x-typescript",
    ".tsx": "text/x-typescript",
    ".woff2": "font/woff2",
    ".xlsx": "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
    ".yaml": "application/yaml",
    ".yml": "application/yaml",
}
_DATA = {
    # Files that programs produce. No media type of a skill's own file comes from here.
    ".arrow": "application/vnd.apache.arrow.file",
    ".avif": "image/avif",
    ".bz2": "application/x-bzip2",
    ".feather": "application/vnd.apache.arrow.file",
    ".geojson": "application/geo+json",
    ".gz": "application/gzip",
    ".ipynb": "application/x-ipynb+json",
    ".ndjson": "application/x-ndjson",
    ".parquet": "application/vnd.apache.parquet",
    ".tgz": "application/gzip",
    ".webp": "image/webp",
    ".xz": "application/x-xz",
    ".zst": "application/zstd",
}
_ANY = "application/octet-stream"
_theirs = MimeTypes().types_map[True]


def media_type_of(path: str) -> str | None:
    """Return the media type for a file name, or None if its ending is unknown. A name without an
    ending is text/plain.
    """
    name = path.rpartition("/")[2].lower()
    stem, dot, ending = name.rpartition(".")
    if not dot or not stem:
        return _PLAIN
    ending = f".{ending}"
    return _OURS.get(ending) or _theirs.get(ending)


def kind_of_output(path: str) -> str:
    """Return the media type of a file that a run has written, or `application/octet-stream` if the name has no known
    ending.
    """
    _, dot, ending = path.rpartition("/")[2].lower().rpartition(".")
    return (_DATA.get(f".{ending}") or media_type_of(path) or _ANY) if dot else _ANY


# -- The language of a skill: of its code, or `markdown` for a skill without code --------------------------------------


SkillLanguage = Literal["python", "javascript", "bash", "markdown"]
LANGUAGES: tuple[SkillLanguage, ...] = ("python", "javascript", "bash", "markdown")
_ENDINGS: dict[str, SkillLanguage] = {
    ".py": "python",
    **dict.fromkeys((".js", ".mjs", ".cjs", ".ts", ".mts", ".cts"), "javascript"),
    ".sh": "bash",
}


def language_of(runtime: dict[str, Any] | None, paths: Iterable[str]) -> SkillLanguage:
    """Return the language of a skill with this `[runtime]` table and these paths of files.

    A skill with an entrypoint is Python. Without an entrypoint, the most frequent language of its scripts counts. If
    two languages have the same number of scripts, the first of LANGUAGES wins. A skill without scripts is `markdown`.
    """
    if runtime and runtime.get("entrypoint"):
        return "python"
    scripts = Counter(_ENDINGS[ending] for path in paths if (ending := _ending(path)) in _ENDINGS)
    return max(LANGUAGES, key=lambda language: scripts[language]) if scripts else "markdown"


def is_source(path: str) -> bool:
    """Return whether the file name has the ending of a language that runs can execute."""
    return _ending(path) in _ENDINGS


def _ending(path: str) -> str:
    return path[path.rfind(".") :].lower()
