"""A real Chromium for the tests of web pages, driven by Playwright: `open_page`, and checks of an open page.

    pytestmark = pytest.mark.asyncio(loop_scope="session")

    async def test_…(tokens_sqlite: Server, open_page: OpenPage) -> None:
        page = await open_page(tokens_sqlite, "/login", width=390)
        assert await check_axe(page) == []

Playwright belongs to one event loop, so each test with a page has this mark. The synchronous Playwright would break
all later asynchronous tests of the same process.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, Protocol
from urllib.parse import urlsplit

import pytest
import pytest_asyncio
from playwright.async_api import Error as PlaywrightError

from tests.support.processes import PATIENCE_SECONDS

if TYPE_CHECKING:
    from playwright.async_api import Browser, BrowserContext, ConsoleMessage, Page, Request, WebError

    from tests.conftest import Server

TOOLS = Path(__file__).parents[2] / ".tools"
CHROMIUM = TOOLS / "headless" / "chromium"
AXE = TOOLS / "axe" / "node_modules" / "axe-core" / "axe.min.js"
HEIGHT, WIDE, WIDTHS = 800, 1000, (390, 1280)
PATIENCE = PATIENCE_SECONDS * 1000
"""Milliseconds."""
COLOUR_RULES = ("color-contrast", "link-in-text-block")
RULES = ("wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice")
# Only names of this machine resolve, so that no page of a test can reach the network.
_RESOLVER = "MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE [::1], EXCLUDE localhost, EXCLUDE *.localhost"
_REPORT = "__reportViolation"  # _WATCH calls it

# Runs in each document before its own scripts.
_WATCH = """
(() => {
  document.addEventListener('securitypolicyviolation', event => window.__reportViolation(
    `${event.effectiveDirective} blocked ${event.blockedURI || 'inline'} ${event.sample}`.trim()));
  const seen = {shift: 0, tasks: [], observers: []};
  Object.defineProperty(window, '__seen', {value: seen});
  const observe = (type, take) => {
    const observer = new PerformanceObserver(list => list.getEntries().forEach(take));
    observer.observe({type, buffered: true});
    seen.observers.push(() => observer.takeRecords().forEach(take));
  };
  observe('layout-shift', entry => { if (!entry.hadRecentInput) seen.shift += entry.value; });
  observe('longtask', entry => seen.tasks.push(entry.duration));
})();
"""

_SEEN = """
async name => {
  await document.fonts.ready;
  await new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)));
  __seen.observers.forEach(take => take());
  return __seen[name];
}
"""

_AXE = """
async runOnly => {
  await new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)));
  document.getAnimations().forEach(animation => animation.finish());  // a new colour scheme fades in
  // No frame has axe, and a message to the frame of a foreign page would be an error on the console.
  const found = await axe.run(document, {runOnly, iframes: false, resultTypes: ['violations']});
  return found.violations.flatMap(rule => rule.nodes.map(node =>
    `${rule.id} (${rule.impact}): ${node.target.join(' ')}: ` +
    `${(node.failureSummary || rule.help).replace(/\\s+/g, ' ')}`));
}
"""

_OVERFLOW = """
() => {
  const width = document.documentElement.clientWidth;
  const scrolls = element => {
    for (let above = element.parentElement; above && above !== document.body; above = above.parentElement)
      if (getComputedStyle(above).overflowX !== 'visible') return true;
    return false;
  };
  const name = element => element.tagName.toLowerCase() + (element.id ? '#' + element.id : '')
    + [...element.classList].map(one => '.' + one).join('');
  const found = [...document.body.querySelectorAll('*')]
    .filter(element => element.getBoundingClientRect().right > width + 1 && !scrolls(element))
    .map(element => `${name(element)} ends at ${Math.round(element.getBoundingClientRect().right)} px of ${width} px`);
  const whole = document.documentElement.scrollWidth;
  return found.length || whole <= width ? found : [`the page is ${whole} px wide, the window ${width} px`];
}
"""

# A range also measures the text of closed details, which nobody sees.
_SQUEEZED = """
() => [...document.querySelectorAll('td')].flatMap(cell => {
  const range = document.createRange(), boxes = [], texts = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT);
  while (texts.nextNode())
    if (texts.currentNode.parentElement.checkVisibility()) {
      range.selectNode(texts.currentNode);
      boxes.push(...range.getClientRects());
    }
  const width = Math.max(...boxes.map(box => box.right)) - Math.min(...boxes.map(box => box.left));
  const height = Math.max(...boxes.map(box => box.bottom)) - Math.min(...boxes.map(box => box.top));
  return width < 80 && height > 130 ? [`${Math.round(width)} x ${Math.round(height)} px: ${cell.innerText}`] : [];
})
"""


class OpenPage(Protocol):
    """The fixture `open_page`. See `open_page` below."""

    def __call__(
        self,
        server: Server,
        path: str,
        *,
        width: int = 1280,
        javascript: bool = True,
        token: str | None = None,
        **more: Any,
    ) -> Awaitable[Page]: ...


class _Visit:
    """Problems of the pages of one context."""

    def __init__(self, context: BrowserContext, host: str) -> None:
        self.context = context
        self.host = host
        self.problems: list[str] = []

    async def watch(self, *, javascript: bool) -> None:
        self.context.on("console", self._console)
        self.context.on("weberror", self._error)
        self.context.on("request", self._request)
        self.context.on("requestfailed", self._failed)
        if javascript:
            await self.context.expose_binding(_REPORT, self._violation)
            await self.context.add_init_script(_WATCH)

    def _console(self, message: ConsoleMessage) -> None:
        if urlsplit(message.location["url"]).path == "/favicon.ico":
            return  # the first page of a browser without JavaScript makes it ask for an icon
        if "/frame/" in message.text and message.text.startswith("Blocked script execution"):
            return  # the sandbox of a foreign page
        if message.type in {"error", "warning"}:
            self.problems.append(f"console: {message.text}")

    def _error(self, error: WebError) -> None:
        self.problems.append(f"error: {error.error}")

    def _violation(self, _source: Any, text: str) -> None:
        self.problems.append(f"policy: {text}")

    def _request(self, request: Request) -> None:
        parts = urlsplit(request.url)
        if parts.scheme in {"http", "https", "ws", "wss"} and parts.netloc != self.host:
            self.problems.append(f"foreign: {request.method} {request.url}")

    def _failed(self, request: Request) -> None:
        if request.failure == "net::ERR_ABORTED":
            return  # the test has opened another page
        self.problems.append(f"failed: {request.method} {request.url}: {request.failure}")


_visits: dict[BrowserContext, _Visit] = {}


def without_tool(reason: str) -> NoReturn:
    """Skip the test, because a tool that `make test` installs is missing. In CI, where none may be missing, fail."""
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def chromium() -> AsyncIterator[Browser]:
    """Yield the browser of this process. It starts at its first use."""
    if not CHROMIUM.exists() or not AXE.exists():
        without_tool("there is no browser for the tests: `make test` installs Chromium and axe-core into .tools")
    from playwright.async_api import async_playwright, expect

    expect.set_options(timeout=PATIENCE)  # set_default_timeout of a context leaves out expectations
    async with async_playwright() as playwright:
        arguments = [f"--host-resolver-rules={_RESOLVER}"]
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=arguments, timeout=PATIENCE)
        yield browser
        await browser.close()


@pytest_asyncio.fixture(loop_scope="session")
async def open_page(chromium: Browser) -> AsyncIterator[OpenPage]:
    """Yield `open_page(server, path)`, which opens a page of a server and returns it when it is loaded.

    Each call is another visitor, with cookies of its own; `page.context.new_page()` is another tab of the same visitor.
    With `token`, the visitor signs in first. `more` are options of Playwright's `new_context`, for example `locale`.
    The fixture fails after the test if a page had problems that the test has not taken with `problems(page)`.
    """
    mine: list[_Visit] = []
    async with AsyncExitStack() as stack:

        async def open_one(
            server: Server,
            path: str,
            *,
            width: int = 1280,
            javascript: bool = True,
            token: str | None = None,
            **more: Any,
        ) -> Page:
            context = await chromium.new_context(
                **{
                    "base_url": server.url,
                    "color_scheme": "light",
                    "viewport": {"width": width, "height": HEIGHT},
                    "java_script_enabled": javascript,
                    "locale": "en-US",
                    "timezone_id": "UTC",
                    **more,
                }
            )
            stack.push_async_callback(context.close)
            context.set_default_timeout(PATIENCE)
            visit = _visits[context] = _Visit(context, urlsplit(server.url).netloc)
            mine.append(visit)
            await visit.watch(javascript=javascript)
            if token is not None:
                await sign_in(context, server, token)
            page = await context.new_page()
            await page.goto(path)
            return page

        yield open_one
        left = [text for visit in mine for text in await _taken(visit)]
        for visit in mine:
            del _visits[visit.context]
    assert left == [], "the pages had problems: take expected ones with problems(page)"


async def sign_in(context: BrowserContext, server: Server, token: str) -> None:
    """Sign in with a token by the form at /login, with the cookies of the context, but without showing the page."""
    from tests.support.browser import hidden_fields

    page = await context.request.get(f"{server.url}/login")
    fields: dict[str, str | float | bool] = {**hidden_fields(await page.text()), "token": token}
    signed_in = await context.request.post(
        f"{server.url}/login", form=fields, headers={"origin": server.url}, max_redirects=0
    )
    assert signed_in.status == 303


async def problems(page: Page) -> list[str]:
    """Return and forget the problems of all pages of this visitor since the last call.

    A problem begins with its kind: `console:` (errors and warnings), `error:` (an uncaught exception), `policy:` (a
    violation of the Content-Security-Policy), `failed:` (a request without an answer) or `foreign:` (a request to
    another host).
    """
    return await _taken(_visits[page.context])


async def _taken(visit: _Visit) -> list[str]:
    for page in visit.context.pages:
        await _arrived(page)
    found, visit.problems = visit.problems, []
    return found


async def _arrived(page: Page) -> None:
    """Await an answer of the page. Events arrive in order: those before the answer have arrived."""
    while True:
        try:
            await page.evaluate("0")
            return
        except PlaywrightError as error:
            # Chromium loads a failed page again now and then.
            if "because of a navigation" not in error.message:
                raise


async def check_axe(page: Page, *, tags: Sequence[str] = RULES) -> list[str]:
    """Return the violations of accessibility rules that axe finds, one line for each element. Needs JavaScript.

    In a wide window, the rules of colours are checked in the dark colour scheme too: the other rules do not depend on
    the scheme, and the scheme does not depend on the width.
    """
    if not await page.evaluate("'axe' in window"):
        await page.evaluate(_axe_source())  # the Content-Security-Policy would block a <script>
    violations: list[str] = await page.evaluate(_AXE, {"type": "tag", "values": list(tags)})
    if page.viewport_size and page.viewport_size["width"] >= WIDE:
        await page.emulate_media(color_scheme="dark")
        violations += await page.evaluate(_AXE, {"type": "rule", "values": COLOUR_RULES})
        await page.emulate_media(color_scheme="light")
    return violations


@cache
def _axe_source() -> str:
    return AXE.read_text("utf-8")


async def faults(
    page: Page, path: str | None = None, *more: Callable[[Page], Awaitable[list[str]]], axe: bool = True
) -> list[str]:
    """Return the faults of a page in both WIDTHS: layout shifts, overflow, `more`, and what axe finds.

    With a path, the page is loaded in each width. Without one, it stays as it is, and its shifts are not checked.
    """
    loads = (moves, overflow, *more) if path else ()
    stays = (*(() if path else (overflow, *more)), *((check_axe,) if axe else ()))
    lines: list[str] = []
    for checks in (loads, stays):
        for width in WIDTHS if checks else ():
            await page.set_viewport_size({"width": width, "height": HEIGHT})
            if path and checks is loads:
                await page.goto(path)
            lines += [f"{page.url} at {width} px: {fault}" for check in checks for fault in await check(page)]
    return lines


async def moves(page: Page) -> list[str]:
    return [f"the content moves by {shift}"] if (shift := await layout_shift(page)) else []


async def layout_shift(page: Page, *, digits: int = 2) -> float:
    """Return the cumulative layout shift of the document with this many digits, without shifts after input. 0.0 is
    none.
    """
    return round(float(await page.evaluate(_SEEN, "shift")), digits)


async def long_tasks(page: Page) -> list[float]:
    """Return the durations of the document's tasks over 50 ms, in milliseconds. axe is such a task itself."""
    found: list[float] = await page.evaluate(_SEEN, "tasks")
    return found


async def overflow(page: Page) -> list[str]:
    """Return the elements that end right of the window, except those inside an element that scrolls or clips."""
    found: list[str] = await page.evaluate(_OVERFLOW)
    return found


async def squeezed(page: Page) -> list[str]:
    """Return the cells of tables whose visible text is a narrow column of many lines, which is hard to read."""
    found: list[str] = await page.evaluate(_SQUEEZED)
    return found
