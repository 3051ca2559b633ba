"""[[examples]] of a skill run in the sandbox before a version is published. If one fails, the version is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skillery.app.bundled import bundled_folders
from skillery.formats.graders import MOST_SHOWN, differences
from skillery.formats.json_values import same
from skillery.publishing.folders import read_skill_folder
from tests.cli.test_cli import skillery
from tests.conftest import ON_SQLITE, Rpc, Server, manifest, skill_files
from tests.support.people import Caller, Who
from tests.support.processes import eventually

INVALID, REFUSED, BUSY, NOT_FOUND = -32602, -32007, -32006, -32003
COUNTER = """
from runtime import blobs

def main(args):
    lines = blobs.read_text(args["sheet"]).splitlines()
    return {"rows": len(lines), "first": {"text": lines[0], "at": 1}, "rest": lines[1:]}
"""
SHEET = {"sheet": {"type": "blob", "required": True}}


def skill(name: str, code: str, *examples: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Return the params of create_skill."""
    files = skill_files(code, **{"resources/orders.csv": "a,1\nb,2\nc,3\n"})
    return {
        "manifest": manifest(name, examples=list(examples), **more),
        "skill_md": f"# {name}\n",
        "files": files,
    }


def described(rpc: Rpc, name: str, **more: Any) -> dict[str, Any]:
    found: dict[str, Any] = rpc("describe_skill", name=name, **more)["skill"]
    return found


def findings(error: dict[str, Any]) -> list[str]:
    assert error["code"] == REFUSED, error
    return [one["message"] for one in error["data"]["findings"]]


# -- passing -----------------------------------------------------------------------------------------------------------


def test_passing_examples_verify_a_version(rpc: Rpc, new_name: str) -> None:
    name = f"{new_name}.a"
    example = {"name": "three rows", "blobs": {"sheet": "resources/orders.csv"}}
    asked = skill(
        name,
        COUNTER,
        example | {"expect_subset": {"rows": 3, "first": {"at": 1.0}}},
        {**example, "name": "whole", "expect": {"rows": 3, "first": {"text": "a,1", "at": 1}, "rest": ["b,2", "c,3"]}},
        {**example, "name": "just completes"},
        {"name": "no sheet", "expect_error": "ValidationError"},
        inputs=SHEET,
    )
    assert rpc("create_skill", **asked)["status"] == "published"

    shown = described(rpc, name)
    assert shown["verified"] is True
    assert [one["name"] for one in shown["examples"]] == ["three rows", "whole", "just completes", "no sheet"]
    assert {one["status"] for one in shown["examples"]} == {"passed"}
    assert all(one["run_id"].startswith("run_") for one in shown["examples"])
    assert shown["warnings"] == []
    assert "verified" not in described(rpc, name, detail="manifest")
    # Publishing the same bundle again does not run its examples again.
    assert rpc("create_skill", **asked)["status"] == "published"
    assert described(rpc, name)["examples"] == shown["examples"]


def test_a_version_without_examples_is_not_verified(rpc: Rpc, new_name: str) -> None:
    rpc("create_skill", **skill(f"{new_name}.a", "def main(args): return 1\n"))

    shown = described(rpc, f"{new_name}.a")
    assert shown["verified"] is False
    assert "examples" not in shown


def test_example_files_become_blobs_of_a_list_argument_and_input_blobs(rpc: Rpc, new_name: str) -> None:
    code = """
from pathlib import Path
from runtime import blobs

def main(args):
    texts = [blobs.read_text(one) for one in args["sheets"]]
    return {"same": texts[0] == texts[1], "blobs": len(list(Path("/blobs").iterdir())), "more": args["more"]}
"""
    paths = ["resources/orders.csv", "SKILL.md"]
    example = {
        "args": {"more": 1},
        "blobs": {"sheets": paths},
        "input_blobs": ["code/main.py"],
        "expect": {"same": False, "blobs": 3, "more": 1},
    }
    rpc("create_skill", **skill(f"{new_name}.a", code, example, inputs={"sheets": {"type": "array"}}))

    assert described(rpc, f"{new_name}.a")["verified"] is True


