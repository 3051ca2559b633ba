"""`skillery eval --model`: agents with and without a skill, both HTTP interfaces of models, budgets and statistics."""

from __future__ import annotations

import itertools
import json
import random
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from skillery.app.bundled import bundled_folders
from skillery.evaluations.dialects import Api, Chat, Tool
from skillery.evaluations.models import Model, ModelFailed, Reply, TokenBudget, check_address, open_model
from skillery.evaluations.prompts import Candidate, candidates_for
from skillery.evaluations.trials import BudgetUsed, Tokens, change_between, share_of, sight_of
from tests.cli.test_cli import Ended, skillery
from tests.support.fake_model import FakeModel, Fault, Heard, Wanted

KEY = "sk-very-secret"
SKILL_TOML = """
name = "team.wordsz"
version = "1.0.0"
kind = "action"
description = "Counts words."
[runtime]
language = "python"
entrypoint = "main.py"
[inputs.text]
type = "string"
"""
COUNTS = "def main(args):\n    return {'words': len(args['text'].split())}\n"
GRADER = """
def grade(answer, files, transcript):
    text = files["r.txt"].read_text() if "r.txt" in files else ""
    return {"passed": "3" in text, "evidence": f"{len(transcript)} entries, {text}"}
"""
TASK = {
    "id": 1,
    "prompt": "How many words has a.txt?",
    "files": ["files/a.txt"],
    "expectations": ["The answer names a number"],
    "graders": [
        {"type": "contains", "pattern": "3 words"},
        {"type": "file", "path": "out/*.txt", "kind": "text/plain"},
        {"type": "regex", "pattern": "^3$", "in": "out/*.txt"},
        {"type": "python", "file": "evals/graders/check.py"},
    ],
}
TRIGGERS = [{"query": "count words", "should_trigger": True}, {"query": "send a mail", "should_trigger": False}]
WRITES = "def main(args):\n    import os\n    os.mkdir('out')\n    open('out/r.txt', 'w').write('3')"


@pytest.fixture
def words(tmp_path: Path) -> Path:
    folder = tmp_path / "words"
    files = {
        "skill.toml": SKILL_TOML,
        "SKILL.md": "---\nname: wordsz\ndescription: Counts words.\n---\nPass a text to the skill.\n",
        "main.py": COUNTS,
        "evals/evals.json": json.dumps([TASK]),
        "evals/files/a.txt": "one two three",
        "evals/graders/check.py": GRADER,
    }
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    return folder


@pytest.fixture
def evaluate(tmp_path: Path) -> Callable[..., Ended]:
    home = str(tmp_path / "home")
    return lambda *arguments: skillery("eval", *map(str, arguments), SKILLERY_HOME=home, MODEL_KEY=KEY)


def play(asked: dict[str, Any], heard: Sequence[Heard]) -> Sequence[Wanted] | str:
    """Do a task with the skill, give up without it, grade, and choose."""
    names = {tool.get("name") or tool["function"]["name"] for tool in asked.get("tools", ())}
    if not names:
        return '```json\n{"grades": [{"passed": true, "evidence": "a number"}]}\n```'
    if "choose_skill" in names:
        return [
            Wanted("choose_skill", {"name": "team.wordsz" if "count" in asked["messages"][-1]["content"] else "none"})
        ]
    if "execute_skill" not in names:
        return "I do not know."
    if not heard:
        return [Wanted("read_skill_file", {"path": path}) for path in ("SKILL.md", "evals/evals.json")]
    if len(heard) == 2:
        text = {"args": {"text": "one two three"}}
        return [Wanted("execute_skill", text), Wanted("run_code", {"language": "python", "code": WRITES})]
    return f"It has {heard[2].content['output']['words']} words."


