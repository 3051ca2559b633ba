"""The tables of runs, usage counts, servers that execute them, idempotency keys, package locks and environments."""

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
    false,
    text,
)

from skillery.database.tables.base import Key, Moment, Name, metadata

runs = Table(
    "runs",
    metadata,
    Column("id", String(64), primary_key=True),
    # The run whose code called this one. No foreign key, because SQLite could not drop the column again.
    Column("parent_run_id", String(64), nullable=True),
    Column("method", String(16), nullable=False),
    Column("version_id", Key, ForeignKey("skill_versions.id"), nullable=True),
    # Skill of that version, so that the runs of a skill are one range of an index. No foreign key, as above.
    Column("skill_id", Key, nullable=True),
    # The tool that `call_tool` called.
    Column("tool", Name, nullable=True),
    # The script that `execute_skill` ran, or "-m" and the module.
    Column("script", Name, nullable=True),
    # NAME@VERSION, if the run was an example in a check or an evaluation of a version.
    Column("check_of", String(400), nullable=True),
    Column("status", String(16), nullable=False),
    Column("identity", String(255), nullable=False),
    Column("identity_kind", String(16), nullable=False),
    # The program of the caller as it names itself: claude-code. "" if it does not.
    Column("client", String(64), nullable=False, server_default=""),
    # The server that executes the run. If it dies, its next start or another server closes the run.
    Column("server", String(64), nullable=False),
    Column("summary", Text, nullable=False, server_default=""),
    Column("output_json", Text, nullable=True),
    Column("error_json", Text, nullable=True),
    Column("logs_preview", Text, nullable=False, server_default=""),
    Column("duration_ms", Float, nullable=True),
    Column("degraded_json", Text, nullable=False, server_default="[]"),
    # Allowed and refused connections: NetworkUse.
    Column("network_json", Text, nullable=False, server_default="[]"),
    # Limits of the run: Limits.
    Column("limits_json", Text, nullable=True),
    # What the run has used, as far as the sandbox measures it: Used.
    Column("used_json", Text, nullable=True),
    # The args of the run as JSON, if they are not larger than 16 KiB.
    Column("args_json", Text, nullable=True),
    # The named environment of the run, and its lock at that time.
    Column("environment_json", Text, nullable=True),
    # The workspace of the run: WorkspaceUse.
    Column("workspace_json", Text, nullable=True),
    # The blob that holds the whole log, if the preview does not.
    Column("logs_blob", String(64), nullable=True),
    # Set if the middle of the log was dropped: the size of the kept head, and of the dropped middle.
    Column("log_head_bytes", Integer, nullable=True),
    Column("log_dropped_bytes", BigInteger, nullable=True),
    # Digests and names for the statement about the run, written when it ends: skillery.runs.statements.
    Column("evidence_json", Text, nullable=True),
    # The batch of runs whose seal covers this run: skillery.attestations.seals.
    Column("seal_batch", BigInteger, nullable=True),
    # The last progress that the code reported (Progress). Written only for a run that another server follows.
    Column("progress_json", Text, nullable=True),
    # Until this time, another server follows the run, and the log is written to run_log_pieces.
    Column("followed_until", Moment, nullable=True),
    # Time of the first record. Listings sort by it.
    Column("started_at", Moment, nullable=False),
    # True while a started run waits in the queue.
    Column("queued", Boolean, nullable=False, server_default=false()),
    # Time at which a queued run left the queue.
    Column("begun_at", Moment, nullable=True),
    # Set if a caller requested the cancellation. The server that executes the run polls for this.
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

# Indexes for list_runs, by time: runs of one identity or of all, of one skill or of all. Failed runs have separate
# indexes, because they are few and often requested.
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

Index(
    "ix_runs_followed",
    runs.c.server,
    postgresql_where=text("status = 'started' AND followed_until IS NOT NULL"),
    sqlite_where=text("status = 'started' AND followed_until IS NOT NULL"),
)

Index(
    "ix_runs_seal_batch",
    runs.c.seal_batch,
    postgresql_where=runs.c.seal_batch.is_not(None),
    sqlite_where=runs.c.seal_batch.is_not(None),
)

# For the number of active runs of an identity. Their rate is read from ix_runs_identity.
Index(
    "ix_runs_under_way",
    runs.c.identity,
    runs.c.started_at,
    postgresql_where=text("status = 'started' AND parent_run_id IS NULL"),
    sqlite_where=text("status = 'started' AND parent_run_id IS NULL"),
)

run_log_pieces = Table(
    "run_log_pieces",
    metadata,
    # No foreign key: the sweep deletes the pieces a minute after the end of their run.
    Column("run_id", String(64), primary_key=True),
    # Offset of the first byte in the log.
    Column("start", BigInteger, primary_key=True, autoincrement=False),
    Column("content", LargeBinary, nullable=False),
    Column("written_at", Moment, nullable=False),
    comment="Logs of runs that other servers follow, as they arrive.",
)
Index("ix_run_log_pieces_written", run_log_pieces.c.written_at)

run_code = Table(
    "run_code",
    metadata,
    # No foreign key: the row is written and deleted with its run.
    Column("run_id", String(64), primary_key=True),
    Column("language", String(16), nullable=False),
    Column("entrypoint", String(255), nullable=False),
    Column("code", Text, nullable=False),
    # Whether the code was longer.
    Column("is_cut", Boolean, nullable=False),
    comment="The code of run_code, at most 64 KiB of each run.",
)

failure_days = Table(
    "failure_days",
    metadata,
    # No foreign keys, like use_days.
    Column("skill_id", Key, primary_key=True, autoincrement=False),
    # What the same failures have in common, as a hash: skillery.formats.tracebacks.
    Column("shape", String(16), primary_key=True),
    Column("version_id", Key, primary_key=True, autoincrement=False),
    # Day in UTC: 2026-11-24.
    Column("day", String(10), primary_key=True),
    # Name of the identity.
    Column("caller", String(255), primary_key=True),
    Column("runs", BigInteger, nullable=False),
    # The last of these runs: its texts, its id and its end.
    Column("error_type", Text, nullable=False),
    Column("place", Text, nullable=False),
    Column("message", Text, nullable=False),
    Column("last_run_id", String(64), nullable=False),
    Column("last_at", Moment, nullable=False),
    comment="Failed runs of each skill by what they have in common, version, day and caller. After 90 days, none.",
    # All failures of a skill are one range.
    sqlite_with_rowid=False,
)
Index("ix_failure_days_day", failure_days.c.day)

version_usage = Table(
    "version_usage",
    metadata,
    Column("version_id", Key, ForeignKey("skill_versions.id"), primary_key=True, autoincrement=False),
    # Day in UTC. "" for runs before the last 35 days.
    Column("day", String(10), primary_key=True),
    # completed, failed or cancelled.
    Column("outcome", String(16), primary_key=True),
    # Group of similar durations: skillery.registry.usage.
    Column("bucket", Integer, primary_key=True, autoincrement=False),
    Column("runs", BigInteger, nullable=False),
    Column("last_run_at", Moment, nullable=False),
    comment="How often a version was run and how long that took, counted as runs end; it outlasts their records.",
    # All usage of a version is one range.
    sqlite_with_rowid=False,
)

servers = Table(
    "servers",
    metadata,
    Column("id", String(64), primary_key=True),
    # Updated every few seconds. If a server is dead, other servers close its runs.
    Column("seen_at", Moment, nullable=False),
    # The newest revision of its release. None: the release is older than the column.
    Column("revision", String(32), nullable=True),
)

idempotency_keys = Table(
    "idempotency_keys",
    metadata,
    Column("identity", String(255), primary_key=True),
    Column("key", String(255), primary_key=True),
    # SHA-256 of the call. Another call with the same key is refused.
    Column("asked", String(64), nullable=False),
    # The server that works on the call, and the run that the call became.
    Column("server", String(64), nullable=False),
    Column("run_id", String(64), nullable=True),
    # The answer as JSON. None while the call is under way.
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


# -- Package locks and environments ------------------------------------------------------------------------------------

locks = Table(
    "locks",
    metadata,
    # SHA-256 of the requirements, their sources and the Python version: skillery.environments.
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
    # Each server builds its own environments.
    Column("server", String(64), primary_key=True),
    Column("state", String(16), nullable=False),
    # The reason why the build failed, or "".
    Column("message", Text, nullable=False),
    Column("size_bytes", BigInteger, nullable=False),
    Column("changed_at", Moment, nullable=False),
    # The current step of the build, the number of installed packages, and the number of all packages.
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
    # SHA-256 of the lock's subject and the Python version: skillery.environments.
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
    # Name of an environment, or the SHA-256 of a lock.
    Column("subject", String(64), primary_key=True),
    Column("state", String(16), nullable=False),
    # The reason why the rebuild failed, or "".
    Column("message", Text, nullable=False),
    Column("server", String(64), nullable=False),
    Column("identity", String(255), nullable=False),
    Column("began_at", Moment, nullable=False),
    Column("ended_at", Moment, nullable=True),
    CheckConstraint("state IN ('running', 'done', 'failed')", name="state"),
    comment="The last time that somebody had an environment built anew.",
)
