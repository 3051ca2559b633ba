"""seals of runs, attestations and audit entries, and the evidence of runs

Revision: 0043, after 0042
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0043"
down_revision = "0042"
branch_labels = None
depends_on = None

KEY = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
FIXED = ("seq", "at", "previous", "sha256", "envelope", "batch")


def upgrade() -> None:
    op.add_column("runs", sa.Column("evidence_json", sa.Text(), nullable=True))
    op.add_column("runs", sa.Column("seal_batch", sa.BigInteger(), nullable=True))
    _partial_index("ix_runs_seal_batch", "runs", "seal_batch", "seal_batch IS NOT NULL")
    op.add_column("attestations", sa.Column("seal_seq", KEY, nullable=True))
    _partial_index("ix_attestations_unsealed", "attestations", "id", "seal_seq IS NULL")
    op.create_table(
        "seals",
        sa.Column("seq", KEY, autoincrement=False, nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("previous", sa.String(length=64), nullable=True),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("envelope", sa.Text(), nullable=False),
        sa.Column("batch", sa.BigInteger(), nullable=True),
        sa.Column("run_leaves", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("seq", name=op.f("pk_seals")),
        sa.UniqueConstraint("batch", name=op.f("uq_seals_batch")),
        comment="One chain of signed seals over runs, attestations and audit entries. Triggers keep it append-only.",
    )
    op.create_index("ix_seals_at", "seals", ["at"])
    op.create_table(
        "seal_spans",
        sa.Column("id", KEY, autoincrement=False, nullable=False),
        sa.Column("server", sa.String(length=64), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_seal_spans")),
        comment="Processes whose last batch of runs is not sealed. If a process dies, another one seals its batches.",
    )
    for statement in _postgres() if op.get_bind().dialect.name == "postgresql" else _sqlite():
        op.execute(statement)


def downgrade() -> None:
    op.drop_table("seal_spans")
    op.drop_table("seals")  # its triggers go with it
    if op.get_bind().dialect.name == "postgresql":
        op.execute("DROP FUNCTION seals_are_fixed()")
    op.drop_index("ix_attestations_unsealed", "attestations")
    op.drop_column("attestations", "seal_seq")
    op.drop_index("ix_runs_seal_batch", "runs")
    op.drop_column("runs", "seal_batch")
    op.drop_column("runs", "evidence_json")


def _partial_index(name: str, table: str, column: str, condition: str) -> None:
    where = sa.text(condition)
    op.create_index(name, table, [column], postgresql_where=where, sqlite_where=where)


def _sqlite() -> list[str]:
    refuse = "BEGIN SELECT RAISE(ABORT, 'seals are append-only'); END"
    # INSERT OR REPLACE deletes without asking the trigger for deletions.
    exists = "EXISTS (SELECT 1 FROM seals WHERE seq = NEW.seq OR batch = NEW.batch)"
    return [
        f"CREATE TRIGGER seals_no_update BEFORE UPDATE OF {', '.join(FIXED)} ON seals {refuse}",
        f"CREATE TRIGGER seals_no_leaves BEFORE UPDATE OF run_leaves ON seals WHEN length(NEW.run_leaves) > 0 {refuse}",
        f"CREATE TRIGGER seals_no_delete BEFORE DELETE ON seals {refuse}",
        f"CREATE TRIGGER seals_no_replace BEFORE INSERT ON seals WHEN {exists} {refuse}",
    ]


def _postgres() -> list[str]:
    changed = " OR ".join(f"NEW.{name} IS DISTINCT FROM OLD.{name}" for name in FIXED)
    call = "EXECUTE FUNCTION seals_are_fixed()"
    return [
        "CREATE FUNCTION seals_are_fixed() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        f"IF TG_OP = 'UPDATE' THEN IF NOT ({changed}) AND length(NEW.run_leaves) = 0 THEN RETURN NEW; END IF; END IF; "
        "RAISE EXCEPTION 'seals are append-only'; END $$",
        f"CREATE TRIGGER seals_no_change BEFORE UPDATE OR DELETE ON seals FOR EACH ROW {call}",
        f"CREATE TRIGGER seals_no_truncate BEFORE TRUNCATE ON seals FOR EACH STATEMENT {call}",
    ]
