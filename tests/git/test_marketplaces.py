"""`/marketplace.json`: the skills of the registry as plugins of a marketplace."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.conftest import Rpc, Server, manifest, skill_files
from tests.git.clones import Git


@pytest.fixture
def create(rpc: Rpc) -> Callable[..., Any]:
    def make(name: str, version: str = "1.0.0") -> Any:
        return rpc(
            "create_skill",
            manifest=manifest(name, version),
            skill_md="---\nname: x\ndescription: Größe of things.\n---\n",
            files=skill_files(),
        )

    return make


def plugins_of(answer: httpx.Response) -> dict[str, dict[str, Any]]:
    assert answer.status_code == 200, answer.text
    return {one["name"]: one for one in answer.json()["plugins"]}


def test_git_sources_lead_to_the_skills(
    server: Server, rpc: Rpc, create: Callable[..., Any], tmp_path: Path, new_name: str
) -> None:
    create(f"{new_name}.a_b", "1.2.0-rc.1")
    create(f"{new_name}.c")
    found = rpc.http.get(f"/marketplace.json?namespace={new_name}")

    assert found.json()["name"] == f"skillery-{new_name}"
    plugins = plugins_of(found)
    assert plugins[f"{new_name}-a-b"] == {
        "name": f"{new_name}-a-b",
        "source": {"source": "url", "url": f"{server.url}/git/n/{new_name}.a_b.git", "ref": "v1.2.0-rc.1"},
        "description": "Größe of things.",
        "version": "1.2.0-rc.1",
        "strict": False,
        "skills": [f"./skills/{new_name}-a-b"],
    }
    assert plugins[f"{new_name}-all"]["skills"] == [f"./skills/{new_name}-a-b", f"./skills/{new_name}-c"]
    git = Git(tmp_path / "git", server.url)
    for number, plugin in enumerate(plugins.values()):
        source = plugin["source"]
        git("clone", "--quiet", "--depth", "1", "--branch", source["ref"], source["url"], f"clone{number}")
        for folder in plugin["skills"]:
            assert (git.folder / f"clone{number}" / folder / "SKILL.md").is_file()


def test_archive_sources_have_the_digest_of_their_zip(rpc: Rpc, create: Callable[..., Any], new_name: str) -> None:
    create(f"{new_name}.a", "1.0.0+build.1")
    [plugin] = plugins_of(rpc.http.get(f"/marketplace.json?namespace={new_name}&sources=archive")).values()

    source = plugin["source"]
    assert source["source"] == "archive"
    archive = rpc.http.get(source["url"])
    assert archive.headers["content-type"] == "application/zip"
    assert hashlib.sha256(archive.content).hexdigest() == source["sha256"]
    assert plugin["skills"] == ["./"]


def test_a_label_is_a_marketplace_of_its_versions(rpc: Rpc, create: Callable[..., Any], new_name: str) -> None:
    for version in ("1.0.0", "2.0.0"):
        create(f"{new_name}.a", version)
    create(f"{new_name}.b")
    rpc("set_label", name=f"{new_name}.a", label="stable", version="1.0.0")

    for label, versions in (("stable", ["1.0.0"]), ("latest", ["2.0.0", "1.0.0"])):
        answer = rpc.http.get(f"/marketplace.json?namespace={new_name}&label={label}&sources=archive")
        assert [one["version"] for one in plugins_of(answer).values()] == versions
    nothing = rpc.http.get(f"/marketplace.json?namespace={new_name}&label=other")
    assert nothing.status_code == 404
    assert nothing.json()["error"]["data"]["type"] == "repository_not_found"


def test_a_client_that_knows_the_marketplace_gets_304(rpc: Rpc, create: Callable[..., Any], new_name: str) -> None:
    create(f"{new_name}.a")
    address = f"/marketplace.json?namespace={new_name}"
    etag = rpc.http.get(address).headers["etag"]
    assert rpc.http.get(address, headers={"if-none-match": etag}).status_code == 304
    create(f"{new_name}.a", "1.0.1")
    assert rpc.http.get(address, headers={"if-none-match": etag}).status_code == 200


@pytest.mark.parametrize(
    ("query", "named"),
    [
        ("sources=ftp", "'ftp'"),
        ("label=1.0.0", "'1.0.0'"),
        ("namespace=A..b", "A..b"),
        ("other=1", "'other'"),
    ],
)
def test_a_wrong_parameter_is_named(rpc: Rpc, query: str, named: str) -> None:
    answer = rpc.http.get(f"/marketplace.json?{query}")
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert named in error["message"]
    assert error["data"]["hint"]


@pytest.mark.full
def test_addresses_and_sources_follow_the_public_url(start_server: Callable[..., Server]) -> None:
    url = "https://skills.example.org/x/"
    server = start_server(env={"SKILLERY_PUBLIC_URL": url, "SKILLERY_GIT": "false", "SKILLERY_MARKETPLACE": "acme"})
    server.rpc("create_skill", manifest=manifest("a.b"), skill_md="# x\n", files=skill_files())
    found = server.rpc.http.get("/marketplace.json?namespace=a")
    assert found.json()["name"] == "acme-a"
    assert plugins_of(found)["a-b"]["source"]["url"] == "https://skills.example.org/x/skills/a.b/1.0.0.zip"
    refused = server.rpc.http.get("/marketplace.json?sources=git")
    assert refused.status_code == 400
    assert "no git repositories" in refused.json()["error"]["message"]
