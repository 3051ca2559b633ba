"""the vectors of the search by meaning

Revision: 0039, after 0038
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0039"
down_revision = "0038"
branch_labels = None
depends_on = None

BEFORE = "How far the hook `events` of the plugins has read the outbox."
AFTER = "How far the hook `events` of the plugins has read the outbox, and the server that computes vectors."


def upgrade() -> None:
    op.create_table(
        "search_vectors",
        sa.Column("skill_id", key(), autoincrement=False, nullable=False),
        sa.Column("version_id", key(), nullable=True),
        sa.Column("revision", name(), nullable=False),
        sa.Column("changed", sa.BigInteger(), nullable=False),
        sa.Column("vector", sa.LargeBinary(), nullable=True),
        sa.PrimaryKeyConstraint("skill_id", name=op.f("pk_search_vectors")),
        sa.ForeignKeyConstraint(["skill_id"], ["skills.id"], name=op.f("fk_search_vectors_skill_id_skills")),
        sa.ForeignKeyConstraint(
            ["version_id"], ["skill_versions.id"], name=op.f("fk_search_vectors_version_id_skill_versions")
        ),
        comment="What the ranker has computed of each skill: skillery.maintenance.search_vectors.",
    )
    op.create_index("ix_search_vectors_changed", "search_vectors", ["changed"], unique=True)
    set_comment(BEFORE, AFTER)


def downgrade() -> None:
    set_comment(AFTER, BEFORE)
    op.drop_table("search_vectors")
    op.get_bind().execute(sa.text("DELETE FROM event_readers WHERE id = 'vectors'"))


def set_comment(before: str, after: str) -> None:
    if op.get_bind().dialect.name == "postgresql":
        op.create_table_comment("event_readers", after, existing_comment=before)


def key() -> sa.types.TypeEngine[int]:
    return sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def name() -> sa.types.TypeEngine[str]:
    return sa.String(255).with_variant(sa.String(255, collation="C"), "postgresql")
