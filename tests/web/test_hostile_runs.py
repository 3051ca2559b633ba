"""Hostile logs, outputs, inputs and texts in a real browser: they are shown as text, in bounded size."""

from __future__ import annotations

import asyncio
import html
import re
from functools import partial
from typing import Any

import httpx
import pytest

from tests.conftest import Server
from tests.support.chromium import OpenPage, check_axe, overflow, problems
from tests.support.processes import own_seconds

pytestmark = pytest.mark.asyncio(loop_scope="session")
HTML = {"accept": "text/html"}
LOG = r"""
import sys, time
def main(args):
    say = lambda text: (sys.stdout.write(text), sys.stdout.flush())
    say("<img src=x onerror=window.__pwned=1><script>window.__pwned=2</script>\n")
    say("\x1b]0;stolen title\x07\x1b]2;stolen title\x1b\\")
    say("\x1b]8;;javascript:window.__pwned=3\x07the link\x1b]8;;\x07\n")
    say("\x1b[2J\x1b[1;1H\x1b[?1049hmoved\x1b[10A\x1b[K up\n")
    say("danger: removed all\rdone, all is well\n")
    say("\n\nevent: end\ndata: {}\n\nid: 999999999\nevent: status\ndata: {\"status\": \"completed\"}\n\n")
    say("\u202egnp.exe\u202c \u200bhidden\n")
    say("x" * (1 << 20) + "\n")
    time.sleep(300)
"""
OUTPUT = r"""
import os
def main(args):
    os.makedirs("out")
    def write(name, text): open(os.path.join("out", name), "w").write(text)
    write("cells.csv", "name,formula\nrow,\"=HYPERLINK(\"\"http://evil.example\"\")\"\n<b>bold</b>,@SUM(1)\n")
    write("page.html", "<!doctype html><title>t</title><script>parent.__pwned = document.title = 'pwned'</script>")
    write("picture.svg", "<svg xmlns='http://www.w3.org/2000/svg'><script>window.__pwned = 1</script></svg>")
    write("<img src=x onerror=window.__pwned=1>.txt", "x")
    deep = "bottom"
    for _ in range(150): deep = [deep]
    return {"<script>window.__pwned=1</script>": 1, "__proto__": {"polluted": True}, "constructor": "<b>x</b>",
            "deep": deep, "many": list(range(500)), "\u202e": "\u200b"}
"""


async def begin(server: Server, code: str, **args: Any) -> str:
    run = await asyncio.to_thread(
        lambda: server.rpc("run_code", language="python", code=code, args=args, background=True)
    )
    run_id: str = run["run_id"]
    return run_id


async def ended(server: Server, run_id: str) -> dict[str, Any]:
    run: dict[str, Any] = await asyncio.to_thread(lambda: server.rpc("get_run", run_id=run_id, wait_ms=60000))
    assert run["status"] == "completed", run
    return run


@pytest.mark.full
async def test_a_hostile_log_is_text_while_it_is_followed_and_after(sqlite_server: Server, open_page: OpenPage) -> None:
    run_id = await begin(sqlite_server, LOG)
    page = await open_page(sqlite_server, f"/runs/{run_id}")
    title = await page.title()
    await page.locator("[data-log]", has_text="hidden").wait_for()  # the last text before the long line
    live = await page.locator("[data-log]").inner_text()
    assert await page.locator("[data-status]").text_content() == "running"
    await asyncio.to_thread(lambda: sqlite_server.rpc("cancel_run", run_id=run_id))
    await page.get_by_role("link", name="Download the whole log").wait_for()
    await page.wait_for_load_state()
    log = await page.locator(".log").inner_text()

    for text in (live, log):
        assert "<img src=x onerror=window.__pwned=1>" in text
        assert "event: end" in text
        assert "done, all is well" in text
        assert "removed all" not in text
        assert "stolen title" not in text
        assert "moved up" in text
        assert "U+202E" in text or "\\u202e" in text
    assert await page.title() == title
    assert await page.locator(".log a").count() == 0
    assert await page.evaluate("window.__pwned") is None
    assert len(log) <= 64 * 1024  # the first part; the whole log is a download
    assert await page.get_by_text("This is the first part of the log.").count() == 1
    assert await overflow(page) == []


