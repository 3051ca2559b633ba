"""the tokens that the trials of evaluations have used

Revision: 0058, after 0057
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0058"
down_revision = "0057"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("eval_trials", sa.Column("tokens", sa.BigInteger(), server_default="0", nullable=False))


def downgrade() -> None:
    op.drop_column("eval_trials", "tokens")
