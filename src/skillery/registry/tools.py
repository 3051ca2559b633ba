"""The tools of versions: stored as versions change, listed, and found by name.

A tool is offered while its version is the latest of its skill. If several skills offer a tool of one name, the bare
name means the tool that was published last, among those that the caller sees.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec
from sqlalchemy import (
    ColumnElement,
    Connection,
    Select,
    and_,
    bindparam,
    func,
    insert,
    literal_column,
    select,
    tuple_,
    update,
)

from skillery.backends import Identity
from skillery.database import Statement, as_stored
from skillery.database.tables import session_tools, skill_versions, skills, tools, version_steps
from skillery.errors import ToolNotFound
from skillery.formats.bundle import Bundle
from skillery.formats.semver import Version
from skillery.formats.tools_json import Tool
from skillery.formats.version_spec import Exact, VersionSpec
from skillery.formats.wording import near_words, quoted
from skillery.registry.cursors import make_cursor, read_cursor
from skillery.registry.pages import fitting, read_until_full, text_bytes
from skillery.registry.resolution import VersionRow, resolve
from skillery.registry.visibility import View, parameters, sees_each, view_of

_KEPT = 256
_NEIGHBOURS = 20
_NEAR = 3

_ADD = insert(tools)
_ANY = select(tools.c.version_id).where(tools.c.skill_id == bindparam("of_skill")).limit(1)
_WITHDRAW = update(tools).where(tools.c.skill_id == bindparam("of_skill"), tools.c.offered_since.is_not(None))
_approved_at = (
    select(func.max(version_steps.c.created_at))
    .where(version_steps.c.version_id == bindparam("of_version"), version_steps.c.step == "approve")
    .scalar_subquery()
)
_created_at = (
    select(skill_versions.c.created_at).where(skill_versions.c.id == bindparam("of_version")).scalar_subquery()
)
_OFFER = update(tools).where(tools.c.version_id == bindparam("of_version"))

_OF_VERSION = Statement(
    select(tools.c.name, tools.c.item_json)
    .where(tools.c.version_id == bindparam("version_id"), tools.c.name > bindparam("after"))
    .order_by(tools.c.name)
)
_ONE_OF_VERSION = Statement(
    select(tools.c.script, tools.c.item_json).where(
        tools.c.version_id == bindparam("version_id"), tools.c.name == bindparam("name")
    )
)
_is_own = and_(
    session_tools.c.identity == bindparam("identity"),
    session_tools.c.session == bindparam("session"),
    session_tools.c.expires_at > bindparam("now"),
)
_OF_SESSION = Statement(
    select(session_tools.c.name, session_tools.c.item_json).where(_is_own).order_by(session_tools.c.name)
)
_ONE_OF_SESSION = Statement(
    select(session_tools.c.script, session_tools.c.content, session_tools.c.item_json).where(
        _is_own, session_tools.c.name == bindparam("name")
    )
)


_HANDLER = Statement(
    select(tools.c.name)
    .where(tools.c.version_id == bindparam("version_id"), tools.c.script == bindparam("script"))
    .order_by(tools.c.name)
    .limit(literal_column("1"))
)


class SessionTool(NamedTuple):
    """The single file of a tool that lives in a session."""

    script: str
    content: str


class FoundTool(NamedTuple):
    """A tool and its origin: a version, or the caller's session."""

    name: str
    declared: Mapping[str, Any]
    script: str | None
    version: VersionRow | None
    session: SessionTool | None = None


# -- kept as versions come and go ----------------------------------------------------------------------------------


def tool_item(tool: Tool, skill: str | None, version: str | None) -> str:
    """Return a tool as an item of list_tools."""
    item = {
        "name": tool.name,
        "skill": skill,
        "version": version,
        "description": tool.description,
        "parameters": tool.declared,
    }
    return msgspec.json.encode(item).decode()


def add_tools(connection: Connection, version_id: int, skill_id: int, bundle: Bundle) -> None:
    name, version = bundle.manifest.name, str(bundle.manifest.version)
    rows = [
        {
            "version_id": version_id,
            "name": tool.name,
            "skill_id": skill_id,
            "skill": name,
            "script": tool.script,
            "item_json": tool_item(tool, name, version),
        }
        for tool in bundle.tools
    ]
    if rows:
        connection.execute(_ADD, rows)


