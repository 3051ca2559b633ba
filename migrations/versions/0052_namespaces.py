"""what publishers say about a namespace: title, text, contact of its owners, pinned skills

Revision: 0052, after 0051
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0052"
down_revision = "0051"
branch_labels = None
depends_on = None

NAME = sa.String(255).with_variant(sa.String(255, collation="C"), "postgresql")


def upgrade() -> None:
    op.create_table(
        "namespaces",
        sa.Column("namespace", NAME, nullable=False),
        *(sa.Column(name, sa.Text(), nullable=False) for name in ("title", "text", "contact", "pinned_json")),
        sa.Column("identity", sa.String(255), nullable=False),
        sa.Column("set_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("namespace", name=op.f("pk_namespaces")),
        comment="What publishers say about a namespace. A namespace exists without a row here.",
    )


def downgrade() -> None:
    op.drop_table("namespaces")
