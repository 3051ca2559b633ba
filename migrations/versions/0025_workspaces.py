"""workspaces, their snapshots and their contents

Revision: 0025, after 0024
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0025"
down_revision = "0024"
branch_labels = None
depends_on = None

MOMENT = sa.DateTime(timezone=True)
KEY = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
NAME = sa.String(length=255).with_variant(sa.String(length=255, collation="C"), "postgresql")
TABLES = ("workspace_contents", "workspace_snapshots", "workspaces", "workspace_families")


def upgrade() -> None:
    op.add_column("runs", sa.Column("workspace_json", sa.Text(), nullable=True))
    op.create_table(
        "workspace_families",
        sa.Column("id", KEY, nullable=False),
        sa.Column("changes", sa.BigInteger(), server_default="0", nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_workspace_families")),
        comment="Workspaces that were forked from each other share their contents.",
    )
    op.create_table(
        "workspaces",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("family_id", KEY, nullable=False),
        sa.Column("identity", sa.String(length=255), nullable=False),
        sa.Column("name", NAME, nullable=False),
        sa.Column("parent", sa.String(length=80), nullable=True),
        sa.Column("snapshot_id", KEY, nullable=True),
        sa.Column("snapshot", sa.String(length=71), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("files", sa.Integer(), nullable=False),
        sa.Column("created_at", MOMENT, nullable=False),
        sa.Column("ttl_seconds", sa.Integer(), nullable=False),
        sa.Column("expires_at", MOMENT, nullable=False),
        sa.Column("run_id", sa.String(length=64), nullable=True),
        sa.Column("server", sa.String(length=64), nullable=True),
        sa.ForeignKeyConstraint(
            ["family_id"], ["workspace_families.id"], name=op.f("fk_workspaces_family_id_workspace_families")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_workspaces")),
    )
    op.create_index("ix_workspaces_identity", "workspaces", ["identity", "id"])
    op.create_index("ix_workspaces_family", "workspaces", ["family_id"])
    op.create_index("ix_workspaces_expires", "workspaces", ["expires_at"])
    op.create_table(
        "workspace_snapshots",
        sa.Column("id", KEY, nullable=False),
        sa.Column("workspace_id", sa.String(length=64), nullable=False),
        sa.Column("digest", sa.String(length=71), nullable=False),
        sa.Column("manifest_sha256", sa.String(length=64), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("files", sa.Integer(), nullable=False),
        sa.Column("run_id", sa.String(length=64), nullable=True),
        sa.Column("created_at", MOMENT, nullable=False),
        sa.ForeignKeyConstraint(
            ["workspace_id"], ["workspaces.id"], name=op.f("fk_workspace_snapshots_workspace_id_workspaces")
        ),
        sa.ForeignKeyConstraint(
            ["manifest_sha256"], ["objects.sha256"], name=op.f("fk_workspace_snapshots_manifest_sha256_objects")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_workspace_snapshots")),
    )
    op.create_index("ix_workspace_snapshots_workspace", "workspace_snapshots", ["workspace_id", "id"])
    op.create_index("ix_workspace_snapshots_digest", "workspace_snapshots", ["digest"])
    op.create_index("ix_workspace_snapshots_manifest", "workspace_snapshots", ["manifest_sha256"])
    op.create_table(
        "workspace_contents",
        sa.Column("family_id", KEY, nullable=False, autoincrement=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.ForeignKeyConstraint(
            ["family_id"], ["workspace_families.id"], name=op.f("fk_workspace_contents_family_id_workspace_families")
        ),
        sa.ForeignKeyConstraint(["sha256"], ["objects.sha256"], name=op.f("fk_workspace_contents_sha256_objects")),
        sa.PrimaryKeyConstraint("family_id", "sha256", name=op.f("pk_workspace_contents")),
        comment="The contents of all snapshots of a family, and those that a run is about to save.",
    )
    op.create_index("ix_workspace_contents_sha256", "workspace_contents", ["sha256"])


def downgrade() -> None:
    for table in TABLES:
        op.drop_table(table)
    op.drop_column("runs", "workspace_json")
