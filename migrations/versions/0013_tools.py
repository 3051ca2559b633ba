"""the tools that versions offer, tools of a session, and which tool a run called

Revision: 0013, after 0012
"""

from __future__ import annotations

import json
from typing import Any

import sqlalchemy as sa
from alembic import op

from skillery.formats.tools import read_tools

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None

NAME = sa.String(length=255).with_variant(sa.String(length=255, collation="C"), "postgresql")
IS_OFFERED = "offered_since IS NOT NULL"
BATCH = 200


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
    _read_what_is_there()


def downgrade() -> None:
    op.drop_table("session_tools")
    op.drop_table("tools")
    op.drop_column("runs", "tool")
    op.drop_column("skill_versions", "made_by")


def _read_what_is_there() -> None:
    """The tools of versions that were published when a tools.json was any file: what breaks a rule is left out, for
    nobody could be told. One over 64 KiB lies in the storage, where no migration looks. What is immutable about a
    version stays, its kind too."""
    connection = op.get_bind()
    last = 0
    while True:
        rows = connection.execute(
            sa.text(
                "SELECT v.id, v.skill_id, s.name, v.version, v.summary_json, o.data, "
                "CASE WHEN s.latest_version_id = v.id THEN coalesce((SELECT max(p.created_at) FROM version_steps p "
                "WHERE p.version_id = v.id AND p.step = 'approve'), v.created_at) END AS offered_since "
                "FROM skill_files f JOIN skill_versions v ON v.id = f.version_id "
                "JOIN skills s ON s.id = v.skill_id JOIN objects o ON o.sha256 = f.sha256 "
                "WHERE f.path = 'tools.json' AND o.data IS NOT NULL AND v.id > :last ORDER BY v.id LIMIT :batch"
            ),
            {"last": last, "batch": BATCH},
        ).all()
        if not rows:
            return
        last = rows[-1].id
        for row in rows:
            _read_one(connection, row)


def _read_one(connection: sa.Connection, row: Any) -> None:
    paths = connection.scalars(sa.text("SELECT path FROM skill_files WHERE version_id = :id"), {"id": row.id})
    found = read_tools(bytes(row.data), frozenset(paths)).tools
    for tool in found:
        item = {
            "name": tool.name,
            "skill": row.name,
            "version": row.version,
            "description": tool.description,
            "parameters": tool.declared,
        }
        connection.execute(
            sa.text(
                "INSERT INTO tools (version_id, name, skill_id, skill, script, item_json, offered_since) "
                "VALUES (:version_id, :name, :skill_id, :skill, :script, :item_json, :offered_since)"
            ),
            {
                "version_id": row.id,
                "name": tool.name,
                "skill_id": row.skill_id,
                "skill": row.name,
                "script": tool.script,
                "item_json": json.dumps(item, ensure_ascii=False, separators=(",", ":")),
                "offered_since": row.offered_since,
            },
        )
    if found:
        summary = json.loads(row.summary_json) | {"tools": [tool.name for tool in found]}
        connection.execute(
            sa.text("UPDATE skill_versions SET summary_json = :summary WHERE id = :id"),
            {"id": row.id, "summary": json.dumps(summary, ensure_ascii=False, separators=(",", ":"))},
        )
