"""The comparison of two runs: inputs, values, rows, lines and pictures, its addresses, and hostile contents."""

from __future__ import annotations

import asyncio
import re

import pytest

from tests.conftest import Rpc, Server, publisher
from tests.support.browser import Browser, token_of
from tests.support.chromium import OpenPage, check_axe, faults, layout_shift, overflow, problems
from tests.web.test_run_parts import HOSTILE, HTML, run_code, text_of

CODE = r"""
import os
from runtime import blobs
def main(args):
    n = args["n"]
    os.makedirs("out")
    def write(name, text):
        with open(os.path.join("out", name), "w") as file: file.write(text)
    write("same.txt", "same")
    write("report.md", f"# Report\n\n{n} weeks\n")
    write("orders.csv", "order,amount\n" + "".join(f"o{k},{k * (n if k == 2 else 1)}\n" for k in range(n + 2)))
    write(f"only{n}.txt", "new")
    write("picture.svg", f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {n} 2'/>")
    write("data.bin", chr(0) * n)
    if n > 2: raise ValueError("too many")
    weeks = [{"week": f"W{k}", "north": k * n} for k in range(2)]
    return {"total": n, "is_whole": True, "deep": {"er": {"list": list(range(n * 9))}}, "weekly": weeks,
            "key": blobs.write_text("a,b\n1,2\n", kind="text/csv"), "files": [[blobs.write_text("x")]]}
"""


def rows_of(page: str, name: str) -> list[list[str]]:
    """Return the texts of the cells of the rows that differ of a table. A changed cell has both texts."""
    table = page.partition(f'aria-label="Rows of {name} that differ"')[2].partition("</table>")[0]
    return [
        [" ".join(text_of(cell).split()) for cell in re.findall(r"<td>(.*?)</td>", row)]
        for row in re.findall(r"<tr class=[^>]*>(.*?)</tr>", table, re.DOTALL)
    ]


@pytest.mark.full
def test_comparison_shows_changed_values_rows_lines_and_pictures(server: Server, new_name: str) -> None:
    publish = publisher(server.rpc)
    publish(new_name, "1.0.0", code=CODE)
    runs = [server.rpc("execute_skill", name=new_name, version="1.0.0", args={"n": 1, "same": [1]})]
    publish(new_name, "1.1.0", code=CODE)
    runs += [server.rpc("execute_skill", name=new_name, version="1.1.0", args={"n": n, "same": [1]}) for n in (2, 3, 4)]
    first, second, failed, last = (run["run_id"] for run in runs)
    browser = Browser(server.url, **HTML)
    page = browser.get(f"/runs/{second}/compare/{first}").text
    text = text_of(page)

    assert f'href="/s/{new_name}@1.1.0/diff/1.0.0"' in page
    values = re.findall(r"<tr><td><code>(.*?)</code></td><td>(.*?)</td><td>(.*?)</td></tr>", page)
    assert [tuple(text_of(cell).strip() for cell in value) for value in values] == [
        ("n", "1", "2"),
        ("deep.er.list", str(list(range(9))).replace(" ", ""), str(list(range(18))).replace(" ", "")),
        ("total", "1", "2"),
    ]
    assert rows_of(page, "weekly") == [["changed", "W1", "1 2"]]
    assert rows_of(page, "orders.csv") == [["changed", "o2", "2 4"], ["+ added", "o3", "3"]]
    assert re.findall(r'<h2 id="file-\d+"><bdi class="foreign">(.*?)</bdi></h2><span class="tag">(.*?)<', page) == [
        ("data.bin", "changed"),
        ("only1.txt", "removed"),
        ("only2.txt", "added"),
        ("picture.svg", "changed"),
        ("report.md", "changed"),
    ]
    assert "<del>1</del> weeks" in page
    assert "not UTF-8 text" in text
    for run in (first, second):
        assert f'<img src="/runs/{run}/raw/picture.svg"' in page
    assert "same.txt" not in text
    assert "key.csv" not in text

    def links(run: str) -> list[str]:
        pairs = re.findall(r'<a href="/runs/([^"]*)/compare/([^"]*)">', browser.get(f"/runs/{run}").text)
        assert {shown for shown, _ in pairs} <= {run}
        return [other for _, other in pairs]

    assert links(first) == []
    assert links(second) == [first]
    assert links(failed) == [second]
    assert links(last) == [failed, second]
    assert "ValueError" in text_of(browser.get(f"/runs/{last}/compare/{second}").text)
    assert browser.get(f"/runs/{last}/compare/none").status_code == 404