@pytest.mark.full
async def test_hostile_outputs_and_files_are_text(sqlite_server: Server, open_page: OpenPage) -> None:
    run_id = await begin(sqlite_server, OUTPUT)
    run = await ended(sqlite_server, run_id)
    page = await open_page(sqlite_server, f"/runs/{run_id}")
    title = await page.title()
    text = await page.locator("main").inner_text()

    for shown in ("<script>window.__pwned=1</script>", "__proto__", '=HYPERLINK("http://evil.example")', "@SUM(1)"):
        assert shown in text
    assert "U+202E" in text
    assert await page.locator(".json li").count() <= 203
    assert await check_axe(page) == []
    await page.locator("#output").click()
    await page.get_by_role("link", name="Show more").click()
    await page.locator(".json li").nth(500).wait_for(state="attached")
    assert "12 levels deep" in await page.content()
    assert await check_axe(page) == []
    await page.goto(f"/runs/{run_id}")
    for one in run["files"]:
        raw = await page.context.new_page()
        answer = await raw.goto(f"{sqlite_server.url}/runs/{run_id}/blobs/{one['blob_id']}")
        assert answer is not None
        assert answer.headers["content-type"].partition(";")[0] in {"text/plain", "image/svg+xml"}
        assert await raw.evaluate("window.__pwned") is None
        await raw.close()
    assert await page.evaluate("[window.__pwned, {}.polluted]") == [None, None]
    assert await page.title() == title
    await problems(page)  # the raw picture may report its blocked script


LONG_LINE = r"""
import time
def main(args):
    print("<b>first</b>" + "x" * (1 << 20) + "\x1b]0;title\x07end of the line")
    print("after the long line", flush=True)
    time.sleep(300)
"""


@pytest.mark.full
async def test_a_line_of_a_mebibyte_is_followed_and_bounded(sqlite_server: Server, open_page: OpenPage) -> None:
    run_id = await begin(sqlite_server, LONG_LINE)
    page = await open_page(sqlite_server, f"/runs/{run_id}", width=390)
    title = await page.title()
    await page.locator("[data-log]", has_text="after the long line").wait_for()
    live = str(await page.locator("[data-log]").text_content())

    assert live.startswith("<b>first</b>xxx")
    assert "end of the line\nafter" in live or "bytes were not kept" in live
    assert len(live) <= (1 << 20) + 4096
    assert await overflow(page) == []
    await page.get_by_role("button", name="Cancel").click()
    whole = page.get_by_role("link", name="Download the whole log")
    await whole.wait_for()
    assert len(await page.locator(".log").inner_text()) <= 64 * 1024
    async with page.expect_download() as waiting:
        await whole.click()
    assert (await waiting.value).suggested_filename == "log.txt"
    assert await page.title() == title
    assert await overflow(page) == []


DEEP = r"""
import os
def main(args):
    os.makedirs("out")
    deep = "[" * 10_000 + "]" * 10_000
    for name in ("deep.json", "deep.ipynb", "a\r\nset-cookie: stolen=1\r\n\r\n<b>.txt"):
        with open(os.path.join("out", name), "w") as file: file.write(deep)
    value = []
    for _ in range(args["depth"]): value = [value]
    return value
"""


@pytest.mark.full
@pytest.mark.parametrize(
    ("depth", "status", "says"),
    [
        (0, "completed", "returned a list of 0 items"),
        (10_000, "failed", "the output is not JSON: maximum recursion depth exceeded"),
    ],
)
async def test_a_deep_output_and_deep_files_break_no_page(
    sqlite_server: Server, open_page: OpenPage, depth: int, status: str, says: str
) -> None:
    run_id = await begin(sqlite_server, DEEP, depth=depth)
    run = await asyncio.to_thread(lambda: sqlite_server.rpc("get_run", run_id=run_id, wait_ms=60000))
    page = await open_page(sqlite_server, f"/runs/{run_id}")
    text = await page.locator("main").text_content()

    assert (run["status"], len(run["files"])) == (status, 3)
    assert text is not None
    assert says in text
    assert r"a\x0d\nset-cookie: stolen=1\x0d\n\x0d\n<b>.txt" in text
    assert await page.locator("main b").count() == 0
    assert await overflow(page) == []
    for one in run["files"]:
        answer = await page.context.request.get(f"/runs/{run_id}/blobs/{one['blob_id']}")
        assert answer.status == 200
        assert answer.headers["content-type"] == "text/plain; charset=utf-8"
        assert "set-cookie" not in answer.headers


@pytest.mark.full
async def test_a_blob_that_claims_to_be_a_page_is_a_download(sqlite_server: Server, open_page: OpenPage) -> None:
    page = await open_page(sqlite_server, "/account")
    for kind, content in (
        ("text/html", "<script>window.__pwned = 1</script>"),
        ("image/svg+xml", "<svg xmlns='http://www.w3.org/2000/svg'><script>window.__pwned = 1</script></svg>"),
        ("text/javascript", "window.__pwned = 1"),
    ):
        create_blob = partial(sqlite_server.rpc, "create_blob", content=content, kind=kind)
        blob = await asyncio.to_thread(create_blob)
        address = f"{sqlite_server.url}/blobs/{blob['blob_id']}"
        answer = await page.context.request.get(address)
        assert answer.headers["content-disposition"].startswith("attachment")
        async with page.expect_download() as waiting:
            await page.evaluate("address => { location = address; }", address)
        await (await waiting.value).delete()
        assert page.url == f"{sqlite_server.url}/account"
        assert await page.evaluate("window.__pwned") is None


