"""holds, versions to approve again, and the revision of each server

Revision: 0054, after 0052
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0054"
down_revision = "0052"
branch_labels = None
depends_on = None

KEY = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
NAME = sa.String(255).with_variant(sa.String(255, collation="C"), "postgresql")
MOMENT = sa.DateTime(timezone=True)


def upgrade() -> None:
    op.add_column("servers", sa.Column("revision", sa.String(32), nullable=True))
    op.create_table(
        "holds",
        sa.Column("id", KEY, autoincrement=True, nullable=False),
        sa.Column("hold", sa.String(32), nullable=False),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("name", NAME, nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("identity", NAME, nullable=False),
        sa.Column("identity_kind", sa.String(16), nullable=False),
        sa.Column("created_at", MOMENT, nullable=False),
        sa.Column("until", MOMENT, nullable=True),
        sa.Column("removed_at", MOMENT, nullable=True),
        sa.Column("removed_by", NAME, nullable=True),
        sa.Column("removed_reason", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_holds")),
        sa.UniqueConstraint("hold", name=op.f("uq_holds_hold")),
        sa.CheckConstraint("kind IN ('skill', 'identity', 'run')", name=op.f("ck_holds_kind")),
        comment="What retention and purges must keep, and why.",
    )
    op.create_index("ix_holds_kind", "holds", ["kind", "name"])
    op.create_table(
        "recertifications",
        sa.Column("version_id", KEY, autoincrement=False, nullable=False),
        sa.Column("since", MOMENT, nullable=False),
        sa.ForeignKeyConstraint(
            ["version_id"], ["skill_versions.id"], name=op.f("fk_recertifications_version_id_skill_versions")
        ),
        sa.PrimaryKeyConstraint("version_id", name=op.f("pk_recertifications")),
        comment="Published versions whose approval is old: they wait for another one.",
    )


def downgrade() -> None:
    op.drop_table("recertifications")
    op.drop_table("holds")
    op.drop_column("servers", "revision")
