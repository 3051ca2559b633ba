"""skills that versions require, and the versions that were chosen for them

Revision: 0055, after 0054
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0055"
down_revision = "0054"
branch_labels = None
depends_on = None

KEY = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
NAME = sa.String(255).with_variant(sa.String(255, collation="C"), "postgresql")


def upgrade() -> None:
    op.create_table(
        "version_requires",
        sa.Column("version_id", KEY, autoincrement=False, nullable=False),
        sa.Column("name", NAME, nullable=False),
        sa.Column("spec", sa.String(255), nullable=False),
        sa.ForeignKeyConstraint(
            ["version_id"], ["skill_versions.id"], name=op.f("fk_version_requires_version_id_skill_versions")
        ),
        sa.PrimaryKeyConstraint("version_id", "name", name=op.f("pk_version_requires")),
        comment="The skills that a version requires, as its manifest names them.",
    )
    op.create_table(
        "version_closure",
        sa.Column("version_id", KEY, autoincrement=False, nullable=False),
        sa.Column("depends_on_id", KEY, autoincrement=False, nullable=False),
        sa.Column("depth", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(
            ["version_id"], ["skill_versions.id"], name=op.f("fk_version_closure_version_id_skill_versions")
        ),
        sa.ForeignKeyConstraint(
            ["depends_on_id"], ["skill_versions.id"], name=op.f("fk_version_closure_depends_on_id_skill_versions")
        ),
        sa.PrimaryKeyConstraint("version_id", "depends_on_id", name=op.f("pk_version_closure")),
        comment="The versions that a version requires directly and indirectly, chosen when it was published.",
    )
    op.create_index("ix_version_closure_depends_on_id", "version_closure", ["depends_on_id", "version_id"])


def downgrade() -> None:
    op.drop_table("version_closure")
    op.drop_table("version_requires")
