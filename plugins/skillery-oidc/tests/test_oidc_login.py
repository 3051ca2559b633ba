"""`skillery login` at a real provider: the command is a process, and the test is the browser of its user."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, parse_qsl, urlencode, urlsplit

import httpx
import pytest

from browser_here import Browser, waiting
from oidc_here import SCOPES, OidcProvider
from skillery.client import AsyncClient, Client, LoginError, kept_token
from skillery.client.logins.browser import DeviceCode, log_in_with_device
from skillery.client.logins.discovery import find_provider
from test_oidc_provider import self_signed
from test_oidc_server import RULES, SCOPE_MAP, pooled_sso, provider, write_settings
from tests import conftest
from tests.cli.test_cli import Ended, skillery
from tests.conftest import Server, clean_environment
from tests.support.logins import Configuration
from tests.support.processes import eventually, free_port

__all__ = ["pooled_sso", "provider"]
start_server = conftest.start_server
BROWSER, DEVICE = "Log in with your browser: ", "This address contains the code: "
CLIENT = 'cli_client_id = "skillery-cli"'


class User:
    """A user of the command line with a separate configuration folder. `user("list")` runs a command for the server."""

    def __init__(self, server: Server, folder: Path) -> None:
        self.url = server.url
        self.configuration = Configuration(folder)

    def __call__(self, *arguments: str, stdin: str = "", **variables: str) -> Ended:
        more = self.configuration.variables | variables
        return skillery(*arguments, "--url", self.url, stdin=stdin.encode(), **more)

    def begin(self, *arguments: str) -> Any:
        """Context manager: run `skillery login` in the background."""
        environment = clean_environment({"NO_COLOR": "1", **self.configuration.variables})
        return waiting(environment, "login", "--url", self.url, *arguments)

    def log_in(self, *arguments: str) -> tuple[int, str, str]:
        """Log in with a browser, and return the end of the command."""
        with self.begin("--browser", *arguments) as command:
            Browser().open(command.address(BROWSER))
            ended: tuple[int, str, str] = command.end()
        return ended

    def name(self, **variables: str) -> str:
        """Return the identity of a command."""
        shown = self("quota", "--json", **variables)
        assert shown.code == 0, shown.out + shown.err
        return str(shown.json["identity"])

    def kept(self) -> dict[str, Any]:
        (file,) = self.configuration.files()
        login: dict[str, Any] = json.loads(file.read_text())["login"]
        return login


@pytest.fixture
def server(pooled_sso: Callable[..., Server]) -> Server:
    return pooled_sso(CLIENT, RULES + SCOPE_MAP)


@pytest.fixture
def user(server: Server, tmp_path: Path) -> User:
    return User(server, tmp_path / "configuration")


def requests(provider: OidcProvider, path: str = "/token") -> int:
    return provider.control().get(path, 0)


def test_a_user_logs_in_with_a_browser(user: User) -> None:
    assert user("list").code == 3

    with user.begin("--browser") as command:
        address = command.address(BROWSER)
        page = Browser().open(address)
        code, out, err = command.end()

    assert "continue in the terminal" in page.text
    assert (code, out) == (0, f"logged in to {user.url} as ann (kept in the file)\n"), err
    asked = {name: values[0] for name, values in parse_qs(urlsplit(address).query).items()}
    assert asked["resource"] == user.url
    assert asked["code_challenge_method"] == "S256"
    assert set(asked["scope"].split()) == {*SCOPES, "offline_access"}
    assert asked["redirect_uri"].startswith("http://127.0.0.1:")
    assert user.name() == "ann"
    assert user.configuration.modes() == {"folder": "0o700", "current": "0o600", ".json": "0o600", ".lock": "0o600"}
    assert user.kept()["token"] not in out + err
    with pytest.raises(httpx.ConnectError):
        httpx.get(asked["redirect_uri"], trust_env=False)


def test_a_user_logs_in_on_another_device(user: User) -> None:
    """Without a screen, the command chooses the login with a device."""
    with user.begin("--json") as command:
        Browser().enter_code(command.address(DEVICE), confirm="yes")
        code, out, err = command.end()

    assert code == 0, err
    assert json.loads(out)["identity"] == user.name() == "ann"
    assert json.loads(out)["renewed"] is True


def test_a_login_that_the_user_denies_in_the_browser_fails(user: User, provider: OidcProvider) -> None:
    provider.control(denies=True)

    code, _, err = user.log_in()

    assert code == 3
    assert "the identity provider answered 'access_denied': ann says no" in err
    assert user.configuration.files() == []


def test_a_login_that_the_user_denies_on_another_device_fails(user: User) -> None:
    with user.begin("--device") as command:
        Browser().enter_code(command.address(DEVICE), abort="yes")
        code, _, err = command.end()

    assert code == 3
    assert "the login was denied at the identity provider" in err
    assert user.configuration.files() == []


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"iss": "https://id.example.org"}, "is from 'https://id.example.org', not from"),
        ({"iss": ""}, "is from 'no issuer', not from"),
        ({"code": ""}, "has no 'code'"),
        ({"code": "another"}, "'invalid_grant'"),
    ],
)
@pytest.mark.full(after=3)
def test_an_answer_that_is_not_genuine_is_refused(change: dict[str, str], said: str, user: User) -> None:
    with user.begin("--browser") as command:
        callback = Browser().stop_before_callback(command.address(BROWSER))
        parts = urlsplit(callback)
        query = urlencode({name: value for name, value in (dict(parse_qsl(parts.query)) | change).items() if value})
        assert httpx.get(callback.replace(parts.path, "/favicon.ico"), trust_env=False).status_code == 404
        httpx.get(parts._replace(query=query).geturl(), trust_env=False)
        code, _, err = command.end()

    assert code == 3
    assert said in err
    assert user.configuration.files() == []


def test_an_answer_for_another_login_changes_nothing(user: User) -> None:
    """A web page in the browser of the user can open the address of the command, without its `state`."""
    with user.begin("--browser") as command:
        callback = Browser().stop_before_callback(command.address(BROWSER))
        parts = urlsplit(callback)
        given = dict(parse_qsl(parts.query))
        for change in ({"state": "another"}, {"state": ""}, {"state": "ü", "error": "access_denied"}):
            foreign = parts._replace(query=urlencode(given | change)).geturl()
            assert httpx.get(foreign, trust_env=False).status_code == 400
        assert httpx.get(f"{callback}&state={given['state']}", trust_env=False).status_code == 400
        assert httpx.get(callback, trust_env=False).status_code == 200
        code, _, err = command.end()

    assert code == 0, err


@pytest.mark.full
def test_a_login_is_renewed_when_its_token_ends(user: User, provider: OidcProvider) -> None:
    """The tokens of the provider live for 29 seconds, and a token is renewed 30 seconds before its end."""
    provider.control(seconds=29)
    assert user.log_in()[0] == 0
    first, before = user.kept(), requests(provider)

    assert user.name() == user.name() == "ann"
    assert requests(provider) == before + 2
    assert user.kept()["provider"]["refresh_token"] != first["provider"]["refresh_token"]
    assert user.configuration.modes() == {"folder": "0o700", "current": "0o600", ".json": "0o600", ".lock": "0o600"}

    def outlasts_a_failure() -> bool:
        assert user.name() == "ann"
        provider.control(answers={"/token": {"status": 503}})
        shown = user("quota", "--json")
        provider.control(answers={})
        return shown.code == 0 and shown.json["identity"] == "ann"

    eventually(outlasts_a_failure)  # a loaded machine may take longer for a command than the token lives
    assert user.name() == "ann"


@pytest.mark.full
def test_processes_renew_a_login_once(user: User, provider: OidcProvider) -> None:
    """A refresh token that is used twice would end the login at this provider."""
    provider.control(seconds=20)
    assert user.log_in()[0] == 0
    provider.control(seconds=600)
    before = requests(provider)

    with ThreadPoolExecutor(6) as threads:
        assert set(threads.map(lambda _: user.name(), range(6))) == {"ann"}

    assert requests(provider) == before + 1


@pytest.mark.full
def test_a_provider_states_any_life_of_a_token(user: User, provider: OidcProvider) -> None:
    endless = {"access_token": provider.sign(sub="ann", scope="skills.read"), "token_type": "Bearer"}
    for life in (1e300, "inf", "nan", -1):
        provider.control(answers={"/token": {"body": json.dumps(endless | {"expires_in": life})}})
        code, out, err = user.log_in()
        assert (code, "logged in to" in out) == (0, True), err
        assert "Traceback" not in err


def test_a_login_that_cannot_be_renewed_ends(user: User, provider: OidcProvider) -> None:
    token = provider.sign(sub="ann", scope="skills.read")
    ended = {"access_token": token, "token_type": "Bearer", "expires_in": 0, "refresh_token": "unknown"}
    provider.control(answers={"/token": {"body": json.dumps(ended)}})
    assert user.log_in()[0] == 0

    provider.control(answers={"/token": {"status": 503}})
    unavailable = user("list")
    provider.control(answers={})
    refused = user("list", "--json")

    assert unavailable.code == 4
    assert f"{provider.issuer}/token answered HTTP 503" in unavailable.err
    assert refused.code == 3
    assert "'invalid_grant'" in refused.json["error"]["message"]
    assert refused.json["error"]["data"] == {
        "type": "login_ended",
        "hint": f"Log in again: skillery login --url {user.url}",
    }
    assert len(user.configuration.files()) == 1


def test_logout_revokes_the_login(user: User, provider: OidcProvider) -> None:
    assert user.log_in()[0] == 0
    form = {
        "grant_type": "refresh_token",
        "client_id": "skillery-cli",
        "refresh_token": user.kept()["provider"]["refresh_token"],
    }

    said = user("logout")

    assert said.out == f"logged out of {user.url}, and revoked the login at its provider\n"
    assert user.configuration.files() == []
    assert user("list").code == 3
    assert provider.http.post("/token", data=form).json()["error"] == "invalid_grant"
    assert user("logout").out == f"there was no login for {user.url}\n"


def test_logout_works_without_the_provider(user: User, provider: OidcProvider) -> None:
    assert user.log_in()[0] == 0
    provider.control(answers={"/token/revocation": {"status": 503}})

    said = user("logout", "--json")

    assert (said.code, said.json["removed"], said.json["revoked"]) == (0, True, False)
    assert "the login is removed here, but not revoked at its provider" in said.err
    assert user.configuration.files() == []


def test_an_option_and_the_environment_come_before_the_login(user: User, provider: OidcProvider) -> None:
    assert user.log_in()[0] == 0
    robot, stranger = (provider.token(name, scope="skills.read") for name in ("robot", "stranger"))

    assert user.name() == "ann"
    assert user.name(SKILLERY_TOKEN=stranger) == "stranger"
    assert user("quota", "--json", "--token", robot, SKILLERY_TOKEN=stranger).json["identity"] == "robot"


def test_clients_in_python_use_the_login(user: User, provider: OidcProvider, monkeypatch: pytest.MonkeyPatch) -> None:
    provider.control(seconds=20)
    assert user.log_in()[0] == 0
    monkeypatch.setenv("XDG_CONFIG_HOME", str(user.configuration.folder))

    async def asynchronous() -> str:
        async with AsyncClient(user.url, kept_token(user.url)) as client:
            return (await client.get_usage())["identity"]

    with Client(user.url, kept_token(user.url)) as client:
        assert client.get_usage()["identity"] == client.get_usage()["identity"] == "ann"
    assert asyncio.run(asynchronous()) == "ann"


def test_the_bridge_of_mcp_uses_the_login(user: User, provider: OidcProvider) -> None:
    provider.control(seconds=20)
    assert user.log_in()[0] == 0
    client = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "tests", "version": "1"}}
    messages = [
        {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": client},
        {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": "list_skills", "arguments": {}}},
    ]
    lines = "".join(f"{json.dumps(message)}\n" for message in messages)

    good = [json.loads(line) for line in user("mcp", stdin=lines).out.splitlines()]
    user.configuration.files()[0].write_bytes(b"damaged")
    bad = [json.loads(line) for line in user("mcp", stdin=lines).out.splitlines()]

    assert good[1]["result"]["structuredContent"]["skills"]
    assert ["cannot be read" in answer["error"]["message"] for answer in bad] == [True, True]


def test_a_login_that_the_server_refuses_is_not_kept(
    pooled_sso: Callable[..., Server], provider: OidcProvider, tmp_path: Path
) -> None:
    admins_only = RULES.split("\n\n")[0]
    user = User(pooled_sso(CLIENT, admins_only), tmp_path / "configuration")

    code, _, err = user.log_in()

    assert code == 3
    assert "no rule of this server matches the token" in err
    assert user.configuration.files() == []
    assert requests(provider, "/token/revocation") == 1


def test_a_server_without_a_client_id_is_named_with_the_remedy(
    pooled_sso: Callable[..., Server], tmp_path: Path
) -> None:
    user = User(pooled_sso(), tmp_path / "configuration")

    refused = user("login", "--browser")
    code, _, err = user.log_in("--client-id", "skillery-cli")

    assert refused.code == 3
    assert "does not publish the client id of the command line" in refused.err
    assert "--client-id" in refused.err
    assert code == 0, err


def test_login_refuses_metadata_of_another_address(user: User) -> None:
    """Otherwise, a server could get a token for another server (RFC 9728 §3.3)."""
    elsewhere = user.url.replace("127.0.0.1", "localhost")

    said = skillery("login", "--url", elsewhere, **user.configuration.variables)

    assert said.code == 3
    assert f"the server at {elsewhere} calls itself '{user.url}'" in said.err


def test_a_provider_with_another_issuer_is_refused(user: User, provider: OidcProvider) -> None:
    metadata = json.dumps({"issuer": "https://id.example.org", "token_endpoint": f"{provider.issuer}/token"})
    provider.control(answers={"/.well-known/oauth-authorization-server": {"body": metadata}})

    said = user("login")

    assert said.code == 3
    assert f"the identity provider '{provider.issuer}' calls itself 'https://id.example.org'" in said.err


def test_login_refuses_unencrypted_addresses_of_a_provider(user: User, provider: OidcProvider) -> None:
    metadata = json.dumps(
        {
            "issuer": provider.issuer,
            "token_endpoint": "http://id.example.org/token",
            "authorization_endpoint": "http://id.example.org/auth",
            "device_authorization_endpoint": "http://id.example.org/device",
        }
    )
    provider.control(answers={"/.well-known/oauth-authorization-server": {"body": metadata}})

    for way in ("--browser", "--device"):
        said = user("login", way)
        assert said.code == 3
        assert "is not encrypted" in said.err


@pytest.mark.full
def test_a_provider_with_a_private_authority_is_accepted(start_server: Callable[..., Server], tmp_path: Path) -> None:
    certificate, key = self_signed(1)
    authority = tmp_path / "authority.pem"
    authority.write_text(certificate)
    port = free_port()
    secure = OidcProvider(resource=f"http://127.0.0.1:{port}", tls={"cert": certificate, "key": key})
    config = write_settings(secure, tmp_path, f'ca_file = "{authority}"\n{CLIENT}\n{RULES}')
    user = User(start_server("--config", str(config), "--port", str(port)), tmp_path / "configuration")

    unknown = user("login")
    user.configuration.variables["SSL_CERT_FILE"] = str(authority)
    with user.begin("--browser") as command:
        Browser(ssl.create_default_context(cafile=authority)).open(command.address(BROWSER))
        code, _, err = command.end()

    assert unknown.code == 4
    assert f"cannot reach {secure.issuer}/.well-known" in unknown.err
    assert "certificate" in unknown.err.lower()
    assert code == 0, err
    assert user.name() == "ann"
    secure.close()


def test_metadata_that_are_not_valid_are_refused(user: User, provider: OidcProvider) -> None:
    for answer, said in (
        ({"body": "{}"}, "are not valid"),
        ({"body": "<html>"}, "are not valid"),
        ({"body": "x" * 1_100_000}, "answered more than"),
        ({"body": "{}", "gzip": True}, "answered a compressed body"),
    ):
        provider.control(answers={"/.well-known/oauth-authorization-server": answer})
        assert said in user("login").err
    provider.control(answers={"*": {"status": 404}})
    assert "publishes no metadata" in user("login").err


def test_a_login_with_a_device_slows_down_when_the_provider_says_so(server: Server, provider: OidcProvider) -> None:
    """RFC 8628 §3.5: `slow_down` adds five seconds permanently, and a lost connection doubles the interval."""
    found = find_provider(server.url, None)
    assert found is not None
    addresses: list[str] = []
    waits: list[float] = []
    answers: list[dict[str, Any]] = [
        {"status": 400, "body": '{"error": "authorization_pending"}'},
        {"status": 400, "body": '{"error": "slow_down"}'},
        {"status": 400, "body": '{"error": "authorization_pending"}'},
        {"status": 503},
    ]

    def sleep(seconds: float) -> None:
        waits.append(round(seconds, 3))
        if len(waits) <= len(answers):
            provider.control(answers={"/token": answers[len(waits) - 1]})
            return
        provider.control(answers={})
        Browser().enter_code(addresses[0], confirm="yes")

    login = log_in_with_device(found, lambda code: addresses.append(code.verification_uri_complete), sleep)

    assert login.token
    assert waits == [0.2, 0.2, 5.2, 5.2, 10.4]


def test_a_device_never_waits_longer_than_a_code_lives(server: Server, provider: OidcProvider) -> None:
    code = {"device_code": "x", "user_code": "y", "verification_uri": provider.issuer, "expires_in": 1e300}
    provider.control(answers={"/device/auth": {"body": json.dumps(code | {"interval": 1e300})}})
    found = find_provider(server.url, None)
    assert found is not None
    waits: list[float] = []

    def fail(_: DeviceCode) -> None:
        provider.control(answers={"/token": {"status": 503}})

    with pytest.raises(LoginError, match="expired"):
        log_in_with_device(found, fail, waits.append)

    assert waits == [1800.0]


@pytest.mark.parametrize("error", ["expired_token", ""])
def test_a_code_that_no_user_enters_expires(error: str, server: Server, provider: OidcProvider) -> None:
    """The provider answers that the code has expired, or the command stops asking."""
    found = find_provider(server.url, None)
    assert found is not None
    waits: list[float] = []
    body = json.dumps({"error": error or "slow_down"})
    provider.control(answers={"/token": {"status": 400, "body": body}})

    with pytest.raises(LoginError, match="the code has expired"):
        log_in_with_device(found, lambda _: None, waits.append)

    assert waits == [0.2] if error else sum(waits) >= 600
