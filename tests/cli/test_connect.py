"""`skillery connect`: settings of clients, merged into their files without a token."""

from __future__ import annotations

import json
import stat
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.test_cli import skillery
from tests.conftest import ASKS_FOR_TOKENS, Rpc, Server, publisher
from tests.support.browser import token_of
from tests.support.client_user import ClientUser

CLIENTS = ("claude", "codex", "cursor", "copilot", "vscode", "npx", "apm", "mcp")
WITH_GIT = ("claude", "codex", "copilot", "npx", "apm")


@pytest.fixture(scope="module")
def asking(shared_server: Callable[..., Server]) -> Server:
    server = shared_server("asks_for_tokens", "sqlite", **ASKS_FOR_TOKENS)
    publish = publisher(Rpc(server.url, token_of(server, "publishes", "read", "publish", namespaces=("*",))))
    for name in ("connected.greet", "elsewhere.greet"):
        publish(name)
    return server


@pytest.fixture(scope="module")
def token(asking: Server) -> str:
    made = skillery("token", "create", "--name", "connects", "--scope", "read", "--home", str(asking.home), "--json")
    text: str = made.json["token"]
    return text


@pytest.fixture
def user(asking: Server, tmp_path: Path, token: str, monkeypatch: pytest.MonkeyPatch) -> ClientUser:
    user = ClientUser(asking.url, tmp_path)
    user.log_in(token)
    monkeypatch.chdir(tmp_path)  # `vscode` writes to the current folder
    return user


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.full(after=1)
def test_settings_are_printed_and_nothing_is_written(client: str, user: ClientUser, token: str) -> None:
    before = user.files()

    shown = user.connect(client)

    assert shown.code == 0, shown.err
    assert user.url in shown.out
    assert token not in shown.out + shown.err
    assert user.files() == before


@pytest.mark.parametrize("client", CLIENTS[:-1])
@pytest.mark.full(after=1)
def test_written_settings_are_complete_and_written_once(client: str, user: ClientUser, token: str) -> None:
    first = user.written(client)
    files = user.files()
    again = user.written(client)

    assert "+++ " in first.out
    assert "+++ " not in again.out
    assert "has these settings already" in again.out
    assert user.files() == files
    assert all(token not in text for text in files.values())
    assert (".gitconfig" in files) is (client in WITH_GIT)
    assert not [name for name in files if "/." in name.replace(".config", "") and name.endswith(".tmp")]


@pytest.mark.parametrize("namespace", ["", "connected"])
def test_git_clones_with_the_written_helper(namespace: str, user: ClientUser, token: str) -> None:
    user.written("npx", *(("--namespace", namespace) if namespace else ()))
    address = f"{user.url}/git/{namespace or '_all'}.git"

    done = user.git("clone", "--quiet", address, "skills")

    assert done.returncode == 0, done.stdout
    names = {path.parent.name for path in (user.home / "skills").glob("skills/*/SKILL.md")}
    assert "connected-greet" in names
    assert ("elsewhere-greet" in names) is (namespace == "")
    assert all(token not in text for text in user.files().values())


def test_a_helper_of_the_user_does_not_store_the_token(user: ClientUser, token: str) -> None:
    (user.home / ".gitconfig").write_text("[credential]\n\thelper = store\n[user]\n\tname = Lea\n")
    user.written("npx")

    assert user.git("clone", "--quiet", f"{user.url}/git/connected.git", "skills").returncode == 0

    assert ".git-credentials" not in user.files()
    assert user.git("config", "--get", "user.name").stdout == "Lea\n"
    assert user.git("config", "--get", "credential.helper").stdout == "store\n"


