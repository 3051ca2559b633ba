"""MCP resource URIs for files of skills: `skill://a/b/c/SKILL.md` is the SKILL.md of the skill `a.b.c`.

The dots of a name become slashes. An Agent Skill must have the name of its folder, without `_` and with at most 64
characters. If the last segment of a name does not fit this rule, two folders are added: `skill://a/b_c/~/b-c/SKILL.md`.
No skill name has a segment `~`, so two skills never share a URI.
"""

from __future__ import annotations

import re
from typing import NamedTuple
from urllib.parse import quote, unquote

from skillery.formats.agent_skill import is_agent_skill_name
from skillery.formats.names import index_name

SCHEME = "skill://"
RENAMED = "~"
MAX_NAME = 128
MAX_BYTES = 4096
"""The maximum number of characters of a URI: three for each byte of the longest name and the longest path, and some
more.
"""
_UNRESERVED = "/!$&'()*+,;=:@~"
_SEGMENT = re.compile(r"[a-z0-9]+(?:[_-][a-z0-9]+)*")


class SkillPath(NamedTuple):
    """One reading of a URI: the name of a skill, and the path inside its folder. An empty path
    means the folder itself.
    """

    name: str
    rest: tuple[str, ...]


def agent_name(name: str) -> str:
    """Return the name that the skill has as an Agent Skill: its last segment, or the `index_name` of an invalid
    segment.
    """
    last_segment = name.rpartition(".")[2]
    return last_segment if is_agent_skill_name(last_segment) else index_name(last_segment)


def folder_of(name: str) -> tuple[str, ...]:
    """Return the segments of a skill's folder."""
    segments, called = tuple(name.split(".")), agent_name(name)
    return segments if segments[-1] == called else (*segments, RENAMED, called)


def uri_of(segments: tuple[str, ...], path: str = "") -> str:
    """Return the URI of a folder, or of the file `path` in the folder."""
    return SCHEME + quote("/".join((*segments, path) if path else segments), safe=_UNRESERVED)


def skill_uri(name: str) -> str:
    """Return the URI of the SKILL.md of a skill."""
    return uri_of(folder_of(name), "SKILL.md")


def segments_of(uri: str) -> tuple[str, ...] | None:
    """Return the segments of a URI, or None if it is not a URI of a folder or file."""
    if not uri.startswith(SCHEME) or len(uri) > MAX_BYTES:
        return None
    text = uri.removeprefix(SCHEME)
    if "?" in text or "#" in text:
        return None
    try:
        segments = tuple(unquote(segment, errors="strict") for segment in text.split("/"))
    except UnicodeDecodeError:
        return None
    if any(segment in ("", ".", "..") or "/" in segment or "\0" in segment for segment in segments):
        return None
    return segments


def skill_paths_of(segments: tuple[str, ...]) -> list[SkillPath]:
    """Return all interpretations of a URI as a skill and a path, the longest skill name first.

    The first interpretation with an existing skill is the right one: inside the folder of `a`, the folder of `a.b`
    belongs to `a.b`.
    """
    paths: list[SkillPath] = []
    for count in range(1, len(segments) + 1):
        if not _SEGMENT.fullmatch(segments[count - 1]):
            break
        name = ".".join(segments[:count])
        if len(name) > MAX_NAME:
            break
        folder = folder_of(name)
        if segments[: len(folder)] == folder:
            paths.append(SkillPath(name, segments[len(folder) :]))
    return paths[::-1]


def name_above(segments: tuple[str, ...]) -> str | None:
    """Return the dotted name that the skills in a folder begin with, or None if no skill can be in the folder."""
    names = segments[: segments.index(RENAMED)] if RENAMED in segments else segments
    return ".".join(names) if all(_SEGMENT.fullmatch(name) for name in names) else None
