"""an index for skills that state a namespace which is no part of their name

Revision: 0036, after 0035
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0036"
down_revision = "0035"
branch_labels = None
depends_on = None

FOREIGN = "namespace <> '' AND substr(name, 1, length(namespace) + 1) <> namespace || '.'"


def upgrade() -> None:
    op.create_index(
        "ix_skills_foreign_listing",
        "skills",
        ["visibility", "namespace", "name", "latest_version_id"],
        postgresql_where=sa.text(f"latest_version_id IS NOT NULL AND {FOREIGN}"),
        sqlite_where=sa.text(f"latest_version_id IS NOT NULL AND {FOREIGN}"),
    )


def downgrade() -> None:
    op.drop_index("ix_skills_foreign_listing", "skills")
