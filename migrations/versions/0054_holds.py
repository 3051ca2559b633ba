"""the revision of each server

Revision: 0054, after 0051
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0054"
down_revision = "0051"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("servers", sa.Column("revision", sa.String(32), nullable=True))


def downgrade() -> None:
    op.drop_column("servers", "revision")
