"""Browsers sign in with a token: pages, cookies, sessions, their ends, and forged requests."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from sqlalchemy import select, update

from skillery.database import Database
from skillery.database.tables import web_sessions
from skillery.identity.web_session_rows import MOST_OF_IDENTITY, hash_of
from tests.cli.test_cli import skillery
from tests.conftest import ASKS_FOR_TOKENS, Rpc, Server
from tests.support.browser import Browser, attributes
from tests.support.processes import eventually

BADGES = """
import secrets
from datetime import UTC, datetime
from urllib.parse import urlencode
from skillery import hookimpl
from skillery.backends import Identity, LoggedIn, LoginStart, Offer
from skillery.errors import NotAuthenticated, Unavailable

class Badges:
    loopback_only = False

    async def authenticate(self, credentials):
        raise NotAuthenticated("this server wants a badge")

    def login_title(self):
        return "the <Badge> Office"

    async def begin_login(self, callback):
        state = secrets.token_urlsafe()
        return LoginStart("http://badges.example/?" + urlencode({"state": state, "to": callback}), {"state": state})

    async def finish_login(self, answer):
        if answer.query.get("state") != answer.kept["state"]:
            raise NotAuthenticated("this badge belongs to another login")
        if answer.query["code"] == "closed":
            raise Unavailable("the office is closed")
        return LoggedIn(Identity(answer.query["code"], "agent", frozenset({"read"})), "badge 7", None)

    async def check_login(self, identity):
        if identity.name == "eve":
            raise NotAuthenticated("the badge of eve is revoked")

@hookimpl
def skillery_authenticator():
    return Offer("badges", lambda settings, place: Badges())
"""

SECRET = re.compile(r"[0-9A-Za-z_-]{43}")
TLS = {"host": "skills.example.org", "x-forwarded-proto": "https"}
OWN = "https://skills.example.org"


@pytest.fixture(scope="module")
def root(tokens_server: Server) -> Rpc:
    """Return a client with the rights of an admin."""
    create = ("token", "create", "--name", "root", "--scope", "admin", "--json", "--home", str(tokens_server.home))
    return Rpc(tokens_server.url, skillery(*create, SKILLERY_DATABASE=tokens_server.database).json["token"])


@pytest.fixture
def token(root: Rpc) -> Callable[..., str]:
    """Return `token("ann", expires="1h")`, which creates a token and returns it."""

    def create(name: str, scope: str = "read", **more: str) -> str:
        made: str = root("create_token", name=name, scopes=[scope], **more)["token"]
        return made

    return create


@pytest.fixture
def browser(tokens_server: Server) -> Browser:
    return Browser(tokens_server.url)


@contextmanager
def database_of(server: Server) -> Iterator[Database]:
    database = Database(server.database or f"sqlite:///{server.home / 'skillery.db'}")
    yield database
    database.close()


def change(server: Server, browser: Browser, **values: Any) -> None:
    """Change the row of a browser's session."""
    mine = web_sessions.c.hash == hash_of(browser.cookie() or "")
    with database_of(server) as database:
        changed = database.write_now(
            lambda connection: connection.execute(update(web_sessions).where(mine).values(values))
        )
    assert changed.rowcount == 1


def rows_of(server: Server, identity: str) -> list[Any]:
    with database_of(server) as database:
        wanted = select(web_sessions).where(web_sessions.c.identity == identity)
        return list(database.read_now(lambda connection: connection.execute(wanted).all()))


def wait_until_signed_out(browser: Browser) -> None:
    """Wait until the server has noticed a change that another process has made: it may take a second."""
    eventually(lambda: browser.who() is None)


# -- sign-in and sign-out ----------------------------------------------------------------------------------------


def test_a_browser_signs_in_with_a_token_and_signs_out(
    browser: Browser, token: Callable[..., str], new_name: str
) -> None:
    assert browser.who() is None
    signed_in = browser.sign_in(token(new_name))

    assert (signed_in.status_code, signed_in.headers["location"]) == (303, "/")
    assert browser.who() == new_name
    assert SECRET.fullmatch(browser.cookie() or "")

    signed_out = browser.sign_out()

    assert (signed_out.status_code, signed_out.headers["location"]) == (303, "/login")
    assert signed_out.headers["clear-site-data"] == '"cache"'
    assert browser.cookie() is None
    assert browser.who() is None


