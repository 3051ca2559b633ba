"""A session ends while the user types: nothing is done, and the text is kept, with and without JavaScript."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, quote

import pytest

from skillery.web.visits import MOST_KEPT_BYTES
from tests.conftest import Rpc, Server, publisher
from tests.support.browser import Browser, token_of
from tests.support.chromium import OpenPage, faults, problems

if TYPE_CHECKING:
    from playwright.async_api import Page

HTML = {"accept": "text/html"}
# Chromium reports the status of the page, and sometimes that the server has no /favicon.ico.
EXPECTED = re.compile(r"status of 40[14]")
WORDS = 'leaks <b>rows</b> & "more"\'><img src=x onerror=window.__pwned=1>\nsecond line'
with_and_without_javascript = pytest.mark.parametrize("javascript", [True, False], ids=["javascript", "no-javascript"])
in_browser = pytest.mark.asyncio(loop_scope="session")


@pytest.fixture
def token(tokens_sqlite: Server, new_name: str) -> str:
    return token_of(tokens_sqlite, new_name, "read", "run", "publish", namespaces=[f"{new_name}.*"])


@pytest.fixture
def skill(tokens_sqlite: Server, token: str, new_name: str) -> str:
    """Return the page of a skill that the user may change."""
    name = f"{new_name}.greet"
    publisher(Rpc(tokens_sqlite.url, token))(name, inputs={"text": {"type": "string", "description": "A text."}})
    return f"/s/{name}@1.0.0"


@pytest.fixture
def browser(tokens_sqlite: Server, token: str) -> Browser:
    browser = Browser(tokens_sqlite.url, **HTML)
    assert browser.sign_in(token).status_code == 303
    return browser


def is_yanked(server: Server, token: str, skill: str) -> bool:
    name, _, version = skill.removeprefix("/s/").partition("@")
    [one] = Rpc(server.url, token)("list_versions", name=name)["versions"]
    assert one["version"] == version
    return bool(one["status"] == "yanked")


def test_the_text_is_next_to_the_login_and_nothing_is_done(
    tokens_sqlite: Server, browser: Browser, token: str, skill: str
) -> None:
    form = {**browser.fields(skill), "action": "yank", "reason": WORDS}
    browser.sign_out()
    answer = browser.post(skill, form, referer=tokens_sqlite.url + skill)

    assert answer.status_code == 401
    assert "Your session has ended" in answer.text
    assert "leaks &lt;b&gt;rows&lt;/b&gt; &amp; " in answer.text
    assert f'name="next" value="{skill}"' in answer.text
    assert answer.headers["cache-control"] == "private, no-store"
    assert not is_yanked(tokens_sqlite, token, skill)


def test_the_text_is_sent_after_the_login(tokens_sqlite: Server, browser: Browser, token: str, skill: str) -> None:
    form = {**browser.fields(skill), "action": "yank", "reason": WORDS}
    browser.sign_out()
    lost = browser.post(skill, form)
    fields = {"form_token": form["form_token"], "next": "", "kept_for": skill, "kept": kept_of(lost.text)}
    refused = browser.post("/login", {**fields, **browser.fields(), "token": "sky_wrong"})
    assert refused.status_code == 401
    assert kept_of(refused.text) == fields["kept"]

    signed_in = browser.post("/login", {**fields, **browser.fields(), "token": token})

    assert signed_in.status_code == 200
    assert not is_yanked(tokens_sqlite, token, skill)
    again = dict(re.findall(r'<input type="hidden" name="([a-z_]+)" value="([^"]*)">', signed_in.text))
    assert (again["action"], len(again["form_token"])) == ("yank", len(form["form_token"]))
    sent = browser.post(skill, {"form_token": again["form_token"], "action": "yank", "reason": WORDS})
    assert sent.status_code == 303
    assert is_yanked(tokens_sqlite, token, skill)


def kept_of(page: str) -> str:
    [kept] = re.findall(r'name="kept" value="([^"]*)"', page)
    text: str = kept.replace("&amp;", "&")
    assert ("reason", WORDS) in parse_qsl(text)
    return text


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://127.0.0.1:1"])
def test_a_form_of_another_origin_is_not_kept(tokens_sqlite: Server, skill: str, origin: str) -> None:
    visitor = Browser(tokens_sqlite.url, **HTML)
    answer = visitor.post(skill, {"action": "yank", "reason": WORDS}, origin=origin)

    assert answer.status_code == 403
    assert "leaks" not in answer.text


def test_a_login_keeps_no_form_for_another_host(tokens_sqlite: Server, token: str) -> None:
    for address in ("//evil.example/x", "https://evil.example/", "/\\evil.example", "javascript:alert(1)"):
        visitor = Browser(tokens_sqlite.url, **HTML)
        answer = visitor.post("/login", {**visitor.fields(), "token": token, "kept_for": address, "kept": "a=1"})
        assert (answer.status_code, answer.headers.get("location")) == (303, "/")


def test_a_large_form_is_not_kept(browser: Browser, skill: str) -> None:
    form = {**browser.fields(skill), "reason": "x" * MOST_KEPT_BYTES}
    browser.sign_out()
    answer = browser.post(skill, form)

    assert answer.status_code == 401
    assert "too large to be kept" in answer.text
    assert len(answer.content) < 20_000


def test_a_form_with_files_keeps_its_texts(browser: Browser, skill: str) -> None:
    fields = browser.fields(f"{skill}/try")
    browser.sign_out()
    parts: dict[str, Any] = {name: (None, value) for name, value in {**fields, "arg-text": WORDS}.items()}
    files = {**parts, "x-upload": ("a.bin", b"BINARY", "application/octet-stream")}
    answer = browser.http.post(f"{skill}/try", files=files, headers={"origin": browser.url})

    assert answer.status_code == 401
    assert "leaks &lt;b&gt;rows" in answer.text
    assert "BINARY" not in answer.text


def test_a_form_of_an_earlier_session_can_be_sent_again(
    tokens_sqlite: Server, browser: Browser, token: str, skill: str
) -> None:
    form = {**browser.fields(skill), "action": "yank", "reason": WORDS}
    browser.sign_out()
    browser.sign_in(token)
    answer = browser.post(skill, form)

    assert answer.status_code == 403
    assert "Nothing was sent yet" in answer.text
    assert "leaks &lt;b&gt;rows" in answer.text
    assert not is_yanked(tokens_sqlite, token, skill)


def test_htmx_is_led_to_the_login(browser: Browser, skill: str, tokens_sqlite: Server) -> None:
    form = {**browser.fields(skill), "action": "yank", "reason": WORDS}
    browser.sign_out()
    answer = browser.post(skill, form, **{"hx-request": "true", "referer": tokens_sqlite.url + skill})

    assert (answer.status_code, answer.headers["hx-redirect"]) == (401, f"/login?next={quote(skill, safe='')}")


# -- in a browser ------------------------------------------------------------------------------------------------


async def type_and_lose(page: Page) -> None:
    """Type a reason on the page of a skill, end the session, and send the form."""
    await page.get_by_text("Yank 1.0.0").first.click()
    await page.get_by_label("Reason").first.fill(WORDS)
    await page.context.clear_cookies()
    await page.get_by_role("button", name="Yank 1.0.0").click()
    await page.get_by_label("Token").wait_for()


async def sign_in_again(page: Page, token: str) -> None:
    await page.get_by_label("Token").fill(token)
    await page.get_by_role("button", name="Sign in").click()


@pytest.mark.full
@in_browser
@with_and_without_javascript
async def test_a_user_signs_in_again_and_sends_the_text(
    tokens_sqlite: Server, open_page: OpenPage, token: str, skill: str, javascript: bool
) -> None:
    page = await open_page(tokens_sqlite, skill, token=token, javascript=javascript)
    await type_and_lose(page)
    assert (
        await page.get_by_role("alert").inner_text() == "Your session has ended. Nothing was sent. Sign in to continue."
    )
    assert WORDS in await page.locator(".unsent").inner_text()
    assert await page.locator(".unsent img, .unsent b").count() == 0
    await sign_in_again(page, token)
    if javascript:
        await page.get_by_text("Your text is back").wait_for()
        assert page.url == tokens_sqlite.url + skill
        assert (await page.get_by_label("Reason").first.input_value()).split() == WORDS.split()
        await page.get_by_role("button", name="Yank 1.0.0").click()
    else:
        assert WORDS in await page.locator(".unsent").inner_text()
        await page.get_by_role("button", name="Send the form").click()
    await page.get_by_role("status").filter(has_text="yanked").wait_for()

    assert "onerror=window.__pwned=1" in await page.inner_text("main")
    if javascript:
        assert await page.evaluate("window.__pwned") is None
    assert is_yanked(tokens_sqlite, token, skill)
    assert [one for one in await problems(page) if not EXPECTED.search(one)] == []


@pytest.mark.full
@in_browser
async def test_text_comes_back_only_to_its_user(
    tokens_sqlite: Server, open_page: OpenPage, token: str, skill: str, new_name: str
) -> None:
    page = await open_page(tokens_sqlite, skill, token=token)
    await type_and_lose(page)
    await sign_in_again(page, token_of(tokens_sqlite, f"{new_name}-other", "admin"))
    await page.get_by_role("heading", level=1).filter(has_text="greet").wait_for()

    assert await page.get_by_text("Your text is back").count() == 0
    assert await page.evaluate("sessionStorage.getItem('unsent')") is None
    assert [one for one in await problems(page) if not EXPECTED.search(one)] == []


@pytest.mark.full
@in_browser
async def test_the_page_of_a_lost_session_has_no_fault(
    tokens_sqlite: Server, open_page: OpenPage, token: str, skill: str
) -> None:
    page = await open_page(tokens_sqlite, skill, token=token)
    await type_and_lose(page)

    assert await faults(page) == []
    assert [one for one in await problems(page) if not EXPECTED.search(one)] == []
