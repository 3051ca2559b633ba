"""failed runs by what they have in common

Revision: 0049, after 0048
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0049"
down_revision = "0048"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "failure_days",
        sa.Column("skill_id", key(), autoincrement=False, nullable=False),
        sa.Column("shape", sa.String(16), nullable=False),
        sa.Column("version_id", key(), autoincrement=False, nullable=False),
        sa.Column("day", sa.String(10), nullable=False),
        sa.Column("caller", sa.String(255), nullable=False),
        sa.Column("runs", sa.BigInteger(), nullable=False),
        *(sa.Column(name, sa.Text(), nullable=False) for name in ("error_type", "place", "message")),
        sa.Column("last_run_id", sa.String(64), nullable=False),
        sa.Column("last_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("skill_id", "shape", "version_id", "day", "caller", name=op.f("pk_failure_days")),
        comment="Failed runs of each skill by what they have in common, version, day and caller. After 90 days, none.",
        sqlite_with_rowid=False,
    )
    op.create_index("ix_failure_days_day", "failure_days", ["day"])


def downgrade() -> None:
    op.drop_table("failure_days")


def key() -> sa.types.TypeEngine[int]:
    return sa.BigInteger().with_variant(sa.Integer(), "sqlite")
