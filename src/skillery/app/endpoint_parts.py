"""The parts that the HTTP endpoints share: authentication, memory budgets, checks of readiness, metrics and tracing."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from skillery.backends import Resource
from skillery.context.budget import Answers, Bodies
from skillery.context.silences import Silences
from skillery.context.worker_pool import WorkerPool
from skillery.http.gate import Gate
from skillery.http.health import Readiness
from skillery.http.run_streams import OpenStreams
from skillery.http.server_state import ServerState
from skillery.http.tracing import Tracing
from skillery.mcp.endpoint import McpEndpoint
from skillery.rest.plugin_routes import PluginRoutes

if TYPE_CHECKING:
    from skillery.rest.metrics import Metrics


class Edge(NamedTuple):
    """The parts of the HTTP side. Each endpoint gets only the parts that it needs."""

    gate: Gate
    bodies: Bodies
    max_body_bytes: int
    answers: Answers
    answer_seconds: float
    """Seconds that a client may read nothing of its answer."""
    streams: OpenStreams
    public_downloads: bool
    """Whether public skills can be downloaded without credentials."""
    web: bool
    """Whether the server has pages for browsers."""
    git: bool
    """Whether the server has repositories for git."""
    public_url: str
    """The setting `public_url`."""
    log_requests: bool
    readiness: Readiness
    page_workers: WorkerPool
    """Worker processes that render foreign texts for pages."""
    silences: Silences
    mcp: McpEndpoint
    metrics: Metrics | None
    """None if the setting `metrics` is off."""
    tracing: Tracing | None
    plugin_routes: PluginRoutes | None
    """None if no plugin has routes."""
    state: ServerState
    resource: Resource | None
    """How clients get a token. None if no authenticator describes it."""
