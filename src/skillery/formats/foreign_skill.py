"""The name, description and version of a foreign SKILL.md folder. Deviations from the format are noted, not refused.

Source: the Agent Skills format (https://agentskills.io/specification).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple

from anyascii import anyascii

from skillery.errors import InvalidName, InvalidVersion
from skillery.formats.manifest import MAX_DESCRIPTION
from skillery.formats.manifest_tables import MOST_REQUIRED
from skillery.formats.names import MAX_LENGTH, parse_skill_name
from skillery.formats.repairs import Repairs
from skillery.formats.semver import MAX_LENGTH as MAX_VERSION
from skillery.formats.semver import Version
from skillery.formats.skill_md import FILE, SkillMd
from skillery.formats.texts import normalized
from skillery.formats.wording import first_names, quoted

KEYS = ("name", "description", "license", "compatibility", "metadata", "allowed-tools")
"""The keys that the format defines."""
REQUIRES = "toolhive.requires"
"""The key of ToolHive for references to required skills, such as `ghcr.io/org/base-skill:v1`."""
_OURS = ("version", "short_description", REQUIRES)
MAX_NAME = 64
MAX_COMPATIBILITY = 500
MAX_STATED = 200
"""The maximum number of characters of a stated name in the key of an alias. A longer name is cut and distinguished
by a hash.
"""
_NAME = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")
_LOOSE = re.compile(r"[vV=\s]*(\d+)(?:\.(\d+))?(?:\.(\d+))?((?:-|\+)\S+)?\s*")
_DATE = re.compile(r"\s*(\d{4})[-/](\d{1,2})[-/](\d{1,2})()\s*")
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
_HEADING = re.compile(r"\s{0,3}#{1,6}\s++(?P<text>.*)")
_SEPARATORS = re.compile(r"[_-]++")
_BEHIND_HEADING = "# \t"
_CHINESE = re.compile("[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]")
MAX_TITLE = 200
MAX_HEAD = 16 * 1024
"""The number of characters of a page in which its first words are looked for."""


Audience = Literal["people", "models", "internal"]
"""`people`: only people start the skill, and models do not see it. `models`: only models start it. `internal`: lists
show it only on request."""


def audience_of(frontmatter: Mapping[str, object]) -> Audience | None:
    """Return for whom the author made the skill, or None for all.

    Source: the keys `disable-model-invocation` and `user-invocable` of Claude Code, and `metadata.internal` of
    `npx skills`.
    """
    metadata = frontmatter.get("metadata")
    if _is(frontmatter.get("disable-model-invocation"), "true"):
        return "people"
    if isinstance(metadata, Mapping) and _is(metadata.get("internal"), "true"):
        return "internal"
    return "models" if _is(frontmatter.get("user-invocable"), "false") else None


def _is(value: object, text: str) -> bool:
    return isinstance(value, bool | str) and str(value).strip().lower() == text


class ForeignSkill(NamedTuple):
    """The name, the description and the version of a foreign skill. `stated` is the name in the file, or the name of
    the folder. It may be invalid as a registry name.
    """

    stated: str
    description: str
    version: Version | None
    """None if the file states no version, or a version that cannot be read."""
    requires: tuple[str, ...] = ()
    """The names of required skills, without their namespace."""


def read_foreign_skill(skill_md: SkillMd, folder: str, others: frozenset[str], repairs: Repairs) -> ForeignSkill:
    """Return name, description and version, and note all deviations in `repairs`. No deviation raises an error.

    `folder` is the name of the skill's folder, or "" if unknown. `others` are the folder names of all skills of the
    archive.
    """
    frontmatter, folder = skill_md.frontmatter, " ".join(_CONTROL.sub(" ", folder).split())
    skill = ForeignSkill(
        _stated(frontmatter, folder, others, repairs),
        _description(skill_md, folder, repairs),
        _version(frontmatter, repairs),
        required_names(frontmatter),
    )
    _note_rest(frontmatter, repairs)
    return skill


def required_names(frontmatter: Mapping[str, object]) -> tuple[str, ...]:
    """Return the names of the skills that `toolhive.requires` references: the last segments of their paths. An export
    moves the key into `metadata`.
    """
    metadata = frontmatter.get("metadata")
    value = frontmatter.get(REQUIRES, metadata.get(REQUIRES) if isinstance(metadata, Mapping) else None)
    texts = value if isinstance(value, list) else [value]
    references = [each for text in texts if isinstance(text, str) for each in text.replace(",", " ").split()]
    # A reference to git has the path of the skill behind `#`, an OCI reference a tag and a digest behind the name.
    leaves = (each.rpartition("#")[2].rpartition("/")[2].partition("@")[0].partition(":")[0] for each in references)
    return tuple(dict.fromkeys(registry_name(leaf) for leaf in leaves if leaf))[:MOST_REQUIRED]


def title_of(frontmatter: Mapping[str, object], body: str, name: str) -> str:
    """Return the title of a skill for people, or "" if it says no more than `name`, its name in the registry.

    The title is the first of these that SKILL.md states: `title`, `metadata.title`, `name`, the first heading.
    """
    metadata = frontmatter.get("metadata")
    of_metadata = metadata.get("title") if isinstance(metadata, Mapping) else None
    headings = (_HEADING.fullmatch(line) for line in body[:MAX_HEAD].splitlines())
    heading = next((match["text"].rstrip(_BEHIND_HEADING) for match in headings if match), "")
    stated = (frontmatter.get("title"), of_metadata, frontmatter.get("name"), heading)
    texts = (" ".join(_CONTROL.sub(" ", text).split()) for text in stated if isinstance(text, str))
    title = next(filter(None, texts), "")
    leaf = name.rpartition(".")[2]
    return "" if title.casefold() in {name, leaf} else title[:MAX_TITLE]


def registry_name(stated: str) -> str:
    """Return the stated name if it is a valid registry name, else a similar valid name. Letters of other scripts are
    written in Latin.

    If the stated name has no usable character, the name is `skill-` and a hash.
    """
    try:
        return parse_skill_name(stated)
    except InvalidName:
        # Casefold first: ß becomes ss, and has no other decomposition.
        latin = "".join(map(_latin, normalized("NFKD", stated.casefold())))
        ascii_text = latin.encode("ascii", "ignore").decode().lower()
    segments = (re.sub(r"[^a-z0-9_-]+", "-", segment) for segment in ascii_text.split("."))
    corrected = ".".join(filter(None, (_SEPARATORS.sub(_one_separator, segment).strip("-_") for segment in segments)))
    if not corrected:
        return f"skill-{hashlib.sha256(stated.encode('utf-8', 'replace')).hexdigest()[:8]}"
    return corrected[:MAX_LENGTH].rstrip("-_.")


def _latin(character: str) -> str:
    """Return a letter in Latin. A Chinese letter becomes a word. Return other characters unchanged."""
    if character.isascii() or not character.isalpha():
        return character
    latin = anyascii(character)
    return f"-{latin}-" if _CHINESE.fullmatch(character) else latin


def _one_separator(match: re.Match[str]) -> str:
    return match[0] if match[0] == "_" else "-"


def alias_key(stated: str) -> str:
    """Return the key of a stated name in the table of aliases. Names that differ in `.`, `-` or case have different
    keys.
    """
    if len(stated) <= MAX_STATED:
        return stated
    return f"{stated[:MAX_STATED]}~{hashlib.sha256(stated.encode('utf-8', 'replace')).hexdigest()[:12]}"


def loose_version(text: str) -> Version | None:
    """Return the version for texts such as `1`, `1.10`, `v2.0`, `01.2.3` or `2026-09-01`, or None if the text is not a
    version.
    """
    if len(text) > MAX_VERSION:
        return None
    match = _DATE.fullmatch(text) or _LOOSE.fullmatch(text)
    if match is None:
        return None
    major, minor, patch, suffix = match.groups()
    try:
        return Version.parse(f"{int(major)}.{int(minor or 0)}.{int(patch or 0)}{suffix or ''}")
    except InvalidVersion:
        return None


# -- its parts -------------------------------------------------------------------------------------------------------


def _stated(frontmatter: Mapping[str, object], folder: str, others: frozenset[str], repairs: Repairs) -> str:
    """Return the name of the skill: from the frontmatter, or the folder's name if the frontmatter has none or the name
    of another folder.
    """
    value = frontmatter.get("name")
    name = " ".join(_CONTROL.sub(" ", value).split()) if isinstance(value, str) else ""
    if not name:
        fault = "is not a string" if value is not None and not isinstance(value, str) else "is missing"
        repairs.note("missing_name", f"the name {fault}; the folder's name {quoted(folder)} is used", file=FILE)
        return folder or "skill"
    if len(name) > MAX_NAME or not _NAME.fullmatch(name.lower()):
        rule = f"lowercase letters, digits and single hyphens, at most {MAX_NAME} characters"
        repairs.note("bad_name", f"the name {quoted(name)} does not follow the rule of Agent Skills: {rule}", file=FILE)
    if not folder or name.casefold() == folder.casefold():
        return name
    if name in others:
        message = (
            f"the name is {quoted(name)}, which is also another folder's name; "
            f"the name of its own folder, {quoted(folder)}, is used"
        )
        repairs.note("name_of_another", message, file=FILE)
        return folder
    repairs.note(
        "name_not_folder", f"the name is {quoted(name)} and the folder {quoted(folder)}; the name is used", file=FILE
    )
    return name


def _description(skill_md: SkillMd, folder: str, repairs: Repairs) -> str:
    """Return the description, or the beginning of the page if the frontmatter has none. A long one is cut."""
    value = skill_md.frontmatter.get("description")
    text = _plain(value) if isinstance(value, str) else ""
    if not text:
        text = _plain(_first_words(skill_md.body)) or f"The skill {folder or 'without a name'}."
        fault = "is not a string" if value is not None and not isinstance(value, str) else "is missing"
        message = f"the description {fault}; the beginning of the page is used: {quoted(text, 60)}"
        repairs.note("missing_description", message, file=FILE)
    if len(text) > MAX_DESCRIPTION:
        message = f"the description has {len(text)} characters; the first {MAX_DESCRIPTION} are used"
        repairs.note("long_description", message, file=FILE)
        text = text[: MAX_DESCRIPTION - 1].rstrip() + "…"
    return text


def _plain(text: str) -> str:
    return _CONTROL.sub(" ", text.replace("\r\n", "\n")).strip()


def _first_words(body: str) -> str:
    """Return the first paragraph of a Markdown text, or its first heading if it has no paragraph."""
    heading = ""
    paragraph: list[str] = []
    for line in body[:MAX_HEAD].splitlines():
        match = _HEADING.fullmatch(line)
        if match:
            heading = heading or match["text"].rstrip(_BEHIND_HEADING)
        elif line.strip() and not line.lstrip().startswith(("```", "~~~", "---", "<!--", "|")):
            paragraph.append(line.strip())
            continue
        if paragraph:
            break
    return " ".join(paragraph)[:MAX_DESCRIPTION] or heading


def _version(frontmatter: Mapping[str, object], repairs: Repairs) -> Version | None:
    """Return the version in the frontmatter or its `metadata`, or None if there is none or it is not a version."""
    metadata = frontmatter.get("metadata")
    metadata_version = metadata.get("version") if isinstance(metadata, Mapping) else None
    value = metadata_version if metadata_version is not None else frontmatter.get("version")
    if value is None or value == "":
        return None
    version = loose_version(value) if isinstance(value, str) else None
    if version is None:
        value_text = quoted(value) if isinstance(value, str) else "not a string"
        repairs.note(
            "bad_version",
            f"the version is {value_text}, which is not a version; the next free version is used",
            file=FILE,
        )
    elif str(version) != value:
        repairs.note("loose_version", f"the version is {quoted(str(value))}; it is read as {version}", file=FILE)
    return version


def _note_rest(frontmatter: Mapping[str, object], repairs: Repairs) -> None:
    """Note a repair for unknown keys, for metadata and for compatibility that do not follow the
    format. They are kept.
    """
    unknown = [key for key in frontmatter if key not in KEYS and key not in _OURS]
    if unknown:
        repairs.note("unknown_keys", f"keys that Agent Skills do not define are kept: {_some(unknown)}", file=FILE)
    metadata = frontmatter.get("metadata")
    if metadata is not None and not isinstance(metadata, Mapping):
        repairs.note("odd_metadata", "the metadata is not a mapping of keys to values; it is kept", file=FILE)
    elif isinstance(metadata, Mapping) and not all(isinstance(value, str) for value in metadata.values()):
        repairs.note("odd_metadata", "the metadata contains values that are not strings; it is kept", file=FILE)
    compatibility = frontmatter.get("compatibility", "")
    if not isinstance(compatibility, str) or len(compatibility) > MAX_COMPATIBILITY:
        message = f"the compatibility is not a string of at most {MAX_COMPATIBILITY} characters; it is kept"
        repairs.note("odd_compatibility", message, file=FILE)


def _some(keys: Iterable[str]) -> str:
    return first_names([quoted(key, 40) for key in keys], 10)