def test_entries_of_the_user_stay(user: ClientUser) -> None:
    cursor = user.home / ".cursor" / "mcp.json"
    cursor.parent.mkdir()
    cursor.write_text('{"mcpServers": {"other": {"command": "other"}}, "more": [1]}')
    codex = user.home / ".codex" / "config.toml"
    codex.parent.mkdir()
    codex.write_text('# mine\nmodel = "x"\n\n[mcp_servers.other]\ncommand = "other" # kept\n')

    user.written("cursor")
    user.written("codex")

    found = json.loads(cursor.read_text())
    assert list(found) == ["mcpServers", "more"]
    assert found["mcpServers"]["other"] == {"command": "other"}
    assert found["more"] == [1]
    text = codex.read_text()
    assert text.startswith('# mine\nmodel = "x"\n\n[mcp_servers.other]\ncommand = "other" # kept\n')
    servers = tomllib.loads(text)["mcp_servers"]
    name = next(one for one in servers if one != "other")
    assert (
        servers[name]["args"]
        == found["mcpServers"][name]["args"]
        == ["mcp", "--tools", "search_skills", "--url", user.url]
    )


def test_an_entry_of_a_former_version_is_replaced(user: ClientUser) -> None:
    user.written("cursor")
    place = user.home / ".cursor" / "mcp.json"
    good = place.read_text()
    former = json.loads(good)
    [name] = former["mcpServers"]
    former["mcpServers"][name] = {"url": "http://former.example", "args": []}
    place.write_text(json.dumps(former))

    changed = user.written("cursor")

    assert place.read_text() == good
    assert '-{"mcpServers"' in changed.out


@pytest.mark.parametrize(
    ("client", "path", "text"),
    [
        ("cursor", ".cursor/mcp.json", '{"mcpServers": {}, // a comment\n}'),
        ("cursor", ".cursor/mcp.json", "[]"),
        ("cursor", ".cursor/mcp.json", '{"mcpServers": 7}'),
        ("codex", ".codex/config.toml", "mcp_servers = 7\n"),
        ("codex", ".codex/config.toml", "[[["),
    ],
)
@pytest.mark.full(after=1)
def test_a_file_that_cannot_be_merged_stays(client: str, path: str, text: str, user: ClientUser) -> None:
    place = user.home / path
    place.parent.mkdir()
    place.write_text(text)

    done = user.connect(client, "--write")

    assert done.code == 4, done.err
    assert str(place) in done.err
    assert "by hand" in done.err
    assert user.url in done.err, "the message has what to add"
    assert place.read_text() == text
    assert ".gitconfig" not in user.files(), "nothing is written if one file cannot be"


def test_a_link_and_its_mode_stay(user: ClientUser) -> None:
    real = user.home / "dotfiles" / "mcp.json"
    real.parent.mkdir()
    real.write_text("{}")
    real.chmod(0o600)
    link = user.home / ".cursor" / "mcp.json"
    link.parent.mkdir()
    link.symlink_to(real)

    user.written("cursor")

    assert link.is_symlink()
    assert stat.S_IMODE(real.stat().st_mode) == 0o600
    assert user.url in real.read_text()


def test_json_names_each_file_and_command(user: ClientUser) -> None:
    found = user.connect("codex", "--json").json

    assert [Path(one["path"]).name for one in found["files"]] == [".gitconfig", "config.toml"]
    assert [one["written"] for one in found["files"]] == [False, False]
    assert found["commands"][0] == f"codex plugin marketplace add {user.url}/git/_all.git"


def test_folders_that_clients_name_themselves(user: ClientUser, tmp_path: Path) -> None:
    for client, variable in (("claude", "CLAUDE_CONFIG_DIR"), ("codex", "CODEX_HOME"), ("copilot", "COPILOT_HOME")):
        shown = user.connect(client, **{variable: str(tmp_path / client)})
        assert f"{tmp_path / client}/" in shown.out


def test_connect_refuses_invalid_arguments_and_a_missing_login(
    user: ClientUser, asking: Server, tmp_path: Path
) -> None:
    assert user.connect("mcp", "--write").code == 2
    assert user.connect("emacs").code == 2
    unknown = user.connect("npx", "--namespace", "no.such")
    assert (unknown.code, unknown.out) == (3, "")
    assert "no.such" in unknown.err
    (tmp_path / "stranger").mkdir()
    stranger = ClientUser(asking.url, tmp_path / "stranger").connect("claude")
    assert (stranger.code, stranger.out) == (3, "")
    assert "skillery login" in stranger.err
