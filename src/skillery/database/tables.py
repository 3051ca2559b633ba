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
    SmallInteger,
    String,
    Table,
    Text,
    UniqueConstraint,
    false,
    text,
)
from sqlalchemy.dialects.postgresql import TSVECTOR

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
# Words with blanks between.
Words = Text().with_variant(TSVECTOR(), "postgresql")

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
    # public, namespace or private: skillery.registry.visibility.
    Column("visibility", String(16), nullable=False, server_default="public"),
    UniqueConstraint("name"),
)
Index(
    "ix_skills_listing",
    skills.c.namespace,
    skills.c.name,
    skills.c.latest_version_id,
    # Asked of each row for whom something may be hidden: without it here the row itself would be looked up.
    skills.c.visibility,
    postgresql_where=skills.c.latest_version_id.is_not(None),
    sqlite_where=skills.c.latest_version_id.is_not(None),
)
# The same for whom something may be hidden: skillery.registry.visibility.
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

index_names = Table(
    "index_names",
    metadata,
    # In the order in which skills were first published.
    Column("id", Key, primary_key=True, autoincrement=True),
    # What the skill is called where names know no dots: skillery.formats.agent_skill.
    Column("index_name", Name, nullable=False),
    Column("skill_id", Key, ForeignKey("skills.id"), nullable=False),
    UniqueConstraint("skill_id"),
    comment="Names in the indexes of Agent Skills: of several skills with one name the first stands in them.",
)
Index("ix_index_names_name", index_names.c.index_name, index_names.c.id)

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
    # Of a SKILL.md that lies in the storage: as much of its body as can be searched. None where it is small.
    Column("skill_md_start", Text, nullable=True),
    # What was found when it was checked: skillery.registry.checks. None: nothing to say.
    Column("checks_json", Text, nullable=True),
    # The method that wrote it for its publisher, where that was not create_skill.
    Column("made_by", String(16), nullable=True),
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
# For the sum over a namespace: skillery.identity.quotas.
Index("ix_skill_versions_size", skill_versions.c.skill_id, skill_versions.c.size_bytes)
# What waits for its author or a reviewer: little, in a registry of any size.
_is_waiting_literal = text("status IN ('draft', 'in_review')")
Index(
    "ix_skill_versions_waiting",
    skill_versions.c.status,
    skill_versions.c.id,
    postgresql_where=_is_waiting_literal,
    sqlite_where=_is_waiting_literal,
)
# Whose private skills these are.
Index("ix_skill_versions_publisher", skill_versions.c.publisher, skill_versions.c.skill_id)

tools = Table(
    "tools",
    metadata,
    Column("version_id", Key, ForeignKey("skill_versions.id"), primary_key=True),
    Column("name", Name, primary_key=True),
    Column("skill_id", Key, ForeignKey("skills.id"), nullable=False),
    # The skill's name, which never changes: what list_tools sorts by.
    Column("skill", Name, nullable=False),
    # A path in the bundle; None: there is nothing to run.
    Column("script", Text, nullable=True),
    # As list_tools answers it.
    Column("item_json", Text, nullable=False),
    # When its version was published, while that is the skill's latest; None otherwise.
    Column("offered_since", Moment, nullable=True),
    comment="The tools that versions offer by their tools.json.",
)
_is_offered = tools.c.offered_since.is_not(None)
Index("ix_tools_listing", tools.c.skill, tools.c.name, postgresql_where=_is_offered, sqlite_where=_is_offered)
Index(
    "ix_tools_name",
    tools.c.name,
    tools.c.offered_since,
    tools.c.version_id,
    postgresql_where=_is_offered,
    sqlite_where=_is_offered,
)
Index("ix_tools_skill", tools.c.skill_id)

session_tools = Table(
    "session_tools",
    metadata,
    Column("identity", String(255), primary_key=True),
    # Whatever the caller calls it; "" is its identity's own.
    Column("session", Name, primary_key=True),
    Column("name", Name, primary_key=True),
    # The path that its handler has, whose ending says the language.
    Column("script", Text, nullable=False),
    Column("content", Text, nullable=False),
    # As list_tools answers it.
    Column("item_json", Text, nullable=False),
    Column("defined_at", Moment, nullable=False),
    # From then on it is not found.
    Column("expires_at", Moment, nullable=False),
    comment="Tools that live for an identity and its session, made by define_tool.",
)
Index("ix_session_tools_expires_at", session_tools.c.expires_at)

