"""Users sign in with a browser at a real provider: the whole flow, its attacks, and the end of the session."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import re
import time
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import httpx
import msgspec
import pytest
from sqlalchemy import select, update

from oidc_here import SCOPES, OidcProvider, new_key, settings_of, shared_provider
from skillery.backends import LoginStart, Place
from skillery.database import Database
from skillery.database.tables import registry, web_sessions
from skillery.identity.web_sessions import KEY_NAME, Signer
from skillery.testing import BrowserLoginContract
from skillery.testing.authenticator import Visit
from skillery_oidc.authenticator import OidcAuthenticator
from test_oidc_server import RULES, SCOPE_MAP, admin_token, command, write_settings
from tests import conftest
from tests.cli.test_cli import skillery
from tests.conftest import Rpc, Server, ServerPool
from tests.support.browser import Browser
from tests.support.chromium import OpenPage, check_axe, problems
from tests.support.processes import eventually, free_port

start_server, postgres = conftest.start_server, conftest.postgres
migrated_postgres_database = conftest.migrated_postgres_database


@pytest.fixture
def provider(pytestconfig: pytest.Config) -> OidcProvider:
    return shared_provider(pytestconfig)


class Site:
    """A server with a login for browsers, and its client at the provider."""

    def __init__(self, server: Server, provider: OidcProvider, client: Mapping[str, Any]) -> None:
        self.server = server
        self.provider = provider
        self.client = client
        self.browser = Browser(server.url)
        self._earlier = {row.hash for row in rows_of(server)}

    def sessions(self) -> list[Any]:
        """Return the sessions that have begun since this object exists."""
        return [row for row in rows_of(self.server) if row.hash not in self._earlier]

    @property
    def callback(self) -> str:
        return f"{self.server.url}/login/oidc/callback"

    def start(self, path: str = "/login/oidc", **changed: str) -> str:
        """Begin a login in the browser. Return the address at the provider, with changed parameters."""
        begun = self.browser.get(path)
        assert begun.status_code == 303, begun.text
        address, _, query = begun.headers["location"].partition("?")
        asked = {name: values[0] for name, values in parse_qs(query).items()}
        return f"{address}?{urlencode(asked | changed)}"

    def returned(self, address: str) -> str:
        """Log in at the provider, and return the address on the server to which the provider sends the browser."""
        with httpx.Client(verify=Rpc.tls, timeout=300) as http:
            while not address.startswith(self.server.url):
                answer = http.get(address)
                assert answer.is_redirect, answer.text
                address = str(answer.url.join(answer.headers["location"]))
        return address

    def finish(self, address: str, **changed: str | None) -> httpx.Response:
        """Open the address on the server, with changed parameters. None leaves a parameter out."""
        base, _, query = address.partition("?")
        given: dict[str, Any] = {name: values[0] for name, values in parse_qs(query).items()}
        kept = {name: value for name, value in (given | changed).items() if value is not None}
        return self.browser.get(f"{base}?{urlencode(kept)}")

    def sign_in(self, path: str = "/login/oidc") -> httpx.Response:
        return self.finish(self.returned(self.start(path)))


Start = Callable[..., Site]


def register(provider: OidcProvider, callback: str, method: str) -> dict[str, Any]:
    client = {
        "redirect_uris": [callback],
        "grant_types": ["authorization_code"],
        "response_types": ["code"],
        "token_endpoint_auth_method": method,
        "application_type": "native",
    }
    answer = provider.http.post("/reg", json=client)
    assert answer.status_code == 201, answer.text
    made: dict[str, Any] = answer.json()
    return made


def configure(
    provider: OidcProvider, port: int, folder: Path, more: str, method: str = "client_secret_basic"
) -> tuple[dict[str, Any], Path]:
    """Register a server with this port at the provider. Return the client and the configuration file."""
    provider.resource = f"http://127.0.0.1:{port}"
    client = register(provider, f"{provider.resource}/login/oidc/callback", method)
    secret = f'client_secret = "{client["client_secret"]}"' if "client_secret" in client else ""
    own = f'browser_login = true\nclient_id = "{client["client_id"]}"\n{secret}'
    return client, write_settings(provider, folder, f"{own}\n{more}")


@pytest.fixture
def start(start_server: Callable[..., Server], provider: OidcProvider, tmp_path: Path) -> Start:
    """Return `start(settings)`, which starts a server with these settings of `oidc`."""

    def site(more: str = "", tables: str = RULES, method: str = "client_secret_basic", **env: str) -> Site:
        port = free_port()
        client, config = configure(provider, port, tmp_path, f"{more}\n{tables}", method)
        server = start_server("--config", str(config), "--port", str(port), env=env)
        server.database = env.get("SKILLERY_DATABASE", "")
        return Site(server, provider, client)

    return site


def rows_of(server: Server) -> list[Any]:
    database = Database(server.database or f"sqlite:///{server.home / 'skillery.db'}")
    try:
        return list(database.read_now(lambda connection: connection.execute(select(web_sessions)).all()))
    finally:
        database.close()


def until_signed_out(browser: Browser) -> None:
    eventually(lambda: browser.who() is None)


# -- the flow ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "method"),
    [("sqlite", "client_secret_basic"), ("postgres", "client_secret_post"), ("sqlite", "none")],
)
@pytest.mark.full(after=1)
def test_a_user_signs_in_at_the_provider(
    kind: str, method: str, provider: OidcProvider, start: Start, request: pytest.FixtureRequest
) -> None:
    provider.control(claims={"ann": {"groups": ["skill-admins"]}})
    database = request.getfixturevalue("migrated_postgres_database")() if kind == "postgres" else ""
    site = start(method=method, SKILLERY_DATABASE=database)
    page = site.browser.get("/login?next=/s/a@1.0.0?tab%3D2").text
    [link] = re.findall(r'<a [^>]*href="(/login/oidc[^"]*)">Sign in with ([^<]+)</a>', page)
    asked = parse_qs(urlsplit(site.start(link[0])).query)
    signed_in = site.sign_in(link[0])

    assert link[1] == urlsplit(provider.issuer).netloc
    assert 'name="token"' in page
    assert (asked["response_type"], asked["code_challenge_method"]) == (["code"], ["S256"])
    assert asked["redirect_uri"] == [site.callback]
    assert (asked["scope"], asked["resource"]) == (["openid"], [site.server.url])
    assert len(asked["state"][0]) == len(asked["nonce"][0]) == len(asked["code_challenge"][0]) == 43
    assert (signed_in.status_code, signed_in.headers["location"]) == (303, "/s/a@1.0.0?tab=2")
    assert site.browser.who() == "ann"
    assert site.browser.cookie("skillery-login") is None
    [row] = rows_of(site.server)
    assert (row.identity, row.authenticator, row.subject, row.token_id) == ("ann", "oidc", "ann", None)
    assert "admin" in json.loads(row.identity_json)["scopes"]
    # The provider's tokens are valid for 600 s, and so is the session.
    assert timedelta(0) < row.ends_at.replace(tzinfo=UTC) - datetime.now(UTC) <= timedelta(seconds=600)
    [entry] = Rpc(site.server.url, admin_token(site.server))("list_audit", action="login")["entries"]
    assert (entry["identity"]["name"], entry["outcome"], entry["subject"]) == ("ann", "done", "ann")

    site.browser.sign_out()
    assert site.browser.who() is None


@pytest.mark.full
def test_the_rules_see_the_claims_of_the_chosen_token(provider: OidcProvider, start: Start) -> None:
    """The provider puts its extra claims only into access tokens."""
    provider.control(claims={"ann": {"groups": ["skill-admins"]}})
    site = start('login_claims = "id_token"\nlogin_resource = false', RULES + SCOPE_MAP)
    address = site.start()
    asked = parse_qs(urlsplit(address).query)
    site.finish(site.returned(address))

    assert "resource" not in asked
    assert asked["scope"][0].split() == ["openid", *SCOPES]
    [row] = rows_of(site.server)
    assert sorted(json.loads(row.identity_json)["scopes"]) == ["read", "run"]


@pytest.mark.full
def test_a_login_limits_the_scopes_like_an_access_token(provider: OidcProvider, start: Start) -> None:
    site = start(tables=RULES + SCOPE_MAP)
    site.finish(site.returned(site.start(scope="openid skills.read")))

    [row] = rows_of(site.server)
    assert json.loads(row.identity_json)["scopes"] == ["read"]


@pytest.mark.full
def test_without_the_setting_there_is_no_login_at_the_provider(
    start_server: Callable[..., Server], provider: OidcProvider, tmp_path: Path
) -> None:
    server = start_server("--config", str(write_settings(provider, tmp_path, RULES)))
    page = httpx.get(f"{server.url}/login").text

    assert "/login/oidc" not in page
    assert httpx.get(f"{server.url}/login/oidc").status_code == 404
    assert httpx.get(f"{server.url}/login/oidc/callback?code=x&state=y").status_code == 404


@pytest.mark.full
def test_a_token_of_the_provider_is_no_token_for_the_form(provider: OidcProvider, start: Start) -> None:
    site = start()
    refused = site.browser.sign_in(provider.token())

    assert refused.status_code == 403
    assert "not a token of the registry" in refused.text
    assert site.browser.who() is None


# -- attacks -----------------------------------------------------------------------------------------------------


def refused(site: Site, answer: httpx.Response, *, status: int = 401, said: str = "") -> None:
    assert answer.status_code == status, answer.text
    assert said in answer.text
    assert site.browser.cookie() is None
    assert site.sessions() == []


MANY_FAILURES = "failures_per_minute = 1000"


@pytest.fixture
def own_site(start: Start) -> Site:
    return start(MANY_FAILURES)


@pytest.fixture(scope="session")
def clients() -> dict[str, dict[str, Any]]:
    """Return the clients at the provider by the address of their server."""
    return {}


@pytest.fixture
def site(
    server_pool: ServerPool,
    provider: OidcProvider,
    clients: dict[str, dict[str, Any]],
    tmp_path_factory: pytest.TempPathFactory,
) -> Site:
    """Return a server of `server_pool`, in a new browser."""

    def begin() -> Server:
        port, folder = free_port(), tmp_path_factory.mktemp("site")
        client, config = configure(provider, port, folder, f"{MANY_FAILURES}\n{RULES}")
        server = Server(folder / "home", "--config", str(config), "--port", str(port))
        clients[server.url] = client
        return server

    server = server_pool.get(("site", provider.kids()), begin)
    provider.resource = server.url
    return Site(server, provider, clients[server.url])


def test_an_answer_for_another_login_is_refused(site: Site) -> None:
    first = site.returned(site.start())
    second = site.returned(site.start())

    refused(site, site.finish(first), said="belongs to another login")
    refused(site, site.finish(second), status=400, said="began in another browser")
    refused(site, site.finish(site.returned(site.start()), state=None), said="another login")
    refused(site, site.finish(site.returned(site.start()), state="ü"), said="another login")


def test_a_wrong_nonce_or_verifier_is_refused(site: Site) -> None:
    refused(site, site.finish(site.returned(site.start(nonce="x" * 43))), said="The ID token belongs to another login")
    refused(site, site.finish(site.returned(site.start(code_challenge="x" * 43))), said="invalid_grant")


def test_an_answer_of_another_issuer_is_refused(site: Site) -> None:
    for issuer in ("https://evil.example", f"{site.provider.issuer}/", "", None):
        answer = site.finish(site.returned(site.start()), iss=issuer)
        assert answer.status_code == 401
        assert "issuer" in answer.text or "its identity provider" in answer.text
    assert site.sessions() == []


def test_a_code_is_used_once(site: Site) -> None:
    address = site.returned(site.start())
    cookie = str(site.browser.cookie("skillery-login"))
    assert site.finish(address).status_code == 303
    assert site.finish(address).status_code == 400
    thief = Browser(site.server.url)
    assert thief.get(address).status_code == 400
    thief.http.cookies.set("skillery-login", cookie)

    assert thief.get(address).status_code == 401
    assert thief.who() is None
    assert len(site.sessions()) == 1


def test_a_code_of_another_client_is_refused(site: Site) -> None:
    other = register(site.provider, site.callback, "none")

    refused(site, site.finish(site.returned(site.start(client_id=other["client_id"]))), said="invalid_grant")


def test_a_login_that_began_in_another_browser_is_refused(site: Site) -> None:
    """The attacker's code must not sign the victim in as the attacker."""
    address = site.returned(site.start())
    victim = Browser(site.server.url)

    assert victim.get(address).status_code == 400
    admin = Rpc(site.server.url, admin_token(site.server))
    # A refusal is written after its answer.
    eventually(lambda: admin("list_audit", action="login", outcome="refused")["entries"])
    victim.get("/login/oidc")
    assert victim.get(address).status_code == 401
    assert victim.who() is None


