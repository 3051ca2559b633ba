"""All pages: headers, failures as pages, forged forms, cookies that only pages read, and servers without pages."""

from __future__ import annotations

import asyncio
import gzip
import re
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from skillery.http.exchanges import ClientGone
from skillery.web.catalogue import while_connected
from tests.conftest import ASKS_FOR_TOKENS, Server
from tests.support.browser import Browser, token_of
from tests.support.chromium import OpenPage

HTML = {"accept": "text/html,application/xhtml+xml"}
TEMPLATES = Path(__file__).parents[2] / "src" / "skillery" / "web" / "templates"
UNSAFE_ORIGINS = [
    {"origin": "https://evil.example"},
    {"origin": "null"},
    {"origin": "http://127.0.0.1:1"},
    {"origin": "http://evil.localhost"},
    {"sec-fetch-site": "cross-site"},
    {"sec-fetch-site": "same-site"},
    {},
]
FORBIDDEN_IN_TEMPLATES = re.compile(
    r"""\bstyle\s*=|<style|\son(?!e\s)\w+\s*=|hx-on|hx-vals|hx-confirm|hx-ext|data-hx|\|\s*safe\b|javascript:|autoescape"""
    r"""|hx-trigger="[^"]*\[""",
    re.IGNORECASE,
)


@pytest.fixture
def signed_in(tokens_sqlite: Server) -> Browser:
    token = token_of(tokens_sqlite, "webadmin", "admin")
    browser = Browser(tokens_sqlite.url)
    browser.http.headers.update(HTML)
    assert browser.sign_in(token).status_code == 303
    return browser


def test_templates_have_nothing_that_the_policy_forbids() -> None:
    found = {
        f"{one.name}: {match[0]}"
        for one in TEMPLATES.rglob("*.html")
        for match in FORBIDDEN_IN_TEMPLATES.finditer(one.read_text("utf-8"))
    }

    assert found == set()


def test_elements_with_htmx_attributes_have_the_nonce() -> None:
    for template in TEMPLATES.rglob("*.html"):
        for tag in re.findall(r"<[a-z][^<>]*\shx-(?:get|post)=[^<>]*>", template.read_text("utf-8")):
            assert 'hx-nonce="{{ nonce }}"' in tag, (template.name, tag)


def test_a_failure_is_a_page_for_browsers_and_json_for_programs(sqlite_server: Server) -> None:
    page = httpx.get(f"{sqlite_server.url}/no/such/page", headers=HTML)
    answer = httpx.get(f"{sqlite_server.url}/no/such/page", headers={"accept": "*/*"})

    assert (page.status_code, page.headers["content-type"]) == (404, "text/html; charset=utf-8")
    assert page.headers["x-request-id"] in page.text
    assert "<h1>Nothing here</h1>" in page.text
    assert answer.status_code == 404
    assert answer.json()["error"]["data"]["type"] == "not_found"


def test_pages_have_strict_content_security_policy_with_fresh_nonce(sqlite_server: Server) -> None:
    page = httpx.get(f"{sqlite_server.url}/none", headers=HTML)
    again = httpx.get(f"{sqlite_server.url}/none", headers=HTML)
    policy = page.headers["content-security-policy"]
    [nonce] = re.findall(r"script-src 'nonce-([^']+)'", policy)

    assert policy != again.headers["content-security-policy"]
    assert f'nonce="{nonce}"' in page.text
    for part in ("default-src 'none'", "frame-ancestors 'none'", "base-uri 'none'", "trusted-types htmx"):
        assert part in policy
    assert "unsafe" not in policy
    assert page.headers["cross-origin-opener-policy"] == "same-origin"


def test_static_files_are_kept_for_a_year_under_their_digest(sqlite_server: Server) -> None:
    page = httpx.get(f"{sqlite_server.url}/none", headers=HTML).text
    addresses = set(re.findall(r'"(/static/[^"]+)"', page))

    assert {address.rpartition("/")[2] for address in addresses} == {"style.css", "skillery.js"}
    for address in addresses:
        with httpx.stream("GET", sqlite_server.url + address, headers={"accept-encoding": "gzip"}) as small:
            raw = b"".join(small.iter_raw())
        plain = httpx.get(sqlite_server.url + address, headers={"accept-encoding": "identity"})
        assert gzip.decompress(raw) == plain.content
        assert "immutable" in plain.headers["cache-control"]
        assert plain.headers["x-content-type-options"] == "nosniff"
    assert httpx.get(f"{sqlite_server.url}/static/0000000000000000/style.css").status_code == 404
    assert httpx.get(f"{sqlite_server.url}/static/../secret").status_code == 404


