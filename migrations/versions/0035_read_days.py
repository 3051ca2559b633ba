"""how often programs of agents read each skill

Revision: 0035, after 0034
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0035"
down_revision = "0034"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "read_days",
        sa.Column("skill_id", key(), autoincrement=False, nullable=False),
        sa.Column("day", sa.String(10), nullable=False),
        sa.Column("client", sa.String(64), nullable=False),
        sa.Column("loads", sa.BigInteger(), nullable=False),
        sa.Column("reads", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("skill_id", "day", "client", name=op.f("pk_read_days")),
        comment="How often the programs of agents read each skill, by day. Days are kept for 30 days.",
        sqlite_with_rowid=False,
    )
    op.create_index("ix_read_days_day", "read_days", ["day"])


def downgrade() -> None:
    op.drop_table("read_days")


def key() -> sa.types.TypeEngine[int]:
    return sa.BigInteger().with_variant(sa.Integer(), "sqlite")
