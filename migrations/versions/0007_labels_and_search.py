"""labels of versions and every move of them, and the words that skills are found by

Revision: 0007, after 0006
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import TSVECTOR

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

NAME = sa.String(length=255).with_variant(sa.String(length=255, collation="C"), "postgresql")


def key() -> sa.types.TypeEngine[int]:
    return sa.BigInteger().with_variant(sa.Integer(), "sqlite")


WORDS = sa.Text().with_variant(TSVECTOR(), "postgresql")
# `ascii` parts words at blanks and leaves everything beyond ASCII as it is: what a word is was decided before. The
# prefixes are for unfinished words: without them every word that begins so is looked up by itself.
FTS5 = (
    "CREATE VIRTUAL TABLE search_index USING fts5(name, tags, description, words, content='search_words', "
    "content_rowid='skill_id', tokenize='ascii', detail='column', columnsize=0, prefix='2 3')",
    "CREATE TRIGGER search_index_add AFTER INSERT ON search_words BEGIN "
    "INSERT INTO search_index (rowid, name, tags, description, words) "
    "VALUES (new.skill_id, new.name, new.tags, new.description, new.words); END",
    "CREATE TRIGGER search_index_drop AFTER DELETE ON search_words BEGIN "
    "INSERT INTO search_index (search_index, rowid, name, tags, description, words) "
    "VALUES ('delete', old.skill_id, old.name, old.tags, old.description, old.words); END",
)


def upgrade() -> None:
    _add_labels()
    _add_search()


def downgrade() -> None:
    if op.get_bind().dialect.name == "sqlite":
        op.execute("DROP TRIGGER search_index_add")
        op.execute("DROP TRIGGER search_index_drop")
        op.execute("DROP TABLE search_index")
    op.drop_table("search_words")
    op.drop_column("skill_versions", "skill_md_start")
    op.drop_table("labels")
    op.drop_table("label_moves")


def _add_search() -> None:
    """Revision 0020 makes the words anew, and indexes what is there."""
    op.add_column("skill_versions", sa.Column("skill_md_start", sa.Text(), nullable=True))
    op.create_table(
        "search_words",
        sa.Column("skill_id", key(), autoincrement=False, nullable=False),
        sa.Column("version_id", key(), nullable=False),
        sa.Column("name", WORDS, nullable=False),
        sa.Column("tags", WORDS, nullable=False),
        sa.Column("description", WORDS, nullable=False),
        sa.Column("words", WORDS, nullable=False),
        sa.Column("tag_list", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["skill_id"], ["skills.id"], name=op.f("fk_search_words_skill_id_skills")),
        sa.ForeignKeyConstraint(
            ["version_id"], ["skill_versions.id"], name=op.f("fk_search_words_version_id_skill_versions")
        ),
        sa.PrimaryKeyConstraint("skill_id", name=op.f("pk_search_words")),
        comment="What search_skills looks in: never changed, only removed and added.",
    )
    if op.get_bind().dialect.name == "postgresql":
        op.create_index("search_index", "search_words", ["words"], postgresql_using="gin")
        return
    for statement in FTS5:
        op.execute(statement)


def _add_labels() -> None:
    op.create_table(
        "label_moves",
        sa.Column("id", key(), autoincrement=True, nullable=False),
        sa.Column("skill_id", key(), nullable=False),
        sa.Column("label", NAME, nullable=False),
        sa.Column("move", sa.String(length=16), nullable=False),
        sa.Column("version_id", key(), nullable=True),
        sa.Column("previous_version_id", key(), nullable=True),
        sa.Column("back_id", key(), nullable=True),
        sa.Column("identity", sa.String(length=255), nullable=False),
        sa.Column("identity_kind", sa.String(length=16), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint("move IN ('set', 'rollback', 'remove')", name=op.f("ck_label_moves_move")),
        sa.ForeignKeyConstraint(["skill_id"], ["skills.id"], name=op.f("fk_label_moves_skill_id_skills")),
        sa.ForeignKeyConstraint(
            ["version_id"], ["skill_versions.id"], name=op.f("fk_label_moves_version_id_skill_versions")
        ),
        sa.ForeignKeyConstraint(
            ["previous_version_id"],
            ["skill_versions.id"],
            name=op.f("fk_label_moves_previous_version_id_skill_versions"),
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_label_moves")),
        comment="Every move that a label has made, append-only.",
    )
    op.create_index("ix_label_moves_label", "label_moves", ["skill_id", "label", "id"])
    op.create_index("ix_label_moves_skill", "label_moves", ["skill_id", "id"])
    op.create_table(
        "labels",
        sa.Column("skill_id", key(), nullable=False),
        sa.Column("label", NAME, nullable=False),
        sa.Column("version_id", key(), nullable=False),
        sa.Column("move_id", key(), nullable=False),
        sa.ForeignKeyConstraint(["skill_id"], ["skills.id"], name=op.f("fk_labels_skill_id_skills")),
        sa.ForeignKeyConstraint(
            ["version_id"], ["skill_versions.id"], name=op.f("fk_labels_version_id_skill_versions")
        ),
        sa.ForeignKeyConstraint(["move_id"], ["label_moves.id"], name=op.f("fk_labels_move_id_label_moves")),
        sa.PrimaryKeyConstraint("skill_id", "label", name=op.f("pk_labels")),
        comment="Where each label points now.",
    )
    op.create_index("ix_labels_version", "labels", ["version_id"])
