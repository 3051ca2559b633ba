"""Of folders that are imported together, the later override the earlier: which skills of which folder that concerns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from skillery.cli.packing import Folder
from skillery.errors import SkilleryError, StartupError
from skillery.formats.foreign_skill import alias_key, read_foreign_skill
from skillery.formats.lenient_skill_md import read_skill_md
from skillery.formats.repairs import Repairs
from skillery.formats.skill_toml import toml_manifest
from skillery.importing.finding import SKILL_MD, SKILL_TOML, FoundSkill

_MOST_BYTES = 1024 * 1024
"""Of a file that says what its skill is called."""


def override(folders: Sequence[Folder | None], names: Sequence[str]) -> list[Folder | None]:
    """Each folder without what a later one has too. `names` are those of the folders, for a skill at their root; None
    is an archive, which is not looked into."""
    later: dict[str, str] = {}
    found: list[Folder | None] = []
    for folder, name in zip(reversed(folders), reversed(names), strict=True):
        if folder is None:
            found.append(None)
            continue
        stated = _stated(folder, name)
        overridden = {root: (said, later[alias_key(said)]) for root, said in stated.items() if alias_key(said) in later}
        found.append(folder.without(overridden))
        later |= {
            alias_key(said): str(folder.path / root) for root, said in stated.items() if alias_key(said) not in later
        }
    return found[::-1]


def overridden_skills(folder: Folder | None) -> list[dict[str, Any]]:
    """What of a folder is not sent, as the server reports of skills."""
    found = folder.overridden.items() if folder is not None else ()
    return [{"path": root, "outcome": "overridden", "stated": stated, "by": by} for root, (stated, by) in found]


def counting(said: Mapping[str, Any], overridden: int) -> Mapping[str, Any]:
    """What the server said of all skills, with those that it was not sent."""
    if "total" in said:
        return {**said, "total": said["total"] + overridden}
    if "counts" in said and overridden:
        counts = said["counts"]
        return {**said, "counts": {**counts, "overridden": counts.get("overridden", 0) + overridden}}
    return said


def _stated(folder: Folder, name: str) -> dict[str, str]:
    """By its folder what each skill calls itself, where that can be read."""
    roots = folder.found.roots
    folders = frozenset(root.rpartition("/")[2] for root in roots)
    said = {root: _name(folder.finder.skill(root), name, folders) for root in roots}
    return {root: one for root, one in said.items() if one is not None}


def _name(skill: FoundSkill, archive_name: str, folders: frozenset[str]) -> str | None:
    try:
        if SKILL_TOML in skill.files:
            name = toml_manifest(_content(skill, SKILL_TOML)).get("name")
            return name if isinstance(name, str) else None
        if SKILL_MD not in skill.files:
            return None
        read = read_skill_md(_content(skill, SKILL_MD))
        return read_foreign_skill(read.skill_md, skill.folder or archive_name, folders, Repairs()).stated
    except SkilleryError:
        # The server says what is wrong with it.
        return None


def _content(skill: FoundSkill, path: str) -> bytes:
    place = skill.files[path].place
    try:
        with place.open("rb") as file:
            return bytes(file.read(_MOST_BYTES))
    except OSError as error:
        raise StartupError(f"cannot read '{place}': {error.strerror}") from None