@pytest.mark.full
def test_agent_does_tasks_with_and_without_the_skill(
    words: Path, evaluate: Callable[..., Ended], tmp_path: Path
) -> None:
    (words / "evals" / "triggers.json").write_text(json.dumps(TRIGGERS))
    benchmark = tmp_path / "benchmark.json"
    with FakeModel(play=play) as model:
        options = ("--model", f"{model.url}/v1", "--name", "m", "--trials", 1, "--before", words, "--find")
        ended = evaluate(words, *options, "--out", benchmark, "--json")
        requests, headers = model.requests, model.headers
    assert ended.code == 0, ended.out + ended.err
    [evaluation] = ended.json

    shares = evaluation["model"]["summary"]["shares"]
    assert {arm: (share["passed"], share["trials"]) for arm, share in shares.items()} == {
        "with": (1, 1), "without": (0, 1), "before": (1, 1)
    }  # fmt: skip
    assert evaluation["model"]["summary"]["used"] == 1
    assert evaluation["model"]["summary"]["change"]["verdict"] == "unclear"
    assert [(choice["triggers"], choice["share"]) for choice in evaluation["model"]["choices"]] == [
        (True, 1.0), (False, 0.0)
    ]  # fmt: skip
    trial = next(row["trial"] for row in evaluation["model"]["tried"] if row["trial"]["arm"] == "with")
    hidden = next(row for row in trial["transcript"] if row["role"] == "tool" and "evals" in row["text"])
    assert hidden["is_error"]
    assert "How many words" not in hidden["text"]
    assert list(trial["files"]) == ["r.txt"]
    assert {row["authorization"] for row in headers} == {f"Bearer {KEY}"}
    assert any("/workspace/a.txt" in request["messages"][1]["content"] for request in requests)
    written = json.loads(benchmark.read_text())
    assert written["run_summary"]["delta"]["pass_rate"] == "+0.80"
    assert {run["configuration"] for run in written["runs"]} == {"with_skill", "without_skill", "old_skill"}
    assert KEY not in benchmark.read_text() + ended.out + ended.err


@pytest.mark.full
def test_agent_gets_the_required_skills_of_a_folder(words: Path, evaluate: Callable[..., Ended]) -> None:
    base = words.parent / "base"
    shutil.copytree(words, base)
    shutil.rmtree(base / "evals")
    (base / "skill.toml").write_text(SKILL_TOML.replace("wordsz", "base"))
    (words / "skill.toml").write_text(SKILL_TOML + '[requires.skills]\n"team.base" = "^1"\n')
    (words / "main.py").write_text("from skills.team.base import main\n")
    options = ("--name", "m", "--trials", 1, "--json")
    with FakeModel(play=play) as model:
        ended = evaluate(words, base, "--model", f"{model.url}/v1", *options)
        missing = evaluate(words, "--model", f"{model.url}/v1", *options)

    assert ended.code == 0, ended.out + ended.err
    assert ended.json[0]["model"]["summary"]["shares"]["with"]["passed"] == 1
    assert missing.code == 1
    assert "requires 'team.base', which does not exist" in missing.json[0]["results"][0]["message"]


REDACTS = """
import os, pathlib
from skills.text.redact.pii import find_pii, redact

def main(args):
    paths, counts = list(pathlib.Path().rglob("*.txt")), {"card": 0, "iban": 0}
    os.makedirs("out", exist_ok=True)
    for path in paths:
        text, is_mail = path.read_text(), path.name == "mails.txt"
        options = {"style": "numbered", "keep": ["support@example.com"]} if is_mail else {}
        pathlib.Path("out", path.name).write_text(redact(text, **options))
        for finding in find_pii(text):
            counts[finding.kind] = counts.get(finding.kind, 0) + 1
    return {kind: counts[kind] for kind in ("card", "iban")}
"""
COPIES = "import shutil\ndef main(args):\n    shutil.copytree('.', 'out')\n    return {}\n"


def redact(asked: dict[str, Any], heard: Sequence[Heard]) -> Sequence[Wanted] | str:
    """Use the skill if it is there. Without it, copy the files unchanged."""
    if heard:
        return json.dumps(heard[0].content["output"])
    names = {tool["function"]["name"] for tool in asked["tools"]}
    code = REDACTS if "execute_skill" in names else COPIES
    return [Wanted("run_code", {"language": "python", "code": code})]


