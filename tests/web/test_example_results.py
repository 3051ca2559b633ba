"""The results of examples on the page of a skill: views, files, bounds, and what nobody sees."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.conftest import Rpc, Server
from tests.support.browser import Browser, token_of
from tests.support.chromium import OpenPage, faults, problems
from tests.support.shown_skill import PNG

HTML = {"accept": "text/html"}
CODE = f"""import os
def main(args):
    form = args["form"]
    if form == "error":
        raise ValueError("as expected")
    if form == "large":
        return {{"text": "x" * args["size"]}}
    os.makedirs("/workspace/out", exist_ok=True)
    open("/workspace/out/dot.png", "wb").write({PNG!r})
    open("/workspace/out/page.html", "w").write("<script>window.__pwned = 1</script>")
    return {{"rows": [{{"city": "<b>Bern</b>", "amount": 4}}, {{"city": "Basel", "amount": 3}}], "sum": 7}}
"""


def publish(rpc: Rpc, name: str, examples: list[dict[str, Any]], **more: Any) -> None:
    manifest = {
        "name": name,
        "version": "1.0.0",
        "kind": "action",
        "description": "Return tables.",
        "inputs": {"form": {"type": "string"}, "size": {"type": "integer", "default": 20_000}},
        "runtime": {"language": "python", "entrypoint": "code/main.py"},
        "examples": examples,
        **more,
    }
    rpc("create_skill", manifest=manifest, skill_md="# It\n", files=[{"path": "code/main.py", "content": CODE}])


EXAMPLES: list[dict[str, Any]] = [
    {"name": "fails", "args": {"form": "error"}, "expect_error": "ValueError"},
    {"name": "table", "args": {"form": "table"}, "expect_subset": {"sum": 7}},
    {"name": "large", "args": {"form": "large"}},
]


def test_page_shows_the_results_of_examples(server: Server, new_name: str) -> None:
    publish(server.rpc, new_name, EXAMPLES[:2])
    browser = Browser(server.url, **HTML)
    path = f"/s/{new_name}@1.0.0"
    page = browser.get(path).text
    picture = re.search(rf'<img src="({path}/examples/2/[^"]+)"', page)
    assert picture is not None
    files = set(re.findall(rf'href="({path}/examples/2/[^"]+)" download', page))
    answers = {browser.get(address).headers["content-disposition"]: browser.get(address) for address in files}

    assert '<a href="?example=2#examples" aria-current="true">' in page
    assert "?example=1#examples" not in page
    assert "&lt;b&gt;Bern&lt;/b&gt;" in page
    assert "table, 2 rows × 2 columns" in page
    assert browser.get(picture[1]).content == PNG
    html = next(answer for name, answer in answers.items() if "page.html" in name)
    assert html.headers["content-type"] == "text/plain; charset=utf-8"
    assert "sandbox" in html.headers["content-security-policy"]
    for wrong in ("2/blob:none", "1/x", "9999/x", "²/x"):
        assert browser.get(f"{path}/examples/{wrong}").status_code == 404, wrong


def test_a_large_output_is_shown_if_its_example_is_chosen(sqlite_server: Server, new_name: str) -> None:
    publish(sqlite_server.rpc, new_name, EXAMPLES[1:])
    browser = Browser(sqlite_server.url, **HTML)
    shown = {number: browser.get(f"/s/{new_name}?example={number}").text for number in ("2", "0", "999")}

    assert "x" * 1000 in shown["2"]
    assert ["Bern" in text for text in shown.values()] == [False, True, True]


def test_results_stay_when_their_runs_and_blobs_are_gone(server: Server, new_name: str) -> None:
    publish(server.rpc, new_name, EXAMPLES[1:2])
    browser = Browser(server.url, **HTML)
    path = f"/s/{new_name}@1.0.0"
    run_id = server.rpc("describe_skill", name=new_name)["skill"]["examples"][0]["run_id"]
    for blob in server.rpc("get_run", run_id=run_id)["output_blobs"]:
        server.rpc("delete_blob", blob_id=blob)
    picture = re.search(rf'<img src="({path}/examples/1/[^"]+)"', browser.get(path).text)

    assert picture is not None
    assert browser.get(picture[1]).content == PNG
    server.rpc("purge_version", name=new_name, version="1.0.0", reason="It leaks.")
    assert browser.get(picture[1]).status_code == 404
    assert "Bern" not in browser.get(path).text


def test_results_above_the_bound_are_left_out(sqlite_server: Server, new_name: str) -> None:
    sizes = (3_000_000, 2_000_000, 1_000_000)
    examples = [{"name": f"of {size}", "args": {"form": "large", "size": size}} for size in sizes]
    publish(sqlite_server.rpc, new_name, examples)
    page = Browser(sqlite_server.url, **HTML).get(f"/s/{new_name}").text

    assert re.findall(r"\?example=(\d)#examples", page) == ["1", "3"]


def test_results_that_needed_permissions_are_not_kept(tokens_sqlite: Server, new_name: str) -> None:
    token = token_of(tokens_sqlite, new_name, "read", "run", "publish", namespaces=["*"])
    other = token_of(tokens_sqlite, f"{new_name}-other", "read")
    rpc = Rpc(tokens_sqlite.url, token)
    permissions = {"network": ["https://example.com"], "secrets": []}
    examples = [{**EXAMPLES[1], "needs_permissions": True}, {**EXAMPLES[1], "name": "plain"}]
    publish(rpc, new_name, examples, permissions=permissions)
    browser, stranger = Browser(tokens_sqlite.url, **HTML), Browser(tokens_sqlite.url, **HTML)
    assert browser.sign_in(token).status_code == stranger.sign_in(other).status_code == 303
    page = stranger.get(f"/s/{new_name}").text
    picture = re.search(r'<img src="(/s/[^"]+/examples/[^"]+)"', page)

    assert re.findall(r"\?example=(\d)#examples", page) == ["2"]
    assert picture is not None
    assert stranger.get(picture[1]).status_code == 200
    rpc("set_visibility", name=new_name, visibility="private")
    assert (stranger.get(picture[1]).status_code, browser.get(picture[1]).status_code) == (404, 200)


def test_new_servers_show_the_results_of_bundled_skills(server: Server) -> None:
    browser = Browser(server.url, **HTML)
    page = browser.get("/s/text.csv.query").text
    [table] = set(re.findall(r'href="(/s/text.csv.query@1.0.0/examples/1/[^"]+)" download', page))
    results = {number: browser.get(f"/s/text.csv.profile?example={number}").text for number in (1, 2)}

    assert "country" in page
    assert "280" in page
    assert browser.get(table).text.splitlines() == ["country,revenue", "FR,280", "DE,220"]
    assert all('aria-current="true">' in text for text in results.values())
    # The third example is expected to fail.
    assert "?example=3#examples" not in results[1]


@pytest.mark.full
@pytest.mark.asyncio(loop_scope="session")
async def test_pages_with_results_have_no_fault(sqlite_server: Server, open_page: OpenPage, new_name: str) -> None:
    publish(sqlite_server.rpc, new_name, EXAMPLES)
    page = await open_page(sqlite_server, f"/s/{new_name}")
    for query in ("", "?example=3"):
        assert await faults(page, f"/s/{new_name}{query}") == []
        assert await problems(page) == [], query
        assert await page.evaluate("window.__pwned") is None
