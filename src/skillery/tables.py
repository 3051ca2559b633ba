"""The tables, for both databases. docs/architecture.md says why each column is there."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    DateTime,
    Float,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
    text,
)

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
        "pk": "pk_%(table_name)s",
    }
)

# Names are compared and sorted by their bytes on both databases, whatever the locale of the cluster.
Name = String(255).with_variant(String(255, collation="C"), "postgresql")
# A 64-bit key on Postgres; on SQLite only INTEGER makes the primary key the row id.
Key = BigInteger().with_variant(Integer(), "sqlite")
Moment = DateTime(timezone=True)

registry = Table(
    "registry",
    metadata,
    Column("key", String(64), primary_key=True),
    Column("value", LargeBinary, nullable=False),
    comment="What belongs to the registry as a whole: the key that signs cursors.",
)

skills = Table(
    "skills",
    metadata,
    Column("id", Key, primary_key=True, autoincrement=True),
    Column("name", Name, nullable=False),
    # Of the latest version: what list_skills sorts and filters by.
    Column("namespace", Name, nullable=False, server_default=""),
    # Kept in the transaction that publishes; None while nothing is there to resolve to.
    Column("latest_version_id", Key, nullable=True),
    Column("created_at", Moment, nullable=False),
    # public, namespace or private: skillery.registry.seeing.
    Column("visibility", String(16), nullable=False, server_default="public"),
    UniqueConstraint("name"),
)
Index(
    "ix_skills_listing",
    skills.c.namespace,
    skills.c.name,
    skills.c.latest_version_id,
    postgresql_where=skills.c.latest_version_id.is_not(None),
    sqlite_where=skills.c.latest_version_id.is_not(None),
)
# The same for whom something may be hidden: skillery.registry.seeing.
Index(
    "ix_skills_seen_listing",
    skills.c.visibility,
    skills.c.namespace,
    skills.c.name,
    skills.c.latest_version_id,
    postgresql_where=skills.c.latest_version_id.is_not(None),
    sqlite_where=skills.c.latest_version_id.is_not(None),
)
Index(
    "ix_skills_seen_names",
    skills.c.visibility,
    skills.c.name,
    postgresql_where=skills.c.latest_version_id.is_not(None),
    sqlite_where=skills.c.latest_version_id.is_not(None),
)

skill_versions = Table(
    "skill_versions",
    metadata,
    Column("id", Key, primary_key=True, autoincrement=True),
    Column("skill_id", Key, ForeignKey("skills.id"), nullable=False),
    Column("version", Text, nullable=False),
    # SemVer order as an order of bytes: skillery.formats.semver.
    Column("precedence", LargeBinary, nullable=False),
    Column("is_release", Boolean, nullable=False),
    Column("status", String(16), nullable=False),
    Column("kind", String(16), nullable=False),
    Column("namespace", Name, nullable=False),
    Column("digest", String(71), nullable=False),
    Column("size_bytes", BigInteger, nullable=False),
    # Immutable answers, stored ready to send.
    Column("manifest_json", Text, nullable=False),
    Column("frontmatter_json", Text, nullable=False),
    Column("warnings_json", Text, nullable=False),
    Column("names_json", Text, nullable=False),
    Column("summary_json", Text, nullable=False),
    Column("publisher", String(255), nullable=False),
    Column("publisher_kind", String(16), nullable=False, server_default="person"),
    Column("created_at", Moment, nullable=False),
    # What describe_skill says beside the status, by key: approval, rejected, yanked, deprecated. None: nothing.
    Column("standing_json", Text, nullable=True),
    # Versions that differ only in build metadata are one version.
    UniqueConstraint("skill_id", "precedence"),
    CheckConstraint("status IN ('draft', 'in_review', 'published', 'deprecated', 'yanked', 'rejected')", name="status"),
    CheckConstraint("kind IN ('action', 'instruction')", name="kind"),
)
RESOLVABLE = ("published", "deprecated")
_is_resolvable_literal = text("status IN ('published', 'deprecated')")
Index(
    "ix_skill_versions_resolve",
    skill_versions.c.skill_id,
    skill_versions.c.is_release,
    skill_versions.c.precedence,
    postgresql_where=_is_resolvable_literal,
    sqlite_where=_is_resolvable_literal,
)
Index("ix_skill_versions_digest", skill_versions.c.skill_id, skill_versions.c.digest)
# Whose private skills these are.
Index("ix_skill_versions_publisher", skill_versions.c.publisher, skill_versions.c.skill_id)

version_steps = Table(
    "version_steps",
    metadata,
    Column("id", Key, primary_key=True, autoincrement=True),
    Column("version_id", Key, ForeignKey("skill_versions.id"), nullable=False),
    Column("step", String(16), nullable=False),
    # After the step.
    Column("status", String(16), nullable=False),
    # Of what the step was about: an approval holds for these contents and no others.
    Column("digest", String(71), nullable=False),
    Column("identity", String(255), nullable=False),
    Column("identity_kind", String(16), nullable=False),
    # The reason, the note or the message that was given with it.
    Column("note", Text, nullable=False),
    Column("created_at", Moment, nullable=False),
    comment="Who took a version from one status to another, when and why.",
)
Index("ix_version_steps_version", version_steps.c.version_id, version_steps.c.id)

objects = Table(
    "objects",
    metadata,
    Column("sha256", String(64), primary_key=True),
    Column("size_bytes", BigInteger, nullable=False),
    # The content itself up to 64 KiB; None where the storage backend has it.
    Column("data", LargeBinary, nullable=True),
    comment="Contents by digest: files of skills and blobs alike.",
)

skill_files = Table(
    "skill_files",
    metadata,
    Column("version_id", Key, ForeignKey("skill_versions.id"), primary_key=True),
    Column("path", Name, primary_key=True),
    Column("sha256", String(64), ForeignKey("objects.sha256"), nullable=False),
    Column("size_bytes", BigInteger, nullable=False),
    Column("executable", Boolean, nullable=False),
)
Index("ix_skill_files_sha256", skill_files.c.sha256)

runs = Table(
    "runs",
    metadata,
    Column("id", String(64), primary_key=True),
    # The run whose code called this one. Without a foreign key: SQLite could not drop the column again.
    Column("parent_run_id", String(64), nullable=True),
    Column("method", String(16), nullable=False),
    Column("version_id", Key, ForeignKey("skill_versions.id"), nullable=True),
    Column("status", String(16), nullable=False),
    Column("identity", String(255), nullable=False),
    Column("identity_kind", String(16), nullable=False),
    # Which server runs it: what a dead server left 'started' is closed by its next start.
    Column("server", String(64), nullable=False),
    Column("summary", Text, nullable=False, server_default=""),
    Column("output_json", Text, nullable=True),
    Column("error_json", Text, nullable=True),
    Column("logs_preview", Text, nullable=False, server_default=""),
    Column("duration_ms", Float, nullable=True),
    Column("degraded_json", Text, nullable=False, server_default="[]"),
    # Where it connected to, and where it was not let: what NetworkUse holds.
    Column("network_json", Text, nullable=False, server_default="[]"),
    Column("started_at", Moment, nullable=False),
    Column("finished_at", Moment, nullable=True),
    CheckConstraint("status IN ('started', 'completed', 'failed')", name="status"),
)
Index(
    "ix_runs_started",
    runs.c.server,
    postgresql_where=text("status = 'started'"),
    sqlite_where=text("status = 'started'"),
)
Index(
    "ix_runs_parent",
    runs.c.parent_run_id,
    postgresql_where=runs.c.parent_run_id.is_not(None),
    sqlite_where=runs.c.parent_run_id.is_not(None),
)

servers = Table(
    "servers",
    metadata,
    # The home's: what a dead server left 'started' is closed by its next start, or by another server.
    Column("id", String(64), primary_key=True),
    # By the database's clock.
    Column("seen_at", Moment, nullable=False),
    comment="Who serves this registry now, and when it was last heard of.",
)

blobs = Table(
    "blobs",
    metadata,
    Column("id", String(64), primary_key=True),
    Column("kind", String(255), nullable=False),
    Column("size_bytes", BigInteger, nullable=False),
    Column("sha256", String(64), ForeignKey("objects.sha256"), nullable=False),
    Column("is_text", Boolean, nullable=False),
    Column("owner", String(255), nullable=False),
    Column("run_id", String(64), ForeignKey("runs.id"), nullable=True),
    # Its place among the output blobs of that run.
    Column("position", Integer, nullable=True),
    Column("created_at", Moment, nullable=False),
)
Index("ix_blobs_sha256", blobs.c.sha256)
Index(
    "ix_blobs_run",
    blobs.c.run_id,
    blobs.c.position,
    postgresql_where=blobs.c.run_id.is_not(None),
    sqlite_where=blobs.c.run_id.is_not(None),
)

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
