"""`skillery login` at a server without an identity provider: a token that this computer keeps for its user."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cli.test_cli import Ended, skillery
from tests.conftest import ASKS_FOR_TOKENS, Server
from tests.support.logins import Configuration

KEYRING = '''
import json, os
from pathlib import Path
from keyring.backend import KeyringBackend
from keyring.errors import KeyringLocked, PasswordDeleteError

class FileKeyring(KeyringBackend):
    """A keyring in a file. If the file has no JSON, the keyring is locked."""
    priority = 5
    place = Path(os.environ["XDG_CONFIG_HOME"]) / "keyring.json"

    def _read(self):
        try:
            return json.loads(self.place.read_text()) if self.place.exists() else {}
        except ValueError:
            raise KeyringLocked("locked")

    def get_password(self, service, username):
        return self._read().get(f"{service} {username}")

    def set_password(self, service, username, password):
        self.place.write_text(json.dumps({**self._read(), f"{service} {username}": password}))

    def delete_password(self, service, username):
        found = self._read()
        if found.pop(f"{service} {username}", None) is None:
            raise PasswordDeleteError("absent")
        self.place.write_text(json.dumps(found))
'''


@pytest.fixture(scope="module")
def asking(shared_server: Callable[..., Server]) -> Server:
    return shared_server("asks_for_tokens", "sqlite", **ASKS_FOR_TOKENS)


@pytest.fixture(scope="module")
def token(asking: Server) -> str:
    made = skillery("token", "create", "--name", "lea", "--scope", "read", "--home", str(asking.home), "--json")
    text: str = made.json["token"]
    return text


@pytest.fixture
def configuration(tmp_path: Path) -> Configuration:
    return Configuration(tmp_path / "configuration")


Run = Callable[..., Ended]


@pytest.fixture
def run(asking: Server, configuration: Configuration) -> Run:
    def call(*arguments: str, stdin: str = "", url: str = asking.url, **variables: str) -> Ended:
        return skillery(*arguments, "--url", url, stdin=stdin.encode(), **configuration.variables | variables)

    return call


@pytest.mark.smoke
def test_a_token_is_checked_and_kept(run: Run, configuration: Configuration, asking: Server, token: str) -> None:
    said = run("login", stdin=f"{token}\n")

    assert (said.code, said.out) == (0, f"logged in to {asking.url} as lea (kept in the file)\n"), said.err
    assert configuration.modes() == {"folder": "0o700", "current": "0o600", ".json": "0o600", ".lock": "0o600"}
    assert run("quota", "--json").json["identity"] == "lea"
    assert run("quota", "--json", url=f"{asking.url}/rpc").json["identity"] == "lea"
    assert skillery("quota", "--home", str(asking.home), **configuration.variables).code == 0
    assert run("quota", "--token", "").code == 3
    assert token not in said.out + said.err

    ended = run("logout")
    assert "logged out" in ended.out
    assert "skillery token revoke" in ended.out
    assert configuration.files() == []
    assert run("list").code == 3


def test_the_home_names_the_server(asking: Server, configuration: Configuration, token: str, tmp_path: Path) -> None:
    home = ("--home", str(asking.home))
    kept = skillery("login", *home, "--json", stdin=token.encode(), **configuration.variables).json
    unknown = skillery("login", "--home", str(tmp_path / "empty"), **configuration.variables)

    expected = {"server": asking.url, "identity": "lea", "kept_in": "file", "expires_at": None, "renewed": False}
    assert kept == expected
    assert unknown.code == 4
    assert "name a server with --url" in unknown.err


@pytest.mark.parametrize("text", ["sky_unknown", "", "two words", "sky_ä", "x" * 70_000])
def test_a_bad_token_is_not_kept(text: str, run: Run, configuration: Configuration) -> None:
    said = run("login", "--token", stdin=text)

    assert said.code == (3 if text == "sky_unknown" else 2)
    assert configuration.files() == []
    assert not text or text not in said.err


def test_a_failed_login_keeps_the_earlier_login(run: Run, token: str) -> None:
    assert run("login", stdin=token).code == 0

    assert run("login", stdin="sky_unknown").code == 3

    assert run("quota", "--json").json["identity"] == "lea"


def test_an_open_server_needs_no_login(run: Run, sqlite_server: Server, configuration: Configuration) -> None:
    said = run("login", url=sqlite_server.url)

    assert (said.code, said.out) == (0, f"{sqlite_server.url} does not ask for a login\n")
    assert configuration.files() == []


def test_options_that_do_not_fit_are_refused(run: Run) -> None:
    assert "names no identity provider, so --device does not work: use --token" in run("login", "--device").err
    assert run("login", "--device", "--browser").code == 2
    assert run("login", url="http://ann:secret@127.0.0.1:1").code == 3
    assert "secret" not in run("login", url="http://ann:secret@127.0.0.1:1").err
    assert run("login", url="http://127.0.0.1:1").code == 4
    assert "is not encrypted" in run("login", url="http://skills.example.org").err


def exposed_file(configuration: Configuration) -> Path:
    configuration.files()[0].chmod(0o640)
    return configuration.files()[0]


def exposed_folder(configuration: Configuration) -> Path:
    configuration.logins.chmod(0o750)
    return configuration.logins


@pytest.mark.parametrize(("expose", "mode"), [(exposed_file, "600"), (exposed_folder, "700")])
def test_a_login_that_others_can_read_is_refused(
    expose: Callable[[Configuration], Path], mode: str, run: Run, configuration: Configuration, token: str
) -> None:
    assert run("login", stdin=token).code == 0
    place = expose(configuration)

    said = run("list", "--json")

    assert said.code == 3
    assert said.json["error"]["data"]["type"] == "login_unusable"
    assert f"chmod {mode} '{place}'" in said.json["error"]["data"]["hint"]
    assert run("list", "--token", token).code == 0
    place.chmod(int(mode, 8))
    assert run("list").code == 0


def test_a_killed_command_leaves_no_secret_for_good(run: Run, configuration: Configuration, token: str) -> None:
    run("login", stdin=token)
    (kept,) = configuration.files()
    left = kept.with_name(f".{kept.name}.new")
    left.write_text(token)

    assert run("login", stdin=token).code == 0
    assert not left.exists()
    left.write_text(token)
    assert run("logout").code == 0
    assert [one.suffix for one in configuration.logins.iterdir()] == [".lock"]


def test_a_link_in_place_of_a_login_is_refused(run: Run, configuration: Configuration, token: str) -> None:
    assert run("login", stdin=token).code == 0
    (file,) = configuration.files()
    moved = file.rename(configuration.folder / "moved.json")
    file.symlink_to(moved)

    assert "cannot read" in run("list").err
    assert run("login", stdin=token).code == 0
    assert not file.is_symlink()


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"server": "x", "kept_in": "file", "login": 3}', b"\xff"])
@pytest.mark.full(after=1)
def test_a_damaged_login_is_named(content: bytes, run: Run, configuration: Configuration, token: str) -> None:
    assert run("login", stdin=token).code == 0
    (file,) = configuration.files()
    file.write_bytes(content)

    assert "cannot be read" in run("list").err
    assert run("logout").code == 0
    assert configuration.files() == []


@pytest.fixture
def with_keyring(configuration: Configuration, tmp_path: Path) -> dict[str, Any]:
    """Choose a keyring that encrypts, as far as the package `keyring` knows."""
    (tmp_path / "file_keyring.py").write_text(KEYRING)
    configuration.use_keyring("file_keyring.FileKeyring", tmp_path)
    return configuration.variables


def test_a_login_is_kept_in_the_keyring(run: Run, with_keyring: Any, configuration: Configuration, token: str) -> None:
    said = run("login", stdin=token)
    stored = configuration.folder / "keyring.json"

    assert "(kept in the keyring)" in said.out, said.err
    assert token in json.dumps(json.loads(stored.read_text()))
    assert token not in configuration.files()[0].read_text()
    assert run("quota", "--json").json["identity"] == "lea"

    open_content = stored.read_text()
    stored.write_text("locked")
    assert "which cannot be read (KeyringLocked)" in run("list").err
    stored.write_text(open_content)
    assert run("logout").code == 0
    assert json.loads(stored.read_text()) == {}
    assert configuration.files() == []


def test_a_locked_keyring_leaves_the_file(
    run: Run, with_keyring: Any, configuration: Configuration, token: str
) -> None:
    (configuration.folder / "keyring.json").write_text("locked")

    assert "(kept in the file)" in run("login", stdin=token).out
    assert run("quota", "--json").json["identity"] == "lea"


def test_logout_removes_an_earlier_login_from_the_keyring(
    run: Run, with_keyring: Any, configuration: Configuration, token: str
) -> None:
    """The second login was kept in the file, because the keyring was locked."""
    run("login", stdin=token)
    stored = configuration.folder / "keyring.json"
    open_content = stored.read_text()
    stored.write_text("locked")
    assert "(kept in the file)" in run("login", stdin=token).out
    stored.write_text(open_content)
    assert token in json.dumps(json.loads(open_content))

    assert run("logout").code == 0
    assert json.loads(stored.read_text()) == {}
    assert configuration.files() == []
