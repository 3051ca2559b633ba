"""advisories about withdrawn versions

Revision: 0042, after 0040
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0042"
down_revision = "0040"
branch_labels = None
depends_on = None

MOMENT = sa.DateTime(timezone=True)
KEY = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "advisories",
        sa.Column("seq", KEY, autoincrement=False, nullable=False),
        sa.Column("advisory", sa.String(length=32), nullable=False),
        sa.Column("version_id", KEY, nullable=False),
        sa.Column("severity", sa.String(length=16), nullable=False),
        sa.Column("action", sa.String(length=16), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("fixed", sa.String(length=255), nullable=True),
        sa.Column("at", MOMENT, nullable=False),
        sa.Column("withdrawn_at", MOMENT, nullable=True),
        sa.CheckConstraint("severity IN ('broken', 'security', 'malicious')", name=op.f("ck_advisories_severity")),
        sa.PrimaryKeyConstraint("seq", name=op.f("pk_advisories")),
        sa.ForeignKeyConstraint(
            ["version_id"], ["skill_versions.id"], name=op.f("fk_advisories_version_id_skill_versions")
        ),
        sa.UniqueConstraint("advisory", name=op.f("uq_advisories_advisory")),
        comment="Why versions were withdrawn, for all who have a copy.",
    )
    op.create_index("ix_advisories_version", "advisories", ["version_id"])


def downgrade() -> None:
    op.drop_table("advisories")
