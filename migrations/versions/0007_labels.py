"""labels of versions, and every move of them

Revision: 0007, after 0006
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

NAME = sa.String(length=255).with_variant(sa.String(length=255, collation="C"), "postgresql")


def key() -> sa.types.TypeEngine[int]:
    return sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
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


def downgrade() -> None:
    op.drop_table("labels")
    op.drop_table("label_moves")
