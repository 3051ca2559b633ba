"""how far the building of an environment is

Revision: 0017, after 0016
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("environments", sa.Column("step", sa.Text(), nullable=False, server_default=""))
    op.add_column("environments", sa.Column("done", sa.Integer(), nullable=False, server_default="0"))
    op.add_column("environments", sa.Column("total", sa.Integer(), nullable=False, server_default="0"))


def downgrade() -> None:
    for name in ("total", "done", "step"):
        op.drop_column("environments", name)