def test_comparison_of_code_shows_its_changed_lines(sqlite_server: Server) -> None:
    runs = [run_code(sqlite_server, f"def main(args):\n    return {value}\n")["run_id"] for value in (1, 2)]
    browser = Browser(sqlite_server.url, **HTML)
    page = browser.get(f"/runs/{runs[1]}/compare/{runs[0]}").text

    assert "return <del>1</del>" in page
    assert "return <ins>2</ins>" in page
    assert "All parts are the same" in text_of(browser.get(f"/runs/{runs[0]}/compare/{runs[0]}").text)
    assert "/compare/" not in browser.get(f"/runs/{runs[1]}").text


def test_runs_of_others_are_not_compared(tokens_sqlite: Server, new_name: str) -> None:
    code = "def main(args):\n    return 1\n"
    tokens = [token_of(tokens_sqlite, f"{new_name}{number}", "read", "run") for number in range(2)]
    own, other = (Rpc(tokens_sqlite.url, token)("run_code", language="python", code=code)["run_id"] for token in tokens)
    browser = Browser(tokens_sqlite.url, **HTML)
    browser.sign_in(tokens[0])

    assert browser.get(f"/runs/{own}/compare/{own}").status_code == 200
    assert browser.get(f"/runs/{own}/compare/{other}").status_code == 404
    assert browser.get(f"/runs/{other}/compare/{own}").status_code == 404


HALF = r"""
import os
def main(args):
    os.makedirs("out")
    with open("out/rows.jsonl", "w") as file: file.write('{"a": "\\ud800", "b": %d}\n{"a": "x", "b": 1}\n' % args["n"])
    return {"blob:x\"": "blob:none", "<b>": args["n"], "blob": "blob:" + "x" * 300, "permissions": args["n"]}
"""


def test_comparison_of_halves_of_characters_is_a_page(sqlite_server: Server) -> None:
    runs = [run_code(sqlite_server, HALF, n=number)["run_id"] for number in (1, 2)]
    answer = Browser(sqlite_server.url, **HTML).get(f"/runs/{runs[1]}/compare/{runs[0]}")

    assert answer.status_code == 200
    assert "The results cannot be compared" in answer.text


@pytest.mark.full
@pytest.mark.asyncio(loop_scope="session")
@pytest.mark.parametrize(("width", "javascript"), [(1280, True), (390, False)])
async def test_two_ticked_runs_are_compared(
    sqlite_server: Server, open_page: OpenPage, new_name: str, width: int, javascript: bool
) -> None:
    def run_twice() -> None:
        publisher(sqlite_server.rpc)(new_name, code=CODE)
        for number in (1, 2):
            sqlite_server.rpc("execute_skill", name=new_name, args={"n": number})

    await asyncio.to_thread(run_twice)
    page = await open_page(
        sqlite_server,
        f"/runs?skill={new_name}",
        width=width,
        javascript=javascript,
        color_scheme="dark" if width == 390 else "light",
    )
    ticks = page.get_by_role("checkbox")
    await ticks.nth(0).check()
    await page.get_by_role("button", name="Compare two ticked runs").click()
    await page.get_by_text("Tick two").wait_for()
    assert await page.get_by_label("Skill", exact=True).input_value() == new_name
    for number in (0, 1):
        await ticks.nth(number).check()
    if javascript:
        assert await check_axe(page) == []
    assert await overflow(page) == []
    await page.get_by_role("button", name="Compare two ticked runs").click()
    await page.get_by_role("heading", name=f"Two runs of {new_name}").wait_for()
    if javascript:
        assert await layout_shift(page) == 0
        assert await check_axe(page) == []
    assert await overflow(page) == []
    assert await problems(page) == []


@pytest.mark.full
@pytest.mark.asyncio(loop_scope="session")
async def test_comparison_of_hostile_results_has_no_effect(sqlite_server: Server, open_page: OpenPage) -> None:
    def run_twice() -> list[str]:
        changed = HOSTILE.replace("<script>window", "<script>/**/window").replace("SUM(1)", "SUM(2)")
        return [run_code(sqlite_server, code)["run_id"] for code in (HOSTILE, changed)]

    runs = await asyncio.to_thread(run_twice)
    page = await open_page(sqlite_server, f"/runs/{runs[1]}/compare/{runs[0]}")

    assert await page.evaluate("[window.__pwned, {}.polluted]") == [None, None]
    assert await faults(page) == []
    assert await page.locator("main script, main iframe").count() == 0
    assert await problems(page) == []
