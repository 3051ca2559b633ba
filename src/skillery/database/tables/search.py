"""The tables of the search."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, ForeignKey, Index, LargeBinary, SmallInteger, String, Table

from skillery.database.tables.base import Key, Name, Words, metadata

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
