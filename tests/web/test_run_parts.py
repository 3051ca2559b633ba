"""The parts of a result: each in its view and with its name, pages of one part, downloads, and hostile contents."""

from __future__ import annotations

import asyncio
import html
import io
import json
import re
import zipfile
from typing import Any

import pytest
from playwright.async_api import expect

from tests.conftest import Rpc, Server, publisher
from tests.support.browser import Browser, token_of
from tests.support.chromium import OpenPage, faults, problems

HTML = {"accept": "text/html"}
EACH_VIEW = r"""
import os
from runtime import blobs
def main(args):
    os.makedirs("out/deep")
    def write(name, text):
        with open(os.path.join("out", name), "wb") as file: file.write(text)
    write("orders.csv", b"day,city,amount\n" + b"".join(
        b"2026-09-%02d,%s,%d.5\n" % (n % 28 + 1, b"Bern" if n % 3 else b"Oslo", n * 7919 % 20000) for n in range(250)))
    write("dot.png", bytes.fromhex(
        "89504e470d0a1a0a0000000d4948445200000002000000020806000000"
        "72b60d240000001349444154789c63fccf50ff9f0108181960000019e302e1"
        "d3b0b9720000000049454e44ae426082"))
    write("picture.svg", b"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 4 2'><rect width='4'/></svg>")
    write("report.md", b"# Report\n\nSee [the orders](orders.csv).\n\n![The picture](picture.svg)\n")
    write("settings.json", b'{"region": {"name": "north"}}')
    write("deep/rule.py", b"def rate():\n    return 1\n")
    write("packed.bin", b"\x00\x01")
    weeks = [{"week": "2026-W%d" % (36 + n), "north": 41152 + n, "formula": "=1+1"} for n in range(14)]
    return {"total": 1190402, "is_whole": True, "by": ["north", "south"], "weekly": weeks, "note": "# Good\n\nweek",
            "inner": {"share": 0.5, "long": "long text " * 30}, "key": blobs.write_text("a;b\n1;2\n", kind="text/csv")}
"""


def run_code(server: Server, code: str, **args: Any) -> dict[str, Any]:
    run: dict[str, Any] = server.rpc("run_code", language="python", code=code, args=args)
    assert run["status"] == "completed", run
    return run


def text_of(page: str) -> str:
    return html.unescape(re.sub(r"<[^>]+>", " ", page))


@pytest.mark.full
def test_result_page_shows_each_part_in_its_view(server: Server) -> None:
    run = run_code(server, EACH_VIEW, weeks=12, is_strict=True)
    browser = Browser(server.url, **HTML)
    page = browser.get(f"/runs/{run['run_id']}").text
    text = text_of(page)

    names = re.findall(r'<h2 id="part-\d+"><bdi class="foreign">(.*?)</bdi></h2>', page)
    assert names[:5] == ["values", "weekly", "note.md", "inner.long", "key.csv"]
    assert names[5:] == [
        "deep/rule.py",
        "dot.png",
        "orders.csv",
        "packed.bin",
        "picture.svg",
        "report.md",
        "settings.json",
    ]
    assert "blob:" not in page.partition('id="output"')[0]
    for shown in (
        "1,190,402",
        "41,152",
        "6 of 14 rows",
        "table, 250 rows × 3 columns",
        "text, 2 values",
        "All rows, sort and filter",
    ):
        assert shown in text
    assert re.search(r'<img src="/runs/[^"]*" alt="dot.png" width="2" height="2"', page)
    assert '<h2 id="md-good">Good</h2>' in page
    assert "Far from every limit" in text
    assert re.search(r"weeks\s+12\s+is_strict\s+yes", text)
    # The result comes before the log, and the log before the whole output.
    assert page.index('id="part-1"') < page.index('id="log"') < page.index('id="output"')


def test_page_of_a_table_sorts_filters_and_pages(sqlite_server: Server) -> None:
    run = run_code(sqlite_server, EACH_VIEW)
    browser = Browser(sqlite_server.url, **HTML)
    at = f"/runs/{run['run_id']}/parts/orders.csv"

    def amounts(query: str) -> list[float]:
        page = browser.get(f"{at}{query}").text
        return [float(text.replace(",", "")) for text in re.findall(r'<td class="right num">(.*?)</td>', page)]

    assert len(amounts("")) == 100
    assert amounts("?sort=amount") == sorted(amounts("?sort=amount"))
    assert amounts("?sort=-amount")[0] == max(n * 7919 % 20000 + 0.5 for n in range(250))
    assert len(amounts("?sort=amount&page=3")) == 50
    assert all(amount > 19_000 for amount in amounts("?where=amount+>+19000"))
    assert len(amounts("?where=oslo")) == 84
    assert "No row matches" in text_of(browser.get(f"{at}?where=nowhere").text)
    assert "1,5" in browser.http.get(f"{at}?sort=amount", headers={"accept-language": "de"}).text
    for query in ("?page=²", "?page=999999999", "?page=-1", "?sort=none", "?where=%00"):
        assert browser.get(f"{at}{query}").status_code == 200


