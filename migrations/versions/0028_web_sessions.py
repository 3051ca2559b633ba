"""sessions of browsers

Revision: 0028, after 0027
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0028"
down_revision = "0027"
branch_labels = None
depends_on = None

MOMENT = sa.DateTime(timezone=True)


def upgrade() -> None:
    op.create_table(
        "web_sessions",
        sa.Column("hash", sa.LargeBinary(), nullable=False),
        sa.Column("identity", sa.String(length=255), nullable=False),
        sa.Column("authenticator", sa.String(length=255), nullable=False),
        sa.Column("token_id", sa.String(length=32), nullable=True),
        sa.Column("subject", sa.String(length=255), nullable=True),
        sa.Column("identity_json", sa.Text(), nullable=True),
        sa.Column("made_at", MOMENT, nullable=False),
        sa.Column("seen_at", MOMENT, nullable=False),
        sa.Column("ends_at", MOMENT, nullable=False),
        sa.CheckConstraint("(token_id IS NULL) <> (identity_json IS NULL)", name=op.f("ck_web_sessions_rights")),
        sa.ForeignKeyConstraint(["token_id"], ["tokens.id"], name=op.f("fk_web_sessions_token_id_tokens")),
        sa.PrimaryKeyConstraint("hash", name=op.f("pk_web_sessions")),
        comment="Sessions of browsers. The cookie has the secret, and the row has its SHA-256.",
    )
    op.create_index("ix_web_sessions_identity", "web_sessions", ["identity", "seen_at"])
    op.create_index("ix_web_sessions_token", "web_sessions", ["token_id"])


def downgrade() -> None:
    op.drop_table("web_sessions")
