"""The catalogue page: search, filters with counts, orders, pages, the first steps, and JSON for programs."""

from __future__ import annotations

import html
import os
import re
from collections.abc import Callable

import httpx
import pytest

from tests.conftest import Rpc, Server
from tests.support.archives import skill_md, zipped
from tests.support.browser import Browser, hidden_fields, part_of, token_of
from tests.support.chromium import OpenPage, check_axe, faults, layout_shift, overflow, problems
from tests.support.processes import eventually

HTML = {"accept": "text/html"}
QUERIES = ("q=csv", "q=nothing-like-it", "ns=text&lang=python")
_NAMES = re.compile(r'<div class="head"><h2><a href="[^"]*">([^<]+)</a>')


def names(text: str) -> list[str]:
    return _NAMES.findall(text)


def links(text: str) -> dict[str, str]:
    """Return the addresses of links by their words."""
    found = re.findall(r'<a [^>]*?href="([^"]*)"[^>]*>(.*?)</a>', text, re.S)
    return {re.sub(r"<[^>]+>", "", words).strip(): html.unescape(address) for address, words in found}


@pytest.fixture(scope="session")
def stocked(server: Server) -> str:
    """Return a namespace with 25 skills: 5 of them are instructions, 3 with a host. No test changes them."""
    new_name = f"shop{os.getpid()}"
    for number in range(25):
        is_text = number % 5 == 0
        code = [] if is_text else [{"path": "code/main.py", "content": "def main(args):\n    return {}\n"}]
        server.rpc(
            "create_skill",
            manifest={
                "name": f"{new_name}.{'left' if number % 2 else 'right'}.s{number:02}",
                "version": "1.0.0",
                "kind": "instruction" if is_text else "action",
                "description": f"Count the quokkas of {new_name}, number {number}.",
                "tags": ["quokka", f"n{number % 4}"],
                **({} if is_text else {"runtime": {"language": "python", "entrypoint": "code/main.py"}}),
                "permissions": {"network": ["https://shop.example.com"] if number in {1, 2, 3} else []},
            },
            skill_md="# Count\n\nUse it for quokkas.\n",
            files=code,
        )
    return new_name


@pytest.fixture
def shop(server: Server, stocked: str) -> tuple[Browser, str]:
    """Return a new browser and the namespace of `stocked`."""
    return Browser(server.url, **HTML), stocked


def test_the_page_answers_programs_with_json(sqlite_server: Server) -> None:
    for accept in ("application/json", "*/*"):
        found = httpx.get(sqlite_server.url, headers={"accept": accept})

        assert found.status_code == 200
        assert found.headers["content-type"].startswith("application/json")
        assert found.json()["links"]["rpc"] == "/rpc"


def test_a_visitor_signs_in_first_and_programs_get_json_without_a_login(tokens_sqlite: Server) -> None:
    assert httpx.get(tokens_sqlite.url, headers=HTML).headers["location"] == "/login"
    assert httpx.get(tokens_sqlite.url, headers={"accept": "application/json"}).json()["name"] == "skillery"


def test_filters_and_pages_show_each_skill_once(shop: tuple[Browser, str]) -> None:
    browser, namespace = shop
    first = browser.get(f"/?ns={namespace}&sort=name").text
    second = browser.get(links(first)["Next page"]).text

    assert '<strong class="num">25</strong> skills' in first
    assert len(names(first)) == 20
    assert len(names(second)) == 5
    assert names(first) + names(second) == sorted(names(first) + names(second))
    assert "First page" in links(second)
    assert "Next page" not in links(second)


@pytest.mark.parametrize(
    ("query", "count"),
    [
        ("lang=markdown", 5),
        ("contains=instructions", 5),
        ("network=no", 22),
        ("tag=n1&tag=quokka", 6),
        ("status=deprecated", 0),
    ],
)
def test_the_count_is_that_of_the_rows(shop: tuple[Browser, str], query: str, count: int) -> None:
    browser, namespace = shop
    text = browser.get(f"/?ns={namespace}&{query}").text

    assert f'<strong class="num">{count}</strong> skill' in text
    assert len(names(text)) == min(count, 20)
    if not count:
        assert "No skill matches these filters" in text
        assert any(words.startswith("Search without") for words in links(text))