def test_neither_the_token_nor_the_cookie_is_stored(
    tokens_server: Server, browser: Browser, token: Callable[..., str], new_name: str
) -> None:
    secret = token(new_name)
    browser.sign_in(secret)
    [row] = rows_of(tokens_server, new_name)

    assert row.token_id == secret.split("_")[1]
    assert row.identity_json is None
    assert secret.split("_")[2] not in str(row)
    assert str(browser.cookie()) not in str(row)


def test_pages_have_a_strict_policy_and_a_single_script(browser: Browser) -> None:
    page = browser.get("/login")
    policy = dict(part.strip().partition(" ")[::2] for part in page.headers["content-security-policy"].split(";"))

    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert (policy["default-src"], policy["form-action"]) == ("'none'", "'self'")
    assert (policy["base-uri"], policy["frame-ancestors"]) == ("'none'", "'none'")
    assert policy["require-trusted-types-for"] == "'script'"
    assert page.headers["x-content-type-options"] == "nosniff"
    assert page.headers["referrer-policy"] == "same-origin"
    assert page.headers["cross-origin-opener-policy"] == page.headers["cross-origin-resource-policy"] == "same-origin"
    assert "camera=()" in page.headers["permissions-policy"]
    assert page.headers["cache-control"] == "private, no-store"
    assert page.headers["vary"] == "Cookie, Accept-Encoding"
    nonce = policy["script-src"].removeprefix("'nonce-").removesuffix("'")
    [script] = re.findall("<script.*?>", page.text)
    assert re.fullmatch(f'<script src="/static/[^"]+" nonce="{nonce}" defer>', script)
    assert "style=" not in page.text
    assert "<style" not in page.text


def test_texts_of_callers_are_escaped(browser: Browser, token: Callable[..., str]) -> None:
    browser.sign_in(token('<b>&"eve'))

    assert "<b>" not in browser.get("/login").text
    assert browser.who() == '<b>&"eve'
    assert "next=&quot;" not in browser.get('/login?next=/"><b>').text
    assert "<b>" not in browser.get('/login?next=/"><b>').text


@pytest.mark.parametrize(
    ("asked", "location"),
    [
        ("/s/text.csv.profile@1.0.0?tab=files", "/s/text.csv.profile@1.0.0?tab=files"),
        ("", "/"),
        ("//evil.example", "/"),
        ("/\\evil.example", "/"),
        ("/a\\b", "/"),
        ("https://evil.example", "/"),
        ("javascript:alert(1)", "/"),
        ("/\t/evil.example", "/"),
        ("/\n/evil.example", "/"),
        (" //evil.example", "/"),
        ("/ü", "/"),
        ("/" + "a" * 2000, "/"),
        ("/a\r\nset-cookie: x=y", "/"),
    ],
)
def test_next_never_leads_to_another_host(
    browser: Browser, token: Callable[..., str], asked: str, location: str
) -> None:
    form = browser.fields() | {"token": token("ann"), "next": asked}
    page = browser.http.get("/login", params={"next": asked})

    assert browser.post("/login", form).headers["location"] == location
    assert (f'name="next" value="{asked}"' in page.text) == (location == asked or not asked)


def test_sign_in_and_sign_out_are_in_the_audit_trail(
    browser: Browser, token: Callable[..., str], root: Rpc, new_name: str
) -> None:
    secret = token(new_name)
    browser.sign_in(secret)
    cookie = str(browser.cookie())
    browser.sign_out()
    logout, login = root("list_audit", identity=new_name)["entries"]

    assert (login["action"], login["outcome"], login["subject"]) == ("login", "done", secret.split("_")[1])
    assert login["after"]["authenticator"] == "tokens"
    assert (logout["action"], logout["outcome"]) == ("logout", "done")
    assert cookie not in str((login, logout))


def test_refused_forms_are_in_the_audit_trail(
    browser: Browser, token: Callable[..., str], root: Rpc, new_name: str
) -> None:
    browser.sign_in(token(new_name))
    for path in ("/login", "/logout"):
        assert browser.post(path, {"form_token": "x", "token": "y"}).status_code == 403

    def found() -> set[str]:
        return {one["action"] for one in root("list_audit", identity=new_name, outcome="refused")["entries"]}

    eventually(lambda: found() == {"login", "logout"}, problem=found)  # a refusal is written after its answer


