"""What the doors reach: the core, put together once by `skillery.app`."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from skillery.api.answers import Answers
from skillery.api.budgets import Bodies
from skillery.api.readiness import Readiness
from skillery.audit import Refusals
from skillery.backends import Authenticator, Sandbox, Storage
from skillery.contents.blobs import Blobs
from skillery.database import Database
from skillery.environments import Environments
from skillery.environments.named import NamedEnvironments
from skillery.environments.queries import Showing
from skillery.environments.rebuilds import Rebuilds
from skillery.exports import Exports, FactsPreparation
from skillery.identity.idempotency import Once
from skillery.identity.quotas import Quotas
from skillery.importing import Importer
from skillery.maintenance.garbage import Collector
from skillery.publishing import Publisher, ToolMaker
from skillery.runs import Runner

if TYPE_CHECKING:
    from skillery.api.mcp.endpoint import McpEndpoint
    from skillery.api.metrics import Metrics
    from skillery.api.run_events import RunEvents
    from skillery.api.tracing import Tracing


class Services(NamedTuple):
    database: Database
    storage: Storage
    sandbox: Sandbox
    authenticator: Authenticator
    blobs: Blobs
    runner: Runner
    publisher: Publisher
    importer: Importer
    tools: ToolMaker
    environments: Environments
    named: NamedEnvironments
    showing: Showing
    rebuilds: Rebuilds
    run_events: RunEvents
    exports: Exports
    preparing: FactsPreparation
    refusals: Refusals
    once: Once
    quotas: Quotas
    collector: Collector
    cursor_key: bytes
    readiness: Readiness
    max_body_bytes: int
    bodies: Bodies
    max_mcp_body_bytes: int
    answers: Answers
    answer_seconds: float
    """How long a client may read nothing of its answer."""
    allowed_hosts: frozenset[str]
    allowed_origins: frozenset[str]
    public_downloads: bool
    """Whether public skills go out to who shows no credentials."""
    log_requests: bool
    mcp: McpEndpoint
    metrics: Metrics | None
    """None where nobody wants any."""
    tracing: Tracing | None