FAILS = "def rates(rows):\n\treturn rows['north'] * rows['west<b>']\n\n\n\ndef main(args):\n    rates({'north': 1})\n"


def test_failed_run_shows_its_failing_line_once(server: Server, new_name: str) -> None:
    publisher(server.rpc)(new_name, code=FAILS)
    run = server.rpc("execute_skill", name=new_name)
    page = Browser(server.url, **HTML).get(f"/runs/{run['run_id']}").text
    text = text_of(page)

    link = f'href="/s/{new_name}@1.0.0/files/code/main.py?form=source#L2"'
    assert f"{link}>" in page
    assert "code/main.py , line 2" in text
    assert re.findall(r'data-n="(\d+)"', page) == ["1", "2", "3", "4"]
    assert re.search(r'<span class="failing" id="L2" data-n="2">', page)
    [carets] = re.findall(r'<span class="carets" data-n="">(.*)\n', page)
    assert carets == "\t" + " " * 23 + "~~~~^^^^^^^^^^^"
    assert text.count("'west<b>'") == 4  # the message, the remedy, the failing line, and the line in the traceback
    assert '<details class="fold" open><summary><h2 id="traceback">' in page


def test_failing_line_needs_the_right_to_read_the_skill(tokens_sqlite: Server, new_name: str) -> None:
    ann = token_of(tokens_sqlite, f"{new_name}-ann", "read", "run", "publish", namespaces=[f"{new_name}.*"])
    bob = token_of(tokens_sqlite, f"{new_name}-bob", "read", "run")
    name = f"{new_name}.fails"
    publisher(Rpc(tokens_sqlite.url, ann))(name, code=FAILS)
    address = f"/runs/{Rpc(tokens_sqlite.url, bob)('execute_skill', name=name)['run_id']}"
    browser = Browser(tokens_sqlite.url, **HTML)
    assert browser.sign_in(bob).status_code == 303
    assert "Failing line" in browser.get(address).text

    Rpc(tokens_sqlite.url, ann)("set_visibility", name=name, visibility="private")

    page = browser.get(address)
    assert page.status_code == 200
    assert "Failing line" not in page.text


@pytest.mark.parametrize(
    ("language", "code", "line"),
    [
        ("python", "import json\ndef main(args):\n    return 1 / len(args)\n", 3),
        ("javascript", "export function main(args) {\n  return args.a.b;\n}\n", 2),
    ],
)
def test_run_of_code_shows_the_code_with_its_failing_line(server: Server, language: str, code: str, line: int) -> None:
    run = server.rpc("run_code", language=language, code=code)
    page = Browser(server.url, **HTML).get(f"/runs/{run['run_id']}").text

    assert run["status"] == "failed"
    assert re.search(rf'<span class="failing" id="L{line}" data-n="{line}">', page)
    assert re.findall(r'data-n="(\d+)"', page) == ["1", "2", "3"]
    assert page.index('id="code"') < page.index('id="traceback"') < page.index('id="log"')


def test_downloads_have_the_names_of_the_parts(sqlite_server: Server) -> None:
    run = run_code(sqlite_server, EACH_VIEW)
    browser = Browser(sqlite_server.url, **HTML)
    at = f"/runs/{run['run_id']}/raw"
    table = browser.get(f"{at}/weekly")

    assert table.headers["content-disposition"].startswith('inline; filename="weekly.csv"')
    assert "sandbox" in table.headers["content-security-policy"]
    assert table.text.splitlines()[:2] == ["week,north,formula", "2026-W36,41152,'=1+1"]
    assert browser.get(f"{at}/output.json").json() == run["output"]
    assert browser.get(f"{at}/note.md").text == "# Good\n\nweek"
    assert 'filename="key.csv"' in browser.get(f"{at}/key.csv").headers["content-disposition"]
    assert browser.get(f"{at}/key.csv").text == "a;b\n1;2\n"
    assert browser.get(f"{at}/deep/rule.py").text.startswith("def rate")
    assert 'filename="picture.svg"' in browser.get(f"{at}/picture.svg").headers["content-disposition"]
    for name in ("none", "..%2f..%2fetc", "%00", "values%2fx", "blob:x"):
        assert browser.get(f"{at}/{name}").status_code == 404
        assert browser.get(f"/runs/{run['run_id']}/parts/{name}").status_code == 404


