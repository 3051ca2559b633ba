"""locks of named environments, when they were built anew, and which of them a run had

Revision: 0018, after 0016
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "named_locks",
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("key", sa.String(length=64), nullable=False),
        sa.Column("content", sa.Text(), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("made_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("name", "key", name=op.f("pk_named_locks")),
        comment="The lock of each named environment: one for all servers, until somebody asks for another.",
    )
    op.create_index("ix_named_locks_sha256", "named_locks", ["sha256"])
    op.create_table(
        "environment_rebuilds",
        sa.Column("subject", sa.String(length=64), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("server", sa.String(length=64), nullable=False),
        sa.Column("identity", sa.String(length=255), nullable=False),
        sa.Column("began_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint("state IN ('running', 'done', 'failed')", name=op.f("ck_environment_rebuilds_state")),
        sa.PrimaryKeyConstraint("subject", name=op.f("pk_environment_rebuilds")),
        comment="The last time that somebody had an environment built anew.",
    )
    op.add_column("runs", sa.Column("environment_json", sa.Text(), nullable=True))


def downgrade() -> None:
    op.drop_column("runs", "environment_json")
    op.drop_table("environment_rebuilds")
    op.drop_table("named_locks")
