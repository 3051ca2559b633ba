"""Metrics in the text format of Prometheus: requests, calls, runs and queues.

Label values are endpoints, methods, codes and statuses, which are fixed sets: callers cannot choose them. Litestar's
middleware is not used, because it adds a series for each address of a blob and never removes one.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from prometheus_client import CollectorRegistry, Metric, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from skillery.backends import LIMITS, Sandbox, Scope
from skillery.context.disks import Disks
from skillery.context.request import Silences
from skillery.context.tallies import Peers
from skillery.environments.named import NamedEnvironments
from skillery.http.gate import Gate
from skillery.http.operations import Operation, Response
from skillery.http.requests import only, send_bytes
from skillery.plugins.calls import Failures
from skillery.runs.runner import Runner
from skillery.webhooks.deliveries import Deliveries

if TYPE_CHECKING:
    from skillery.http.exchanges import Exchange


# -- The metrics of all worker processes of a server as one text -------------------------------------------------------


MERGES: dict[str, Callable[[Iterable[float]], float]] = {
    # The database has these numbers, so each worker reports all of them.
    "skillery_webhooks_failing": max,
    "skillery_webhooks_waiting": max,
    "skillery_webhooks_dead_letters": max,
    # A limit that one worker enforces by weaker means is degraded.
    "skillery_sandbox_degraded": max,
    "process_start_time_seconds": min,
}
"""The functions that make one value from the values of all workers. The values of other metrics are added."""


def merge_texts(texts: Sequence[str]) -> str:
    """Return the metrics of several worker processes as the metrics of one server, in the text format of Prometheus.

    The added metric `skillery_workers` is the number of processes.
    """
    families: dict[str, list[Metric]] = {}
    for text in texts:
        for family in text_string_to_metric_families(text):
            families.setdefault(family.name, []).append(family)
    registry = CollectorRegistry()
    registry.register(_Families([*map(_merge, families.values()), _workers(len(texts))]))
    return generate_latest(registry).decode()


class _Families(Collector):
    """A collector of given metrics."""

    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


def _merge(families: Sequence[Metric]) -> Metric:
    """Return one metric with the merged values of all workers."""
    first = families[0]
    values: dict[tuple[str, tuple[tuple[str, str], ...]], list[float]] = {}
    for family in families:
        for sample in family.samples:
            values.setdefault((sample.name, tuple(sample.labels.items())), []).append(sample.value)
    merge = MERGES.get(first.name, sum)
    merged = Metric(first.name, first.documentation, first.type)
    for (name, labels), values_of_workers in values.items():
        merged.add_sample(name, dict(labels), merge(values_of_workers))
    return merged


def _workers(count: int) -> Metric:
    workers = Metric("skillery_workers", "Worker processes that answered.", "gauge")
    workers.add_sample("skillery_workers", {}, count)
    return workers


QUESTION = "metrics"
"""The name of the question with which a worker asks the other workers for their metrics."""
Readers = Literal["admin", "open"]
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)


class Measurable(NamedTuple):
    """The parts of the server whose current values are metrics."""

    gate: Gate
    runner: Runner
    sandbox: Sandbox
    named: NamedEnvironments
    deliveries: Deliveries
    connections: Callable[[], tuple[int, int]]
    """Function that returns the numbers of used and of idle connections to the database."""
    plugin_failures: Failures
    disks: Disks
    silences: Silences


class Metrics(Collector):
    """The endpoint `/metrics`, and the counters of requests and calls.

    The counters are numbers without locks, because only the event loop changes them. Locks would make a listing a tenth
    slower.
    """

    def __init__(self, readers: Readers, measured: Measurable, peers: Peers | None = None) -> None:
        self._readers = readers
        self._measured = measured
        self._requests: Counter[tuple[str, int]] = Counter()
        self._bytes_in: Counter[str] = Counter()
        self._bytes_out: Counter[str] = Counter()
        self._calls: Counter[tuple[str, int]] = Counter()
        self._latencies: dict[str, _Latencies] = {}
        self._registry = CollectorRegistry()
        self._registry.register(self)
        ProcessCollector(registry=self._registry)
        self._peers = peers
        if peers is not None:
            peers.offer(QUESTION, self._own_text)

    def note(self, endpoint: str, exchange: Exchange) -> None:
        """Count a finished request and its calls."""
        self._requests[endpoint, exchange.status] += 1
        self._bytes_in[endpoint] += exchange.bytes_in
        self._bytes_out[endpoint] += exchange.bytes_out
        for method, code, seconds in exchange.request.calls:
            self._calls[method, code] += 1
            latencies = self._latencies.get(method)
            if latencies is None:
                latencies = self._latencies[method] = _Latencies()
            latencies.note(seconds)

    def collect(self) -> Iterable[Metric]:
        """Yield the metrics of requests and calls."""
        requests = CounterMetricFamily("skillery_http_requests", "Answered requests.", labels=["endpoint", "status"])
        for (endpoint, status), count in sorted(self._requests.items()):
            requests.add_metric([endpoint, str(status)], count)
        yield requests
        moved = CounterMetricFamily("skillery_http_bytes", "Bytes of bodies.", labels=["endpoint", "direction"])
        for direction, by_endpoint in (("in", self._bytes_in), ("out", self._bytes_out)):
            for endpoint, count in sorted(by_endpoint.items()):
                moved.add_metric([endpoint, direction], count)
        yield moved
        calls = CounterMetricFamily(
            "skillery_rpc_calls", "Calls by outcome; code 0 is a result.", labels=["method", "code"]
        )
        for (method, code), count in sorted(self._calls.items()):
            calls.add_metric([method, str(code)], count)
        yield calls
        seconds = HistogramMetricFamily("skillery_rpc_seconds", "Durations of calls.", labels=["method"])
        for method, latencies in sorted(self._latencies.items()):
            seconds.add_metric([method], latencies.buckets(), latencies.sum)
        yield seconds

    @property
    def operations(self) -> tuple[Operation, ...]:
        """The description of the endpoint for OpenAPI."""
        plain = Response("The text format of Prometheus.", kinds=(CONTENT_TYPE_PLAIN_0_0_4,))
        needs: Scope | None = "admin" if self._readers == "admin" else None
        return (
            Operation("GET", "/metrics", "Metrics of the server", {200: plain}, needs=needs, is_open=needs is None),
        )

    async def answer(self, scope: Any, _receive: Any, send: Any, headers: dict[str, str]) -> None:
        """Send all metrics.

        If only admins may read the metrics, raise the errors of `Gate.admit`: HttpRefusal 401 for a caller without a
        valid token, and NotAllowed for a caller without the scope admin.
        """
        only(scope, "GET", "HEAD")
        if self._readers == "admin":
            await self._measured.gate.admit(scope, headers, "admin", "read_metrics")
        if self._peers is None:
            text = await self._own_text()
        else:
            text = merge_texts([text for text in await self._peers.ask(QUESTION) if text is not None])
        await send_bytes(send, 200, text.encode(), CONTENT_TYPE_PLAIN_0_0_4)

    async def _own_text(self) -> str:
        """Return the metrics of this process in the text format of Prometheus."""
        # The current values are in a separate registry, which exists only for this answer.
        now = CollectorRegistry()
        now.register(_Now(self._measured))
        return (generate_latest(self._registry) + generate_latest(now)).decode()


class _Latencies:
    """A histogram of the durations of one method's calls, in seconds."""

    def __init__(self) -> None:
        self.sum = 0.0
        self._counts = [0] * (len(SECONDS) + 1)

    def note(self, seconds: float) -> None:
        self.sum += seconds
        self._counts[bisect_left(SECONDS, seconds)] += 1

    def buckets(self) -> list[tuple[str, float]]:
        """Return the upper bound and the cumulative count of each bucket, for Prometheus."""
        bounds = [*map(str, SECONDS), "+Inf"]
        return list(zip(bounds, accumulate(self._counts), strict=True))


