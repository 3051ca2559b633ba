"""the audit trail, append-only by triggers, and its head

Revision: 0011, after 0010
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

IS_THERE = "EXISTS (SELECT 1 FROM audit WHERE seq = NEW.seq)"
REFUSAL = "the audit trail is append-only"


def key() -> sa.types.TypeEngine[int]:
    return sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def name() -> sa.types.TypeEngine[str]:
    return sa.String(length=255).with_variant(sa.String(length=255, collation="C"), "postgresql")


def upgrade() -> None:
    op.create_table(
        "audit",
        sa.Column("seq", key(), autoincrement=False, nullable=False),
        sa.Column("at", name(), nullable=False),
        sa.Column("identity", name(), nullable=True),
        sa.Column("identity_kind", sa.String(length=16), nullable=True),
        sa.Column("address", sa.String(length=255), nullable=True),
        sa.Column("request_id", sa.String(length=255), nullable=True),
        sa.Column("action", name(), nullable=False),
        sa.Column("subject", name(), nullable=False),
        sa.Column("outcome", sa.String(length=16), nullable=False),
        sa.Column("code", sa.Integer(), nullable=True),
        sa.Column("error_type", sa.String(length=64), nullable=True),
        sa.Column("count", sa.Integer(), nullable=False),
        sa.Column("before_json", sa.Text(), nullable=True),
        sa.Column("after_json", sa.Text(), nullable=True),
        sa.Column("previous", sa.String(length=64), nullable=False),
        sa.Column("hash", sa.String(length=64), nullable=False),
        sa.CheckConstraint("outcome IN ('done', 'refused')", name=op.f("ck_audit_outcome")),
        sa.PrimaryKeyConstraint("seq", name=op.f("pk_audit")),
        comment="Every change and every refused attempt. Triggers keep it append-only.",
    )
    for column in ("identity", "action", "subject", "at"):
        op.create_index(f"ix_audit_{column}", "audit", [column, "seq"])
    head = op.create_table(
        "audit_head",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("seq", key(), nullable=False),
        sa.Column("hash", sa.String(length=64), nullable=False),
        sa.CheckConstraint("id = 1", name=op.f("ck_audit_head_one_row")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_audit_head")),
        comment="The last entry of the audit trail: who adds one holds this row.",
    )
    op.bulk_insert(head, [{"id": 1, "seq": 0, "hash": "0" * 64}])
    for statement in _postgres() if op.get_bind().dialect.name == "postgresql" else _sqlite():
        op.execute(statement)


def downgrade() -> None:
    # Its triggers go with it.
    op.drop_table("audit_head")
    op.drop_table("audit")
    if op.get_bind().dialect.name == "postgresql":
        op.execute("DROP FUNCTION audit_is_append_only()")


def _sqlite() -> list[str]:
    refuse = f"BEGIN SELECT RAISE(ABORT, '{REFUSAL}'); END"
    return [
        f"CREATE TRIGGER audit_no_update BEFORE UPDATE ON audit {refuse}",
        f"CREATE TRIGGER audit_no_delete BEFORE DELETE ON audit {refuse}",
        # INSERT OR REPLACE deletes without asking the trigger above.
        f"CREATE TRIGGER audit_no_replace BEFORE INSERT ON audit WHEN {IS_THERE} {refuse}",
        f"CREATE TRIGGER audit_head_no_delete BEFORE DELETE ON audit_head {refuse}",
    ]


def _postgres() -> list[str]:
    call = "EXECUTE FUNCTION audit_is_append_only()"
    return [
        "CREATE FUNCTION audit_is_append_only() RETURNS trigger LANGUAGE plpgsql AS "
        f"$$ BEGIN RAISE EXCEPTION '{REFUSAL}'; END $$",
        f"CREATE TRIGGER audit_no_change BEFORE UPDATE OR DELETE ON audit FOR EACH ROW {call}",
        f"CREATE TRIGGER audit_no_truncate BEFORE TRUNCATE ON audit FOR EACH STATEMENT {call}",
        f"CREATE TRIGGER audit_head_no_delete BEFORE DELETE ON audit_head FOR EACH ROW {call}",
        f"CREATE TRIGGER audit_head_no_truncate BEFORE TRUNCATE ON audit_head FOR EACH STATEMENT {call}",
    ]