@pytest.mark.asyncio(loop_scope="session")
async def test_work_for_a_client_that_has_gone_stops() -> None:
    steps: list[str] = []
    left = asyncio.Event()

    async def receive() -> dict[str, str]:
        await left.wait()
        return {"type": "http.disconnect"}

    async def work() -> None:
        left.set()
        await asyncio.sleep(60)  # is cancelled
        steps.append("the page is rendered")

    with pytest.raises(ClientGone):
        await while_connected(receive, work())
    assert steps == []


@pytest.mark.full
@pytest.mark.asyncio(loop_scope="session")
async def test_a_page_needs_three_requests(sqlite_server: Server, open_page: OpenPage) -> None:
    page = await open_page(sqlite_server, "/")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(urlsplit(request.url).path.rpartition("/")[2]))
    await page.goto(f"{sqlite_server.url}/?sort=name")
    await page.reload()

    assert set(asked) == {"", "style.css", "skillery.js"}
    icon = httpx.get(f"{sqlite_server.url}/favicon.ico")
    assert (icon.status_code, icon.headers["content-type"], icon.content[:4]) == (200, "image/x-icon", b"\0\0\1\0")
    assert httpx.post(f"{sqlite_server.url}/favicon.ico").status_code == 405


def test_a_first_visit_is_small(sqlite_server: Server) -> None:
    page = httpx.get(f"{sqlite_server.url}/", headers={**HTML, "accept-encoding": "gzip"})
    size = int(page.headers["content-length"])
    for address in set(re.findall(r'"(/static/[^"]+)"', page.text)):
        with httpx.stream("GET", sqlite_server.url + address, headers={"accept-encoding": "gzip"}) as answer:
            size += sum(map(len, answer.iter_raw()))

    assert size < 45_000


@pytest.mark.parametrize("origin", UNSAFE_ORIGINS)
@pytest.mark.full(after=4)
def test_other_origins_send_no_form(origin: dict[str, str], signed_in: Browser, sqlite_server: Server) -> None:
    """With a session and with `auth = "open"`. The form has a valid token."""
    fields = signed_in.fields("/account")
    refused = signed_in.http.post("/account", data={**fields, "theme": "dark"}, headers=origin)
    opened = Browser(sqlite_server.url)
    opened_fields = opened.fields("/account")
    also_refused = opened.http.post("/account", data={**opened_fields, "theme": "dark"}, headers=origin)

    assert (refused.status_code, also_refused.status_code) == (403, 403)
    assert "skillery-theme" not in refused.headers.get("set-cookie", "")
    assert "skillery-theme" not in also_refused.headers.get("set-cookie", "")


def test_a_form_belongs_to_its_session(signed_in: Browser, tokens_sqlite: Server) -> None:
    fields = signed_in.fields("/account")
    other = Browser(tokens_sqlite.url)
    other.http.headers.update(HTML)
    token = token_of(tokens_sqlite, "webother", "read")
    before = other.fields("/login")
    other.sign_in(token)

    for form_token in (fields["form_token"], before["form_token"], "", "x" * 65, fields["form_token"][::-1]):
        answer = other.post("/account", {"form_token": form_token, "theme": "dark"})
        assert answer.status_code == 403, form_token
    assert other.post("/account", {"theme": "dark"}).status_code == 403
    assert other.post("/account", {**other.fields("/account"), "theme": "dark"}).status_code == 303

    kept = other.fields("/account")
    other.sign_out()
    assert other.post("/account", {**kept, "theme": "light"}).status_code in {303, 401, 403}
    assert "skillery-theme=light" not in str(other.http.cookies)


