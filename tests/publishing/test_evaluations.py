"""Evaluations on a server: a version that is worse than the version before is not published."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.cli.test_cli import skillery
from tests.conftest import Rpc, Server, manifest, skill_files
from tests.support.people import Caller, Who, people_settings
from tests.support.processes import eventually

SETTINGS = """
[policy."acme.*"]
needs = ["tests", "evaluation"]
evaluation = { min_pass = 0.5 }
"""
ADDS = "def main(args):\n    return {'sum': args['a'] + args['b']}\n"
ADDS_WRONG = "def main(args):\n    return {'sum': args['a'] + abs(args['b'])}\n"
SMALL = {"name": "small", "args": {"a": 1, "b": 2}, "expect": {"sum": 3}}
NEGATIVE = {"name": "negative", "args": {"a": 1, "b": -2}, "expect": {"sum": -1}}


@pytest.fixture(scope="module")
def server(
    database_kind: str, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("evaluations")
    (folder / "home").mkdir()
    (folder / "home" / "skillery.toml").write_text(SETTINGS)
    url = "" if database_kind == "sqlite" else request.getfixturevalue("migrated_postgres_database")()
    running = Server(folder / "home", env=people_settings(folder / "plugins", SKILLERY_DATABASE=url))
    yield running
    assert running.stop() == 0, running.log.read_text()[-4000:]


def publish(caller: Rpc, name: str, version: str, code: str, *examples: dict[str, Any]) -> str:
    made = manifest(name, version=version, examples=[*examples])
    return str(caller("create_skill", manifest=made, skill_md="# A\n", files=skill_files(code))["status"])


def ended(caller: Rpc, name: str, version: str) -> Any:
    """Return the last evaluation of a version, with its cases, when it has ended."""

    def newest() -> Any:
        rows = caller("list_evaluations", name=name, version=version)["evaluations"]
        return rows and rows[0]["ended_at"] and rows[0]

    return caller("get_evaluation", id=eventually(newest)["id"])


@pytest.mark.full
def test_a_version_that_got_worse_is_not_published(server: Server, new_name: str) -> None:
    name = f"acme.{new_name}"
    ann = Caller(server.url, Who("ann", "read run publish", "*"))
    assert publish(ann, name, "1.0.0", ADDS, SMALL, NEGATIVE) == "in_review"
    first = ended(ann, name, "1.0.0")
    assert (first["state"], first["verdict"]) == ("done", None)
    assert first["summary"] == "100% with · nothing to compare · 2 cases"
    policy = ann("explain_policy", name=name, version="1.0.0")
    [need] = [need for need in policy["needs"] if need["need"] == "evaluation"]
    assert (policy["status"], [each["id"] for each in need["evidence"]]) == ("published", [first["attestation"]])

    # The new version drops the example that it breaks.
    assert publish(ann, name, "1.1.0", ADDS_WRONG, SMALL) == "in_review"
    worse = ended(ann, name, "1.1.0")
    assert (worse["verdict"], worse["before"]) == ("worse", "1.0.0")
    assert worse["summary"] == "50% with, 100% before · worse: negative · 2 cases"
    both = {"passed": 1, "trials": 1}
    assert [(case["id"], case["arms"]) for case in worse["cases"]] == [
        ("small", {"with": both, "before": both}),
        ("negative", {"with": {"passed": 0, "trials": 1}, "before": both}),
    ]
    assert worse["cases"][1]["problems"][0].startswith("output.sum: expected -1, got 3")
    policy = ann("explain_policy", name=name, version="1.1.0")
    assert (policy["status"], policy["needs"][-1]["missing"]) == (
        "in_review", "an evaluation that is not worse than that of 1.0.0: negative",
    )  # fmt: skip


@pytest.mark.full
def test_skillery_eval_prints_the_cases_that_got_worse(sqlite_rpc: Rpc, new_name: str) -> None:
    publish(sqlite_rpc, new_name, "1.0.0", ADDS, SMALL, NEGATIVE)
    publish(sqlite_rpc, new_name, "1.1.0", ADDS_WRONG, SMALL)

    ended = skillery("eval", f"{new_name}@1.1.0", "--url", sqlite_rpc.url)
    lines = ended.out.splitlines()
    assert (ended.code, lines[0]) == (1, "  negative: 0 of 1, before 1 of 1")
    assert lines[1].startswith("    output.sum: expected -1, got 3")
    assert lines[2:] == [f"{new_name} 1.1.0: 50% with, 100% before · worse: negative · 2 cases"]


@pytest.mark.full
def test_a_killed_server_counts_no_trial_twice(start_server: Callable[..., Server], new_name: str) -> None:
    env = {"SKILLERY_EVALS_RUNS": "1"}
    killed = start_server(env=env)
    slow = "import time\n\ndef main(args):\n    time.sleep(0.4)\n"
    publish(killed.rpc, new_name, "1.0.0", slow, *({"name": f"case {number}", "args": {}} for number in range(5)))
    started = killed.rpc("start_evaluation", name=new_name, version="1.0.0")
    eventually(lambda: killed.rpc("get_evaluation", id=started["id"])["done"] >= 2)
    killed.stop(signal.SIGKILL)

    rpc = start_server(env=env).rpc
    evaluation = ended(rpc, new_name, "1.0.0")
    assert (evaluation["state"], evaluation["done"]) == ("done", 5)
    assert [case["arms"] for case in evaluation["cases"]] == [{"with": {"passed": 1, "trials": 1}}] * 5
    assert len(rpc("list_attestations", name=new_name, predicate="evaluation")["attestations"]) == 1
