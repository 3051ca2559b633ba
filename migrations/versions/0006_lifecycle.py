"""visibility of skills, and the steps of versions

Revision: 0006, after 0005
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

LISTED = "latest_version_id IS NOT NULL"


def key() -> sa.types.TypeEngine[int]:
    return sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.add_column("skills", sa.Column("visibility", sa.String(length=16), server_default="public", nullable=False))
    op.add_column("skill_versions", sa.Column("standing_json", sa.Text(), nullable=True))
    _index_listed("ix_skills_seen_listing", "visibility", "namespace", "name", "latest_version_id")
    _index_listed("ix_skills_seen_names", "visibility", "name")
    op.create_index("ix_skill_versions_publisher", "skill_versions", ["publisher", "skill_id"])
    op.create_table(
        "version_steps",
        sa.Column("id", key(), autoincrement=True, nullable=False),
        sa.Column("version_id", key(), nullable=False),
        sa.Column("step", sa.String(length=16), nullable=False),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("digest", sa.String(length=71), nullable=False),
        sa.Column("identity", sa.String(length=255), nullable=False),
        sa.Column("identity_kind", sa.String(length=16), nullable=False),
        sa.Column("note", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["version_id"], ["skill_versions.id"], name=op.f("fk_version_steps_version_id_skill_versions")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_version_steps")),
        comment="Who took a version from one status to another, when and why.",
    )
    op.create_index("ix_version_steps_version", "version_steps", ["version_id", "id"])


def downgrade() -> None:
    op.drop_table("version_steps")
    op.drop_index("ix_skill_versions_publisher", table_name="skill_versions")
    op.drop_index("ix_skills_seen_names", table_name="skills")
    op.drop_index("ix_skills_seen_listing", table_name="skills")
    op.drop_column("skill_versions", "standing_json")
    op.drop_column("skills", "visibility")


def _index_listed(name: str, *columns: str) -> None:
    op.create_index(name, "skills", list(columns), postgresql_where=sa.text(LISTED), sqlite_where=sa.text(LISTED))
