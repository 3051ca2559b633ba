"""The simulation of many machines: no run is counted twice or lost, and equal seeds give equal results."""

from __future__ import annotations

import pytest

from bench.simulation import WAYS, Cluster, Faults, Load, Simulation, Way, closed_loop

SMALL = Cluster(nodes=5, pending=20)
LOAD = Load(per_second=1200, seconds=1.5, skills=200)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("faults", [Faults(), Faults(slow=2), Faults(lost=3)])
def test_each_requested_run_completes_is_refused_or_is_lost(way: Way, faults: Faults) -> None:
    simulation = Simulation(SMALL, LOAD, faults, way)
    result = simulation.run()

    assert len(result.totals) + result.busy + result.failed == simulation.requested
    assert min(result.waits) >= 0
    assert all(total > 0 for total in result.totals)


def test_equal_seeds_give_equal_results() -> None:
    first, second, other = (Simulation(SMALL, LOAD, Faults(lost=1), "cached first", seed).run() for seed in (1, 1, 2))

    assert first == second
    assert first != other


def test_lost_nodes_lose_only_their_started_runs() -> None:
    result = Simulation(SMALL, LOAD, Faults(lost=2), "least loaded").run()

    assert 0 <= result.failed <= 2 * SMALL.processors


def test_nodes_with_a_bundle_are_preferred() -> None:
    hits = {way: Simulation(SMALL, LOAD._replace(per_second=600), Faults(), way).run().hits for way in WAYS}

    assert hits["cached first"] > hits["least loaded"]


def test_a_single_node_is_limited_by_its_processors() -> None:
    cluster = Cluster(nodes=1, processors=2, run_ms=5.0, code_ms=0.0, dispatch_ms=0.0)

    assert closed_loop(cluster, callers=1, runs=100) == pytest.approx(200)
    assert closed_loop(cluster, callers=8, runs=1000) == pytest.approx(400, rel=0.01)
