"""Catalogues at the root of a repository: plugins for Claude Code and Codex, and Agent Plugins 1.0.0."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tests.conftest import ON_SQLITE, Rpc, Server, manifest, skill_files
from tests.git.clones import Git

TEXT = {"type": "string"}
# The rules of Agent Plugins 1.0.0 for plugin.json (agent-plugins.org): a closed object with two required members.
AGENT_PLUGIN = {
    "type": "object",
    "additionalProperties": False,
    "required": ["$schema", "name"],
    "properties": {
        "$schema": {"const": "https://agent-plugins.org/schemas/1.0.0/plugin.schema.json"},
        "name": TEXT | {"maxLength": 64, "pattern": r"^(?!.*(--|\.\.))[a-z0-9]([a-z0-9.-]*[a-z0-9])?$"},
        **dict.fromkeys(("version", "description", "homepage", "repository", "license"), TEXT),
        "keywords": {"type": "array", "items": TEXT},
    },
}


@pytest.fixture
def git(server: Server, tmp_path: Path) -> Git:
    return Git(tmp_path / "git", server.url)


def marketplace(clone: Path) -> dict[str, Any]:
    """Return the marketplace of a clone. It is the same file for each client."""
    folders = (".claude-plugin", ".cursor-plugin", ".github/plugin")
    [text] = {(clone / folder / "marketplace.json").read_text() for folder in folders}
    found: dict[str, Any] = json.loads(text)
    return found


@ON_SQLITE
def test_each_skill_and_each_namespace_with_several_skills_is_a_plugin(git: Git, rpc: Rpc, new_name: str) -> None:
    for name, version in (("x.one_a", "1.2.0"), ("x.two", "0.1.0-rc.1"), ("y.three", "2.0.0")):
        rpc(
            "create_skill",
            manifest=manifest(f"{new_name}.{name}", version),
            skill_md="---\nname: x\ndescription: Größe of things.\n---\n",
            files=skill_files(),
        )
    clone = git.clone(new_name, "clone", "--depth", "1")

    found = marketplace(clone)
    assert found["name"] == f"skillery-{new_name}"
    assert found["owner"] == {"name": "skillery"}
    folders = [f"{new_name}-x-one-a", f"{new_name}-x-two", f"{new_name}-y-three"]
    *skills, namespace = found["plugins"]
    assert skills == [
        {
            "name": folder,
            "source": f"./skills/{folder}",
            "description": "Größe of things.",
            "version": version,
            "strict": False,
            "skills": ["./"],
        }
        for folder, version in zip(folders, ("1.2.0", "0.1.0-rc.1", "2.0.0"), strict=True)
    ]
    assert namespace["name"] == f"{new_name}-x-all"
    assert namespace["source"] == "./skills"
    assert namespace["skills"] == [f"./{folder}" for folder in folders[:2]]
    for plugin in found["plugins"]:
        for path in plugin["skills"]:
            assert (clone / plugin["source"] / path / "SKILL.md").is_file()


@pytest.mark.full
def test_the_repository_is_an_agent_plugin(git: Git, rpc: Rpc, new_name: str) -> None:
    long = f"{new_name}.{'long_name.' * 8}end"
    for name in (long, f"{new_name}.b"):
        rpc("create_skill", manifest=manifest(name, "1.2.0"), skill_md="# x\n", files=skill_files())

    names = []
    for number, repository in enumerate(("_all", new_name, f"n/{long}", f"n/{new_name}.b", long.rpartition(".")[0])):
        clone = git.clone(repository, f"clone{number}", "--depth", "1")
        plugin = json.loads((clone / "plugin.json").read_text())
        jsonschema.validate(plugin, AGENT_PLUGIN)
        assert plugin.get("version") == ("1.2.0" if repository.startswith("n/") else None)
        assert marketplace(clone)["name"] == plugin["name"]
        names.append(plugin["name"])
    assert len(set(names)) == len(names)
    assert names[0] == "skillery"


@ON_SQLITE
def test_a_branch_has_the_catalogue_of_its_versions(git: Git, rpc: Rpc, new_name: str) -> None:
    for version in ("1.0.0", "2.0.0"):
        rpc("create_skill", manifest=manifest(f"{new_name}.a", version), skill_md="# x\n", files=skill_files())
    rpc("set_label", name=f"{new_name}.a", label="stable", version="1.0.0")

    for branch, version in (("latest", "2.0.0"), ("stable", "1.0.0")):
        clone = git.clone(new_name, branch, "--depth", "1", "--branch", branch)
        assert [one["version"] for one in marketplace(clone)["plugins"]] == [version]


@pytest.mark.full
def test_the_marketplace_has_the_name_of_the_server(start_server: Callable[..., Server], tmp_path: Path) -> None:
    for number, (settings, name) in enumerate(
        (
            ({"SKILLERY_PUBLIC_URL": "https://Skills.example.org:8443/x"}, "skills-example-org"),
            ({"SKILLERY_PUBLIC_URL": "https://skills.example.org", "SKILLERY_MARKETPLACE": "acme"}, "acme"),
        )
    ):
        server = start_server(home="home", env=settings)
        git = Git(tmp_path / f"git{number}", server.url)
        server.rpc("create_skill", manifest=manifest(f"a.b{number}"), skill_md="# x\n", files=skill_files())
        assert marketplace(git.clone("_all", "clone"))["name"] == name
        assert marketplace(git.clone("a", "part"))["name"] == f"{name}-a"
        server.stop()


def test_shared_repositories_leave_out_paths_that_windows_cannot_store(git: Git, rpc: Rpc, new_name: str) -> None:
    odd, plain = f"{new_name}.odd", f"{new_name}.plain"
    rpc("create_skill", manifest=manifest(plain), skill_md="# x\n", files=skill_files())
    files = [*skill_files(), {"path": "docs/aux.md", "content": "x"}]
    rpc("create_skill", manifest=manifest(odd), skill_md="# x\n", files=files)
    checked = rpc("check_skill", manifest=manifest(odd, "2.0.0"), skill_md="# x\n", files=files)

    [finding] = [one for one in checked["findings"] if one["rule"] == "not_portable"]
    assert (finding["severity"], finding["file"]) == ("warning", "docs/aux.md")
    shared, own = git.clone(new_name, "shared", "--depth", "1"), git.clone(f"n/{odd}", "own", "--depth", "1")
    assert [folder.name for folder in (shared / "skills").iterdir()] == [f"{new_name}-plain"]
    assert {plugin["name"] for plugin in marketplace(shared)["plugins"]} == {f"{new_name}-plain"}
    assert f"/git/n/{odd}.git" in (shared / "LEFT_OUT.md").read_text()
    assert (own / f"skills/{new_name}-odd/docs/aux.md").is_file()
    assert not (own / "LEFT_OUT.md").exists()
    listed = rpc.http.get(f"/marketplace.json?namespace={new_name}").json()
    assert {plugin["name"] for plugin in listed["plugins"]} == {f"{new_name}-plain"}