def test_an_output_that_became_a_blob_is_compared_whole(rpc: Rpc, new_name: str) -> None:
    code = "def main(args): return {'rows': ['x' * 100] * 6000, 'n': 6000}\n"
    rpc("create_skill", **skill(f"{new_name}.a", code, {"expect_subset": {"n": 6000}}))
    assert described(rpc, f"{new_name}.a")["verified"] is True

    refused = findings(rpc.error("create_skill", **skill(f"{new_name}.b", code, {"expect": {"n": 6000}})))
    assert refused[0].startswith("example 1: output.rows: expected nothing, got 6000 items")


# -- failing -----------------------------------------------------------------------------------------------------------


def test_version_with_failing_examples_is_not_published(rpc: Rpc, new_name: str) -> None:
    name = f"{new_name}.a"
    sheet = {"blobs": {"sheet": "resources/orders.csv"}}
    error = rpc.error(
        "create_skill",
        **skill(
            name,
            COUNTER,
            {"name": "good", **sheet, "expect_subset": {"rows": 3}},
            {"name": "count", **sheet, "expect_subset": {"rows": 4, "first": {"text": "b"}, "none": 1}},
            {"name": "fails", "args": {"sheet": "blob:none"}},
            {"name": "other error", "expect_error": "KeyError"},
            {"name": "no error", **sheet, "expect_error": "KeyError"},
            inputs=SHEET,
        ),
    )

    messages = findings(error)
    assert len(messages) == 4
    assert messages[0].startswith("count: output.rows: expected 4, got 3; output.first.text: ")
    assert "output.none: expected 1, got nothing" in messages[0]
    assert messages[1].startswith("fails: failed with ")
    assert "other error: expected a failure of type KeyError, got ValidationError" in messages[2]
    assert "no error: expected a failure of type KeyError, but the run completed" in messages[3]
    assert {one["rule"] for one in error["data"]["findings"]} == {"examples"}
    assert [one["status"] for one in error["data"]["examples"]] == ["passed"] + ["failed"] * 4
    assert rpc.error("describe_skill", name=name)["code"] == NOT_FOUND
    # The version is still free.
    rpc("create_skill", **skill(name, "def main(args): return 1\n"))


def test_a_finding_names_the_line_of_its_example(rpc: Rpc, new_name: str) -> None:
    toml = f"""name = "{new_name}.a"
version = "1.0.0"
description = "What it does."

[runtime]
language = "python"
entrypoint = "code/main.py"
export = "main"

[[examples]]
expect = 1

[[examples]]
expect = 2
"""
    asked = skill(f"{new_name}.a", "def main(args): return 1\n", {"expect": 1}, {"expect": 2})
    asked["manifest"]["description"] = "What it does."
    asked["files"].append({"path": "skill.toml", "content": toml})
    (found,) = rpc.error("create_skill", **asked)["data"]["findings"]

    assert (found["file"], found["line"]) == ("skill.toml", 13)
    assert found["message"].startswith("example 2: output: expected 2, got 1 (run_")


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("def main(args):\n    while True: pass\n", "TimeoutError"),
        ("import os\ndef main(args): os._exit(3)\n", "ProcessExited"),
        ("def main(args): return 'x' * (17 << 20)\n", "InvalidOutput"),
        ("def main(args): return eval('[' * 90 + ']' * 90)\n", "output: expected 1, got"),
        (
            "def main(args): return {str(n): n for n in range(200_000)}\n",
            "output: expected 1, got an object with 200000",
        ),
        ("def main(args): raise ValueError('\\x1b[31m' + 'x' * 9000)\n", "ValueError: \\x1b[31mxxx"),
    ],
)
@pytest.mark.full(after=5)
def test_hostile_examples_are_findings_like_any(rpc: Rpc, new_name: str, code: str, told: str) -> None:
    asked = skill(f"{new_name}.a", code, {"expect": 1})
    if "while True" in code:
        asked["manifest"]["runtime"]["limits"] = {"timeout_ms": 500}
    (message,) = findings(rpc.error("create_skill", **asked))

    assert told in message
    assert len(message) < 4000
    assert rpc.error("describe_skill", name=f"{new_name}.a")["code"] == NOT_FOUND


