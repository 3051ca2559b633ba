"""the checked version of runs that were examples

Revision: 0057, after 0056
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0057"
down_revision = "0056"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("runs", sa.Column("check_of", sa.String(400), nullable=True))


def downgrade() -> None:
    op.drop_column("runs", "check_of")