# -- cookies -----------------------------------------------------------------------------------------------------


def test_the_cookie_on_loopback_has_no_prefix(browser: Browser, token: Callable[..., str]) -> None:
    signed_in = browser.sign_in(token("ann"))
    week = {f"Max-Age={7 * 24 * 3600 - late}" for late in range(60)}

    assert attributes(signed_in, "skillery") - week == {"HttpOnly", "SameSite=Lax", "Path=/"}


@pytest.mark.full
def test_the_cookie_behind_tls_is_bound_to_the_host(start_server: Callable[..., Server]) -> None:
    proxied = {"SKILLERY_TRUSTED_PROXIES": "127.0.0.1", "SKILLERY_ALLOWED_HOSTS": "skills.example.org"}
    server = start_server(env=ASKS_FOR_TOKENS | proxied)
    create = ("token", "create", "--name", "ann", "--scope", "read", "--json", "--home", str(server.home))
    browser = Browser(server.url, **TLS)
    form = browser.fields() | {"token": skillery(*create).json["token"]}
    signed_in = browser.post("/login", form, origin=OWN)

    assert signed_in.status_code == 303
    found = attributes(signed_in, "__Host-skillery")
    assert {"Secure", "HttpOnly", "SameSite=Lax", "Path=/"} <= found
    assert not any("domain" in one.lower() for one in found)
    [secret] = re.findall(r"__Host-skillery=([^;]+)", signed_in.headers["set-cookie"])
    by_name = {
        name: "signed in as" in httpx.get(f"{server.url}/login", headers=TLS | {"cookie": f"{name}={secret}"}).text
        for name in ("__Host-skillery", "skillery")
    }
    assert by_name == {"__Host-skillery": True, "skillery": False}
    assert browser.post("/login", form, origin="http://skills.example.org").status_code == 403


def test_without_tls_only_loopback_signs_in(start_server: Callable[..., Server]) -> None:
    server = start_server(env=ASKS_FOR_TOKENS | {"SKILLERY_ALLOWED_HOSTS": "skills.example.org"})
    # The proxy is not trusted, so its header does not count.
    for headers in ({"host": "skills.example.org"}, TLS):
        refused = httpx.get(f"{server.url}/login", headers=headers)
        assert (refused.status_code, refused.json()["error"]["data"]["type"]) == (400, "tls_required")
        assert "trusted_proxies" in refused.json()["error"]["data"]["hint"]
    assert httpx.get(f"{server.url}/login", headers={"host": "localhost"}).status_code == 200


def test_only_pages_accept_the_cookie(browser: Browser, token: Callable[..., str]) -> None:
    browser.sign_in(token("ann", scope="admin"))
    call = {"jsonrpc": "2.0", "id": 1, "method": "get_usage", "params": {}}

    assert browser.who() == "ann"
    for path in ("/rpc", "/mcp"):
        assert browser.http.post(path, json=call, headers={"origin": browser.url}).status_code == 401
    assert browser.http.post("/blobs", content=b"x").status_code == 401
    assert browser.http.post("/import", content=b"x").status_code == 401
    for path in ("/tools", "/prompt", "/v1/skills", "/blobs/blob:x", "/openrpc.json", "/v1/openapi.json", "/metrics"):
        assert browser.get(path).status_code == 401, path


def test_duplicate_session_cookies_are_ignored(
    tokens_server: Server, browser: Browser, token: Callable[..., str]
) -> None:
    browser.sign_in(token("ann"))
    twice = f"skillery={browser.cookie()}; skillery={browser.cookie()}"

    assert "signed in as" not in httpx.get(f"{tokens_server.url}/login", headers={"cookie": twice}).text


def test_another_host_cannot_set_the_cookie_within_another_cookie(
    tokens_server: Server, browser: Browser, token: Callable[..., str]
) -> None:
    """A host of the same domain may set cookies for the whole domain, but none with the prefix `__Host-`."""
    browser.sign_in(token("eve"))
    planted = f"skillery={browser.cookie()}"

    def is_signed_in(cookie: str) -> bool:
        headers = [(b"cookie", cookie.encode("latin-1"))]
        return "signed in as" in httpx.get(f"{tokens_server.url}/login", headers=headers).text

    for cookie in (f"other=1,{planted}", f"other=1, {planted}", f"\xa0{planted}", f"a=b; \x85{planted}"):
        assert not is_signed_in(cookie), cookie
    assert is_signed_in(f"other=1, 2;\t{planted} ;a=b")