search_words = Table(
    "search_words",
    metadata,
    Column("skill_id", Key, ForeignKey("skills.id"), primary_key=True, autoincrement=False),
    # The skill's latest version, whose words these are.
    Column("version_id", Key, ForeignKey("skill_versions.id"), nullable=False),
    # A hash of what makes a copy: description, text and files, but not the name.
    Column("copy_key", BigInteger, nullable=False),
    # Stems of the text that are in no posting of the skill.
    Column("words", Words, nullable=False),
    comment="The texts that search_skills looks in: rows are added and removed, never changed.",
)
Index("ix_search_words_copy_key", search_words.c.copy_key)
search_postings = Table(
    "search_postings",
    metadata,
    Column("skill_id", Key, ForeignKey("skills.id"), primary_key=True, autoincrement=False),
    # A stem of the name, description or tags, or a whole tag: skillery.registry.search_index.
    Column("word", Name, primary_key=True),
    # How far the word is from saying most about the skill: 0 is the best.
    Column("loss", SmallInteger, nullable=False),
    # Those of the skill. They are here so that one index range answers who sees what, and in which order.
    Column("name", Name, nullable=False),
    Column("visibility", String(16), nullable=False),
    comment="The words that say what a skill is about: skillery.formats.search_fields.",
    sqlite_with_rowid=False,
)
Index(
    "ix_search_postings_best",
    search_postings.c.word,
    search_postings.c.loss,
    search_postings.c.name,
    search_postings.c.visibility,
    search_postings.c.skill_id,
)
search_spellings = Table(
    "search_spellings",
    metadata,
    # Three characters of the word, or "": skillery.formats.spellings.
    Column("piece", Name, primary_key=True),
    Column("word", Name, primary_key=True),
    Column("stem", Name, nullable=False),
    comment="Every word that a posting was made of, by its pieces. Words stay when their skills go.",
    sqlite_with_rowid=False,
)
SEARCH_INDEX = "search_index"
"""What finds rows of `search_words`, made by a migration: an index of FTS5 on SQLite (with tables of its own, whose
names begin so, fed by triggers), a GIN index on Postgres."""

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

label_moves = Table(
    "label_moves",
    metadata,
    Column("id", Key, primary_key=True, autoincrement=True),
    Column("skill_id", Key, ForeignKey("skills.id"), nullable=False),
    Column("label", Name, nullable=False),
    Column("move", String(16), nullable=False),
    # What it points to from then on; None: it was removed.
    Column("version_id", Key, ForeignKey("skill_versions.id"), nullable=True),
    Column("previous_version_id", Key, ForeignKey("skill_versions.id"), nullable=True),
    # The move to which a rollback goes back. Without a foreign key: nothing is ever deleted here.
    Column("back_id", Key, nullable=True),
    Column("identity", String(255), nullable=False),
    Column("identity_kind", String(16), nullable=False),
    Column("created_at", Moment, nullable=False),
    CheckConstraint("move IN ('set', 'rollback', 'remove')", name="move"),
    comment="Every move that a label has made, append-only.",
)
Index("ix_label_moves_label", label_moves.c.skill_id, label_moves.c.label, label_moves.c.id)
Index("ix_label_moves_skill", label_moves.c.skill_id, label_moves.c.id)