OTHER = """
from skillery import hookimpl
from skillery.backends import Offer
from skillery_oidc import OidcSettings, open_authenticator

@hookimpl
def skillery_authenticator():
    return Offer("other", open_authenticator, OidcSettings)
"""


@pytest.mark.full
@pytest.mark.asyncio(loop_scope="session")
async def test_a_browser_with_two_providers_is_not_confused(
    provider: OidcProvider, start_server: Callable[..., Server], tmp_path: Path, open_page: OpenPage
) -> None:
    """Wrong states, and an answer of one provider at the address of the other (mix-up), in Chromium."""
    (tmp_path / "plugins").mkdir()
    (tmp_path / "plugins" / "other.py").write_text(OTHER)
    provider.resource = url = f"http://127.0.0.1:{free_port()}"
    settings = ['auth = ["tokens", "oidc", "other"]']
    for name in ("oidc", "other"):
        client = register(provider, f"{url}/login/{name}/callback", "none")
        own = f'issuer = "{provider.issuer}"\nresource = "{url}"\nbrowser_login = true\n'
        rules = RULES.replace("authenticator.oidc", f"authenticator.{name}")
        settings.append(f'[backends.authenticator.{name}]\n{own}client_id = "{client["client_id"]}"\n{rules}')
    (tmp_path / "skillery.toml").write_text("\n".join(settings))
    plugins = {"SKILLERY_PLUGINS_FOLDER": str(tmp_path / "plugins")}
    server = start_server("--config", str(tmp_path / "skillery.toml"), "--port", url.rpartition(":")[2], env=plugins)
    site = Site(server, provider, {})
    page = await open_page(server, "/login?next=/account")

    async def answer_of(name: str) -> str:
        """Begin a login in the browser. Return the address of the answer, which the browser has not opened yet."""
        begun = await page.context.request.get(f"/login/{name}?next=/account", max_redirects=0)
        return await asyncio.to_thread(site.returned, begun.headers["location"])

    for attack in ("wrong state", "mix-up", "used up", "error"):
        address = await answer_of("other" if attack == "mix-up" else "oidc")
        if attack == "used up":
            await page.context.clear_cookies()
        address = {
            "wrong state": re.sub("state=[^&]*", f"state={'x' * 43}", address),
            "mix-up": address.replace("/other/", "/oidc/"),
            "error": f"{address}&error=%3Cimg+src%3Dx+onerror%3Dwindow.__pwned%3D1%3E",
        }.get(attack, address)
        await page.goto(address)
        text = await page.get_by_role("alert").inner_text()
        assert {"wrong state": "another login", "error": "<img src=x"}.get(attack, "another browser") in text, attack
        assert await page.evaluate("window.__pwned") is None
        assert await check_axe(page) == []
        assert {one["name"] for one in await page.context.cookies(server.url)} & {"skillery", "skillery-login"} == set()
        await page.get_by_role("link", name="Start again").click()
        await page.get_by_label("Token").wait_for()
    await page.goto(await answer_of("other"))
    assert page.url == f"{server.url}/account"
    assert "ann" in await page.inner_text("main")
    assert await page.get_by_text("other", exact=True).count() == 1
    assert len(rows_of(server)) == 1
    await problems(page)


