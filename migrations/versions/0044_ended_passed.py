"""index of published versions that do not meet their policy any more

Revision: 0044, after 0043
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0044"
down_revision = "0043"
branch_labels = None
depends_on = None


def upgrade() -> None:
    where = sa.text("predicate = 'passed' AND ended_at IS NOT NULL")
    op.create_index(
        "ix_attestations_ended_passed", "attestations", ["version_id"], sqlite_where=where, postgresql_where=where
    )


def downgrade() -> None:
    op.drop_index("ix_attestations_ended_passed", "attestations")
