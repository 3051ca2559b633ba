"""Tools of sessions. Each tool is a database row for an identity and a session, so all servers of the database have
it.
"""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime, timedelta
from typing import Annotated

from msgspec import Meta
from sqlalchemy import ColumnElement, Connection, and_, delete, insert, select

from skillery import audit
from skillery.backends import Identity
from skillery.database.tables import session_tools
from skillery.errors import InvalidParams
from skillery.formats.tools import Tool
from skillery.identity.quotas import Quotas, check_session_tool
from skillery.method import about
from skillery.registry.tools import tool_item

SessionName = Annotated[
    Annotated[str, Meta(max_length=128)],
    about("Session of the caller, by a name that the caller chooses; omit for the unnamed session"),
]


def parse_session(name: str) -> str:
    """Return the name. Raise InvalidParams if it contains a character that is not printable."""
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
    """Define a tool for the session. A tool with the same name is replaced.

    Raise QuotaExceeded if the identity has too many tools of sessions.
    """
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
    """Remove a tool of the session. Return False if there is no such tool."""
    is_it = and_(_is(identity, session, name), session_tools.c.expires_at > datetime.now(UTC))
    if connection.scalar(select(session_tools.c.name).where(is_it).with_for_update()) is None:
        return False
    connection.execute(delete(session_tools).where(is_it))
    audit.record(connection, identity, "remove_tool", name, before={"session": session})
    return True


def forget_session_tools(connection: Connection, *, limit: int) -> int:
    """Delete at most `limit` expired tools. Return the number of deleted tools."""
    old = select(session_tools.c.identity, session_tools.c.session, session_tools.c.name)
    old = old.where(session_tools.c.expires_at <= datetime.now(UTC)).order_by(session_tools.c.expires_at).limit(limit)
    found = connection.execute(old).all()
    for one in found:
        is_it = and_(
            session_tools.c.identity == one.identity,
            session_tools.c.session == one.session,
            session_tools.c.name == one.name,
        )
        connection.execute(delete(session_tools).where(is_it))
    return len(found)


def _of(identity: Identity) -> ColumnElement[bool]:
    return session_tools.c.identity == identity.name


def _is(identity: Identity, session: str, name: str) -> ColumnElement[bool]:
    return and_(_of(identity), session_tools.c.session == session, session_tools.c.name == name)
