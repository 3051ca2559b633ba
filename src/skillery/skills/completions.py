"""Completions of addresses of skills: names, versions and paths that begin with the given text."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

from sqlalchemy import Connection, bindparam, literal_column, select

from skillery.backends import Identity
from skillery.database import Statement
from skillery.database.tables import labels, skill_files, skill_versions, skills
from skillery.errors import SkilleryError
from skillery.formats.skill_uris import RENAMED, folder_of, skill_paths_of
from skillery.formats.version_spec import parse_version_spec
from skillery.registry.resolution import find_skill, resolve
from skillery.registry.visibility import View, parameters, sees_each, view_of

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
