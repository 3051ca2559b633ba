"""`python -m bench attack` in short: its attacks reach a server, and the server is measured."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.attack import attacked, prepare, serving, tight
from bench.attackers import ATTACKS
from bench.victim import Victim
from tests.conftest import Server


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Victim]:
    home = tmp_path_factory.mktemp("bench") / "home"
    return home, prepare(home, small=True)


@pytest.fixture(scope="module")
def server(prepared: tuple[Path, Victim]) -> Iterator[Server]:
    with serving(prepared[0], tight()) as server:
        yield server


@pytest.mark.full
@pytest.mark.parametrize("name", ["trailer-value", "connections", "lists", "words", "array"])
def test_an_attack_reports_its_outcome_and_measurements(
    server: Server, prepared: tuple[Path, Victim], name: str
) -> None:
    seen = attacked(server, prepared[1], name, ATTACKS[name], tight())

    assert "the attacker failed" not in seen.outcome, seen.outcome
    assert seen.outcome
    assert seen.silence.asked > 0
    assert len(seen.row()) == 9
    assert server.rpc.http.get("/healthz").status_code == 200
