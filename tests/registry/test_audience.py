"""The audience of skills: models neither list, search, read nor start skills that only people start."""

from __future__ import annotations

import json
from typing import Any

import pytest

from skillery.formats.foreign_skill import audience_of
from skillery.skills.prompts import PROMPTS_A_PAGE
from tests.conftest import Rpc, Server, manifest
from tests.importing.test_importing import sent
from tests.support.archives import skill_md, zipped
from tests.support.mcp_client import LEGACY, MODERN, Mcp
from tests.support.people import Caller, Who

FOR: dict[str, dict[str, str]] = {
    "all": {},
    "people": {"disable-model-invocation": "true"},
    "models": {"user-invocable": "false"},
    "internal": {"metadata": "{internal: true}"},
}
REFUSAL = "Only a person may start '{}', as its author decided. Ask the user."


def publish(rpc: Rpc, new_name: str) -> None:
    for name, keys in FOR.items():
        text = skill_md(name, f"Kiwi {new_name} {name}.", **keys)
        about = manifest(f"{new_name}.{name}", kind="instruction", description=f"Kiwi {new_name} {name}.")
        rpc("create_skill", manifest=about, skill_md=text)


def listed(answer: dict[str, Any]) -> set[str]:
    return {skill["name"].rpartition(".")[2] for skill in answer["skills"]}


@pytest.mark.parametrize(
    ("frontmatter", "audience"),
    [
        ({}, None),
        ({"disable-model-invocation": True, "user-invocable": False}, "people"),
        ({"disable-model-invocation": "True "}, "people"),
        ({"disable-model-invocation": False, "user-invocable": True}, None),
        ({"user-invocable": "false"}, "models"),
        ({"metadata": {"internal": "true"}, "user-invocable": False}, "internal"),
        ({"metadata": {"internal": [True]}, "disable-model-invocation": 1, "user-invocable": 0}, None),
        ({"metadata": "internal"}, None),
    ],
)
def test_frontmatter_decides_the_audience(frontmatter: dict[str, object], audience: str | None) -> None:
    assert audience_of(frontmatter) == audience


def test_agents_neither_list_search_nor_read_skills_for_people(org: Server, new_name: str) -> None:
    person = Caller(org.url, Who("ann", "read run publish", f"{new_name}.*"))
    agent = Caller(org.url, Who("bot", "read run publish", f"{new_name}.*", "agent"))
    publish(person, new_name)

    for caller, names in ((person, {"all", "people", "models"}), (agent, {"all", "models"})):
        narrow: dict[str, Any] = {"namespace": new_name}
        assert listed(caller("list_skills", **narrow)) == names
        assert listed(caller("list_skills", **narrow, sort="newest")) == names
        assert listed(caller("list_skills", **narrow, include_internal=True)) == names | {"internal"}
        assert listed(caller("search_skills", query=f"kiwi {new_name}", **narrow)) == names
        everything = caller("search_skills", query=f"kiwi {new_name}", **narrow, include_internal=True)
        assert listed(everything) == names | {"internal"}
        assert caller("list_skills", **narrow, counts=True)["total"] == len(names)
        assert "audience" not in caller("describe_skill", name=f"{new_name}.all", detail="full")["skill"]
        for name in names - {"all"} | {"internal"}:
            skill = caller("describe_skill", name=f"{new_name}.{name}", detail="summary")["skill"]
            assert skill["audience"] == name

    name = f"{new_name}.people"
    calls: list[tuple[str, dict[str, Any]]] = [
        ("describe_skill", {"name": name}),
        ("read_skill_file", {"name": name, "path": "SKILL.md"}),
        ("execute_skill", {"name": name}),
        ("run_code", {"language": "python", "code": "def main(args): pass", "mount_skills": [name]}),
    ]
    for method, params in calls:
        error = agent.error(method, **params)
        assert (error["code"], error["data"]["type"]) == (-32007, "people_only")
        assert error["message"] == REFUSAL.format(name)