def test_a_refused_login_shows_the_escaped_reason_of_the_provider(site: Site) -> None:
    address = site.returned(site.start(prompt="none"))  # no user is logged in at the provider

    refused(site, site.finish(address), said="login_required")
    forged = site.finish(site.returned(site.start()), error="<b>", error_description="a\nb")
    refused(site, forged, said="&lt;b&gt;: a b")


@pytest.mark.full
def test_the_cookie_of_a_login_is_signed_and_ends(own_site: Site) -> None:
    database = Database(f"sqlite:///{own_site.server.home / 'skillery.db'}")
    stored = select(registry.c.value).where(registry.c.key == KEY_NAME)
    signer = Signer(bytes(database.read_now(lambda connection: connection.scalar(stored)) or b""))
    database.close()

    def changed(cookie: str) -> httpx.Response:
        address = own_site.returned(own_site.start())
        own_site.browser.http.cookies.clear()
        own_site.browser.http.cookies.set("skillery-login", cookie)
        return own_site.finish(address)

    own_site.start()
    cookie = str(own_site.browser.cookie("skillery-login"))
    value = msgspec.json.decode(signer.verified(cookie) or b"")
    old = signer.signed(msgspec.json.encode(value | {"until": time.time() - 1}))
    other_name = signer.signed(msgspec.json.encode(value | {"name": "other"}))
    other_host = signer.signed(msgspec.json.encode(value | {"callback": "https://evil.example/login/oidc/callback"}))
    payload, _, mac = cookie.partition(".")
    other_kind = signer.signed(b'{"text": "The version is published."}')
    forged = ("x", f"{payload}.", f".{mac}", f"{payload[:-2]}AA.{mac}", Signer(b"x" * 32).signed(b"{}"))

    for one in (old, other_name, other_host, other_kind, *forged):
        refused(own_site, changed(one), status=400, said="has expired")
    assert value["until"] - time.time() <= 600


