"""what is on record of runs: who may stop them, their limits, logs and counts; keys of calls that may be repeated

Revision: 0008, after 0007
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

OF_SKILL = "skill_id IS NOT NULL"
FAILED = "status = 'failed'"
CANCELLED = "status = 'started' AND cancel_requested_at IS NOT NULL"
COLUMNS = (
    "skill_id",
    "limits_json",
    "logs_blob",
    "queued",
    "begun_at",
    "cancel_requested_at",
    "cancel_requested_by",
)
INDEXES: tuple[tuple[str, tuple[str, ...], str | None], ...] = (
    ("ix_runs_identity", ("identity", "started_at", "id"), None),
    ("ix_runs_time", ("started_at", "id"), None),
    ("ix_runs_identity_skill", ("identity", "skill_id", "started_at", "id"), OF_SKILL),
    ("ix_runs_skill", ("skill_id", "started_at", "id"), OF_SKILL),
    ("ix_runs_identity_failed", ("identity", "started_at", "id"), FAILED),
    ("ix_runs_failed", ("started_at", "id"), FAILED),
    ("ix_runs_cancel", ("server",), CANCELLED),
)


def key() -> sa.types.TypeEngine[int]:
    return sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def moment() -> sa.types.TypeEngine[object]:
    return sa.DateTime(timezone=True)


def upgrade() -> None:
    op.add_column("runs", sa.Column("skill_id", key(), nullable=True))
    op.add_column("runs", sa.Column("limits_json", sa.Text(), nullable=True))
    op.add_column("runs", sa.Column("logs_blob", sa.String(length=64), nullable=True))
    op.add_column("runs", sa.Column("queued", sa.Boolean(), server_default=sa.false(), nullable=False))
    op.add_column("runs", sa.Column("begun_at", moment(), nullable=True))
    op.add_column("runs", sa.Column("cancel_requested_at", moment(), nullable=True))
    op.add_column("runs", sa.Column("cancel_requested_by", sa.String(length=255), nullable=True))
    op.execute(
        "UPDATE runs SET skill_id = (SELECT skill_id FROM skill_versions WHERE skill_versions.id = runs.version_id) "
        "WHERE version_id IS NOT NULL"
    )
    for name, columns, where in INDEXES:
        condition = sa.text(where) if where else None
        op.create_index(name, "runs", list(columns), postgresql_where=condition, sqlite_where=condition)
    op.create_table(
        "version_usage",
        sa.Column("version_id", key(), autoincrement=False, nullable=False),
        sa.Column("outcome", sa.String(length=16), nullable=False),
        sa.Column("bucket", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("runs", sa.BigInteger(), nullable=False),
        sa.Column("last_run_at", moment(), nullable=False),
        sa.ForeignKeyConstraint(
            ["version_id"], ["skill_versions.id"], name=op.f("fk_version_usage_version_id_skill_versions")
        ),
        sa.PrimaryKeyConstraint("version_id", "outcome", "bucket", name=op.f("pk_version_usage")),
        comment="How often a version was run and how long that took, counted as runs end; it outlasts their records.",
        sqlite_with_rowid=False,
    )
    op.create_table(
        "servers",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("seen_at", moment(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_servers")),
    )
    op.create_table(
        "idempotency_keys",
        sa.Column("identity", sa.String(length=255), nullable=False),
        sa.Column("key", sa.String(length=255), nullable=False),
        sa.Column("asked", sa.String(length=64), nullable=False),
        sa.Column("server", sa.String(length=64), nullable=False),
        sa.Column("run_id", sa.String(length=64), nullable=True),
        sa.Column("result_json", sa.Text(), nullable=True),
        sa.Column("created_at", moment(), nullable=False),
        sa.PrimaryKeyConstraint("identity", "key", name=op.f("pk_idempotency_keys")),
        comment="Calls that were made with an Idempotency-Key, and what they answered.",
    )
    op.create_index("ix_idempotency_keys_created_at", "idempotency_keys", ["created_at"])
    is_open = sa.text("result_json IS NULL")
    op.create_index(
        "ix_idempotency_keys_open", "idempotency_keys", ["server"], postgresql_where=is_open, sqlite_where=is_open
    )


def downgrade() -> None:
    op.drop_table("idempotency_keys")
    op.drop_table("servers")
    op.drop_table("version_usage")
    for name, _, _ in reversed(INDEXES):
        op.drop_index(name, table_name="runs")
    for column in reversed(COLUMNS):
        op.drop_column("runs", column)
