"""Pages that show a hostile skill, in a real browser: no script runs, no request leaves the page, texts are shown."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote

import pytest
from playwright.async_api import Error

from tests.conftest import Rpc, Server
from tests.support.browser import Browser
from tests.support.chromium import OpenPage, problems
from tests.support.hostile_skill import HIDDEN, IMAGE, NAMES, Attacker, HostileSkill, attacker_running

if TYPE_CHECKING:
    from playwright.async_api import Page

pytestmark = pytest.mark.asyncio(loop_scope="session")
ATTRIBUTES = {"class", "tabindex", "href", "rel", "src", "alt", "loading", "id", "start", "title", "role", "scope"}
BOXES = ("U+202E", "U+200B", "U+E0041")


@pytest.fixture(scope="session")
def attacker() -> Iterator[Attacker]:
    with attacker_running() as attacker:
        yield attacker


@pytest.fixture(scope="session")
def evil(tokens_sqlite: Server, attacker: Attacker) -> HostileSkill:
    return HostileSkill(tokens_sqlite, "hostile", attacker)


async def is_calm(page: Page, evil: HostileSkill) -> bool:
    """Return whether no attack of the open page has worked."""
    await page.evaluate("new Promise(done => requestAnimationFrame(() => setTimeout(done)))")
    assert await page.evaluate("window.__pwned === undefined"), page.url
    assert await page.title() != "pwned"
    assert evil.attacker.hits == []
    return True


@pytest.mark.smoke
async def test_markdown_has_only_harmless_elements_and_links(evil: HostileSkill, open_page: OpenPage) -> None:
    page = await open_page(evil.server, evil.at(), storage_state=evil.cookies())
    prose = page.locator(".prose")
    text = await prose.inner_text()

    assert await is_calm(page, evil)
    for shown in (
        "<script>",
        "<img src=x",
        "<svg onload",
        "<img srcset",
        "<style>",
        "<base href",
        "<meta http-equiv",
        "<form action",
    ):
        assert shown in text, shown
    for shown in ("htmx-text", "free prize", "The last words.", *BOXES):
        assert shown in text, shown
    # The script of the page adds buttons that copy code. All other elements come from the Markdown.
    await prose.evaluate("one => one.querySelectorAll('.copy > .btn').forEach(button => button.remove())")
    kinds = "script, style, base, meta, link, form, button, input, iframe, object, embed, svg, picture, source, video"
    assert await prose.locator(kinds).count() == 0
    names = await prose.evaluate("one => [...one.querySelectorAll('*')].flatMap(part => part.getAttributeNames())")
    assert {one for one in names if not one.startswith("aria-")} <= ATTRIBUTES
    ids = await prose.evaluate("one => [...one.querySelectorAll('[id]')].map(part => part.id)")
    assert {"md-q", "md-body"} <= set(ids)
    assert all(one.startswith("md-") for one in ids)


@pytest.mark.full
async def test_links_and_images_of_markdown_stay_inside_the_version(evil: HostileSkill, open_page: OpenPage) -> None:
    page = await open_page(evil.server, evil.at(), storage_state=evil.cookies())
    places = "one => [...one.querySelectorAll('[href], [src]')].map(part => part.getAttribute('href') || part.src)"
    found = await page.locator(".prose").evaluate(places)
    text = await page.inner_text(".prose")
    inside = (evil.at("1.0.0", "files", ""), f"{evil.server.url}{evil.at('1.0.0', 'raw', '')}")

    assert len(found) > 5
    for address in found:
        outside = address.startswith(f"{evil.attacker.url}/")
        assert outside or (address.startswith(inside) and ".." not in unquote(unquote(address))), address
    for words in ("script", "tab", "spaces", "data", "vb", "host", "back", "ref", "upper", "out", "deep", "encoded"):
        link = page.locator(".prose a", has_text=re.compile(f"^{words}$"))
        assert words in text
        for one in await link.all():
            assert await one.get_attribute("href") is None, words
            await one.click()
    assert await is_calm(page, evil)
    assert await page.get_by_text(f"image: {evil.attacker.address.partition(':')[0]}").count() == 2
    assert await page.locator(".prose img").first.evaluate("one => one.decode().then(() => one.naturalWidth)") == 40


@pytest.mark.full
async def test_external_link_has_no_opener_or_referrer(evil: HostileSkill, open_page: OpenPage) -> None:
    page = await open_page(evil.server, evil.at(), storage_state=evil.cookies())
    link = page.locator(".prose a", has_text=re.compile("^outside$"))
    async with page.context.expect_page() as waiting:
        await link.click(modifiers=["ControlOrMeta"])
    landing = await waiting.value
    await landing.wait_for_url(f"{evil.attacker.url}/landing")

    assert await landing.evaluate("[window.opener, document.referrer]") == [None, ""]
    await problems(page)  # a request that the user wanted


@pytest.mark.full
async def test_texts_of_manifests_and_reasons_are_shown_as_text(evil: HostileSkill, open_page: OpenPage) -> None:
    page = await open_page(evil.server, evil.at(), storage_state=evil.cookies())
    reasons = {"1.0.0": "deprecated", "1.1.0": "In review", "1.2.0": "rejected", "0.9.0": "yanked"}
    for version, reason in reasons.items():
        await page.goto(evil.at(version))
        text = await page.inner_text("main")

        assert await is_calm(page, evil)
        assert "__proto__" in text
        assert f"example {IMAGE}" in text or version in {"0.9.0", "1.2.0"}
        assert version == "1.1.0" or f"{reason} {IMAGE}" in text
        assert text.count("U+202E") >= 3
        assert "\u202e" not in text
    for client in ("claude", "cursor", "mcp", "shell", "curl", "python", "lock"):
        await page.goto(f"{evil.at()}?client={client}")
        assert await is_calm(page, evil)


@pytest.mark.full
async def test_other_pages_show_the_same_texts(evil: HostileSkill, open_page: OpenPage) -> None:
    page = await open_page(evil.server, evil.at("1.0.0", "versions"), storage_state=evil.cookies())
    diff = evil.at("1.1.0", "diff", "1.0.0")
    for path in ("/review", "/review/waivers", f"/review/{evil.name}@1.1.0", diff, evil.at("1.0.0", "try")):
        await page.goto(path)
        assert await is_calm(page, evil), path
    await page.goto(diff)
    changed = await page.inner_text("main")
    await page.goto(f"/review/{evil.name}@1.1.0")
    review = await page.inner_text("main")
    await page.goto("/review/waivers")

    for text in (changed, review):
        assert f"New: {IMAGE}" in text
        assert all(box in text for box in BOXES)
    assert f"waived {IMAGE}" in await page.inner_text("main")


@pytest.mark.full
async def test_names_of_files(evil: HostileSkill, open_page: OpenPage) -> None:
    page = await open_page(evil.server, evil.at("1.0.0", "files"), storage_state=evil.cookies())
    for path in NAMES:
        address = evil.at("1.0.0", "files", path)
        assert await page.locator(f'.tree a[href="{address}"]').count() == 1
        await page.goto(address + ("?form=source" if path.endswith(".html") else ""))
        raw = await page.context.request.get(evil.at("1.0.0", "raw", path))
        disposition = raw.headers["content-disposition"]

        assert await is_calm(page, evil)
        assert "named-text" in await page.inner_text("[data-lines]")
        assert await page.inner_text("#file") == path.replace("\u202e", "U+202E")
        assert raw.headers["content-type"] == "text/plain; charset=utf-8"
        assert re.fullmatch(r"inline; filename=\"[A-Za-z0-9._ -]+\"; filename\*=UTF-8''[A-Za-z0-9._~%-]+", disposition)
        assert unquote(disposition.partition("filename*=UTF-8''")[2]) == path.rpartition("/")[2]


@pytest.mark.full
async def test_hostile_code_is_shown_as_text_with_its_hidden_characters(
    evil: HostileSkill, open_page: OpenPage
) -> None:
    page = await open_page(evil.server, evil.at("1.0.0", "files"), storage_state=evil.cookies())
    code = {"code/main.py": f"# pay{BOXES[0]}cod.exe{BOXES[1]}U+00A0{BOXES[2]} {IMAGE}"}
    code |= dict.fromkeys(
        ("resources/evil.svg?form=source", "resources/evil.html?form=source", "resources/evil.xhtml?form=source"),
        "<script>window.__pwned",
    )
    code |= {
        "resources/bom.md?form=source": "<body onload='window.__pwned=1'>",
        "resources/evil.js": "window.__pwned=1;document",
    }
    for path, shown in code.items():
        await page.goto(f"{evil.at('1.0.0', 'files')}/{path}")
        lines = page.locator("[data-lines]")

        assert await is_calm(page, evil)
        assert shown in await lines.inner_text(), path
        parts = await lines.evaluate("one => [...one.querySelectorAll('*')].map(part => part.tagName.toLowerCase())")
        assert set(parts) <= {"span", "bdi", "ol", "li", "code", "a", "table", "tbody", "tr", "td"}, path
        names = await lines.evaluate("one => [...one.querySelectorAll('*')].flatMap(part => part.getAttributeNames())")
        assert set(names) <= {"class", "id", "title", "data-n", "tabindex"}, path
        hidden = await lines.evaluate("one => [...one.textContent.matchAll(/[\\u202a-\\u202e\\u200b\\ufeff]/g)].length")
        assert hidden == 0, path
    await page.goto(evil.at("1.0.0", "files", "code/main.py"))
    assert await page.locator("[data-lines] .hidden-char").count() == 4
    assert "right-to-left override" in str(await page.locator(".hidden-char").first.get_attribute("title"))


async def test_no_bundle_has_a_newline_in_a_name(evil: HostileSkill) -> None:
    for path in ("code/a\nb.py", "code/a\r\nset-cookie: x=1.py", "resources/a\x1b[2J.txt", "resources/a\tb.txt"):
        manifest = {"name": f"{evil.name}-lines", "version": "1.0.0", "kind": "instruction", "description": "x"}
        files = [{"path": path, "content": "x"}]
        error = Rpc(evil.server.url, evil.ann).error("create_skill", manifest=manifest, skill_md="# x\n", files=files)

        assert error["data"]["type"] == "invalid_path", path


async def test_no_path_leaves_the_bundle(evil: HostileSkill) -> None:
    browser = Browser(evil.server.url, accept="text/html")
    assert browser.sign_in(evil.ann).status_code == 303
    for path in ("..%2f..%2fetc", "a/..%2f..%2fb", "x%00", "a%5Cb", "%0d%0aset-cookie:x=1", "%ff", "n" * 400, "C:x"):
        for kind in ("files", "raw"):
            answer = browser.get(f"{evil.at()}/{kind}/{path}")

            assert answer.status_code == 404, (kind, path)
            assert "set-cookie" not in answer.headers
            assert "Nothing here" in answer.text


@pytest.mark.full
async def test_files_never_run(evil: HostileSkill, open_page: OpenPage) -> None:
    page = await open_page(evil.server, evil.at("1.0.0", "files"), storage_state=evil.cookies())
    kinds = {"evil.svg": "image/svg+xml", "polyglot.gif": "image/gif", "evil.pdf": "application/octet-stream"}
    for name in ("evil.svg", "evil.html", "evil.xhtml", "bom.md", "polyglot.gif", "evil.js", "evil.pdf"):
        await page.goto(f"{evil.at('1.0.0', 'files')}/resources/{name}?form=source")
        raw = evil.at("1.0.0", "raw", f"resources/{name}")
        answer = await page.context.request.get(raw)

        assert await is_calm(page, evil)
        assert answer.headers["content-type"] == kinds.get(name, "text/plain; charset=utf-8")
        assert answer.headers["content-security-policy"].startswith("sandbox; default-src 'none'")
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cross-origin-resource-policy"] == "same-origin"
        if name not in {"polyglot.gif", "evil.pdf"}:
            assert "window.__pwned=1" in await page.inner_text("[data-lines]")
        await is_harmless(page, evil, raw)
    assert await problems(page) != []  # the browser reports the scripts that the sandbox has blocked


async def is_harmless(page: Page, evil: HostileSkill, raw: str) -> None:
    """Open a raw file, and check that it does not run."""
    if raw.endswith(".svg"):
        await page.get_by_role("link", name="View", exact=True).click()
        assert await page.locator(".picture img").evaluate("one => one.decode().then(() => one.naturalWidth)") == 40
    if raw.endswith(".pdf"):
        async with page.expect_download() as waiting:
            await page.get_by_role("link", name="raw", exact=True).click()
        assert (await waiting.value).suggested_filename == "evil.pdf"
        return
    await page.goto(raw)
    assert await page.evaluate("[typeof window.__pwned, self.origin]") == ["undefined", "null"], raw
    assert evil.attacker.hits == []


@pytest.mark.full
async def test_another_site_can_not_embed_files_and_pages(evil: HostileSkill, open_page: OpenPage) -> None:
    resources = [f"{evil.server.url}{evil.at('1.0.0', 'raw', f'resources/{name}')}" for name in ("evil.svg", "evil.js")]
    pages = [
        *("/", "/runs", "/review", "/publish", "/account", "/login", evil.at(), evil.at("1.0.0", "versions")),
        *(evil.at("1.0.0", "files", "code/main.py"), evil.at("1.1.0", "diff", "1.0.0"), evil.at("1.0.0", "try")),
        f"/review/{evil.name}@1.1.0",
        evil.at("1.0.0", "raw", "resources/evil.html"),
        "/s/no.such.skill",
    ]
    frames = "".join(f'<iframe src="{evil.server.url}{one}"></iframe>' for one in pages)
    evil.attacker.pages["/embeds"] = (
        f'<!doctype html><title>attack</title><object data="{resources[0]}"></object><img src="{resources[0]}">'
        f'<embed src="{resources[0]}"><script src="{resources[1]}"></script>{frames}'
    )
    page = await open_page(evil.server, "/login", storage_state=evil.cookies())
    await page.goto(f"{evil.attacker.url}/embeds")
    inner = [frame for frame in page.frames if frame is not page.main_frame]

    assert len(inner) >= len(pages)
    for frame in inner:
        try:
            assert await frame.evaluate("document.querySelector('main, pre, svg, rect') === null"), frame.url
        except Error:  # Chromium replaces the frame of a refused page
            assert frame.is_detached()
    assert await page.locator("img").evaluate("one => one.naturalWidth") == 0
    assert await page.evaluate("[typeof window.__pwned, document.title]") == ["undefined", "attack"]
    assert evil.attacker.hits == []
    await problems(page)


@pytest.mark.full
async def test_a_site_that_opens_a_page_gets_no_handle(evil: HostileSkill, open_page: OpenPage) -> None:
    evil.attacker.pages["/opens"] = "<!doctype html><title>attack</title><button>go</button>"
    page = await open_page(evil.server, "/login", storage_state=evil.cookies())
    await page.goto(f"{evil.attacker.url}/opens")
    async with page.context.expect_page() as waiting:
        await page.evaluate(f"void (window.other = window.open('{evil.server.url}{evil.at()}'))")
    opened = await waiting.value
    await opened.get_by_role("heading", name=evil.name).wait_for()

    assert await opened.evaluate("window.opener") is None
    assert await page.evaluate("window.other.closed")
    await problems(page)


@pytest.mark.full
async def test_searches_reflect_only_text(evil: HostileSkill, open_page: OpenPage) -> None:
    page = await open_page(evil.server, "/", storage_state=evil.cookies())
    html = f'"><script>window.__pwned=1</script>{IMAGE}'
    for query in (html, "«script» «»", f"«{IMAGE}» evil", HIDDEN, "javascript:window.__pwned=1"):
        await page.goto(f"/?q={quote(query)}")
        assert await is_calm(page, evil)
        assert await page.get_by_role("searchbox", name="Search").first.input_value() == query.replace("\xa0", " ")
    for field in ("tag", "ns", "lang", "kind", "status", "sort", "cursor"):
        await page.goto(f"/?{field}={quote(html)}&q=evil")
        links = await page.evaluate("[...document.querySelectorAll('a')].map(one => one.protocol + one.host)")

        assert await is_calm(page, evil), field
        assert set(links) == {f"http:{evil.server.url.partition('//')[2]}"}


@pytest.mark.full
async def test_results_of_a_search_show_the_words_of_the_skill(evil: HostileSkill, open_page: OpenPage) -> None:
    page = await open_page(evil.server, "/?q=script+prize&ns=hostile&status=deprecated", storage_state=evil.cookies())
    text = await page.inner_text("main")

    assert await is_calm(page, evil)
    assert evil.name in text
    assert "description" in text
