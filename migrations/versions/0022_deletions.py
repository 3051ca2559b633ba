"""tombstones of contents that are being deleted from the storage

Revision: 0022, after 0021
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0022"
down_revision = "0021"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "deletions",
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("server", sa.String(length=64), nullable=False),
        sa.Column("holder", sa.String(length=32), nullable=False),
        sa.Column("take_over_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("sha256", name=op.f("pk_deletions")),
        comment="Tombstones: contents that are being deleted from the storage.",
    )


def downgrade() -> None:
    """Files whose deletion has not ended are deleted by the next sweep of a storage that lists its contents."""
    op.drop_table("deletions")