def test_parts_of_other_users_do_not_exist(tokens_sqlite: Server, new_name: str) -> None:
    owner = token_of(tokens_sqlite, new_name, "read", "run")
    other = token_of(tokens_sqlite, f"{new_name}-other", "read", "run")
    run = Rpc(tokens_sqlite.url, owner)("run_code", language="python", code="def main(args):\n    return {'a': 1}\n")
    for token, status in ((owner, 200), (other, 404)):
        browser = Browser(tokens_sqlite.url, **HTML)
        assert browser.sign_in(token).status_code == 303
        paths = ("parts/values", "parts/output.json", "parts/output.json?form=source", "raw/output.json", "files.zip")
        for path in paths:
            assert browser.get(f"/runs/{run['run_id']}/{path}").status_code == status


NAMES = r"""
import os
from runtime import blobs
def main(args):
    os.makedirs("out/Sub")
    for name in args["names"]:
        with open(os.path.join("out", name), "w") as file: file.write(name)
    return {"../up": "# Up", "CON": "# Device", "notes": "long text " * 30,
            "picture": blobs.write_text("<svg xmlns='http://www.w3.org/2000/svg'/>", kind="image/svg+xml")}
"""


@pytest.mark.full
def test_archive_of_a_run_has_all_parts_with_safe_names(server: Server) -> None:
    names = ["report.txt", "Report.txt", "a:b?.csv", "end.", "aux.txt", "output.json", "Sub/\u202egpj.exe"]
    run = run_code(server, NAMES, names=names)
    browser = Browser(server.url, **HTML)
    answer = browser.get(f"/runs/{run['run_id']}/files.zip")
    assert f'href="/runs/{run["run_id"]}/files.zip" download' in browser.get(f"/runs/{run['run_id']}").text

    assert answer.headers["content-type"] == "application/zip"
    assert answer.headers["content-disposition"].startswith(f'attachment; filename="{run["run_id"]}.zip"')
    assert "sandbox" in answer.headers["content-security-policy"]
    with zipfile.ZipFile(io.BytesIO(answer.content)) as archive:
        assert archive.testzip() is None
        made = {name: archive.read(name).decode() for name in archive.namelist()}
    assert json.loads(made.pop("output.json (2)")) == run["output"]
    assert made.pop("picture.svg").startswith("<svg")
    assert made.pop("notes") == "long text " * 30
    assert made.pop(".._up.md") == "# Up"
    assert made.pop("_CON.md") == "# Device"
    assert made == {
        "Report.txt": "Report.txt",
        "2 report.txt": "report.txt",
        "a_b_.csv": "a:b?.csv",
        "end": "end.",
        "_aux.txt": "aux.txt",
        "output.json": "output.json",
        "Sub/\ufffdgpj.exe": "Sub/\u202egpj.exe",
    }
    assert browser.get(f"/runs/{run['run_id']}/raw/output.json (2)").json() == run["output"]


def test_archive_of_a_run_without_outputs_is_empty(sqlite_server: Server) -> None:
    browser = Browser(sqlite_server.url, **HTML)

    def entries(value: str) -> list[str]:
        run = run_code(sqlite_server, f"def main(args):\n    return {value}\n")
        return zipfile.ZipFile(io.BytesIO(browser.get(f"/runs/{run['run_id']}/files.zip").content)).namelist()

    assert [entries(value) for value in ("None", "5")] == [[], ["values.json"]]


def test_archive_of_too_many_parts_is_refused(sqlite_server: Server) -> None:
    run = run_code(sqlite_server, "def main(args):\n    return {f'a{i}': [{'b': 1}] for i in range(1001)}\n")
    answer = Browser(sqlite_server.url, **HTML).get(f"/runs/{run['run_id']}/files.zip")

    assert answer.status_code == 413
    assert "more than 1000 parts" in answer.text