def offer_latest(connection: Connection, skill_id: int, version_id: int | None) -> None:
    """Offer the tools of this version, and no other tools of the skill."""
    if connection.scalar(_ANY, {"of_skill": skill_id}) is None:
        return
    connection.execute(_WITHDRAW.values(offered_since=None), {"of_skill": skill_id})
    if version_id is not None:
        offered = _OFFER.values(offered_since=func.coalesce(_approved_at, _created_at))
        connection.execute(offered, {"of_version": version_id})


# -- listed --------------------------------------------------------------------------------------------------------


def list_tools(
    connection: Connection,
    identity: Identity,
    key: bytes,
    *,
    skill: tuple[str, VersionSpec] | None,
    session: str,
    limit: int,
    cursor: str,
) -> msgspec.Raw:
    """Return `{"tools": […], "next_cursor": …}` as JSON, sorted by the bytes of skill and name.

    Tools of the session come first. With `skill`, only the tools of that version are listed. Raises InvalidCursor,
    SkillNotFound, VersionNotFound, LabelNotFound.
    """
    bound_to = ("list_tools", skill[0] if skill else "", str(skill[1]) if skill else "", session)
    after = read_cursor(key, bound_to, cursor, 2) if cursor else ("", "")
    if skill is not None:
        row = resolve(connection, identity, *skill)
        found = _OF_VERSION.rows(connection, version_id=row.version_id, after=after[1])[: limit + 1]
        rows = [(row.name, name, item) for name, item in found]
    else:
        rows = _own_rows(connection, identity, session, after)
        rows += _offered_until_full(connection, identity, after, limit + 1)
    page = fitting(rows[:limit], _size_of)
    more = len(rows) > len(page)
    next_cursor = f'"{make_cursor(key, bound_to, (page[-1][0], page[-1][1]))}"' if more else "null"
    return msgspec.Raw(f'{{"tools":[{",".join(row[2] for row in page)}],"next_cursor":{next_cursor}}}'.encode())


def _offered_until_full(
    connection: Connection, identity: Identity, after: tuple[str, ...], count: int
) -> list[tuple[str, str, str]]:
    def read(wanted: int, last: tuple[str, str, str] | None) -> list[tuple[str, str, str]]:
        return [tuple(one[:3]) for one in _offered(connection, identity, last or after, wanted)]

    return read_until_full(read, count, _size_of)


def _size_of(row: tuple[str, str, str]) -> int:
    return text_bytes(row[2])


def _own_rows(
    connection: Connection, identity: Identity, session: str, after: tuple[str, ...]
) -> list[tuple[str, str, str]]:
    if after[0]:
        return []
    own = _OF_SESSION.rows(connection, **_session_values(connection, identity, session))
    return [("", name, item_json) for name, item_json in own if name > after[1]]


def _session_values(connection: Connection, identity: Identity, session: str) -> dict[str, Any]:
    return {"identity": identity.name, "session": session, "now": as_stored(connection, datetime.now(UTC))}


def _offered(connection: Connection, identity: Identity, after: tuple[str, ...], rows: int) -> Sequence[Any]:
    view = view_of(identity)
    values = {"after_skill": after[0], "after_name": after[1] if after[0] else ""}
    found = _whole(rows).rows(connection, **values)
    if view is None or all(row[3] == "public" for row in found):
        # Most pages contain no hidden skill.
        return found
    return _seen(rows, view).rows(connection, **values, **parameters(identity))


def _listing(rows: int, *where: ColumnElement[bool]) -> Select[Any]:
    place = tuple_(tools.c.skill, tools.c.name) > tuple_(bindparam("after_skill"), bindparam("after_name"))
    return (
        select(tools.c.skill, tools.c.name, tools.c.item_json, skills.c.visibility)
        .join_from(tools, skills, skills.c.id == tools.c.skill_id)
        .where(tools.c.offered_since.is_not(None), place, *where)
        .order_by(tools.c.skill, tools.c.name)
        .limit(literal_column(str(rows)))
    )


@lru_cache(_KEPT)
def _whole(rows: int) -> Statement:
    return Statement(_listing(rows))


