"""The tables of tokens, values of backends (for example secrets) and secret grants."""

from __future__ import annotations

from sqlalchemy import CheckConstraint, Column, Index, LargeBinary, String, Table, Text

from skillery.database.tables.base import Moment, Name, metadata

tokens = Table(
    "tokens",
    metadata,
    # The public part of a token.
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

backend_values = Table(
    "backend_values",
    metadata,
    # `<kind>.<name>` of the backend, such as `secrets.database`.
    Column("backend", Name, primary_key=True),
    Column("key", Name, primary_key=True),
    Column("value", LargeBinary, nullable=False),
    Column("changed_at", Moment, nullable=False),
    # After this time, the value does not exist. None: the value never expires.
    Column("expires_at", Moment, nullable=True),
    comment="What a backend keeps, by `<kind>.<name>` of the backend: skillery.backends.Values.",
)
Index(
    "ix_backend_values_expired",
    backend_values.c.backend,
    backend_values.c.expires_at,
    postgresql_where=backend_values.c.expires_at.is_not(None),
    sqlite_where=backend_values.c.expires_at.is_not(None),
)

secret_grants = Table(
    "secret_grants",
    metadata,
    # No foreign key: another backend may keep the secret.
    Column("secret", Name, primary_key=True),
    # Name of a skill, or a namespace and `.*`.
    Column("grantee", Name, primary_key=True),
    Column("granted_by", String(255), nullable=False),
    Column("granted_at", Moment, nullable=False),
)