def test_examples_may_take_so_long_together(tmp_path: Path, start_server: Callable[..., Server]) -> None:
    rpc = start_server(env={"SKILLERY_PUBLISHING_EXAMPLES_SECONDS": "1.5"}).rpc
    slow = "import time\ndef main(args):\n    time.sleep(0.6)\n    return 1\n"
    messages = findings(rpc.error("create_skill", **skill("a", slow, *([{"expect": 1}] * 32))))

    assert len(messages) >= 30
    assert messages[-1].startswith("example 32: was not run: the examples of one version may take 1.5 s together")
    assert rpc.error("describe_skill", name="a")["code"] == NOT_FOUND


@pytest.mark.full
def test_a_full_queue_publishes_nothing_and_says_so(tmp_path: Path, start_server: Callable[..., Server]) -> None:
    rpc = start_server(env={"SKILLERY_CONCURRENT_RUNS": "1", "SKILLERY_QUEUED_RUNS": "0"}).rpc
    rpc("create_skill", **skill("slow", "import time\ndef main(args):\n    time.sleep(600)\n"))
    run_id = rpc("execute_skill", name="slow", background=True)["run_id"]
    eventually(lambda: rpc("list_runs", status="started")["runs"])
    error = rpc.error("create_skill", **skill("a", "def main(args): ...\n", {}))
    rpc("cancel_run", run_id=run_id)

    assert error["code"] == BUSY
    assert rpc.error("describe_skill", name="a")["code"] == NOT_FOUND
    assert eventually(lambda: "result" in rpc.send("create_skill", skill("a", "def main(args): ...\n", {})))


# -- invalid examples --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("examples", "told"),
    [
        ("x", "examples is a string"),
        ([1], "examples[0] is an integer"),
        ([{"expct": 1}], "did you mean 'expect'"),
        ([{"expect": 1, "expect_error": "KeyError"}], "an example has one expectation"),
        ([{"expect_error": "no type"}], "expected an error type"),
        ([{"expect_error": 5}], "expected a string"),
        ([{"args": []}], "examples[0].args is an array"),
        ([{"blobs": {"sheet": "resources/order.csv"}}], "did you mean 'resources/orders.csv'"),
        ([{"blobs": {"sheet": "../x"}}], "the path"),
        ([{"blobs": {"sheet": 1}}], "expected the path of a file"),
        ([{"blobs": {"sheet": ["resources/orders.csv"]}}], "a list of files, which an input of type blob"),
        ([{"blobs": {"n": "resources/orders.csv"}}], "a file, which an input of type integer"),
        ([{"blobs": {"x": "SKILL.md"}, "args": {"x": 1}}], "remove one of them"),
        ([{"input_blobs": "SKILL.md"}], "expected an array of paths"),
        ([{"input_blobs": ["none"]}], "not in the bundle"),
        ([{"name": "a"}, {"name": "a"}], "another example has this name"),
        ([{"name": " "}], "examples[0].name is blank"),
        ([{"needs_permissions": True}], "the skill has no [permissions]"),
        ([{"needs_permissions": 1}], "true or false"),
        ([{"expect": {"a": None}}], "is null"),
        ([{}] * 33, "at most 32"),
        ([{"args": {"a": json.loads("[" * 40 + "]" * 40)}}], "nested deeper than 32"),
    ],
)
def test_an_example_that_makes_no_sense_is_refused_with_its_place(
    rpc: Rpc, new_name: str, examples: Any, told: str
) -> None:
    asked = skill(f"{new_name}.a", COUNTER, inputs=SHEET | {"n": {"type": "integer"}})
    asked["manifest"]["examples"] = examples
    error = rpc.error("create_skill", **asked)

    assert error["code"] == INVALID
    assert told in json.dumps(error, ensure_ascii=False)
    problem = error["data"]["problems"][0]
    assert problem["path"].startswith("examples")
    if "deeper" not in told and "null" not in told:
        assert problem["file"] == "skill.toml"


