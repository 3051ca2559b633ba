"""what the run that wrote a blob calls it

Revision: 0019, after 0016
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("blobs", sa.Column("path", sa.Text(), nullable=True))


def downgrade() -> None:
    op.drop_column("blobs", "path")
