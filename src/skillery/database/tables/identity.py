"""The tables of tokens, trust rules, sessions of browsers, values of backends (such as secrets) and secret grants."""

from __future__ import annotations

from sqlalchemy import CheckConstraint, Column, ForeignKey, Index, LargeBinary, String, Table, Text

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
    # For a token of a CI job: the trust rule, and skillery.backends.Provenance. No foreign key: the revoked token of a
    # removed rule stays until a sweep.
    Column("trust_rule_id", String(64), nullable=True),
    Column("provenance_json", Text, nullable=True),
    CheckConstraint("kind IN ('person', 'agent')", name="kind"),
)
Index("ix_tokens_name", tokens.c.name)
Index(
    "ix_tokens_trust_rule",
    tokens.c.trust_rule_id,
    postgresql_where=tokens.c.trust_rule_id.is_not(None),
    sqlite_where=tokens.c.trust_rule_id.is_not(None),
)

trust_rules = Table(
    "trust_rules",
    metadata,
    Column("id", String(64), primary_key=True),
    # Name of a skill, or a namespace and `.*`.
    Column("target", Name, nullable=False),
    Column("provider", String(16), nullable=False),
    Column("issuer", Text, nullable=False),
    # The claims that a token must have, as a JSON object of texts.
    Column("claims_json", Text, nullable=False),
    Column("kind", String(16), nullable=False),
    Column("created_by", String(255), nullable=False),
    Column("created_at", Moment, nullable=False),
    Column("last_used_at", Moment, nullable=True),
    CheckConstraint("kind IN ('person', 'agent')", name="kind"),
    comment="Which CI jobs may publish which skills: skillery.trust.",
)

exchanged_tokens = Table(
    "exchanged_tokens",
    metadata,
    # SHA-256 of the issuer and of the token's `jti`, or of all claims if there is no `jti`.
    Column("digest", String(64), primary_key=True),
    # After this time, the token is too old to be exchanged.
    Column("expires_at", Moment, nullable=False),
    comment="Tokens of CI jobs that were exchanged, so that each is exchanged only once.",
)
Index("ix_exchanged_tokens_expires", exchanged_tokens.c.expires_at)

web_sessions = Table(
    "web_sessions",
    metadata,
    # SHA-256 of the secret in the cookie.
    Column("hash", LargeBinary, primary_key=True),
    Column("identity", String(255), nullable=False),
    # The authenticator that has signed the browser in.
    Column("authenticator", String(255), nullable=False),
    # The token whose rights the session has. None: `identity_json` has the rights.
    Column("token_id", String(32), ForeignKey("tokens.id"), nullable=True),
    # The user at the identity provider.
    Column("subject", String(255), nullable=True),
    Column("identity_json", Text, nullable=True),
    Column("made_at", Moment, nullable=False),
    # The last use, with an accuracy of a minute.
    Column("seen_at", Moment, nullable=False),
    # The session ends at this time, or earlier: with its token, or if it is not used.
    Column("ends_at", Moment, nullable=False),
    CheckConstraint("(token_id IS NULL) <> (identity_json IS NULL)", name="rights"),
    comment="Sessions of browsers. The cookie has the secret, and the row has its SHA-256.",
)
Index("ix_web_sessions_identity", web_sessions.c.identity, web_sessions.c.seen_at)
Index("ix_web_sessions_token", web_sessions.c.token_id)

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
