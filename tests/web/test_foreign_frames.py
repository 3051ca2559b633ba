"""HTML and PDF of runs and skills in frames: they are shown, run nothing, request nothing, and have no origin."""

from __future__ import annotations

import asyncio
import itertools
import re

import pytest

from tests.conftest import Rpc, Server, manifest, skill_files
from tests.support.browser import Browser, token_of
from tests.support.chromium import OpenPage, check_axe, overflow, problems
from tests.web.test_run_parts import run_code

HTML = {"accept": "text/html", "sec-fetch-dest": "document"}
IN_FRAME = {"sec-fetch-dest": "iframe"}
PAGES = r"""
import os
from runtime import blobs
CANARY = "<script>parent.__pwned = top.document.title = 'pwned'; fetch('/account')</script>"
PAGE = ("<!doctype html><title>stolen</title><h1>Weekly report</h1>" + CANARY + "<img src='/s/canary'>"
    "<img src=x onerror=parent.__pwned=1><meta http-equiv=refresh content='0; url=/account'>"
    "<a target=_top href=/logout>out</a><form action=/canary><button>Send</button></form>"
    "<script>document.forms[0].submit()</script><iframe src=/account></iframe><link rel=stylesheet href=/canary.css>")
def main(args):
    os.makedirs("out")
    def write(name, text):
        with open(os.path.join("out", name), "wb") as file: file.write(text)
    write("page.html", PAGE.encode())
    write("plan.pdf", b"%PDF-1.4\n1 0 obj<</Type/Catalog/Pages 2 0 R>>endobj 2 0 obj<</Type/Pages/Kids[3 0 R]/Count 1>>"
        b"endobj 3 0 obj<</Type/Page/MediaBox[0 0 99 99]/Parent 2 0 R>>endobj trailer<</Root 1 0 R>>")
    write("evil.pdf", b"%PDF-<script>parent.__pwned=2</script>")
    write("evil.html", b"%PDF-<script>parent.__pwned=2</script>")
    write("note.txt", PAGE.encode())
    return {"digest": blobs.write_text("<h1>By kind</h1>", kind="text/html")}
"""


def blobs_of(run: dict[str, object]) -> dict[str, str]:
    files = run["files"]
    assert isinstance(files, list)
    return {file["path"]: file["blob_id"] for file in files}


def test_frames_answer_only_html_and_pdf_to_frames(sqlite_server: Server) -> None:
    run = run_code(sqlite_server, PAGES)
    browser = Browser(sqlite_server.url, **HTML)
    types = {"page.html": "text/html; charset=utf-8", "plan.pdf": "application/pdf", "evil.pdf": "application/pdf"}
    for path, blob_id in blobs_of(run).items():
        at = f"/runs/{run['run_id']}/frame/{blob_id}"
        framed, direct = browser.http.get(at, headers=IN_FRAME), browser.get(at)
        policy = framed.headers["content-security-policy"]
        assert policy.startswith("sandbox; default-src 'none'; ")
        assert "script" not in policy
        assert framed.headers["x-content-type-options"] == "nosniff"
        expected = types.get(path, "application/pdf" if path == "evil.html" else "application/octet-stream")
        assert framed.headers["content-type"] == expected
        assert ("frame-ancestors 'self'" in policy) == (path != "note.txt")
        assert framed.headers["content-disposition"].startswith("attachment" if path == "note.txt" else "inline")
        assert direct.headers["content-disposition"].startswith("attachment")
        assert "frame-ancestors 'none'" in direct.headers["content-security-policy"]
        assert direct.headers["etag"] != framed.headers["etag"]
    at = f"/runs/{run['run_id']}/frame/{run['output']['digest']}"
    assert "By kind" in browser.http.get(at, headers=IN_FRAME).text
    kept = {**IN_FRAME, "if-none-match": browser.http.get(at, headers=IN_FRAME).headers["etag"]}
    unchanged = browser.http.get(at, headers=kept)
    assert (unchanged.status_code, unchanged.headers.get("content-security-policy")) == (304, None)


def test_browser_without_request_destinations_gets_the_source(sqlite_server: Server) -> None:
    run = run_code(sqlite_server, PAGES)
    at = f"/runs/{run['run_id']}"

    assert "<iframe" not in Browser(sqlite_server.url, accept="text/html").get(at).text
    page = Browser(sqlite_server.url, **HTML).get(at).text
    assert re.findall(r"<iframe class=\"frame\"( sandbox)? src", page) == [" sandbox", "", "", " sandbox", ""]
    source = Browser(sqlite_server.url, **HTML).get(f"{at}/parts/page.html?form=source").text
    assert "<iframe" not in source
    assert "Weekly report" in source


def test_frames_need_the_rights_of_the_file(tokens_sqlite: Server, new_name: str) -> None:
    owner = token_of(tokens_sqlite, new_name, "read", "run", "publish", namespaces=[f"{new_name}.*"])
    other = token_of(tokens_sqlite, f"{new_name}-other", "read", "run")
    rpc = Rpc(tokens_sqlite.url, owner)
    files = [*skill_files(PAGES), {"path": "resources/page.html", "content": "<h1>Hello</h1>"}]
    rpc("create_skill", manifest=manifest(f"{new_name}.page", "1.0.0"), skill_md="# Page\n", files=files)
    rpc("set_visibility", name=f"{new_name}.page", visibility="private")
    blob_id = blobs_of(run := rpc("execute_skill", name=f"{new_name}.page"))["page.html"]
    for token, status in ((owner, 200), (other, 404)):
        browser = Browser(tokens_sqlite.url, **HTML)
        assert browser.sign_in(token).status_code == 303
        for at in (f"/runs/{run['run_id']}/frame/{blob_id}", f"/s/{new_name}.page@1.0.0/frame/resources/page.html"):
            assert browser.http.get(at, headers=IN_FRAME).status_code == status


@pytest.mark.full
@pytest.mark.asyncio(loop_scope="session")
async def test_foreign_page_in_a_frame_runs_and_requests_nothing(sqlite_server: Server, open_page: OpenPage) -> None:
    run = await asyncio.to_thread(lambda: run_code(sqlite_server, PAGES))
    at = f"/runs/{run['run_id']}"
    page = await open_page(sqlite_server, at)
    title = await page.title()
    answers: list[str] = []
    page.context.on("response", lambda response: answers.append(response.url))
    for width, path in itertools.product((390, 1280), (f"{at}/parts/page.html", at)):
        await page.set_viewport_size({"width": width, "height": 800})
        await page.goto(path)
        frame = page.frame_locator("iframe[title^='page.html']")
        await page.locator("iframe[title^='page.html']").scroll_into_view_if_needed()
        await frame.get_by_text("Weekly report").wait_for()
        await frame.get_by_role("link", name="out").click()
        await frame.get_by_role("button", name="Send").click()

        assert page.url.endswith(path)
        assert await page.evaluate("window.__pwned") is None
        assert await page.title() == title or path != at
        assert await overflow(page) == []
        assert await check_axe(page) == []
    assert not [url for url in answers if "canary" in url or "/account" in url or "/logout" in url]
    for summary in await page.get_by_text("Show here", exact=True).all():
        await summary.click()
    assert await page.evaluate("window.__pwned") is None
    await problems(page)  # the console reports what the sandbox has blocked
