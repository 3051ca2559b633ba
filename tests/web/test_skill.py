"""Pages of one skill: about, files, versions, changes by their forms, and what only a browser shows."""

from __future__ import annotations

import html
import json
import re
import shlex
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from playwright.async_api import expect

from tests.cli.test_cli import skillery
from tests.conftest import Server, clean_environment
from tests.support.browser import Browser, part_of, token_of
from tests.support.chromium import OpenPage, faults, layout_shift, problems
from tests.support.shown_skill import FILES, ShownSkill

if TYPE_CHECKING:
    from playwright.async_api import Route

HTML = {"accept": "text/html"}


@pytest.fixture(scope="session")
def shown(tokens_sqlite: Server) -> ShownSkill:
    return ShownSkill(tokens_sqlite, "shown")


def words(text: str) -> str:
    """Return the words of a page, without its tags."""
    inline = re.sub(r"</?(?:a|bdi|code|strong|time|title)\b[^>]*>", "", text)
    return re.sub(r"\s+", " ", html.unescape(re.sub(r"<[^>]+>", " ", inline)))


# -- what the pages show ---------------------------------------------------------------------------------------------


def test_about_shows_inputs_examples_permissions_and_the_version(shown: ShownSkill) -> None:
    text = words(shown.browser().get(shown.path()).text)

    for part in (
        'one of 2 "it\'s", "n"',
        "3 more",
        "two count 2 passed",
        "fails with ValueError, as expected passed",
        "No network, no secrets Up to 256 MiB of memory, 1 processor, 20 s.",
        "1 run, 0 % completed",
        "Owner shown-ann",
        "No review This server requires none for it.",
        "Visible to all users of this server",
        "all passed before 1.10.0 was published",
    ):
        assert part in text, part


def test_files_open_at_skill_md_and_every_tab_counts_them(shown: ShownSkill) -> None:
    browser = shown.browser()
    opened = browser.get(shown.path("files")).text
    count = re.findall(r'Files <span class="num">(\d+)</span>', opened)

    assert re.search(r'/files/SKILL\.md" aria-current="page"', opened)
    assert "See the code." in words(opened)
    assert len(count) == 1
    for below in ("", "versions", "try"):
        assert f'Files <span class="num">{count[0]}</span>' in browser.get(shown.path(*([below] if below else []))).text


def test_versions_are_in_the_order_of_precedence_and_folded(shown: ShownSkill) -> None:
    page = shown.browser().get(shown.path("versions")).text
    links = rf'data-label="Version" class="num nowrap"><a href="/s/{shown.name}@[^"]*"[^>]*>([^<]*)</a>'
    versions = re.findall(links, page)
    folded = re.findall(r"<summary><span>([^<]*)</span> <span class=\"muted num\">(\d+)</span>", page)

    assert versions == ["1.10.0", "1.9.0", "1.2.0", "2.0.0-rc.1", "1.0.0-rc.2", "1.0.0-rc.1", "0.9.0"]
    assert folded == [("Pre-releases", "3"), ("Yanked, rejected and purged", "1")]
    only = shown.browser().get(shown.path("versions") + "?show=pre-releases").text
    assert "2.0.0-rc.1" in only
    assert "All versions" in only


def test_any_two_versions_are_compared(shown: ShownSkill) -> None:
    browser = shown.browser()
    moved = browser.get(shown.path("diff", "1.9.0", version="1.10.0") + "?of=1.9.0&with=0.9.0")

    assert moved.headers["location"] == shown.path("diff", "0.9.0", version="1.9.0")
    assert "<del>0" in browser.get(moved.headers["location"]).text


def test_a_label_leads_to_its_version(shown: ShownSkill) -> None:
    text = words(shown.browser().get(shown.path(version="stable")).text)

    assert "stable is version 1.10.0 now. Link to exactly this version" in text


def test_large_texts_are_shown_in_part(shown: ShownSkill) -> None:
    browser = shown.browser()
    large = browser.get(shown.path("files", "resources/large.txt")).text
    medium = browser.get(shown.path("files", "resources/medium.py")).text

    assert "This is the first part. Download all of it" in words(large)
    assert large.count("data-n=") == 20_000
    assert "Texts over 200 kB are shown without colours." in medium
    assert "Line ends are CR LF." in medium
    assert medium.count("data-n=") == 10_000
    assert '<span class="k">' not in medium
    assert "This text is empty." in browser.get(shown.path("files", "resources/empty.txt")).text
    assert "binary file, 256 B. Download it" in words(
        browser.get(shown.path("files", "resources/data.bin")).text
    ).replace("\xa0", " ")


