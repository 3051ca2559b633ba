"""A short version of `make soak`: after some hundred runs of all kinds, no resource has grown."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bench.soak import KINDS, soak
from skillery.testing.sandbox.leftovers import assert_none_since, traces

RUNS = 300


@pytest.mark.full
@pytest.mark.skipif(os.geteuid() != 0, reason="the limits of an ordinary user end some of these runs differently")
async def test_after_runs_of_all_kinds_nothing_has_grown(tmp_path: Path) -> None:
    before = traces()
    done = await soak(tmp_path, RUNS, looks=1)
    assert done.faults() == []
    assert sum(sum(counts.values()) for counts in done.ended.values()) == RUNS + len(KINDS)
    await assert_none_since(before, closed=True)
