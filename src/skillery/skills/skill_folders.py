"""Skills as folders of Agent Skills: the latest version of each skill, with its URI and a SKILL.md that fits the
format. Completions of their addresses.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec
from sqlalchemy import ColumnElement, Connection, Row, and_, bindparam, func, literal_column, or_, select

from skillery.backends import Identity, Storage
from skillery.database import Statement
from skillery.database.tables import labels, objects, skill_files, skill_versions, skills
from skillery.errors import SkilleryError
from skillery.formats.agent_skill import AgentSkill, agent_skill
from skillery.formats.skill_md import FILE as SKILL_MD
from skillery.formats.skill_uris import RENAMED, agent_name, folder_of, skill_paths_of, uri_of
from skillery.formats.version_spec import parse_version_spec
from skillery.registry.resolution import find_skill, resolve
from skillery.registry.visibility import (
    View,
    hidden_audiences,
    parameters,
    require_audience,
    sees_each,
    sees_skill,
    view_of,
)

_KEPT = 512
_MOST_KEPT_BYTES = 16 * 1024
_BATCH = 200
_HAS_VERSION = skills.c.latest_version_id.is_not(None)
_LATEST = select(
    skills.c.id, skills.c.name, skills.c.visibility, skills.c.latest_version_id, skill_versions.c.audience
).join_from(skills, skill_versions, skill_versions.c.id == skills.c.latest_version_id)


class ServedFile(NamedTuple):
    path: str
    sha256: str
    size_bytes: int


class ServedSkillMd(NamedTuple):
    """The properties of the SKILL.md that is served for a skill, without its text."""

    name: str
    description: str
    frontmatter: dict[str, object]
    sha256: str
    size_bytes: int


class SkillFolder(NamedTuple):
    """The folder of a skill's latest version, for an identity that sees the skill."""

    name: str
    version_id: int
    folder: tuple[str, ...]
    skill_md: ServedSkillMd
    files: tuple[ServedFile, ...]
    """The files, sorted by path. A file whose path belongs to the folder of another skill is left out. SKILL.md has the
    digest and size of the served text.
    """

    def uri(self, path: str = "") -> str:
        return uri_of(self.folder, path)


def find_folder(
    connection: Connection, identity: Identity, storage: Storage, segments: tuple[str, ...]
) -> tuple[SkillFolder, str] | None:
    """Return the skill whose folder contains the URI path `segments`, and the rest of the path inside the folder.

    Return None if the identity sees no such skill. Raise PeopleOnly if the identity may not read the skill.
    """
    candidates = skill_paths_of(segments)
    seen = seen_named(connection, identity, [candidate.name for candidate in candidates])
    for name, rest in candidates:
        if name in seen:
            require_audience(identity, name, seen[name].audience)
            latest = [(name, seen[name].latest_version_id)]
            return open_folders(connection, identity, storage, latest)[0], "/".join(rest)
    return None


def open_folders(
    connection: Connection, identity: Identity, storage: Storage, versions: Sequence[tuple[str, int]]
) -> list[SkillFolder]:
    """Return the folders of skills, without files at paths of other skills that the identity sees.

    `versions` are pairs: the name of a skill that the identity sees, and the id of its latest version.
    """
    if not versions:
        return []
    ids = [version_id for _, version_id in versions]
    files: dict[int, list[ServedFile]] = {version_id: [] for version_id in ids}
    of_files = select(skill_files.c.version_id, skill_files.c.path, skill_files.c.sha256, skill_files.c.size_bytes)
    for version_id, *file in connection.execute(of_files.where(skill_files.c.version_id.in_(ids))):
        files[version_id].append(ServedFile(*file))
    # Read one after the other: each may have megabytes, and a page has many.
    names = {version_id: name for name, version_id in versions}
    skill_mds = {
        version_id: skill_md_of(names[version_id], content, description)
        for version_id, (content, description) in _skill_mds(connection, storage, ids)
    }
    elsewhere = _in_other_folders(connection, identity, [(name, files[version_id]) for name, version_id in versions])
    folders = []
    for name, version_id in versions:
        skill_md = skill_mds[version_id]
        served = (
            ServedFile(SKILL_MD, skill_md.sha256, skill_md.size_bytes) if file.path == SKILL_MD else file
            for file in files[version_id]
            if (name, file.path) not in elsewhere
        )
        in_order = tuple(sorted(served, key=lambda file: file.path.encode()))
        folders.append(SkillFolder(name, version_id, folder_of(name), skill_md, in_order))
    return folders