@pytest.mark.full
def test_archive_over_its_limit_is_refused_before_it_begins(sqlite_server: Server) -> None:
    code = """
from runtime import blobs
def main(args):
    left_out = {"a": 0, "b": 0, "c": 0, "d": 100}  # of the 256 MiB that a run may write as blobs
    files = {name: blobs.write_bytes(b"x" * ((64 << 20) - size)) for name, size in left_out.items()}
    return {**files, "note": "long " * 60}
"""
    run = run_code(sqlite_server, code)
    answer = Browser(sqlite_server.url, **HTML).get(f"/runs/{run['run_id']}/files.zip")

    assert answer.status_code == 413
    assert "Download them one by one" in answer.text


SLOW = r"""
import os
def main(args):
    os.makedirs("out")
    with open("out/bomb.md", "w") as file: file.write("first line\n\n" + "[" * 60_000)
    with open("out/good.csv", "w") as file: file.write("city,amount\nBern,1\n")
    with open("out/quotes.csv", "w") as file: file.write('a,b\n' + '"' * 300_001)
    with open("out/deep.json", "w") as file: file.write("[" * 50_000)
    return {"total": 1}
"""


@pytest.mark.full
def test_slow_part_is_text_next_to_other_views(sqlite_server: Server) -> None:
    run = run_code(sqlite_server, SLOW)
    browser = Browser(sqlite_server.url, **HTML)
    answer = browser.get(f"/runs/{run['run_id']}")
    text = text_of(answer.text)

    assert answer.status_code == 200
    assert "Showing this part takes too long, so this is its start as text." in text
    assert "first line" in text
    assert "table, 1 row × 2 columns" in text
    assert len(answer.text) < 200_000
    for name in ("bomb.md", "quotes.csv", "deep.json"):
        assert browser.get(f"/runs/{run['run_id']}/parts/{name}").status_code == 200


LARGE = r"""
import os
def main(args):
    os.makedirs("out")
    with open("out/large.png", "wb") as file: file.write(b"\x89PNG\r\n\x1a\n" + bytes(20_000_000))
    with open("out/large.svg", "w") as file: file.write("<svg xmlns='http://www.w3.org/2000/svg'>" + " " * 5_000_000)
"""


@pytest.mark.full
def test_pictures_above_their_bound_are_not_shown(sqlite_server: Server) -> None:
    at = f"/runs/{run_code(sqlite_server, LARGE)['run_id']}"
    browser = Browser(sqlite_server.url, **HTML)
    for path in (at, f"{at}/parts/large.png", f"{at}/parts/large.svg"):
        answer = browser.get(path)

        assert answer.status_code == 200
        assert "<img" not in answer.text
        assert ("Pictures over 20 MB are not shown." in answer.text) == ("svg" not in path)


HOSTILE = r"""
import os
def main(args):
    os.makedirs("out")
    run = "<script>window.__pwned=1</script><img src=x onerror=window.__pwned=2>"
    def write(name, text):
        with open(os.path.join("out", name), "w") as file: file.write(text)
    write("cells.csv", "=HYPERLINK(1)," + run + "\n@SUM(1),\u202eevil\n")
    write("text.md", "# " + run + "\n\n![x](http://evil.example/x.png) [a](javascript:window.__pwned=3)\n\n"
        "![up](../../../logout) <iframe src=/account></iframe>\n")
    write("active.svg", "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 9 9' onload='parent.__pwned=4'>"
        "<script>parent.__pwned=5</script><image href='http://evil.example/y.png'/></svg>")
    write("page.html", "<title>stolen</title>" + run)
    write("data.json", '{"__proto__": {"polluted": 1}, "k": "' + run + '"}')
    write("lines.jsonl", '{"a": "' + run + '", "b": 1}\n' * 3)
    write("fake.png", "<html>" + run)
    return {run: run, "../../logout": "# " + run, "table" + run: [{run: 1, "b": run}] * 3, "n": float("1e300")}
"""


@pytest.mark.full
@pytest.mark.asyncio(loop_scope="session")
async def test_hostile_parts_are_shown_without_effect(sqlite_server: Server, open_page: OpenPage) -> None:
    run = await asyncio.to_thread(lambda: run_code(sqlite_server, HOSTILE))
    at = f"/runs/{run['run_id']}"
    page = await open_page(sqlite_server, at)
    title = await page.title()
    links = await page.locator(".part-card header a, .part-foot a").evaluate_all("all => all.map(a => a.pathname)")
    for path in [at, *dict.fromkeys(link for link in links if "/parts/" in link)]:
        assert await faults(page, path) == []
        assert await page.evaluate("[window.__pwned, {}.polluted]") == [None, None], path
        assert await page.locator("main iframe:not([sandbox='']), main script").count() == 0
    assert all(link.startswith(at) for link in links)
    # Of the page in the frame, the browser reports its script and its picture.
    assert [text for text in await problems(page) if f"{at}/frame/" not in text] == []
    await page.goto(at)
    assert await page.title() == title
    assert "<script>window.__pwned=1</script>" in await page.locator("main").inner_text()


