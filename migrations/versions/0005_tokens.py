"""tokens, and whether a person or an agent published a version

Revision: 0005, after 0004
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    moment = sa.DateTime(timezone=True)
    op.create_table(
        "tokens",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("name", sa.String(length=255), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("hash", sa.LargeBinary(), nullable=False),
        sa.Column("scopes_json", sa.Text(), nullable=False),
        sa.Column("namespaces_json", sa.Text(), nullable=False),
        sa.Column("created_at", moment, nullable=False),
        sa.Column("created_by", sa.String(length=255), nullable=False),
        sa.Column("expires_at", moment, nullable=True),
        sa.Column("revoked_at", moment, nullable=True),
        sa.Column("last_used_at", moment, nullable=True),
        sa.CheckConstraint("kind IN ('person', 'agent')", name=op.f("ck_tokens_kind")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_tokens")),
    )
    op.create_index("ix_tokens_name", "tokens", ["name"])
    op.add_column(
        "skill_versions",
        sa.Column("publisher_kind", sa.String(length=16), nullable=False, server_default="person"),
    )
    # The bundled skills, published by the server itself.
    op.execute("UPDATE skill_versions SET publisher_kind = 'agent' WHERE publisher = 'skillery'")


def downgrade() -> None:
    op.drop_column("skill_versions", "publisher_kind")
    op.drop_index("ix_tokens_name", table_name="tokens")
    op.drop_table("tokens")
