"""the index of a listing holds the visibility too; one of what waits for a review

Revision: 0012, after 0011
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None

WAITING = "ix_skill_versions_waiting"
IS_LISTED = "latest_version_id IS NOT NULL"


def upgrade() -> None:
    _replace("namespace", "name", "latest_version_id", "visibility")
    where = sa.text("status IN ('draft', 'in_review')")
    columns = ["status", "id"]
    op.create_index(WAITING, "skill_versions", columns, postgresql_where=where, sqlite_where=where)


def downgrade() -> None:
    op.drop_index(WAITING, "skill_versions")
    _replace("namespace", "name", "latest_version_id")


def _replace(*columns: str) -> None:
    op.drop_index("ix_skills_listing", "skills")
    where = sa.text(IS_LISTED)
    op.create_index("ix_skills_listing", "skills", list(columns), postgresql_where=where, sqlite_where=where)
