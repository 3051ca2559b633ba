"""The look-up of a tool by its name.

If several skills that the caller sees offer a tool of the same name, the most recently published tool is selected.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec import Meta
from sqlalchemy import (
    Connection,
    and_,
    bindparam,
    literal_column,
    select,
)

from skillery.backends import Identity
from skillery.database import Statement
from skillery.database.tables import session_tools, skills, tools
from skillery.errors import InvalidParams, ToolNotFound
from skillery.formats.names import parse_skill_name
from skillery.formats.semver import Version
from skillery.formats.texts import parse_plain
from skillery.formats.version_spec import Exact, VersionSpec
from skillery.formats.wording import near_words, quoted
from skillery.registry.development import overlay_of
from skillery.registry.resolution import resolve
from skillery.registry.tool_rows import OF_SESSION, is_session_tool, sees_tool, session_values, tools_of
from skillery.registry.version_rows import VersionRow
from skillery.registry.visibility import Hidden, View, hidden_audiences, is_for, parameters, versions_for, view_of

_KEPT = 256
"""The maximum number of compiled statements in each cache."""
_NEIGHBOURS = 20
"""The number of names before and after a misspelt name that are compared with it."""
_NEAR = 3
"""The maximum number of suggested names."""

_ONE_OF_VERSION = Statement(
    select(tools.c.script, tools.c.item_json).where(
        tools.c.version_id == bindparam("version_id"), tools.c.name == bindparam("name")
    )
)
_ONE_OF_SESSION = Statement(
    select(session_tools.c.script, session_tools.c.content, session_tools.c.item_json).where(
        is_session_tool, session_tools.c.name == bindparam("name")
    )
)
_HANDLER = Statement(
    select(tools.c.name)
    .where(tools.c.version_id == bindparam("version_id"), tools.c.script == bindparam("script"))
    .order_by(tools.c.name)
    .limit(literal_column("1"))
)
ToolAddress = Annotated[str, Meta(max_length=257)]
"""`tool` or `skill/tool`. The limit on its length keeps the search for similar names cheap."""


class SessionTool(NamedTuple):
    """The handler of a tool that was defined in a session: its path and its code."""

    script: str
    content: str


class FoundTool(NamedTuple):
    """A tool, with its version of a skill or its definition in the caller's session."""

    name: str
    declared: Mapping[str, Any]
    """The parameters as tools.json declares them."""
    script: str | None
    """The path of the handler, or None for a tool that is only described in SKILL.md."""
    version: VersionRow | None
    session: SessionTool | None = None


def find_tool(
    connection: Connection,
    identity: Identity,
    name: str,
    *,
    skill: tuple[str, VersionSpec] | None,
    session: str,
) -> FoundTool:
    """Return the tool `name`.

    The tool belongs to the version `skill` if given, else to the session, else to the skill that published a tool of
    this name last. Raise ToolNotFound if there is no such tool. Raise SkillNotFound, VersionNotFound or LabelNotFound
    if the identity does not see `skill`.
    """
    if skill is not None:
        return _in_version(connection, resolve(connection, identity, *skill), name)
    session_rows = _ONE_OF_SESSION.rows(connection, name=name, **session_values(connection, identity, session))
    for script, content, item_json in session_rows:
        return FoundTool(name, _declared(item_json), script, None, SessionTool(script, content))
    offered = find_offered(connection, identity, name)
    if offered is None:
        raise _not_found(connection, identity, name, session)
    return _in_version(connection, offered, name)


def find_offered(connection: Connection, identity: Identity, name: str) -> VersionRow | None:
    """Return the version with the most recently published tool of this name that the identity may call, or None."""
    overlay = overlay_of(identity)
    if overlay is not None and (development_version := overlay.find_tool(name)) is not None:
        return development_version
    rows = _named(view_of(identity), hidden_audiences(identity, internal=True)).rows(
        connection, name=name, **parameters(identity)
    )
    if not rows:
        return None
    item: dict[str, Any] = msgspec.json.decode(rows[0][0])
    return resolve(connection, identity, item["skill"], Exact(Version.parse(item["version"])))


@lru_cache(_KEPT)
def _named(view: View | None, hidden: Hidden) -> Statement:
    """Return the statement for the most recently offered tool of a name that an identity with this view sees, without
    tools for `hidden` audiences.
    """
    return Statement(
        select(tools.c.item_json)
        .join_from(tools, skills, skills.c.id == tools.c.skill_id)
        .where(
            tools.c.offered_since.is_not(None),
            tools.c.name == bindparam("name"),
            *([tools.c.version_id.not_in(versions_for(hidden))] if hidden else []),
            *([] if view is None else [sees_tool(view)]),
        )
        .order_by(tools.c.offered_since.desc(), tools.c.version_id.desc())
        .limit(literal_column("1"))
    )