def test_each_link_of_a_filter_leads_to_its_count(shop: tuple[Browser, str]) -> None:
    browser, namespace = shop
    text = browser.get(f"/?ns={namespace}").text
    aside = text[text.index('class="filters"') :]
    found = re.findall(
        r'<a (?:class="tag" )?href="([^"]*)"><span>(?:(?!</a>).)*</span><span class="num">(\d+)</span>', aside
    )

    assert len(found) >= 4
    for address, count in found:
        page = browser.get(html.unescape(address)).text
        assert f'<strong class="num">{count}</strong> skill' in page, address


def test_a_search_marks_its_words_and_keeps_the_filters(shop: tuple[Browser, str]) -> None:
    browser, namespace = shop
    text = browser.get(f"/?q=quokka&ns={namespace}.left").text

    assert '<strong class="num">12</strong> skills' in text
    assert "<mark>quokkas</mark>" in text
    assert f'name="ns" value="{namespace}.left"' in text
    assert f"/?q=quokka&ns={namespace}" in [*links(text).values()]


@pytest.mark.full
def test_a_row_shows_uses_callers_and_how_runs_ended(server: Server, new_name: str) -> None:
    code = "def main(args):\n    return {'n': 1 / args['n']}\n"
    runtime = {"language": "python", "entrypoint": "code/main.py"}
    for name in ("idle", "read", "run"):
        about = {"name": f"{new_name}.{name}", "version": "1.0.0", "description": f"{new_name} {name}."}
        files = [{"path": "code/main.py", "content": code}]
        server.rpc("create_skill", manifest={**about, "runtime": runtime}, skill_md="# A\n", files=files)
    agent = Rpc(server.url)
    agent.http.headers["user-agent"] = "agent/1"
    agent("read_skill_file", name=f"{new_name}.read", path="SKILL.md")
    for number in (1, 1, 0):
        server.rpc("execute_skill", name=f"{new_name}.run", args={"n": number})

    def rows() -> list[str]:
        page = Browser(server.url, **HTML).get(f"/?ns={new_name}&sort=used").text
        sides = re.findall(r'<div class="side">(.*?)</div>', page)
        return [re.sub("<[^>]+>", " ", side).strip() for side in sides]

    expected = ["3 uses · 1 caller  33 % of runs fail", "1 use · 1 caller  loads only", "no use yet"]
    eventually(lambda: [re.sub("  +", "  ", row) for row in rows()] == expected, problem=rows)


@pytest.mark.full
def test_a_search_without_results_offers_similar_words_and_is_noted(server: Server, new_name: str) -> None:
    about = {"name": f"{new_name}.zygomorph", "version": "1.0.0", "kind": "instruction", "description": "Petals."}
    server.rpc("create_skill", manifest=about, skill_md="# A\n")
    browser = Browser(server.url, **HTML)

    found = browser.get("/?q=zhigomorf").text
    assert names(found) == []
    assert links(found)["zygomorph"] == "/?q=zygomorph"
    assert names(browser.get("/?q=zygomorph").text) == [f"{new_name}.zygomorph"]
    missing = browser.get(f"/s/{new_name}.zygo")
    assert missing.status_code == 404
    assert links(missing.text)[f"{new_name}.zygomorph"] == f"/s/{new_name}.zygomorph"

    noted = browser.post("/", hidden_fields(missing.text))
    assert noted.status_code == 303
    assert f"The search for “{new_name}.zygo” is noted as wanted." in browser.get(noted.headers["location"]).text

    def wanted() -> set[str]:
        return {row["words"] for row in server.rpc("list_searches", wanted=True, limit=1000)["searches"]}

    eventually(lambda: f"{new_name}.zygo" in wanted(), problem=wanted)