def test_agents_neither_list_nor_find_tools_for_people(org: Server, new_name: str) -> None:
    person = Caller(org.url, Who("ann", "read run publish", f"{new_name}.*"))
    agent = Caller(org.url, Who("bot", "read run", f"{new_name}.*", "agent"))
    tool = f"count_{new_name}"
    declared = json.dumps([{"name": tool, "description": "Counts.", "script": "scripts/a.py", "parameters": {}}])
    for name in ("all", "internal", "people"):  # the last one is called
        code = f"def handler(args):\n    return '{name}'\n"
        files = [{"path": "tools.json", "content": declared}, {"path": "scripts/a.py", "content": code}]
        about = manifest(f"{new_name}.{name}", kind="instruction")
        person("create_skill", manifest=about, skill_md=skill_md(name, **FOR[name]), files=files)

    def offered(caller: Caller) -> set[str]:
        page = caller("list_tools", limit=200)
        return {one["skill"].rpartition(".")[2] for one in page["tools"] if one["name"] == tool}

    assert (offered(person), offered(agent)) == ({"all", "people"}, {"all"})
    assert person("call_tool", name=tool)["result"] == "people"
    assert agent("call_tool", name=tool)["result"] == "internal"
    assert agent.error("call_tool", name=tool, skill=f"{new_name}.people")["code"] == -32007


def test_suggestions_to_agents_omit_names_for_people(org: Server, new_name: str) -> None:
    person = Caller(org.url, Who("ann", "read run publish", f"{new_name}.*"))
    agent = Caller(org.url, Who("bot", "read run", f"{new_name}.*", "agent"))
    tool = f"count_{new_name}"
    declared = json.dumps([{"name": tool, "description": "Counts.", "script": "scripts/a.py", "parameters": {}}])
    files = [
        {"path": "tools.json", "content": declared},
        {"path": "scripts/a.py", "content": "def handler(args): pass\n"},
    ]
    for name, audience in (("report", "people"), ("reports", "internal")):
        about = manifest(f"{new_name}.{name}", kind="instruction")
        person(
            "create_skill", manifest=about, skill_md=skill_md(name, **FOR[audience]), files=files * (name == "report")
        )

    def suggested(caller: Caller, method: str, name: str) -> set[str]:
        """Return the suggestions from the names of this test."""
        near = caller.error(method, name=name)["data"]["near"]
        return {text for text in near if new_name in text}

    assert suggested(person, "describe_skill", f"{new_name}.reporst") == {f"{new_name}.report", f"{new_name}.reports"}
    assert suggested(agent, "describe_skill", f"{new_name}.reporst") == {f"{new_name}.reports"}
    assert suggested(person, "call_tool", f"{tool}x") == {tool}
    assert suggested(agent, "call_tool", f"{tool}x") == set()


def test_lists_by_creation_and_of_drafts(org: Server, new_name: str) -> None:
    person = Caller(org.url, Who("ann", "read run publish", f"{new_name}.*"))
    agent = Caller(org.url, Who("bot", "read publish", f"{new_name}.*", "agent"))
    publish(person, new_name)

    for caller, names in ((person, {"all", "people", "models"}), (agent, {"all", "models"})):
        page = caller.http.get("/v1/skills", params={"order": "desc", "limit": 50}).json()["data"]
        assert {one["name"].rpartition(".")[2] for one in page if one["name"].startswith(f"{new_name}.")} == names
    publish(agent, f"{new_name}.drafts")
    drafts = agent("list_skills", namespace=f"{new_name}.drafts", status="draft")
    assert listed(drafts) == set(FOR)


def test_hidden_skills_for_people_stay_hidden_from_models(org: Server, new_name: str) -> None:
    person = Caller(org.url, Who("ann", "read run publish", f"{new_name}.*"))
    agent = Caller(org.url, Who("bot", "read", "other.*", "agent"))
    publish(person, new_name)
    person("set_visibility", name=f"{new_name}.people", visibility="private")

    assert agent.error("describe_skill", name=f"{new_name}.people")["code"] == -32003
    assert listed(agent("list_skills", namespace=new_name)) == {"all", "models"}


