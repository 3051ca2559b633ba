"""A server with `auth = ["tokens", "oidc"]`: requests, challenges, MCP clients, and the commands of an admin."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from pydantic import AnyUrl

from oidc_here import SCOPES, OidcProvider, new_key, shared_provider
from tests import conftest
from tests.cli.test_cli import skillery
from tests.conftest import NO_SANDBOX_PROBES, Rpc, Server, ServerPool, manifest, skill_files
from tests.support.processes import eventually, free_port

start_server, postgres = conftest.start_server, conftest.postgres
migrated_postgres_database, shared_server = conftest.migrated_postgres_database, conftest.shared_server

RULES = """
[[backends.authenticator.oidc.rules]]
claims = { groups = "skill-admins" }
identity = "{sub}"
scopes = ["read", "run", "publish", "review", "admin"]
namespaces = ["*"]

[[backends.authenticator.oidc.rules]]
claims = { client_id = "robot", "realm_access.roles" = ["builder", "deployer"] }
identity = "ci-{client_id}"
kind = "agent"
scopes = ["read", "publish"]
namespaces = ["team.{department}.*"]

[[backends.authenticator.oidc.rules]]
identity = "{sub}"
scopes = ["read", "run"]
"""
SCOPE_MAP = """
[backends.authenticator.oidc.scopes]
"skills.read" = ["read"]
"skills.run" = ["read", "run"]
"skills.publish" = ["read", "publish"]
"""


@pytest.fixture
def provider(pytestconfig: pytest.Config) -> OidcProvider:
    return shared_provider(pytestconfig)


@pytest.fixture
def sso(start_server: Callable[..., Server], provider: OidcProvider, tmp_path: Path) -> Callable[..., Server]:
    """Return `sso(settings, tables)`, which starts a server with these settings of `oidc`."""

    def start(more: str = "", tables: str = RULES, **env: str) -> Server:
        port = free_port()
        provider.resource = f"http://127.0.0.1:{port}"
        config = write_settings(provider, tmp_path, f"{more}\n{tables}")
        return start_server("--config", str(config), "--port", str(port), env=env)

    return start


@pytest.fixture
def pooled_sso(
    server_pool: ServerPool, provider: OidcProvider, tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., Server]:
    """Return `pooled_sso(settings, tables)`, which returns a server of `server_pool` with these settings of `oidc`."""

    def start(more: str = "", tables: str = RULES) -> Server:
        def begin() -> Server:
            port = free_port()
            provider.resource = f"http://127.0.0.1:{port}"
            folder = tmp_path_factory.mktemp("sso")
            config = write_settings(provider, folder, f"{more}\n{tables}")
            return Server(folder / "home", "--config", str(config), "--port", str(port))

        server = server_pool.get(("sso", more, tables, provider.kids()), begin)
        provider.resource = server.url
        return server

    return start


def write_settings(provider: OidcProvider, folder: Path, more: str) -> Path:
    config = folder / "skillery.toml"
    config.write_text(
        'auth = ["tokens", "oidc"]\n[backends.authenticator.oidc]\n'
        f'issuer = "{provider.issuer}"\nresource = "{provider.resource}"\n{more}'
    )
    return config


def command(folder: Path, *words: str, stdin: str = "", database: str = "") -> Any:
    """Run `skillery auth` with the settings in the folder, on the home there."""
    options = ("--home", str(folder / "home"), "--config", str(folder / "skillery.toml"))
    return skillery("auth", *words, *options, stdin=stdin.encode(), SKILLERY_DATABASE=database)


def who(server: Server, token: str) -> str:
    name: str = Rpc(server.url, token)("get_usage")["identity"]
    return name


def refused(server: Server, token: str | None, path: str = "/rpc") -> httpx.Response:
    response = Rpc(server.url, token).http.post(path, json={"jsonrpc": "2.0", "id": 1, "method": "get_usage"})
    assert response.status_code == 401
    return response


@pytest.mark.full
def test_rules_decide_about_name_kind_scopes_and_namespaces(
    provider: OidcProvider, pooled_sso: Callable[..., Server]
) -> None:
    server = pooled_sso()
    provider.control(claims={"robot": {"realm_access": {"roles": ["deployer"]}, "department": "tools"}})

    skill = {"manifest": manifest("sales.x"), "skill_md": "# X\n", "files": skill_files()}

    assert who(server, provider.token()) == "ci-robot"
    error = Rpc(server.url, provider.token()).error("create_skill", **skill)
    assert error["data"]["grants"] == ["team.tools.*"]
    assert who(server, provider.token("stranger")) == "stranger"
    assert Rpc(server.url, provider.token("stranger")).error("list_tokens")["data"]["scope"] == "admin"

    provider.control(claims={"stranger": {"groups": ["staff", "skill-admins"]}})
    assert Rpc(server.url, provider.token("stranger"))("list_tokens")["tokens"]


@pytest.mark.full
def test_leaving_a_group_ends_its_rights_when_the_token_expires(
    provider: OidcProvider, pooled_sso: Callable[..., Server]
) -> None:
    server = pooled_sso("skew_seconds = 0")
    provider.control(claims={"robot": {"groups": ["skill-admins"]}})
    assert Rpc(server.url, provider.token())("list_tokens")["tokens"]

    def cached() -> str | None:
        """Return a token that the server has accepted, or None if the machine took longer than the token lives."""
        token = provider.sign(groups=["skill-admins"], exp=int(time.time()) + 3)
        call = {"jsonrpc": "2.0", "id": 1, "method": "list_tokens"}
        return token if Rpc(server.url, token).http.post("/rpc", json=call).status_code == 200 else None

    old = eventually(cached)
    provider.control(claims={"robot": {"groups": ["staff"]}})
    assert Rpc(server.url, provider.token()).error("list_tokens")["data"]["scope"] == "admin"
    until_refused(server, old)
    assert refused(server, old).json()["error"]["message"] == "the token has expired"


@pytest.mark.full
def test_a_401_refers_to_the_metadata(provider: OidcProvider, pooled_sso: Callable[..., Server]) -> None:
    server = pooled_sso(tables=RULES + SCOPE_MAP)
    metadata = f"{server.url}/.well-known/oauth-protected-resource"
    scope = " ".join(SCOPES)

    missing = refused(server, None, "/mcp").headers["www-authenticate"]
    expired = refused(server, provider.sign(exp=1)).headers["www-authenticate"]

    assert missing == f'Bearer resource_metadata="{metadata}/mcp", scope="{scope}"'
    assert expired == f'Bearer resource_metadata="{metadata}", scope="{scope}", error="invalid_token"'
    for address, resource in ((metadata, server.url), (f"{metadata}/mcp", f"{server.url}/mcp")):
        assert httpx.get(address).json() == {
            "resource": resource,
            "authorization_servers": [provider.issuer],
            "bearer_methods_supported": ["header"],
            "resource_name": "Skillery",
            "scopes_supported": SCOPES,
        }
    document = Rpc(server.url, provider.token(scope="skills.read")).http.get("/v1/openapi.json").json()
    assert document["paths"]["/.well-known/oauth-protected-resource/mcp"]["get"]["security"] == []


@pytest.mark.full
@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_the_oauth_client_of_mcp_logs_in_from_a_401(
    mode: str, provider: OidcProvider, pooled_sso: Callable[..., Server]
) -> None:
    """The SDK's client knows only the address of the server: it finds the issuer and the scopes, registers, lets
    the user log in, and calls a tool. Its first request has no token.
    """
    import httpx2
    from mcp.client import Client
    from mcp.client.auth import AuthorizationCodeResult, OAuthClientProvider
    from mcp.client.streamable_http import streamable_http_client
    from mcp.shared.auth import OAuthClientMetadata

    server = pooled_sso(tables=RULES + SCOPE_MAP)
    seen: list[str] = []

    async def open_browser(address: str) -> None:
        seen.append(address)

    async def code_of_browser() -> AuthorizationCodeResult:
        async with httpx.AsyncClient(verify=Rpc.tls, timeout=300) as browser:
            address = seen[-1]
            while not address.startswith("http://localhost:1/"):
                answer = await browser.get(address)
                assert answer.is_redirect, answer.text
                address = str(answer.next_request.url) if answer.next_request else ""
        answered = {name: values[0] for name, values in parse_qs(urlsplit(address).query).items()}
        return AuthorizationCodeResult(code=answered["code"], state=answered["state"], iss=answered["iss"])

    storage = TokensInMemory()
    client = OAuthClientMetadata(
        redirect_uris=[AnyUrl("http://localhost:1/callback")],
        token_endpoint_auth_method="none",
        grant_types=["authorization_code", "refresh_token"],
        client_name="tests",
    )
    login = OAuthClientProvider(f"{server.url}/mcp", client, storage, open_browser, code_of_browser)
    http = httpx2.AsyncClient(auth=login, timeout=300)
    async with http, Client(streamable_http_client(f"{server.url}/mcp", http_client=http), mode=mode) as mcp:
        listed = await mcp.list_tools()
        called = await mcp.call_tool("list_skills", {"limit": 1})

    assert "list_skills" in [tool.name for tool in listed.tools]
    assert called.is_error is False
    assert called.structured_content is not None
    assert len(called.structured_content["skills"]) == 1
    assert len(seen) == 1
    asked = parse_qs(urlsplit(seen[0]).query)
    assert seen[0].startswith(f"{provider.issuer}/auth?")
    assert set(SCOPES) <= set(asked["scope"][0].split())
    assert asked["resource"] == [f"{server.url}/mcp"]
    assert who(server, storage.tokens.access_token) == "ann"


class TokensInMemory:
    tokens: Any = None
    client: Any = None

    async def get_tokens(self) -> Any:
        return self.tokens

    async def set_tokens(self, tokens: Any) -> None:
        self.tokens = tokens

    async def get_client_info(self) -> Any:
        return self.client

    async def set_client_info(self, client_info: Any) -> None:
        self.client = client_info


@pytest.mark.full
def test_tokens_of_the_registry_work_next_to_those_of_the_provider(
    provider: OidcProvider, pooled_sso: Callable[..., Server]
) -> None:
    server = pooled_sso()
    made = skillery("token", "create", "--name", "root", "--scope", "read", "--home", str(server.home), "--json")

    assert who(server, made.json["token"]) == "root"
    assert who(server, provider.token()) == "robot"
    error = refused(server, "nonsense").json()["error"]
    assert error["message"] == "this is not a token of a Skillery server"
    assert "Send 'Authorization: Bearer sky_…'" in error["data"]["hint"]
    assert f"access token of {provider.issuer}" in error["data"]["hint"]
    assert provider.issuer not in json.dumps(refused(server, "sky_wrong").json())


@pytest.mark.full
def test_a_revoked_identity_is_refused_with_a_good_token(provider: OidcProvider, sso: Callable[..., Server]) -> None:
    server = sso('revoked = ["stranger"]')
    token = provider.token()
    admin = partial(command, server.home.parent)
    assert who(server, token) == "robot"

    assert admin("revoke", "robot").out.startswith("robot is revoked in the home ")
    assert admin("revoke", "robot").out.startswith("robot was already revoked in the home ")
    until_refused(server, token)
    assert refused(server, token).json()["error"]["message"] == "the identity 'robot' is revoked on this server"
    assert refused(server, provider.token("stranger"))
    assert admin("revoked", "--json").json == {"revoked": ["robot", "stranger"]}
    assert "setting 'revoked' lists 'stranger'" in admin("restore", "stranger").err

    assert admin("restore", "robot").out.startswith("robot is restored in the home ")
    assert admin("revoked", "--json").json == {"revoked": ["stranger"]}
    trail = skillery(
        "audit", "list", "--home", str(server.home), "--url", server.url, SKILLERY_TOKEN=admin_token(server)
    )
    assert "revoke_identity" in trail.out
    assert "restore_identity" in trail.out


def admin_token(server: Server) -> str:
    options = ("--name", "root", "--scope", "admin", "--home", str(server.home), "--json")
    token: str = skillery("token", "create", *options, SKILLERY_DATABASE=server.database).json["token"]
    return token


def until_refused(server: Server, token: str) -> None:
    """Wait until the token has expired, or the server has read the list of revoked identities again."""
    eventually(lambda: Rpc(server.url, token).http.post("/rpc", json={}).status_code == 401)


def test_explain_shows_the_checks_and_the_rules(provider: OidcProvider, tmp_path: Path) -> None:
    write_settings(provider, tmp_path, RULES)
    token = provider.token()

    said = command(tmp_path, "explain", stdin=token)
    as_json = command(tmp_path, "explain", "--json", stdin=f"Bearer {token}\n").json

    assert said.code == 0
    assert "the token has no claim 'groups'" in said.out
    assert "the token has no claim 'realm_access.roles'" in said.out
    assert "robot (person) may read, run" in said.out
    assert [(check["subject"], check["outcome"]) for check in as_json["checks"]] == [
        ("tokens", "skipped"),
        ("header", "ok"),
        ("signature", "ok"),
        ("issuer", "ok"),
        ("audience", "ok"),
        ("expiry", "ok"),
        ("purpose", "ok"),
        ("rule 1", "skipped"),
        ("rule 2", "skipped"),
        ("rule 3", "ok"),
    ]
    assert as_json["identity"]["name"] == "robot"
    assert token.rpartition(".")[2] not in said.out + json.dumps(as_json)


@pytest.mark.full
def test_explain_shows_why_a_token_is_refused(provider: OidcProvider, tmp_path: Path) -> None:
    write_settings(provider, tmp_path, RULES.rpartition("[[")[0])

    expired = command(tmp_path, "explain", stdin=provider.sign(exp=1))
    unmatched = command(tmp_path, "explain", stdin=provider.sign(groups=["staff"]))
    foreign = command(tmp_path, "explain", stdin="sky_unknown")

    assert (expired.code, unmatched.code, foreign.code) == (1, 1, 1)
    assert "the token has expired" in expired.out
    assert "the claim 'groups' is 'staff', not 'skill-admins'" in unmatched.out
    assert "no rule of this server matches" in unmatched.out
    assert "not a token of a Skillery server" in foreign.out
    assert "stdin must contain one token" in command(tmp_path, "explain", stdin="").err


@pytest.mark.full
@pytest.mark.parametrize("database_kind", ["sqlite"])
def test_keys_are_rotated_under_load(database_kind: str, provider: OidcProvider, sso: Callable[..., Server]) -> None:
    """Each rotation lists the old key too, as providers do. No request with a good token is refused."""
    from concurrent.futures import ThreadPoolExecutor

    server = sso("unknown_key_seconds = 1")
    tokens = [provider.token()]

    def ask(number: int) -> int:
        with httpx.Client(
            verify=Rpc.tls, headers={"authorization": f"Bearer {tokens[-1 - number % len(tokens)]}"}
        ) as http:
            call = {"jsonrpc": "2.0", "id": 1, "method": "get_usage"}
            return http.post(f"{server.url}/rpc", json=call).status_code

    with ThreadPoolExecutor(4) as threads:
        for _ in range(3):
            asked = [threads.submit(ask, number) for number in range(40)]
            provider.rotate(new_key(), keep=provider.keys[:2])
            tokens[:] = [*tokens[-1:], provider.token()]
            asked += [threads.submit(ask, number) for number in range(40)]
            assert {one.result() for one in asked} == {200}
            time.sleep(1.1)  # no event: then the server may read the keys for an unknown key again
    provider.rotate(new_key())


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("", "add the missing settings: issuer, resource, rules"),
        ("unknown = 1", "unknown setting 'unknown'"),
        ('issuer = "http://127.0.0.1:1"', "issuer 'http://127.0.0.1:1': http://127.0.0.1:1/.well-known/openid-conf"),
        ('issuer = "{issuer}/"', "but the provider there calls itself '{issuer}'"),
        ('issuer = "{issuer}/realms/bank"', "with status 404: set issuer to the address before /.well-known/openid-"),
    ],
)
@pytest.mark.full(after=2)
def test_a_wrong_setting_is_named_at_start(setting: str, said: str, provider: OidcProvider, tmp_path: Path) -> None:
    options = configured(provider, tmp_path, setting)

    started = skillery("serve", "--port", "0", *options)

    assert started.code != 0
    assert len(started.err.strip().splitlines()) == 1
    assert "[backends.authenticator.oidc]" in started.err
    assert said.replace("{issuer}", provider.issuer) in started.err


@pytest.mark.full
def test_doctor_names_a_wrong_setting(provider: OidcProvider, tmp_path: Path) -> None:
    options = configured(provider, tmp_path, 'issuer = "{issuer}/"')

    examined = skillery("doctor", *options, "--json", **NO_SANDBOX_PROBES)

    assert examined.code == 1
    probe = next(probe for probe in examined.json["probes"] if probe["name"] == "authenticator")
    assert f"issuer is '{provider.issuer}/', but the provider there calls itself" in probe["detail"]
    assert "[backends.authenticator.<name>]" in probe["fix"]


def configured(provider: OidcProvider, tmp_path: Path, setting: str) -> tuple[str, ...]:
    """Write settings of which one is wrong. Return the options that name them."""
    good = {"issuer": f'"{provider.issuer}"', "resource": '"http://127.0.0.1:1"', "rules": '[{ identity = "{sub}" }]'}
    name, _, value = setting.replace("{issuer}", provider.issuer).partition(" = ")
    lines = "\n".join(f"{key} = {text}" for key, text in (good | {name: value}).items()) if setting else ""
    config = tmp_path / "skillery.toml"
    config.write_text(f'auth = "oidc"\n[backends.authenticator.oidc]\n{lines}\n')
    return ("--home", str(tmp_path / "home"), "--config", str(config))
