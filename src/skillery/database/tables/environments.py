"""The tables of package locks and environments."""

from __future__ import annotations

from sqlalchemy import BigInteger, CheckConstraint, Column, Index, Integer, String, Table, Text

from skillery.database.tables.base import Moment, metadata

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