labels = Table(
    "labels",
    metadata,
    Column("skill_id", Key, ForeignKey("skills.id"), primary_key=True),
    Column("label", Name, primary_key=True),
    Column("version_id", Key, ForeignKey("skill_versions.id"), nullable=False),
    # Its last move.
    Column("move_id", Key, ForeignKey("label_moves.id"), nullable=False),
    comment="Where each label points now.",
)
Index("ix_labels_version", labels.c.version_id)
waivers = Table(
    "waivers",
    metadata,
    Column("id", Key, primary_key=True, autoincrement=True),
    # The name that others know it by.
    Column("waiver", String(32), nullable=False),
    # Of a skill, which may not be there yet.
    Column("name", Name, nullable=False),
    Column("rule", String(255), nullable=False),
    # None: whatever the file, whatever the version.
    Column("file", Text, nullable=True),
    Column("version", Text, nullable=True),
    Column("reason", Text, nullable=False),
    Column("identity", String(255), nullable=False),
    Column("identity_kind", String(16), nullable=False),
    Column("created_at", Moment, nullable=False),
    Column("until", Moment, nullable=True),
    Column("revoked_at", Moment, nullable=True),
    Column("revoked_by", String(255), nullable=True),
    UniqueConstraint("waiver"),
    comment="Findings that keep no version back, by whom, why and until when.",
)
Index("ix_waivers_name", waivers.c.name, waivers.c.id)

import_aliases = Table(
    "import_aliases",
    metadata,
    # The namespace that was given to the import.
    Column("namespace", Name, primary_key=True),
    # Where the tree comes from, and the path of the skill in it: skillery.importing.identity.path_key. A path that
    # begins with "/" is that of an import before there were sources: only the stated name behind it is known.
    Column("source", Name, primary_key=True),
    Column("path", Text().with_variant(Text(collation="C"), "postgresql"), primary_key=True),
    # The name that the skill states: skillery.formats.foreign_skill.alias_key.
    Column("stated", Name, nullable=False),
    # The skill in the registry.
    Column("name", Name, nullable=False),
    # False if the skill belongs to another source, and this one has only a copy of it.
    Column("owns", Boolean, nullable=False),
    # The version that was last published from this alias, and the digest of the files it was made from.
    Column("version", Text, nullable=False),
    Column("source_digest", String(71), nullable=False),
    # Since when its versions are yanked because the source does not hold it any more.
    Column("removed_at", Moment, nullable=True),
    # Since when the source does not hold it any more.
    Column("absent_at", Moment, nullable=True),
    Column("identity", String(255), nullable=False),
    Column("imported_at", Moment, nullable=False),
    comment="Imported skills: the source and path of each, and which skill of the registry it is.",
)
Index("ix_import_aliases_name", import_aliases.c.name)
Index("ix_import_aliases_namespace_stated", import_aliases.c.namespace, import_aliases.c.stated)

objects = Table(
    "objects",
    metadata,
    Column("sha256", String(64), primary_key=True),
    Column("size_bytes", BigInteger, nullable=False),
    # The content itself up to 64 KiB; None where the storage backend has it.
    Column("data", LargeBinary, nullable=True),
    comment="Contents by digest: files of skills and blobs alike.",
)

uploads = Table(
    "uploads",
    metadata,
    Column("id", String(32), primary_key=True),
    Column("sha256", String(64), primary_key=True),
    Column("begun_at", Moment, nullable=False),
    comment="Contents on their way into the storage: who has a row here is about to refer to one.",
)
Index("ix_uploads_sha256", uploads.c.sha256)

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

exports = Table(
    "exports",
    metadata,
    Column("version_id", Key, ForeignKey("skill_versions.id"), primary_key=True, autoincrement=False),
    # Which release of skillery.exports made it; made anew by another.
    Column("maker", Integer, nullable=False),
    # What an export of this version is: digests, sizes, the description.
    Column("facts_json", Text, nullable=False),
    comment="What is known of versions as Agent Skills. It follows from their files and is made when it is wanted.",
)