@lru_cache(_KEPT)
def _seen(rows: int, view: View) -> Statement:
    return Statement(_listing(rows, _sees(view)))


def _sees(view: View) -> ColumnElement[bool]:
    return sees_each(view, skills, skills.c.id)


# -- found by name ---------------------------------------------------------------------------------------------------


def find_tool(
    connection: Connection,
    identity: Identity,
    name: str,
    *,
    skill: tuple[str, VersionSpec] | None,
    session: str,
) -> FoundTool:
    """Return the tool of that name. Raise ToolNotFound, SkillNotFound, VersionNotFound, LabelNotFound.

    The tool belongs to `skill` if given; else to the session; else to the skill that published it last.
    """
    if skill is not None:
        return _in_version(connection, resolve(connection, identity, *skill), name)
    own = _ONE_OF_SESSION.rows(connection, name=name, **_session_values(connection, identity, session))
    for script, content, item_json in own:
        return FoundTool(name, _declared(item_json), script, None, SessionTool(script, content))
    offered = find_offered(connection, identity, name)
    if offered is None:
        raise _not_found(connection, identity, name, session)
    return _in_version(connection, offered, name)


def find_offered(connection: Connection, identity: Identity, name: str) -> VersionRow | None:
    """Return the version that a bare name means, among those that the identity sees; else None."""
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
            *([] if view is None else [_sees(view)]),
        )
        .order_by(tools.c.offered_since.desc(), tools.c.version_id.desc())
        .limit(literal_column("1"))
    )


def tool_run_by(connection: Connection, version_id: int, script: str) -> str | None:
    """Return the name of a tool of the version whose handler is this file, or None."""
    rows = _HANDLER.rows(connection, version_id=version_id, script=script)
    return str(rows[0][0]) if rows else None


def _in_version(connection: Connection, version: VersionRow, name: str) -> FoundTool:
    for script, item_json in _ONE_OF_VERSION.rows(connection, version_id=version.version_id, name=name):
        return FoundTool(name, _declared(item_json), script, version)
    names = [found for found, _ in _OF_VERSION.rows(connection, version_id=version.version_id, after="")]
    near = near_words(name, names, _NEAR)
    offers = f"It offers {', '.join(names[:20])}." if names else "It offers no tools."
    raise ToolNotFound(
        f"'{version.name}' {version.version} has no tool {quoted(name)}",
        hint=f"Did you mean {' or '.join(near)}?" if near else offers,
        name=name[:128],
        skill=version.name,
        version=version.version,
        near=near,
    )


def _not_found(connection: Connection, identity: Identity, name: str, session: str) -> ToolNotFound:
    near = near_names(connection, identity, name, session)
    hint = f"Did you mean {' or '.join(quoted(one) for one in near)}?" if near else "list_tools shows all tools."
    return ToolNotFound(f"there is no tool {quoted(name)}", hint=hint, name=name[:128], near=near)


def near_names(connection: Connection, identity: Identity, name: str, session: str) -> list[str]:
    """Return similar names among visible tools and the session's own.

    Compared are the names next to `name` in the index and those with the same beginning; their number is limited.
    """
    view, values = view_of(identity), parameters(identity)
    offered = select(tools.c.name).join_from(tools, skills, skills.c.id == tools.c.skill_id)
    offered = offered.where(tools.c.offered_since.is_not(None), *([] if view is None else [_sees(view)])).distinct()
    first = name[:3]
    looks = (
        offered.where(tools.c.name >= name).order_by(tools.c.name).limit(_NEIGHBOURS),
        offered.where(tools.c.name < name).order_by(tools.c.name.desc()).limit(_NEIGHBOURS),
        offered.where(and_(tools.c.name >= first, tools.c.name < first + "\x7f")).order_by(tools.c.name).limit(100),
    )
    own = _OF_SESSION.rows(connection, **_session_values(connection, identity, session))
    names = {one for one, _ in own}
    names.update(found for look in looks for found in connection.scalars(look, values))
    return near_words(name, sorted(names), _NEAR)


def _declared(item_json: str) -> Mapping[str, Any]:
    declared: dict[str, Any] = msgspec.json.decode(item_json)["parameters"]
    return declared
