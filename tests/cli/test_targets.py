"""The target of a command: --url, SKILLERY_URL, `skillery use`, and the home."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from skillery.cli import commands
from skillery.proof.dsse import SigningKey
from tests.cli.test_cli import skillery
from tests.conftest import Server
from tests.support.logins import Configuration

NO_SERVER = "http://127.0.0.1:1"
ARGUMENTS = {
    "blob put": ["FILE"],
    "code": ["FILE"],
    "connect": ["mcp"],
    "credential": ["headers"],
    "diff": ["x@1.0.0", "x@2.0.0"],
    "export": ["NEW", "--all"],
    "hold add": ["--skill", "x", "--reason", "x"],
    "import": ["DIR"],
    "incident": ["--version", "x@1.0.0"],
    "install": ["NEW", "x"],
    "key add": ["KEY"],
    "lock": ["x"],
    "publish": ["DIR"],
    "purge": ["x@1.0.0", "--reason", "x", "--yes"],
    "status": ["INSTALLED"],
    "sync": ["DIR"],
    "tool define": ["x", "FILE", "--description", "x"],
    "trust add": ["x", "--issuer", "https://ci.example.org", "--claim", "sub=x"],
    "workspace put": ["ws_x", "FILE"],
}
"""Arguments of commands for which `x@1.0.0` is not enough. FILE and DIR are an existing file and folder,
and INSTALLED is a folder of installed skills."""

ALIASES = {"review", "admin", "more"}
"""Groups of commands that are also at the top."""
WITHOUT_REQUEST = {"bump", "dev", "eval", "mirror run", "test"}
"""`dev` tries again until it is interrupted. Without prompts, `eval` searches nothing, without a mirror, `mirror run`
sends nothing, and `bump` and `test` ask only for skills that a folder requires.
"""


@pytest.fixture
def folder(tmp_path: Path, new_name: str) -> Path:
    path = tmp_path / "skill"
    assert skillery("new", str(path), "--name", f"{new_name}.text").code == 0
    return path


@pytest.fixture
def configuration(tmp_path: Path) -> Configuration:
    return Configuration(tmp_path / "configuration")


def commands_with_url(group: click.Group = commands, before: str = "") -> Iterator[tuple[str, click.Command]]:
    for name, command in group.commands.items():
        path = f"{before} {name}".strip()
        if isinstance(command, click.Group):
            yield from commands_with_url(command, path)
        elif before.partition(" ")[0] not in ALIASES and any(param.name == "url" for param in command.params):
            yield path, command


def test_skillery_url_is_honoured_like_url(sqlite_server: Server, tmp_path: Path, folder: Path) -> None:
    home = str(tmp_path / "home")
    published = skillery("publish", str(folder), SKILLERY_URL=f"{sqlite_server.url}/rpc", SKILLERY_HOME=home)

    assert published.code == 0, published.err
    assert published.out.rstrip().endswith(f"to {sqlite_server.url}")
    assert not Path(home).exists()


def test_messages_hide_the_password_of_an_address(sqlite_server: Server, folder: Path) -> None:
    url = sqlite_server.url.replace("//", "//ann:pass-word@")
    published = skillery("publish", str(folder), "--url", url)
    failed = skillery("list", "--url", NO_SERVER.replace("//", "//ann:pass-word@"))

    assert published.out.rstrip().endswith(f"to {sqlite_server.url}"), published.err
    assert f"cannot connect to {NO_SERVER}" in failed.err
    assert f"curl {NO_SERVER}/healthz" in failed.err
    assert "pass-word" not in published.out + published.err + failed.err


@pytest.mark.full
@pytest.mark.parametrize("address", ["http://ann:hunter2@127.0.0.1:1", "ann:hunter2@host", "ftp://ann:hunter2@host"])
def test_no_command_keeps_or_prints_the_password_of_an_address(address: str, configuration: Configuration) -> None:
    own = configuration.variables
    kept = skillery("use", address, **own)
    printed = [kept]
    for words in (["list"], ["login", "--token"], ["logout"], ["connect", "mcp"], ["credential", "headers"]):
        printed.append(skillery(*words, "--url", address, **own))
    printed.append(skillery("use", SKILLERY_URL=address, **own))
    printed.append(skillery("try", address))

    assert kept.code in {2, 3}
    if address.startswith("http:"):
        assert "contains a user or a password" in kept.err
        assert "`skillery login` keeps a token" in kept.err
    assert not [ended.out + ended.err for ended in printed if "hunter2" in ended.out + ended.err]
    assert "commands use the home" in skillery("use", **own).out


def test_the_current_server_is_chosen_shown_and_left(sqlite_server: Server, configuration: Configuration) -> None:
    variables = configuration.variables
    url = sqlite_server.url
    chosen = skillery("use", f"{url}/rpc", **variables)
    listed = skillery("list", **variables, SKILLERY_HOME="/no/such/home")
    of_variable = skillery("list", **variables, SKILLERY_URL=NO_SERVER)
    of_option = skillery("list", "--url", url, **variables, SKILLERY_URL=NO_SERVER)
    of_home = skillery("list", "--home", "/dev/null/home", **variables)
    named_home = skillery("list", "--url", "home", **variables, SKILLERY_HOME="/dev/null/home")
    shown = skillery("use", "--json", **variables)
    ended = skillery("use", "home", **variables, SKILLERY_HOME="/no/such/home")

    assert (chosen.code, chosen.out) == (0, f"commands use {url} (from skillery use)\n")
    assert listed.code == 0, listed.err
    assert (of_variable.code, NO_SERVER in of_variable.err, "unset the variable" in of_variable.err) == (4, True, True)
    assert of_option.code == 0, of_option.err
    assert "/dev/null/home" in of_home.err
    assert "/dev/null/home" in named_home.err
    assert shown.json == {"url": url, "from": "skillery use"}
    assert ended.out == "commands use the home /no/such/home\n"
    assert skillery("use", "ftp://x", **variables).code == 2
    overridden = skillery("use", "home", **variables, SKILLERY_URL=url)
    assert overridden.out == f"commands use {url} (from SKILLERY_URL)\n"
    assert overridden.err == "The choice is kept, but SKILLERY_URL wins over it: unset the variable.\n"


def test_login_sets_the_current_server_and_logout_resets_it(
    sqlite_server: Server, configuration: Configuration
) -> None:
    url = ("--url", sqlite_server.url)
    said = skillery("login", *url, stdin=b"", **configuration.variables)
    used = skillery("use", "--json", **configuration.variables)
    again = skillery("login", **configuration.variables)
    skillery("logout", **configuration.variables)
    left = skillery("use", "--json", **configuration.variables)

    assert (said.code, "Commands now use" in said.err) == (0, True)
    assert used.json["url"] == sqlite_server.url
    assert sqlite_server.url in again.out
    assert left.json == {"url": None, "from": None}


def test_an_option_token_for_a_home_without_tokens_is_refused(sqlite_server: Server, tmp_path: Path) -> None:
    home = ("--home", str(sqlite_server.home))
    empty = skillery("list", "--token", "sky_x", "--home", str(tmp_path / "home"))
    served = skillery("list", "--token", "sky_x", *home)
    direct = skillery("token", "list", "--token", "sky_x", *home)

    for ended in (empty, served, direct):
        assert (ended.code, "which checks no tokens" in ended.err) == (2, True), ended.err
    assert skillery("list", *home, SKILLERY_TOKEN="sky_x").code == 0


@pytest.mark.full
def test_every_command_with_a_url_honours_skillery_url(
    tmp_path: Path, folder: Path, configuration: Configuration
) -> None:
    (tmp_path / "code.py").write_text("def main(args): ...\n")
    (tmp_path / "key.pem").write_bytes(SigningKey.new().pem)
    (tmp_path / "key.pem").chmod(0o600)
    (tmp_path / "installed").mkdir()
    record = {"lock_version": 1, "skills": [{"name": "x", "version": "1.0.0", "digest": "sha256:0"}]}
    (tmp_path / "installed/.skillery.lock").write_text(json.dumps(record))
    files = {"FILE": "code.py", "KEY": "key.pem", "NEW": "new", "INSTALLED": "installed"}
    places = {"DIR": str(folder)} | {word: str(tmp_path / name) for word, name in files.items()}
    wrong = {}
    for path, command in commands_with_url():
        if path in WITHOUT_REQUEST:
            continue
        words = ARGUMENTS.get(path, required_arguments(command))
        given = [places.get(word, word) for word in words]
        stdin = b'{"jsonrpc": "2.0", "id": 1, "method": "ping"}\n' if path == "mcp" else b"sky_x\n"
        ended = skillery(*path.split(), *given, stdin=stdin, SKILLERY_URL=NO_SERVER, **configuration.variables)
        if NO_SERVER.removeprefix("http://") not in ended.err + ended.out:
            wrong[path] = (ended.code, ended.err)

    assert wrong == {}


def required_arguments(command: click.Command) -> list[str]:
    words = []
    for param in command.params:
        if param.required:
            words += [param.opts[0]] if isinstance(param, click.Option) else []
            words.append(param.type.choices[0] if isinstance(param.type, click.Choice) else "x@1.0.0")
    return words