def test_an_instruction_has_no_examples(rpc: Rpc, new_name: str) -> None:
    made = manifest(f"{new_name}.a", kind="instruction", examples=[{}])
    error = rpc.error("create_skill", manifest=made, skill_md="# A\n")

    assert error["code"] == INVALID
    assert "without [runtime]" in error["message"]


# -- check_skill -------------------------------------------------------------------------------------------------------


def test_check_skill_predicts_the_result_of_publishing_and_stores_nothing(rpc: Rpc, new_name: str) -> None:
    name = f"{new_name}.a"
    asked = skill(name, "def main(args): return 1\n", {"expect": 1}, {"name": "wrong", "expect": 2})
    checked = rpc("check_skill", **asked)

    assert (checked["ok"], checked["name"], checked["version"], checked["status"]) == (
        False,
        name,
        "1.0.0",
        "published",
    )
    assert [one["status"] for one in checked["examples"]] == ["passed", "failed"]
    assert [one["rule"] for one in checked["findings"]] == ["examples"]
    assert rpc.error("describe_skill", name=name)["code"] == NOT_FOUND

    asked["manifest"]["examples"].pop()
    good = rpc("check_skill", **asked)
    assert (good["ok"], good["findings"]) == (True, [])
    assert rpc("create_skill", **asked)["digest"] == good["digest"]
    # For an existing version the examples run again; another bundle fails as in create_skill.
    assert rpc("check_skill", **asked)["ok"] is True
    asked["skill_md"] = "# Another\n"
    assert rpc.error("check_skill", **asked)["data"]["type"] == "version_exists"


@pytest.mark.full
def test_publish_dry_run_reports_failing_examples(sqlite_server: Server, tmp_path: Path, new_name: str) -> None:
    folder = tmp_path / "skill"
    (folder / "code").mkdir(parents=True)
    (folder / "code" / "main.py").write_text("def main(args): return {'rows': 3}\n")
    (folder / "SKILL.md").write_text("# A\n")
    text = (
        f'name = "{new_name}.a"\nversion = "1.0.0"\ndescription = "A."\n'
        '[runtime]\nlanguage = "python"\nentrypoint = "code/main.py"\n\n[[examples]]\nexpect = {rows = 4}\n'
    )
    (folder / "skill.toml").write_text(text)

    tried = skillery("publish", "--dry-run", str(folder), "--url", sqlite_server.url)
    assert (tried.code, "would be refused" in tried.out) == (1, True)
    assert "error: skill.toml:8: example 1: output.rows: expected 4, got 3" in tried.err
    refused = skillery("publish", str(folder), "--url", sqlite_server.url)
    assert refused.code == 3
    assert "output.rows: expected 4, got 3" in refused.err

    (folder / "skill.toml").write_text(text.replace("rows = 4", "rows = 3"))
    tried = skillery("publish", "--dry-run", str(folder), "--url", sqlite_server.url, "--json")
    assert (tried.code, tried.json[0]["ok"]) == (0, True)
    published = skillery("publish", str(folder), "--url", sqlite_server.url)
    assert (published.code, "examples: 1 passed" in published.err) == (0, True)


# -- permissions -------------------------------------------------------------------------------------------------------

NEEDY = """
import os, urllib.request

def main(args):
    if args.get("secret"):
        return os.environ["API_KEY"]
    try:
        urllib.request.urlopen("https://api.example.com", timeout=5)
    except Exception as error:
        raise OSError(str(error)) from None
"""
PERMISSIONS = {"network": ["https://api.example.com"], "secrets": ["API_KEY"]}


def test_an_example_runs_without_network_and_secrets(rpc: Rpc, new_name: str) -> None:
    asked = skill(f"{new_name}.a", NEEDY, {}, {"name": "secret", "args": {"secret": True}}, permissions=PERMISSIONS)
    network, secret = findings(rpc.error("create_skill", **asked))

    assert network.startswith("example 1: failed with OSError")
    assert "KeyError" in secret
    for message in (network, secret):
        assert "an example runs without network and secrets" in message
        assert "needs_permissions = true" in message