def skill_md_of(name: str, content: bytes, description: str) -> ServedSkillMd:
    """Return the properties of the served SKILL.md. `content` is the stored SKILL.md, `description` that of the
    manifest.
    """
    shown = _shown if len(content) <= _MOST_KEPT_BYTES else _shown.__wrapped__
    return shown(name, content, description)


@lru_cache(_KEPT)
def _shown(name: str, content: bytes, description: str) -> ServedSkillMd:
    made = conforming(name, content, description)
    digest = hashlib.sha256(made.content).hexdigest()
    return ServedSkillMd(agent_name(name), made.description, made.frontmatter, digest, len(made.content))


def conforming(name: str, content: bytes, description: str) -> AgentSkill:
    return agent_skill(content, name=agent_name(name), description=description)


def stored_skill_md(connection: Connection, storage: Storage, version_id: int) -> tuple[bytes, str]:
    """Return the stored SKILL.md of a version, and the description in its manifest."""
    return dict(_skill_mds(connection, storage, [version_id]))[version_id]


def names_below(
    connection: Connection, identity: Identity, name: str, *, after: str = "", most: int
) -> list[tuple[str, int]]:
    """Return the first skills below `name` as `listed_after` returns them."""
    # "/" follows "." in the order of bytes.
    return listed_after(connection, identity, max(after, f"{name}."), most, skills.c.name < f"{name}/")


def listed_after(
    connection: Connection, identity: Identity, after: str, most: int, condition: ColumnElement[bool]
) -> list[tuple[str, int]]:
    """Return (name, id of the latest version) of at most `most` skills after the name `after` that meet a condition and
    that lists show to the identity, sorted by the bytes of their names.
    """
    listed: list[tuple[str, int]] = []
    hidden = hidden_audiences(identity)
    while len(listed) < most:
        batch = connection.execute(
            _LATEST.where(skills.c.name > after, condition).order_by(skills.c.name).limit(_BATCH)
        ).all()
        listed += [
            (row.name, row.latest_version_id)
            for row in batch
            if row.audience not in hidden and sees_skill(connection, identity, row.id, row.name, row.visibility)
        ]
        if len(batch) < _BATCH:
            break
        after = batch[-1].name
    return listed[:most]


def count_files(connection: Connection, version_ids: Sequence[int]) -> int:
    counted = select(func.count()).where(skill_files.c.version_id.in_(version_ids))
    return connection.scalar(counted) or 0 if version_ids else 0


def with_skills_below(connection: Connection, names: Iterable[str]) -> set[str]:
    """Return the names whose folders contain other skills. Skills that the identity does not see count too."""
    wanted = [name for name in names if folder_of(name) == tuple(name.split("."))]
    outer: set[str] = set()
    if not wanted:
        return outer
    below = or_(*(and_(skills.c.name > f"{name}.", skills.c.name < f"{name}/") for name in wanted))
    if connection.execute(select(skills.c.id).where(_HAS_VERSION, below).limit(1)).first() is None:
        return outer
    for name in wanted:
        inner = select(skills.c.id).where(_HAS_VERSION, skills.c.name > f"{name}.", skills.c.name < f"{name}/").limit(1)
        if connection.execute(inner).first() is not None:
            outer.add(name)
    return outer


def _skill_mds(connection: Connection, storage: Storage, ids: Sequence[int]) -> Iterator[tuple[int, tuple[bytes, str]]]:
    rows = connection.execute(
        select(skill_versions.c.id, skill_versions.c.names_json, skill_files.c.sha256, objects.c.data)
        .join_from(skill_versions, skill_files, skill_files.c.version_id == skill_versions.c.id)
        .join(objects, objects.c.sha256 == skill_files.c.sha256)
        .where(skill_versions.c.id.in_(ids), skill_files.c.path == SKILL_MD)
    )
    for version_id, names_json, sha256, data in rows:
        description: str = msgspec.json.decode(names_json)["description"]
        if data is None:
            with storage.open(sha256) as stream:
                data = stream.read()  # noqa: PLW2901 - the content, from the database or the storage
        yield version_id, (bytes(data), description)


def _in_other_folders(
    connection: Connection, identity: Identity, folders: Iterable[tuple[str, list[ServedFile]]]
) -> set[tuple[str, str]]:
    """Return (name, path) of the files whose URIs belong to another skill: `b/x` of the skill `a`, if a skill `a.b`
    exists.
    """
    longer_names: dict[tuple[str, str], list[str]] = {}
    for name, files in folders:
        folder = folder_of(name)
        for file in files:
            if "/" in file.path:
                candidates = skill_paths_of((*folder, *file.path.split("/")))
                longer = [candidate.name for candidate in candidates if len(candidate.name) > len(name)]
                if longer:
                    longer_names[name, file.path] = longer
    seen = seen_named(connection, identity, {name for names in longer_names.values() for name in names})
    return {key for key, names in longer_names.items() if any(name in seen for name in names)}


