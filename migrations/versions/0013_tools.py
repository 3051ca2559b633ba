"""the tools that versions offer, tools of a session, and which tool a run called

Revision: 0013, after 0012
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None

NAME = sa.String(length=255).with_variant(sa.String(length=255, collation="C"), "postgresql")
IS_OFFERED = "offered_since IS NOT NULL"
REBUILD = sa.text(
    "INSERT INTO registry (key, value) SELECT 'rebuild', :value WHERE EXISTS (SELECT 1 FROM skills) "
    "ON CONFLICT (key) DO NOTHING"
)


def key() -> sa.types.TypeEngine[int]:
    return sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.add_column("skill_versions", sa.Column("made_by", sa.String(length=16), nullable=True))
    op.add_column("runs", sa.Column("tool", NAME, nullable=True))
    op.create_table(
        "tools",
        sa.Column("version_id", key(), nullable=False),
        sa.Column("name", NAME, nullable=False),
        sa.Column("skill_id", key(), nullable=False),
        sa.Column("skill", NAME, nullable=False),
        sa.Column("script", sa.Text(), nullable=True),
        sa.Column("item_json", sa.Text(), nullable=False),
        sa.Column("offered_since", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(["version_id"], ["skill_versions.id"], name=op.f("fk_tools_version_id_skill_versions")),
        sa.ForeignKeyConstraint(["skill_id"], ["skills.id"], name=op.f("fk_tools_skill_id_skills")),
        sa.PrimaryKeyConstraint("version_id", "name", name=op.f("pk_tools")),
        comment="The tools that versions offer by their tools.json.",
    )
    offered = sa.text(IS_OFFERED)
    for name, columns in (("listing", ["skill", "name"]), ("name", ["name", "offered_since", "version_id"])):
        op.create_index(f"ix_tools_{name}", "tools", columns, postgresql_where=offered, sqlite_where=offered)
    op.create_index("ix_tools_skill", "tools", ["skill_id"])
    op.create_table(
        "session_tools",
        sa.Column("identity", sa.String(length=255), nullable=False),
        sa.Column("session", NAME, nullable=False),
        sa.Column("name", NAME, nullable=False),
        sa.Column("script", sa.Text(), nullable=False),
        sa.Column("content", sa.Text(), nullable=False),
        sa.Column("item_json", sa.Text(), nullable=False),
        sa.Column("defined_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("identity", "session", "name", name=op.f("pk_session_tools")),
        comment="Tools that live for an identity and its session, made by define_tool.",
    )
    op.create_index("ix_session_tools_expires_at", "session_tools", ["expires_at"])
    # The server computes the rows when it starts.
    op.get_bind().execute(REBUILD, {"value": b""})


def downgrade() -> None:
    op.drop_table("session_tools")
    op.drop_table("tools")
    op.drop_column("runs", "tool")
    op.drop_column("skill_versions", "made_by")
