"""the index of a listing holds the visibility too

Revision: 0012, after 0011
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None

IS_LISTED = "latest_version_id IS NOT NULL"


def upgrade() -> None:
    _replace("namespace", "name", "latest_version_id", "visibility")


def downgrade() -> None:
    _replace("namespace", "name", "latest_version_id")


def _replace(*columns: str) -> None:
    op.drop_index("ix_skills_listing", "skills")
    where = sa.text(IS_LISTED)
    op.create_index("ix_skills_listing", "skills", list(columns), postgresql_where=where, sqlite_where=where)
