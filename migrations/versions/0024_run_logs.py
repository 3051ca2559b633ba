"""logs of runs that other servers follow, and where the log of a run was cut

Revision: 0024, after 0023
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0024"
down_revision = "0023"
branch_labels = None
depends_on = None

MOMENT = sa.DateTime(timezone=True)
FOLLOWED = "status = 'started' AND followed_until IS NOT NULL"


def upgrade() -> None:
    op.add_column("runs", sa.Column("log_head_bytes", sa.Integer(), nullable=True))
    op.add_column("runs", sa.Column("log_dropped_bytes", sa.BigInteger(), nullable=True))
    op.add_column("runs", sa.Column("progress_json", sa.Text(), nullable=True))
    op.add_column("runs", sa.Column("followed_until", MOMENT, nullable=True))
    op.create_index(
        "ix_runs_followed", "runs", ["server"], postgresql_where=sa.text(FOLLOWED), sqlite_where=sa.text(FOLLOWED)
    )
    op.create_table(
        "run_log_pieces",
        sa.Column("run_id", sa.String(length=64), nullable=False),
        sa.Column("start", sa.BigInteger(), nullable=False, autoincrement=False),
        sa.Column("content", sa.LargeBinary(), nullable=False),
        sa.Column("written_at", MOMENT, nullable=False),
        sa.PrimaryKeyConstraint("run_id", "start", name=op.f("pk_run_log_pieces")),
        comment="Logs of runs that other servers follow, as they arrive.",
    )
    op.create_index("ix_run_log_pieces_written", "run_log_pieces", ["written_at"])


def downgrade() -> None:
    op.drop_table("run_log_pieces")
    op.drop_index("ix_runs_followed", table_name="runs")
    for column in ("followed_until", "progress_json", "log_dropped_bytes", "log_head_bytes"):
        op.drop_column("runs", column)
