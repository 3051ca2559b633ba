"""what checks found of a version, and waivers

Revision: 0009, after 0008
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    name = sa.String(length=255).with_variant(sa.String(length=255, collation="C"), "postgresql")
    op.add_column("skill_versions", sa.Column("checks_json", sa.Text(), nullable=True))
    op.create_table(
        "waivers",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("waiver", sa.String(length=32), nullable=False),
        sa.Column("name", name, nullable=False),
        sa.Column("rule", sa.String(length=255), nullable=False),
        sa.Column("file", sa.Text(), nullable=True),
        sa.Column("version", sa.Text(), nullable=True),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("identity", sa.String(length=255), nullable=False),
        sa.Column("identity_kind", sa.String(length=16), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("until", sa.DateTime(timezone=True), nullable=True),
        sa.Column("revoked_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("revoked_by", sa.String(length=255), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_waivers")),
        sa.UniqueConstraint("waiver", name=op.f("uq_waivers_waiver")),
        comment="Findings that keep no version back, by whom, why and until when.",
    )
    op.create_index("ix_waivers_name", "waivers", ["name", "id"])


def downgrade() -> None:
    op.drop_table("waivers")
    op.drop_column("skill_versions", "checks_json")
