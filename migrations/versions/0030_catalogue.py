"""the catalogue: filters, orders and counts of listings, and the usage of skills by day

Revision: 0030, after 0029
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0030"
down_revision = "0029"
branch_labels = None
depends_on = None

MOMENT = sa.DateTime(timezone=True)
NAME = sa.String(length=255).with_variant(sa.String(length=255, collation="C"), "postgresql")
TAG = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
LISTED = sa.text("status IN ('published', 'deprecated')")
OTHER = sa.text("status NOT IN ('published', 'deprecated')")
FACTS = ["status", "visibility", "kind", "language", "verified", "network", "secrets", "skill_id"]
COUNTED = ["status", "kind", "language", "verified", "network", "secrets"]
INDEXES = {
    "ix_catalogue_names": (["namespace", "name", *FACTS, "version_id"], LISTED),
    "ix_catalogue_newest": (["published_at", "version_id", *FACTS, "namespace", "name"], LISTED),
    "ix_catalogue_used": (["runs_30d", "version_id", *FACTS, "namespace", "name"], LISTED),
    "ix_catalogue_facets": ([*COUNTED, "visibility", "namespace", "name", "skill_id", "version_id"], LISTED),
    "ix_catalogue_other": (["status", "version_id"], OTHER),
}
REBUILD = sa.text(
    "INSERT INTO registry (key, value) SELECT 'rebuild', :value WHERE EXISTS (SELECT 1 FROM skills) "
    "ON CONFLICT (key) DO NOTHING"
)
COUNT_DAYS = {
    "sqlite": """
        INSERT INTO usage_days (skill_id, day, runs, completed, failed)
        SELECT skill_id, date(finished_at), count(*), sum(status = 'completed'), sum(status = 'failed')
        FROM runs
        WHERE skill_id IS NOT NULL AND finished_at >= datetime('now', '-29 days', 'start of day')
        GROUP BY 1, 2
    """,
    "postgresql": """
        INSERT INTO usage_days (skill_id, day, runs, completed, failed)
        SELECT skill_id, to_char(finished_at AT TIME ZONE 'UTC', 'YYYY-MM-DD'), count(*),
            count(*) FILTER (WHERE status = 'completed'), count(*) FILTER (WHERE status = 'failed')
        FROM runs
        WHERE skill_id IS NOT NULL AND finished_at >= now() - interval '30 days'
        GROUP BY 1, 2
    """,
}


def upgrade() -> None:
    op.create_table(
        "catalogue",
        sa.Column("version_id", key(), autoincrement=False, nullable=False),
        sa.Column("skill_id", key(), nullable=False),
        sa.Column("name", NAME, nullable=False),
        sa.Column("namespace", NAME, nullable=False),
        sa.Column("visibility", sa.String(length=16), nullable=False),
        sa.Column("publisher", sa.String(length=255), nullable=False),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("language", sa.String(length=16), nullable=False),
        sa.Column("verified", sa.Boolean(), nullable=False),
        sa.Column("network", sa.Boolean(), nullable=False),
        sa.Column("secrets", sa.Boolean(), nullable=False),
        sa.Column("published_at", MOMENT, nullable=False),
        sa.Column("runs_30d", sa.BigInteger(), nullable=False),
        sa.Column("completed_30d", sa.BigInteger(), nullable=False),
        sa.Column("failed_30d", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["skill_id"], ["skills.id"], name=op.f("fk_catalogue_skill_id_skills")),
        sa.ForeignKeyConstraint(
            ["version_id"], ["skill_versions.id"], name=op.f("fk_catalogue_version_id_skill_versions")
        ),
        sa.PrimaryKeyConstraint("version_id", name=op.f("pk_catalogue")),
        comment="The latest version of each skill, and each version that is a draft, in review, rejected or yanked.",
    )
    op.create_index("ix_catalogue_skill", "catalogue", ["skill_id"])
    for name, (columns, where) in INDEXES.items():
        op.create_index(name, "catalogue", columns, postgresql_where=where, sqlite_where=where)
    op.create_table(
        "catalogue_tags",
        sa.Column("version_id", key(), autoincrement=False, nullable=False),
        sa.Column("tag", TAG, nullable=False),
        sa.ForeignKeyConstraint(
            ["version_id"], ["catalogue.version_id"], name=op.f("fk_catalogue_tags_version_id_catalogue")
        ),
        sa.PrimaryKeyConstraint("version_id", "tag", name=op.f("pk_catalogue_tags")),
        comment="The tags of the versions in the catalogue.",
        sqlite_with_rowid=False,
    )
    op.create_index("ix_catalogue_tags_tag", "catalogue_tags", ["tag", "version_id"])
    op.create_table(
        "usage_days",
        sa.Column("skill_id", key(), autoincrement=False, nullable=False),
        sa.Column("day", sa.String(length=10), nullable=False),
        sa.Column("runs", sa.BigInteger(), nullable=False),
        sa.Column("completed", sa.BigInteger(), nullable=False),
        sa.Column("failed", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("skill_id", "day", name=op.f("pk_usage_days")),
        comment="Ended runs of each skill by day, counted as runs end. Days are kept for 30 days.",
        sqlite_with_rowid=False,
    )
    op.create_index("ix_usage_days_day", "usage_days", ["day"])
    # The records of runs do not tell cancelled runs from failed runs, so a cancelled run counts as failed here.
    op.execute(COUNT_DAYS[op.get_bind().dialect.name])
    # The server computes the rows when it starts.
    op.get_bind().execute(REBUILD, {"value": b""})


def downgrade() -> None:
    for table in ("usage_days", "catalogue_tags", "catalogue"):
        op.drop_table(table)


def key() -> sa.types.TypeEngine[int]:
    return sa.BigInteger().with_variant(sa.Integer(), "sqlite")