@pytest.mark.full
def test_mcp_calls_are_calls_of_models(sqlite_rpc: Rpc, new_name: str) -> None:
    publish(sqlite_rpc, new_name)
    mcp = Mcp(sqlite_rpc, tools="search_skills")

    assert listed(mcp.tool("list_skills", namespace=new_name)["structuredContent"]) == {"all", "models"}
    found = mcp.tool("search_skills", query=f"kiwi {new_name}", namespace=new_name)["structuredContent"]
    assert listed(found) == {"all", "models"}
    read = mcp.tool("read_skill_file", name=f"{new_name}.people", path="SKILL.md")
    assert read["isError"]
    assert REFUSAL.format(f"{new_name}.people") in read["content"][0]["text"]
    assert sqlite_rpc("read_skill_file", name=f"{new_name}.people", path="SKILL.md")["content"]


def test_resources_of_mcp_show_models_no_skills_for_people(sqlite_rpc: Rpc, new_name: str) -> None:
    publish(sqlite_rpc, new_name)
    mcp = Mcp(sqlite_rpc)
    folder = f"skill://{new_name}/people"

    children = mcp.all("resources/directory/read", "resources", uri=f"skill://{new_name}")
    assert {child["name"] for child in children} == {"all", "models"}
    assert mcp("resources/read", uri=f"skill://{new_name}/internal/SKILL.md")["contents"]
    for method, uri in (
        ("resources/read", f"{folder}/SKILL.md"),
        ("resources/read", f"{folder}@1.0.0/SKILL.md"),
        ("resources/directory/read", folder),
        ("skills/get", f"{folder}/SKILL.md"),
    ):
        error = mcp.error(method, uri=uri)
        assert (error["code"], error["message"]) == (-32007, REFUSAL.format(f"{new_name}.people"))


def publish_deploy(rpc: Rpc | Caller, namespace: str) -> str:
    """Publish a skill that only people start, with words of the user and another file. Return its name."""
    name = f"{namespace}.deploy"
    keys = FOR["people"] | {"title": "Go live", "argument-hint": '"[host]"'}
    text = skill_md("deploy", "Puts a site on a host.", "# Deploy\n\nDeploy to $ARGUMENTS.\n", **keys)
    rpc(
        "create_skill",
        manifest=manifest(name, kind="instruction", description="Puts a site on a host."),
        skill_md=text,
        files=[{"path": "resources/hosts.txt", "content": "a\n"}],
    )
    return name


@pytest.mark.parametrize("era", [MODERN, LEGACY])
def test_mcp_offers_skills_for_people_as_prompts(sqlite_rpc: Rpc, new_name: str, era: str) -> None:
    publish(sqlite_rpc, new_name)
    name = publish_deploy(sqlite_rpc, new_name)
    mcp = Mcp(sqlite_rpc, era)

    prompts = [prompt for prompt in mcp.all("prompts/list", "prompts") if prompt["name"].startswith(f"{new_name}.")]
    assert [prompt["name"] for prompt in prompts] == [name, f"{new_name}.people"]
    words = {"name": "arguments", "description": "[host]", "required": False}
    about = {"title": "Go live", "description": "Puts a site on a host.", "arguments": [words]}
    assert prompts[0] == {"name": name, **about}

    prompt = mcp("prompts/get", name=name, arguments={"arguments": "blue"})
    [message] = prompt["messages"]
    assert (prompt["description"], message["role"]) == (about["description"], "user")
    assert message["content"]["text"] == (
        "# Deploy\n\nDeploy to blue.\n\nThe other files of this skill are resources/hosts.txt. Models cannot read them "
        f"on the server. The user gets them with `skillery install DIR {name}`."
    )
    [message] = mcp("prompts/get", name=f"{new_name}.people", arguments={"arguments": "all of it"})["messages"]
    assert message["content"]["text"].endswith("\n\nARGUMENTS: all of it")


