"""The rows of tools. A new version adds rows, and only the tools of the latest version of a skill are offered to
callers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

import msgspec
from msgspec import Meta
from sqlalchemy import (
    ColumnElement,
    Connection,
    and_,
    bindparam,
    delete,
    exists,
    func,
    insert,
    literal_column,
    select,
    update,
)

from skillery import audit
from skillery.backends import Identity
from skillery.database import Statement, as_stored, take_turns
from skillery.database.tables import objects, session_tools, skill_files, skill_versions, skills, tools, version_steps
from skillery.errors import InvalidParams
from skillery.formats.bundle import Bundle
from skillery.formats.tools import FILE, Tool, read_tools
from skillery.identity.quotas import Quotas, check_session_tool
from skillery.method import about
from skillery.registry.version_rows import VersionRow
from skillery.registry.visibility import View, sees_each

_ADD = insert(tools)
_WITHOUT_TOOLS = (
    select(
        skill_versions.c.id,
        skill_versions.c.skill_id,
        skills.c.name,
        skill_versions.c.version,
        skill_versions.c.summary_json,
        objects.c.data,
    )
    .join_from(skill_versions, skills, skills.c.id == skill_versions.c.skill_id)
    .join(skill_files, and_(skill_files.c.version_id == skill_versions.c.id, skill_files.c.path == FILE))
    .join(objects, objects.c.sha256 == skill_files.c.sha256)
    .where(objects.c.data.is_not(None), skill_versions.c.id > bindparam("last"))
    .where(~exists().where(tools.c.version_id == skill_versions.c.id))
    .order_by(skill_versions.c.id)
    .limit(200)
)
_ANY = Statement(select(tools.c.version_id).where(tools.c.skill_id == bindparam("of_skill")).limit(literal_column("1")))
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
is_session_tool = and_(
    session_tools.c.identity == bindparam("identity"),
    session_tools.c.session == bindparam("session"),
    session_tools.c.expires_at > bindparam("now"),
)
OF_SESSION = Statement(
    select(session_tools.c.name, session_tools.c.item_json).where(is_session_tool).order_by(session_tools.c.name)
)


def tool_item(tool: Tool, skill: str | None, version: str | None) -> str:
    """Return the JSON of a tool in list_tools. `skill` and `version` are None for a tool of a session."""
    item = {
        "name": tool.name,
        "skill": skill,
        "version": version,
        "description": tool.description,
        "parameters": tool.declared,
    }
    return msgspec.json.encode(item).decode()


def add_tools(connection: Connection, version_id: int, skill_id: int, bundle: Bundle) -> None:
    """Insert the tools of a new version."""
    _add(connection, version_id, skill_id, bundle.manifest.name, str(bundle.manifest.version), bundle.tools)


def add_missing_tools(connection: Connection) -> None:
    """Insert the tools of versions that were published before tools.json had a meaning, also in their summaries.

    A tool that breaks a rule is left out. A tools.json over 64 KiB is in the storage, and is not read.
    """
    last = 0
    while rows := connection.execute(_WITHOUT_TOOLS, {"last": last}).all():
        for version_id, skill_id, name, version, summary_json, data in rows:
            paths = connection.scalars(select(skill_files.c.path).where(skill_files.c.version_id == version_id))
            if declared := read_tools(bytes(data), frozenset(paths)).tools:
                _add(connection, version_id, skill_id, name, version, declared)
                summary = msgspec.json.decode(summary_json) | {"tools": [tool.name for tool in declared]}
                values = {"summary_json": msgspec.json.encode(summary).decode()}
                connection.execute(update(skill_versions).where(skill_versions.c.id == version_id).values(values))
        last = rows[-1].id


def _add(
    connection: Connection, version_id: int, skill_id: int, name: str, version: str, declared: Sequence[Tool]
) -> None:
    """Insert the rows of a version's tools."""
    rows = [
        {
            "version_id": version_id,
            "name": tool.name,
            "skill_id": skill_id,
            "skill": name,
            "script": tool.script,
            "item_json": tool_item(tool, name, version),
        }
        for tool in declared
    ]
    if rows:
        connection.execute(_ADD, rows)


