"""Pages of administrators: hidden from others, tokens shown once, grants, the audit trail, and recent sign-ins."""

from __future__ import annotations

import re
import sqlite3

import httpx
import pytest

from tests.conftest import Rpc, Server
from tests.support.browser import Browser, token_of
from tests.support.chromium import OpenPage, check_axe, overflow

HTML = {"accept": "text/html"}
PAGES = ["/admin", *(f"/admin/{one}" for one in ("tokens", "secrets", "environments", "webhooks", "audit", "gc"))]


def browser_of(server: Server, name: str, *scopes: str) -> Browser:
    browser = Browser(server.url, **HTML)
    assert browser.sign_in(token_of(server, name, *scopes)).status_code == 303
    return browser


def same(answer: httpx.Response) -> str:
    """Return a page without its random parts and its own address."""
    text = re.sub(r'nonce="[^"]*"|value="[^"]*"|<code>[^<]*</code>', "", answer.text)
    return re.sub(r"/(admin[a-z/]*|unknown)", "", text)


def test_admins_see_all_pages_and_others_none(tokens_server: Server, new_name: str) -> None:
    admin = browser_of(tokens_server, f"{new_name}-admin", "admin")
    other = browser_of(tokens_server, new_name, "read", "run", "publish", "review")
    unknown = other.get("/unknown")
    form = other.fields("/account")
    for path in PAGES:
        assert admin.get(path).status_code == 200, path
        hidden = other.get(path)
        assert hidden.status_code == 404
        assert same(hidden) == same(unknown)
        if path not in {"/admin", "/admin/audit"}:
            assert other.post(path, {**form, "action": "create", "name": "x", "scope": "admin"}).status_code == 404
    assert 'href="/admin"' not in other.get("/").text


def test_a_token_is_shown_once_and_revoked(tokens_server: Server, new_name: str) -> None:
    admin = browser_of(tokens_server, f"{new_name}-admin", "admin")
    form = {**admin.fields("/admin/tokens"), "action": "create", "name": new_name, "scope": "read", "expires": "1d"}
    made = admin.post("/admin/tokens", form)
    token = re.search(r"sky_[A-Za-z0-9_-]+", made.text)
    assert token is not None
    assert made.headers["cache-control"] == "private, no-store"
    assert token[0] not in admin.get("/admin/tokens").text
    assert token[0] not in str(admin.http.cookies)
    user = Browser(tokens_server.url, **HTML)
    assert user.sign_in(token[0]).status_code == 303
    assert user.get("/account").status_code == 200
    number = re.search(rf"{new_name}</bdi>.*?<code>([^<]+)</code>", admin.get("/admin/tokens").text, re.S)
    assert number is not None
    gone = admin.post("/admin/tokens", {**admin.fields("/account"), "action": "revoke", "id": number[1]})

    assert gone.status_code == 303
    assert "is revoked" in admin.get("/admin/tokens").text
    assert user.get("/account").headers["location"].startswith("/login")


def test_a_wrong_token_form_keeps_its_input(tokens_sqlite: Server, new_name: str) -> None:
    admin = browser_of(tokens_sqlite, f"{new_name}-admin", "admin")
    form = {**admin.fields("/admin/tokens"), "action": "create", "name": new_name, "expires": "soon"}
    answer = admin.post("/admin/tokens", form)

    assert answer.status_code == 400
    assert f'value="{new_name}"' in answer.text
    assert 'role="alert"' in answer.text


def test_secrets_are_granted_and_never_shown(tokens_server: Server, new_name: str) -> None:
    admin = browser_of(tokens_server, f"{new_name}-admin", "admin")
    form = {**admin.fields("/account"), "secret": "SHOP_TOKEN", "grantee": f"{new_name}.*"}

    assert admin.post("/admin/secrets", {**form, "action": "grant"}).status_code == 303
    assert f"{new_name}.*" in admin.get("/admin/secrets").text
    assert admin.post("/admin/secrets", {**form, "action": "revoke"}).status_code == 303
    assert f">{new_name}.*<" not in admin.get("/admin/secrets").text
    assert admin.post("/admin/secrets", {**form, "secret": "<b>"}).status_code == 400


def test_the_audit_trail_has_filters(tokens_server: Server, new_name: str) -> None:
    admin = browser_of(tokens_server, f"{new_name}-admin", "admin")
    form = {**admin.fields("/account"), "secret": "X_TOKEN", "grantee": f"{new_name}.*", "action": "grant"}
    admin.post("/admin/secrets", form)

    assert "grant_secret" in admin.get(f"/admin/audit?identity={new_name}-admin&outcome=done&since=24h").text
    assert "No entry matches" in admin.get(f"/admin/audit?identity={new_name}-nobody").text
    assert 'role="alert"' in admin.get("/admin/audit?since=never&outcome=odd").text


def test_changes_need_a_recent_sign_in(tokens_sqlite: Server, new_name: str) -> None:
    token = token_of(tokens_sqlite, f"{new_name}-admin", "admin")
    admin = Browser(tokens_sqlite.url, **HTML)
    assert admin.sign_in(token).status_code == 303
    with sqlite3.connect(tokens_sqlite.home / "skillery.db", timeout=30) as database:
        changed = database.execute(
            "UPDATE web_sessions SET made_at = datetime(made_at, '-20 minutes') WHERE identity = ?",
            (f"{new_name}-admin",),
        )
        assert changed.rowcount == 1
    form = {**admin.fields("/account"), "action": "create", "name": new_name, "scope": "read"}
    answer = admin.post("/admin/tokens", form)

    assert answer.status_code == 403
    assert "needs a sign-in of the last 15 minutes" in answer.text
    assert f'<pre class="code wrap" tabindex="0" aria-label="name">{new_name}</pre>' in answer.text
    assert all(one["name"] != new_name for one in Rpc(tokens_sqlite.url, token)("list_tokens")["tokens"])
    kept = dict(re.findall(r'name="(kept|kept_for)" value="([^"]*)"', answer.text))
    kept["kept"] = kept["kept"].replace("&amp;", "&")
    signed_in = admin.post("/login", {**admin.fields("/account"), "token": token, **kept})
    assert "Nothing was sent yet" in signed_in.text
    assert admin.post("/admin/tokens", {**form, **admin.fields("/account")}).status_code == 200


@pytest.mark.asyncio(loop_scope="session")
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
async def test_the_pages_have_no_fault(
    tokens_sqlite: Server, open_page: OpenPage, new_name: str, width: int, dark: bool
) -> None:
    token = token_of(tokens_sqlite, f"{new_name}-admin", "admin")
    page = await open_page(tokens_sqlite, "/account", dark=dark, width=width, token=token)
    for path in ["/account", *PAGES]:
        await page.goto(path)

        assert await overflow(page) == [], path
        assert await check_axe(page) == [], path