@pytest.mark.full
def test_tasks_of_a_bundled_skill_need_the_skill(evaluate: Callable[..., Ended]) -> None:
    folder = next(folder for folder in bundled_folders() if folder.name == "text.redact.pii")
    with FakeModel(play=redact) as model:
        ended = evaluate(folder, "--model", f"{model.url}/v1", "--name", "m", "--trials", 1, "--json")

    assert ended.code == 0, ended.out + ended.err
    [evaluation] = ended.json
    assert evaluation["warnings"] == []
    shares = evaluation["model"]["summary"]["shares"]
    counts = {arm: (share["passed"], share["trials"]) for arm, share in shares.items()}
    assert counts == {"with": (3, 3), "without": (0, 3)}, evaluation["model"]["tried"]


@pytest.mark.full
def test_evaluation_stops_when_its_budget_is_used(words: Path, evaluate: Callable[..., Ended]) -> None:
    with FakeModel(play=play) as model:
        ended = evaluate(words, "--model", f"{model.url}/v1", "--name", "m", "--max-tokens", 100)
        assert model.requests == []

    assert ended.code == 1
    assert "stopped after 0 of 6 trials: 0 of 100 tokens are used; raise --max-tokens" in ended.out


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("http://models.example/v1", "http is permitted on loopback only"),
        ("ftp://models.example", "is not an http or https address"),
        ("https://user:pass@models.example/v1", "has no user"),
    ],
)
def test_addresses_of_models_are_https_or_loopback(url: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        check_address(url)
    check_address("http://127.0.0.1:9/v1")


# -- one request -------------------------------------------------------------------------------------------------------


async def ask(api: Api, budget: TokenBudget, *answers: str | Fault | Sequence[Wanted]) -> tuple[Reply, FakeModel]:
    """Ask a model whose endpoint gives these answers in turn."""
    turns = itertools.count()
    with FakeModel(play=lambda asked, heard: answers[next(turns)]) as server:
        async with open_model(Model(api, f"{server.url}/v1", "m", 3.0, 15.0), KEY) as client:
            tool = Tool("count", "Count.", {"type": "object"})
            return await client.ask(Chat("Be short.", ["Hello"], [tool], 100), budget), server


@pytest.mark.parametrize("api", ["openai", "anthropic"])
async def test_requests_with_busy_and_cut_answers_are_sent_again(api: Api) -> None:
    budget = TokenBudget(2_000)
    cut, busy = Fault(200, b'{"choices', "cut"), Fault(429, headers=[("retry-after", "0")])
    reply, server = await ask(api, budget, cut, busy, [Wanted("count", {"n": 3})])

    assert len(server.requests) == 3
    assert [(call.name, call.arguments, call.problem) for call in reply.message.calls] == [("count", {"n": 3}, "")]
    assert reply.tokens == Tokens(7, 3)
    assert reply.cost == pytest.approx((7 * 3 + 3 * 15) / 1e6)
    # An endpoint may charge for the answer that was cut.
    assert budget.used.written == 3 + 100


@pytest.mark.parametrize("api", ["openai", "anthropic"])
@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (Fault(401, json.dumps({"error": {"message": f"wrong key {KEY}"}}).encode()), "status 401: wrong key *"),
        (Fault(302, headers=[("location", "http://127.0.0.1:1/")]), "status 302"),
        (Fault(200, b" " * 65_536, "endless"), "more than 4194304 bytes"),
        (Fault(200, b"[" * 100_000), "does not answer as"),
        (Fault(200, b'{"choices": [], "content": 7}'), "does not answer as"),
        (
            Fault(200, b'{"choices": [{"message": {}}], "content": [], "x": [%s1]}' % (b"[]," * 60_000)),
            "too many values",
        ),
    ],
)
async def test_unusable_answers_fail_without_the_key(api: Api, fault: Fault, reason: str) -> None:
    budget = TokenBudget(2_000)
    with pytest.raises(ModelFailed) as failed:
        await ask(api, budget, fault)

    assert reason in failed.value.message
    assert KEY not in failed.value.message
    # An endpoint may charge for an answer that cannot be used.
    assert (budget.used.total > 0) == (fault.status == 200)


