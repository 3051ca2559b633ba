"""Attacks on the pages as a whole: forged forms for all routes, GETs that change nothing, and objects of other users.

The table ADDRESSES has an address for each route, so that no route is left out. Logins at an identity provider are
attacked in plugins/skillery-oidc/tests/test_oidc_browser.py, and sessions in tests/api/test_browser_login.py.
"""

from __future__ import annotations

import hashlib
import re
import sqlite3
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from html.parser import HTMLParser
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple, cast
from urllib.parse import unquote

import httpx
import pytest

from skillery.web.pages_table import make_pages
from skillery.web.site import Assets, Site
from tests.conftest import Rpc, Server, manifest, skill_files
from tests.support.browser import Browser, token_of
from tests.support.chromium import OpenPage, problems
from tests.support.processes import eventually, eventually_async
from tests.web.test_publish import files_of, send

HTML = {"accept": "text/html"}
ADDRESSES: dict[str, str] = {
    "/": "/",
    "/login": "/login",
    "/logout": "/logout",
    "/login/{name}": "/login/oidc",
    "/login/{name}/callback": "/login/oidc/callback",
    "/static": "/static/none",
    "/favicon.ico": "/favicon.ico",
    "/s": "/s/{skill}@1.0.0",
    "/s/files": "/s/{skill}@1.0.0/files",
    "/s/file": "/s/{skill}@1.0.0/files/code/main.py",
    "/s/raw": "/s/{skill}@1.0.0/raw/code/main.py",
    "/s/frame": "/s/{skill}@1.0.0/frame/resources/b.html",
    "/s/examples": "/s/{skill}@1.0.0/examples/1/none",
    "/s/versions": "/s/{skill}/versions",
    "/s/diff": "/s/{skill}@1.1.0/diff/1.0.0",
    "/s/insight": "/s/{skill}/insight",
    "/s/try": "/s/{skill}@1.0.0/try",
    "/s/scripts": "/s/{skill}@1.0.0/scripts/code/main.py",
    "/review": "/review",
    "/review/waivers": "/review/waivers",
    "/review/version": "/review/{skill}@{waiting}",
    "/runs": "/runs",
    "/runs/new": "/runs/new",
    "/runs/run": "/runs/{run}",
    "/runs/events": "/runs/{run}/events",
    "/runs/parts": "/runs/{run}/parts/a.txt",
    "/runs/raw": "/runs/{run}/raw/a.txt",
    "/runs/compare": "/runs/{run}/compare/{run}",
    "/runs/files": "/runs/{run}/files.zip",
    "/runs/blobs": "/runs/{run}/blobs/{blob}",
    "/insight": "/insight",
    "/insight/failures": "/insight/failures",
    "/insight/use": "/insight/use",
    "/insight/reach": "/insight/reach",
    "/insight/searches": "/insight/searches",
    "/runs/frame": "/runs/{run}/frame/{page}",
    "/publish": "/publish",
    "/publish/upload": "{upload}",
    "/api": "/api",
    "/account": "/account",
    "/admin": "/admin",
    "/admin/tokens": "/admin/tokens",
    "/admin/secrets": "/admin/secrets",
    "/admin/quotas": "/admin/quotas",
    "/admin/plugins": "/admin/plugins",
    "/admin/storage": "/admin/storage",
    "/admin/environments": "/admin/environments",
    "/admin/webhooks": "/admin/webhooks",
    "/admin/audit": "/admin/audit",
    "/admin/incident": "/admin/incident",
}
CODE = """import os

def main(args):
    os.makedirs("/workspace/out", exist_ok=True)
    for name in ("a.txt", "b.html"):
        with open(f"/workspace/out/{name}", "w") as file:
            file.write("text")
    return {}
"""
CHANGING = {"servers", "audit", "audit_head", "web_sessions", "tokens", "exports", "catalogue"}
"""Tables that change while a server runs: heartbeats, refusals, last uses, facts about versions, recent usage."""
UNFINISHED = """
SELECT 1 FROM runs WHERE status = 'started' OR seal_batch NOT IN (SELECT batch FROM seals WHERE batch IS NOT NULL)
"""
FORM = "application/x-www-form-urlencoded"
BODIES = {
    FORM: b"form_token=%s&action=yank&reason=x&name=evil&scope=admin",
    "multipart/form-data; boundary=b": b'--b\r\ncontent-disposition: form-data; name="form_token"\r\n\r\n'
    b"%s\r\n--b--\r\n",
    "text/plain": b"form_token=%s&action=yank",
}
ORIGINS: list[dict[str, str]] = [
    {"origin": "https://evil.example"},
    {"origin": "null"},
    {"origin": "http://127.0.0.1:1"},
    {"origin": "http://evil.localhost"},
    {"sec-fetch-site": "cross-site"},
    {"sec-fetch-site": "same-site"},
    {},
]


