"""Tokens, secrets and secret grants."""

from __future__ import annotations

from sqlalchemy import CheckConstraint, Column, Index, LargeBinary, String, Table, Text

from skillery.database.tables.base import Moment, Name, metadata

tokens = Table(
    "tokens",
    metadata,
    # The part of a token that is no secret.
    Column("id", String(32), primary_key=True),
    Column("name", String(255), nullable=False),
    Column("kind", String(16), nullable=False),
    # SHA-256 of the whole token.
    Column("hash", LargeBinary, nullable=False),
    Column("scopes_json", Text, nullable=False),
    Column("namespaces_json", Text, nullable=False),
    Column("created_at", Moment, nullable=False),
    Column("created_by", String(255), nullable=False),
    Column("expires_at", Moment, nullable=True),
    Column("revoked_at", Moment, nullable=True),
    Column("last_used_at", Moment, nullable=True),
    CheckConstraint("kind IN ('person', 'agent')", name="kind"),
)
Index("ix_tokens_name", tokens.c.name)

secrets = Table(
    "secrets",
    metadata,
    Column("name", Name, primary_key=True),
    # Encrypted, its name inside: skillery.builtin.database_secrets.
    Column("token", LargeBinary, nullable=False),
    Column("changed_at", Moment, nullable=False),
)

secret_grants = Table(
    "secret_grants",
    metadata,
    # No foreign key: a secret may lie with another backend.
    Column("secret", Name, primary_key=True),
    # A skill's name, or a namespace and `.*`.
    Column("grantee", Name, primary_key=True),
    Column("granted_by", String(255), nullable=False),
    Column("granted_at", Moment, nullable=False),
)
