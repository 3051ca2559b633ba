"""the hosts that versions may reach, for reviews, and what runs have used

Revision: 0034, after 0031
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0034"
down_revision = "0031"
branch_labels = None
depends_on = None

HOST = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
REBUILD = sa.text(
    "INSERT INTO registry (key, value) SELECT 'rebuild', :value WHERE EXISTS (SELECT 1 FROM skills) "
    "ON CONFLICT (key) DO NOTHING"
)


def upgrade() -> None:
    op.create_table(
        "catalogue_hosts",
        sa.Column("version_id", key(), autoincrement=False, nullable=False),
        sa.Column("host", HOST, nullable=False),
        sa.ForeignKeyConstraint(
            ["version_id"], ["catalogue.version_id"], name=op.f("fk_catalogue_hosts_version_id_catalogue")
        ),
        sa.PrimaryKeyConstraint("version_id", "host", name=op.f("pk_catalogue_hosts")),
        comment="The entries of permissions.network of the versions in the catalogue.",
        sqlite_with_rowid=False,
    )
    op.create_index("ix_catalogue_hosts_host", "catalogue_hosts", ["host", "version_id"])
    op.add_column("runs", sa.Column("used_json", sa.Text(), nullable=True))
    # The server computes the rows when it starts.
    op.get_bind().execute(REBUILD, {"value": b""})


def downgrade() -> None:
    op.drop_column("runs", "used_json")
    op.drop_table("catalogue_hosts")


def key() -> sa.types.TypeEngine[int]:
    return sa.BigInteger().with_variant(sa.Integer(), "sqlite")