@pytest.mark.full
@pytest.mark.asyncio(loop_scope="session")
async def test_table_is_sorted_by_keyboard_without_javascript(sqlite_server: Server, open_page: OpenPage) -> None:
    run = await asyncio.to_thread(lambda: run_code(sqlite_server, EACH_VIEW))
    page = await open_page(sqlite_server, f"/runs/{run['run_id']}", javascript=False)
    card = page.get_by_role("region", name="orders.csv", exact=True)
    await card.get_by_role("link", name="All rows, sort and filter").click()
    await page.get_by_role("link", name="amount").focus()
    await page.keyboard.press("Enter")
    await page.locator("th[aria-sort=descending]", has_text="amount").wait_for()
    await page.get_by_label("Rows with").fill("bern")
    await page.keyboard.press("Enter")
    await page.get_by_text("to 100 of 166 that match").wait_for()

    await expect(page.locator("th[aria-sort=descending]")).to_have_count(1)


ANY_NAMES = r"""
import os
def main(args):
    os.makedirs("out")
    for name, text in {"output.json": "[1]", "half.json": '{"a": "\\ud800"}', "note": "of a file"}.items():
        with open(os.path.join("out", name), "w") as file: file.write(text)
    long = "long text " * 30
    return {"values": [{"a": 1, "b": 2}] * 3, "note": long, "note (2)": long, "note ": long}
"""


def test_each_name_in_an_output_is_that_of_a_part(sqlite_server: Server) -> None:
    run = run_code(sqlite_server, ANY_NAMES)
    browser = Browser(sqlite_server.url, **HTML)
    page = browser.get(f"/runs/{run['run_id']}").text
    names = re.findall(r'<h2 id="part-\d+"><bdi class="foreign">(.*?)</bdi></h2>', page)
    at = f"/runs/{run['run_id']}/raw"

    assert names == ["values", "note (2)", "note (2) (2)", "note (3)", "half.json", "note", "output.json"]
    assert "table, 3 rows × 2 columns" in text_of(page)
    assert text_of(page).count("so this is its start as text") == 1
    assert browser.get(f"{at}/note").text == "of a file"
    assert browser.get(f"{at}/output.json").text == "[1]"
    assert browser.get(f"{at}/output.json (2)").json() == run["output"]


def test_drawing_without_a_path_is_a_picture(sqlite_server: Server) -> None:
    code = """
from runtime import blobs
def main(args):
    return {"chart": blobs.write_text("<svg xmlns='http://www.w3.org/2000/svg'/>", kind="image/svg+xml")}
"""
    run = run_code(sqlite_server, code)
    browser = Browser(sqlite_server.url, **HTML)
    [picture] = re.findall(r'<img src="([^"]*)" alt="chart.svg"', browser.get(f"/runs/{run['run_id']}").text)

    assert browser.get(picture).headers["content-type"] == "image/svg+xml"


@pytest.mark.full
def test_parts_after_the_eighth_say_their_usual_kind(sqlite_server: Server) -> None:
    code = """
import os
def main(args):
    os.makedirs("out")
    for number in range(9):
        with open(f"out/{number}.csv", "w") as file: file.write("a\\n1\\n")
"""
    run = run_code(sqlite_server, code)
    page = text_of(Browser(sqlite_server.url, **HTML).get(f"/runs/{run['run_id']}").text)

    assert page.count("Open it on a page of its own") == 1
    assert page.count("CSV file") == 3  # in the list of parts, as the head of the part and in its place


@pytest.mark.full
def test_download_of_a_large_output_is_complete(sqlite_server: Server) -> None:
    run = run_code(sqlite_server, "def main(args):\n    return {'text': 'x' * 11_000_000}\n")
    answer = Browser(sqlite_server.url, **HTML).get(f"/runs/{run['run_id']}/raw/output.json")

    assert answer.json() == {"text": "x" * 11_000_000}
