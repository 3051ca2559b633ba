"""the reach of skills and the words of searches, by day; filters by review, contents and licence

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
LISTED = sa.text("status IN ('published', 'deprecated')")
FLAGS, NEW = ["verified", "network", "secrets"], ["reviewed", "contains", "licence"]
REBUILD = sa.text(
    "INSERT INTO registry (key, value) SELECT 'rebuild', :value WHERE EXISTS (SELECT 1 FROM skills) "
    "ON CONFLICT (key) DO NOTHING"
)
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
    op.add_column("catalogue", sa.Column("reviewed", sa.Boolean(), nullable=False, server_default=sa.false()))
    for name in NEW[1:]:
        op.add_column("catalogue", sa.Column(name, sa.String(40), nullable=False, server_default=""))
    make_indexes([*FLAGS, *NEW])
    # The server computes the rows of the catalogue when it starts.
    op.get_bind().execute(REBUILD, {"value": b""})


def downgrade() -> None:
    make_indexes(FLAGS)
    for name in NEW:
        op.drop_column("catalogue", name)
    op.drop_table("search_days")
    op.drop_table("reach_days")


def make_indexes(flags: list[str]) -> None:
    """Make the indexes of the catalogue again, with these columns that listings filter and count by."""
    facts = ["status", "visibility", "kind", "language", *flags, "skill_id"]
    counted = ["status", "kind", "language", *flags, "visibility"]
    for name, columns in {
        "names": ["namespace", "name", *facts, "version_id"],
        "newest": ["published_at", "version_id", *facts, "namespace", "name"],
        "used": ["used_rank", "version_id", *facts, "namespace", "name"],
        "facets": [*counted, "namespace", "name", "skill_id", "version_id"],
    }.items():
        op.drop_index(f"ix_catalogue_{name}", "catalogue")
        op.create_index(f"ix_catalogue_{name}", "catalogue", columns, postgresql_where=LISTED, sqlite_where=LISTED)