@pytest.mark.full
async def test_a_skill_with_ten_thousand_inputs_can_be_tried(
    sqlite_server: Server, open_page: OpenPage, new_name: str
) -> None:
    names = ["__proto__", "constructor", "_token", "form_token", "form", "action", "tool", "key", "more"]
    names += [f"input{number}" for number in range(9_991)]
    manifest = {
        "name": new_name,
        "version": "1.0.0",
        "kind": "action",
        "description": "Many inputs.",
        "inputs": {name: {"type": "string"} for name in names},
        "runtime": {"language": "python", "entrypoint": "code/main.py"},
    }
    files = [{"path": "code/main.py", "content": "def main(args):\n    return args\n"}]
    answer = await asyncio.to_thread(
        lambda: sqlite_server.rpc.send("create_skill", {"manifest": manifest, "skill_md": "# x\n", "files": files})
    )
    if "error" in answer:  # the server refuses so many inputs: then the form has as many as it accepts
        assert answer["error"]["data"]["type"]
        manifest["inputs"] = {name: {"type": "string"} for name in names[:100]}
        await asyncio.to_thread(
            lambda: sqlite_server.rpc("create_skill", manifest=manifest, skill_md="# x\n", files=files)
        )
    page = await open_page(sqlite_server, f"/s/{new_name}/try")
    for number in range(9):
        await page.locator(f"#a{number}").fill(f"value {number}")
    assert await page.locator("form.card input").count() < 300
    await page.get_by_role("button", name=f"Run {new_name}").click()
    await page.wait_for_url("**/runs/run_*")
    run = await ended(sqlite_server, page.url.rpartition("/")[2])
    await page.get_by_role("link", name="Run again").wait_for()

    assert run["output"] == {name: f"value {number}" for number, name in enumerate(names[:9])}


SLOW = r"""
import os
def main(args):
    os.makedirs("out")
    def write(name, text): open(os.path.join("out", name), "w").write(text + args["end"])
    write("bomb.md", "[" * 60_000)
    write("quotes.csv", "a,b\n" + '"' * 300_001)
    write("deep.json", "[" * 50_000)
    write("wide.csv", ",".join("abc") + ("\n" + "1," * 99) * 9_000)
    write("map.svg", "<svg xmlns='http://www.w3.org/2000/svg'>" + "<g>" * 50_000)
    write("cells.ipynb", '{"nbformat": 4, "cells": [' + "[" * 40_000)
"""
MOST_SECONDS_OF_A_PAGE = 0.3
"""Processor time of the server's own process for one page. A health check waits no longer than this."""


@pytest.mark.full
async def test_bombs_are_shown_in_part_while_other_pages_answer(sqlite_server: Server, new_name: str) -> None:
    def publish(version: str, lines: str, skill_md: str) -> None:
        manifest = {"name": new_name, "version": version, "kind": "instruction", "description": "Bombs."}
        files = [{"path": f"resources/{number}.txt", "content": lines} for number in range(3)]
        sqlite_server.rpc("create_skill", manifest=manifest, skill_md=skill_md, files=files)

    async def bombs(major: int) -> list[str]:
        """Return the addresses of pages whose contents no earlier page had."""
        table = "|" + "x|" * 480 + "\n"
        old, new = f"{major}.0.0", f"{major + 1}.0.0"
        publish(old, f"{old}\n" + "a\nb\n" * 30_000, f"# {old}\n" + "[" * 50_000)
        publish(new, f"{new}\n" + "b\na\n" * 30_000, f"# {new}\n\n" + table + "|" + "-|" * 480 + "\n" + table * 90)
        skill = f"/s/{new_name}@{new}"
        run = f"/runs/{await begin(sqlite_server, SLOW, end=new)}"
        await ended(sqlite_server, run.rpartition("/")[2])
        parts = [f"{run}/parts/{name}" for name in re.findall(r'write\("([^"]+)"', SLOW)]
        return [f"{skill}/diff/{old}", skill, f"/s/{new_name}@{old}", f"{skill}/diff/{old}?show=rendered", run, *parts]

    pid = sqlite_server.process.pid
    async with httpx.AsyncClient(base_url=sqlite_server.url, headers=HTML, timeout=300) as client:
        for path in await bombs(1):
            before = own_seconds(pid)
            await client.get(path)
            assert own_seconds(pid) - before <= MOST_SECONDS_OF_A_PAGE, path

        waiting = [asyncio.ensure_future(client.get(path)) for path in await bombs(3)]
        for path in ("/healthz", "/runs") * 3:
            assert (await client.get(path)).status_code == 200
            assert not all(one.done() for one in waiting), f"{path} was answered after all bombs"
        found = [await one for one in waiting]

    assert {answer.status_code for answer in found} == {200}
    for answer in found:
        assert len(answer.text) < 4_000_000
    text = html.unescape(re.sub(r"<[^>]+>", "", found[0].text))
    assert text.count("the texts differ too much to compare their lines") == 3
    assert found[0].text.partition('id="changed"')[2].count('class="diff"') == 1  # that of skill.toml