class _Now(Collector):
    """The current values of runs, the sandbox, environments and the database. They are read when metrics are
    requested.
    """

    def __init__(self, measured: Measurable) -> None:
        self._measured = measured

    def collect(self) -> Iterable[CounterMetricFamily | GaugeMetricFamily]:
        """Yield the metrics with the current values."""
        runner, sandbox = self._measured.runner, self._measured.sandbox
        ended = CounterMetricFamily("skillery_runs", "Ended runs.", labels=["method", "status"])
        for (method, status), count in sorted(runner.ended.items()):
            ended.add_metric([method, status], count)
        yield ended
        yield GaugeMetricFamily("skillery_runs_active", "Active runs.", value=runner.active)
        yield GaugeMetricFamily("skillery_runs_queued", "Requests that wait for a run slot.", value=runner.waiting)
        degraded = GaugeMetricFamily(
            "skillery_sandbox_degraded", "1: this host enforces the limit only by weaker means.", labels=["limit"]
        )
        for limit in sorted(LIMITS):
            degraded.add_metric([str(limit)], float(limit not in sandbox.capabilities))
        yield degraded
        for name, value in sorted(sandbox.figures().items()):
            yield GaugeMetricFamily(f"skillery_sandbox_{name}", "Value reported by the sandbox.", value=value)
        states = Counter(self._measured.named.states.values())
        environments = GaugeMetricFamily(
            "skillery_environments", "Named environments on this server, by state.", labels=["state"]
        )
        for state in ("pending", "building", "ready", "failed"):
            environments.add_metric([state], states[state])
        yield environments
        yield from _of_webhooks(self._measured.deliveries)
        yield _of_plugins(self._measured.plugin_failures)
        free = GaugeMetricFamily("skillery_disk_free_bytes", "Free bytes of a folder's disk.", labels=["folder"])
        for folder, count in sorted(self._measured.disks.free().items()):
            free.add_metric([folder], count)
        yield free
        yield CounterMetricFamily(
            "skillery_event_loop_silences",
            "Times without a turn of the event loop.",
            value=self._measured.silences.count,
        )
        used, kept = self._measured.connections()
        connections = GaugeMetricFamily(
            "skillery_database_connections", "Connections to the database.", labels=["state"]
        )
        connections.add_metric(["used"], used)
        connections.add_metric(["idle"], kept)
        yield connections