# -- forged requests ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"origin": "http://127.0.0.1:1"},
        {"origin": ""},
        {"origin": "https://evil.example", "sec-fetch-site": "same-origin"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"sec-fetch-site": "none"},
        {},
    ],
)
def test_requests_of_other_origins_neither_sign_in_nor_out(
    browser: Browser, token: Callable[..., str], headers: dict[str, str]
) -> None:
    login = browser.http.post("/login", data=browser.fields() | {"token": token("eve")}, headers=headers)
    browser.sign_in(token("ann"))
    logout = browser.http.post("/logout", data=browser.fields(), headers=headers)

    assert (login.status_code, logout.status_code) == (403, 403)
    assert browser.who() == "ann"


def test_a_browser_without_origin_says_same_origin(browser: Browser, token: Callable[..., str]) -> None:
    form = browser.fields() | {"token": token("ann")}

    assert browser.http.post("/login", data=form, headers={"sec-fetch-site": "same-origin"}).status_code == 303


@pytest.mark.smoke
def test_other_origins_that_may_call_the_api_may_not_use_a_session(start_server: Callable[..., Server]) -> None:
    server = start_server(env=ASKS_FOR_TOKENS | {"SKILLERY_ALLOWED_ORIGINS": "https://tools.example"})
    browser = Browser(server.url)

    assert browser.post("/logout", browser.fields(), origin="https://tools.example").status_code == 403


def test_each_form_needs_the_token_of_its_session(
    tokens_server: Server, browser: Browser, token: Callable[..., str]
) -> None:
    anonymous = browser.fields()["form_token"]
    other = Browser(tokens_server.url)
    other.sign_in(token("eve"))
    foreign = other.fields()["form_token"]
    browser.sign_in(token("ann"))
    own = browser.fields()["form_token"]
    forged = ["", "x", foreign, anonymous, own[:-1], own[1:], own[:21] + ("A" if own[21] != "A" else "B") + own[22:]]

    for form_token in forged:
        assert browser.post("/logout", {"form_token": form_token}).status_code == 403, form_token
        assert browser.post("/login", {"form_token": form_token, "token": token("eve")}).status_code == 403
    assert browser.post("/logout", {"other": "x"}).status_code == 403
    assert (
        browser.http.post(
            "/logout",
            content=f"form_token={own}&form_token={own}",
            headers={"origin": browser.url, "content-type": "application/x-www-form-urlencoded"},
        ).status_code
        == 403
    )
    assert browser.who() == "ann"
    assert own != browser.fields()["form_token"]  # a fresh salt for each page
    assert browser.post("/logout", {"form_token": own}).status_code == 303


def test_forms_of_other_types_and_sizes_are_refused(browser: Browser) -> None:
    own = {"origin": browser.url}
    form = own | {"content-type": "application/x-www-form-urlencoded"}

    assert browser.http.post("/login", json={}, headers=own).status_code == 415
    assert browser.http.post("/login", files={"token": b"x"}, headers=own).status_code == 415
    assert browser.http.post("/login", content=b"token=" + b"x" * 500_000, headers=form).status_code == 413
    assert browser.http.post("/login", content=b"token=%ff", headers=form).status_code == 400
    assert browser.http.post("/login", content=b"a=b&" * 50, headers=form).status_code == 400
    assert browser.http.put("/login", headers=own).status_code == 405
    assert browser.http.get("/logout").status_code == 405


def test_a_session_gets_a_new_id_at_each_login(
    tokens_server: Server, browser: Browser, token: Callable[..., str], new_name: str
) -> None:
    browser.http.cookies.set("skillery", "A" * 43, domain="127.0.0.1")
    browser.sign_in(token(new_name))
    first = browser.cookie()
    fields = browser.fields()
    browser.post("/login", fields | {"token": token(new_name)})
    second = browser.cookie()

    assert "A" * 43 != first != second
    assert browser.who() == new_name
    stolen = Browser(tokens_server.url)
    stolen.http.cookies.set("skillery", str(first))
    assert stolen.who() is None
    assert len(rows_of(tokens_server, new_name)) == 1