def test_prompts_of_mcp_have_pages(sqlite_rpc: Rpc, new_name: str) -> None:
    numbered = [f"s{number:02}" for number in range(PROMPTS_A_PAGE + 1)]
    archive = zipped({f"{name}/SKILL.md": skill_md(name, **FOR["people"]) for name in numbered})
    assert sent(sqlite_rpc, archive, namespace=new_name, source="a")["counts"] == {"published": len(numbered)}
    prompts = [prompt["name"] for prompt in Mcp(sqlite_rpc).all("prompts/list", "prompts")]
    assert [name for name in prompts if name.startswith(f"{new_name}.")] == [f"{new_name}.{name}" for name in numbered]


def test_the_text_of_a_prompt_has_a_limit(sqlite_rpc: Rpc, new_name: str) -> None:
    name = f"{new_name}.many"
    text = skill_md("many", "Repeats.", "$ARGUMENTS " * 1000, **FOR["people"])
    sqlite_rpc("create_skill", manifest=manifest(name, kind="instruction", description="Repeats."), skill_md=text)
    mcp = Mcp(sqlite_rpc)

    assert mcp("prompts/get", name=name, arguments={"arguments": "a"})["messages"]
    error = mcp.error("prompts/get", name=name, arguments={"arguments": "a" * 1000})
    assert (error["code"], "the limit is 262144" in error["message"]) == (-32005, True)


def test_prompts_follow_the_visibility_of_skills(org: Server, new_name: str) -> None:
    person = Caller(org.url, Who("ann", "read publish", f"{new_name}.*"))
    name = publish_deploy(person, new_name)
    agent, other = (
        Mcp(Caller(org.url, who))
        for who in (Who("bot", "read", f"{new_name}.*", "agent"), Who("bob", "read", "other.*"))
    )

    assert name not in {prompt["name"] for prompt in agent.all("prompts/list", "prompts")}
    error = agent.error("prompts/get", name=name)
    assert (error["code"], error["message"]) == (-32007, REFUSAL.format(name))
    assert other("prompts/get", name=name)["messages"]
    person("set_visibility", name=name, visibility="private")
    assert name not in {prompt["name"] for prompt in other.all("prompts/list", "prompts")}
    for missing in (name, f"{new_name}.missing"):
        error = other.error("prompts/get", name=missing)
        assert (error["code"], error["message"]) == (-32602, f"there is no prompt '{missing}'")
    assert other.error("prompts/get", name="a b")["code"] == -32602


def test_agents_manage_versions_for_people(org: Server, new_name: str) -> None:
    person = Caller(org.url, Who("ann", "read run publish", f"{new_name}.*"))
    agent = Caller(org.url, Who("bot", "read publish review admin", f"{new_name}.*", "agent"))
    published = zipped({"published/SKILL.md": skill_md("published", "Kiwi.", **FOR["people"])})
    drafted = zipped({"drafted/SKILL.md": skill_md("drafted", "Kiwi.", **FOR["people"])})
    name = f"{new_name}.published"

    assert sent(person, published, namespace=new_name, source="a")["counts"] == {"published": 1}
    for source in ("a", "b"):
        assert sent(agent, published, namespace=new_name, source=source)["counts"] == {"unchanged": 1}
    sent(agent, drafted, namespace=new_name, source="a")
    assert sent(agent, drafted, namespace=new_name, source="a")["counts"] == {"unchanged": 1}

    [one] = agent("list_versions", name=name)["versions"]
    of_version = {"name": name, "version": one["version"]}
    assert agent("set_label", **of_version, label="stable")["version"] == one["version"]
    assert agent("recheck_version", **of_version)["new"] == []
    assert agent("yank_version", **of_version, reason="Old.")["status"] == "yanked"
    assert agent("purge_version", **of_version, reason="A secret.")["status"] == "purged"
    [draft] = agent("list_versions", name=f"{new_name}.drafted")["versions"]
    assert agent("submit_version", name=f"{new_name}.drafted", version=draft["version"])["status"] == "in_review"
    assert agent.error("describe_skill", name=f"{new_name}.drafted", version=draft["version"])["code"] == -32007