def seen_named(connection: Connection, identity: Identity, names: Iterable[str]) -> dict[str, Row[Any]]:
    """Return the skills in `names` that the identity sees, for any audience: by name, with `latest_version_id` and the
    `audience` of this version.
    """
    wanted = list(names)
    seen: dict[str, Row[Any]] = {}
    for start in range(0, len(wanted), _BATCH):
        rows = connection.execute(_LATEST.where(skills.c.name.in_(wanted[start : start + _BATCH])))
        seen |= {
            row.name: row for row in rows.all() if sees_skill(connection, identity, row.id, row.name, row.visibility)
        }
    return seen


def listed_named(connection: Connection, identity: Identity, names: Iterable[str]) -> set[str]:
    """Return the names of skills that lists show to the identity."""
    hidden = hidden_audiences(identity)
    return {name for name, row in seen_named(connection, identity, names).items() if row.audience not in hidden}


# -- Completions of addresses: names, versions and paths that begin with the given text --------------------------------


MOST_VALUES = 100
"""The limit of MCP."""
LATEST = "latest"
_AFTER_ALL = "\x7f"
"""Follows each character of a skill's name in the order of bytes."""

_VERSIONS = Statement(
    select(skill_versions.c.version)
    .where(
        skill_versions.c.skill_id == bindparam("skill_id"),
        skill_versions.c.status.in_([literal_column("'published'"), literal_column("'deprecated'")]),
    )
    .order_by(skill_versions.c.precedence.desc())
)
_LABELS = Statement(select(labels.c.label).where(labels.c.skill_id == bindparam("skill_id")).order_by(labels.c.label))
_PATHS = Statement(
    select(skill_files.c.path).where(skill_files.c.version_id == bindparam("version_id")).order_by(skill_files.c.path)
)


class Completions(NamedTuple):
    values: list[str]
    has_more: bool


def complete_skill(connection: Connection, identity: Identity, text: str) -> Completions:
    """Return the folders of the skills that the identity sees and that begin with `text`: `text/csv/profile`."""
    if "\0" in text:
        return Completions([], has_more=False)  # Postgres has no such text
    above = text.partition(f"/{RENAMED}")[0]
    name = above.replace("/", ".")
    statement = _names(view_of(identity))
    values = {"low": name, "high": f"{name}{_AFTER_ALL}"}
    rows = statement.rows(connection, **values, **parameters(identity))
    return _starting_with(("/".join(folder_of(name)) for (name,) in rows), text)


def complete_version(connection: Connection, identity: Identity, skill: str, text: str) -> Completions:
    """Return what selects a version of a skill: `latest`, its labels, and its published versions, highest first.

    `skill` is the folder of the skill. If the identity sees no such skill, there are no completions.
    """
    name = _name_of(skill)
    skill_id = find_skill(connection, identity, name) if name else None
    if skill_id is None:
        return Completions([], has_more=False)
    choices = [LATEST]
    for statement in (_LABELS, _VERSIONS):
        choices += [value for (value,) in statement.rows(connection, skill_id=skill_id)]
    return _starting_with(choices, text)


def complete_path(connection: Connection, identity: Identity, skill: str, version: str, text: str) -> Completions:
    """Return the paths of the files in a version of a skill. `version` "" is the latest one."""
    name = _name_of(skill)
    try:
        spec = parse_version_spec(version or LATEST)
        row = resolve(connection, identity, name, spec) if name else None
    except SkilleryError:
        row = None  # the user has not finished the skill or the version
    if row is None:
        return Completions([], has_more=False)
    return _starting_with((path for (path,) in _PATHS.rows(connection, version_id=row.version_id)), text)


@lru_cache(256)
def _names(view: View | None) -> Statement:
    statement = (
        select(skills.c.name)
        .where(
            skills.c.latest_version_id.is_not(None),
            skills.c.name >= bindparam("low"),
            skills.c.name < bindparam("high"),
        )
        .order_by(skills.c.name)
        .limit(literal_column(str(MOST_VALUES + 1)))
    )
    return Statement(statement if view is None else statement.where(sees_each(view, skills, skills.c.id)))


def _starting_with(values: Iterable[str], text: str) -> Completions:
    matches = [value for value in values if value.startswith(text)]
    return Completions(matches[:MOST_VALUES], len(matches) > MOST_VALUES)


def _name_of(folder: str) -> str | None:
    """Return the name of the skill with this folder, or None if it is not a folder of a skill."""
    return next((name for name, rest in skill_paths_of(tuple(folder.split("/"))) if not rest), None)
