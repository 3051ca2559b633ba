"""lifetimes of blobs, contents on their way in, and indexes for quotas

Revision: 0010, after 0009
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

UNDER_WAY = "status = 'started' AND parent_run_id IS NULL"
EXPIRES = "expires_at IS NOT NULL"


def upgrade() -> None:
    op.add_column("blobs", sa.Column("expires_at", sa.DateTime(timezone=True), nullable=True))
    op.create_index("ix_blobs_owner", "blobs", ["owner", "expires_at", "size_bytes"])
    _index_where("ix_blobs_expired", "blobs", EXPIRES, "expires_at")
    _index_where("ix_runs_under_way", "runs", UNDER_WAY, "identity", "started_at")
    op.create_index("ix_skill_versions_size", "skill_versions", ["skill_id", "size_bytes"])
    op.create_table(
        "uploads",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("begun_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", "sha256", name=op.f("pk_uploads")),
        comment="Contents on their way into the storage: who has a row here is about to refer to one.",
    )
    op.create_index("ix_uploads_sha256", "uploads", ["sha256"])


def downgrade() -> None:
    op.drop_table("uploads")
    op.drop_index("ix_skill_versions_size", table_name="skill_versions")
    op.drop_index("ix_runs_under_way", table_name="runs")
    op.drop_index("ix_blobs_expired", table_name="blobs")
    op.drop_index("ix_blobs_owner", table_name="blobs")
    op.drop_column("blobs", "expires_at")


def _index_where(name: str, table: str, condition: str, *columns: str) -> None:
    op.create_index(name, table, list(columns), postgresql_where=sa.text(condition), sqlite_where=sa.text(condition))