runs = Table(
    "runs",
    metadata,
    Column("id", String(64), primary_key=True),
    # The run whose code called this one. Without a foreign key: SQLite could not drop the column again.
    Column("parent_run_id", String(64), nullable=True),
    Column("method", String(16), nullable=False),
    Column("version_id", Key, ForeignKey("skill_versions.id"), nullable=True),
    # Of that version, so that the runs of a skill are one range of an index. Without a foreign key, as above.
    Column("skill_id", Key, nullable=True),
    # The tool that was called.
    Column("tool", Name, nullable=True),
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
    # What it may use: Limits.
    Column("limits_json", Text, nullable=True),
    # The named environment that run_code was given, and the lock that it had.
    Column("environment_json", Text, nullable=True),
    # The blob that holds the whole log, where the preview does not.
    Column("logs_blob", String(64), nullable=True),
    # Since when it is on record: what listings are sorted by.
    Column("started_at", Moment, nullable=False),
    # True while a run that is 'started' still waits for a place.
    Column("queued", Boolean, nullable=False, server_default=false()),
    # When it got its place, where it was on record before.
    Column("begun_at", Moment, nullable=True),
    # Somebody wants it stopped: whichever server runs it looks for this.
    Column("cancel_requested_at", Moment, nullable=True),
    Column("cancel_requested_by", String(255), nullable=True),
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

# list_runs: of one identity or of all, of one skill or of all, by time. Failed ones are few, and looked for.
Index("ix_runs_identity", runs.c.identity, runs.c.started_at, runs.c.id)
Index("ix_runs_time", runs.c.started_at, runs.c.id)
Index(
    "ix_runs_identity_skill",
    runs.c.identity,
    runs.c.skill_id,
    runs.c.started_at,
    runs.c.id,
    postgresql_where=runs.c.skill_id.is_not(None),
    sqlite_where=runs.c.skill_id.is_not(None),
)
Index(
    "ix_runs_skill",
    runs.c.skill_id,
    runs.c.started_at,
    runs.c.id,
    postgresql_where=runs.c.skill_id.is_not(None),
    sqlite_where=runs.c.skill_id.is_not(None),
)
Index(
    "ix_runs_identity_failed",
    runs.c.identity,
    runs.c.started_at,
    runs.c.id,
    postgresql_where=text("status = 'failed'"),
    sqlite_where=text("status = 'failed'"),
)
Index(
    "ix_runs_failed",
    runs.c.started_at,
    runs.c.id,
    postgresql_where=text("status = 'failed'"),
    sqlite_where=text("status = 'failed'"),
)
Index(
    "ix_runs_cancel",
    runs.c.server,
    postgresql_where=text("status = 'started' AND cancel_requested_at IS NOT NULL"),
    sqlite_where=text("status = 'started' AND cancel_requested_at IS NOT NULL"),
)

# The runs that an identity has started and that are under way. ix_runs_identity gives their rate.
Index(
    "ix_runs_under_way",
    runs.c.identity,
    runs.c.started_at,
    postgresql_where=text("status = 'started' AND parent_run_id IS NULL"),
    sqlite_where=text("status = 'started' AND parent_run_id IS NULL"),
)

version_usage = Table(
    "version_usage",
    metadata,
    Column("version_id", Key, ForeignKey("skill_versions.id"), primary_key=True, autoincrement=False),
    # completed, failed or cancelled.
    Column("outcome", String(16), primary_key=True),
    # Durations that are alike: skillery.registry.usage.
    Column("bucket", Integer, primary_key=True, autoincrement=False),
    Column("runs", BigInteger, nullable=False),
    Column("last_run_at", Moment, nullable=False),
    comment="How often a version was run and how long that took, counted as runs end; it outlasts their records.",
    # What is asked of a version lies together.
    sqlite_with_rowid=False,
)

servers = Table(
    "servers",
    metadata,
    Column("id", String(64), primary_key=True),
    # Written every few seconds: what a server that is gone left open is closed by the others.
    Column("seen_at", Moment, nullable=False),
)

idempotency_keys = Table(
    "idempotency_keys",
    metadata,
    Column("identity", String(255), primary_key=True),
    Column("key", String(255), primary_key=True),
    # SHA-256 of what was asked: another question under the same key is refused.
    Column("asked", String(64), nullable=False),
    # Which server works on it, and the run that it became.
    Column("server", String(64), nullable=False),
    Column("run_id", String(64), nullable=True),
    # The answer as JSON; None while the call is under way.
    Column("result_json", Text, nullable=True),
    Column("created_at", Moment, nullable=False),
    comment="Calls that were made with an Idempotency-Key, and what they answered.",
)
Index("ix_idempotency_keys_created_at", idempotency_keys.c.created_at)
Index(
    "ix_idempotency_keys_open",
    idempotency_keys.c.server,
    postgresql_where=idempotency_keys.c.result_json.is_(None),
    sqlite_where=idempotency_keys.c.result_json.is_(None),
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
    # What that run calls it: a path below /workspace/out, or the name of a picture.
    Column("path", Text, nullable=True),
    Column("created_at", Moment, nullable=False),
    # From then on it is not found; None: for ever.
    Column("expires_at", Moment, nullable=True),
)
# Enough to sum up what an identity has: skillery.identity.quotas.
Index("ix_blobs_owner", blobs.c.owner, blobs.c.expires_at, blobs.c.size_bytes)
Index(
    "ix_blobs_expired",
    blobs.c.expires_at,
    postgresql_where=blobs.c.expires_at.is_not(None),
    sqlite_where=blobs.c.expires_at.is_not(None),
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

locks = Table(
    "locks",
    metadata,
    # SHA-256 of what was asked, of whom, and for which Python: skillery.environments.
    Column("key", String(64), primary_key=True),
    Column("content", Text, nullable=False),
    Column("made_at", Moment, nullable=False),
    comment="Locks of dependencies that were made lately: the same dependencies get the same.",
)
Index("ix_locks_made_at", locks.c.made_at)

environments = Table(
    "environments",
    metadata,
    Column("lock_sha256", String(64), primary_key=True),
    # Each server builds for itself.
    Column("server", String(64), primary_key=True),
    Column("state", String(16), nullable=False),
    # Why it failed.
    Column("message", Text, nullable=False),
    Column("size_bytes", BigInteger, nullable=False),
    Column("changed_at", Moment, nullable=False),
    # Of what is being built: what it is at, and how many packages are there of how many.
    Column("step", Text, nullable=False, server_default=""),
    Column("done", Integer, nullable=False, server_default="0"),
    Column("total", Integer, nullable=False, server_default="0"),
    CheckConstraint("state IN ('building', 'ready', 'failed')", name="state"),
    comment="The installed packages of each server, by their lock.",
)

named_locks = Table(
    "named_locks",
    metadata,
    Column("name", String(64), primary_key=True),
    # SHA-256 of what it is a lock of, and for which Python: skillery.environments.
    Column("key", String(64), primary_key=True),
    Column("content", Text, nullable=False),
    Column("sha256", String(64), nullable=False),
    Column("made_at", Moment, nullable=False),
    comment="The lock of each named environment: one for all servers, until somebody asks for another.",
)
Index("ix_named_locks_sha256", named_locks.c.sha256)

environment_rebuilds = Table(
    "environment_rebuilds",
    metadata,
    # A named environment, or the SHA-256 of a lock.
    Column("subject", String(64), primary_key=True),
    Column("state", String(16), nullable=False),
    # Why it failed.
    Column("message", Text, nullable=False),
    Column("server", String(64), nullable=False),
    Column("identity", String(255), nullable=False),
    Column("began_at", Moment, nullable=False),
    Column("ended_at", Moment, nullable=True),
    CheckConstraint("state IN ('running', 'done', 'failed')", name="state"),
    comment="The last time that somebody had an environment built anew.",
)

audit = Table(
    "audit",
    metadata,
    # 1, 2, 3 …, without a gap.
    Column("seq", Key, primary_key=True, autoincrement=False),
    # Text, as it is hashed: UTC with microseconds.
    Column("at", Name, nullable=False),
    # None: nobody knows who it was.
    Column("identity", Name, nullable=True),
    Column("identity_kind", String(16), nullable=True),
    Column("address", String(255), nullable=True),
    Column("request_id", String(255), nullable=True),
    Column("action", Name, nullable=False),
    Column("subject", Name, nullable=False),
    Column("outcome", String(16), nullable=False),
    # Of what was refused: the code and the type of the error.
    Column("code", Integer, nullable=True),
    Column("error_type", String(64), nullable=True),
    # How many attempts it stands for.
    Column("count", Integer, nullable=False),
    Column("before_json", Text, nullable=True),
    Column("after_json", Text, nullable=True),
    # SHA-256 of the entry before, and of this one together with that: skillery.audit.
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
