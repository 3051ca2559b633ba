"""search by stems, with postings for ranking and spellings for typos; every skill is indexed again

Revision: 0021, after 0020
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import TSVECTOR

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None

NAME = sa.String(length=255).with_variant(sa.String(length=255, collation="C"), "postgresql")
WORDS = sa.Text().with_variant(TSVECTOR(), "postgresql")
# `ascii` parts words at blanks and leaves everything beyond ASCII as it is: what a word is was decided before.
FTS5 = (
    "CREATE VIRTUAL TABLE search_index USING fts5(words, content='search_words', content_rowid='skill_id', "
    "tokenize='ascii', detail='none', columnsize=0, prefix='3')",
    "CREATE TRIGGER search_index_add AFTER INSERT ON search_words BEGIN "
    "INSERT INTO search_index (rowid, words) VALUES (new.skill_id, new.words); END",
    "CREATE TRIGGER search_index_drop AFTER DELETE ON search_words BEGIN "
    "INSERT INTO search_index (search_index, rowid, words) VALUES ('delete', old.skill_id, old.words); END",
)
OLD_FTS5 = (
    "CREATE VIRTUAL TABLE search_index USING fts5(name, tags, description, words, content='search_words', "
    "content_rowid='skill_id', tokenize='ascii', detail='column', columnsize=0, prefix='2 3')",
    "CREATE TRIGGER search_index_add AFTER INSERT ON search_words BEGIN "
    "INSERT INTO search_index (rowid, name, tags, description, words) "
    "VALUES (new.skill_id, new.name, new.tags, new.description, new.words); END",
    "CREATE TRIGGER search_index_drop AFTER DELETE ON search_words BEGIN "
    "INSERT INTO search_index (search_index, rowid, name, tags, description, words) "
    "VALUES ('delete', old.skill_id, old.name, old.tags, old.description, old.words); END",
)
REBUILD = sa.text(
    "INSERT INTO registry (key, value) SELECT 'rebuild', :value WHERE EXISTS (SELECT 1 FROM skills) "
    "ON CONFLICT (key) DO NOTHING"
)


def upgrade() -> None:
    _drop_words()
    _create_words([sa.Column("copy_key", sa.BigInteger(), nullable=False)], FTS5)
    op.create_index("ix_search_words_copy_key", "search_words", ["copy_key"])
    _create_postings()
    _create_spellings()
    # The server computes the rows when it starts.
    op.get_bind().execute(REBUILD, {"value": b""})


def downgrade() -> None:
    """The older release finds a skill again once a version of it is published."""
    op.drop_table("search_spellings")
    op.drop_table("search_postings")
    _drop_words()
    texts = [sa.Column(name, WORDS, nullable=False) for name in ("name", "tags", "description")]
    _create_words([*texts, sa.Column("tag_list", sa.Text(), nullable=False)], OLD_FTS5)


def key() -> sa.types.TypeEngine[int]:
    return sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def _drop_words() -> None:
    if op.get_bind().dialect.name == "sqlite":
        op.execute("DROP TRIGGER search_index_add")
        op.execute("DROP TRIGGER search_index_drop")
        op.execute("DROP TABLE search_index")
    op.drop_table("search_words")


def _create_words(columns: list[sa.Column[object]], fts5: tuple[str, ...]) -> None:
    op.create_table(
        "search_words",
        sa.Column("skill_id", key(), autoincrement=False, nullable=False),
        sa.Column("version_id", key(), nullable=False),
        *columns,
        sa.Column("words", WORDS, nullable=False),
        sa.ForeignKeyConstraint(["skill_id"], ["skills.id"], name=op.f("fk_search_words_skill_id_skills")),
        sa.ForeignKeyConstraint(
            ["version_id"], ["skill_versions.id"], name=op.f("fk_search_words_version_id_skill_versions")
        ),
        sa.PrimaryKeyConstraint("skill_id", name=op.f("pk_search_words")),
        comment="The texts that search_skills looks in: rows are added and removed, never changed.",
    )
    if op.get_bind().dialect.name == "postgresql":
        op.create_index("search_index", "search_words", ["words"], postgresql_using="gin")
        return
    for statement in fts5:
        op.execute(statement)


def _create_postings() -> None:
    op.create_table(
        "search_postings",
        sa.Column("skill_id", key(), autoincrement=False, nullable=False),
        sa.Column("word", NAME, nullable=False),
        sa.Column("loss", sa.SmallInteger(), nullable=False),
        sa.Column("name", NAME, nullable=False),
        sa.Column("visibility", sa.String(length=16), nullable=False),
        sa.ForeignKeyConstraint(["skill_id"], ["skills.id"], name=op.f("fk_search_postings_skill_id_skills")),
        sa.PrimaryKeyConstraint("skill_id", "word", name=op.f("pk_search_postings")),
        comment="The words that say what a skill is about: skillery.formats.search_fields.",
        sqlite_with_rowid=False,
    )
    columns = ["word", "loss", "name", "visibility", "skill_id"]
    op.create_index("ix_search_postings_best", "search_postings", columns)


def _create_spellings() -> None:
    op.create_table(
        "search_spellings",
        sa.Column("piece", NAME, nullable=False),
        sa.Column("word", NAME, nullable=False),
        sa.Column("stem", NAME, nullable=False),
        sa.PrimaryKeyConstraint("piece", "word", name=op.f("pk_search_spellings")),
        comment="Every word that a posting was made of, by its pieces. Words stay when their skills go.",
        sqlite_with_rowid=False,
    )
