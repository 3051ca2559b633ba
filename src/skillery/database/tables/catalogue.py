"""The tables that listings read: the catalogue, the usage of skills by day, the index of the search, and tools."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    ForeignKey,
    Index,
    LargeBinary,
    SmallInteger,
    String,
    Table,
    Text,
    UniqueConstraint,
    false,
    text,
)

from skillery.database.tables.base import Key, Moment, Name, Words, metadata

# -- The catalogue: what listings filter, sort and count by ------------------------------------------------------------


FLAG_COLUMNS, CHOICE_COLUMNS = ("verified", "network", "secrets", "reviewed"), ("contains", "licence")
"""Columns that listings filter and count by: the flags and choices of skillery.skills.catalogue_filters."""

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
    *(Column(name, Boolean, nullable=False, server_default=false()) for name in FLAG_COLUMNS),
    *(Column(name, String(40), nullable=False, server_default="") for name in CHOICE_COLUMNS),
    # Time of the approval, or of the publication if there was no review.
    Column("published_at", Moment, nullable=False),
    # The use of the skill in the last 30 days, from use_days: skillery.skills.catalogue_order.
    Column("callers_30d", BigInteger, nullable=False, server_default="0"),
    Column("uses_30d", BigInteger, nullable=False, server_default="0"),
    Column("loads_30d", BigInteger, nullable=False, server_default="0"),
    Column("runs_30d", BigInteger, nullable=False),
    Column("completed_30d", BigInteger, nullable=False),
    Column("failed_30d", BigInteger, nullable=False),
    # Uses and failed runs of each day from the first one with a use: skillery.registry.uses.
    Column("uses_by_day", Text, nullable=False, server_default=""),
    # The rank of the skill by its own use, and the rank in the order `used`. The highest rank is first.
    Column("own_rank", BigInteger, nullable=False, server_default="0"),
    Column("used_rank", BigInteger, nullable=False, server_default="0"),
    # An older skill of another publisher, whose name or description the skill repeats.
    Column("looks_like", Name, nullable=True),
    comment="The latest version of each skill, and each version that is a draft, in review, rejected or yanked.",
)
Index("ix_catalogue_skill", catalogue.c.skill_id)
_FLAGS = tuple(catalogue.c[name] for name in (*FLAG_COLUMNS, *CHOICE_COLUMNS))
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
    catalogue.c.used_rank,
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
# Look-alikes are few.
Index(
    "ix_catalogue_looks_like",
    catalogue.c.looks_like,
    postgresql_where=catalogue.c.looks_like.is_not(None),
    sqlite_where=catalogue.c.looks_like.is_not(None),
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

name_marks = Table(
    "name_marks",
    metadata,
    # Ids are in the order of claims: of two skills with a mark, the one with the lower id is the original.
    Column("id", Key, primary_key=True, autoincrement=True),
    # A form of the name or of the description that look-alikes share: skillery.skills.catalogue_order.
    Column("mark", Name, nullable=False),
    Column("skill_id", Key, ForeignKey("skills.id"), nullable=False),
    UniqueConstraint("mark", "skill_id"),
    comment="What look-alikes have in common. Each published skill has two marks.",
)
Index("ix_name_marks_skill", name_marks.c.skill_id)

use_days = Table(
    "use_days",
    metadata,
    # No foreign keys: else the end of a run would wait for a publisher that locks the row of the skill.
    Column("skill_id", Key, primary_key=True, autoincrement=False),
    # Day in UTC: 2026-11-24.
    Column("day", String(10), primary_key=True),
    # 0 if the version is unknown.
    Column("version_id", Key, primary_key=True, autoincrement=False),
    # Name of the identity, and its program as it names itself: claude-code. "" if unknown.
    Column("caller", String(255), primary_key=True),
    Column("client", String(64), primary_key=True),
    # Ended runs. Cancelled runs count only in `runs`.
    Column("runs", BigInteger, nullable=False),
    Column("completed", BigInteger, nullable=False),
    Column("failed", BigInteger, nullable=False),
    Column("busy_ms", BigInteger, nullable=False),
    # Reads of SKILL.md and of whole versions, and reads of other files.
    Column("loads", BigInteger, nullable=False),
    Column("reads", BigInteger, nullable=False),
    comment="Runs and reads of each skill by day, caller and program. After 35 days, by day only; after 400, none.",
    sqlite_with_rowid=False,
)
# The second column is for the skills that a caller used on a day: skillery.versions.dependents.
Index("ix_use_days_caller", use_days.c.day, use_days.c.caller, use_days.c.skill_id)

reach_days = Table(
    "reach_days",
    metadata,
    # No foreign key, as in use_days.
    Column("skill_id", Key, primary_key=True, autoincrement=False),
    Column("day", String(10), primary_key=True),
    # host or secret.
    Column("kind", String(8), primary_key=True),
    # An entry of permissions.network, a refused host, or the name of a secret.
    Column("target", Text().with_variant(Text(collation="C"), "postgresql"), primary_key=True),
    Column("runs", BigInteger, nullable=False),
    Column("refused", BigInteger, nullable=False),
    Column("bytes_out", BigInteger, nullable=False),
    Column("bytes_in", BigInteger, nullable=False),
    comment="The hosts that runs reached or were refused, and the secrets that they got, by day. Kept for 90 days.",
    sqlite_with_rowid=False,
)
Index("ix_reach_days_day", reach_days.c.day)

search_days = Table(
    "search_days",
    metadata,
    Column("day", String(10), primary_key=True),
    # The words of searches, without those that may be private: skillery.registry.searches.
    Column("words", Text().with_variant(Text(collation="C"), "postgresql"), primary_key=True),
    # "" if the server records no callers.
    Column("caller", String(255), primary_key=True),
    Column("times", BigInteger, nullable=False),
    # Searches with a result, and searches after which the caller opened a result.
    Column("matched", BigInteger, nullable=False),
    Column("opened", BigInteger, nullable=False),
    comment="Searches by day and words, at most 5,000 rows a day. Kept for 90 days.",
    sqlite_with_rowid=False,
)


# -- The search --------------------------------------------------------------------------------------------------------


search_words = Table(
    "search_words",
    metadata,
    Column("skill_id", Key, ForeignKey("skills.id"), primary_key=True, autoincrement=False),
    # The latest version of the skill, which has these words.
    Column("version_id", Key, ForeignKey("skill_versions.id"), nullable=False),
    # A hash of description, text and files, without the name: two skills with the same hash are copies.
    Column("copy_key", BigInteger, nullable=False),
    # The skill to use instead, if the latest version is deprecated.
    Column("successor", Name, nullable=True),
    # Stems of the text that no posting of the skill has.
    Column("words", Words, nullable=False),
    comment="The texts that search_skills looks in: rows are added and removed, and only `successor` is changed.",
)
Index("ix_search_words_copy_key", search_words.c.copy_key)
Index(
    "ix_search_words_successor",
    search_words.c.successor,
    postgresql_where=search_words.c.successor.is_not(None),
    sqlite_where=search_words.c.successor.is_not(None),
)
search_postings = Table(
    "search_postings",
    metadata,
    Column("skill_id", Key, ForeignKey("skills.id"), primary_key=True, autoincrement=False),
    # A stem of the name, description or tags, a group of synonyms, or a whole tag: skillery.skills.search_index.
    Column("word", Name, primary_key=True),
    # Rank of the word for the skill: 0 is the best.
    Column("loss", SmallInteger, nullable=False),
    # Name and visibility of the skill are repeated here, so that one index has both conditions and the order.
    Column("name", Name, nullable=False),
    Column("visibility", String(16), nullable=False),
    comment="The words that say what a skill is about: skillery.formats.search_fields.",
    sqlite_with_rowid=False,
)
Index(
    "ix_search_postings_best",
    search_postings.c.word,
    search_postings.c.loss,
    search_postings.c.name,
    search_postings.c.visibility,
    search_postings.c.skill_id,
)
search_spellings = Table(
    "search_spellings",
    metadata,
    # Three characters of the word, or "": skillery.formats.search_fields.
    Column("piece", Name, primary_key=True),
    Column("word", Name, primary_key=True),
    Column("stem", Name, nullable=False),
    comment="Every word that a posting was made of, by its pieces. Words stay when their skills go.",
    sqlite_with_rowid=False,
)
search_vectors = Table(
    "search_vectors",
    metadata,
    Column("skill_id", Key, ForeignKey("skills.id"), primary_key=True, autoincrement=False),
    # The version whose text the ranker has read. NULL: the search has the skill no more.
    Column("version_id", Key, ForeignKey("skill_versions.id"), nullable=True),
    # The revision of the ranker that made the vector.
    Column("revision", Name, nullable=False),
    # Grows in the order of commits: a server reads the rows with higher numbers than those that it has read.
    Column("changed", BigInteger, nullable=False),
    Column("vector", LargeBinary, nullable=True),
    comment="What the ranker has computed of each skill: skillery.maintenance.search_vectors.",
)
Index("ix_search_vectors_changed", search_vectors.c.changed, unique=True)
SEARCH_INDEX = "search_index"
"""The name of the index over `search_words`. A migration creates the index.

On SQLite, it is an FTS5 index: triggers fill tables with names that begin with this name. On Postgres, it is a GIN
index.
"""


# -- Tools -------------------------------------------------------------------------------------------------------------


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
