"""the reach of skills and the words of searches, by day

Revision: 0051, after 0050
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0051"
down_revision = "0050"
branch_labels = None
depends_on = None

BYTEWISE = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
KEY = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "reach_days",
        sa.Column("skill_id", KEY, autoincrement=False, nullable=False),
        sa.Column("day", sa.String(10), nullable=False),
        sa.Column("kind", sa.String(8), nullable=False),
        sa.Column("target", BYTEWISE, nullable=False),
        *(sa.Column(name, sa.BigInteger(), nullable=False) for name in ("runs", "refused", "bytes_out", "bytes_in")),
        sa.PrimaryKeyConstraint("skill_id", "day", "kind", "target", name=op.f("pk_reach_days")),
        comment="The hosts that runs reached or were refused, and the secrets that they got, by day. Kept for 90 days.",
        sqlite_with_rowid=False,
    )
    op.create_index("ix_reach_days_day", "reach_days", ["day"])
    op.create_table(
        "search_days",
        sa.Column("day", sa.String(10), nullable=False),
        sa.Column("words", BYTEWISE, nullable=False),
        sa.Column("caller", sa.String(255), nullable=False),
        *(sa.Column(name, sa.BigInteger(), nullable=False) for name in ("times", "matched", "opened")),
        sa.PrimaryKeyConstraint("day", "words", "caller", name=op.f("pk_search_days")),
        comment="Searches by day and words, at most 5,000 rows a day. Kept for 90 days.",
        sqlite_with_rowid=False,
    )


def downgrade() -> None:
    op.drop_table("search_days")
    op.drop_table("reach_days")
