"""the code of run_code, for the records and pages of runs

Revision: 0048, after 0047
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0048"
down_revision = "0047"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "run_code",
        sa.Column("run_id", sa.String(64), nullable=False),
        sa.Column("language", sa.String(16), nullable=False),
        sa.Column("entrypoint", sa.String(255), nullable=False),
        sa.Column("code", sa.Text(), nullable=False),
        sa.Column("is_cut", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("run_id", name=op.f("pk_run_code")),
        comment="The code of run_code, at most 64 KiB of each run.",
    )


def downgrade() -> None:
    op.drop_table("run_code")