@pytest.mark.full
def test_a_row_names_source_licence_and_the_original_of_a_copy(server: Server, new_name: str) -> None:
    text = skill_md("guide", description=f"Draw the {new_name} of all quokkas.", license="MIT")
    for space, source in (("a", "https://git.example.org/acme/skills"), ("b", "https://git.example.org/copy/skills")):
        params = {"namespace": f"{new_name}.{space}", "source": source}
        sent = server.rpc.http.post("/import", params=params, content=zipped({"repo/guide/SKILL.md": text}))
        assert sent.status_code == 200

    original, copy = (text_of_row(server, f"{new_name}.{space}") for space in ("a", "b"))

    assert "Instructions git.example.org/acme/skills MIT" in original
    assert "copy of" not in original
    assert f"{new_name}.b.guide 1.0.0 copy of {new_name}.a.guide" in copy


def text_of_row(server: Server, namespace: str) -> str:
    row = part_of(Browser(server.url, **HTML).get(f"/?ns={namespace}").text, r'<ul class="skills"[^>]*>(.*?)</ul>')
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", row)).split())


@pytest.mark.full
def test_the_catalogue_begins_with_the_most_used_namespaces(sqlite_server: Server, new_name: str) -> None:
    for space in ("a", "b"):
        about = {"name": f"{new_name}{space}.one", "version": "1.0.0", "description": "Count."}
        runtime = {"language": "python", "entrypoint": "main.py"}
        files = [{"path": "main.py", "content": "def main(args):\n    return 1\n"}]
        sqlite_server.rpc("create_skill", manifest={**about, "runtime": runtime}, skill_md="# A\n", files=files)
        for _ in range(9):
            sqlite_server.rpc("execute_skill", name=about["name"])
    browser = Browser(sqlite_server.url, **HTML)

    def spaces() -> str:
        page = browser.get("/").text
        return part_of(page, r'<ul class="spaces"[^>]*>(.*?)</ul>') if 'class="spaces"' in page else ""

    eventually(lambda: all(f'href="/?ns={new_name}{space}"' in spaces() for space in ("a", "b")), problem=spaces)
    assert "9 uses" in spaces()
    assert 'class="spaces"' not in browser.get(f"/?ns={new_name}a").text


def test_hostile_queries_are_shown_as_text(sqlite_server: Server) -> None:
    browser = Browser(sqlite_server.url, **HTML)
    for query in ('"><script>alert(1)</script>', "«x» « »", "a\x00b", "\u202eevil", "%" * 300):
        found = browser.http.get("/", params={"q": query, "tag": query, "ns": query})

        assert found.status_code == 200
        assert "<script>alert" not in found.text
        assert "\u202e" not in re.sub(r'(?:value|href)="[^"]*"', "", found.text)


def test_a_wrong_cursor_is_explained(sqlite_server: Server) -> None:
    found = Browser(sqlite_server.url, **HTML).get("/?cursor=wrong")

    assert found.status_code == 200
    assert 'role="alert"' in found.text
    assert links(found.text)["First page"] == "/"


def test_a_new_server_shows_three_steps_until_they_are_hidden(start_server: Callable[..., Server]) -> None:
    browser = Browser(start_server().url, **HTML)
    fields = browser.fields("/")

    assert links(browser.get("/").text)["Run one"] == "/s/text.csv.profile/try?example=1"
    assert browser.post("/", fields).status_code == 303
    assert "Run one" not in links(browser.get("/").text)


def test_the_steps_end_with_the_first_skill(start_server: Callable[..., Server]) -> None:
    server = start_server()
    browser = Browser(server.url, **HTML)
    assert "Three steps" in browser.get("/").text
    manifest = {"name": "my.first", "version": "1.0.0", "kind": "instruction", "description": "Mine."}
    server.rpc("create_skill", manifest=manifest, skill_md="# Mine\n")

    assert "Three steps" not in browser.get("/").text


