"""Evaluations on a server: a version that is worse than the version before is not published."""

from __future__ import annotations

import base64
import functools
import json
import re
import signal
import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, insert

from skillery.attestations.evaluations import suite_fits, suite_problem
from skillery.database import Database
from skillery.database.tables import eval_trials, evaluations, skill_versions, skills
from skillery.evaluations.trials import Amount
from skillery.proof.dsse import SigningKey
from skillery.publishing.evaluation_rows import read_costs
from tests.cli.test_cli import skillery
from tests.cli.test_interrupts import interrupted, start
from tests.conftest import Rpc, Server, manifest, skill_files
from tests.proof.test_keys import register, signed
from tests.publishing.test_requires import COLUMNS
from tests.support.browser import hidden_fields
from tests.support.fake_model import FakeModel, Heard, Wanted
from tests.support.people import Caller, Who, people_settings
from tests.support.processes import eventually

SETTINGS = """
[policy."acme.*"]
needs = ["tests", "evaluation"]
evaluation = { min_pass = 0.5 }

[policy."ask.*"]
needs = ["evaluation"]

[policy."few.*"]
needs = ["evaluation"]
evaluation = { cases = 2 }

[policy."any.*"]
needs = ["evaluation"]
evaluation = { verdict = "any" }

[policy."outside.*"]
needs = ["evaluation"]
evaluation = { outside = true }

[policy."held.*"]
needs = ["evaluation"]
evaluation = { suite = "quality.held@^1" }

[evals]
on_submit = "all"
model = "house"
trials = 1

[models.house]
url = "URL/v1"
model = "house-small"
input_price = 1.0
output_price = 1.0
"""
ADDS = "def main(args):\n    return {'sum': args['a'] + args['b']}\n"
ADDS_WRONG = "def main(args):\n    return {'sum': args['a'] + abs(args['b'])}\n"
SMALL = {"name": "small", "args": {"a": 1, "b": 2}, "expect": {"sum": 3}}
EVALUATION = {
    "suite": "own",
    "suite_digest": "sha256:0",
    "kinds": "task",
    "trials": 1,
    "identity": "ann",
    "identity_kind": "person",
}
TRIAL = {"kind": "task", "case_id": "a", "arm": "with", "trial": 1, "is_done": True, "attempts": 1}
MODEL_KEY = "sk-7f3a90c1d2"
RELEASED = threading.Event()
NEGATIVE = {"name": "negative", "args": {"a": 1, "b": -2}, "expect": {"sum": -1}}


def play(asked: dict[str, Any], heard: Sequence[Heard]) -> Sequence[Wanted] | str:
    """Use the skill if there is one, after a look at the cases, which the agent must not see. Choose the skill that a
    prompt names.
    """
    tools = {tool["function"]["name"] for tool in asked["tools"]}
    if "choose_skill" in tools:
        return [Wanted("choose_skill", {"name": asked["messages"][-1]["content"].split()[-1]})]
    if "read_skill_file" not in tools:
        return "I cannot."
    if heard:
        return f"no cases: {'passed' not in str(heard[0])}; {heard[1].content}"
    numbers = {"args": {"a": 1, "b": -2}}
    return [Wanted("read_skill_file", {"path": "evals/evals.json"}), Wanted("execute_skill", numbers)]


@pytest.fixture(scope="module")
def model() -> Iterator[FakeModel]:
    with FakeModel(play=play) as running:
        yield running


