"""trust rules, exchanged tokens, and the provenance of tokens and versions

Revision: 0029, after 0028
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0029"
down_revision = "0028"
branch_labels = None
depends_on = None

MOMENT = sa.DateTime(timezone=True)
NAME = sa.String(length=255).with_variant(sa.String(length=255, collation="C"), "postgresql")
OF_RULE = sa.text("trust_rule_id IS NOT NULL")


def upgrade() -> None:
    op.create_table(
        "trust_rules",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("target", NAME, nullable=False),
        sa.Column("provider", sa.String(length=16), nullable=False),
        sa.Column("issuer", sa.Text(), nullable=False),
        sa.Column("claims_json", sa.Text(), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("created_by", sa.String(length=255), nullable=False),
        sa.Column("created_at", MOMENT, nullable=False),
        sa.Column("last_used_at", MOMENT, nullable=True),
        sa.CheckConstraint("kind IN ('person', 'agent')", name=op.f("ck_trust_rules_kind")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_trust_rules")),
        comment="Which CI jobs may publish which skills: skillery.trust.",
    )
    op.create_table(
        "exchanged_tokens",
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("expires_at", MOMENT, nullable=False),
        sa.PrimaryKeyConstraint("digest", name=op.f("pk_exchanged_tokens")),
        comment="Tokens of CI jobs that were exchanged, so that each is exchanged only once.",
    )
    op.create_index("ix_exchanged_tokens_expires", "exchanged_tokens", ["expires_at"])
    op.add_column("tokens", sa.Column("trust_rule_id", sa.String(length=64), nullable=True))
    op.add_column("tokens", sa.Column("provenance_json", sa.Text(), nullable=True))
    op.create_index("ix_tokens_trust_rule", "tokens", ["trust_rule_id"], postgresql_where=OF_RULE, sqlite_where=OF_RULE)
    op.add_column("skill_versions", sa.Column("provenance_json", sa.Text(), nullable=True))


def downgrade() -> None:
    op.drop_column("skill_versions", "provenance_json")
    op.drop_index("ix_tokens_trust_rule", table_name="tokens")
    op.drop_column("tokens", "provenance_json")
    op.drop_column("tokens", "trust_rule_id")
    op.drop_table("exchanged_tokens")
    op.drop_table("trust_rules")
