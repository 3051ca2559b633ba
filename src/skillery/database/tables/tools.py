"""The tables of tools: tools of versions, and tools of sessions."""

from __future__ import annotations

from sqlalchemy import Column, ForeignKey, Index, String, Table, Text

from skillery.database.tables.base import Key, Moment, Name, metadata

tools = Table(
    "tools",
    metadata,
    Column("version_id", Key, ForeignKey("skill_versions.id"), primary_key=True),
    Column("name", Name, primary_key=True),
    Column("skill_id", Key, ForeignKey("skills.id"), nullable=False),
    # Name of the skill, which never changes. list_tools sorts by it.
    Column("skill", Name, nullable=False),
    # Path in the bundle. None: the tool cannot be executed.
    Column("script", Text, nullable=True),
    # Item of list_tools, as JSON.
    Column("item_json", Text, nullable=False),
    # If the version is the latest of its skill: the time when the version was published. Else None.
    Column("offered_since", Moment, nullable=True),
    comment="The tools that versions offer by their tools.json.",
)
_is_offered = tools.c.offered_since.is_not(None)
Index("ix_tools_listing", tools.c.skill, tools.c.name, postgresql_where=_is_offered, sqlite_where=_is_offered)
Index(
    "ix_tools_name",
    tools.c.name,
    tools.c.offered_since,
    tools.c.version_id,
    postgresql_where=_is_offered,
    sqlite_where=_is_offered,
)
Index("ix_tools_skill", tools.c.skill_id)

session_tools = Table(
    "session_tools",
    metadata,
    Column("identity", String(255), primary_key=True),
    # Name that the caller chose. "" is the default session of the identity.
    Column("session", Name, primary_key=True),
    Column("name", Name, primary_key=True),
    # Path of the handler. The ending determines the language.
    Column("script", Text, nullable=False),
    Column("content", Text, nullable=False),
    # Item of list_tools, as JSON.
    Column("item_json", Text, nullable=False),
    Column("defined_at", Moment, nullable=False),
    # After this time, the tool does not exist.
    Column("expires_at", Moment, nullable=False),
    comment="Tools that live for an identity and its session, made by define_tool.",
)
Index("ix_session_tools_expires_at", session_tools.c.expires_at)
