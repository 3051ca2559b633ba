"""names of skills in the indexes of Agent Skills, and what is known of their exports

Revision: 0014, after 0013
"""

from __future__ import annotations

import hashlib

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None

# Each skill that was ever published, in the order in which its first such version came in.
PUBLISHED = """
    SELECT skills.id, skills.name FROM skills
    JOIN skill_versions ON skill_versions.skill_id = skills.id
    WHERE skill_versions.status IN ('published', 'deprecated', 'yanked')
    GROUP BY skills.id, skills.name ORDER BY min(skill_versions.created_at), skills.id
"""


def key() -> sa.types.TypeEngine[int]:
    return sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def name() -> sa.types.TypeEngine[str]:
    return sa.String(length=255).with_variant(sa.String(length=255, collation="C"), "postgresql")


def upgrade() -> None:
    index_names = op.create_table(
        "index_names",
        sa.Column("id", key(), autoincrement=True, nullable=False),
        sa.Column("index_name", name(), nullable=False),
        sa.Column("skill_id", key(), nullable=False),
        sa.ForeignKeyConstraint(["skill_id"], ["skills.id"], name=op.f("fk_index_names_skill_id_skills")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_index_names")),
        sa.UniqueConstraint("skill_id", name=op.f("uq_index_names_skill_id")),
        comment="Names in the indexes of Agent Skills: of several skills with one name the first stands in them.",
    )
    op.create_index("ix_index_names_name", "index_names", ["index_name", "id"])
    op.create_table(
        "exports",
        sa.Column("version_id", key(), autoincrement=False, nullable=False),
        sa.Column("maker", sa.Integer(), nullable=False),
        sa.Column("facts_json", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(
            ["version_id"], ["skill_versions.id"], name=op.f("fk_exports_version_id_skill_versions")
        ),
        sa.PrimaryKeyConstraint("version_id", name=op.f("pk_exports")),
        comment="What is known of versions as Agent Skills. It follows from their files and is made when it is wanted.",
    )
    rows = op.get_bind().execute(sa.text(PUBLISHED)).all()
    values = [{"index_name": index_name(row.name), "skill_id": row.id} for row in rows]
    for start in range(0, len(values), 500):
        op.bulk_insert(index_names, values[start : start + 500])


def downgrade() -> None:
    op.drop_table("exports")
    op.drop_table("index_names")


def index_name(name: str) -> str:
    """As the product had it at this revision."""
    found = name.replace(".", "-").replace("_", "-")
    if len(found) <= 64:
        return found
    return f"{found[:55].rstrip('-')}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
