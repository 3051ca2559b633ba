"""Pages of failed requests in a real browser: what they say, the way on, and their accessibility."""

from __future__ import annotations

import sqlite3
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from tests.conftest import Server, StartShared
from tests.support.browser import Browser, token_of
from tests.support.chromium import OpenPage, faults, problems

if TYPE_CHECKING:
    from playwright.async_api import Locator, Page, Response

pytestmark = pytest.mark.asyncio(loop_scope="session")
MOST_TRIES = 100


class Failing:
    """A server on which requests fail, and cookies of a reader who is signed in."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.reader = token_of(server, "reader", "read")
        self.cookies = self.signed_in(self.reader)
        self.broken = self.signed_in(token_of(server, "broken", "read"))

    def signed_in(self, token: str) -> dict[str, Any]:
        """Return the state of a browser that is signed in."""
        browser = Browser(self.server.url)
        assert browser.sign_in(token).status_code == 303
        cookie = {"name": "skillery", "value": browser.cookie(), "domain": "127.0.0.1", "path": "/", "expires": -1}
        return {"cookies": [{**cookie, "httpOnly": True, "secure": False, "sameSite": "Lax"}], "origins": []}

    @contextmanager
    def broken_token(self) -> Iterator[None]:
        """Break the row of a token, as a wrong hand at the database would."""
        self._set_scopes("broken")
        yield
        self._set_scopes('["read"]')

    def _set_scopes(self, text: str) -> None:
        with sqlite3.connect(self.server.home / "skillery.db", timeout=300) as database:
            changed = database.execute("UPDATE tokens SET scopes_json = ? WHERE name = 'broken'", (text,))
            assert changed.rowcount == 1
        database.close()


@pytest.fixture(scope="module")
def failing(shared_server: StartShared) -> Failing:
    few = {"SKILLERY_BACKENDS_AUTHENTICATOR_TOKENS_FAILURES_PER_MINUTE": "3"}
    return Failing(shared_server("failing", "sqlite", SKILLERY_AUTH="tokens", **few))


async def went_to(page: Page, address: str) -> Response:
    answer = await page.goto(address)
    assert answer is not None
    return answer


async def forbidden(page: Page, _: Failing) -> Response:
    return await went_to(page, "/review")


async def not_found(page: Page, _: Failing) -> Response:
    return await went_to(page, "/s/text.csv.profil")


async def too_large(page: Page, _: Failing) -> Response:
    await page.goto("/account")
    form = page.locator("form", has=page.locator("[name=theme]"))
    await form.evaluate(
        """one => { const field = document.createElement('textarea');
                    field.name = 'more'; field.hidden = true; field.value = 'x'.repeat(70000); one.append(field); }"""
    )
    return await answer_to(page, form.get_by_role("button").first)


async def answer_to(page: Page, button: Locator) -> Response:
    """Click the button of a form, and return the answer when its page is there."""
    async with page.expect_event("domcontentloaded"), page.expect_response(is_page) as waiting:
        await button.click()
    return await waiting.value


def is_page(answer: Response) -> bool:
    return answer.request.is_navigation_request()


async def too_many(page: Page, _: Failing) -> Response:
    for _number in range(MOST_TRIES):
        await page.goto("/login")
        await page.get_by_label("Token").fill("sky_wrong")
        answer = await answer_to(page, page.get_by_role("button", name="Sign in"))
        if answer.status == 429:
            return answer
    raise AssertionError("wrong tokens are never limited")


async def broken(page: Page, failing: Failing) -> Response:
    with failing.broken_token():
        for _ in range(MOST_TRIES):  # another process may see the change a second later
            answer = await went_to(page, "/account")
            if answer.status == 500:
                return answer
            await page.wait_for_timeout(50)
    raise AssertionError("the page of a broken token opens")


class Failure(NamedTuple):
    fail: Callable[[Page, Failing], Awaitable[Response]]
    heading: str
    says: str
    link: str = ""
    """The words of the link to the next step. Without a link, the page has the form for the next step."""
    address: str = ""


FAILURES = {
    403: Failure(forbidden, "You may not do this", "review", "What may I do?", "/account"),
    404: Failure(not_found, "Nothing here", "Did you mean ", "text.csv.profile", "/s/text.csv.profile"),
    413: Failure(too_large, "Too large", "Go back in your browser, and shorten the text.", "All skills", "/"),
    500: Failure(broken, "An error happened on the server", "If it fails again, send the number", "All skills", "/"),
    429: Failure(too_many, "Sign in", "Correct the token before you try again."),
}
"""429 is last, because it ends all logins for a time."""


@pytest.mark.full
@pytest.mark.parametrize("status", FAILURES)
async def test_a_page_of_a_failure_leads_on_and_has_no_fault(
    status: int, failing: Failing, open_page: OpenPage
) -> None:
    fail, heading, says, link, address = FAILURES[status]
    cookies = {429: None, 500: failing.broken}.get(status, failing.cookies)
    page = await open_page(failing.server, "/login", storage_state=cookies)
    answer = await fail(page, failing)
    text = await page.inner_text("main")

    assert answer.status == status
    assert await page.get_by_role("heading", level=1).inner_text() == heading
    assert f"Request {answer.headers['x-request-id']}" in text
    assert says in text
    assert "Traceback" not in text
    assert await faults(page) == []
    assert all(f"status of {status}" in one or "status of 401" in one for one in await problems(page))
    if link:
        await page.locator("main").get_by_role("link", name=link, exact=True).click()
        await page.wait_for_url(f"{failing.server.url}{address}")
        await page.get_by_role("heading", level=1).filter(has_not_text=heading).wait_for()
    else:
        await page.get_by_label("Token").fill(failing.reader)
        await page.get_by_role("button", name="Sign in").click()
        await page.wait_for_url(f"{failing.server.url}/")