@pytest.fixture(scope="module")
def server(
    model: FakeModel, database_kind: str, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("evaluations")
    (folder / "home").mkdir()
    (folder / "home" / "skillery.toml").write_text(SETTINGS.replace("URL", model.url))
    url = "" if database_kind == "sqlite" else request.getfixturevalue("migrated_postgres_database")()
    running = Server(folder / "home", env=people_settings(folder / "plugins", SKILLERY_DATABASE=url))
    yield running
    assert running.stop() == 0, running.log.read_text()[-4000:]


def publish(caller: Rpc, name: str, version: str, code: str, *examples: dict[str, Any], **files: str) -> str:
    made = manifest(name, version=version, examples=[*examples])
    created = caller("create_skill", manifest=made, skill_md="# A\n", files=skill_files(code, **files))
    return str(created["status"])


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
    page = ann.http.get(f"/s/{name}@1.1.0").text
    assert "Evaluation: 50% with, 100% before · worse: negative · 2 cases." in page
    assert 'aria-label="Passed trials by version: 1.0.0 100 %, 1.1.0 50 %"' in page
    policy = ann("explain_policy", name=name, version="1.1.0")
    assert (policy["status"], policy["needs"][-1]["missing"]) == (
        "in_review", "an evaluation that is not worse than that of 1.0.0: negative",
    )  # fmt: skip

    # A yank does not hide the version before.
    ann("yank_version", name=name, version="1.0.0", reason="old")
    publish(ann, name, "1.2.0", ADDS_WRONG, SMALL)
    again = ended(ann, name, "1.2.0")
    assert (again["verdict"], again["before"]) == ("worse", "1.0.0")


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


@pytest.mark.full
def test_an_unclear_evaluation_of_tasks_needs_a_reviewer(server: Server, new_name: str) -> None:
    name = f"ask.{new_name}"
    ann, rita = (Caller(server.url, Who(who, "read run publish review", "*")) for who in ("ann", "rita"))
    graders = [{"type": "contains", "pattern": "-1"}, {"type": "contains", "pattern": "no cases: True"}]
    tasks = json.dumps({"evals": [{"id": 1, "prompt": "What is 1 + -2?", "graders": graders}]})
    publish(ann, name, "1.0.0", ADDS, SMALL, **{"evals/evals.json": tasks})
    first = ended(ann, name, "1.0.0")
    assert (first["state"], first["error"], first["verdict"], first["kinds"]) == ("done", "", None, ["run", "task"])
    counts = {arm: count["passed"] for arm, count in first["cases"][1]["arms"].items()}
    assert counts == {"with": 1, "without": 0}
    eve, kept = Caller(server.url, Who("eve", "read")), first["cases"][1]["transcripts"]
    assert [(each["arm"], each["passed"]) for each in kept] == [("with", True), ("without", False)]
    read = {"id": first["id"], "transcript": kept[0]["id"]}
    assert '"name":"execute_skill"' in rita("read_transcript", **read)["text"]
    assert ended(eve, name, "1.0.0")["cases"][1]["transcripts"] == []
    assert eve.error("read_transcript", **read)["data"]["type"] == "evaluation_not_found"
    assert eve.error("read_blob", blob_id=kept[0]["id"])["data"]["type"] == "blob_not_found"
    assert ann("explain_policy", name=name, version="1.0.0")["status"] == "published"

    above = ann.error("start_evaluation", name=name, version="1.0.0", kinds=["task"], budget=5.01)
    assert above["message"] == "'budget' is 5.01, at most 5 USD are permitted"

    publish(ann, name, "1.1.0", ADDS_WRONG, SMALL, **{"evals/evals.json": tasks})
    unclear = ended(ann, name, "1.1.0")
    assert unclear["verdict"] == "unclear"
    assert unclear["summary"].startswith("50% with, 0% without, 100% before · unclear · 2 cases · 0.0")
    # An evaluation without the tasks does not hide them.
    ann("start_evaluation", name=name, version="1.1.0", kinds=["run"])
    assert ended(ann, name, "1.1.0")["verdict"] == "same"
    [need] = ann("explain_policy", name=name, version="1.1.0")["needs"]
    assert need["missing"] == "a reviewer who accepts its unclear evaluation"
    assert ann("list_workspaces")["workspaces"] == []
    assert rita("approve_version", name=name, version="1.1.0")["status"] == "in_review"
    page = f"/review/{name}@1.1.0"
    form: dict[str, Any] = {**hidden_fields(rita.http.get(page).text), "action": "approve"}
    refused = rita.http.post(page, data=form, headers={"origin": rita.url})
    assert "Confirm that you accept the unclear evaluation." in refused.text
    form["tick"] = unclear["id"]
    assert rita.http.post(page, data=form, headers={"origin": rita.url}).status_code == 303
    assert ann("explain_policy", name=name, version="1.1.0")["status"] == "published"

    ann("start_evaluation", name=name, version="1.1.0", kinds=["task"], budget=0.000001)
    stopped = ended(ann, name, "1.1.0")
    assert (stopped["state"], stopped["error"]) == ("stopped", "0.00 of 0.00 USD are used; raise the budget")


def says(asked: dict[str, Any], heard: Sequence[Heard]) -> str:
    """Answer with the key of the request, as a hostile endpoint could. Tasks with "Wait." wait for RELEASED."""
    if "Wait." in json.dumps(asked["messages"]):
        RELEASED.wait(300)
    return f"{len(asked['tools'])}, and the key is {MODEL_KEY}"


@pytest.fixture(scope="module")
def keeping(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server on SQLite with a model that repeats its key, and without a grace time of sweeps."""
    folder = tmp_path_factory.mktemp("keeping")
    with FakeModel(play=says) as model:
        settings = SETTINGS.replace("URL", model.url).replace('"house-small"', '"house-small"\nsecret = "HOUSE_KEY"')
        (folder / "home").mkdir()
        (folder / "home" / "skillery.toml").write_text(settings + "\n[gc]\ngrace_minutes = 0\n")
        env = {"SKILLERY_SECRETS": "environment", "SKILLERY_SECRET_HOUSE_KEY": MODEL_KEY}
        running = Server(folder / "home", env=env)
        yield running
        assert running.stop() == 0, running.log.read_text()[-4000:]


@pytest.mark.full
def test_transcripts_have_no_key_and_end_with_their_time_or_version(
    keeping: Server, new_name: str, tmp_path: Path
) -> None:
    rpc = keeping.rpc
    tasks = json.dumps({"evals": [{"prompt": "Add 1 and 2.", "graders": [{"type": "contains", "pattern": "3"}]}]})
    publish(rpc, new_name, "1.0.0", ADDS, SMALL, **{"evals/evals.json": tasks})
    command = "eval", f"{new_name}@1.0.0", "--tasks", "--transcripts", str(tmp_path / "said"), "--url", keeping.url
    done = skillery(*command)
    assert done.code == 0, done.err
    assert sorted(file.name for file in (tmp_path / "said").iterdir()) == ["2-with-1.jsonl", "2-without-1.jsonl"]
    said = [json.loads(line) for line in (tmp_path / "said" / "2-with-1.jsonl").read_text().splitlines()]
    assert [(entry["role"], entry["text"]) for entry in said] == [
        ("user", "Add 1 and 2."),
        ("assistant", f"{said[1]['text'][0]}, and the key is *"),
    ]

    evaluation = ended(rpc, new_name, "1.0.0")
    [_, case] = evaluation["cases"]
    first, second = ({"id": evaluation["id"], "transcript": kept["id"]} for kept in case["transcripts"])
    with sqlite3.connect(keeping.home / "skillery.db", timeout=300) as database:
        past = (datetime.now(UTC) - timedelta(days=1)).strftime("%Y-%m-%d %H:%M:%S.%f")
        database.execute("UPDATE blobs SET expires_at = ? WHERE id = ?", (past, first["transcript"]))
    removed = rpc("collect_garbage")["removed"]
    assert (removed["expired_blobs"]["count"], removed["unused_contents"]["count"]) == (1, 1)
    assert rpc.error("read_transcript", **first)["message"].endswith(f"has no transcript '{first['transcript']}'")
    assert rpc("read_transcript", **second)["text"].count("\n") == 2
    assert len(ended(rpc, new_name, "1.0.0")["cases"][1]["transcripts"]) == 1

    purged = rpc("purge_version", name=new_name, version="1.0.0", reason="It has a password.")
    assert purged["deleted_contents"] > 0
    with sqlite3.connect(keeping.home / "skillery.db", timeout=300) as database:
        assert database.execute("SELECT count(*) FROM blobs WHERE kind LIKE '%transcript%'").fetchone() == (0,)


@pytest.mark.full
def test_the_command_of_a_version_chooses_model_trials_and_budget(keeping: Server, new_name: str) -> None:
    tasks = json.dumps({"evals": [{"prompt": "Add 1 and 2.", "graders": [{"type": "contains", "pattern": "3"}]}]})
    publish(keeping.rpc, new_name, "1.0.0", ADDS, SMALL, **{"evals/evals.json": tasks})
    evaluate = functools.partial(skillery, "eval", f"{new_name}@1.0.0", "--url", keeping.url, "--tasks")
    stopped = evaluate("--name", "house", "--trials", "2", "--budget", "0.000001")
    assert stopped.code == 1
    assert stopped.err.endswith(": 5 trials\n")
    # The example may run at the same time.
    assert re.search(r"stopped after [01] of 5 trials: 0\.00 of 0\.00 USD are used; raise the budget", stopped.out)
    absent = evaluate("--name", "castle")
    assert (absent.code, "there is no [models.castle]" in absent.err) == (3, True)
    before = skillery("eval", f"{new_name}@1.0.0", "--before", ".")
    assert (before.code, "are about folders: write DIR" in before.err) == (2, True)


@pytest.mark.full
def test_ctrl_c_cancels_the_evaluation_of_a_version(keeping: Server, new_name: str) -> None:
    tasks = json.dumps({"evals": [{"prompt": "Wait.", "graders": [{"type": "contains", "pattern": "3"}]}]})
    publish(keeping.rpc, new_name, "1.0.0", ADDS, SMALL, **{"evals/evals.json": tasks})
    with start("eval", f"{new_name}@1.0.0", "--tasks", "--url", keeping.url) as process:
        assert process.stderr is not None
        evaluation = process.stderr.readline().partition(":")[0]
        assert interrupted(process) == f"{evaluation} is cancelled\n"
    assert keeping.rpc("get_evaluation", id=evaluation)["state"] == "cancelled"
    RELEASED.set()


@pytest.mark.full
def test_a_policy_states_the_cases_and_the_verdict_of_evaluations(server: Server, new_name: str) -> None:
    ann = Caller(server.url, Who("ann", "read run publish", "*"))
    few, any_verdict = f"few.{new_name}", f"any.{new_name}"
    publish(ann, few, "1.0.0", ADDS, SMALL)
    assert ended(ann, few, "1.0.0")["state"] == "done"
    [need] = ann("explain_policy", name=few, version="1.0.0")["needs"]
    assert (ann.status(few), need["missing"]) == ("in_review", "an evaluation with 2 cases (it has 1)")
    publish(ann, few, "1.1.0", ADDS, SMALL, NEGATIVE)
    assert ended(ann, few, "1.1.0")["state"] == "done"
    assert ann.status(few, "1.1.0") == "published"

    publish(ann, any_verdict, "1.0.0", ADDS, SMALL, NEGATIVE)
    assert ended(ann, any_verdict, "1.0.0")["state"] == "done"
    publish(ann, any_verdict, "1.1.0", ADDS_WRONG, SMALL)
    assert ended(ann, any_verdict, "1.1.0")["verdict"] == "worse"
    assert ann.status(any_verdict, "1.1.0") == "published"


@pytest.mark.full
def test_only_a_policy_with_outside_accepts_results_of_other_tools(server: Server, new_name: str) -> None:
    ann, key = Caller(server.url, Who("ann", "read run publish", "*")), SigningKey.new()
    register(ann, key)
    result: dict[str, Any] = {"by": "ann", "executed": "outside", "suite": {"name": "own", "digest": "sha256:0"}}
    result |= {"count": 2, "trials": 3, "shares": {"with": 0.75}, "evaluation": "", "before": None, "verdict": None}
    for namespace, status in (("outside", "published"), ("ask", "in_review")):
        created = ann.create(f"{namespace}.{new_name}")
        assert created["status"] == "in_review"
        envelope = signed(key, "evaluation", created, worse=[], **result)
        ann("add_attestation", name=created["name"], version="1.0.0", envelope=envelope)
        assert ann.status(created["name"]) == status


@pytest.mark.full
def test_evaluations_of_two_callers_take_turns(
    start_server: Callable[..., Server], new_name: str, tmp_path: Path
) -> None:
    server = start_server(env=people_settings(tmp_path, SKILLERY_EVALS_RUNS="1"))
    ann, bob = (Caller(server.url, Who(who, "read run publish", "*")) for who in ("ann", "bob"))
    slow = "import time\n\ndef main(args):\n    time.sleep(0.2)\n"
    publish(ann, f"{new_name}.many", "1.0.0", slow, *({"name": f"case {number}", "args": {}} for number in range(20)))
    publish(bob, f"{new_name}.few", "1.0.0", slow, {"name": "case", "args": {}})
    for caller, name in ((ann, "many"), (bob, "few")):
        caller("start_evaluation", name=f"{new_name}.{name}", version="1.0.0")
    few, many = (ended(ann, f"{new_name}.{name}", "1.0.0") for name in ("few", "many"))
    assert few["ended_at"] < many["ended_at"]


@pytest.mark.full
def test_evaluations_have_a_maximum_number_of_trials(server: Server, new_name: str) -> None:
    name = f"free.{new_name}"
    ann = Caller(server.url, Who("ann", "read run publish", "*"))
    tasks = json.dumps({"evals": [{"prompt": "Add.", "expected_output": "3"}] * 600})
    publish(ann, name, "1.0.0", ADDS, **{"evals/evals.json": tasks})
    refused = ann.error("start_evaluation", name=name, version="1.0.0", kinds=["task"], trials=20)
    assert refused["message"] == "the evaluation would have 24000 trials, at most 20000 are permitted"


@pytest.mark.full
def test_skills_that_an_agent_calls_get_no_permissions(server: Server, new_name: str) -> None:
    name, required = f"ask.{new_name}", f"free.{new_name}"
    ann = Caller(server.url, Who("ann", "read run publish", "*"))
    code = "import os\n\ndef main(args):\n    return 'open' if 'HTTPS_PROXY' in os.environ else 'closed'\n"
    made = manifest(required, permissions={"network": ["https://mail.example.com"]})
    ann("create_skill", manifest=made, skill_md="# A\n", files=skill_files(code))
    calls = f"from skills.{required} import main as look\n\ndef main(args):\n    return look({{}})\n"
    graders = [{"type": "contains", "pattern": "closed"}]
    tasks = json.dumps({"evals": [{"id": 1, "prompt": "Look.", "graders": graders}]})
    made = manifest(name, requires={"skills": {required: "*"}})
    files = skill_files(calls, **{"evals/evals.json": tasks})
    ann("create_skill", manifest=made, skill_md="# A\n", files=files)
    evaluation = ended(ann, name, "1.0.0")
    assert evaluation["error"] == ""
    [case] = evaluation["cases"]
    assert (case["arms"]["with"], case["problems"]) == ({"passed": 1, "trials": 1}, [])


@pytest.mark.full
def test_tasks_of_a_hidden_suite_reach_only_its_readers(server: Server, new_name: str) -> None:
    name, required = f"held.{new_name}", f"free.{new_name}"
    hugo = Caller(server.url, Who("hugo", "read run publish", "held.* free.*"))
    rita = Caller(server.url, Who("rita", "read run publish review", "*"))
    graders = [{"type": "contains", "pattern": "no cases: True; Hortensia"}]
    tasks = {"evals": [{"id": "hortensia", "prompt": "Greet hortensia.", "graders": graders}]}
    files = [{"path": "evals/evals.json", "content": json.dumps(tasks)}]
    rita("create_skill", manifest=manifest("quality.held", kind="instruction"), skill_md="# A\n", files=files)
    rita("set_visibility", name="quality.held", visibility="private")
    fails = "def main(args):\n    raise ValueError('not ready for hortensia')\n"
    made = manifest(required, permissions={"network": ["https://mail.example.com"]})
    hugo("create_skill", manifest=made, skill_md="# A\n", files=skill_files(fails))
    calls = f"from skills.{required} import main as look\n\ndef main(args):\n    look({{}})\n"
    made = manifest(name, requires={"skills": {required: "*"}})
    assert hugo("create_skill", manifest=made, skill_md="# A\n", files=skill_files(calls))["status"] == "in_review"

    seen_by_hugo = ended(hugo, name, "1.0.0")
    assert (seen_by_hugo["state"], seen_by_hugo["error"], seen_by_hugo["cases"]) == ("done", "", [])
    assert (seen_by_hugo["suite"], seen_by_hugo["shares"]) == ("quality.held@1.0.0", {"with": 0, "without": 0})
    assert (hugo.status(name), hugo("list_runs")["runs"], hugo("list_workspaces")["workspaces"]) == (
        "published",
        [],
        [],
    )
    assert hugo("list_failures", skill=required)["failures"] == []
    seen = rita("get_evaluation", id=seen_by_hugo["id"])["cases"][0]
    assert (seen["id"], "no cases: True; Hortensia" in seen["problems"][0]) == ("evals/evals.json#hortensia", True)
    read = {"id": seen_by_hugo["id"], "transcript": seen["transcripts"][0]["id"]}
    assert "hortensia" in rita("read_transcript", **read)["text"]
    unknown = hugo.error("read_transcript", **read | {"transcript": "blob_unknown"})
    refused = hugo.error("read_transcript", **read)
    assert refused["message"].replace(read["transcript"], "blob_unknown") == unknown["message"]
    envelopes = hugo.http.get(f"/skills/{name}/1.0.0.intoto.jsonl?predicate=evaluation").text
    statement = base64.b64decode(json.loads(envelopes)["payload"]).decode()
    suite = json.loads(statement)["predicate"]["suite"]
    assert suite["bundle"] == rita("describe_skill", name="quality.held")["skill"]["digest"]
    assert suite["digest"] == seen_by_hugo["suite_digest"]
    texts = [json.dumps(seen_by_hugo), statement, hugo.http.get(f"/s/{name}").text]
    assert [text for text in texts if "hortensia" in text.lower()] == []

    start = functools.partial(hugo.error, "start_evaluation", name=name, version="1.0.0")
    hidden, absent = (start(suite=f"quality.{suite}")["message"] for suite in ("held@1.0.0", "gone@1.0.0"))
    assert hidden.replace("held", "gone") == absent == "there is no skill 'quality.gone'"
    assert "has no cases of the kind run" in start(suite="quality.held@^1", kinds=["run"])["message"]
    assert rita("start_evaluation", name=name, version="1.0.0", suite="quality.held")["suite"] == "quality.held@1.0.0"
    assert ended(rita, name, "1.0.0")["state"] == "done"
    Caller(server.url, Who("ada", "admin", "*"))("purge_version", name="quality.held", version="1.0.0", reason="Old.")
    assert hugo("list_evaluations", name=name)["evaluations"] == []
    assert hugo("explain_policy", name=name)["passed"] is True
    assert start(suite="quality.held@^1")["message"] == "there is no suite 'quality.held@^1', which the policy names"


def test_policies_count_only_suites_in_their_range() -> None:
    counted = {
        "quality.held@^1": ("quality.held@1.4.0", ["quality.held@2.0.0", "quality.other@1.4.0", "own", "quality.held"]),
        "quality.held": ("quality.held@2.0.0", ["quality.heldup@2.0.0", "own"]),
        "own": ("own", ["own@1.0.0", "quality.held@1.0.0"]),
        "nightly run": ("nightly run", ["own", "nightly"]),
    }
    assert [wanted for wanted, (suite, _) in counted.items() if not suite_fits(suite, wanted)] == []
    assert [suite for wanted, (_, others) in counted.items() for suite in others if suite_fits(suite, wanted)] == []
    assert suite_problem("nightly run") != "" != suite_problem("quality.held@stable")


def test_costs_of_the_day_include_evaluations_that_began_before_it(database: Database) -> None:
    now = datetime.now(UTC)

    def work(connection: Connection) -> tuple[Amount, Amount]:
        skill_id = connection.scalar(
            insert(skills).values(name="acme.cost", created_at=now, visibility="public").returning(skills.c.id)
        )
        version = {"skill_id": skill_id, "version": "1.0.0", "precedence": b"", "digest": "sha256:0"}
        version_id = connection.scalar(insert(skill_versions).values(version | COLUMNS).returning(skill_versions.c.id))
        for number, ended_at in enumerate((None, now, now - timedelta(days=2))):
            columns = {"evaluation": f"ev_{number}", "version_id": version_id, "ended_at": ended_at}
            columns |= {"created_at": now - timedelta(days=3), "state": "done" if ended_at else "running"}
            added = insert(evaluations).values(EVALUATION | columns).returning(evaluations.c.id)
            trial = {"evaluation_id": connection.scalar(added), "cost": 10.0**number, "tokens": number + 1}
            connection.execute(insert(eval_trials).values(TRIAL | trial))
        return read_costs(connection, trial["evaluation_id"])

    assert database.write_now(work) == (Amount(100.0, 3), Amount(11.0, 3))


@pytest.mark.full
def test_tokens_bind_models_without_prices(tmp_path: Path, new_name: str) -> None:
    tasks = json.dumps({"evals": [{"prompt": "Add 1 and 2.", "graders": [{"type": "contains", "pattern": "3"}]}]})
    with FakeModel(play=says) as model:
        entry = f'[models.house]\nurl = "{model.url}/v1"\nmodel = "m"\n\n[evals]\nmodel = "house"\nruns = 1\n'
        wrong = {}
        # The first request reserves more than 8,192 tokens for its answer.
        for key, most, expected in (
            ("budget_tokens", 8_000, "0 of 8,000 tokens are used (evals.budget_tokens)"),
            ("daily_tokens", 8_000, "0 of 8,000 tokens of this day are used (evals.daily_tokens)"),
        ):
            (tmp_path / key).mkdir()
            (tmp_path / key / "skillery.toml").write_text(f"{entry}{key} = {most}\n")
            server = Server(tmp_path / key)
            publish(server.rpc, new_name, "1.0.0", ADDS, SMALL, **{"evals/evals.json": tasks})
            server.rpc("start_evaluation", name=new_name, version="1.0.0", kinds=["task"])
            evaluation = ended(server.rpc, new_name, "1.0.0")
            assert server.stop() == 0
            if (evaluation["state"], evaluation["error"]) != ("stopped", expected):
                wrong[key] = evaluation
    assert wrong == {}


def test_results_of_another_tool_are_signed_by_their_sender(sqlite_rpc: Rpc, new_name: str, tmp_path: Path) -> None:
    publish(sqlite_rpc, new_name, "1.0.0", ADDS)
    rates = {"with_skill": (1.0, 0.5), "without_skill": (0.5, 0.0)}
    runs = [
        {"eval_id": number, "configuration": configuration, "result": {"pass_rate": rate}}
        for configuration, pair in rates.items()
        for number, rate in enumerate(pair)
    ]
    (tmp_path / "benchmark.json").write_text(json.dumps({"runs": runs}))
    (tmp_path / "key.pem").write_bytes(SigningKey.new().pem)
    (tmp_path / "key.pem").chmod(0o600)
    key, url = str(tmp_path / "key.pem"), ("--url", sqlite_rpc.url)
    command = "eval", f"{new_name}@1.0.0", "--import", str(tmp_path / "benchmark.json"), *url
    assert "pass --sign KEYFILE" in skillery(*command).err
    assert skillery("key", "add", key, *url).code == 0

    sent = skillery(*command, "--sign", key)
    [row] = sqlite_rpc("list_attestations", name=new_name, predicate="evaluation")["attestations"]
    assert (sent.code, sent.out.strip()) == (0, row["id"])
    assert row["summary"] == "75% with, 25% without · nothing to compare · 2 cases · measured outside"


@pytest.mark.full
def test_prompts_are_searched_as_if_the_version_was_published(server: Server, new_name: str) -> None:
    name, word = f"few.{new_name}", f"zebu{new_name}"
    ann = Caller(server.url, Who("ann", "read run publish", "*"))
    hugo = Caller(server.url, Who("hugo", "read run publish", "few.*"))
    for hidden in ("hidden.zebus", f"few.{new_name}x"):
        made = manifest(f"{hidden}.{word}", kind="instruction", description=f"Count the {word} of a herd")
        ann("create_skill", manifest=made, skill_md="# A\n", files=[])
        ann("set_visibility", name=f"{hidden}.{word}", visibility="private")
    prompts = [
        {"query": f"how many {word} has the herd?", "should_trigger": True},
        {"query": "fly to the moon", "should_trigger": True},
        {"query": f"a \0 {word}", "should_trigger": False},
    ]
    files = skill_files(ADDS, **{"evals/triggers.json": json.dumps(prompts)})
    of_version = {"1.0.0": "Add numbers", "1.1.0": f"Count {word}"}
    for version, description in of_version.items():
        made = manifest(name, version=version, description=description, examples=[SMALL])
        assert hugo("create_skill", manifest=made, skill_md="# A\n", files=files)["status"] == "in_review"
        if version == "1.0.0":
            assert ended(hugo, name, version)["findability"]["at_5"] == 0
            hugo("set_visibility", name=name, visibility="private")
    evaluation = ended(hugo, name, "1.1.0")

    assert (evaluation["state"], evaluation["kinds"]) == ("done", ["run", "search"])
    assert evaluation["findability"] == {
        "prompts": 3, "expected": 2, "at_1": 0.5, "at_3": 0.5, "at_5": 0.5, "mean_reciprocal_rank": 0.5, "wrong": 1
    }  # fmt: skip
    searched = "search: first for 50% of 2 prompts, wrongly first for 1 of 1"
    assert evaluation["summary"] == f"100% with · nothing to compare · 1 case · {searched}"
    assert [case["problems"] for case in evaluation["cases"] if case["kind"] == "search"] == [
        [],
        ["expected the skill as the first result: the skill is not found"],
        ["expected another first result, or none: the skill is number 1"],
    ]
    assert searched in hugo.http.get(f"/s/{name}@1.1.0").text
    for query in (word, "adding numbers"):
        assert name not in {skill["name"] for skill in ann("search_skills", query=query)["skills"]}

    # A policy judges no prompts.
    hugo("start_evaluation", name=name, version="1.1.0", kinds=["search"])
    again = ended(hugo, name, "1.1.0")
    assert (again["verdict"], again["shares"], again["summary"]) == (None, {}, searched)
    [need] = hugo("explain_policy", name=name, version="1.1.0")["needs"]
    assert (need["missing"], [each["id"] for each in need["evidence"]]) == (
        "an evaluation with 2 cases (it has 1)", [evaluation["attestation"]],
    )  # fmt: skip


@pytest.mark.full
def test_results_of_prompts_name_only_skills_that_the_reader_sees(server: Server, new_name: str) -> None:
    name, other = f"free.{new_name}", f"free.{new_name}_two"
    ann = Caller(server.url, Who("ann", "read run publish", "*"))
    ida = Caller(server.url, Who("ida", "read publish", name))  # sees no other skill of the namespace
    prompts = [{"query": f"count the {word} of {other}", "should_trigger": True} for word in ("one", "two")]
    publish(ann, name, "1.0.0", ADDS, **{"evals/triggers.json": json.dumps(prompts)})
    publish(ann, other, "1.0.0", ADDS)
    for each in (name, other):
        ann("set_visibility", name=each, visibility="namespace")
    ida("start_evaluation", name=name, version="1.0.0", kinds=["search", "choice"])
    ended(ida, name, "1.0.0")

    def problems(caller: Caller) -> list[str]:
        return [problem for case in ended(caller, name, "1.0.0")["cases"] for problem in case["problems"]]

    chosen = "expected the skill to be chosen: the model chose another"
    assert [problem.endswith(f", first is {other}") for problem in problems(ann)[:2]] == [True] * 2
    assert problems(ann)[2:] == [f"{chosen}, {other}"] * 2
    assert (problems(ida)[2:], other in str(problems(ida))) == ([chosen] * 2, False)


@pytest.mark.full
def test_a_model_chooses_only_among_skills_of_all_readers(server: Server, model: FakeModel, new_name: str) -> None:
    name, hidden = f"free.{new_name}", f"hidden.{new_name}"
    ann = Caller(server.url, Who("ann", "read run publish", "*"))
    for other in (hidden, f"shown.{new_name}"):
        made = manifest(other, kind="instruction", description=f"Keep {new_name} of {other.partition('.')[0]} things")
        ann("create_skill", manifest=made, skill_md="# A\n", files=[])
    ann("set_visibility", name=hidden, visibility="private")
    prompts = [
        {"query": f"Choose {name}", "should_trigger": True},
        {"query": f"Choose {hidden}", "should_trigger": True},
        {"query": f"Never choose {name}", "should_trigger": False},
    ]
    publish(ann, name, "1.0.0", ADDS, SMALL, **{"evals/triggers.json": json.dumps(prompts)})
    kinds, begun = ["search", "choice"], len(model.requests)
    assert ann("start_evaluation", name=name, version="1.0.0", kinds=kinds, trials=2)["trials"] == 9
    evaluation = ended(ann, name, "1.0.0")

    assert (evaluation["state"], evaluation["error"], evaluation["model"]) == ("done", "", "house-small")
    assert evaluation["choice"] == {"prompts": 3, "expected": 2, "chosen": 1, "wrong": 1}
    assert evaluation["findability"]["prompts"] == 3
    assert (evaluation["tokens"] > 0, evaluation["cost"] > 0) == (True, True)
    chosen = "chosen for 1 of 2 prompts, wrongly chosen for 1 of 1"
    assert f"{chosen} · {evaluation['cost']:.2f} USD · model house-small" in evaluation["summary"]
    assert [(case["arms"]["with"], case["problems"]) for case in evaluation["cases"] if case["kind"] == "choice"] == [
        ({"passed": 2, "trials": 2}, []),
        ({"passed": 0, "trials": 2}, ["expected the skill to be chosen: the model chose none"] * 2),
        ({"passed": 0, "trials": 2}, [f"expected the skill not to be chosen: the model chose {name}"] * 2),
    ]
    systems = [asked["messages"][0]["content"] for asked in model.requests[begun:]]
    assert [system for system in systems if f"shown.{new_name}: Keep {new_name} of shown things" not in system] == []
    assert [system for system in systems if hidden in system or "hidden things" in system] == []
    [statement] = ann("list_attestations", name=name, predicate="evaluation")["attestations"]
    assert (statement["summary"], hidden in statement["summary"]) == (evaluation["summary"], False)

    ann("start_evaluation", name=name, version="1.0.0", kinds=["choice"], budget=0.000001)
    stopped = ended(ann, name, "1.0.0")
    assert (stopped["state"], stopped["error"]) == ("stopped", "0.00 of 0.00 USD are used; raise the budget")


@pytest.mark.full
def test_the_command_of_a_version_tries_only_its_prompts_with_find(keeping: Server, new_name: str) -> None:
    prompts = json.dumps([{"id": "moon", "query": "fly to the moon", "should_trigger": True}])
    publish(keeping.rpc, new_name, "1.0.0", ADDS, SMALL, **{"evals/triggers.json": prompts})
    evaluate = functools.partial(skillery, "eval", f"{new_name}@1.0.0", "--url", keeping.url, "--find")
    found = evaluate()
    assert (found.code, found.out.splitlines()[-1]) == (0, f"{new_name} 1.0.0: search: first for 0% of 1 prompt")
    chosen = evaluate("--tasks", "--trials", "2")
    assert (chosen.code, chosen.err.endswith(": 3 trials\n")) == (0, True)
    assert chosen.out.splitlines()[-3:-1] == [
        "  evals/triggers.json#moon: 0 of 2",
        "    expected the skill to be chosen: the model chose none",
    ]
    publish(keeping.rpc, new_name, "1.1.0", ADDS, SMALL)
    without = skillery("eval", f"{new_name}@1.1.0", "--url", keeping.url, "--find")
    assert "has no cases of the kind search" in without.err


def test_choices_need_a_model(sqlite_rpc: Rpc, new_name: str) -> None:
    prompts = json.dumps([{"query": "fly to the moon", "should_trigger": True}])
    publish(sqlite_rpc, new_name, "1.0.0", ADDS, **{"evals/triggers.json": prompts})
    refused = sqlite_rpc.error("start_evaluation", name=new_name, version="1.0.0", kinds=["choice"])
    assert refused["message"] == "choice cases need a model, and there is no [models.NAME]"
