"""list_tools: the tools of one version, or the tools of the session and of all latest versions."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache, partial
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct
from sqlalchemy import (
    ColumnElement,
    Connection,
    Select,
    bindparam,
    literal_column,
    select,
    tuple_,
)

from skillery.backends import Identity
from skillery.database import Statement
from skillery.database.registry import Registry
from skillery.database.tables import skills, tools
from skillery.formats.version_spec import VersionSpec, parse_reference
from skillery.method import Cursor, Json, Method, PageLimit, Params, about
from skillery.registry.cursors import NextCursor, fitting, make_cursor, read_cursor, read_until_full
from skillery.registry.development import OfferedTool, merged, overlay_of
from skillery.registry.resolution import resolve
from skillery.registry.tool_rows import OF_SESSION, SessionName, parse_session, sees_tool, session_values, tools_of
from skillery.registry.version_rows import Object
from skillery.registry.visibility import Hidden, View, hidden_audiences, parameters, versions_for, view_of

_KEPT = 256
"""The maximum number of compiled statements in each cache."""


def read_tools(
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

    `skill` is a skill and a version spec: only the tools of this version are listed. If it is None, the tools of the
    session come first, then the tools of all latest versions. `key` signs the cursors. Raise SkillNotFound,
    VersionNotFound or LabelNotFound if the identity sees no such version. Raise InvalidCursor if the cursor belongs to
    another listing.
    """
    bound_to = ("list_tools", skill[0] if skill else "", str(skill[1]) if skill else "", session)
    after = read_cursor(key, bound_to, cursor, 2) if cursor else ("", "")
    if skill is not None:
        row = resolve(connection, identity, *skill)
        declared = tools_of(connection, row, after[1])[: limit + 1]
        rows = [OfferedTool(row.name, name, item) for name, item in declared]
    else:
        rows = _own_rows(connection, identity, session, after)
        rows += _offered_until_full(connection, identity, after, limit + 1)
    page = fitting(rows[:limit], map(_size_of, rows))
    more = len(rows) > len(page)
    next_cursor = f'"{make_cursor(key, bound_to, (page[-1].skill, page[-1].name))}"' if more else "null"
    items = ",".join(tool.item_json for tool in page)
    return msgspec.Raw(f'{{"tools":[{items}],"next_cursor":{next_cursor}}}'.encode())


def _offered_until_full(
    connection: Connection, identity: Identity, after: tuple[str, ...], count: int
) -> list[OfferedTool]:
    """Return the next tools of latest and development versions, until there are `count` or a page is full."""
    overlay = overlay_of(identity)

    def stored(row_count: int, position: tuple[str, str]) -> list[OfferedTool]:
        rows = _offered(connection, identity, position, row_count)
        return [OfferedTool(skill, name, item_json) for skill, name, item_json, _ in rows]

    def read(row_count: int, last: OfferedTool | None) -> list[OfferedTool]:
        skill, name = (last.skill, last.name) if last else after
        # The tools of the session, without a skill, come first: after one of them, the tools of skills begin.
        position = (skill, name) if skill else ("", "")
        if overlay is None:
            return stored(row_count, position)
        hidden = frozenset(overlay.names)
        return merged(stored, overlay.tools(), lambda tool: tool.skill in hidden, row_count, position)

    return read_until_full(read, count, _size_of)


def _size_of(tool: OfferedTool) -> int:
    return len(tool.item_json.encode())


def _own_rows(connection: Connection, identity: Identity, session: str, after: tuple[str, ...]) -> list[OfferedTool]:
    """Return the tools of the session after the position `after`. After a tool of a skill, there are none."""
    if after[0]:
        return []
    session_tools_found = OF_SESSION.rows(connection, **session_values(connection, identity, session))
    return [OfferedTool("", name, item_json) for name, item_json in session_tools_found if name > after[1]]


def _offered(connection: Connection, identity: Identity, after: tuple[str, str], rows: int) -> Sequence[Any]:
    """Return the next `rows` tools of latest versions that the identity sees: skill, name, item and visibility."""
    view, hidden = view_of(identity), hidden_audiences(identity)
    values = {"after_skill": after[0], "after_name": after[1]}
    page = _unfiltered_statement(rows, hidden).rows(connection, **values)
    if view is None or all(row[3] == "public" for row in page):
        # Most pages contain no hidden skill.
        return page
    return _visible_statement(rows, view, hidden).rows(connection, **values, **parameters(identity))


def _listing(rows: int, hidden: Hidden, *where: ColumnElement[bool]) -> Select[Any]:
    """Return the SELECT of the next `rows` offered tools of skills that meet the conditions `where`, without tools for
    `hidden` audiences.
    """
    is_after = tuple_(tools.c.skill, tools.c.name) > tuple_(bindparam("after_skill"), bindparam("after_name"))
    return (
        select(tools.c.skill, tools.c.name, tools.c.item_json, skills.c.visibility)
        .join_from(tools, skills, skills.c.id == tools.c.skill_id)
        .where(tools.c.offered_since.is_not(None), is_after, tools.c.version_id.not_in(versions_for(hidden)), *where)
        .order_by(tools.c.skill, tools.c.name)
        .limit(literal_column(str(rows)))
    )


@lru_cache(_KEPT)
def _unfiltered_statement(rows: int, hidden: Hidden) -> Statement:
    """Return the statement for the next `rows` offered tools, whether a caller sees them or not."""
    return Statement(_listing(rows, hidden))


@lru_cache(_KEPT)
def _visible_statement(rows: int, view: View, hidden: Hidden) -> Statement:
    """Return the statement for the next `rows` offered tools that an identity with this view sees."""
    return Statement(_listing(rows, hidden, sees_tool(view)))


# -- list_tools --------------------------------------------------------------------------------------------------------


class ListTools(Params, frozen=True, kw_only=True):
    """List the tools that skills offer, and the tools of a session."""

    skill: Annotated[str, about("Only tools of this skill: 'name' or 'name@version spec'")] = ""
    session: SessionName = ""
    limit: PageLimit = 50
    cursor: Cursor = ""


async def list_tools(registry: Registry, identity: Identity, params: ListTools) -> Json[ToolPage]:
    work = partial(
        read_tools,
        identity=identity,
        key=registry.cursor_key,
        skill=parse_reference(params.skill) if params.skill else None,
        session=parse_session(params.session),
        limit=params.limit,
        cursor=params.cursor,
    )
    return Json(await registry.read(work))


METHODS = (Method(list_tools, "read", audits="", develops=True),)


class ToolRow(Struct, frozen=True):
    """A tool of a skill or of a session."""

    name: str
    skill: Annotated[str | None, Meta(description="null for a tool of a session")]
    version: str | None
    description: str
    parameters: Annotated[Object, Meta(description="As the skill declares them")]


class ToolPage(Struct, frozen=True):
    """A page of tools, by skill and name."""

    tools: list[ToolRow]
    next_cursor: NextCursor
