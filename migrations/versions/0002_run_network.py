"""what a run did on the network

Revision: 0002, after 0001
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("runs", sa.Column("network_json", sa.Text(), server_default="[]", nullable=False))


def downgrade() -> None:
    op.drop_column("runs", "network_json")
