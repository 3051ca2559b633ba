"""Notebooks of runs and skills: cells with code, text, tables and pictures, and hostile ones."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import pytest
from playwright.async_api import expect

from tests.conftest import Server, manifest, skill_files
from tests.support.browser import Browser
from tests.support.chromium import OpenPage, faults
from tests.web.test_run_parts import HTML, run_code, text_of

PNG = "iVBORw0KGgoAAAANSUhEUgAAAAIAAAACCAYAAABytg0kAAAAE0lEQVR4nGP8z1D/n4GBgYEBAAAZ4wLh07C5cgAAAABJRU5ErkJggg=="
RUNS = "<script>window.__pwned=1</script><img src=x onerror=window.__pwned=2>"


def code(*outputs: dict[str, Any], source: Any = "", count: Any = 1) -> dict[str, Any]:
    return {"cell_type": "code", "execution_count": count, "source": source, "outputs": list(outputs)}


def shown(**data: Any) -> dict[str, Any]:
    return {"output_type": "display_data", "data": {key.replace("_", "/"): value for key, value in data.items()}}


CELLS = [
    {"cell_type": "markdown", "source": ["# Revenue by week\n", "The cells use `orders.csv`."]},
    code(
        {"output_type": "stream", "name": "stdout", "text": ["read 12 weeks\n"]},
        shown(text_html="<table border=1><tr><th></th><th>north</th></tr><tr><th>W1</th><td>7</td></tr></table>"),
        shown(image_png=f"{PNG[:40]}\n{PNG[40:]}\n", text_plain="<Figure>"),
        source=["import pandas\n", "orders = pandas.read_csv('orders.csv')"],
        count=3,
    ),
    {"cell_type": "markdown", "source": "# Revenue by week"},
    code({"output_type": "error", "ename": "KeyError", "evalue": "x", "traceback": ["\x1b[31mKeyError\x1b[0m: 'x'"]}),
    {"cell_type": "raw", "source": "as it is"},
]
HOSTILE = [
    {"cell_type": "markdown", "source": RUNS + "\n\n[a](javascript:window.__pwned=3) ![up](../../../logout)"},
    code(
        shown(text_html=f"<table onclick=x()><tr><td style='position:fixed'>{RUNS}</td></tr></table>"),
        shown(image_png="PHNjcmlwdD4=", text_plain="no picture"),
        shown(image_svg="<svg onload=x()>", text_plain=RUNS),
        source=RUNS + "\u202e",
        count="<b>",
    ),
    *[7, None, "cell", {}, {"cell_type": "code", "outputs": [3, {"data": 5}, {"data": {"image/png": {"a": 1}}}]}],
    *[{"cell_type": "markdown", "source": "[" * 30_000}],
]


def notebook(cells: Any) -> str:
    language = {"kernelspec": {"language": "python"}}
    return json.dumps({"nbformat": 4, "nbformat_minor": 5, "metadata": language, "cells": cells})


WRITES = """
import os
def main(args):
    os.makedirs("out")
    for name, text in args.items():
        with open(os.path.join("out", name), "w") as file: file.write(text)
    return {}
"""


@pytest.mark.full
def test_notebook_shows_cells_with_their_outputs(sqlite_server: Server) -> None:
    run = run_code(sqlite_server, WRITES, **{"weeks.ipynb": notebook(CELLS), "many.ipynb": notebook(CELLS * 60)})
    browser, at = Browser(sqlite_server.url, **HTML), f"/runs/{run['run_id']}"
    page = browser.get(f"{at}/parts/weeks.ipynb").text
    text = text_of(page)

    for words in ("notebook, 5 cells", "Revenue by week", "[3]", "read 12 weeks", "north", "KeyError: 'x'", "as it is"):
        assert words in text
    assert '<span class="k">import</span>' in page
    assert "<Figure>" not in text
    assert len(set(re.findall(r'<h2 id="(md-[^"]*)"', page))) == 2
    [(address, number)] = re.findall(r'<img src="([^"]*)\?picture=([\d.]+)"', page)
    picture = browser.get(f"{address}?picture={number}")
    assert picture.headers["content-type"] == "image/png"
    assert picture.headers["content-security-policy"].startswith("sandbox")
    assert picture.content.startswith(b"\x89PNG")
    for unknown in ("1.0", "9.9", "²", "1", "-1.0", "1.-1", "99999999.0"):
        assert browser.get(f"{address}?picture={unknown}").status_code == 404
    many = browser.get(at).text.partition('id="part-1"')[2].partition("</section>")[0]
    assert "notebook, 300 cells" in text_of(many)
    assert "This is the first part." in text_of(many)
    assert len(re.findall('class="cell"', many)) < 20


@pytest.mark.full
@pytest.mark.asyncio(loop_scope="session")
async def test_hostile_notebook_is_shown_without_effect(
    sqlite_server: Server, open_page: OpenPage, new_name: str
) -> None:
    files = [
        {"path": f"resources/{name}.ipynb", "content": notebook(cells)}
        for name, cells in (("good", CELLS), ("bad", HOSTILE), ("empty", []))
    ]
    await asyncio.to_thread(
        lambda: sqlite_server.rpc(
            "create_skill", manifest=manifest(new_name), skill_md="# x\n", files=[*skill_files(), *files]
        )
    )
    run = await asyncio.to_thread(
        lambda: run_code(sqlite_server, WRITES, **{"good.ipynb": notebook(CELLS), "bad.ipynb": notebook(HOSTILE[:-1])})
    )
    at = f"/runs/{run['run_id']}"
    page = await open_page(sqlite_server, at)
    title = await page.title()
    skill = f"/s/{new_name}@1.0.0/files/resources"
    for path in (at, f"{at}/parts/bad.ipynb", *(f"{skill}/{name}.ipynb" for name in ("good", "bad", "empty"))):
        assert await faults(page, path) == []
        assert await page.evaluate("window.__pwned") is None
    await page.goto(at)
    assert await page.title() == title
    assert RUNS in await page.locator("main").inner_text()
    pictures = page.locator(".cell img")
    assert await pictures.count() == 1
    await pictures.scroll_into_view_if_needed()
    await expect(pictures).to_have_js_property("naturalWidth", 2)
