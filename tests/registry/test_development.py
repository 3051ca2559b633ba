"""Development versions: develop_skill, keep_development, end_development, and the methods that see these versions."""

from __future__ import annotations

import json
from typing import Any

import pytest

from skillery.backends import Identity
from skillery.formats.unfinished_bundle import begin_bundle
from skillery.registry.development import KEPT_SECONDS, Overlays
from tests.conftest import Rpc, Server, manifest, skill_files
from tests.support.mcp_client import Mcp
from tests.support.people import Caller, Who

DEVELOPED = "def main(args):\n    return 'development'\n"
TOOL: dict[str, Any] = {
    "name": "count_words",
    "description": "Counts.",
    "script": "count.py",
    "parameters": {"text": {"type": "string", "description": "A text."}},
}
COUNT_PY = "def handler(args):\n    return {'words': len(args['text'].split())}\n"


@pytest.fixture
def author(org: Server) -> Rpc:
    return Caller(org.url, Who("author", "read run publish", "*"))


@pytest.fixture
def reader(org: Server) -> Rpc:
    return Caller(org.url, Who("reader", "read run"))


def bundle(name: str, version: str, code: str = DEVELOPED, *tools: dict[str, Any]) -> dict[str, Any]:
    more = {"tools.json": json.dumps(tools), "count.py": COUNT_PY} if tools else {}
    return {"manifest": manifest(name, version), "skill_md": f"# {name}\n", "files": skill_files(code, **more)}


def test_only_the_author_sees_a_development_version(author: Rpc, reader: Rpc, new_name: str) -> None:
    author("create_skill", **bundle(new_name, "1.0.0", skill_files()[0]["content"]))
    made = author("develop_skill", **bundle(new_name, "1.1.0-dev.1"))

    described = author("describe_skill", name=new_name, detail="full")["skill"]
    file = author("read_skill_file", name=new_name, version=made["digest"], path="code/main.py")
    ran = author("execute_skill", name=new_name)
    coded = author(
        "run_code",
        language="python",
        code=f"from skills.{new_name} import main as its\ndef main(args):\n    return its(args)\n",
        mount_skills=[f"{new_name}@1.1.0-dev.1"],
    )

    assert (described["version"], described["status"]) == ("1.1.0-dev.1", "draft")
    assert described["files"][-1]["path"] == "skill.toml"
    assert file["content"] == DEVELOPED
    assert (ran["output"], ran["skill"]["version"]) == ("development", "1.1.0-dev.1")
    assert coded["output"] == "development"
    assert author("execute_skill", name=new_name, version="^1")["skill"]["version"] == "1.0.0"
    assert reader("execute_skill", name=new_name)["skill"]["version"] == "1.0.0"
    assert reader.error("describe_skill", name=new_name, version="1.1.0-dev.1")["data"]["type"] == "version_not_found"


def test_a_development_version_uses_up_no_version_and_leaves_nothing_behind(author: Rpc, new_name: str) -> None:
    author("develop_skill", **bundle(new_name, "1.0.0-dev.1"))
    author("develop_skill", **bundle(new_name, "1.0.0-dev.2", "def main(args):\n    return 2\n"))
    second = author("execute_skill", name=new_name)
    replaced = author.error("describe_skill", name=new_name, version="1.0.0-dev.1")
    kept = author("keep_development", names=[new_name, f"{new_name}.absent"])
    ended = author("end_development", names=[new_name])

    assert second["output"] == 2
    assert author("get_run", run_id=second["run_id"])["status"] == "completed"
    assert (replaced["data"]["type"], "1.0.0-dev.2" in replaced["data"]["hint"]) == ("version_not_found", True)
    assert (kept["names"], kept["kept_ms"]) == ([new_name], 30_000)
    assert ended["names"] == [new_name]
    assert author.error("describe_skill", name=new_name)["data"]["type"] == "skill_not_found"
    assert author("create_skill", **bundle(new_name, "1.0.0"))["status"] in ("published", "draft")


def test_development_versions_take_the_place_of_published_ones_in_lists(
    author: Rpc, reader: Rpc, new_name: str
) -> None:
    for name in ("b", "d"):
        author("create_skill", **bundle(f"{new_name}.{name}", "1.0.0"))
    for name in ("a", "b", "e"):
        author("develop_skill", **bundle(f"{new_name}.{name}", "2.0.0-dev.1"))
    expected = {"a": "2.0.0-dev.1", "b": "2.0.0-dev.1", "d": "1.0.0", "e": "2.0.0-dev.1"}

    for detail in ("names", "summary"):
        found: dict[str, str] = {}
        cursor = ""
        while cursor is not None:
            page = author("list_skills", namespace=new_name, detail=detail, limit=1, cursor=cursor)
            found |= {one["name"].removeprefix(f"{new_name}."): one["version"] for one in page["skills"]}
            cursor = page["next_cursor"]
        assert list(found.items()) == sorted(expected.items())
    seen = reader("list_skills", namespace=new_name)["skills"]
    assert [one["version"] for one in seen] == ["1.0.0", "1.0.0"]