class Made(NamedTuple):
    """Objects of one user, and a browser of this user."""

    browser: Browser
    token: str
    names: dict[str, str]

    def address(self, route: str) -> str:
        return ADDRESSES[route].format(**self.names)


def make(server: Server, name: str, token: str | None) -> Made:
    """Create a skill with three versions, of which 1.2.0 is a draft, a run with a file, and an upload."""
    rpc, browser = Rpc(server.url, token), Browser(server.url, **HTML)
    if token is not None:
        assert browser.sign_in(token).status_code == 303
    skill = f"{name}.greet"
    for version in ("1.0.0", "1.1.0", "1.2.0"):
        made = manifest(skill, version)
        files = [*skill_files(CODE), {"path": "resources/b.html", "content": "text"}]
        rpc("create_skill", manifest=made, skill_md="# Greet\n", files=files, submit=version != "1.2.0")
    run = rpc("execute_skill", name=skill, version="1.0.0", args={})
    upload = send(browser, files_of(f"{name}.other")).headers["location"]
    blob, page = (file["blob_id"] for file in run["files"])
    names = {"skill": skill, "run": run["run_id"], "blob": blob, "page": page, "upload": upload}
    names["waiting"] = "1.2.0"
    return Made(browser, token or "", names)


def all_routes() -> dict[str, bool]:
    """Return the name of each route of the pages, and whether it accepts forms."""
    site = cast("Any", Site)(**{**dict.fromkeys(Site._fields), "assets": Assets()})
    without_table = {"/", "/login", "/logout"}
    return {one.name: "POST" in one.methods or one.name in without_table for one in make_pages(site)}


UNSAFE = [name for name, is_unsafe in all_routes().items() if is_unsafe]


