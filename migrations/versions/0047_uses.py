"""uses of skills by day, caller and program; the order of the catalogue by use; what look-alikes have in common

Revision: 0047, after 0044
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0047"
down_revision = "0044"
branch_labels = None
depends_on = None

NAME = sa.String(255).with_variant(sa.String(255, collation="C"), "postgresql")
LISTED = sa.text("status IN ('published', 'deprecated')")
COUNTED = ("runs", "completed", "failed", "busy_ms", "loads", "reads")
NEW = ("callers_30d", "uses_30d", "loads_30d", "own_rank", "used_rank")
COPY = (
    "INSERT INTO version_usage SELECT version_id, outcome, bucket, sum(runs), max(last_run_at) FROM former_usage "
    "GROUP BY version_id, outcome, bucket"
)
COPY_TO_DAY = COPY.replace("version_id, outcome", "version_id, '', outcome", 1)
REBUILD = sa.text(
    "INSERT INTO registry (key, value) SELECT 'rebuild', :value WHERE EXISTS (SELECT 1 FROM skills) "
    "ON CONFLICT (key) DO NOTHING"
)


def upgrade() -> None:
    op.create_table(
        "use_days",
        sa.Column("skill_id", key(), autoincrement=False, nullable=False),
        sa.Column("day", sa.String(10), nullable=False),
        sa.Column("version_id", key(), autoincrement=False, nullable=False),
        sa.Column("caller", sa.String(255), nullable=False),
        sa.Column("client", sa.String(64), nullable=False),
        *(sa.Column(name, sa.BigInteger(), nullable=False) for name in COUNTED),
        sa.PrimaryKeyConstraint("skill_id", "day", "version_id", "caller", "client", name=op.f("pk_use_days")),
        comment="Runs and reads of each skill by day, caller and program. After 35 days, by day only; after 400, none.",
        sqlite_with_rowid=False,
    )
    op.create_index("ix_use_days_day", "use_days", ["day"])
    # The caller and the version of these runs and reads are unknown.
    op.execute(
        "INSERT INTO use_days SELECT skill_id, day, 0, '', client, sum(runs), sum(completed), sum(failed), 0, "
        "sum(loads), sum(reads) FROM (SELECT skill_id, day, '' AS client, runs, completed, failed, 0 AS loads, "
        "0 AS reads FROM usage_days UNION ALL SELECT skill_id, day, client, 0, 0, 0, loads, reads FROM read_days) "
        "AS counted GROUP BY skill_id, day, client"
    )
    op.drop_table("usage_days")
    op.drop_table("read_days")
    op.create_table(
        "name_marks",
        sa.Column("id", key(), autoincrement=True, nullable=False),
        sa.Column("mark", NAME, nullable=False),
        sa.Column("skill_id", key(), nullable=False),
        sa.ForeignKeyConstraint(["skill_id"], ["skills.id"], name=op.f("fk_name_marks_skill_id_skills")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_name_marks")),
        sa.UniqueConstraint("mark", "skill_id", name=op.f("uq_name_marks_mark_skill_id")),
        comment="What look-alikes have in common. Each published skill has two marks.",
    )
    op.create_index("ix_name_marks_skill", "name_marks", ["skill_id"])
    for name in NEW:
        op.add_column("catalogue", sa.Column(name, sa.BigInteger(), nullable=False, server_default="0"))
    op.add_column("catalogue", sa.Column("uses_by_day", sa.Text(), nullable=False, server_default=""))
    op.add_column("catalogue", sa.Column("looks_like", NAME, nullable=True))
    order_by("used_rank")
    for table, column in (("catalogue", "looks_like"), ("search_words", "successor")):
        where = sa.text(f"{column} IS NOT NULL")
        op.create_index(f"ix_{table}_{column}", table, [column], postgresql_where=where, sqlite_where=where)
    op.add_column("runs", sa.Column("client", sa.String(64), nullable=False, server_default=""))
    make_version_usage(["day"])
    # The server computes the rows of the catalogue when it starts.
    op.get_bind().execute(REBUILD, {"value": b""})


def downgrade() -> None:
    make_version_usage([])
    op.drop_column("runs", "client")
    op.drop_index("ix_search_words_successor", "search_words")
    op.drop_index("ix_catalogue_looks_like", "catalogue")
    order_by("runs_30d")
    for name in (*NEW, "uses_by_day", "looks_like"):
        op.drop_column("catalogue", name)
    op.drop_table("name_marks")
    op.create_table(
        "usage_days",
        sa.Column("skill_id", key(), autoincrement=False, nullable=False),
        sa.Column("day", sa.String(10), nullable=False),
        *(sa.Column(name, sa.BigInteger(), nullable=False) for name in COUNTED[:3]),
        sa.PrimaryKeyConstraint("skill_id", "day", name=op.f("pk_usage_days")),
        comment="Ended runs of each skill by day, counted as runs end. Days are kept for 30 days.",
        sqlite_with_rowid=False,
    )
    op.create_index("ix_usage_days_day", "usage_days", ["day"])
    op.create_table(
        "read_days",
        sa.Column("skill_id", key(), autoincrement=False, nullable=False),
        sa.Column("day", sa.String(10), nullable=False),
        sa.Column("client", sa.String(64), nullable=False),
        *(sa.Column(name, sa.BigInteger(), nullable=False) for name in COUNTED[4:]),
        sa.PrimaryKeyConstraint("skill_id", "day", "client", name=op.f("pk_read_days")),
        comment="How often the programs of agents read each skill, by day. Days are kept for 30 days.",
        sqlite_with_rowid=False,
    )
    op.create_index("ix_read_days_day", "read_days", ["day"])
    op.execute(
        "INSERT INTO usage_days SELECT skill_id, day, sum(runs), sum(completed), sum(failed) FROM use_days "
        "WHERE runs > 0 GROUP BY skill_id, day"
    )
    op.execute(
        "INSERT INTO read_days SELECT skill_id, day, client, sum(loads), sum(reads) FROM use_days "
        "WHERE loads + reads > 0 GROUP BY skill_id, day, client"
    )
    op.drop_table("use_days")


def order_by(column: str) -> None:
    """Make the index of the order by use begin with a column."""
    facts = ["version_id", "status", "visibility", "kind", "language", "verified", "network", "secrets", "skill_id"]
    op.drop_index("ix_catalogue_used", "catalogue")
    op.create_index(
        "ix_catalogue_used",
        "catalogue",
        [column, *facts, "namespace", "name"],
        postgresql_where=LISTED,
        sqlite_where=LISTED,
    )


def make_version_usage(days: list[str]) -> None:
    """Make the table of durations again, with these columns of days, because the primary key changes."""
    op.rename_table("version_usage", "former_usage")
    if op.get_bind().dialect.name == "postgresql":
        op.execute("ALTER TABLE former_usage RENAME CONSTRAINT pk_version_usage TO pk_former_usage")
        op.execute(
            "ALTER TABLE former_usage RENAME CONSTRAINT fk_version_usage_version_id_skill_versions TO fk_former_usage"
        )
    op.create_table(
        "version_usage",
        sa.Column("version_id", key(), autoincrement=False, nullable=False),
        *(sa.Column(name, sa.String(10), nullable=False) for name in days),
        sa.Column("outcome", sa.String(16), nullable=False),
        sa.Column("bucket", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("runs", sa.BigInteger(), nullable=False),
        sa.Column("last_run_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["version_id"], ["skill_versions.id"], name=op.f("fk_version_usage_version_id_skill_versions")
        ),
        sa.PrimaryKeyConstraint("version_id", *days, "outcome", "bucket", name=op.f("pk_version_usage")),
        comment="How often a version was run and how long that took, counted as runs end; it outlasts their records.",
        sqlite_with_rowid=False,
    )
    op.execute(COPY_TO_DAY if days else COPY)
    op.drop_table("former_usage")


def key() -> sa.types.TypeEngine[int]:
    return sa.BigInteger().with_variant(sa.Integer(), "sqlite")