def _of_plugins(failures: Failures) -> CounterMetricFamily:
    """Return the metric of failed calls of plugins."""
    failed = CounterMetricFamily(
        "skillery_plugin_failures",
        "Failed calls of plugins: the plugin raised, timed out, hangs since earlier calls, or answered wrongly.",
        labels=["plugin", "function", "reason"],
    )
    for failure, count in sorted(failures.counts.items()):
        failed.add_metric([failure.plugin, failure.function, failure.reason], count)
    return failed


def _of_webhooks(deliveries: Deliveries) -> Iterable[CounterMetricFamily | GaugeMetricFamily]:
    """Yield the metrics of webhooks."""
    attempts = CounterMetricFamily("skillery_webhooks_attempts", "Requests to webhooks.", labels=["outcome"])
    for outcome in ("delivered", "failed"):
        attempts.add_metric([outcome], deliveries.attempts[outcome])
    yield attempts
    now = deliveries.figures
    yield GaugeMetricFamily("skillery_webhooks_failing", "Webhooks whose last request failed.", value=now.failing)
    yield GaugeMetricFamily("skillery_webhooks_waiting", "Events that wait for webhooks.", value=now.waiting)
    yield GaugeMetricFamily(
        "skillery_webhooks_dead_letters", "Events that webhooks did not accept in time.", value=now.dead_letters
    )
