"""secrets

Revision: 0003, after 0002
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def name() -> sa.types.TypeEngine[str]:
    return sa.String(length=255).with_variant(sa.String(length=255, collation="C"), "postgresql")


def upgrade() -> None:
    op.create_table(
        "secrets",
        sa.Column("name", name(), nullable=False),
        sa.Column("token", sa.LargeBinary(), nullable=False),
        sa.Column("changed_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_secrets")),
    )
    op.create_table(
        "secret_grants",
        sa.Column("secret", name(), nullable=False),
        sa.Column("grantee", name(), nullable=False),
        sa.Column("granted_by", sa.String(length=255), nullable=False),
        sa.Column("granted_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("secret", "grantee", name=op.f("pk_secret_grants")),
    )


def downgrade() -> None:
    op.drop_table("secret_grants")
    op.drop_table("secrets")
