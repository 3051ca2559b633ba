"""values that backends keep in the database; the encrypted secrets are such values

Revision: 0023, after 0022
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0023"
down_revision = "0022"
branch_labels = None
depends_on = None

NAME = sa.String(length=255).with_variant(sa.String(length=255, collation="C"), "postgresql")
MOMENT = sa.DateTime(timezone=True)


def upgrade() -> None:
    op.create_table(
        "backend_values",
        sa.Column("backend", NAME, nullable=False),
        sa.Column("key", NAME, nullable=False),
        sa.Column("value", sa.LargeBinary(), nullable=False),
        sa.Column("changed_at", MOMENT, nullable=False),
        sa.Column("expires_at", MOMENT, nullable=True),
        sa.PrimaryKeyConstraint("backend", "key", name=op.f("pk_backend_values")),
        comment="What a backend keeps, by `<kind>.<name>` of the backend: skillery.backends.Values.",
    )
    is_set = sa.text("expires_at IS NOT NULL")
    columns = ["backend", "expires_at"]
    op.create_index(
        "ix_backend_values_expired", "backend_values", columns, postgresql_where=is_set, sqlite_where=is_set
    )
    op.execute(
        "INSERT INTO backend_values (backend, key, value, changed_at) "
        "SELECT 'secrets.database', name, token, changed_at FROM secrets"
    )
    op.drop_table("secrets")


def downgrade() -> None:
    """Values of other backends are lost."""
    op.create_table(
        "secrets",
        sa.Column("name", NAME, nullable=False),
        sa.Column("token", sa.LargeBinary(), nullable=False),
        sa.Column("changed_at", MOMENT, nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_secrets")),
    )
    op.execute(
        "INSERT INTO secrets (name, token, changed_at) "
        "SELECT key, value, changed_at FROM backend_values WHERE backend = 'secrets.database'"
    )
    op.drop_table("backend_values")
