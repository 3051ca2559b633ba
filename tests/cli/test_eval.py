"""`skillery eval`: graded examples, suites of the field's formats, and how well a search finds a skill."""

from __future__ import annotations

import json
import random
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skillery.formats.graders import Answer, Contains, ContainsNot, Exact, FitsSchema, Grader, Matches, Rubric, Subset
from skillery.formats.suites import MAX_CASES, read_suite, suite_files
from skillery.publishing.compile_pool import CompileLimits, CompilePool
from tests.cli.test_cli import Ended, skillery
from tests.cli.test_eval_model import play
from tests.conftest import IMPORT_CHECK, Rpc, Server, manifest, skill_files
from tests.docs.test_shell_blocks import run_as_user, script_of
from tests.support.fake_model import FakeModel

COUNTS = """
def main(args):
    print("counting", len(args.get("text", "")))
    return {"words": len(args.get("text", "").split())}
"""
TRIGGERS = [
    {"query": "count the words of a text", "should_trigger": True},
    {"query": "send a mail to everybody", "should_trigger": True},
    {"query": "how many words has a text", "should_trigger": False},
]
TASKS = {"skill_name": "words", "evals": [{"id": 1, "prompt": "Count", "expectations": ["It counts"]}, 3]}


@pytest.fixture
def words(tmp_path: Path) -> Path:
    folder = tmp_path / "words"
    assert skillery("new", str(folder), "--kind", "action", "--name", "team.wordsz").code == 0
    (folder / "evals").mkdir()
    (folder / "evals" / "triggers.json").write_text(json.dumps(TRIGGERS))
    (folder / "evals" / "evals.json").write_text(json.dumps(TASKS))
    return folder


@pytest.fixture
def evaluate(tmp_path: Path) -> Callable[..., Ended]:
    return lambda *arguments: skillery("eval", *map(str, arguments), SKILLERY_HOME=str(tmp_path / "home"))


def add_example(folder: Path, **grader: Any) -> None:
    table = ", ".join(f"{'in' if key == 'place' else key} = {json.dumps(value)}" for key, value in grader.items())
    with (folder / "skill.toml").open("a") as file:
        file.write(f'\n[[examples]]\nname = "graded"\nargs = {{ text = "a b" }}\ngrade = [{{ {table} }}]\n')


@pytest.mark.full
def test_examples_are_graded_and_reported_to_other_programs(
    words: Path, evaluate: Callable[..., Ended], tmp_path: Path
) -> None:
    add_example(words, type="regex", pattern="[3-9] words", place="answer")
    benchmark, junit = tmp_path / "benchmark.json", tmp_path / "junit.xml"
    ended = evaluate(words, "--out", benchmark, "--junit", junit)

    assert ended.code == 1
    assert "example graded" in ended.out
    assert "the answer does not match '[3-9] words': it is {" in ended.out
    assert "evals/evals.json: case 2 is an integer, expected an object" in ended.out
    assert "prompts of its suites, not searched: 3" in ended.out
    assert "not run because they need a model (--model): 1" in ended.out
    written = json.loads(benchmark.read_text())
    assert written["metadata"]["skill_name"] == "team.wordsz"
    assert [run["result"]["passed"] for run in written["runs"]] == [1, 1, 0]
    assert written["run_summary"]["with_skill"]["pass_rate"]["mean"] == pytest.approx(2 / 3, abs=1e-4)
    [suite] = ElementTree.fromstring(junit.read_text())
    assert suite.attrib == {"name": "team.wordsz", "tests": "3", "failures": "1", "skipped": "0"}


@pytest.mark.full
def test_prompts_of_suites_are_searched_in_the_registry(words: Path, evaluate: Callable[..., Ended]) -> None:
    ended = evaluate(words, "--find", "--json")
    [unpublished] = ended.json
    assert unpublished["findability"]["at_1"] == 0
    assert skillery("publish", str(words), SKILLERY_HOME=str(words.parent / "home")).code == 0
    [published] = evaluate(words, "--find", "--json").json

    assert ended.code == 0
    findability = published["findability"]
    assert (findability["at_1"], findability["at_5"], findability["mean_reciprocal_rank"]) == (0.5, 0.5, 0.5)
    assert [prompt["prompt"] for prompt in findability["missed"]] == ["send a mail to everybody"]
    assert [prompt["prompt"] for prompt in findability["wrong"]] == ["how many words has a text"]
    junit = words.parent / "junit.xml"
    assert "how many words has a text" in evaluate(words, "--find", "--junit", junit).out
    [suite] = ElementTree.fromstring(junit.read_text())
    searched = [case for case in suite if case.attrib["classname"] == "team.wordsz.search"]
    assert (suite.attrib["skipped"], len(searched)) == ("2", 3)
    assert [case[0].attrib["message"] for case in searched if len(case)] == [
        "expected the skill as the first result: the skill is not found, first is text.redact.pii",
        "expected another first result, or none: the skill is number 1",
    ]