async def test_newer_models_get_their_name_of_the_limit() -> None:
    refusal = json.dumps({"error": {"message": "Use 'max_completion_tokens' instead."}}).encode()
    reply, server = await ask("openai", TokenBudget(2_000), Fault(400, refusal), "Hello.")

    assert reply.message.text == "Hello."
    assert [request.get("max_completion_tokens") for request in server.requests] == [None, 100]


async def test_arguments_that_are_no_object_are_a_problem_for_the_model() -> None:
    reply, _ = await ask("openai", TokenBudget(2_000), [Wanted("count", "{'n': 3}"), Wanted("count", "[1]")])

    assert [call.problem[:31] for call in reply.message.calls] == ["the arguments are no JSON objec"] * 2


async def test_requests_beyond_the_budget_are_not_sent() -> None:
    with pytest.raises(BudgetUsed, match="0 of 120 tokens are used"):
        await ask("openai", TokenBudget(120))


# -- choices -----------------------------------------------------------------------------------------------------------


def test_drawn_skills_are_an_even_and_repeatable_sample_of_all() -> None:
    others = [Candidate(f"team.s{number:04}", "") for number in range(1_000)]
    meant, nearest = Candidate("team.meant", ""), others[:5]
    drawn = Counter[str]()
    for seed in map(str, range(200)):
        candidates = candidates_for(meant, nearest, others, seed)
        assert candidates == candidates_for(meant, nearest, others[::-1], seed)
        assert {meant, *nearest} < set(candidates)
        assert len(candidates) == 36
        more = candidates_for(meant, nearest, [*others, Candidate("team.new", "")], seed)
        assert len({*candidates} - {*more}) <= 1
        drawn.update(candidate.name for candidate in candidates)
    halves = [sum(drawn[each.name] for each in half) for half in (others[5:500], others[500:])]
    assert abs(halves[0] - halves[1]) < 400  # five times the spread of even draws
    assert len({candidates_for(meant, nearest, others, str(seed)).index(meant) for seed in range(50)}) > 10


# -- statistics --------------------------------------------------------------------------------------------------------


def test_shares_and_changes_have_honest_intervals() -> None:
    passing = {str(number): [True, True, number % 4 > 0] for number in range(20)}
    failing = {str(number): [False, number % 3 > 0, False] for number in range(20)}
    share = share_of({"a": [True] * 8, "b": [False] * 2})

    assert share is not None
    assert (share.share, share.low, share.high) == (0.8, 0.4902, 0.9433)
    verdicts = [change_between(*arms, "seed") for arms in ((passing, failing), (failing, passing), (passing, passing))]
    assert [change.verdict for change in verdicts if change] == ["better", "worse", "same"]
    assert change_between(passing, failing, "seed") == verdicts[0]
    alike = {str(number): [True] * 3 for number in range(20)}
    few = {number: alike[number] for number in "123"}
    assert [change.verdict for arm in (alike, few) if (change := change_between(arm, alike, ""))] == ["same", "unclear"]
    even, odd = ({str(number): [number % 2 == rest] for number in range(20)} for rest in (0, 1))
    assert change_between(even, odd, "").verdict == "unclear"  # type: ignore[union-attr]
    assert change_between(passing, {}, "seed") is None
    assert sight_of(20, 3) == "20 tasks × 3: a fall of 20 points is noticed every second time"


@pytest.mark.full
def test_equal_arms_are_rarely_worse_and_a_fall_is_noticed() -> None:
    source = random.Random(7)

    def verdict(falls: float, seed: int) -> str:
        """Compare 20 tasks × 3 trials before and after a change that breaks a share of the tasks."""
        before = [source.betavariate(1.6, 0.4) for _ in range(20)]
        after = [0.0 if source.random() < falls else chance for chance in before]
        old, new = (
            {str(task): [source.random() < chance for _ in range(3)] for task, chance in enumerate(chances)}
            for chances in (before, after)
        )
        change = change_between(new, old, str(seed))
        assert change is not None
        return change.verdict

    assert sum(verdict(0.0, seed) == "worse" for seed in range(20)) <= 2
    assert 5 <= sum(verdict(0.25, seed) == "worse" for seed in range(20)) <= 15
