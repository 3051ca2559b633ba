"""Several authenticators in the order of the setting `auth`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from skillery.backends import KINDS, Credentials
from skillery.identity.authenticator_chain import AuthenticatorChain
from tests.cli.test_cli import skillery
from tests.conftest import Server

BADGES = """
from skillery import hookimpl
from skillery.backends import Identity, Offer
from skillery.errors import NotAuthenticated

class Badges:
    loopback_only = False

    def recognizes(self, credentials):
        return credentials.headers.get("authorization", "").startswith("Bearer badge_")

    async def authenticate(self, credentials):
        name = credentials.headers.get("authorization", "").removeprefix("Bearer badge_")
        if name != "ann":
            raise NotAuthenticated("this badge is not valid", hint="Send a badge.")
        return Identity(name, "person", frozenset({"read"}), ())

@hookimpl
def skillery_authenticator():
    return Offer("badges", lambda settings, place: Badges())
"""
SILENT = """
from skillery import hookimpl
from skillery.backends import Identity, Offer

class Silent:
    loopback_only = False

    async def authenticate(self, credentials):
        return Identity(credentials.headers.get("authorization", "nobody")[-8:], "person", frozenset({"read"}), ())

@hookimpl
def skillery_authenticator():
    return Offer("silent", lambda settings, place: Silent())
"""


@pytest.fixture
def plugins(tmp_path: Path) -> str:
    folder = tmp_path / "plugins"
    folder.mkdir()
    (folder / "badges.py").write_text(BADGES)
    (folder / "silent.py").write_text(SILENT)
    return str(folder)


def ask(server: Server, credentials: str) -> tuple[int, str]:
    """Return the status of a call, and the name of the caller or the message."""
    headers = {"authorization": credentials} if credentials else {}
    call = {"jsonrpc": "2.0", "id": 1, "method": "get_usage", "params": {}}
    answer = httpx.post(f"{server.url}/rpc", json=call, headers=headers)
    body: dict[str, Any] = answer.json()
    return answer.status_code, body["result"]["identity"] if "result" in body else body["error"]["message"]


@pytest.mark.full
def test_the_first_authenticator_that_recognizes_the_credentials_decides(
    start_server: Callable[..., Server], plugins: str
) -> None:
    env = {"SKILLERY_AUTH": "tokens, badges, silent", "SKILLERY_PLUGINS_FOLDER": plugins}
    server = start_server(env=env)
    create = ("token", "create", "--name", "root", "--scope", "admin", "--home", str(server.home), "--json")
    token = skillery(*create, stdin=b"", **env).json["token"]

    assert ask(server, f"Bearer {token}") == (200, "root")
    assert ask(server, "Bearer badge_ann") == (200, "ann")
    assert ask(server, "Bearer badge_eve") == (401, "this badge is not valid")
    assert ask(server, "Bearer sky_wrong")[0] == 401
    assert ask(server, "Basic 12345678") == (200, "12345678")


@pytest.mark.full
def test_first_authenticator_refuses_unrecognized_credentials(
    start_server: Callable[..., Server], plugins: str, tmp_path: Path
) -> None:
    config = tmp_path / "skillery.toml"
    config.write_text(f'auth = ["badges", "tokens"]\nplugins_folder = "{plugins}"\n')
    server = start_server("--config", str(config))

    assert ask(server, "Basic 12345678") == (401, "this badge is not valid")
    assert ask(server, "") == (401, "this badge is not valid")
    assert ask(server, "Bearer badge_ann") == (200, "ann")
    refused = httpx.post(f"{server.url}/rpc", json={}, headers={"authorization": "Bearer abc"}).json()
    assert refused["error"]["data"]["hint"].startswith("Send a badge. Or: Send 'Authorization: Bearer sky_…'")


class Counts:
    """An authenticator that recognizes all credentials, and whose failures are limited."""

    loopback_only = False

    def __init__(self, wait: float) -> None:
        self.wait = wait
        self.addresses: list[str] = []

    def recognizes(self, credentials: Credentials) -> bool:
        return bool(credentials.headers["x-forwarded-for"])

    def note_failure(self, address: str) -> float | None:
        self.addresses.append(address)
        return self.wait


def test_the_first_authenticator_that_limits_failures_counts_them() -> None:
    first, second = Counts(1), Counts(5)
    badges = SimpleNamespace(loopback_only=False, recognizes=lambda credentials: False)
    backends = {"badges": badges, "first": first, "second": second}
    chain = AuthenticatorChain({name: KINDS["authenticator"].completed(one) for name, one in backends.items()})

    assert chain.note_failure("192.0.2.1") == 1
    assert (first.addresses, second.addresses) == (["192.0.2.1"], [])


@pytest.mark.parametrize(
    ("auth", "said"),
    [
        ("tokens,open", "auth 'open' accepts every caller"),
        ("silent,tokens", "auth 'silent' takes all credentials"),
        ("tokens,tokens", "name one authenticator, or several different ones"),
        ("tokens,", "name one authenticator, or several different ones"),
        ("tokens,absent", "'absent', which no plugin offers"),
    ],
)
def test_invalid_authenticator_combinations_are_refused_at_start(
    tmp_path: Path, plugins: str, auth: str, said: str
) -> None:
    env = {"SKILLERY_AUTH": auth, "SKILLERY_PLUGINS_FOLDER": plugins}
    refused = skillery("serve", "--home", str(tmp_path / "home"), "--port", "0", stdin=b"", **env)

    assert refused.code != 0
    assert said in refused.err
