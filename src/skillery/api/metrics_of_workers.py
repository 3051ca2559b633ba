"""The metrics of all worker processes of a server as one text."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from prometheus_client import CollectorRegistry, Metric, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

MERGES: dict[str, Callable[[Iterable[float]], float]] = {
    # The database has these numbers, so each worker reports all of them.
    "skillery_webhooks_failing": max,
    "skillery_webhooks_waiting": max,
    "skillery_webhooks_dead_letters": max,
    # A limit that one worker enforces by weaker means is degraded.
    "skillery_sandbox_degraded": max,
    "process_start_time_seconds": min,
}
"""How the values of a metric become one. All other metrics are added up."""


def merge_texts(texts: Sequence[str]) -> str:
    """Return the metrics of several processes as the metrics of one server, in the text format of Prometheus.

    The metric `skillery_workers` is the number of processes.
    """
    families: dict[str, list[Metric]] = {}
    for text in texts:
        for family in text_string_to_metric_families(text):
            families.setdefault(family.name, []).append(family)
    registry = CollectorRegistry()
    registry.register(_Families([*map(_merge, families.values()), _workers(len(texts))]))
    return generate_latest(registry).decode()


class _Families(Collector):
    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


def _merge(families: Sequence[Metric]) -> Metric:
    first = families[0]
    values: dict[tuple[str, tuple[tuple[str, str], ...]], list[float]] = {}
    for family in families:
        for sample in family.samples:
            values.setdefault((sample.name, tuple(sample.labels.items())), []).append(sample.value)
    merge = MERGES.get(first.name, sum)
    merged = Metric(first.name, first.documentation, first.type)
    for (name, labels), each in values.items():
        merged.add_sample(name, dict(labels), merge(each))
    return merged


def _workers(count: int) -> Metric:
    workers = Metric("skillery_workers", "Worker processes that answered.", "gauge")
    workers.add_sample("skillery_workers", {}, count)
    return workers
