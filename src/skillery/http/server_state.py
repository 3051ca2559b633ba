"""The state of a running server, for pages of admins and for checks of readiness."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from datetime import timedelta
from typing import Any, NamedTuple

from skillery.audit import Head, Verified


class Disk(NamedTuple):
    """The disk of the home of a server, in bytes."""

    free: int
    total: int


class ServerState(NamedTuple):
    """Functions that return the state of this server."""

    checks: Callable[[], Awaitable[dict[str, bool]]]
    """Whether database, storage and sandbox work."""
    plugins: Callable[[], list[dict[str, Any]]]
    """The rows of `skillery.plugins.facts.plugins_of_server`."""
    disk: Callable[[], Disk]
    span_of_runs: Callable[[], Awaitable[timedelta | None]]
    """How long runs are kept if `runs.keep_count` shortens `runs.keep_days`, else None."""
    verify_audit: Callable[[Head | None], Verified]
    """Verifies the whole audit trail, and compares it with a head that was noted elsewhere. Blocking."""
    storage: str
    """The setting `storage`."""
    secrets: Callable[[], Collection[str]]
    """The names of all secrets that have a value. Blocking."""
