"""which skill of the registry an imported one is

Revision: 0015, after 0014
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None


def name() -> sa.types.TypeEngine[str]:
    return sa.String(length=255).with_variant(sa.String(length=255, collation="C"), "postgresql")


def upgrade() -> None:
    op.create_table(
        "imports",
        sa.Column("namespace", name(), nullable=False),
        sa.Column("stated", name(), nullable=False),
        sa.Column("name", name(), nullable=False),
        sa.Column("version", sa.Text(), nullable=False),
        sa.Column("source_digest", sa.String(length=71), nullable=False),
        sa.Column("source", name(), nullable=True),
        sa.Column("removed_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("identity", sa.String(length=255), nullable=False),
        sa.Column("imported_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("namespace", "stated", name=op.f("pk_imports")),
        comment="Imported skills: what each is called where it comes from, and which skill of the registry it is.",
    )
    op.create_index(op.f("ix_imports_name"), "imports", ["name"])
    op.create_index(
        "ix_imports_source",
        "imports",
        ["source"],
        postgresql_where=sa.text("source IS NOT NULL"),
        sqlite_where=sa.text("source IS NOT NULL"),
    )


def downgrade() -> None:
    op.drop_table("imports")