# -- the end of a session ----------------------------------------------------------------------------------------


def test_a_cookie_is_not_valid_after_sign_out(
    tokens_server: Server, browser: Browser, token: Callable[..., str]
) -> None:
    browser.sign_in(token("ann"))
    thief = Browser(tokens_server.url)
    thief.http.cookies.set("skillery", str(browser.cookie()))
    assert thief.who() == "ann"
    browser.sign_out()

    assert thief.who() is None
    assert thief.sign_out().status_code == 303


def test_a_session_ends_with_its_token_at_once(browser: Browser, token: Callable[..., str], root: Rpc) -> None:
    secret = token("ann")
    browser.sign_in(secret)
    assert browser.who() == "ann"
    root("revoke_token", id=secret.split("_")[1])

    assert browser.who() is None


def test_a_revocation_by_another_process_ends_a_session_soon(
    tokens_server: Server, browser: Browser, token: Callable[..., str]
) -> None:
    secret = token("ann")
    browser.sign_in(secret)
    assert browser.who() == "ann"
    revoked = skillery(
        "token",
        "revoke",
        secret.split("_")[1],
        "--home",
        str(tokens_server.home),
        SKILLERY_DATABASE=tokens_server.database,
    )

    assert revoked.code == 0
    wait_until_signed_out(browser)


def test_a_session_ends_when_its_token_expires(
    tokens_server: Server, browser: Browser, token: Callable[..., str], new_name: str
) -> None:
    signed_in = browser.sign_in(token(new_name, expires="1h"))
    [row] = rows_of(tokens_server, new_name)

    assert {f"Max-Age={3600 - late}" for late in range(60)} & attributes(signed_in, "skillery")
    assert row.ends_at.replace(tzinfo=UTC) <= datetime.now(UTC) + timedelta(hours=1)


@pytest.mark.parametrize(
    ("column", "hours", "lives"), [("seen_at", 11.9, True), ("seen_at", 12.1, False), ("ends_at", 0.1, False)]
)
def test_a_session_ends_when_it_is_idle_or_old(
    tokens_server: Server, browser: Browser, token: Callable[..., str], column: str, hours: float, lives: bool
) -> None:
    browser.sign_in(token("ann"))
    change(tokens_server, browser, **{column: datetime.now(UTC) - timedelta(hours=hours)})

    if lives:
        assert browser.who() == "ann"
    else:
        wait_until_signed_out(browser)


def test_a_request_prolongs_an_idle_session(
    tokens_server: Server, browser: Browser, token: Callable[..., str], new_name: str
) -> None:
    browser.sign_in(token(new_name))
    change(tokens_server, browser, seen_at=datetime.now(UTC) - timedelta(hours=11))
    browser.get("/login")

    recent = datetime.now(UTC) - timedelta(hours=1)
    eventually(lambda: rows_of(tokens_server, new_name)[0].seen_at.replace(tzinfo=UTC) >= recent)


def test_a_sweep_removes_ended_sessions(
    tokens_server: Server, token: Callable[..., str], root: Rpc, new_name: str
) -> None:
    browsers = [Browser(tokens_server.url) for _ in range(4)]
    revoked = token(new_name)
    for browser in browsers[:3]:
        browser.sign_in(token(new_name))
    browsers[3].sign_in(revoked)
    change(tokens_server, browsers[0], seen_at=datetime.now(UTC) - timedelta(hours=13))
    change(tokens_server, browsers[1], ends_at=datetime.now(UTC) - timedelta(seconds=1))
    root("revoke_token", id=revoked.split("_")[1])

    assert len(rows_of(tokens_server, new_name)) == 4
    assert root("collect_garbage", dry_run=True, steps=["ended_sessions"])["removed"]["ended_sessions"]["count"] >= 3
    root("collect_garbage", steps=["ended_sessions"])
    assert [row.hash for row in rows_of(tokens_server, new_name)] == [hash_of(browsers[2].cookie() or "")]
    assert browsers[2].who() == new_name


def test_the_sessions_of_an_identity_are_bounded(
    tokens_server: Server, token: Callable[..., str], new_name: str
) -> None:
    secret = token(new_name)
    browser = Browser(tokens_server.url)
    fields = browser.fields() | {"token": secret}
    for _ in range(MOST_OF_IDENTITY + 2):
        browser.http.cookies.clear()
        assert browser.post("/login", fields).status_code == 303

    assert len(rows_of(tokens_server, new_name)) == MOST_OF_IDENTITY
    assert browser.who() == new_name


