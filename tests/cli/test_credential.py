"""`skillery credential`: git and other clients get the kept login, and only for the server that it belongs to."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cli.test_cli import Ended, skillery
from tests.conftest import ASKS_FOR_TOKENS, Server
from tests.support.logins import Configuration

Ask = Callable[..., Ended]


@pytest.fixture(scope="module")
def asking(shared_server: Callable[..., Server]) -> Server:
    return shared_server("asks_for_tokens", "sqlite", **ASKS_FOR_TOKENS)


@pytest.fixture(scope="module")
def token(asking: Server) -> str:
    made = skillery("token", "create", "--name", "git", "--scope", "read", "--home", str(asking.home), "--json")
    text: str = made.json["token"]
    return text


@pytest.fixture
def configuration(tmp_path: Path) -> Configuration:
    return Configuration(tmp_path / "configuration")


@pytest.fixture
def ask(configuration: Configuration) -> Ask:
    def call(*arguments: str, stdin: str = "", **variables: str) -> Ended:
        return skillery("credential", *arguments, stdin=stdin.encode(), **configuration.variables | variables)

    return call


@pytest.fixture
def login(asking: Server, configuration: Configuration, token: str) -> str:
    """Log in to the server, and return its address."""
    done = skillery("login", "--url", asking.url, stdin=token.encode(), **configuration.variables)
    assert done.code == 0, done.err
    return asking.url


def question(url: str, path: str = "") -> str:
    """Return what git writes to a credential helper."""
    protocol, _, host = url.partition("://")
    return f"protocol={protocol}\nhost={host}\n" + (f"path={path}\n" if path else "") + "\n"


def answer(ended: Ended) -> dict[str, str]:
    assert ended.code == 0, ended.err
    return dict(line.split("=", 1) for line in ended.out.splitlines())


@pytest.mark.parametrize("operation", [("get",), ()])
def test_git_gets_the_login(operation: tuple[str, ...], ask: Ask, login: str, token: str) -> None:
    assert answer(ask(*operation, stdin=question(login))) == {"username": "skillery", "password": token}
    assert answer(ask(*operation, "--url", login, stdin=question(login))) == {"username": "skillery", "password": token}


def test_git_receives_the_expiry_of_the_login(ask: Ask, login: str, token: str, configuration: Configuration) -> None:
    [file] = configuration.files()
    kept = json.loads(file.read_text())
    kept["login"]["expires_at"] = 4_102_444_800.5
    file.write_text(json.dumps(kept))

    found = answer(ask("get", stdin=question(login)))

    assert (found["password"], found["password_expiry_utc"]) == (token, "4102444800")


def test_a_question_without_a_login_has_no_answer(ask: Ask, asking: Server) -> None:
    assert answer(ask("get", stdin=question(asking.url))) == {}
    assert answer(ask("get", "--url", asking.url, stdin=question(asking.url))) == {}


@pytest.mark.parametrize("other", ["https://127.0.0.1:{port}", "http://127.0.0.1", "http://127.0.0.1.example:{port}"])
@pytest.mark.full(after=2)
def test_another_server_gets_no_login(other: str, ask: Ask, login: str, token: str) -> None:
    asked = question(other.format(port=login.rpartition(":")[2]))

    for more in ((), ("--url", login)):
        assert answer(ask("get", *more, stdin=asked)) == {}
        assert answer(ask("get", *more, stdin=asked, SKILLERY_TOKEN=token)) == {}


def test_the_variable_is_for_the_named_server_alone(ask: Ask, asking: Server) -> None:
    """Otherwise a repository at another host, for example a submodule, could ask for the token."""
    asked = question(asking.url)

    assert answer(ask("get", stdin=asked, SKILLERY_TOKEN="sky_named")) == {}
    assert answer(ask("get", "--url", asking.url, stdin=asked, SKILLERY_TOKEN="sky_named"))["password"] == "sky_named"
    elsewhere = ask("get", "--url", asking.url, stdin=question("http://127.0.0.1:1"), SKILLERY_TOKEN="sky_named")
    assert answer(elsewhere) == {}


@pytest.mark.parametrize(
    ("path", "answers"),
    [
        ("", True),
        ("skills/git/_all.git", True),
        ("skills", True),
        ("skillsmore/git/_all.git", False),
        ("skills/../other/x.git", False),
        ("skills/%2e%2e/other/x.git", False),
        ("other/skills/git/_all.git", False),
    ],
)
def test_a_server_below_a_path(path: str, answers: bool, ask: Ask) -> None:
    asked = question("https://tools.example.org", path)

    found = answer(ask("get", "--url", "https://tools.example.org/skills/", stdin=asked, SKILLERY_TOKEN="sky_path"))

    assert found.get("password") == ("sky_path" if answers else None)


def test_git_changes_no_login(ask: Ask, login: str, token: str) -> None:
    """git erases what a server refuses, and stores what a user types; a login is changed by `login` and `logout`."""
    stored = ask("store", stdin=question(login).strip() + "\nusername=any\npassword=sky_other\n\n")
    erased = ask("erase", "--url", login, stdin=question(login).strip() + f"\npassword={token}\n\n")

    assert (stored.code, stored.out, stored.err) == (0, "", "")
    assert (erased.code, erased.out) == (0, "")
    assert f"skillery login --url {login}" in erased.err
    assert token not in erased.err
    assert answer(ask("get", stdin=question(login)))["password"] == token


def test_headers(ask: Ask, login: str, token: str) -> None:
    assert ask("headers", "--url", login).json == {"Authorization": f"Bearer {token}"}
    assert ask("headers", "--url", login, SKILLERY_TOKEN="sky_now").json == {"Authorization": "Bearer sky_now"}


def test_headers_of_the_server_that_holds_the_home(ask: Ask, login: str, asking: Server, token: str) -> None:
    assert ask("headers", "--home", str(asking.home)).json == {"Authorization": f"Bearer {token}"}


def test_no_headers_without_a_login(ask: Ask, asking: Server) -> None:
    found = ask("headers", "--url", asking.url)

    assert (found.code, found.out) == (3, "")
    assert f"skillery login --url {asking.url}" in found.err


@pytest.mark.parametrize(
    "stdin", ["", "\n", "protocol=http\n\n", "host=\n\n", "protocol=ftp\nhost=a\n\n", "=\n", "a\0b"]
)
def test_a_strange_question_is_refused(stdin: str, ask: Ask) -> None:
    found: Any = ask("get", stdin=stdin)

    assert found.code in {2, 3}
    assert found.out == ""
    assert "is not an address of a server" in found.err