@pytest.mark.parametrize("address", ["//evil.example", "https://evil.example/", "/\\evil.example", "/\t/evil.example"])
def test_a_login_never_leads_to_another_host(site: Site, address: str) -> None:
    assert site.sign_in(f"/login/oidc?{urlencode({'next': address})}").headers["location"] == "/"


ID_TOKENS: dict[str, tuple[dict[str, Any], str]] = {
    "another client": ({"aud": "another"}, "is for another client"),
    "several clients": ({"aud": ["{client}", "another"]}, "is for several clients"),
    "another party": ({"azp": "another"}, "is for another client"),
    "another issuer": ({"iss": "https://evil.example"}, "is from another issuer"),
    "expired": ({"exp": 1}, "has expired"),
    "endless": ({"exp": None}, "has no time of expiry"),
    "not yet": ({"iat": 9_999_999_999}, "is not valid yet"),
    "no nonce": ({"nonce": None}, "belongs to another login"),
    "number as nonce": ({"nonce": 1}, "belongs to another login"),
    "no subject": ({"sub": None}, "is not valid"),
    "long subject": ({"sub": "a" * 256}, "is not valid"),
    "control character": ({"sub": "a\0b"}, "is not valid"),
    "access token": ({"token_use": "access"}, "another token in place of an ID token"),
    "hash of another access token": ({"at_hash": "77QmUPtjPfzWtF2AnpK9RQ"}, "belongs to another access token"),
    "number as hash": ({"at_hash": 1}, "belongs to another access token"),
    "other user": ({"sub": "bob"}, "belong to different users"),
}


