"""attestations of versions, the keys that sign them, and statements about the keys of the registry

Revision: 0040, after 0039
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0040"
down_revision = "0039"
branch_labels = None
depends_on = None

MOMENT = sa.DateTime(timezone=True)
KEY = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
NAME = sa.String(length=255).with_variant(sa.String(length=255, collation="C"), "postgresql")
# The columns that never change. Of a purged version, the envelope is emptied: it may quote the removed files.
FIXED = {
    "signing_keys": "id, keyid, public_der, algorithm, holder, added_by, added_by_kind, added_at",
    "key_statements": "seq, envelope, sha256, previous",
    "attestations": "id, attestation, version_id, digest, predicate, predicate_type, key_id, made_by, made_by_kind, "
    "envelope, sha256, created_at",
}
EMPTIED = (
    "NEW.envelope = '' AND NEW.version_id = OLD.version_id AND NEW.sha256 = OLD.sha256 AND NEW.digest = OLD.digest "
    "AND EXISTS (SELECT 1 FROM skill_versions WHERE id = OLD.version_id AND status = 'purged')"
)
KEYS = {"signing_keys": ("id", "keyid"), "key_statements": ("seq",), "attestations": ("id", "attestation")}


def upgrade() -> None:
    op.create_table(
        "signing_keys",
        sa.Column("id", KEY, autoincrement=True, nullable=False),
        sa.Column("keyid", sa.String(length=71), nullable=False),
        sa.Column("public_der", sa.LargeBinary(), nullable=False),
        sa.Column("algorithm", sa.String(length=16), nullable=False),
        sa.Column("holder", sa.String(length=16), nullable=False),
        sa.Column("added_by", sa.String(length=255), nullable=False),
        sa.Column("added_by_kind", sa.String(length=16), nullable=False),
        sa.Column("added_at", MOMENT, nullable=False),
        sa.Column("retired_at", MOMENT, nullable=True),
        sa.Column("revoked_at", MOMENT, nullable=True),
        sa.Column("revoked_since", MOMENT, nullable=True),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.CheckConstraint("holder IN ('server', 'identity')", name=op.f("ck_signing_keys_holder")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_signing_keys")),
        sa.UniqueConstraint("keyid", name=op.f("uq_signing_keys_keyid")),
        comment="The public keys that sign attestations. Triggers keep keys as they were added.",
    )
    op.create_index("ix_signing_keys_added_by", "signing_keys", ["added_by", "id"])
    op.create_table(
        "key_statements",
        sa.Column("seq", KEY, autoincrement=False, nullable=False),
        sa.Column("envelope", sa.Text(), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("previous", sa.String(length=64), nullable=True),
        sa.PrimaryKeyConstraint("seq", name=op.f("pk_key_statements")),
        comment="The keys of the registry: each change is signed by the keys before. Triggers keep it append-only.",
    )
    op.create_table(
        "attestations",
        sa.Column("id", KEY, autoincrement=True, nullable=False),
        sa.Column("attestation", sa.String(length=32), nullable=False),
        sa.Column("version_id", KEY, nullable=False),
        sa.Column("digest", sa.String(length=71), nullable=False),
        sa.Column("predicate", sa.String(length=16), nullable=False),
        sa.Column("predicate_type", sa.String(length=255), nullable=False),
        sa.Column("key_id", KEY, nullable=False),
        sa.Column("made_by", sa.String(length=255), nullable=False),
        sa.Column("made_by_kind", sa.String(length=16), nullable=False),
        sa.Column("envelope", sa.Text(), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("created_at", MOMENT, nullable=False),
        sa.Column("ended_at", MOMENT, nullable=True),
        sa.Column("ended_by", NAME, nullable=True),
        sa.Column("ended_reason", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_attestations")),
        sa.ForeignKeyConstraint(
            ["version_id"], ["skill_versions.id"], name=op.f("fk_attestations_version_id_skill_versions")
        ),
        sa.ForeignKeyConstraint(["key_id"], ["signing_keys.id"], name=op.f("fk_attestations_key_id_signing_keys")),
        sa.UniqueConstraint("attestation", name=op.f("uq_attestations_attestation")),
        comment="Signed statements about versions. Triggers refuse other envelopes and deletions.",
    )
    op.create_index("ix_attestations_version", "attestations", ["version_id", "predicate"])
    op.create_index("ix_attestations_digest", "attestations", ["digest"])
    op.create_index("ix_attestations_sha256", "attestations", ["sha256"])
    for statement in _postgres() if op.get_bind().dialect.name == "postgresql" else _sqlite():
        op.execute(statement)


def downgrade() -> None:
    # Their triggers go with them.
    for table in ("attestations", "key_statements", "signing_keys"):
        op.drop_table(table)
        if op.get_bind().dialect.name == "postgresql":
            op.execute(f"DROP FUNCTION {table}_are_fixed()")


def _allowed(table: str) -> str:
    return EMPTIED if table == "attestations" else "FALSE"


def _sqlite() -> list[str]:
    statements = []
    for table, columns in FIXED.items():
        refuse = f"BEGIN SELECT RAISE(ABORT, '{table} are append-only'); END"
        # INSERT OR REPLACE deletes without asking the trigger for deletions.
        same = " OR ".join(f"{key} = NEW.{key}" for key in KEYS[table])
        exists = f"EXISTS (SELECT 1 FROM {table} WHERE {same})"  # noqa: S608 - constants
        statements += [
            f"CREATE TRIGGER {table}_no_update BEFORE UPDATE OF {columns} ON {table} "
            f"WHEN NOT ({_allowed(table)}) {refuse}",
            f"CREATE TRIGGER {table}_no_delete BEFORE DELETE ON {table} {refuse}",
            f"CREATE TRIGGER {table}_no_replace BEFORE INSERT ON {table} WHEN {exists} {refuse}",
        ]
    return statements


def _postgres() -> list[str]:
    statements = []
    for table, columns in FIXED.items():
        changed = " OR ".join(f"NEW.{name} IS DISTINCT FROM OLD.{name}" for name in columns.split(", "))
        call = f"EXECUTE FUNCTION {table}_are_fixed()"
        statements += [
            f"CREATE FUNCTION {table}_are_fixed() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
            f"IF TG_OP = 'UPDATE' THEN IF NOT ({changed}) OR ({_allowed(table)}) THEN RETURN NEW; END IF; END IF; "
            f"RAISE EXCEPTION '{table} are append-only'; END $$",
            f"CREATE TRIGGER {table}_no_change BEFORE UPDATE OR DELETE ON {table} FOR EACH ROW {call}",
            f"CREATE TRIGGER {table}_no_truncate BEFORE TRUNCATE ON {table} FOR EACH STATEMENT {call}",
        ]
    return statements
