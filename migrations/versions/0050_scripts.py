"""the script of a run

Revision: 0050, after 0049
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0050"
down_revision = "0049"
branch_labels = None
depends_on = None

NAME = sa.String(255).with_variant(sa.String(255, collation="C"), "postgresql")


def upgrade() -> None:
    op.add_column("runs", sa.Column("script", NAME, nullable=True))


def downgrade() -> None:
    op.drop_column("runs", "script")