def offer_latest(connection: Connection, skill_id: int, version_id: int | None) -> None:
    """Offer the tools of a version in place of all other tools of the skill. With None, offer no tools of the skill."""
    if not _ANY.rows(connection, of_skill=skill_id):
        return
    connection.execute(_WITHDRAW.values(offered_since=None), {"of_skill": skill_id})
    if version_id is not None:
        offered = _OFFER.values(offered_since=func.coalesce(_approved_at, _created_at))
        connection.execute(offered, {"of_version": version_id})


def tools_of(connection: Connection, version: VersionRow, after: str = "") -> list[tuple[str, str]]:
    """Return the name and the item of each tool of a version, sorted by name, from names after `after` on."""
    if version.unstored is None:
        rows = _OF_VERSION.rows(connection, version_id=version.version_id, after=after)
        return [(name, item_json) for name, item_json in rows]
    return [(name, item_json) for name, (_, item_json) in version.unstored.tools.items() if name > after]


def session_values(connection: Connection, identity: Identity, session: str) -> dict[str, Any]:
    """Return the SQL parameters of OF_SESSION, and of conditions with `is_session_tool`."""
    return {"identity": identity.name, "session": session, "now": as_stored(connection, datetime.now(UTC))}


def sees_tool(view: View) -> ColumnElement[bool]:
    """Return the SQL condition that an identity with this view sees the skill of a tool.

    The statement must join `skills`.
    """
    return sees_each(view, skills, skills.c.id)


# -- Tools of sessions: rows for an identity and a session, so that all servers of the database have them --------------


SessionName = Annotated[
    Annotated[str, Meta(max_length=128)],
    about("Session of the caller, by a name that the caller chooses; omit for the unnamed session"),
]


def parse_session(name: str) -> str:
    """Return the name of a session. Raise InvalidParams if it contains a character that is not printable."""
    if name and not name.isprintable():
        raise InvalidParams("'session' contains a character that is not printable", param="session")
    return name


def define_session_tool(
    connection: Connection,
    identity: Identity,
    session: str,
    tool: Tool,
    content: str,
    *,
    keep_for: timedelta,
    quotas: Quotas,
) -> None:
    """Define a tool in a session for the time `keep_for`. A tool of the same name is replaced.

    `content` is the code of the handler. Raise QuotaExceeded if the identity has too many tools of sessions.
    """
    # Two calls that define a tool of one name would both insert its row, and both meet the quota.
    take_turns(connection, "session_tools", identity.name)
    now = datetime.now(UTC)
    connection.execute(delete(session_tools).where(_of(identity), session_tools.c.expires_at <= now))
    connection.execute(delete(session_tools).where(_is(identity, session, tool.name)))
    check_session_tool(connection, quotas, identity.name)
    connection.execute(
        insert(session_tools).values(
            identity=identity.name,
            session=session,
            name=tool.name,
            script=tool.script,
            content=content,
            item_json=tool_item(tool, None, None),
            defined_at=now,
            expires_at=now + keep_for,
        )
    )
    sha256 = hashlib.sha256(content.encode()).hexdigest()
    audit.record(connection, identity, "define_tool", tool.name, after={"session": session, "sha256": sha256})


def remove_session_tool(connection: Connection, identity: Identity, session: str, name: str) -> bool:
    """Remove a tool from a session. Return False if there is no such tool."""
    is_it = and_(_is(identity, session, name), session_tools.c.expires_at > datetime.now(UTC))
    if connection.scalar(select(session_tools.c.name).where(is_it).with_for_update()) is None:
        return False
    connection.execute(delete(session_tools).where(is_it))
    audit.record(connection, identity, "remove_tool", name, before={"session": session})
    return True


def forget_session_tools(connection: Connection, *, limit: int) -> int:
    """Delete at most `limit` expired tools of sessions. Return the number of deleted tools."""
    expired = select(session_tools.c.identity, session_tools.c.session, session_tools.c.name)
    expired = (
        expired.where(session_tools.c.expires_at <= datetime.now(UTC)).order_by(session_tools.c.expires_at).limit(limit)
    )
    rows = connection.execute(expired).all()
    for row in rows:
        is_it = and_(
            session_tools.c.identity == row.identity,
            session_tools.c.session == row.session,
            session_tools.c.name == row.name,
        )
        connection.execute(delete(session_tools).where(is_it))
    return len(rows)


def _of(identity: Identity) -> ColumnElement[bool]:
    return session_tools.c.identity == identity.name


def _is(identity: Identity, session: str, name: str) -> ColumnElement[bool]:
    return and_(_of(identity), session_tools.c.session == session, session_tools.c.name == name)
