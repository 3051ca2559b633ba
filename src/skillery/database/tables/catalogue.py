"""The tables of the catalogue: the values that listings filter, sort and count by, and the usage of skills by day."""

from __future__ import annotations

from sqlalchemy import BigInteger, Boolean, Column, ForeignKey, Index, String, Table, Text, text

from skillery.database.tables.base import Key, Moment, Name, metadata

FLAG_COLUMNS = ("verified", "network", "secrets")
"""The boolean columns that listings filter and count by: the flags of skillery.skills.catalogue_filters."""

catalogue = Table(
    "catalogue",
    metadata,
    Column("version_id", Key, ForeignKey("skill_versions.id"), primary_key=True, autoincrement=False),
    Column("skill_id", Key, ForeignKey("skills.id"), nullable=False),
    Column("name", Name, nullable=False),
    Column("namespace", Name, nullable=False),
    # Visibility of the skill, and publisher and status of the version, are repeated here for the filters.
    Column("visibility", String(16), nullable=False),
    Column("publisher", String(255), nullable=False),
    Column("status", String(16), nullable=False),
    Column("kind", String(16), nullable=False),
    # python, javascript, bash or markdown: skillery.formats.media_types.
    Column("language", String(16), nullable=False),
    *(Column(name, Boolean, nullable=False) for name in FLAG_COLUMNS),
    # Time of the approval, or of the publication if there was no review.
    Column("published_at", Moment, nullable=False),
    # Ended runs of the skill in the last 30 days. A background job updates these columns every hour.
    Column("runs_30d", BigInteger, nullable=False),
    Column("completed_30d", BigInteger, nullable=False),
    Column("failed_30d", BigInteger, nullable=False),
    comment="The latest version of each skill, and each version that is a draft, in review, rejected or yanked.",
)
Index("ix_catalogue_skill", catalogue.c.skill_id)
_FLAGS = tuple(catalogue.c[name] for name in FLAG_COLUMNS)
_FACTS = (
    catalogue.c.status,
    catalogue.c.visibility,
    catalogue.c.kind,
    catalogue.c.language,
    *_FLAGS,
    catalogue.c.skill_id,
)
_is_listed = text("status IN ('published', 'deprecated')")
# The indexes contain every filtered column, so that a filter that few skills pass reads only the index.
Index(
    "ix_catalogue_names",
    catalogue.c.namespace,
    catalogue.c.name,
    *_FACTS,
    catalogue.c.version_id,
    postgresql_where=_is_listed,
    sqlite_where=_is_listed,
)
Index(
    "ix_catalogue_newest",
    catalogue.c.published_at,
    catalogue.c.version_id,
    *_FACTS,
    catalogue.c.namespace,
    catalogue.c.name,
    postgresql_where=_is_listed,
    sqlite_where=_is_listed,
)
Index(
    "ix_catalogue_used",
    catalogue.c.runs_30d,
    catalogue.c.version_id,
    *_FACTS,
    catalogue.c.namespace,
    catalogue.c.name,
    postgresql_where=_is_listed,
    sqlite_where=_is_listed,
)
# Counts group by the first columns, in this order, so that no rows are sorted.
Index(
    "ix_catalogue_facets",
    catalogue.c.status,
    catalogue.c.kind,
    catalogue.c.language,
    *_FLAGS,
    catalogue.c.visibility,
    catalogue.c.namespace,
    catalogue.c.name,
    catalogue.c.skill_id,
    catalogue.c.version_id,
    postgresql_where=_is_listed,
    sqlite_where=_is_listed,
)
# Versions that are not listed are few.
_is_other = text("status NOT IN ('published', 'deprecated')")
Index(
    "ix_catalogue_other",
    catalogue.c.status,
    catalogue.c.version_id,
    postgresql_where=_is_other,
    sqlite_where=_is_other,
)

catalogue_tags = Table(
    "catalogue_tags",
    metadata,
    Column("version_id", Key, ForeignKey("catalogue.version_id"), primary_key=True, autoincrement=False),
    # In lower case: skillery.skills.catalogue_filters.stored_tag.
    Column("tag", Text().with_variant(Text(collation="C"), "postgresql"), primary_key=True),
    comment="The tags of the versions in the catalogue.",
    sqlite_with_rowid=False,
)
Index("ix_catalogue_tags_tag", catalogue_tags.c.tag, catalogue_tags.c.version_id)

catalogue_hosts = Table(
    "catalogue_hosts",
    metadata,
    Column("version_id", Key, ForeignKey("catalogue.version_id"), primary_key=True, autoincrement=False),
    # An entry of permissions.network in the notation of formats.network: `https://*.example.com`.
    Column("host", Text().with_variant(Text(collation="C"), "postgresql"), primary_key=True),
    comment="The entries of permissions.network of the versions in the catalogue.",
    sqlite_with_rowid=False,
)
Index("ix_catalogue_hosts_host", catalogue_hosts.c.host, catalogue_hosts.c.version_id)

usage_days = Table(
    "usage_days",
    metadata,
    # No foreign key: else the end of a run would wait for a publisher that locks the row of the skill.
    Column("skill_id", Key, primary_key=True, autoincrement=False),
    # Day in UTC: 2026-11-24.
    Column("day", String(10), primary_key=True),
    Column("runs", BigInteger, nullable=False),
    Column("completed", BigInteger, nullable=False),
    Column("failed", BigInteger, nullable=False),
    comment="Ended runs of each skill by day, counted as runs end. Days are kept for 30 days.",
    sqlite_with_rowid=False,
)
Index("ix_usage_days_day", usage_days.c.day)

read_days = Table(
    "read_days",
    metadata,
    # No foreign key, as above.
    Column("skill_id", Key, primary_key=True, autoincrement=False),
    # Day in UTC: 2026-11-24.
    Column("day", String(10), primary_key=True),
    # The program of the callers as it names itself: claude-code.
    Column("client", String(64), primary_key=True),
    # Reads of SKILL.md and of whole versions, and reads of other files.
    Column("loads", BigInteger, nullable=False),
    Column("reads", BigInteger, nullable=False),
    comment="How often the programs of agents read each skill, by day. Days are kept for 30 days.",
    sqlite_with_rowid=False,
)
Index("ix_read_days_day", read_days.c.day)