def test_a_backup_has_no_sessions() -> None:
    from skillery.maintenance.backups import LEFT_OUT

    assert "web_sessions" in LEFT_OUT


# -- failures ----------------------------------------------------------------------------------------------------


def test_a_wrong_token_is_refused_with_the_reason(browser: Browser, root: Rpc) -> None:
    for wrong in ("", "x", "sky_wrong", "sky_" + "0" * 12 + "_" + "0" * 43, "ü", "a\nb"):
        refused = browser.sign_in(wrong)
        assert refused.status_code == 401
        assert 'role="alert"' in refused.text
        assert "This token is not valid or has ended." in refused.text
        assert "Authorization" not in refused.text
        assert browser.cookie() is None
    assert eventually(lambda: root("list_audit", action="login", outcome="refused")["entries"])


@pytest.mark.full
def test_failures_count_in_the_same_limit_as_those_of_calls(start_server: Callable[..., Server]) -> None:
    limit = {"SKILLERY_BACKENDS_AUTHENTICATOR_TOKENS_FAILURES_PER_MINUTE": "4"}
    server = start_server(env=ASKS_FOR_TOKENS | limit)
    create = ("token", "create", "--name", "ann", "--scope", "read", "--json", "--home", str(server.home))
    browser = Browser(server.url)
    fields = browser.fields()
    rpc = Rpc(server.url, "sky_wrong")
    codes = [rpc.raw("{}").status_code for _ in range(2)]
    codes += [browser.post("/login", fields | {"token": "sky_wrong"}).status_code for _ in range(4)]
    flooded = browser.post("/login", fields | {"token": "sky_wrong"})

    assert codes == [401] * 4 + [429] * 2
    assert int(flooded.headers["retry-after"]) > 0
    assert flooded.headers["x-request-id"] in flooded.text
    assert rpc.raw("{}").status_code == 429
    assert browser.sign_in(skillery(*create).json["token"]).status_code == 303


def test_an_open_server_has_no_login(sqlite_server: Server) -> None:
    for method, path in (("GET", "/login"), ("POST", "/login"), ("POST", "/logout"), ("GET", "/login/oidc")):
        answer = sqlite_server.rpc.http.request(method, path)
        assert answer.status_code == 404
        assert "auth = 'open'" in answer.json()["error"]["data"]["hint"]


def test_unknown_logins_answer_404(browser: Browser) -> None:
    for path in ("/login/oidc", "/login/tokens", "/login/oidc/callback?code=1&state=2"):
        assert browser.get(path).status_code == 404
    assert "no login 'oidc'" in browser.get("/login/oidc").json()["error"]["message"]


# -- a plugin's own login ----------------------------------------------------------------------------------------


@pytest.mark.full
def test_a_plugin_has_its_own_login(start_server: Callable[..., Server], tmp_path: Path) -> None:
    folder = tmp_path / "plugins"
    folder.mkdir()
    (folder / "badges.py").write_text(BADGES)
    browser = Browser(start_server(env={"SKILLERY_AUTH": "badges", "SKILLERY_PLUGINS_FOLDER": str(folder)}).url)
    page = browser.get("/login").text

    assert "Sign in with the &lt;Badge&gt; Office" in page
    assert 'name="token"' not in page
    assert finish(browser, "ann").headers["location"] == "/s/x"
    assert browser.who() == "ann"
    assert f"Max-Age={7 * 24 * 3600}" in attributes(finish(browser, "ann"), "skillery")
    assert finish(browser, "closed").status_code == 503
    assert finish(browser, "ann", state="x").status_code == 401
    finish(browser, "eve")
    assert browser.who() is None


def finish(browser: Browser, code: str, state: str = "") -> httpx.Response:
    """Begin a login at the office of badges, and return with a code."""
    begun = parse_qs(urlsplit(browser.get("/login/badges?next=/s/x").headers["location"]).query)
    assert begun["to"] == [f"{browser.url}/login/badges/callback"]
    return browser.http.get(begun["to"][0], params={"code": code, "state": state or begun["state"][0]})
