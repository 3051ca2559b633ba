"""Conversion of a SKILL.md to the Agent Skills specification (agentskills.io/specification).

A stored SKILL.md may have fewer, more or other fields than the specification allows. The registry stores SKILL.md
unchanged; exports convert it. The result depends only on the arguments, so every server exports the same bytes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache

import msgspec
import yaml

from skillery.errors import InvalidBundle
from skillery.formats.skill_md import MAX_FRONTMATTER_BYTES, parse_skill_md

MAX_NAME = 64
MAX_DESCRIPTION = 1024
MAX_COMPATIBILITY = 500
FIELDS = ("name", "description", "license", "compatibility", "metadata", "allowed-tools")
"""All fields of the specification. Further keys of a SKILL.md go into `metadata`."""

_NAME = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")
# A fence is a line of exactly three hyphens, because the strictest readers accept nothing else.
_SPLIT = re.compile(rb"---\r?\n(?P<source>(?:[^\n]*\n)*?)---(?:\r?\n|\Z)")
_LENIENT_SPLIT = re.compile(rb"(?:\xef\xbb\xbf)?---[ \t]*\r?\n(?P<source>(?:[^\n]*\n)*?)---[ \t]*(?:\r?\n|\Z)")
_BOM = b"\xef\xbb\xbf"
# Scalars that every YAML reader parses as the same text. All others are quoted.
_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9_/()+.,;'-]*(?: [A-Za-z0-9_/()+.,;'-]+)*")
_RESOLVER = yaml.resolver.Resolver()
_STRING = "tag:yaml.org,2002:str"
# Scalars that are numbers in YAML 1.2 and not in YAML 1.1.
_NUMBER = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|0o[0-7]+|0x[0-9a-fA-F]+")
_LONGEST_KEY = 128
_KEPT = 16
"""Number of parsed frontmatters in the cache. Each comes from at most 64 KiB of text."""


class AgentSkill(msgspec.Struct, frozen=True):
    """A SKILL.md that conforms to the specification. All scalars of `frontmatter` are strings."""

    content: bytes
    frontmatter: dict[str, object]
    is_generated: bool
    """False if `content` is the stored file, byte for byte."""
    head: bytes = b""
    """The generated frontmatter that precedes the stored body, or b"" if the file is not generated."""

    @property
    def description(self) -> str:
        return str(self.frontmatter["description"])


def agent_skill(stored: bytes, *, name: str, description: str) -> AgentSkill:
    """Return the stored SKILL.md if it conforms to Agent Skills under `name`, else a conforming file that is generated
    from it.

    The generated file has the stored body byte for byte, `name`, a description of at most 1024 characters, and every
    other key that conforms. The description is the stored one, or `description` if the stored file has none. Values
    that do not conform go into `metadata` as text, unless they are empty: unknown keys, another name, a text that is
    too long. If the frontmatter is then too large, its longest entries are omitted.

    Raise ValueError if `name` is not a valid name for an Agent Skill.
    """
    if not is_agent_skill_name(name):
        raise ValueError(f"{name!r} is not a name for an Agent Skill")
    parsed = _read(stored)
    if parsed is not None and _fits(parsed, name):
        return AgentSkill(stored, parsed.frontmatter, False)
    frontmatter, body = (parsed.frontmatter, parsed.body) if parsed else _salvaged(stored)
    conforming = _conforming(frontmatter, name, description)
    head = _written(conforming)
    return AgentSkill(head + body, conforming, True, head)


def is_agent_skill_name(name: str) -> bool:
    return len(name) <= MAX_NAME and _NAME.fullmatch(name) is not None


def cut(text: str, length: int) -> str:
    """Return the beginning of a text, cut between words if possible, with `…` at the cut.

    `length` is the limit in UTF-16 units, so that the result also fits for clients that count these units.
    """
    if _units(text) <= length:
        return text
    while (excess := _units(text) - (length - 1)) > 0:
        # A character has one or two units, so at least half as many characters are too many.
        text = text[: len(text) - max(1, excess // 2)]
    whole_words, _, _ = text.rpartition(" ")
    # A long last word is cut: without it, less than half of the text would remain.
    return (whole_words if len(whole_words) > len(text) // 2 else text).rstrip() + "…"


def _units(text: str) -> int:
    """Return the length of a text in UTF-16 units."""
    return len(text.encode("utf-16-le", "surrogatepass")) // 2


class _Read(msgspec.Struct, frozen=True):
    """A parsed SKILL.md with valid frontmatter between strict fences."""

    frontmatter: dict[str, object]
    body: bytes
    other_types: tuple[str, ...]
    """The plain scalars that YAML does not read as strings: numbers, dates, booleans, null."""


def _read(stored: bytes) -> _Read | None:
    """Return the parsed file, or None if a strict reader finds no valid frontmatter."""
    split = _SPLIT.match(stored)
    if split is None:
        return None
    try:
        frontmatter, other_types = _parsed(split["source"].decode())
    except (UnicodeDecodeError, InvalidBundle):
        return None
    return _Read(frontmatter, stored[split.end() :], other_types)


@lru_cache(maxsize=_KEPT)
def _parsed(source: str) -> tuple[dict[str, object], tuple[str, ...]]:
    """Return the values of a frontmatter, and its plain scalars that are not strings. Raise InvalidBundle if it is
    invalid.

    The results are cached: a long frontmatter takes half a second to parse, and a caller could request the same file
    repeatedly.
    """
    return parse_skill_md(f"---\n{source}---\n").frontmatter, tuple(_other_types(source))


def _salvaged(stored: bytes) -> tuple[dict[str, object], bytes]:
    """Return frontmatter and body, even if there are spaces after the fences. An invalid frontmatter becomes {}."""
    split = _LENIENT_SPLIT.match(stored)
    if split is None:
        return {}, stored.removeprefix(_BOM)
    try:
        return _parsed(split["source"].decode())[0], stored[split.end() :]
    except (UnicodeDecodeError, InvalidBundle):
        return {}, stored[split.end() :]


def _other_types(source: str) -> Iterator[str]:
    """Yield the plain scalars of a frontmatter that a YAML reader would not read as text."""
    for event in yaml.parse(source, Loader=yaml.BaseLoader):
        if isinstance(event, yaml.ScalarEvent) and event.style is None and not _is_text(event.value):
            yield event.value


def _is_text(plain: str) -> bool:
    """Return whether both YAML 1.1 and YAML 1.2 read the plain scalar as a string."""
    tag = _RESOLVER.resolve(yaml.ScalarNode, plain, (True, False))  # type: ignore[no-untyped-call]
    return bool(tag == _STRING) and not _NUMBER.fullmatch(plain)


def _fits(skill: _Read, name: str) -> bool:
    """Return whether a parsed file conforms under `name`."""
    frontmatter = skill.frontmatter
    description = frontmatter.get("description")
    return (
        frontmatter.get("name") == name
        and isinstance(description, str)
        and bool(description.strip())
        and len(description) <= MAX_DESCRIPTION
        and not skill.other_types
        and all(key in ("name", "description") or _conforms(key, value) for key, value in frontmatter.items())
    )


def _conforms(key: str, value: object) -> bool:
    """Return whether the value of an optional key has the form that Agent Skills require."""
    match key:
        case "license":
            return isinstance(value, str)
        case "compatibility":
            return isinstance(value, str) and 1 <= len(value) <= MAX_COMPATIBILITY
        case "metadata":
            return isinstance(value, dict) and all(isinstance(entry, str) for entry in value.values())
        case "allowed-tools":
            return isinstance(value, str) or (isinstance(value, list) and all(isinstance(tool, str) for tool in value))
    return False


def _conforming(frontmatter: Mapping[str, object], name: str, description: str) -> dict[str, object]:
    """Return the frontmatter of a conforming SKILL.md, with its keys in the order of FIELDS."""
    stored_description = frontmatter.get("description")
    stored_description = stored_description if isinstance(stored_description, str) else ""
    kept_description = cut(stored_description.strip() or description.strip() or f"The skill {name}.", MAX_DESCRIPTION)
    conforming: dict[str, object] = {"name": name, "description": kept_description}
    for key in ("license", "compatibility", "allowed-tools"):
        if key in frontmatter and _conforms(key, frontmatter[key]):
            conforming[key] = frontmatter[key]
    mapping = frontmatter.get("metadata")
    metadata = {key: _as_text(value) for key, value in mapping.items()} if isinstance(mapping, dict) else {}
    for key, value in frontmatter.items():
        is_kept = key in conforming and (
            conforming[key] == value or (key == "description" and kept_description == stored_description.strip())
        )
        if not is_kept and not (key == "metadata" and isinstance(value, dict)) and value:
            metadata[_free(metadata, key)] = _as_text(value)
    return _fitting(conforming, metadata)


def _fitting(conforming: dict[str, object], metadata: dict[str, str]) -> dict[str, object]:
    """Return `conforming` with `metadata`, without the longest entries if a frontmatter would exceed its size limit.
    Added quotes can make it longer than the stored frontmatter.

    The longest entries of `metadata` are dropped first, then the longest optional fields.
    """
    # The sizes are computed once: formatting the whole text for each dropped entry is slow with thousands of entries.
    sizes = {key: len(_metadata_line(key, value).encode()) + 1 for key, value in metadata.items()}
    size = len(_written(conforming)) + len("metadata:\n") + sum(sizes.values())
    for key in sorted(metadata, key=lambda key: -len(key) - len(metadata[key])):
        if size <= MAX_FRONTMATTER_BYTES:
            break
        size -= sizes[key]
        del metadata[key]
    while len(_written(conforming)) > MAX_FRONTMATTER_BYTES:
        del conforming[
            max(
                (key for key in conforming if key not in ("name", "description")),
                key=lambda key: len(str(conforming[key])),
            )
        ]
    with_metadata = {**conforming, "metadata": metadata} if metadata else conforming
    return {key: with_metadata[key] for key in FIELDS if key in with_metadata}


def _free(metadata: Mapping[str, str], key: str) -> str:
    """Return `key`, or `key-2`, `key-3` and so on if `metadata` has the key already."""
    candidate, number = key, 1
    while candidate in metadata:
        number += 1
        candidate = f"{key}-{number}"
    return candidate


def _as_text(value: object) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _written(frontmatter: Mapping[str, object]) -> bytes:
    """Return the frontmatter as YAML, with a fence before and after it."""
    lines = ["---"]
    for key, value in frontmatter.items():
        if isinstance(value, dict):
            lines += [f"{key}:" if value else f"{key}: {{}}", *(_metadata_line(*pair) for pair in value.items())]
        elif isinstance(value, list):
            lines += [f"{key}:" if value else f"{key}: []", *(f"  - {yaml_text(entry)}" for entry in value)]
        else:
            lines.append(f"{key}: {yaml_text(str(value))}")
    return "\n".join([*lines, "---", ""]).encode()


def _metadata_line(key: str, value: str) -> str:
    key_text = yaml_text(key)
    # Some readers accept a longer key only with an explicit '?'.
    pair = (
        f"{key_text}: {yaml_text(value)}" if len(key_text) <= _LONGEST_KEY else f"? {key_text}\n  : {yaml_text(value)}"
    )
    return f"  {pair}"


def yaml_text(text: str) -> str:
    """Return the text as a YAML scalar that every YAML reader reads as this text: plain, or quoted on one line."""
    if _PLAIN.fullmatch(text) and "---" not in text and _is_text(text):
        return text
    # Some readers end the frontmatter at the first three hyphens, even inside a line.
    inside = "".join(_escaped(character) for character in text).replace("---", r"\x2d\x2d\x2d")
    return f'"{inside}"'


def _escaped(character: str) -> str:
    if character in '"\\':
        return f"\\{character}"
    if character.isprintable():
        return character
    number = ord(character)
    if number <= 0xFF:
        return {"\n": r"\n", "\t": r"\t", "\r": r"\r"}.get(character, f"\\x{number:02x}")
    return f"\\u{number:04x}" if number <= 0xFFFF else f"\\U{number:08x}"
