"""Tools of versions and of sessions."""

from __future__ import annotations

from sqlalchemy import Column, ForeignKey, Index, String, Table, Text

from skillery.database.tables.base import Key, Moment, Name, metadata

tools = Table(
    "tools",
    metadata,
    Column("version_id", Key, ForeignKey("skill_versions.id"), primary_key=True),
    Column("name", Name, primary_key=True),
    Column("skill_id", Key, ForeignKey("skills.id"), nullable=False),
    # The skill's name, which never changes: what list_tools sorts by.
    Column("skill", Name, nullable=False),
    # A path in the bundle; None: there is nothing to run.
    Column("script", Text, nullable=True),
    # As list_tools answers it.
    Column("item_json", Text, nullable=False),
    # When its version was published, while that is the skill's latest; None otherwise.
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
    # Whatever the caller calls it; "" is its identity's own.
    Column("session", Name, primary_key=True),
    Column("name", Name, primary_key=True),
    # The path that its handler has, whose ending says the language.
    Column("script", Text, nullable=False),
    Column("content", Text, nullable=False),
    # As list_tools answers it.
    Column("item_json", Text, nullable=False),
    Column("defined_at", Moment, nullable=False),
    # From then on it is not found.
    Column("expires_at", Moment, nullable=False),
    comment="Tools that live for an identity and its session, made by define_tool.",
)
Index("ix_session_tools_expires_at", session_tools.c.expires_at)
