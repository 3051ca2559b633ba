"""The page of sign-in in a real browser: accessibility, its Content-Security-Policy, the keyboard, no JavaScript."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.conftest import Server
from tests.support.browser import token_of
from tests.support.chromium import OpenPage, check_axe, faults, layout_shift, long_tasks, overflow, problems
from tests.support.processes import eventually_async

if TYPE_CHECKING:
    from playwright.async_api import Page

SIGN_IN = "/login?next=/login"  # the page of a login shows the user afterwards

pytestmark = pytest.mark.asyncio(loop_scope="session")

with_and_without_javascript = pytest.mark.parametrize("javascript", [True, False], ids=["javascript", "no-javascript"])


@pytest.fixture
def token(tokens_sqlite: Server, new_name: str) -> str:
    """Return a new token of the identity `new_name`."""
    return token_of(tokens_sqlite, new_name, "read")


async def expect_signed_in(page: Page, name: str) -> None:
    await page.get_by_role("button", name="Sign out").first.wait_for()
    await page.get_by_text(name).first.wait_for()


async def expect_no_fault(page: Page) -> None:
    assert await faults(page) == []
    assert await problems(page) == []


@pytest.mark.full
async def test_the_page_has_no_fault(tokens_sqlite: Server, open_page: OpenPage) -> None:
    page = await open_page(tokens_sqlite, "/login")

    await expect_no_fault(page)


@pytest.mark.full
async def test_the_page_after_a_refused_token_has_no_fault(tokens_sqlite: Server, open_page: OpenPage) -> None:
    page = await open_page(tokens_sqlite, "/login")
    await page.get_by_label("Token").fill("sky_wrong")
    await page.get_by_role("button", name="Sign in").click()
    await page.get_by_role("alert").wait_for()

    [refused] = await problems(page)
    assert "401" in refused
    await expect_no_fault(page)


@pytest.mark.full
async def test_the_page_of_a_user_has_no_fault(
    tokens_sqlite: Server, open_page: OpenPage, token: str, new_name: str
) -> None:
    page = await open_page(tokens_sqlite, "/login", token=token)

    await expect_signed_in(page, new_name)
    await expect_no_fault(page)


@pytest.mark.full
@with_and_without_javascript
async def test_a_user_signs_in_and_out(
    tokens_sqlite: Server, open_page: OpenPage, token: str, new_name: str, javascript: bool
) -> None:
    page = await open_page(tokens_sqlite, SIGN_IN, javascript=javascript)
    await page.get_by_label("Token").fill(token)
    await page.get_by_role("button", name="Sign in").click()
    await expect_signed_in(page, new_name)
    await page.get_by_role("button", name="Sign out").first.click()

    await page.get_by_label("Token").wait_for()


@pytest.mark.full
@with_and_without_javascript
async def test_the_keyboard_alone_signs_in_and_out(
    tokens_sqlite: Server, open_page: OpenPage, token: str, new_name: str, javascript: bool
) -> None:
    page = await open_page(tokens_sqlite, SIGN_IN, javascript=javascript)
    await tab_to(page, "Token")
    await page.keyboard.type(token)
    await tab_to(page, "Sign in")
    await page.keyboard.press("Enter")
    await expect_signed_in(page, new_name)
    await tab_to(page, "Sign out")
    await page.keyboard.press("Enter")

    await page.get_by_label("Token").wait_for()


async def tab_to(page: Page, name: str) -> None:
    """Press Tab until the field or button with this name has the focus."""
    wanted = page.get_by_label(name, exact=True).or_(page.get_by_role("button", name=name, exact=True))
    await wanted.first.wait_for()
    for _ in range(30):
        if await wanted.first.evaluate("element => element === document.activeElement"):
            return
        await page.keyboard.press("Tab")
    raise AssertionError(f"Tab does not reach {name!r}")


# -- the checks themselves ---------------------------------------------------------------------------------------


@pytest.mark.full
async def test_the_checks_find_faults(tokens_sqlite: Server, open_page: OpenPage) -> None:
    page = await open_page(tokens_sqlite, "/login")
    await page.evaluate(
        """() => {
          const wide = document.createElement('img');
          wide.id = 'wide';
          wide.style.width = '3000px';
          wide.style.height = '300px';
          document.querySelector('main').prepend(wide);
          const dim = document.createElement('p');
          dim.id = 'dim';
          dim.textContent = 'text';
          dim.style = 'color-scheme: light dark; color: #767676; background: Canvas';
          document.querySelector('main').append(dim);
        }"""
    )

    assert any(line.startswith("img#wide ends at") for line in await overflow(page))
    violations = await check_axe(page)
    assert any(line.startswith("image-alt (critical): #wide:") for line in violations)
    assert any(line.startswith("color-contrast (serious): #dim:") for line in violations)
    assert await layout_shift(page) > 0
    assert await problems(page) == []

    await page.evaluate(
        """() => new Promise(done => setTimeout(() => {
          const end = performance.now() + 120;
          while (performance.now() < end);
          setTimeout(done);
        }))"""
    )
    assert max(await long_tasks(page)) >= 100
    await page.evaluate(
        """() => {
          const script = document.createElement('script');
          try { script.text = 'window.ran = 1'; } catch { console.error('not trusted'); }
          const image = document.createElement('img');
          image.src = 'http://elsewhere.example/x.png';
          document.body.append(image);
          setTimeout(() => { throw new Error('uncaught'); });
        }"""
    )
    kinds: set[str] = set()

    async def all_are_found() -> bool:
        kinds.update([line.split(":")[0] for line in await problems(page)])
        return {"console", "error", "policy"} <= kinds

    await eventually_async(all_are_found, problem=lambda: kinds)


@pytest.mark.full
async def test_no_other_host_is_reached(tokens_sqlite: Server, open_page: OpenPage) -> None:
    page = await open_page(tokens_sqlite, "/login")
    for address in ("http://elsewhere.example/", "http://192.0.2.1/"):
        with pytest.raises(Exception, match="ERR_NAME_NOT_RESOLVED"):
            await page.goto(address)

    found = await problems(page)
    # A set, because Chromium sometimes loads a failed page again.
    assert {line for line in found if line.startswith("foreign")} == {
        "foreign: GET http://elsewhere.example/",
        "foreign: GET http://192.0.2.1/",
    }