def answer_with(site: Site, tokens: Mapping[str, Any], status: int = 200) -> None:
    site.provider.control(answers={"/token": {"status": status, "body": json.dumps(tokens)}})


@pytest.mark.parametrize("name", ID_TOKENS)
@pytest.mark.full(after=10)
def test_wrong_id_tokens_are_refused(site: Site, name: str) -> None:
    changed, said = ID_TOKENS[name]
    changed = json.loads(json.dumps(changed).replace("{client}", site.client["client_id"]))
    begun = site.start()
    [nonce] = parse_qs(urlsplit(begun).query)["nonce"]
    claims = {"aud": site.client["client_id"], "sub": "ann", "nonce": nonce} | changed
    id_token = site.provider.sign({"typ": None}, **claims)
    address = site.returned(begun)
    answer_with(site, {"id_token": id_token, "access_token": site.provider.sign(sub="ann")})

    refused(site, site.finish(address), said=said)


@pytest.mark.full(after=1)
@pytest.mark.parametrize(("algorithm", "name"), [("ES256", "sha256"), ("EdDSA", "sha512")])
def test_an_id_token_has_the_hash_of_its_access_token(own_site: Site, algorithm: str, name: str) -> None:
    begun = own_site.start()
    [nonce] = parse_qs(urlsplit(begun).query)["nonce"]
    address = own_site.returned(begun)
    own_site.provider.rotate(new_key(algorithm), keep=own_site.provider.keys)
    access_token = own_site.provider.sign(sub="ann")
    digest = hashlib.new(name, access_token.encode()).digest()
    half = base64.urlsafe_b64encode(digest[: len(digest) // 2]).rstrip(b"=").decode()
    id_token = own_site.provider.sign(
        {"typ": None}, aud=own_site.client["client_id"], sub="ann", nonce=nonce, at_hash=half
    )
    answer_with(own_site, {"id_token": id_token, "access_token": access_token})

    assert own_site.finish(address).status_code == 303


@pytest.mark.parametrize(
    ("header", "key", "said"),
    [
        ({"typ": "at+jwt"}, None, "it is not an ID token"),
        ({"typ": None}, new_key(), "does not list"),
    ],
)
def test_id_tokens_with_wrong_headers_are_refused(site: Site, header: dict[str, Any], key: Any, said: str) -> None:
    begun = site.start()
    [nonce] = parse_qs(urlsplit(begun).query)["nonce"]
    claims = {"aud": site.client["client_id"], "sub": "ann", "nonce": nonce}
    address = site.returned(begun)
    answer_with(site, {"id_token": site.provider.sign(header, key, **claims), "access_token": "x"})

    refused(site, site.finish(address), said=said)


def test_an_id_token_without_signature_is_refused(site: Site) -> None:
    begun = site.start()
    address = site.returned(begun)
    for token in ("eyJhbGciOiJub25lIn0.e30.", "x", "a.b.c.d.e", 5, None):
        answer_with(site, {"id_token": token, "access_token": "x"})
        refused(site, site.finish(address))
        address = site.returned(site.start())


@pytest.mark.full
def test_failures_of_the_provider_are_no_failures_of_the_user(own_site: Site) -> None:
    for status, body in ((500, {}), (401, {"error": "invalid_client"}), (200, []), (302, {})):
        address = own_site.returned(own_site.start())
        answer_with(own_site, body, status)  # type: ignore[arg-type]
        failed = own_site.finish(address)
        assert failed.status_code == 503
        assert "identity provider" in failed.json()["error"]["message"]
        assert own_site.client["client_secret"] not in failed.text + own_site.server.log.read_text()
        own_site.provider.control(answers={})
    assert own_site.sign_in().status_code == 303


@pytest.mark.full
def test_a_flood_of_failed_logins_is_bounded(provider: OidcProvider, start: Start) -> None:
    site = start("failures_per_minute = 3")
    codes = [
        site.finish(f"{site.callback}?code=x&iss={provider.issuer}", state=state_of(site)).status_code for _ in range(5)
    ]
    requests = provider.control()["/token"]
    blocked = site.finish(site.returned(site.start()))

    assert codes == [401, 401, 401, 429, 429]
    assert requests == 3
    assert blocked.status_code == 429
    assert int(blocked.headers["retry-after"]) > 0
    assert Rpc(site.server.url, provider.token()).http.post("/rpc", json={}).status_code == 200
    admin = Rpc(site.server.url, admin_token(site.server))
    entries = eventually(lambda: admin("list_audit", action="login", outcome="refused")["entries"])
    assert sum(entry["count"] for entry in entries) >= 1


def state_of(site: Site) -> str:
    return parse_qs(urlsplit(site.start()).query)["state"][0]


class TestLogin(BrowserLoginContract):
    @pytest.fixture
    async def login(self, provider: OidcProvider) -> AsyncIterator[OidcAuthenticator]:
        client = register(provider, self.callback, "none")
        settings = settings_of(provider, browser_login=True, client_id=client["client_id"])
        authenticator = OidcAuthenticator(settings, Place(Path()))
        await authenticator.start()
        yield authenticator
        await authenticator.close()

    @pytest.fixture
    def visit(self) -> Visit:
        async def log_in(start: LoginStart) -> Mapping[str, str]:
            address = start.address
            async with httpx.AsyncClient(verify=Rpc.tls, timeout=300) as http:
                while not address.startswith(self.callback):
                    answer = await http.get(address)
                    address = str(answer.url.join(answer.headers["location"]))
            return {name: values[0] for name, values in parse_qs(urlsplit(address).query).items()}

        return log_in


# -- the end of a session ----------------------------------------------------------------------------------------


@pytest.mark.full
@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_a_revoked_identity_is_signed_out(kind: str, start: Start, request: pytest.FixtureRequest) -> None:
    database = request.getfixturevalue("migrated_postgres_database")() if kind == "postgres" else ""
    site = start(SKILLERY_DATABASE=database)
    admin = partial(command, site.server.home.parent, database=database)
    site.sign_in()
    assert site.browser.who() == "ann"

    assert admin("revoke", "ann").code == 0
    assert rows_of(site.server) == []
    until_signed_out(site.browser)
    refused(Site(site.server, site.provider, site.client), site.sign_in(), said="is revoked")
    assert admin("restore", "ann").code == 0
    assert site.browser.who() is None
    eventually(lambda: site.sign_in().status_code == 303)
    assert site.browser.who() == "ann"


@pytest.mark.full
def test_no_login_during_a_revocation_outlives_it(start: Start) -> None:
    """A server may accept a login within the second in which it does not yet know the revocation."""
    site = start()
    admin, logins = partial(command, site.server.home.parent), list[Site]()
    site.sign_in()
    with ThreadPoolExecutor(1) as pool:
        revoked = pool.submit(admin, "revoke", "ann")
        while not revoked.done():
            logins.append(Site(site.server, site.provider, site.client))
            logins[-1].sign_in()
    assert revoked.result().code == 0

    assert admin("restore", "ann").code == 0
    eventually(lambda: site.sign_in().status_code == 303)
    assert [one.browser.who() for one in logins] == [None] * len(logins)


@pytest.mark.full
def test_a_session_ends_with_the_token_of_the_provider(own_site: Site) -> None:
    own_site.sign_in()
    assert own_site.browser.who() == "ann"
    database = Database(f"sqlite:///{own_site.server.home / 'skillery.db'}")
    past = update(web_sessions).values(ends_at=datetime.now(UTC) - timedelta(seconds=1))
    database.write_now(lambda connection: connection.execute(past))
    database.close()

    until_signed_out(own_site.browser)


@pytest.mark.full
def test_sessions_of_an_authenticator_end_when_it_is_removed(
    own_site: Site, start_server: Callable[..., Server]
) -> None:
    own_site.sign_in()
    cookie = str(own_site.browser.cookie())
    own_site.server.stop()
    browser = Browser(start_server(env={"SKILLERY_AUTH": "tokens"}).url)
    browser.http.cookies.set("skillery", cookie)

    assert browser.who() is None


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("browser_login = true", "browser_login needs the setting client_id"),
        ('browser_login = true\nclient_id = "x"\nclient_secret_file = "/absent"', "client_secret_file is '/absent'"),
        ('login_claims = "userinfo"', "login_claims"),
    ],
)
def test_wrong_settings_are_named_at_start(setting: str, said: str, provider: OidcProvider, tmp_path: Path) -> None:
    provider.resource = "http://127.0.0.1:1"
    config = write_settings(provider, tmp_path, f"{setting}\n{RULES}")
    started = skillery("serve", "--port", "0", "--home", str(tmp_path / "home"), "--config", str(config))

    assert started.code != 0
    assert said in started.err