def test_programs_never_sign_in_with_a_cookie(signed_in: Browser, tokens_sqlite: Server) -> None:
    body = {"jsonrpc": "2.0", "id": 1, "method": "list_skills", "params": {}}
    own = {"origin": tokens_sqlite.url}
    for method, path in [
        ("POST", "/rpc"),
        ("POST", "/mcp"),
        ("GET", "/tools"),
        ("GET", "/prompt"),
        ("POST", "/blobs"),
        ("POST", "/import"),
        ("GET", "/v1/skills"),
        ("GET", "/openrpc.json"),
        ("GET", "/metrics"),
        ("GET", "/skills/text.csv.profile/latest.zip"),
        ("GET", "/.well-known/agent-skills/index.json"),
    ]:
        answer = signed_in.http.request(method, path, headers=own, json=body if method == "POST" else None)
        assert answer.status_code == 401, path


def test_other_hosts_get_no_page(sqlite_server: Server) -> None:
    for path in ("/", "/account", "/login", "/s/text.csv.profile"):
        answer = httpx.get(f"{sqlite_server.url}{path}", headers={**HTML, "host": "evil.example"})
        assert (answer.status_code, "evil.example" in answer.text) == (403, True)


def test_visitor_is_redirected_to_login_with_return_address(tokens_sqlite: Server) -> None:
    visitor = Browser(tokens_sqlite.url)
    asked = visitor.http.get("/runs?skill=a.b", headers=HTML)
    by_htmx = visitor.http.get("/runs", headers={**HTML, "hx-request": "true"})

    assert (asked.status_code, asked.headers["location"]) == (303, "/login?next=%2Fruns%3Fskill%3Da.b")
    assert (by_htmx.status_code, by_htmx.headers["hx-redirect"]) == (401, "/login?next=%2Fruns")


def test_a_server_without_pages_keeps_the_login(start_server: Callable[..., Server]) -> None:
    server = start_server(env={**ASKS_FOR_TOKENS, "SKILLERY_WEB": "false"})

    assert httpx.get(f"{server.url}/login", headers=HTML).status_code == 200
    for path in ("/", "/s/text.csv.profile", "/runs", "/review", "/publish", "/account", "/admin", "/static/x/y"):
        answer = httpx.get(f"{server.url}{path}", headers=HTML)
        assert (answer.status_code, answer.headers["content-type"]) == (404, "application/json"), path


def test_numbers_follow_the_language_of_the_reader() -> None:
    from skillery.web.display import duration, language_of, number, size

    german, english = language_of("de-AT,de;q=0.9,en;q=0.8"), language_of("")
    assert (number(18204, german), number(18204, english)) == ("18.204", "18,204")
    assert (number(99.21, german, 1), number(99.21, english, 1)) == ("99,2", "99.2")
    assert (size(4_200_000, english), size(999, english), size(0, english)) == ("4.2\xa0MB", "999\xa0B", "0\xa0B")
    assert (duration(180, english), duration(4200, german)) == ("180\xa0ms", "4,2\xa0s")
    assert (duration(0, english), duration(0.3, english)) == ("0\xa0ms", "under 1\xa0ms")


def test_hidden_characters_are_boxes() -> None:
    from skillery.web.display import foreign, visible

    assert "U+202E" in visible("a\u202eb")
    assert "U+200B" in visible("a\u200bb")
    assert "U+E0041" in visible("a\U000e0041b")
    assert "U+001B" in visible("\x1b[31m")
    assert str(visible("<b>&\n\t")) == "&lt;b&gt;&amp;\n\t"
    assert "hidden-char" not in visible("نمی\u200cخواهم 👩\u200d💻 äöü")
    assert "hidden-char" in visible("pass\u200dword")
    assert "hidden-char" not in visible("⚠\ufe0f 1\ufe0f\u20e3 ❤\ufe0f\u200d🔥 🏃\u200d♂\ufe0f")
    assert "hidden-char" in visible("a\ufe0f")
    assert "U+E0121" in visible("😀\U000e0121")
    assert "U+00A0" in visible("a\xa0b", is_code=True)
    assert len(foreign("x" * 5000)) < 2400


def test_an_admin_has_every_scope_on_pages(org: Server, new_name: str) -> None:
    browser = Browser(org.url, accept="text/html", **{"x-who": f"{new_name};person;admin;"})

    assert [browser.get(path).status_code for path in ("/runs", "/review", "/publish")] == [200, 200, 200]
