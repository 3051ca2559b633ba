"""the args of runs, for the pages of runs

Revision: 0031, after 0030
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0031"
down_revision = "0030"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("runs", sa.Column("args_json", sa.Text(), nullable=True))


def downgrade() -> None:
    op.drop_column("runs", "args_json")