@pytest.mark.full
def test_tools_of_a_development_version_are_called_over_rpc_and_mcp(author: Rpc, reader: Rpc, new_name: str) -> None:
    other = {**TOOL, "name": f"{new_name}_other"}
    author("create_skill", **bundle(new_name, "1.0.0", DEVELOPED, TOOL))
    author("develop_skill", **bundle(new_name, "1.0.1-dev.1", DEVELOPED, TOOL, other))

    listed = [one["name"] for one in author("list_tools", skill=new_name)["tools"]]
    everywhere = {(one["skill"], one["version"]) for one in author("list_tools", limit=1000)["tools"]}
    called = author("call_tool", name=other["name"], args={"text": "a b"})
    mcp = Mcp(author, tools=new_name)
    over_mcp = mcp.tool(other["name"], text="a b c")

    assert listed == ["count_words", other["name"]]
    assert (new_name, "1.0.1-dev.1") in everywhere
    assert (new_name, "1.0.0") not in everywhere
    assert called["result"] == {"words": 2}
    assert json.loads(over_mcp["content"][0]["text"]) == {"words": 3}
    assert Mcp(author).tool("describe_skill", name=new_name)["structuredContent"]["skill"]["version"] == "1.0.1-dev.1"
    assert reader.error("call_tool", name=other["name"], args={"text": "a"})["data"]["type"] == "tool_not_found"


def test_every_problem_is_reported_and_the_earlier_version_stays(author: Rpc, new_name: str) -> None:
    author("develop_skill", **bundle(new_name, "1.0.0-dev.1"))
    broken = author.error("develop_skill", **bundle(new_name, "1.0.0-dev.2", "def main(args):\n    return (\n"))
    found = author("develop_skill", **bundle(new_name, "1.0.0-dev.3", "import absent_package\n" + DEVELOPED))
    release = author.error("develop_skill", **bundle(new_name, "1.0.0"))

    assert broken["data"]["problems"][0]["file"] == "code/main.py"
    assert [(one["file"], one["line"]) for one in found["findings"]] == [("code/main.py", 1)]
    assert "1.0.0-dev.1" in release["data"]["hint"]
    assert author("describe_skill", name=new_name)["skill"]["version"] == "1.0.0-dev.3"


def test_a_draft_and_a_development_version_get_no_permissions_without_a_review(author: Rpc, new_name: str) -> None:
    given = bundle(new_name, "1.0.0-dev.1")
    given["manifest"]["permissions"] = {"secrets": ["API_KEY"]}
    author("develop_skill", **given)

    assert author("execute_skill", name=new_name)["error"]["type"] == "SecretNotGranted"


def test_another_caller_finds_no_trace_of_a_development_version(author: Rpc, reader: Rpc, new_name: str) -> None:
    made = author("develop_skill", **bundle(new_name, "1.0.0-dev.1", DEVELOPED, {**TOOL, "name": f"{new_name}_tool"}))
    run = author("execute_skill", name=new_name)["run_id"]

    assert reader.error("describe_skill", name=new_name, version=made["digest"])["data"]["type"] == "skill_not_found"
    assert reader.error("execute_skill", name=new_name)["data"]["type"] == "skill_not_found"
    assert reader.error("get_run", run_id=run)["data"]["type"] == "run_not_found"
    assert [one["name"] for one in reader("search_skills", query=new_name)["skills"] if one["name"] == new_name] == []
    assert new_name not in {one["name"] for one in reader("list_skills", limit=1000)["skills"]}
    assert Mcp(reader).tool("describe_skill", name=new_name)["isError"]
    changes = Caller(author.url, Who("root", "admin"))("list_audit", subject=new_name)["entries"]
    assert [one["action"] for one in changes] == []


@pytest.mark.full
def test_development_versions_of_a_caller_are_limited(author: Rpc, new_name: str) -> None:
    other = Caller(author.url, Who(f"limited-{new_name}", "read publish", "*"))
    large = [{"path": f"resources/{number}", "content": "x" * 3_000_000} for number in range(4)]
    for number in range(2):
        asked = bundle(f"{new_name}.a{number}", "1.0.0-dev.1")
        other("develop_skill", **{**asked, "files": [*asked["files"], *large]})
    asked = bundle(f"{new_name}.b", "1.0.0-dev.1")
    refused = other.error("develop_skill", **{**asked, "files": [*asked["files"], *large]})

    assert "32 MiB" in refused["message"]
    assert refused["data"]["hint"]
    other("end_development", names=[f"{new_name}.a0", f"{new_name}.a1"])


def test_development_versions_end_by_themselves() -> None:
    now = [0.0]
    overlays = Overlays(lambda: now[0])
    identity = Identity("ann", "person")
    text = manifest("a", "1.0.0-dev.1")
    del text["runtime"]
    overlays.put(identity, begin_bundle(text, "# A", []).finish({}), ())
    now[0] = KEPT_SECONDS - 1
    assert overlays.renew(identity, ["a"]) == ["a"]
    now[0] += KEPT_SECONDS + 1

    assert overlays.of(identity) is identity
    assert overlays.renew(identity, ["a"]) == []
