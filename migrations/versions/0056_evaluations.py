"""evaluations of versions, and their trials

Revision: 0056, after 0055
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0056"
down_revision = "0055"
branch_labels = None
depends_on = None

KEY = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
NAME = sa.String(255).with_variant(sa.String(255, collation="C"), "postgresql")
MOMENT = sa.DateTime(timezone=True)
STATES = "state IN ('queued', 'running', 'done', 'stopped', 'failed', 'cancelled')"
ACTIVE = sa.text("state IN ('queued', 'running')")


def upgrade() -> None:
    op.create_table(
        "evaluations",
        sa.Column("id", KEY, autoincrement=True, nullable=False),
        sa.Column("evaluation", sa.String(32), nullable=False),
        sa.Column("version_id", KEY, nullable=False),
        sa.Column("suite", sa.String(512), nullable=False),
        sa.Column("suite_digest", sa.String(71), nullable=False),
        sa.Column("kinds", sa.String(64), nullable=False),
        sa.Column("model_json", sa.Text(), nullable=True),
        sa.Column("trials", sa.Integer(), nullable=False),
        sa.Column("before_id", KEY, nullable=True),
        sa.Column("identity", NAME, nullable=False),
        sa.Column("identity_kind", sa.String(16), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("budget", sa.Float(), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("summary_json", sa.Text(), nullable=True),
        sa.Column("sha256", sa.String(64), nullable=True),
        sa.Column("created_at", MOMENT, nullable=False),
        sa.Column("ended_at", MOMENT, nullable=True),
        sa.ForeignKeyConstraint(
            ["version_id"], ["skill_versions.id"], name=op.f("fk_evaluations_version_id_skill_versions")
        ),
        sa.ForeignKeyConstraint(
            ["before_id"], ["skill_versions.id"], name=op.f("fk_evaluations_before_id_skill_versions")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_evaluations")),
        sa.UniqueConstraint("evaluation", name=op.f("uq_evaluations_evaluation")),
        sa.CheckConstraint(STATES, name=op.f("ck_evaluations_state")),
        comment="Evaluations of versions.",
    )
    op.create_index("ix_evaluations_version", "evaluations", ["version_id", "id"])
    op.create_index("ix_evaluations_active", "evaluations", ["id"], postgresql_where=ACTIVE, sqlite_where=ACTIVE)
    op.create_table(
        "eval_trials",
        sa.Column("id", KEY, autoincrement=True, nullable=False),
        sa.Column("evaluation_id", KEY, nullable=False),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("case_id", sa.String(512), nullable=False),
        sa.Column("arm", sa.String(16), nullable=False),
        sa.Column("trial", sa.Integer(), nullable=False),
        sa.Column("is_done", sa.Boolean(), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("result_json", sa.Text(), nullable=True),
        sa.Column("cost", sa.Float(), nullable=False),
        sa.Column("server", sa.String(64), nullable=True),
        sa.Column("holder", sa.String(32), nullable=True),
        sa.Column("leased_until", MOMENT, nullable=True),
        sa.ForeignKeyConstraint(
            ["evaluation_id"], ["evaluations.id"], name=op.f("fk_eval_trials_evaluation_id_evaluations")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_eval_trials")),
        sa.UniqueConstraint(
            "evaluation_id", "kind", "case_id", "arm", "trial",
            name=op.f("uq_eval_trials_evaluation_id_kind_case_id_arm_trial"),
        ),
        comment="The trials of the cases of evaluations.",
    )  # fmt: skip


def downgrade() -> None:
    op.drop_table("eval_trials")
    op.drop_table("evaluations")
