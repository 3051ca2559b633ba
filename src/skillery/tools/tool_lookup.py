"""Look-up of a tool by its name.

If several skills that the caller sees offer a tool with the same name, the name selects the most recently published
tool.
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
from skillery.registry.visibility import View, parameters, view_of

_KEPT = 256
"""The number of cached compiled statements."""
_NEIGHBOURS = 20
_NEAR = 3

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
"""`tool` or `skill/tool`. The length is limited, so that the search for similar names is cheap."""


class SessionTool(NamedTuple):
    """The file of a tool that was defined in a session."""

    script: str
    content: str


class FoundTool(NamedTuple):
    """A tool and its origin: a version of a skill, or the caller's session."""

    name: str
    declared: Mapping[str, Any]
    script: str | None
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
    """Return the tool `name`: of the version `skill` if given, else of the session, else of the skill that published it
    last.

    Raise ToolNotFound if there is no such tool. Raise SkillNotFound, VersionNotFound or LabelNotFound if the identity
    does not see `skill`.
    """
    if skill is not None:
        return _in_version(connection, resolve(connection, identity, *skill), name)
    own = _ONE_OF_SESSION.rows(connection, name=name, **session_values(connection, identity, session))
    for script, content, item_json in own:
        return FoundTool(name, _declared(item_json), script, None, SessionTool(script, content))
    offered = find_offered(connection, identity, name)
    if offered is None:
        raise _not_found(connection, identity, name, session)
    return _in_version(connection, offered, name)


def find_offered(connection: Connection, identity: Identity, name: str) -> VersionRow | None:
    """Return the version of the most recently published tool with this name that the identity sees, or None."""
    overlay = overlay_of(identity)
    if overlay is not None and (own := overlay.find_tool(name)) is not None:
        return own
    rows = _named(view_of(identity)).rows(connection, name=name, **parameters(identity))
    if not rows:
        return None
    item: dict[str, Any] = msgspec.json.decode(rows[0][0])
    return resolve(connection, identity, item["skill"], Exact(Version.parse(item["version"])))


@lru_cache(_KEPT)
def _named(view: View | None) -> Statement:
    return Statement(
        select(tools.c.item_json)
        .join_from(tools, skills, skills.c.id == tools.c.skill_id)
        .where(
            tools.c.offered_since.is_not(None),
            tools.c.name == bindparam("name"),
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
    """Return the handler and the item of the tool, or nothing if the version has no such tool."""
    if version.unstored is None:
        return _ONE_OF_VERSION.rows(connection, version_id=version.version_id, name=name)
    return [version.unstored.tools[name]] if name in version.unstored.tools else []


def _not_found(connection: Connection, identity: Identity, name: str, session: str) -> ToolNotFound:
    near = near_names(connection, identity, name, session)
    hint = f"Did you mean {' or '.join(quoted(tool) for tool in near)}?" if near else "list_tools shows all tools."
    return ToolNotFound(f"there is no tool {quoted(name)}", hint=hint, name=name[:128], near=near)


def near_names(connection: Connection, identity: Identity, name: str, session: str) -> list[str]:
    """Return similar names among the visible tools and the tools of the session.

    The candidates are limited: neighbours of `name` in the index, and names with the same first three characters.
    """
    view, values = view_of(identity), parameters(identity)
    offered = select(tools.c.name).join_from(tools, skills, skills.c.id == tools.c.skill_id)
    offered = offered.where(tools.c.offered_since.is_not(None), *([] if view is None else [sees_tool(view)])).distinct()
    first = name[:3]
    looks = (
        offered.where(tools.c.name >= name).order_by(tools.c.name).limit(_NEIGHBOURS),
        offered.where(tools.c.name < name).order_by(tools.c.name.desc()).limit(_NEIGHBOURS),
        offered.where(and_(tools.c.name >= first, tools.c.name < first + "\x7f")).order_by(tools.c.name).limit(100),
    )
    own = OF_SESSION.rows(connection, **session_values(connection, identity, session))
    names = {tool for tool, _ in own}
    names.update(value for look in looks for value in connection.scalars(look, values))
    return near_words(name, sorted(names), _NEAR)


def _declared(item_json: str) -> Mapping[str, Any]:
    declared: dict[str, Any] = msgspec.json.decode(item_json)["parameters"]
    return declared


def parse_address(text: str, skill: str) -> tuple[str | None, str]:
    """Return the skill and the tool of an address. `text` is `tool` or `skill/tool`; `skill` is the skill, or "".

    The returned skill is None if the caller names no skill. Raise InvalidName if it is not a name of a skill. Raise
    InvalidParams if `text` and `skill` name two skills, or if `text` contains a NUL.
    """
    before, slash, name = parse_plain(text, "name").rpartition("/")
    named = parse_skill_name(before) if slash else None
    given_skill = parse_skill_name(skill) if skill else None
    if named and given_skill and named != given_skill:
        raise InvalidParams(
            f"'name' names the skill '{named}', but 'skill' is '{given_skill}'", hint="Name one skill.", param="skill"
        )
    return named or given_skill, name
