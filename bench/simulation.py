"""A simulation of many machines that execute runs: waits in queues, caches, slow machines, and machines that fail.

`python -m bench simulation` prints the tables of docs/design/benchmarks.md. The events are discrete, the random numbers
have a seed, and the figures of one machine come from measurements. So a result can be repeated exactly.
"""

from __future__ import annotations

import heapq
import random
from bisect import bisect
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Literal, NamedTuple

from bench.report import Report, format_ms, percentile

SEED = 20_261_125
Way = Literal["least loaded", "cached first"]
WAYS: tuple[Way, ...] = ("least loaded", "cached first")
NEAR = 2
"""With "cached first", a run goes to a node that has its skill if that node has at most this many runs more than the
least loaded one.
"""


class Cluster(NamedTuple):
    """The machines, and what a run costs on them. Times are in milliseconds."""

    nodes: int = 50
    processors: int = 2
    run_ms: float = 4.6
    """Processor time of the server and of the sandbox for a run, without the time of the code."""
    code_ms: float = 1.0
    """Median of the processor time of the code itself; the times have a long tail (log-normal, sigma 1)."""
    dispatch_ms: float = 1.4
    """Time from the machine with the database to a node and back."""
    fetch_ms: float = 25.0
    """Time to fetch, verify and unpack a bundle that the node does not have. Its runs wait, and use no processor."""
    cached: int = 2_000
    """Bundles that a node keeps."""
    pending: int = 400
    """Runs that may wait on a node. A further run is refused as busy."""


USUAL = Cluster()


class Load(NamedTuple):
    per_second: float = 10_000
    seconds: float = 20.0
    skills: int = 20_000
    skew: float = 1.1
    """Exponent of Zipf's law: the n-th skill is requested in proportion to 1 / n ** skew."""


class Faults(NamedTuple):
    slow: int = 0
    """Nodes whose processors take three times as long."""
    lost: int = 0
    """Nodes that fail together, after a third of the time."""


class Result(NamedTuple):
    waits: list[float]
    """Milliseconds that each run waited on its node: for its bundle, and for a processor."""
    totals: list[float]
    """Milliseconds from the request to the result of each run."""
    hits: float
    """Share of runs whose node had the bundle."""
    busy: int
    failed: int
    """Runs that were lost with their node."""


class _Node:
    def __init__(self, speed: float, cluster: Cluster) -> None:
        self.speed = speed
        self.free = cluster.processors
        self.queue: deque[_Run] = deque()
        self.coming: set[_Run] = set()
        """Runs on their way, and runs that wait for their bundle."""
        self.active: set[_Run] = set()
        self.cache: OrderedDict[int, float] = OrderedDict()
        """The bundles of the node, and the time at which each is complete."""
        self.is_alive = True

    @property
    def waiting(self) -> int:
        return len(self.queue) + len(self.coming)

    @property
    def load(self) -> int:
        return self.waiting + len(self.active)


class _Run(NamedTuple):
    number: int
    skill: int
    requested: float


class Simulation:
    """One simulation. `run` returns its result."""

    def __init__(self, cluster: Cluster, load: Load, faults: Faults, way: Way, seed: int = SEED) -> None:
        self._cluster, self._load, self._faults, self._way = cluster, load, faults, way
        self._random = random.Random(seed)
        self._nodes = [_Node(3.0 if number < faults.slow else 1.0, cluster) for number in range(cluster.nodes)]
        self._events: list[tuple[float, int, Callable[[float], None]]] = []
        self._order = 0
        self._weights = list(accumulate(1 / rank**load.skew for rank in range(1, load.skills + 1)))
        self._waits: list[float] = []
        self._totals: list[float] = []
        self._hits = self._started = self._busy = self._failed = 0
        self.requested = 0

    def run(self) -> Result:
        self._at(self._next_arrival(0.0), self._arrive)
        if self._faults.lost:
            self._at(self._load.seconds * 1000 / 3, self._lose)
        while self._events:
            now, _, handle = heapq.heappop(self._events)
            handle(now)
        return Result(self._waits, self._totals, self._hits / max(1, self._started), self._busy, self._failed)

    def _at(self, time: float, handle: Callable[[float], None]) -> None:
        self._order += 1
        heapq.heappush(self._events, (time, self._order, handle))

    def _next_arrival(self, now: float) -> float:
        return now + self._random.expovariate(self._load.per_second / 1000)

    def _arrive(self, now: float) -> None:
        self.requested += 1
        run = _Run(self.requested, bisect(self._weights, self._random.random() * self._weights[-1]), now)
        node = self._place(run.skill)
        if node.waiting >= self._cluster.pending:
            self._busy += 1
        else:
            self._send(node, run, now)
        following = self._next_arrival(now)
        if following < self._load.seconds * 1000:
            self._at(following, self._arrive)

    def _send(self, node: _Node, run: _Run, now: float) -> None:
        node.coming.add(run)
        self._at(now + self._cluster.dispatch_ms / 2, partial(self._receive, node, run))

    def _receive(self, node: _Node, run: _Run, now: float) -> None:
        """Let the run wait for its bundle. Runs that need the same bundle wait for one transfer."""
        if not node.is_alive:
            return
        complete = node.cache.pop(run.skill, None)
        self._started += 1
        self._hits += complete is not None
        complete = now + self._cluster.fetch_ms if complete is None else complete
        node.cache[run.skill] = complete
        if len(node.cache) > self._cluster.cached:
            node.cache.popitem(last=False)
        self._at(max(now, complete), partial(self._queue, node, run))

    def _queue(self, node: _Node, run: _Run, now: float) -> None:
        if node.is_alive:
            node.coming.discard(run)
            node.queue.append(run)
            self._work(node, now)

    def _place(self, skill: int) -> _Node:
        alive = [node for node in self._nodes if node.is_alive]
        # Equal nodes take turns.
        first = self._random.randrange(len(alive))
        least = min(alive[first:] + alive[:first], key=lambda node: node.load)
        if self._way == "least loaded":
            return least
        near = [node for node in alive if skill in node.cache and node.load <= least.load + NEAR]
        return min(near, key=lambda node: node.load, default=least)

    def _work(self, node: _Node, now: float) -> None:
        while node.free and node.queue:
            run = node.queue.popleft()
            node.free -= 1
            node.active.add(run)
            self._waits.append(max(0.0, now - run.requested - self._cluster.dispatch_ms / 2))
            code = self._random.lognormvariate(0, 1) * self._cluster.code_ms
            self._at(now + (self._cluster.run_ms + code) * node.speed, partial(self._end, node, run))

    def _end(self, node: _Node, run: _Run, now: float) -> None:
        if run not in node.active:
            return  # lost with its node
        node.active.discard(run)
        node.free += 1
        self._totals.append(now - run.requested + self._cluster.dispatch_ms / 2)
        self._work(node, now)

    def _lose(self, now: float) -> None:
        """Let nodes fail. A run that was started is not started again. A run that only waited goes to another node."""
        lost = self._nodes[-self._faults.lost :]
        for node in lost:
            node.is_alive = False
            self._failed += len(node.active)
            node.active.clear()
        for node in lost:
            for run in (*node.queue, *sorted(node.coming)):
                self._send(self._place(run.skill), run, now)
            node.queue.clear()
            node.coming.clear()


