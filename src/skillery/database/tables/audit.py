"""The tables of the audit trail and of legal holds."""

from __future__ import annotations

from sqlalchemy import CheckConstraint, Column, Index, Integer, String, Table, Text, UniqueConstraint

from skillery.database.tables.base import Key, Moment, Name, metadata

audit = Table(
    "audit",
    metadata,
    # 1, 2, 3 …, without a gap.
    Column("seq", Key, primary_key=True, autoincrement=False),
    # UTC with microseconds, stored as the text that is hashed.
    Column("at", Name, nullable=False),
    # None: the caller is unknown.
    Column("identity", Name, nullable=True),
    Column("identity_kind", String(16), nullable=True),
    Column("address", String(255), nullable=True),
    Column("request_id", String(255), nullable=True),
    Column("action", Name, nullable=False),
    Column("subject", Name, nullable=False),
    Column("outcome", String(16), nullable=False),
    # The code and the type of the error of a refused attempt.
    Column("code", Integer, nullable=True),
    Column("error_type", String(64), nullable=True),
    # Number of attempts that the entry stands for.
    Column("count", Integer, nullable=False),
    Column("before_json", Text, nullable=True),
    Column("after_json", Text, nullable=True),
    # The hash of the previous entry, and the hash of this entry, which covers `previous` too: skillery.audit.
    Column("previous", String(64), nullable=False),
    Column("hash", String(64), nullable=False),
    CheckConstraint("outcome IN ('done', 'refused')", name="outcome"),
    comment="Every change and every refused attempt. Triggers keep it append-only.",
)
Index("ix_audit_identity", audit.c.identity, audit.c.seq)
Index("ix_audit_action", audit.c.action, audit.c.seq)
Index("ix_audit_subject", audit.c.subject, audit.c.seq)
Index("ix_audit_at", audit.c.at, audit.c.seq)

audit_head = Table(
    "audit_head",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("seq", Key, nullable=False),
    Column("hash", String(64), nullable=False),
    CheckConstraint("id = 1", name="one_row"),
    comment="The last entry of the audit trail: who adds one holds this row.",
)

holds = Table(
    "holds",
    metadata,
    Column("id", Key, primary_key=True, autoincrement=True),
    # Public id.
    Column("hold", String(32), nullable=False),
    Column("kind", String(16), nullable=False),
    # The name of the skill or identity, or the id of the run.
    Column("name", Name, nullable=False),
    Column("reason", Text, nullable=False),
    Column("identity", Name, nullable=False),
    Column("identity_kind", String(16), nullable=False),
    Column("created_at", Moment, nullable=False),
    # None: no end.
    Column("until", Moment, nullable=True),
    Column("removed_at", Moment, nullable=True),
    Column("removed_by", Name, nullable=True),
    Column("removed_reason", Text, nullable=True),
    UniqueConstraint("hold"),
    CheckConstraint("kind IN ('skill', 'identity', 'run')", name="kind"),
    comment="What retention and purges must keep, and why.",
)
Index("ix_holds_kind", holds.c.kind, holds.c.name)