@pytest.mark.full
def test_the_page_about_evaluations_runs(start_server: Callable[..., Server], tmp_path: Path) -> None:
    folder = tmp_path / "empty"
    folder.mkdir()
    with FakeModel(play=play) as model:
        script = script_of("docs/guide/evaluations.md", "").replace("http://127.0.0.1:11434", model.url)
        printed = run_as_user(script, start_server(env=IMPORT_CHECK), folder)

    assert "3 passed in" in printed
    assert "with the skill: 2 of 2 trials passed, 100% (34% to 100%)" in printed
    assert "without: 0 of 2 trials passed" in printed
    assert "search: of 2 prompts, the skill is 100% among 1, 100% among 3, 100% among 5" in printed
    assert "team.greet 0.1.0: search: first for 100% of 2 prompts, wrongly first for 0 of 1" in printed


@pytest.mark.full
def test_options_of_folders_are_refused_for_versions_and_the_reverse(evaluate: Callable[..., Ended]) -> None:
    of_folders = evaluate("team.wordsz@1.0.0", "--out", "benchmark.json")
    assert (of_folders.code, "--out" in of_folders.err) == (2, True)
    of_versions = evaluate(".", "--tasks")
    assert (of_versions.code, "--tasks" in of_versions.err) == (2, True)


# -- publishing --------------------------------------------------------------------------------------------------------


def skill(name: str, *graders: dict[str, Any], text: str = "", **files: Any) -> dict[str, Any]:
    """Return the params of create_skill. `files` are contents of files in evals/, by name without suffix."""
    example = {"name": "graded", "args": {"text": "a b"}, "grade": list(graders)}
    suites = {f"evals/{key}.json": json.dumps(value) for key, value in files.items()}
    return {
        "manifest": manifest(name, examples=[example] if graders else []),
        "skill_md": f"# {name}\n\n{text}\n",
        "files": skill_files(COUNTS, **suites),
    }


def test_failed_grader_refuses_the_version(rpc: Rpc, new_name: str) -> None:
    schema = {"type": "schema", "schema": {"properties": {"words": {"maximum": 1}}}}
    error = rpc.error("create_skill", **skill(f"{new_name}.a", schema, {"type": "contains", "pattern": "zz"}))
    log = {"type": "contains", "pattern": "counting 3", "in": "log"}
    fits = {"type": "schema", "file": "evals/schema.json"}
    published = skill(f"{new_name}.b", log, fits, {"type": "subset", "value": {"words": 2}})
    published["files"] += [{"path": "evals/schema.json", "content": '{"required": ["words"]}'}]

    [finding] = error["data"]["findings"]
    assert finding["message"].startswith(
        "graded: output.words: 2 is greater than the maximum of 1; the answer does not contain 'zz': it is {"
    )
    assert rpc("create_skill", **published)["status"] == "published"


@pytest.mark.parametrize(
    ("grader", "problem"),
    [
        ({"type": "regexp", "pattern": "a"}, "has a grader whose type is 'regexp'; did you mean regex?"),
        ({"type": "regex"}, "Object missing required field `pattern`"),
        ({"type": "regex", "pattern": "a", "of": 1}, "Object contains unknown field `of`"),
        ({"type": "schema"}, "it has either `schema` or `file`"),
        ({"type": "schema", "file": "none.json"}, "which is not in the bundle"),
        ({"type": "rubric", "text": "good"}, "needs a model"),
        ({"type": "contains", "pattern": "a", "in": "out/*.csv"}, "judges files"),
        (7, "has a grader whose type is missing"),
    ],
)
def test_grader_that_cannot_judge_an_example_is_a_problem(rpc: Rpc, new_name: str, grader: Any, problem: str) -> None:
    error = rpc.error("create_skill", **skill(new_name, grader))

    assert error["code"] == -32602
    assert "examples[0].grade[0]" in error["message"]
    assert problem in error["message"]