def test_an_example_that_needs_permissions_runs_when_the_version_is_published(org: Server, new_name: str) -> None:
    name = f"{new_name}.a"
    agent = Caller(org.url, Who("bot", "read run publish", f"{new_name}.*", "agent"))
    reviewer = Caller(org.url, Who("eve", "read run review"))
    person = Caller(org.url, Who("ann", "read run publish", f"{new_name}.*"))
    # After approval, the run needs its secrets. It fails because this secret was never granted.
    needy = {"name": "needs", "args": {"secret": True}, "expect_error": "SecretNotGranted", "needs_permissions": True}
    asked = skill(name, NEEDY, {"name": "plain", "expect_error": "OSError"}, needy, permissions=PERMISSIONS)

    assert agent("create_skill", **asked)["status"] == "draft"
    draft = described(agent, name, version="1.0.0")
    assert [one["status"] for one in draft["examples"]] == ["passed", "waiting"]
    assert draft["verified"] is False
    version = {"name": name, "version": "1.0.0"}
    agent("submit_version", **version)
    assert reviewer("approve_version", **version)["status"] == "published"
    shown = described(person, name)
    assert [one["status"] for one in shown["examples"]] == ["passed", "passed"]
    assert shown["examples"][0] == draft["examples"][0]
    assert shown["verified"] is True

    # If the version is published immediately, the example runs immediately.
    asked["manifest"]["version"] = "1.0.1"
    assert person("create_skill", **asked)["status"] == "published"
    assert described(person, name)["verified"] is True


def test_approval_with_failing_examples_publishes_nothing(org: Server, new_name: str) -> None:
    name = f"{new_name}.a"
    agent = Caller(org.url, Who("bot", "read run publish", f"{new_name}.*", "agent"))
    reviewer = Caller(org.url, Who("eve", "read run review"))
    needy = {"name": "needs", "args": {"secret": True}, "needs_permissions": True, "expect": "x"}
    agent("create_skill", **skill(name, NEEDY, needy, permissions=PERMISSIONS))
    version = {"name": name, "version": "1.0.0"}
    agent("submit_version", **version)
    (message,) = findings(reviewer.error("approve_version", **version))

    assert "SecretNotGranted" in message
    assert agent.status(name) == "in_review"
    assert reviewer("reject_version", **version, reason="It fails.")["status"] == "rejected"


@ON_SQLITE
def test_a_draft_runs_without_network_and_secrets_except_for_its_reviewers(org: Server, new_name: str) -> None:
    name = f"{new_name}.a"
    agent = Caller(org.url, Who("bot", "read run publish", f"{new_name}.*", "agent"))
    reviewer = Caller(org.url, Who("eve", "read run review"))
    admin = Caller(org.url, Who("boss", "admin"))
    both = Caller(org.url, Who("both", "read run publish review", f"{new_name}.*", "agent"))
    asked = {"name": name, "version": "1.0.0", "args": {}}
    agent("create_skill", **skill(name, NEEDY, permissions=PERMISSIONS))
    by_agent, by_reviewer = (who("execute_skill", **asked)["error"] for who in (agent, reviewer))

    assert by_agent["type"] == by_reviewer["type"] == "SecretNotGranted"
    assert "is draft: it gets its network and secrets once a reviewer has approved it" in by_agent["message"]
    assert "skillery secret grant" in by_reviewer["message"]

    agent("create_skill", **skill(f"{new_name}.b", NEEDY, permissions={"network": PERMISSIONS["network"]}))
    failed = agent("execute_skill", **asked | {"name": f"{new_name}.b"})
    assert "is draft: it gets its network once a reviewer has approved it" in failed["error"]["message"]
    assert failed.get("network") is None
    code = f"from skills.{new_name}.b import main as call\n\ndef main(args): return call({{}})\n"
    mounted = agent("run_code", language="python", code=code, mount_skills=[f"{new_name}.b@1.0.0"])
    assert "once a reviewer has approved it" in mounted["error"]["message"]
    assert admin("execute_skill", **asked | {"name": f"{new_name}.b"})["network"]
    # A reviewer of other authors' versions is the author of this one.
    both("create_skill", **skill(f"{new_name}.c", NEEDY, permissions=PERMISSIONS))
    own = both("execute_skill", **asked | {"name": f"{new_name}.c"})
    assert "once a reviewer has approved it" in own["error"]["message"]