def rows_of(server: Server) -> dict[str, str]:
    """Return the hash of the rows of each table, except the tables that change by themselves.

    Wait first for the runs of earlier tests on the server, whose ends and seals change rows.
    """
    with sqlite3.connect(f"file:{server.home / 'skillery.db'}?mode=ro", uri=True, timeout=300) as database:
        eventually(lambda: not database.execute(UNFINISHED).fetchall())
        names = [one for (one,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return {
            name: hash_of(database.execute(f"SELECT * FROM {name}"))
            for name in names
            if name not in CHANGING and not name.startswith("sqlite_")
        }


def hash_of(rows: Iterable[object]) -> str:
    return hashlib.sha256(repr(sorted(map(repr, rows))).encode()).hexdigest()


def test_the_table_has_each_route() -> None:
    assert set(ADDRESSES) == set(all_routes())
    assert len(UNSAFE) > 15


# -- forged forms ------------------------------------------------------------------------------------------------


@pytest.mark.full
@pytest.mark.parametrize("auth", ["tokens", "open"])
def test_no_route_accepts_a_form_of_another_site(
    auth: str, tokens_sqlite: Server, sqlite_server: Server, new_name: str
) -> None:
    """With a session, and with `auth = "open"`. The form has a valid form token, as if another page had read it."""
    server = tokens_sqlite if auth == "tokens" else sqlite_server
    made = make(server, new_name, token_of(server, new_name, "admin") if auth == "tokens" else None)
    form_token = made.browser.fields("/account")["form_token"].encode()
    before = rows_of(server)
    for route in UNSAFE:
        for kind, body in BODIES.items():
            for origin in ORIGINS:
                headers = {"content-type": kind, **origin}
                answer = made.browser.http.post(made.address(route), content=body % form_token, headers=headers)
                is_absent = auth == "open" and route in {"/login", "/logout"} and "origin" not in origin
                assert answer.status_code == (404 if is_absent else 403), (route, kind, origin)
                assert "set-cookie" not in answer.headers, (route, kind, origin)

    assert rows_of(server) == before


@pytest.mark.full
def test_a_name_that_resolves_to_this_server_is_no_name_of_it(tokens_sqlite: Server, sqlite_server: Server) -> None:
    """DNS rebinding: the browser thinks that it talks to evil.example."""
    for server in (tokens_sqlite, sqlite_server):
        for host in ("evil.example", "evil.localhost", "localhost.evil.example", "127.0.0.1.evil.example"):
            headers = {**HTML, "host": host, "origin": f"http://{host}", "content-type": FORM}
            assert httpx.get(f"{server.url}/account", headers=headers).status_code == 403
            assert httpx.post(f"{server.url}/account", headers=headers, content=b"theme=dark").status_code == 403


@contextmanager
def evil_site(page: str) -> Iterator[str]:
    """Serve a page at another port of this machine. Browsers call that another origin of the same site."""

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("content-type", "text/html")
            self.end_headers()
            self.wfile.write(page.encode())

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Answer) as listening:
        threading.Thread(target=listening.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{listening.server_port}/"
        listening.shutdown()


@pytest.mark.full
@pytest.mark.asyncio(loop_scope="session")
@pytest.mark.parametrize("way", ["form", "sandboxed-frame", "fetch"])
async def test_a_page_of_another_port_changes_nothing_in_a_browser(
    way: str, tokens_sqlite: Server, open_page: OpenPage, new_name: str
) -> None:
    made = make(tokens_sqlite, new_name, token_of(tokens_sqlite, new_name, "admin"))
    target = tokens_sqlite.url + made.address("/s")
    fields = f'<input name="form_token" value="{made.browser.fields("/account")["form_token"]}">'
    fields += '<input name="action" value="yank"><input name="reason" value="evil">'
    form = f'<form id="f" method="post" action="{target}">{fields}</form><script>f.submit()</script>'
    pages = {
        "form": form,
        "sandboxed-frame": f"<iframe sandbox='allow-scripts allow-forms' srcdoc='{form}'></iframe>",
        "fetch": f"<script>fetch('{target}', {{method: 'POST', mode: 'no-cors', credentials: 'include', "
        "body: new URLSearchParams({action: 'yank', reason: 'evil'})})</script>",
    }
    with evil_site(pages[way]) as address:
        page = await open_page(tokens_sqlite, "/account", token=made.token)
        said: list[str] = []
        page.context.on("console", lambda message: said.append(message.text))
        await page.goto(address, wait_until="commit")
        await eventually_async(lambda: any("403" in text for text in said))
        await page.goto(f"{tokens_sqlite.url}/account")
        await problems(page)
    versions = Rpc(tokens_sqlite.url, made.token)("list_versions", name=made.names["skill"])["versions"]
    assert "yanked" not in {one["status"] for one in versions}


# -- framing and inline code -------------------------------------------------------------------------------------


class InlineCode(HTMLParser):
    """Collects the scripts, styles and event handlers that are written in a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if (tag == "script" and "src" not in dict(attrs)) or tag == "style":
            self.found.append(f"<{tag}>")
        for name, value in attrs:
            if name == "style" or name.startswith("on") or "javascript:" in (value or "").casefold():
                self.found.append(f"<{tag} {name}={value!r}>")


def test_the_check_for_inline_code_finds_it() -> None:
    code = "<script>1</script><style></style><a HREF='JavaScript:1'><b style='x'><i onload=1>"
    assert len(InlineCode(f"{code}<p title='&#39; onload=1'>onload=1 <script src='/a.js'></script>").found) == 5


@pytest.mark.parametrize("who", ["admin", "visitor"])
def test_no_answer_of_a_page_may_be_framed_or_has_inline_code(who: str, tokens_sqlite: Server, new_name: str) -> None:
    made = make(tokens_sqlite, new_name, token_of(tokens_sqlite, new_name, "admin"))
    browser = made.browser if who == "admin" else Browser(tokens_sqlite.url, **HTML)
    pages = 0
    for route in ADDRESSES:
        for answer in (browser.get(made.address(route)), browser.post(made.address(route), {"action": "none"})):
            if not answer.headers.get("content-type", "").startswith("text/html"):
                continue
            pages += 1
            assert answer.headers["x-content-type-options"] == "nosniff", route
            policy = answer.headers["content-security-policy"]
            assert "frame-ancestors 'none'" in policy, route
            assert "default-src 'none'" in policy, route
            assert "unsafe" not in policy, route
            assert InlineCode(answer.text).found == [], route
    assert pages > len(ADDRESSES)


@pytest.mark.full
def test_no_browser_guesses_the_type_of_an_answer(tokens_sqlite: Server, new_name: str) -> None:
    """Of pages, files, redirects and failures, for browsers and for programs."""
    made = make(tokens_sqlite, new_name, token_of(tokens_sqlite, new_name, "admin"))
    visitor, program = Browser(tokens_sqlite.url, **HTML), Rpc(tokens_sqlite.url, made.token).http
    addresses = [made.address(route) for route in ADDRESSES] + ["/none", *POSTED, *FETCHED, "/x/none", "/healthz"]
    found = set()
    for http in (made.browser.http, visitor.http, program):
        for address in addresses:
            for method in ("GET", "POST", "DELETE"):
                with http.stream(method, address) as answer:
                    found.add(answer.status_code)
                    assert answer.headers.get_list("x-content-type-options") == ["nosniff"], (method, address)
                    assert len(answer.headers.get_list("x-request-id")) == 1, (method, address)
    assert found >= {200, 303, 400, 401, 403, 404, 405, 415}


@pytest.mark.full
@pytest.mark.asyncio(loop_scope="session")
async def test_a_browser_shows_no_page_in_a_frame(tokens_sqlite: Server, open_page: OpenPage, new_name: str) -> None:
    made = make(tokens_sqlite, new_name, token_of(tokens_sqlite, new_name, "admin"))
    # A download leaves its frame empty.
    others = {"/runs/events", "/runs/files", "/static"}
    addresses = [made.address(route) for route in ADDRESSES if route not in others]
    frames = "".join(f'<iframe src="{tokens_sqlite.url}{address}"></iframe>' for address in addresses)
    page = await open_page(tokens_sqlite, "/account", token=made.token)
    with evil_site("this page may be framed") as framed, evil_site(f'{frames}<iframe src="{framed}"></iframe>') as evil:
        await page.goto(evil, wait_until="load")
        *inner, control = page.frames[1:]
        shown = {address: frame.url for address, frame in zip(addresses, inner, strict=True)}
        said = await problems(page)
        control_text = await control.inner_text("body")

    # The control shows that the browser would show a page that allows frames.
    assert control_text == "this page may be framed"
    assert shown.pop("/favicon.ico") == f"{tokens_sqlite.url}/favicon.ico"
    assert set(shown.values()) == {"chrome-error://chromewebdata/"}, shown
    blocked = [line for line in said if line.startswith("console:") and "frame-ancestors '" in line]
    assert len(blocked) == len(shown), said


# -- cookies and GETs --------------------------------------------------------------------------------------------


@pytest.mark.full
def test_each_get_called_twice_changes_no_row(tokens_sqlite: Server, new_name: str) -> None:
    made = make(tokens_sqlite, new_name, token_of(tokens_sqlite, new_name, "admin"))
    before = rows_of(tokens_sqlite)
    found = {}
    for route in ADDRESSES:
        for _ in range(2):
            found[route] = made.browser.get(made.address(route)).status_code

    after = rows_of(tokens_sqlite)
    assert {name for name in before if before[name] != after[name]} == set()
    others = {"/logout": 405, "/login/{name}": 404, "/login/{name}/callback": 404, "/static": 404, "/s/examples": 404}
    assert found == dict.fromkeys(ADDRESSES, 200) | others


POSTED = ["/rpc", "/mcp", "/blobs", "/import"]
FETCHED = ["/v1/skills", "/tools", "/openrpc.json", "/metrics"]


@pytest.mark.parametrize("path", [*POSTED, *FETCHED])
@pytest.mark.full(after=5)
def test_endpoints_of_programs_ignore_the_cookie(path: str, tokens_sqlite: Server, new_name: str) -> None:
    browser = Browser(tokens_sqlite.url)
    browser.sign_in(token_of(tokens_sqlite, new_name, "admin"))
    method = "POST" if path in POSTED else "GET"
    headers = {"origin": browser.url, "content-type": "application/json"}

    assert browser.http.request(method, path, headers=headers, content=b"{}").status_code == 401


@pytest.mark.full
@pytest.mark.asyncio(loop_scope="session")
async def test_scripts_see_no_cookie_and_back_shows_nothing_after_sign_out(
    tokens_sqlite: Server, open_page: OpenPage, new_name: str
) -> None:
    page = await open_page(tokens_sqlite, "/account", token=token_of(tokens_sqlite, new_name, "read"))
    assert await page.evaluate("document.cookie") == ""
    assert new_name in await page.inner_text("main")
    await page.get_by_role("button", name="Sign out").click()
    await page.get_by_label("Token").wait_for()
    await page.go_back()
    await page.get_by_label("Token").wait_for()

    assert new_name not in await page.content()


def test_a_user_ends_all_other_sessions(tokens_server: Server, new_name: str) -> None:
    token = token_of(tokens_server, new_name, "read")
    mine, lost, other = (Browser(tokens_server.url, **HTML) for _ in range(3))
    for browser in (mine, lost):
        browser.sign_in(token)
    other.sign_in(token_of(tokens_server, f"{new_name}-other", "read"))
    assert mine.get("/account").text.count("<td>tokens") + mine.get("/account").text.count(">tokens</bdi>") == 2
    ended = mine.post("/account", {**mine.fields("/account"), "action": "end_others"})

    assert ended.status_code == 303
    assert "One other browser is signed out" in mine.get("/account").text
    assert (lost.who(), mine.who(), other.who()) == (None, new_name, f"{new_name}-other")


# -- objects of other users --------------------------------------------------------------------------------------


@pytest.mark.full
def test_objects_of_others_are_answered_as_unknown_names(tokens_sqlite: Server, new_name: str) -> None:
    """A private skill, a draft, a run, a blob and an upload. The answers are equal byte for byte."""
    made = make(tokens_sqlite, new_name, token_of(tokens_sqlite, new_name, "admin"))
    rpc = Rpc(tokens_sqlite.url, made.token)
    other = Browser(tokens_sqlite.url, **HTML)
    grants = [f"{new_name}x.*"]
    token = token_of(tokens_sqlite, f"{new_name}-other", "read", "run", "publish", namespaces=grants)
    assert other.sign_in(token).status_code == 303
    unknown = {
        "skill": f"{new_name}.none0",
        "run": "run_unknown",
        "blob": "blob:unknown",
        "upload": "/publish/blob:unknown",
    }
    draft = f"/s/{made.names['skill']}@1.2.0"
    assert made.browser.get(draft).status_code == 200
    for tail in ("", "/files", "/files/code/main.py", "/raw/code/main.py", "/try"):
        same(other, draft + tail, f"/s/{made.names['skill']}@1.2.9{tail}", {"1.2.0": "1.2.9"})
    same(
        other,
        f"/s/{made.names['skill']}@1.1.0/diff/1.2.0",
        f"/s/{made.names['skill']}@1.1.0/diff/1.2.9",
        {"1.2.0": "1.2.9"},
    )
    assert "1.2.0" not in other.get(f"/s/{made.names['skill']}/versions").text

    rpc("set_visibility", name=made.names["skill"], visibility="private")
    renamed = {made.names[key]: unknown[key] for key in unknown}
    for route, address in ADDRESSES.items():
        if "{" in address and route not in {"/review/version"}:
            same(other, made.address(route), address.format(**made.names | unknown), renamed)
    reviewer = Browser(tokens_sqlite.url, **HTML)
    token = token_of(tokens_sqlite, f"{new_name}-reviewer", "read", "review", namespaces=grants)
    assert reviewer.sign_in(token).status_code == 303
    waiting = made.address("/review/version")
    same(reviewer, waiting, waiting.replace(made.names["skill"], unknown["skill"]), renamed)
    for query in ("?q=greet", f"?ns={new_name}", f"?q={made.names['skill']}"):
        text = other.get(f"/{query}").text
        assert f"/s/{made.names['skill']}" not in text
    for route in ("/s", "/s/try", "/review/version", "/runs/run", "/publish/upload"):
        form = {**other.fields("/account"), "action": "yank", "reason": "x"}
        assert other.post(made.address(route), form).status_code in {403, 404}, route


def same(browser: Browser, hidden: str, unknown: str, renamed: dict[str, str]) -> None:
    """Check that the answers to both addresses are 404 and differ only in the name that was asked for."""
    one, two = browser.get(hidden), browser.get(unknown)
    assert (one.status_code, two.status_code) == (404, 404), (hidden, one.status_code, two.status_code)
    text = constant(one.text)
    # Names like the one that was asked for differ with it. The hidden skill is not among them.
    assert not any(f'<a href="/s/{name}' in one.text for name in renamed)
    for name, other in renamed.items():
        text = text.replace(unquote(name.removeprefix("/publish/")), other.removeprefix("/publish/"))
    assert text == constant(two.text), hidden


def constant(text: str) -> str:
    """Return a page without its nonce, form token, request id and names of similar skills."""
    similar = r"<p>(?:Did you mean .*?|Check the name, or search for the skill\.)</p>"
    return re.sub(rf'nonce="[^"]*"|name="form_token" value="[^"]*"|Request <code>[^<]*</code>|{similar}', "", text)


# -- roles -------------------------------------------------------------------------------------------------------

ROLES = {
    "reader": ["read"],
    "runner": ["read", "run"],
    "publisher": ["read", "publish"],
    "reviewer": ["read", "review"],
    "admin": ["admin"],
}
MENUS = {
    "reader": {"/"},
    "runner": {"/", "/runs"},
    "reviewer": {"/", "/review"},
    "publisher": {"/", "/publish", "/insight"},
    "admin": {"/", "/runs", "/review", "/publish", "/insight", "/admin"},
}
"""The links of the menu that each role sees."""
ACTIONS: dict[str, tuple[str, str, dict[str, str], set[str]]] = {
    "yank": ("/s", "Yank 1.0.0", {"action": "yank", "reason": "x"}, {"publisher", "admin"}),
    "deprecate": ("/s", "Deprecate ", {"action": "deprecate", "message": "x"}, {"publisher", "admin"}),
    "label": ("/s", 'value="set_label"', {"action": "set_label", "label": "stable"}, {"publisher", "admin"}),
    "run": ("/s/try", ">Run ", {"key": "k"}, {"runner", "admin"}),
    "review": ("/review/version", "Approve ", {"action": "approve"}, {"reviewer", "admin"}),
    "publish": ("/publish", "data-upload", {}, {"publisher", "admin"}),
    "token": ("/admin/tokens", "Create the token", {"name": "evil", "scope": "admin"}, {"admin"}),
    "secret": ("/admin/secrets", "Grant the secret", {"secret": "X", "grantee": "a.b"}, {"admin"}),
    "garbage": ("/admin/storage", "Collect the garbage now", {}, {"admin"}),
}


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.full(after=1)
def test_roles_see_and_submit_only_permitted_forms(role: str, tokens_sqlite: Server, new_name: str) -> None:
    made = make(tokens_sqlite, new_name, token_of(tokens_sqlite, new_name, "admin"))
    bot = token_of(tokens_sqlite, f"{new_name}-bot", "publish", namespaces=[f"{new_name}.*"], is_agent=True)
    made.names["waiting"] = "1.3.0"
    files = skill_files(CODE)
    version = manifest(made.names["skill"], "1.3.0")
    Rpc(tokens_sqlite.url, bot)("create_skill", manifest=version, skill_md="# Greet\n", files=files)
    before = rows_of(tokens_sqlite)
    browser = Browser(tokens_sqlite.url, **HTML)
    grants = [f"{new_name}.*"] if role == "publisher" else []
    token = token_of(tokens_sqlite, f"{new_name}-{role}", *ROLES[role], namespaces=grants)
    assert browser.sign_in(token).status_code == 303
    for action, (route, button, fields, allowed) in ACTIONS.items():
        page = browser.get(made.address(route))
        main = page.text.partition("<main")[2]
        assert (page.status_code == 200 and button in main) is (role in allowed), (role, action, page.status_code)
        if role not in allowed:
            form = {**browser.fields("/account"), **fields}
            assert browser.post(made.address(route), form).status_code in {403, 404}, (role, action)
    menu = re.findall(r'<li><a href="(/[a-z]*)"', browser.get("/account").text.partition("</nav>")[0])
    assert set(menu) == MENUS[role]

    assert {name for name, rows in rows_of(tokens_sqlite).items() if rows != before[name]} == set()
