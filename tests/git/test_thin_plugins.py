"""Thin plugins: the skills of a namespace without their scripts, which run on the server."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tests.app.test_serve import refused
from tests.conftest import Server, manifest, skill_files
from tests.git.clones import Git
from tests.git.test_git_catalogues import AGENT_PLUGIN, marketplace

URL = "https://skills.example.org"
SKILL_MD = "---\nname: x\ndescription: Words.\n---\nCount words.\n"


@pytest.fixture
def server(start_server: Callable[..., Server]) -> Server:
    server = start_server(env={"SKILLERY_PUBLIC_URL": URL, "SKILLERY_THIN_PLUGINS": "acme", "SKILLERY_GIT": "true"})
    scripts: list[dict[str, Any]] = [
        {"path": "run", "content": "#!/bin/sh\n", "executable": True},
        {"path": "scripts/Deep.SH", "content": "echo\n"},
        {"path": "resources/table.csv", "content": "a,b\n"},
    ]
    for name, version, files in (
        ("acme.one", "1.2.0", [*skill_files(), *scripts]),
        ("acme.x.two_b", "0.1.0", []),
        ("other.three", "1.0.0", skill_files()),
    ):
        kind: dict[str, Any] = {} if files else {"kind": "instruction"}
        server.rpc("create_skill", manifest=manifest(name, version, **kind), skill_md=SKILL_MD, files=files)
    return server


def files_below(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


@pytest.mark.full
def test_a_thin_plugin_has_instructions_and_no_script(server: Server, tmp_path: Path) -> None:
    git = Git(tmp_path / "git", server.url)
    clone = git.clone("acme", "clone", "--depth", "1")
    thin = clone / "thin/acme"

    assert files_below(thin) == {
        "plugin.json",
        "mcp.json",
        "skills/acme-one/SKILL.md",
        "skills/acme-one/skill.toml",
        "skills/acme-one/resources/table.csv",
        "skills/acme-x-two-b/SKILL.md",
        "skills/acme-x-two-b/skill.toml",
    }
    whole = (clone / "skills/acme-one/SKILL.md").read_text()
    text = (thin / "skills/acme-one/SKILL.md").read_text()
    assert text.startswith(whole.rstrip())
    assert "`execute_skill` of the MCP server `skills-example-org`" in text
    assert '{"name": "acme.one", "version": "1.2.0"}' in text
    for script in ("code/main.py", "run", "scripts/Deep.SH"):
        assert f"- `{script}`\n" in text
        assert (clone / "skills/acme-one" / script).is_file()
    without = thin / "skills/acme-x-two-b/SKILL.md"
    assert without.read_bytes() == (clone / "skills/acme-x-two-b/SKILL.md").read_bytes()


@pytest.mark.full
def test_clients_find_the_thin_plugin_in_every_catalogue(server: Server, tmp_path: Path) -> None:
    git = Git(tmp_path / "git", server.url)
    connection = {"type": "stdio", "command": "skillery", "args": ["mcp", "--tools", "search_skills", "--url", URL]}
    entry = {
        "name": "acme-thin",
        "source": "./thin/acme",
        "description": "Skills of the namespace acme. Their scripts run on the server.",
        "strict": False,
        "skills": ["./skills/acme-one", "./skills/acme-x-two-b"],
        "mcpServers": {"skills-example-org": connection},
    }
    for repository in ("_all", "acme"):
        clone = git.clone(repository, repository, "--depth", "1")
        assert [one for one in marketplace(clone)["plugins"] if one["name"].endswith("thin")] == [entry]
        plugin = json.loads((clone / "thin/acme/plugin.json").read_text())
        jsonschema.validate(plugin, AGENT_PLUGIN)
        assert plugin["name"] == "acme-thin"
        assert json.loads((clone / "thin/acme/mcp.json").read_text()) == {
            "$schema": "https://agent-plugins.org/schemas/1.0.0/mcp.schema.json",
            "mcpServers": {"skills-example-org": connection},
        }
    answer = server.rpc.http.get("/marketplace.json?sources=git").json()
    [found] = [one for one in answer["plugins"] if one["name"].endswith("thin")]
    source = {"source": "git-subdir", "url": f"{URL}/git/acme.git", "path": "thin/acme", "ref": "latest"}
    assert found == entry | {"source": source}

    for repository in ("n/acme.one", "other"):
        assert not (git.clone(repository, repository.replace("/", "-"), "--depth", "1") / "thin").exists()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"SKILLERY_THIN_PLUGINS": "acme"}, ["thin_plugins", "public_url"]),
        ({"SKILLERY_THIN_PLUGINS": "Acme", "SKILLERY_PUBLIC_URL": URL}, ["thin_plugins", "'Acme'"]),
    ],
)
def test_a_wrong_setting_is_named_at_start(tmp_path: Path, settings: dict[str, str], words: list[str]) -> None:
    message = refused(tmp_path / "home", env=settings)
    assert all(word in message for word in words)
