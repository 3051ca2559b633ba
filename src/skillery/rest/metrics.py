"""Metrics in the text format of Prometheus: requests, calls, runs and queues.

Label values are endpoints, methods, codes and statuses, which are fixed sets: callers cannot choose them. Litestar's
middleware is not used, because it adds a series for each address of a blob and never removes one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from prometheus_client import Metric, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from skillery.backends import LIMITS, Sandbox, Scope
from skillery.context.disks import Disks
from skillery.context.request import Silences
from skillery.context.tallies import Histogram, Peers
from skillery.environments.named import NamedEnvironments
from skillery.http.gate import Gate
from skillery.http.operations import Operation, Response
from skillery.http.requests import only, send_bytes
from skillery.maintenance.integrity import Figures, KeptFigures
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
    "skillery_database_bytes": max,
    "skillery_review_waiting": max,
    "skillery_review_oldest_seconds": max,
    "skillery_quotas_near": max,
    "skillery_backup_age_seconds": max,
    # All workers have the same disks and the same build.
    "skillery_disk_free_bytes": max,
    "skillery_disk_size_bytes": max,
    "skillery_build_info": max,
    "process_start_time_seconds": min,
}
"""The functions that make one value from the values of all workers. The values of other metrics are added."""


def merge_texts(texts: Sequence[str]) -> str:
    """Return the metrics of several worker processes as the metrics of one server, in the text format of Prometheus.

    The added metric `skillery_workers` is the number of processes.
    """
    # By the comments of a metric, then by the name with labels: the values of all workers.
    values: dict[str, dict[str, list[float]]] = {}
    for line in (line for text in texts for line in text.splitlines()):
        if line.startswith("# HELP "):
            help_line = line
        elif line.startswith("# TYPE "):
            series = values.setdefault(f"{help_line}\n{line}", {})
        else:
            sample, _, value = line.rpartition(" ")
            series.setdefault(sample, []).append(float(value))
    lines = []
    for comments, series in values.items():
        merge = MERGES.get(comments.split(" ", 3)[2], sum)
        lines += [comments, *(f"{sample} {merge(of_workers)}" for sample, of_workers in series.items())]
    workers = GaugeMetricFamily("skillery_workers", "Worker processes that answered.", value=len(texts))
    return "\n".join(lines) + "\n" + _text_of([workers])


def _text_of(families: Iterable[Metric | str]) -> str:
    """Return metrics in the text format of Prometheus. Texts in `families` have this format already.

    `generate_latest` of prometheus_client takes ten times as long.
    """
    lines = []
    for family in families:
        if isinstance(family, str):
            lines.append(family)
            continue
        name = f"{family.name}_total" if family.type == "counter" else family.name
        lines += [f"# HELP {name} {family.documentation}", f"# TYPE {name} {family.type}"]
        for sample in family.samples:
            labels = ",".join(f'{label}="{_escaped(value)}"' for label, value in sorted(sample.labels.items()))
            series = f"{sample.name}{{{labels}}}" if labels else sample.name
            lines.append(f"{series} {float(sample.value)}")
    return "\n".join(lines) + "\n"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def _histogram(name: str, text: str, label: str, histograms: Mapping[str, Histogram]) -> str:
    """Return histograms of one metric, one for each value of the label. The values need no escapes."""
    lines = [f"# HELP {name} {text}", f"# TYPE {name} histogram"]
    for value, histogram in sorted(histograms.items()):
        labels, buckets = f'{label}="{value}"', histogram.buckets()
        lines += [f'{name}_bucket{{{labels},le="{bound}"}} {count}' for bound, count in buckets]
        lines += [f"{name}_count{{{labels}}} {buckets[-1][1]}", f"{name}_sum{{{labels}}} {histogram.sum}"]
    return "\n".join(lines)


QUESTION = "metrics"
"""The name of the question with which a worker asks the other workers for their metrics."""
Readers = Literal["admin", "open"]
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
"""The upper bounds of the durations of calls."""
HTTP_SECONDS = (0.005, 0.025, 0.1, 0.5, 1, 5, 30)
"""Those of requests. They are few, because there are a hundred endpoints."""


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
    figures: KeptFigures
    build: Mapping[str, str]
    """The version of the server, of Python, and the kind of the database."""


class Metrics:
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
        self._latencies: dict[str, Histogram] = {}
        self._durations: dict[str, Histogram] = {}
        self._process = ProcessCollector(registry=None)
        self._peers = peers
        if peers is not None:
            peers.offer(QUESTION, self._own_text)

    def note(self, endpoint: str, exchange: Exchange, seconds: float) -> None:
        """Count a finished request, which has taken `seconds`, and its calls."""
        durations = self._durations.get(endpoint)
        if durations is None:
            durations = self._durations[endpoint] = Histogram(HTTP_SECONDS)
        durations.note(seconds)
        self._requests[endpoint, exchange.status] += 1
        self._bytes_in[endpoint] += exchange.bytes_in
        self._bytes_out[endpoint] += exchange.bytes_out
        for method, code, seconds_of_call in exchange.request.calls:
            self._calls[method, code] += 1
            latencies = self._latencies.get(method)
            if latencies is None:
                latencies = self._latencies[method] = Histogram(SECONDS)
            latencies.note(seconds_of_call)

    def _counted(self) -> Iterable[Metric | str]:
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
        yield _histogram("skillery_rpc_seconds", "Durations of calls.", "method", self._latencies)
        yield _histogram("skillery_http_seconds", "Durations of requests.", "endpoint", self._durations)

    @property
    def operations(self) -> tuple[Operation, ...]:
        """The description of the endpoint for OpenAPI."""
        plain = Response("The text format of Prometheus.", kinds=(CONTENT_TYPE_PLAIN_0_0_4,))
        needs: Scope | None = "metrics" if self._readers == "admin" else None
        return (
            Operation("GET", "/metrics", "Metrics of the server", {200: plain}, needs=needs, is_open=needs is None),
        )

    async def answer(self, scope: Any, _receive: Any, send: Any, headers: dict[str, str]) -> None:
        """Send all metrics.

        With the setting `metrics = "admin"`, raise the errors of `Gate.admit`: HttpRefusal 401 for a caller without a
        valid token, and NotAllowed for a caller without the scope metrics.
        """
        only(scope, "GET", "HEAD")
        if self._readers == "admin":
            await self._measured.gate.admit(scope, headers, "metrics", "read_metrics")
        if self._peers is None:
            text = await self._own_text()
        else:
            text = merge_texts([text for text in await self._peers.ask(QUESTION) if text is not None])
        await send_bytes(send, 200, text.encode(), CONTENT_TYPE_PLAIN_0_0_4)

    async def _own_text(self) -> str:
        """Return the metrics of this process in the text format of Prometheus."""
        await self._measured.figures.refresh()
        return _text_of([*self._counted(), *_now(self._measured), *self._process.collect()])


def _now(measured: Measurable) -> Iterable[Metric | str]:
    """Yield the current values of runs, the sandbox, environments and the database."""
    runner, sandbox = measured.runner, measured.sandbox
    build = measured.build
    info = GaugeMetricFamily("skillery_build_info", "1, with the build of the server.", labels=[*build])
    info.add_metric([*build.values()], 1)
    yield info
    if measured.figures.now is not None:
        yield from _of_registry(measured.figures.now)
    ended = CounterMetricFamily("skillery_runs", "Ended runs.", labels=["method", "status"])
    for (method, status), count in sorted(runner.ended.items()):
        ended.add_metric([method, status], count)
    yield ended
    yield GaugeMetricFamily("skillery_runs_active", "Active runs.", value=runner.active)
    yield GaugeMetricFamily("skillery_runs_queued", "Requests that wait for a run slot.", value=runner.waiting)
    waits = HistogramMetricFamily("skillery_queue_wait_seconds", "Waits of runs for a slot.")
    waits.add_metric([], runner.waits.buckets(), runner.waits.sum)
    yield waits
    logins = CounterMetricFamily("skillery_failed_logins", "Requests without valid credentials.", labels=["reason"])
    for reason in ("missing", "refused", "limited"):
        logins.add_metric([reason], measured.gate.failed_logins[reason])
    yield logins
    degraded = GaugeMetricFamily(
        "skillery_sandbox_degraded", "1: this host enforces the limit only by weaker means.", labels=["limit"]
    )
    for limit in sorted(LIMITS):
        degraded.add_metric([str(limit)], float(limit not in sandbox.capabilities))
    yield degraded
    for name, value in sorted(sandbox.figures().items()):
        yield GaugeMetricFamily(f"skillery_sandbox_{name}", "Value reported by the sandbox.", value=value)
    states = Counter(measured.named.states.values())
    environments = GaugeMetricFamily(
        "skillery_environments", "Named environments on this server, by state.", labels=["state"]
    )
    for state in ("pending", "building", "ready", "failed"):
        environments.add_metric([state], states[state])
    yield environments
    yield from _of_webhooks(measured.deliveries)
    yield _of_plugins(measured.plugin_failures)
    free = GaugeMetricFamily("skillery_disk_free_bytes", "Free bytes of a folder's disk.", labels=["folder"])
    size = GaugeMetricFamily("skillery_disk_size_bytes", "The size of a folder's disk.", labels=["folder"])
    for folder, (free_bytes, size_bytes) in sorted(measured.disks.measure().items()):
        free.add_metric([folder], free_bytes)
        size.add_metric([folder], size_bytes)
    yield free
    yield size
    yield CounterMetricFamily(
        "skillery_event_loop_silences",
        "Times without a turn of the event loop.",
        value=measured.silences.count,
    )
    yield CounterMetricFamily(
        "skillery_event_loop_silence_seconds", "Length of these silences.", value=measured.silences.seconds
    )
    used, kept = measured.connections()
    connections = GaugeMetricFamily("skillery_database_connections", "Connections to the database.", labels=["state"])
    connections.add_metric(["used"], used)
    connections.add_metric(["idle"], kept)
    yield connections


def _of_registry(figures: Figures) -> Iterable[Metric]:
    """Yield the metrics of the database, which all its servers share."""
    yield GaugeMetricFamily("skillery_database_bytes", "Size of the database.", value=figures.database_bytes)
    yield GaugeMetricFamily("skillery_review_waiting", "Versions in review.", value=figures.in_review)
    waited = datetime.now(UTC) - figures.submitted_at if figures.submitted_at else timedelta()
    yield GaugeMetricFamily(
        "skillery_review_oldest_seconds", "The longest wait for a review.", value=waited.total_seconds()
    )
    near = GaugeMetricFamily(
        "skillery_quotas_near", "Identities or namespaces that have used most of a quota.", labels=["quota"]
    )
    for quota, count in sorted(figures.near_quotas.items()):
        near.add_metric([quota], count)
    yield near
    age = GaugeMetricFamily("skillery_backup_age_seconds", "Time since the last backup.")
    if figures.backed_up_at is not None:
        age.add_metric([], (datetime.now(UTC) - figures.backed_up_at).total_seconds())
    yield age


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