def test_suites_are_checked_at_publishing(rpc: Rpc, new_name: str) -> None:
    leaked = "It names each of the three oldest customers by their full name"
    suite = [{"prompt": "x", "expectations": [leaked]}, {"prompt": ""}]
    params = skill(new_name, text=f"Use it.\n\nNote: {leaked.upper()}!", evals=suite)
    findings = rpc("check_skill", **params)["findings"]

    assert [(finding["rule"], finding["file"], finding.get("line")) for finding in findings] == [
        ("eval_format", "evals/evals.json", None),
        ("eval_leak", "SKILL.md", 5),
    ]


@pytest.mark.full
async def test_patterns_and_schemas_of_strangers_are_bounded_and_fetch_nothing() -> None:
    pool = CompilePool(CompileLimits(grade_seconds=0.3))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"http://127.0.0.1:{listener.getsockname()[1]}/schema.json"
        slow = Matches("(a+)+$")
        fetching, cyclic, faulty = (
            FitsSchema({"$ref": address}), FitsSchema({"$ref": "#"}), FitsSchema({"pattern": "("})
        )  # fmt: skip
        text = Answer(json.dumps("a" * 40 + "b").encode())
        too_long = await pool.grade("", [slow], text, {})
        problems = await pool.grade("", [fetching, cyclic, faulty, Matches("(")], text, {})
        await pool.close()
        listener.settimeout(0)
        with pytest.raises(BlockingIOError):
            listener.accept()

    assert too_long == ("its graders take longer than 0.3 s",)
    assert problems[0].startswith("the schema is not valid: ")
    assert address in problems[0]
    assert problems[1] == "nested too deep"
    assert problems[2] == "the schema is not valid: '(' is not a 'regex'"
    assert problems[3].startswith("a pattern is not valid")


# -- the formats of suites ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("suite", "graders"),
    [
        ({"evals": [{"prompt": "p", "expectations": ["a"]}]}, (Rubric("a"),)),
        ({"evals": [{"prompt": "p", "assertions": [{"text": "t"}]}]}, (Rubric("t"),)),
        (
            [{"prompt": "p", "assertions": [{"text": "t", "type": "contains_pattern", "pattern": "a+"}]}],
            (Matches("a+"),),
        ),
        (
            [{"prompt": "p", "assertions": [{"text": "t", "type": "not_contains_pattern", "pattern": "a+"}]}],
            (Matches("a+", absent=True),),
        ),
        ([{"prompt": "p", "assertions": [{"type": "contains_phrase", "phrase": "a+"}]}], (Contains("a+"),)),
        ([{"prompt": "p", "assertions": [{"type": "not_contains", "value": "a"}]}], (ContainsNot("a"),)),
        ({"skill": "x", "cases": [{"question": "p", "expected_behavior": "b"}]}, (Rubric("b"),)),
        ([{"prompt": "p", "graders": [{"type": "exact", "value": 1}]}], (Exact(1),)),
        ([{"prompt": "p", "graders": [{"type": "subset", "value": {"a": 1}}]}], (Subset({"a": 1}),)),
    ],
)
def test_expectations_of_each_dialect_are_graders(suite: Any, graders: tuple[Grader, ...]) -> None:
    read = read_suite({"evals/evals.json": json.dumps(suite).encode()})

    assert read.problems == ()
    assert [case.graders for case in read.cases] == [graders]


