"""events, webhooks and dead letters

Revision: 0027, after 0026
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0027"
down_revision = "0026"
branch_labels = None
depends_on = None

MOMENT = sa.DateTime(timezone=True)
KEY = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
NAME = sa.String(length=255).with_variant(sa.String(length=255, collation="C"), "postgresql")
TABLES = ("dead_letters", "event_readers", "webhooks", "events")


def upgrade() -> None:
    op.create_table(
        "events",
        sa.Column("seq", KEY, nullable=False),
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("type", sa.String(length=32), nullable=False),
        sa.Column("skill", NAME, nullable=True),
        sa.Column("created_at", MOMENT, nullable=False),
        sa.Column("data_json", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("seq", name=op.f("pk_events")),
        comment="Outbox: events that webhooks and plugins get.",
    )
    op.create_table(
        "webhooks",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("url", sa.Text(), nullable=False),
        sa.Column("secret", sa.Text(), nullable=False),
        sa.Column("events_json", sa.Text(), nullable=False),
        sa.Column("skills_json", sa.Text(), nullable=False),
        sa.Column("created_by", sa.String(length=255), nullable=False),
        sa.Column("created_at", MOMENT, nullable=False),
        sa.Column("position", sa.BigInteger(), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("failing_since", MOMENT, nullable=True),
        sa.Column("next_at", MOMENT, nullable=False),
        sa.Column("last_error", sa.Text(), nullable=True),
        sa.Column("delivered", sa.BigInteger(), nullable=False),
        sa.Column("delivered_at", MOMENT, nullable=True),
        sa.Column("gone_at", MOMENT, nullable=True),
        sa.Column("server", sa.String(length=64), nullable=True),
        sa.Column("holder", sa.String(length=32), nullable=True),
        sa.Column("leased_until", MOMENT, nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_webhooks")),
    )
    op.create_table(
        "event_readers",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("position", sa.BigInteger(), nullable=False),
        sa.Column("server", sa.String(length=64), nullable=True),
        sa.Column("holder", sa.String(length=32), nullable=True),
        sa.Column("leased_until", MOMENT, nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_event_readers")),
        comment="How far the hook `events` of the plugins has read the outbox.",
    )
    op.create_table(
        "dead_letters",
        sa.Column("id", KEY, nullable=False),
        sa.Column("webhook_id", sa.String(length=64), nullable=False),
        sa.Column("event_id", sa.String(length=64), nullable=False),
        sa.Column("type", sa.String(length=32), nullable=False),
        sa.Column("skill", NAME, nullable=True),
        sa.Column("event_at", MOMENT, nullable=False),
        sa.Column("data_json", sa.Text(), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("error", sa.Text(), nullable=False),
        sa.Column("died_at", MOMENT, nullable=False),
        sa.ForeignKeyConstraint(["webhook_id"], ["webhooks.id"], name=op.f("fk_dead_letters_webhook_id_webhooks")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_dead_letters")),
    )
    op.create_index("ix_dead_letters_webhook", "dead_letters", ["webhook_id", "id"])


def downgrade() -> None:
    for table in TABLES:
        op.drop_table(table)