def tool_run_by(connection: Connection, version: VersionRow, script: str) -> str | None:
    """Return the name of a tool of the version whose handler is the file `script`, or None."""
    if version.unstored is not None:
        return next((name for name, (handler, _) in version.unstored.tools.items() if handler == script), None)
    rows = _HANDLER.rows(connection, version_id=version.version_id, script=script)
    return str(rows[0][0]) if rows else None


def _in_version(connection: Connection, version: VersionRow, name: str) -> FoundTool:
    """Return the tool of a version. Raise ToolNotFound, with similar names, if the version has no such tool."""
    for script, item_json in _named_in(connection, version, name):
        return FoundTool(name, _declared(item_json), script, version)
    names = [tool for tool, _ in tools_of(connection, version)]
    near = near_words(name, names, _NEAR)
    offers = f"The tools are {', '.join(names[:20])}." if names else "This version has no tools."
    raise ToolNotFound(
        f"'{version.name}' {version.version} has no tool {quoted(name)}",
        hint=f"Did you mean {' or '.join(near)}?" if near else offers,
        name=name[:128],
        skill=version.name,
        version=version.version,
        near=near,
    )


def _named_in(connection: Connection, version: VersionRow, name: str) -> Sequence[Any]:
    """Return a list with the handler and the item of the tool, or an empty list if the version has no such tool."""
    if version.unstored is None:
        return _ONE_OF_VERSION.rows(connection, version_id=version.version_id, name=name)
    return [version.unstored.tools[name]] if name in version.unstored.tools else []


def _not_found(connection: Connection, identity: Identity, name: str, session: str) -> ToolNotFound:
    """Return the error for a tool that no visible skill and no session offers, with similar names."""
    near = near_names(connection, identity, name, session)
    hint = f"Did you mean {' or '.join(quoted(tool) for tool in near)}?" if near else "list_tools shows all tools."
    return ToolNotFound(f"there is no tool {quoted(name)}", hint=hint, name=name[:128], near=near)


def near_names(connection: Connection, identity: Identity, name: str, session: str) -> list[str]:
    """Return similar names of the visible tools that are for the identity, and of the tools of the session.

    To limit the cost, only neighbours of `name` in the index and names with the same first three characters are
    compared.
    """
    view, values = view_of(identity), parameters(identity)
    offered = select(tools.c.name).join_from(tools, skills, skills.c.id == tools.c.skill_id)
    offered = offered.where(
        tools.c.offered_since.is_not(None),
        *is_for(identity, tools.c.version_id),
        *([] if view is None else [sees_tool(view)]),
    ).distinct()
    first_letters = name[:3]
    neighbour_queries = (
        offered.where(tools.c.name >= name).order_by(tools.c.name).limit(_NEIGHBOURS),
        offered.where(tools.c.name < name).order_by(tools.c.name.desc()).limit(_NEIGHBOURS),
        offered.where(and_(tools.c.name >= first_letters, tools.c.name < first_letters + "\x7f"))
        .order_by(tools.c.name)
        .limit(100),
    )
    session_tools_found = OF_SESSION.rows(connection, **session_values(connection, identity, session))
    names = {tool for tool, _ in session_tools_found}
    names.update(value for look in neighbour_queries for value in connection.scalars(look, values))
    return near_words(name, sorted(names), _NEAR)


def _declared(item_json: str) -> Mapping[str, Any]:
    """Return the parameters in the stored item of a tool."""
    declared: dict[str, Any] = msgspec.json.decode(item_json)["parameters"]
    return declared


def parse_address(text: str, skill: str) -> tuple[str | None, str]:
    """Return the skill, or None, and the tool that the params `name` and `skill` name.

    `text` is the param `name`: `tool` or `skill/tool`. `skill` is the param `skill`, or "". Raise InvalidName if a name
    of a skill is invalid. Raise InvalidParams if the two params name two skills, or if `text` contains a NUL.
    """
    skill_in_address, slash, name = parse_plain(text, "name").rpartition("/")
    named_skill = parse_skill_name(skill_in_address) if slash else None
    given_skill = parse_skill_name(skill) if skill else None
    if named_skill and given_skill and named_skill != given_skill:
        raise InvalidParams(
            f"'name' names the skill '{named_skill}', but 'skill' is '{given_skill}'",
            hint="Name one skill.",
            param="skill",
        )
    return named_skill or given_skill, name