def test_expected_skills_and_scenarios_are_cases() -> None:
    listed = [
        {"id": "a", "question": "q", "expected_skill": "team/other", "expected_behavior": ["b"]},
        {"id": "b", "question": "q", "expected_skill": None, "expected_behavior": ["b"]},
    ]
    checklist = [{"name": "n", "description": "d", "max_score": 30}, {"name": "m", "max_score": 70}]
    files = {
        "evals/evals.json": json.dumps(listed).encode(),
        "evals/mail/task.md": b"Write a mail.",
        "evals/mail/criteria.json": json.dumps({"type": "weighted_checklist", "checklist": checklist}).encode(),
    }
    read = read_suite(files)

    assert read.problems == ()
    assert [(case.id, case.kind, case.triggers, case.skill) for case in read.cases] == [
        ("a", "trigger", True, "other"),
        ("a", "task", True, ""),
        ("b", "trigger", False, ""),
        ("mail", "task", True, ""),
    ]
    scenario = read.cases[-1]
    assert scenario.graders == (Rubric("n: d", 30), Rubric("m", 70))
    assert (scenario.prompt, scenario.share) == ("Write a mail.", 0.8)
    paths = [*files, "evals/files/a.json", "evals/benchmark.json", "other/evals.json", "evals.json"]
    assert suite_files(paths) == [*files, "evals.json"]


HEADS = ["evals", "cases", "id", "name", "prompt", "question", "query", "should_trigger", "expected_skill", "files"]
RULES = ["expectations", "assertions", "expected_behavior", "graders", "type", "pattern", "text", "checklist"]
KEYS = st.sampled_from([*HEADS, *RULES, "max_score"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5) | KEYS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=5),
    max_leaves=20,
)


def test_no_more_cases_are_read_than_count() -> None:
    read = read_suite({f"evals/{name}.json": b"[" + b"{}," * 1_500 + b"{}]" for name in "abc"})

    assert len(read.problems) == MAX_CASES + 1
    assert "more than 2000 cases" in read.problems[-1].message


@pytest.mark.full
@given(st.lists(VALUES, max_size=4).map(json.dumps).map(str.encode) | st.binary(max_size=40))
def test_read_suite_accepts_any_bytes(content: bytes) -> None:
    files = {"evals/evals.json": content, "evals/s/task.md": content, "evals/s/criteria.json": content}
    read = read_suite(files)

    assert all(problem.message for problem in read.problems)
    assert all(case.prompt for case in read.cases)


# -- files in the shapes of public repositories ------------------------------------------------------------------------

TEXTS = (
    "Fix the failing tests, then open a pull request.",
    "Zähle die Wörter in „Straße“ und fasse sie zusammen.",
    "この表を要約してください。",
    "Сколько строк в файле data.csv?",
    "احسب مجموع العمود الثاني",
    'Draw a 📈 of the\tlast "30 days" \\ 4 weeks\r\nwith a title',
)
ODD: dict[str, Any] = {
    "difficulty": "hard",
    "tags": ["a", None, 3],
    "metadata": {"prompt_version": 2, "nested": [{"question": 1}]},
    "timeout_s": 1.5e3,
    "notes": None,
    "名前": "訳",
}


class PublicFile(NamedTuple):
    """A file like those of public repositories, or a folder of Tessl, and what `read_suite` must find in it."""

    contents: dict[str, bytes]
    tasks: int = 0
    triggers: int = 0
    problems: int = 0


def test_a_thousand_files_like_public_ones_have_all_their_cases() -> None:
    chance = random.Random(8876)
    for number in range(1000):
        make = (expectations_file, expected_skills_file, triggers_file, tessl_folder)[number % 4]
        file = make(chance)
        assert suite_files(file.contents) == list(file.contents)
        suite = read_suite(file.contents)
        kinds = [case.kind for case in suite.cases]
        read = kinds.count("task"), kinds.count("trigger"), len(suite.problems)
        assert read == (file.tasks, file.triggers, file.problems), (number, suite.problems, file.contents)
        assert all(case.prompt[:1] not in ("", "\ufeff") and case.source in file.contents for case in suite.cases)


def encoded(chance: random.Random, value: Any) -> bytes:
    """Return JSON as editors of several systems write it."""
    text = json.dumps(value, indent=chance.choice((None, 2, "\t")), ensure_ascii=chance.random() < 0.3)
    text = text.replace("\n", "\r\n") if chance.random() < 0.3 else text
    return b"\xef\xbb\xbf" * (chance.random() < 0.2) + text.encode() + chance.choice((b"", b"\n", b"\r\n"))


