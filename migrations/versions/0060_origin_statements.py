"""statements of other registries about mirrored versions

Revision: 0060, after 0059
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0060"
down_revision = "0059"
branch_labels = None
depends_on = None

KEY = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "origin_statements",
        sa.Column("version_id", KEY, autoincrement=False, nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("document", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(
            ["version_id"], ["skill_versions.id"], name=op.f("fk_origin_statements_version_id_skill_versions")
        ),
        sa.PrimaryKeyConstraint("version_id", name=op.f("pk_origin_statements")),
        comment="Statements of other registries about versions that mirrors have copied.",
    )


def downgrade() -> None:
    op.drop_table("origin_statements")
