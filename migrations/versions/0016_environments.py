"""locks of dependencies, and what each server has installed of them

Revision: 0016, after 0015
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "locks",
        sa.Column("key", sa.String(length=64), nullable=False),
        sa.Column("content", sa.Text(), nullable=False),
        sa.Column("made_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("key", name=op.f("pk_locks")),
        comment="Locks of dependencies that were made lately: the same dependencies get the same.",
    )
    op.create_table(
        "environments",
        sa.Column("lock_sha256", sa.String(length=64), nullable=False),
        sa.Column("server", sa.String(length=64), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("changed_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint("state IN ('building', 'ready', 'failed')", name=op.f("ck_environments_state")),
        sa.PrimaryKeyConstraint("lock_sha256", "server", name=op.f("pk_environments")),
        comment="The installed packages of each server, by their lock.",
    )
    op.create_index("ix_locks_made_at", "locks", ["made_at"])


def downgrade() -> None:
    op.drop_table("environments")
    op.drop_table("locks")