def test_raw_files_are_the_published_bytes(shown: ShownSkill) -> None:
    browser = shown.browser()
    for path, body in FILES.items():
        answer = browser.get(shown.path("raw", path))

        assert answer.content == body
        again = browser.http.get(shown.path("raw", path), headers={"if-none-match": answer.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")


def snippet(browser: Browser, path: str) -> str:
    snippet = part_of(browser.get(path).text, '<pre [^>]*id="snippet"[^>]*>(.*?)</pre>')
    return html.unescape(re.sub("<[^>]*>", "", snippet))


def ended(command: list[str], environment: dict[str, str]) -> str:
    """Run a command, and return its output."""
    done = subprocess.run(command, capture_output=True, check=True, env=clean_environment(environment))
    return done.stdout.decode()


def test_the_snippets_work(shown: ShownSkill) -> None:
    browser = shown.browser()
    snippets = {client: snippet(browser, f"{shown.path()}?client={client}") for client in ("shell", "curl", "python")}
    assert all("1.10.0" in text for text in snippets.values())
    token = {"SKILLERY_TOKEN": shown.ann}
    expected = {"count": 2, "note": "it's"}

    assert json.loads(ended(["/bin/sh", "-c", snippets["curl"]], token))["result"]["output"] == expected
    assert f"completed {expected}" in ended([sys.executable, "-c", snippets["python"]], token)
    login, *lines = snippets["shell"].split("\n")
    assert login == f"skillery login --url {shown.server.url}"
    verb, *arguments = shlex.split("".join(lines).replace("\\", " "))
    assert verb == "skillery"
    assert skillery(*arguments, "--json", SKILLERY_TOKEN=shown.ann).json["output"] == expected


@pytest.mark.parametrize(
    ("client", "text"),
    [
        ("lock", "skillery lock {name}@1.10.0 \\"),
        ("lock", '"digest": "sha256:'),
        ("unknown", "claude plugin install shown-count@"),
    ],
)
def test_other_clients_have_their_lines(shown: ShownSkill, client: str, text: str) -> None:
    page = shown.browser().get(shown.path() + f"?client={client}").text

    assert text.format(name=shown.name) in html.unescape(page)


@pytest.fixture(scope="session")
def priced(shown: ShownSkill) -> str:
    """Return the name of a skill with a tool. Its version 0.9.0 has the tool too, and 1.1.0 is a draft."""
    name = f"{shown.name}-tools"
    tool = {
        "name": "price_of",
        "description": "Return a price.",
        "script": "scripts/price.py",
        "parameters": {
            "item": {"type": "string", "description": "Its name"},
            "n": {"type": "number", "description": "N", "optional": True},
        },
    }
    files = [
        {"path": "tools.json", "content": json.dumps([tool])},
        {"path": "scripts/price.py", "content": "import json\nprint(json.dumps(1))\n"},
    ]
    for made, version in ((name, "0.9.0"), (name, "1.0.0"), (f"{name}-draft", "1.0.0")):
        manifest = {"name": made, "version": version, "description": "Prices."}
        shown.rpc("create_skill", manifest=manifest, skill_md="# Prices\n", files=files, submit=made == name)
    return name


def test_tools_have_their_parameters(shown: ShownSkill, priced: str) -> None:
    browser = shown.browser()
    text = words(browser.get(f"/s/{priced}").text)

    assert "Return a price. 2 parameters" in text
    assert "item Its name string required" in text
    assert 'id="a1"' in browser.get(f"/s/{priced}/try?tool=price_of").text
    commands = {client: snippet(browser, f"/s/{priced}?client={client}") for client in ("shell", "curl", "python")}
    token = {"SKILLERY_TOKEN": shown.ann}
    verb, *arguments = shlex.split("".join(commands["shell"].split("\n")[1:]).replace("\\", " "))
    assert (verb, arguments[:3]) == ("skillery", ["tool", "call", f"{priced}@1.0.0/price_of"])
    assert skillery(*arguments, "--json", SKILLERY_TOKEN=shown.ann).json["result"] == 1
    assert json.loads(ended(["/bin/sh", "-c", commands["curl"]], token))["result"]["result"] == 1
    assert ended([sys.executable, "-c", commands["python"]], token) == "1\n"


@pytest.mark.parametrize(
    ("version", "text"),
    [
        ("@0.9.0", "MCP offers the tools of the latest version, 1.0.0. This page shows another."),
        ("-draft@1.0.0", "no version of this skill is the latest yet."),
    ],
)
def test_mcp_offers_only_tools_of_the_latest_version(shown: ShownSkill, priced: str, version: str, text: str) -> None:
    assert text in words(shown.browser().get(f"/s/{priced}{version}?client=mcp").text)


# -- what callers do not see -----------------------------------------------------------------------------------------


def test_a_skill_with_only_a_draft_opens_for_its_author(shown: ShownSkill) -> None:
    name = f"{shown.name}-idea"
    manifest = {"name": name, "version": "0.1.0", "kind": "instruction", "description": "An idea."}
    shown.rpc("create_skill", manifest=manifest, skill_md="# Idea\n", submit=False)
    author, reader = shown.browser(), shown.browser(token_of(shown.server, "shown-reader", "read"))
    text = words(author.get(f"/s/{name}").text)

    assert "Draft. Only its author and reviewers see this version." in text
    assert "Submit 0.1.0 for review" in text
    for below in ("/files", "/files/SKILL.md", "/raw/SKILL.md", "/versions"):
        assert author.get(f"/s/{name}{below}").status_code == 200, below
        assert reader.get(f"/s/{name}{below}").status_code == 404, below


def test_hidden_and_unknown_names_have_the_same_answer(shown: ShownSkill) -> None:
    name = f"{shown.name}-mine"
    manifest = {"name": name, "version": "1.0.0", "kind": "instruction", "description": "Mine."}
    reader = shown.browser(token_of(shown.server, "shown-reader", "read"))
    tails = ("", "@1.0.0", "@stable", "/files", "/files/x", "/raw/SKILL.md", "/versions", "@1.0.0/diff/1.0.0")

    def answers() -> list[tuple[int, str]]:
        """Return statuses and texts without request ids, nonces and form tokens."""
        pages = [reader.get(f"/s/{name}{below}") for below in tails]
        changing = r"<code>[0-9a-zA-Z-]+</code>|nonce=\"[^\"]*\"|name=\"form_token\" value=\"[^\"]*\""
        return [(page.status_code, re.sub(changing, "", page.text)) for page in pages]

    # The same name before it exists: similar names of other skills are equal in both answers.
    unknown = answers()
    shown.rpc("create_skill", manifest=manifest, skill_md="# Mine\n")
    shown.rpc("set_visibility", name=name, visibility="private")

    assert {status for status, _ in unknown} == {404}
    assert all("does not exist, or you may not see it" in text for _, text in unknown)
    assert answers() == unknown
    assert shown.browser().get(f"/s/{name}").status_code == 200


@pytest.mark.parametrize(
    ("below", "text"),
    [
        ("@9.9.9", "has no version 9.9.9, or you may not see it. Its versions: 1.10.0, 1.9.0"),
        ("@absent", "has no label absent. Its labels: stable, all versions"),
        ("/files/code/man.py", "The files are code/main.py"),
        ("/files/..%2f..%2fetc", "has no file '../../etc'"),
        ("@1.10.0/diff/7.0.0", "has no version 7.0.0"),
    ],
)
def test_a_page_of_a_failure_leads_on(shown: ShownSkill, below: str, text: str) -> None:
    answer = shown.browser().get(f"/s/{shown.name}{below}")

    assert answer.status_code == 404
    assert text in words(answer.text)
    assert "All skills" in answer.text


def test_a_similar_name_is_offered(shown: ShownSkill) -> None:
    answer = shown.browser().get("/s/shown.coun")

    assert f'Did you mean <a href="/s/{shown.name}">' in answer.text
    assert shown.browser().get("/s/Not%20a%20name").status_code == 404


# -- in a browser ----------------------------------------------------------------------------------------------------

PAGES = (
    ("",),
    ("?client=lock",),
    ("?client=vscode",),
    ("?client=mcp",),
    ("files",),
    ("files", "code/main.py#L10-L20"),
    ("files", "resources/dot.png"),
    ("files", "resources/data.bin"),
    ("files", "resources/large.txt"),
    ("versions",),
    ("versions?show=pre-releases",),
)


@pytest.mark.full
@pytest.mark.asyncio(loop_scope="session")
async def test_the_pages_have_no_fault(shown: ShownSkill, open_page: OpenPage) -> None:
    page = await open_page(shown.server, "/login", token=shown.ann)
    paths = [shown.path(*below).replace("/?", "?") for below in PAGES]
    paths += [shown.path(version="0.9.0"), shown.path("diff", "1.9.0", version="1.10.0"), "/s/shown.coun"]
    for path in paths:
        assert await faults(page, path, axe="large" not in path) == []  # axe needs seconds for 9,000 lines
        assert all("404" in one for one in await problems(page)), path


PAINTED = "new Promise(done => new PerformanceObserver(() => done()).observe({type: 'paint', buffered: true}))"


@pytest.mark.full
@pytest.mark.asyncio(loop_scope="session")
async def test_nothing_moves_when_the_script_arrives_late(shown: ShownSkill, open_page: OpenPage) -> None:
    page = await open_page(shown.server, "/login", token=shown.ann)

    async def after_first_paint(route: Route) -> None:
        await page.evaluate(PAINTED)
        await route.continue_()

    await page.route("**/skillery.js", after_first_paint)
    for below in ((), ("versions",), ("files", "code/main.py")):
        await page.goto(shown.path(*below))

        assert await layout_shift(page) == 0, below
    assert await page.get_by_role("button", name="Copy").count() == 0
    await page.goto(shown.path())
    await page.get_by_role("button", name="Copy the digest").wait_for()


@pytest.mark.full
@pytest.mark.asyncio(loop_scope="session")
async def test_lines_are_marked_and_selected(shown: ShownSkill, open_page: OpenPage) -> None:
    page = await open_page(shown.server, shown.path(), token=shown.ann)
    await page.get_by_role("link", name="the code").click()
    await page.wait_for_url("**#L10-L20")
    marked = page.locator(".picked")

    await expect(marked).to_have_count(11)
    assert await marked.first.get_attribute("id") == "L10"
    await page.locator("#L12").click(position={"x": 10, "y": 10})
    await page.wait_for_url("**#L12")
    await page.locator("#L15").click(position={"x": 10, "y": 10}, modifiers=["Shift"])
    await page.wait_for_url("**#L12-L15")
    await expect(marked).to_have_count(4)
    await page.locator("#L12").click(position={"x": 200, "y": 10})
    assert page.url.endswith("#L12-L15")


@pytest.mark.full
@pytest.mark.asyncio(loop_scope="session")
async def test_keys_lead_to_the_exact_address(shown: ShownSkill, open_page: OpenPage) -> None:
    page = await open_page(shown.server, shown.path("files", "code/main.py#L3"), token=shown.ann)
    await page.keyboard.press("y")
    await page.wait_for_url(f"**{shown.path('files', 'code/main.py', version='1.10.0')}#L3")
    await page.goto(shown.path("versions"))
    await page.keyboard.press("j")
    await page.keyboard.press("j")
    await page.keyboard.press("Enter")
    await page.wait_for_url(f"**{shown.path(version='1.9.0')}")
    await page.keyboard.press("Tab")
    assert await page.evaluate("document.activeElement.textContent") == "Skip to content"
    await page.goto(shown.path())
    await page.get_by_role("group").locator("summary", has_text=re.compile(r"^Yank 1\.10\.0$")).focus()
    await page.keyboard.press("Enter")
    await page.keyboard.press("Tab")
    assert await page.evaluate("document.activeElement.id") == "reason"


@pytest.mark.full
@pytest.mark.asyncio(loop_scope="session")
async def test_pages_are_read_without_javascript(shown: ShownSkill, open_page: OpenPage) -> None:
    page = await open_page(shown.server, shown.path(), token=shown.ann, javascript=False)
    await page.get_by_role("link", name="curl").click()
    await expect(page.locator("#snippet")).to_contain_text(f"curl {shown.server.url}/rpc")
    assert not await page.get_by_role("button", name="Copy").is_visible()
    await page.get_by_role("link", name=re.compile("^Versions")).click()
    await page.get_by_text("Pre-releases").click()
    await page.get_by_role("link", name="2.0.0-rc.1").click()
    await expect(page.locator("main")).to_contain_text("By hand, in 2.0.0-rc.1.")
    await page.goto(shown.path("files", "code/main.py#L7"))
    assert await page.locator("#L7").evaluate("one => one.matches(':target')")


@pytest.mark.full
@pytest.mark.asyncio(loop_scope="session")
async def test_print_leaves_out_navigation(shown: ShownSkill, open_page: OpenPage) -> None:
    page = await open_page(shown.server, shown.path(), token=shown.ann)
    await page.emulate_media(media="print")
    for path in (shown.path(), shown.path("files", "code/main.py")):
        await page.goto(path)
        seen = [await one.is_visible() for one in await page.locator("nav, footer, header.top, button, .btn").all()]

        assert not any(seen), path
        assert await page.get_by_role("heading", level=1).is_visible()


@pytest.mark.full
@pytest.mark.asyncio(loop_scope="session")
async def test_times_and_numbers_are_those_of_the_reader(shown: ShownSkill, open_page: OpenPage) -> None:
    path = shown.path("files", "resources/large.txt")
    page = await open_page(shown.server, path, token=shown.ann, locale="de-DE", timezone_id="Asia/Tokyo")
    assert "text, 1,4\xa0MB" in await page.inner_text("#viewer")
    await page.goto(shown.path("versions"))
    assert "(Asia/Tokyo)" in str(await page.locator("time").first.get_attribute("title"))
    # A version of this test is new, so an old time is put into the page.
    await page.evaluate(
        """() => { document.querySelector("time").dateTime = "2026-01-01T23:30:00Z";
                   document.dispatchEvent(new Event("htmx:after:swap")); }"""
    )

    assert await page.locator("time").first.inner_text() == "02.01.2026"