def entries(chance: random.Random, make: Callable[[], dict[str, Any]], *prompts: str) -> tuple[list[Any], list[Any]]:
    """Return entries for a file, and those that can be read. Some have odd members, no id, or no prompt."""
    values, readable = list[Any](), list[Any]()
    for number in range(chance.randint(1, 6)):
        entry: Any = make()
        entry |= {"id": chance.choice((number, f"case-{number}", "事例"))} if chance.random() < 0.7 else {}
        entry |= {key: ODD[key] for key in chance.sample(list(ODD), chance.randint(0, 2))}
        if chance.random() < 0.1:
            others: list[Any] = [{key: entry[key] for key in entry if key not in prompts}, "a text", None]
            entry = chance.choice(others)
        else:
            readable.append(entry)
        values.append(entry)
    return values, readable


def expectations_file(chance: random.Random) -> PublicFile:
    """evals.json of skill-creator and agentskills.io."""
    key = chance.choice(("assertions", "expectations"))
    checks = [
        "It names the file.",
        {"text": "It is short.", "type": "quality"},
        {"text": "It has a sum.", "type": "contains_pattern", "pattern": r"\d+"},
        {"text": "It has no TODO.", "type": "not_contains_pattern", "pattern": "TODO"},
        {"type": "contains_phrase", "phrase": "合計"},
    ]

    def make() -> dict[str, Any]:
        entry: dict[str, Any] = {"prompt": chance.choice(TEXTS), key: chance.sample(checks, chance.randint(0, 4))}
        optional = {
            "expected_output": chance.choice((*TEXTS, None)),
            "files": chance.choice(([], ["evals/in.csv"], None)),
        }
        return entry | {name: optional[name] for name in optional if chance.random() < 0.7}

    values, readable = entries(chance, make, "prompt")
    value = {"skill_name": "pdf", "evals": values} | ({"version": 1} if chance.random() < 0.3 else {})
    content = {chance.choice(("evals/evals.json", "evals.json")): encoded(chance, value)}
    return PublicFile(content, tasks=len(readable), problems=len(values) - len(readable))


def expected_skills_file(chance: random.Random) -> PublicFile:
    """A list of questions with the skill that should answer, or the same list as `cases`."""

    def make() -> dict[str, Any]:
        skill = chance.choice(("pdf", "team/pdf/SKILL.md", None))
        entry: dict[str, Any] = {"question": chance.choice(TEXTS), "expected_skill": skill}
        optional = {"ground_truth": chance.choice(TEXTS), "expected_behavior": ["It reads the skill.", "It answers."]}
        return entry | {name: optional[name] for name in optional if chance.random() < 0.6}

    values, readable = entries(chance, make, "question")
    value: Any = values if chance.random() < 0.7 else {"skill": "pdf", "cases": values}
    tasks = [entry for entry in readable if entry["expected_skill"] and "expected_behavior" in entry]
    content = {"evals/evals.json": encoded(chance, value)}
    return PublicFile(content, len(tasks), len(readable), len(values) - len(readable))


def triggers_file(chance: random.Random) -> PublicFile:
    def make() -> dict[str, Any]:
        return {chance.choice(("query", "prompt")): chance.choice(TEXTS), "should_trigger": chance.random() < 0.5}

    values, readable = entries(chance, make, "query", "prompt")
    content = {chance.choice(("evals/triggers.json", "evals/trigger-eval.json")): encoded(chance, values)}
    return PublicFile(content, triggers=len(readable), problems=len(values) - len(readable))


def tessl_folder(chance: random.Random) -> PublicFile:
    folder = f"evals/{chance.choice(('scenario-1', 'szenario-ä', 'a b'))}"
    items = [
        {
            "name": chance.choice(TEXTS)[:20],
            "description": chance.choice(TEXTS),
            "max_score": chance.choice((1, 25, 0.5)),
        }
        for _ in range(chance.randint(0, 5))
    ]
    if items and chance.random() < 0.3:
        del items[0][chance.choice(("name", "max_score"))]
    value = {"context": TEXTS[1], "type": "weighted_checklist", "checklist": items} | chance.choice(({}, ODD))
    task = "\r\n".join(("# Task", "", *chance.sample(TEXTS, 3))).encode()
    content = {f"{folder}/task.md": b"\xef\xbb\xbf" * (chance.random() < 0.2) + task}
    if chance.random() < 0.9:
        content[f"{folder}/criteria.json"] = encoded(chance, value)
        return PublicFile(content, tasks=bool(items), problems=not items)
    return PublicFile(content, problems=1)