def simulate(load: Load, faults: Faults, way: Way, cluster: Cluster = USUAL) -> Result:
    return Simulation(cluster, load, faults, way).run()


def closed_loop(cluster: Cluster, callers: int, runs: int, seed: int = SEED) -> float:
    """Return the runs per second of one node with callers that send the next run when the last one has ended."""
    chance = random.Random(seed)
    free = [0.0] * cluster.processors
    ready = [0.0] * callers
    heapq.heapify(free)
    heapq.heapify(ready)
    last = 0.0
    for _ in range(runs):
        asked, idle = heapq.heappop(ready), heapq.heappop(free)
        code = chance.lognormvariate(0, 1) * cluster.code_ms
        end = max(asked + cluster.dispatch_ms / 2, idle) + cluster.run_ms + code
        heapq.heappush(free, end)
        heapq.heappush(ready, end + cluster.dispatch_ms / 2)
        last = max(last, end)
    return runs / last * 1000


def measure(report: Report, _: Path, small: bool) -> None:
    load = Load(seconds=4.0 if small else 20.0)
    report.heading("Many machines (simulation)")
    report.text(
        f"{load.per_second:,.0f} runs a second on {USUAL.nodes} nodes with {USUAL.processors} processors each, "
        f"for {load.seconds:g} s: {load.skills:,} skills by Zipf's law ({load.skew}), {USUAL.run_ms:g} ms of the "
        f"server and the sandbox for each run, {USUAL.code_ms:g} ms of code (median), caches that begin empty. "
        "Times in milliseconds, from the same seed."
    )
    cases: list[tuple[str, Faults]] = [
        ("no fault", Faults()),
        ("5 slow nodes", Faults(slow=5)),
        ("5 nodes fail", Faults(lost=5)),
        ("10 nodes fail", Faults(lost=10)),
    ]
    rows = [[name, way, *_figures(simulate(load, faults, way))] for name, faults in cases for way in WAYS]
    report.table(["case", "placement", "wait p50", "wait p99", "total p99", "cache hits", "busy", "failed"], rows)
    report.text(_losses(load))
    report.text(_check())


def _figures(result: Result) -> list[str]:
    return [
        format_ms(percentile(result.waits, 50)),
        format_ms(percentile(result.waits, 99)),
        format_ms(percentile(result.totals, 99)),
        f"{result.hits:.1%}",
        str(result.busy),
        str(result.failed),
    ]


def most_lost(load: Load, steps: Sequence[int]) -> int:
    """Return how many nodes may fail before the 99th percentile of the whole time doubles."""
    usual = percentile(simulate(load, Faults(), "cached first").totals, 99)
    tolerated = 0
    for lost in steps:
        if percentile(simulate(load, Faults(lost=lost), "cached first").totals, 99) > 2 * usual:
            break
        tolerated = lost
    return tolerated


def _losses(load: Load) -> str:
    lost = most_lost(load, range(2, 31, 2))
    return f"With the placement 'cached first', {lost} of {USUAL.nodes} nodes may fail before the p99 doubles."


def _check() -> str:
    """Compare the simulation of one machine with the measurement of this benchmark file."""
    one = closed_loop(USUAL._replace(nodes=1, code_ms=0.0, dispatch_ms=0.0), callers=4, runs=4000)
    return (
        f"One node with four callers and runs without code: {one:.0f} runs a second, from the processor time alone. "
        "Compare it with the row of four callers in the section about a no-op run."
    )
