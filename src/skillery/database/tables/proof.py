"""The tables of attestations and their keys, of required skills, of advisories, of seals, and of evaluations."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Float,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    String,
    Table,
    Text,
    UniqueConstraint,
    text,
)

from skillery.database.tables.base import Key, Moment, Name, metadata

signing_keys = Table(
    "signing_keys",
    metadata,
    Column("id", Key, primary_key=True, autoincrement=True),
    # sha256 of the public key: skillery.proof.dsse.
    Column("keyid", String(71), nullable=False),
    Column("public_der", LargeBinary, nullable=False),
    Column("algorithm", String(16), nullable=False),
    # `server` for keys of this registry, `identity` for the key of the caller that added it.
    Column("holder", String(16), nullable=False),
    Column("added_by", String(255), nullable=False),
    Column("added_by_kind", String(16), nullable=False),
    Column("added_at", Moment, nullable=False),
    Column("retired_at", Moment, nullable=True),
    Column("revoked_at", Moment, nullable=True),
    # From this time on, another person may have used the key.
    Column("revoked_since", Moment, nullable=True),
    Column("reason", Text, nullable=True),
    UniqueConstraint("keyid"),
    CheckConstraint("holder IN ('server', 'identity')", name="holder"),
    comment="The public keys that sign attestations. Triggers keep keys as they were added.",
)
Index("ix_signing_keys_added_by", signing_keys.c.added_by, signing_keys.c.id)

key_statements = Table(
    "key_statements",
    metadata,
    Column("seq", Key, primary_key=True, autoincrement=False),
    Column("envelope", Text, nullable=False),
    Column("sha256", String(64), nullable=False),
    # The SHA-256 of the statement before. None: a new chain begins.
    Column("previous", String(64), nullable=True),
    comment="The keys of the registry: each change is signed by the keys before. Triggers keep it append-only.",
)

attestations = Table(
    "attestations",
    metadata,
    Column("id", Key, primary_key=True, autoincrement=True),
    # Public id.
    Column("attestation", String(32), nullable=False),
    Column("version_id", Key, ForeignKey("skill_versions.id"), nullable=False),
    # Digest of the version.
    Column("digest", String(71), nullable=False),
    # The word and the type of the predicate: skillery.proof.statements.
    Column("predicate", String(16), nullable=False),
    Column("predicate_type", String(255), nullable=False),
    Column("key_id", Key, ForeignKey("signing_keys.id"), nullable=False),
    Column("made_by", String(255), nullable=False),
    Column("made_by_kind", String(16), nullable=False),
    # The signed bytes. Empty for a purged version.
    Column("envelope", Text, nullable=False),
    Column("sha256", String(64), nullable=False),
    Column("created_at", Moment, nullable=False),
    # The seal that covers it. None: it waits for the next seal.
    Column("seal_seq", Key, nullable=True),
    Column("ended_at", Moment, nullable=True),
    Column("ended_by", Name, nullable=True),
    Column("ended_reason", Text, nullable=True),
    UniqueConstraint("attestation"),
    comment="Signed statements about versions. Triggers refuse other envelopes and deletions.",
)
Index("ix_attestations_version", attestations.c.version_id, attestations.c.predicate)
Index("ix_attestations_digest", attestations.c.digest)
Index("ix_attestations_sha256", attestations.c.sha256)
Index(
    "ix_attestations_unsealed",
    attestations.c.id,
    postgresql_where=attestations.c.seal_seq.is_(None),
    sqlite_where=attestations.c.seal_seq.is_(None),
)
_is_ended_passed = text("predicate = 'passed' AND ended_at IS NOT NULL")
# Published versions that wait for a review again: skillery.versions.versions.
Index(
    "ix_attestations_ended_passed",
    attestations.c.version_id,
    postgresql_where=_is_ended_passed,
    sqlite_where=_is_ended_passed,
)

origin_statements = Table(
    "origin_statements",
    metadata,
    Column("version_id", Key, ForeignKey("skill_versions.id"), primary_key=True, autoincrement=False),
    # The source of the import, as the importer has stated it.
    Column("source", Text, nullable=False),
    # An OriginDocument: skillery.formats.origins.
    Column("document", LargeBinary, nullable=False),
    comment="Statements of other registries about versions that mirrors have copied.",
)

recertifications = Table(
    "recertifications",
    metadata,
    Column("version_id", Key, ForeignKey("skill_versions.id"), primary_key=True, autoincrement=False),
    Column("since", Moment, nullable=False),
    comment="Published versions whose approval is old: they wait for another one.",
)

version_requires = Table(
    "version_requires",
    metadata,
    Column("version_id", Key, ForeignKey("skill_versions.id"), primary_key=True, autoincrement=False),
    # The required skill, and the range of its versions.
    Column("name", Name, primary_key=True),
    Column("spec", String(255), nullable=False),
    comment="The skills that a version requires, as its manifest names them.",
)

version_closure = Table(
    "version_closure",
    metadata,
    Column("version_id", Key, ForeignKey("skill_versions.id"), primary_key=True, autoincrement=False),
    Column("depends_on_id", Key, ForeignKey("skill_versions.id"), primary_key=True, autoincrement=False),
    # 1 for a skill that the manifest names.
    Column("depth", Integer, nullable=False),
    comment="The versions that a version requires directly and indirectly, chosen when it was published.",
)
Index("ix_version_closure_depends_on_id", version_closure.c.depends_on_id, version_closure.c.version_id)

advisories = Table(
    "advisories",
    metadata,
    # The number of the last change, in the order of commits: a reader that remembers a number misses no withdrawal.
    Column("seq", Key, primary_key=True, autoincrement=False),
    # Public id.
    Column("advisory", String(32), nullable=False),
    Column("version_id", Key, ForeignKey("skill_versions.id"), nullable=False),
    Column("severity", String(16), nullable=False),
    # `yank` or `purge`.
    Column("action", String(16), nullable=False),
    # Empty if the version was purged later.
    Column("reason", Text, nullable=False),
    # The version without the problem.
    Column("fixed", String(255), nullable=True),
    Column("at", Moment, nullable=False),
    Column("withdrawn_at", Moment, nullable=True),
    UniqueConstraint("advisory"),
    CheckConstraint("severity IN ('broken', 'security', 'malicious')", name="severity"),
    comment="Why versions were withdrawn, for all who have a copy.",
)
Index("ix_advisories_version", advisories.c.version_id)

seals = Table(
    "seals",
    metadata,
    # 1, 2, 3 …, without a gap.
    Column("seq", Key, primary_key=True, autoincrement=False),
    Column("at", Moment, nullable=False),
    # The SHA-256 of the envelope before. None for the first seal.
    Column("previous", String(64), nullable=True),
    Column("sha256", String(64), nullable=False),
    Column("envelope", Text, nullable=False),
    # The batch of runs that the seal covers, if there is one.
    Column("batch", BigInteger, nullable=True),
    # The hashes of these runs, 32 bytes each, in the order of their ids. Emptied after seals.keep_days.
    Column("run_leaves", LargeBinary, nullable=False),
    UniqueConstraint("batch"),
    comment="One chain of signed seals over runs, attestations and audit entries. Triggers keep it append-only.",
)
Index("ix_seals_at", seals.c.at)

seal_spans = Table(
    "seal_spans",
    metadata,
    # The upper half of the numbers of all batches of one process.
    Column("id", Key, primary_key=True, autoincrement=False),
    Column("server", String(64), nullable=False),
    comment="Processes whose last batch of runs is not sealed. If a process dies, another one seals its batches.",
)

evaluations = Table(
    "evaluations",
    metadata,
    Column("id", Key, primary_key=True, autoincrement=True),
    # Public id.
    Column("evaluation", String(32), nullable=False),
    Column("version_id", Key, ForeignKey("skill_versions.id"), nullable=False),
    # `own`: the cases of the version itself.
    Column("suite", String(512), nullable=False),
    # The SHA-256 of the cases.
    Column("suite_digest", String(71), nullable=False),
    # `run` and `task`, separated by a blank.
    Column("kinds", String(64), nullable=False),
    # The name of the model in the settings, and at its endpoint. None: no case needs a model.
    Column("model_json", Text, nullable=True),
    Column("trials", Integer, nullable=False),
    # The version with which the cases are compared.
    Column("before_id", Key, ForeignKey("skill_versions.id"), nullable=True),
    Column("identity", Name, nullable=False),
    Column("identity_kind", String(16), nullable=False),
    Column("state", String(16), nullable=False),
    Column("budget", Float, nullable=True),
    # Why it has ended without a result.
    Column("error", Text, nullable=True),
    # The predicate of its attestation, and the SHA-256 of the envelope. None: it has no result, or it is not signed.
    Column("summary_json", Text, nullable=True),
    Column("sha256", String(64), nullable=True),
    Column("created_at", Moment, nullable=False),
    Column("ended_at", Moment, nullable=True),
    UniqueConstraint("evaluation"),
    CheckConstraint("state IN ('queued', 'running', 'done', 'stopped', 'failed', 'cancelled')", name="state"),
    comment="Evaluations of versions.",
)
Index("ix_evaluations_version", evaluations.c.version_id, evaluations.c.id)
_is_active = text("state IN ('queued', 'running')")
Index("ix_evaluations_active", evaluations.c.id, postgresql_where=_is_active, sqlite_where=_is_active)

eval_trials = Table(
    "eval_trials",
    metadata,
    Column("id", Key, primary_key=True, autoincrement=True),
    Column("evaluation_id", Key, ForeignKey("evaluations.id"), nullable=False),
    Column("kind", String(16), nullable=False),
    Column("case_id", String(512), nullable=False),
    # `with` the version, `without` it, or with the version `before`.
    Column("arm", String(16), nullable=False),
    Column("trial", Integer, nullable=False),
    Column("is_done", Boolean, nullable=False),
    # Times that a server has begun it.
    Column("attempts", Integer, nullable=False),
    # The result of a trial that is done, or the problem of the last attempt.
    Column("result_json", Text, nullable=True),
    Column("cost", Float, nullable=False),
    # Tokens that its models have read and written.
    Column("tokens", BigInteger, nullable=False, server_default="0"),
    # A claim of one server, as that on a webhook.
    Column("server", String(64), nullable=True),
    Column("holder", String(32), nullable=True),
    Column("leased_until", Moment, nullable=True),
    UniqueConstraint("evaluation_id", "kind", "case_id", "arm", "trial"),
    comment="The trials of the cases of evaluations.",
)