def test_versions_in_other_states_are_for_their_authors(tokens_sqlite: Server, new_name: str) -> None:
    author = token_of(tokens_sqlite, new_name, "read", "publish", namespaces=[f"{new_name}.*"])
    reader = token_of(tokens_sqlite, f"{new_name}-reader", "read")
    manifest = {"name": f"{new_name}.idea", "version": "1.0.0", "kind": "instruction", "description": "An idea."}
    Rpc(tokens_sqlite.url, author)("create_skill", manifest=manifest, skill_md="# Idea\n", submit=False)
    texts = {}
    for token in (author, reader):
        browser = Browser(tokens_sqlite.url, **HTML)
        assert browser.sign_in(token).status_code == 303
        texts[token] = browser.get(f"/?ns={new_name}&status=draft").text

    assert names(texts[author]) == [f"{new_name}.idea"]
    assert names(texts[reader]) == []


@pytest.mark.smoke
@pytest.mark.asyncio(loop_scope="session")
async def test_the_page_has_no_fault(sqlite_server: Server, open_page: OpenPage) -> None:
    page = await open_page(sqlite_server, "/")

    assert await layout_shift(page) == 0
    assert await overflow(page) == []
    assert await check_axe(page) == []
    assert await problems(page) == []


@pytest.mark.full
@pytest.mark.asyncio(loop_scope="session")
async def test_pages_of_searches_have_no_fault(sqlite_server: Server, open_page: OpenPage) -> None:
    page = await open_page(sqlite_server, "/", width=390)
    assert await layout_shift(page) == 0
    assert await overflow(page) == []
    assert await check_axe(page) == []
    for query in QUERIES:
        assert await faults(page, f"/?{query}") == []
        assert await problems(page) == [], query


TYPES = """
text => {
  const field = document.activeElement;
  for (const letter of text) {
    field.value += letter;
    field.dispatchEvent(new Event("input", {bubbles: true}));
  }
}
"""
"""Types without pauses, however slow the machine is."""


@pytest.mark.full
@pytest.mark.asyncio(loop_scope="session")
async def test_typing_searches_at_pauses_and_keeps_the_focus(sqlite_server: Server, open_page: OpenPage) -> None:
    page = await open_page(sqlite_server, "/")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    await page.keyboard.press("/")
    await page.evaluate(TYPES, "redact")
    await page.locator("[data-count]", has_text="redact").wait_for()
    await page.locator("[data-said]", has_text="redact").wait_for(state="attached")

    # One for each pause, not one for each letter.
    assert [url for url in asked if "/static/" not in url] == [f"{sqlite_server.url}/?q=redact"]
    assert await page.evaluate("document.activeElement.name") == "q"
    await page.wait_for_url("**/?q=redact")
    await page.go_back()
    await page.locator("[data-count]", has_not_text="redact").wait_for()
    assert await page.locator("header.top").count() == 1


@pytest.mark.full
@pytest.mark.asyncio(loop_scope="session")
async def test_the_page_works_without_javascript(sqlite_server: Server, open_page: OpenPage) -> None:
    page = await open_page(sqlite_server, "/", javascript=False)
    await page.get_by_label("Search skills").fill("personal data")
    await page.get_by_label("Search skills").press("Enter")
    await page.get_by_role("link", name="text.redact.pii").click()

    await page.wait_for_url("**/s/text.redact.pii*")


@pytest.mark.smoke
@pytest.mark.asyncio(loop_scope="session")
async def test_the_keyboard_alone_opens_a_skill(sqlite_server: Server, open_page: OpenPage) -> None:
    page = await open_page(sqlite_server, "/?q=csv&sort=name")
    first = await page.locator("[data-rows] h2 a").first.text_content()
    for key in ("j", "j", "k", "Enter"):
        await page.keyboard.press(key)
    await page.wait_for_url("**/s/**")

    assert first is not None
    assert await page.get_by_role("heading", level=1).text_content() == first
