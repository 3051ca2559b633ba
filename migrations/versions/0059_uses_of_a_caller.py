"""an index for the skills that a caller used on a day

Revision: 0059, after 0058
"""

from __future__ import annotations

from alembic import op

revision = "0059"
down_revision = "0058"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # Statements of the previous release use the first column only.
    op.create_index("ix_use_days_caller", "use_days", ["day", "caller", "skill_id"])
    op.drop_index("ix_use_days_day", "use_days")


def downgrade() -> None:
    op.create_index("ix_use_days_day", "use_days", ["day"])
    op.drop_index("ix_use_days_caller", "use_days")