def test_example_runs_belong_to_the_publisher(org: Server, new_name: str) -> None:
    name = f"{new_name}.a"
    code = "from runtime import blobs\ndef main(args): return blobs.write_text('kept')\n"
    person = Caller(org.url, Who("ann", "read run publish", f"{new_name}.*"))
    person("create_skill", **skill(name, code, {}))

    assert described(person, name)["examples"][0]["run_id"].startswith("run_")


def test_bundled_skills_are_verified_on_a_new_server_by_examples_that_pass(sqlite_rpc: Rpc, tmp_path: Path) -> None:
    """skills/passed.json has the digests of exactly the bundled skills whose examples pass here, and their results."""
    passed = {}
    for folder in bundled_folders():
        bundled = read_skill_folder(folder)
        if bundled.manifest["kind"] == "instruction":
            continue
        files = [{"path": one.path, "content": one.content.decode()} for one in bundled.files]
        asked = {"manifest": bundled.manifest, "skill_md": bundled.skill_md, "files": files}
        checked = sqlite_rpc("check_skill", **asked)
        assert checked["findings"] == [], folder.name
        assert {one["status"] for one in checked["examples"]} == {"passed"}, folder.name
        results = [result_of(sqlite_rpc, one["run_id"]) for one in checked["examples"]]
        passed[folder.name] = {"digest": checked["digest"], "results": results}
    written = tmp_path / "passed.json"
    lines = [f"{json.dumps(name)}: {json.dumps(skill, ensure_ascii=False)}" for name, skill in passed.items()]
    written.write_text("\n".join(["{", ",\n".join(lines), "}", ""]))
    stored = bundled_folders()[0].parent / "passed.json"
    assert stored.read_text() == written.read_text(), f"run: cp {written} {stored}"
    assert [name for name in passed if not described(sqlite_rpc, name)["verified"]] == []


def result_of(rpc: Rpc, run_id: str) -> dict[str, Any] | None:
    """Return the output and the files of a run with numbers in the ids of blobs, or None for a failed run."""
    run = rpc("get_run", run_id=run_id)
    if run["status"] == "failed":
        return None
    output, files, paths = json.dumps(run["output"]), [], {one["blob_id"]: one["path"] for one in run.get("files", ())}
    for number, blob_id in enumerate(run["output_blobs"], 1):
        blob = rpc("read_blob", blob_id=blob_id, mode="full")
        assert blob["encoding"] == "utf-8"
        output = output.replace(blob_id, f"blob:{number}")
        path = paths.get(blob_id)
        files.append({"id": f"blob:{number}", "kind": blob["kind"], "path": path, "content": blob["content"]})
    return {"output": json.loads(output), "files": files}


# -- comparison of results ---------------------------------------------------------------------------------------------

_values = st.recursive(
    st.booleans() | st.integers(-5, 5) | st.sampled_from([0.0, 1.0, 0.5]) | st.text("ab", max_size=2),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab", max_size=2), inner, max_size=3),
    max_leaves=8,
)


@given(_values, _values)
def test_differences_are_reported_exactly_if_two_values_differ(one: Any, other: Any) -> None:
    assert (differences(one, other, subset=False) == []) == same(one, other)
    assert len(differences(one, other, subset=False)) <= MOST_SHOWN
    if same(one, other):
        assert differences(one, other, subset=True) == []


@given(_values, st.data())
def test_value_with_keys_removed_is_a_subset(whole: Any, data: st.DataObject) -> None:
    def less(value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        return {key: less(each) for key, each in value.items() if data.draw(st.booleans())}

    assert differences(less(whole), whole, subset=True) == []
