"""SKILL.md on the page of a skill: headings, contents, links, task boxes, alerts and buttons that copy code."""

from __future__ import annotations

import html
import re
from typing import Any

import pytest

from skillery.web.markdown import Place, rendered
from tests.conftest import Rpc, Server
from tests.support.browser import Browser, token_of
from tests.support.chromium import OpenPage, faults, layout_shift

TEXT = """# Guide

## Overview

See https://docs.example.org/pdf_a (and [paypal.com](https://evil.example/x), [pay](https://pay.example)).
A p\u0430ypal, a `p\u0430y` and a Ключ.

> [!WARNING]
> Never *overwrite* it.

## Steps

- [x] Read it
- [ ] Write it

#### Deep

```python
print(1)
```

## End

```mermaid
a-->b
```
"""


class Reader:
    """A publisher of skills, and the visitor that reads their pages."""

    def __init__(self, server: Server, namespace: str) -> None:
        self.server = server
        self.namespace = namespace
        self.token = token_of(server, f"{namespace}-ann", "read", "publish", namespaces=[f"{namespace}.*"])
        self.rpc = Rpc(server.url, self.token)
        self.browser = Browser(server.url, accept="text/html")
        assert self.browser.sign_in(self.token).status_code == 303

    def publish(self, name: str, skill_md: str, **more: Any) -> str:
        """Return the path of the page."""
        full = f"{self.namespace}.{name}"
        manifest = {"name": full, "version": "1.0.0", "kind": "instruction", "description": "A guide."}
        self.rpc("create_skill", manifest=manifest, skill_md=skill_md, **more)
        return f"/s/{full}"

    def prose(self, path: str) -> str:
        return html.unescape(self.browser.get(path).text).partition('<div class="prose"')[2].partition("</div>")[0]


@pytest.fixture(scope="session")
def reader(tokens_sqlite: Server) -> Reader:
    return Reader(tokens_sqlite, "markdown")


@pytest.fixture(scope="session")
def guide(reader: Reader) -> str:
    return reader.publish("guide", TEXT)


def test_headings_begin_at_the_second_level_and_skip_none(reader: Reader, guide: str) -> None:
    headings = re.findall(r"<(h\d) id=\"md-(\w+)\"", reader.prose(guide))

    assert headings == [("h2", "guide"), ("h3", "overview"), ("h3", "steps"), ("h4", "deep"), ("h3", "end")]


def test_contents_have_the_levels_below_the_title(reader: Reader, guide: str) -> None:
    page = reader.browser.get(guide).text
    rail, fold = page.partition('<aside class="rail"')[2], page.partition('<aside class="rail"')[0]
    links = [("overview", ""), ("steps", ""), ("deep", ' class="deeper"'), ("end", "")]

    for part in (rail, fold):
        assert re.findall(r'<li( class="deeper")?><a href="#md-(\w+)"', part) == [(deep, name) for name, deep in links]
    few = reader.publish("few", "# One\n\n## Two\n\n## Three\n")
    assert "Contents of SKILL.md" not in reader.browser.get(few).text


def test_links_show_where_they_lead(reader: Reader, guide: str) -> None:
    prose = reader.prose(guide)

    assert '<a href="https://docs.example.org/pdf_a"' in prose
    assert '>paypal.com</a> <span class="host">(evil.example)</span>' in prose
    assert prose.count('class="host"') == 1
    assert re.findall(r'<span class="mixed"[^>]*>(\w+)</span>', prose) == ["p\u0430ypal", "p\u0430y"]


def test_tasks_alerts_and_diagrams_have_their_own_look(reader: Reader, guide: str) -> None:
    prose = reader.prose(guide)

    assert re.findall(r'class="(box[^"]*)" role="img" aria-label="([^"]*)"', prose) == [
        ("box is-done", "done"),
        ("box", "not done"),
    ]
    assert '<blockquote class="alert warning">\n<p><strong>Warning</strong><br>Never <em>overwrite</em> it.' in prose
    assert '<p class="caption">Diagram source</p>' in prose


def test_a_long_text_shows_its_size_and_first_part(reader: Reader) -> None:
    line = "A line of thirty-three letters. \n\n"
    path = reader.publish("long", line * 9000)
    page = html.unescape(reader.browser.get(path).text).replace("\xa0", " ")

    assert "306 kB, about 92,700 tokens" in page
    assert page.count(f"<p>{line.strip()}</p>") == 200_000 // len(line)
    assert f'This is the first part. <a href="{path}@1.0.0/files/SKILL.md">Whole text</a>' in page


@pytest.mark.parametrize("text", ["[x](https://[)", "https://[", "![x](https://[)", "# " + "\\#" * 90_000, "[!" * 400])
def test_hostile_markdown_is_shown(reader: Reader, text: str, new_name: str) -> None:
    page = reader.browser.get(reader.publish(new_name, f"{text}\n\nThe last words.\n"))

    assert page.status_code == 200
    assert "The last words." in page.text


@pytest.mark.full
@pytest.mark.asyncio(loop_scope="session")
async def test_code_is_copied_and_nothing_moves(reader: Reader, guide: str, open_page: OpenPage) -> None:
    page = await open_page(reader.server, guide, token=reader.token, width=390)
    await page.evaluate(
        """() => { navigator.clipboard.writeText = async text => { window.copied = text; };
                   const later = window.setTimeout;  // "Copied" stays: a loaded machine looks after its 1.5 s
                   window.setTimeout = (work, wait = 0) => wait < 1500 ? later(work, wait) : 0; }"""
    )
    await page.locator(".prose .copy button").first.click()
    await page.get_by_role("button", name="Copied").wait_for()

    assert await page.evaluate("window.copied") == "print(1)"
    assert await layout_shift(page) == 0
    assert await faults(page, guide) == []
    sizes = "names => names.map(name => getComputedStyle(document.querySelector(`.prose ${name}`)).fontSize)"
    for width in (390, 1280):
        await page.set_viewport_size({"width": width, "height": 800})
        assert await page.evaluate(sizes, ["h2", "h3", "h4", "p"]) == ["21px", "17px", "15px", "15px"], width


@pytest.mark.parametrize(
    "words", ["github.com…", "→github.com", "//github.com/a", "github\u2024com", "github.com|a", "x@y"]
)
def test_a_link_that_names_another_host_shows_its_own(words: str) -> None:
    address = "https://x@evil.example" if words == "x@y" else "https://evil.example"
    made = rendered(f"[{words}]({address})", Place("/s/a@1.0.0", "SKILL.md"))

    assert made is not None
    assert '<span class="host">(evil.example)</span>' in made.html


def test_a_link_without_a_host_does_not_work() -> None:
    made = rendered("[github.com](https:///evil.example)", Place("/s/a@1.0.0", "SKILL.md"))

    assert made is not None
    assert "href" not in made.html
