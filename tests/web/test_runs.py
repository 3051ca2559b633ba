"""Pages of runs: try a skill, follow a run, its files and pictures, hostile logs and outputs, runs of other users."""

from __future__ import annotations

import asyncio
import html
import json
import re
import signal
from collections.abc import Callable
from contextlib import AsyncExitStack
from urllib.parse import urlencode

import httpx
import pytest

from skillery.web.run_log import parts_of
from tests.conftest import ASKS_FOR_TOKENS, Rpc, Server, manifest, publisher, skill_files
from tests.support.browser import Browser, part_of, token_of
from tests.support.chromium import OpenPage, faults, problems, squeezed
from tests.support.processes import eventually

HTML = {"accept": "text/html"}
CODE = """
import os, sys, time
from skillery.runtime import output_file
def main(args):
    print("\\x1b[31mred\\x1b[0m <script>window.__pwned = 1</script>")
    print("\\x1b]0;title\\x07\\x1b]8;;javascript:alert(1)\\x07link\\x1b]8;;\\x07")
    print("data: x\\n\\nevent: end\\ndata: {}\\n")
    time.sleep(args.get("seconds", 0))
    print("last line")
    os.makedirs("/workspace/out", exist_ok=True)
    open("/workspace/out/table.csv", "w").write("name,text\\nx,=HYPERLINK(1)\\n")
    open("/workspace/out/page.html", "w").write("<script>window.__pwned = 1</script>")
    return {"<img src=x onerror=alert(1)>": {"__proto__": [1, 2], "words": args}}
"""


def make(rpc: Rpc, name: str, **more: object) -> None:
    inputs = {
        "__proto__": {"type": "string", "description": "A <b>name</b>"},
        "form": {"type": "integer", "default": 3},
        "mode": {"type": "string", "enum": ["slow", "quick"]},
        "seconds": {"type": "number"},
        "is_dry": {"type": "boolean"},
        "rows": {"type": "array"},
        "file": {"type": "blob"},
    }
    manifest = {
        "name": name,
        "version": "1.0.0",
        "kind": "action",
        "description": "Print and return.",
        "inputs": inputs,
        "runtime": {"language": "python", "entrypoint": "code/main.py"},
        **more,
    }
    code = CODE.replace("from skillery.runtime import output_file\n", "")
    rpc("create_skill", manifest=manifest, skill_md="# It\n", files=[{"path": "code/main.py", "content": code}])


def start(browser: Browser, name: str, **fields: str) -> str:
    """Send the form of "Try it" and return the address of the run."""
    page = f"/s/{name}@1.0.0/try"
    found = browser.post(page, browser.fields(page) | fields)
    assert found.status_code == 303, found.text
    return found.headers["location"]


def ended(rpc: Rpc, address: str) -> dict[str, object]:
    def run() -> dict[str, object] | None:
        record: dict[str, object] = rpc("get_run", run_id=address.rpartition("/")[2], wait_ms=30000)
        return record if record["status"] in {"completed", "failed"} else None

    return eventually(run)


def test_a_form_runs_the_skill_with_typed_args(server: Server, new_name: str) -> None:
    make(server.rpc, new_name)
    browser = Browser(server.url, **HTML)
    form = {"a0": "x", "a1": "7", "a2": '"slow"', "a3": "0,5", "a4": "false", "a5": "[1]", "a6-text": "a;b"}
    address = start(browser, new_name, **form)
    run = ended(server.rpc, address)
    page = browser.get(address).text
    args = json.loads(html.unescape(part_of(page, 'aria-label="The args as JSON">(.*?)</pre>')))

    assert run["status"] == "completed", run
    assert args.pop("file").startswith("blob:")
    assert args == {"__proto__": "x", "form": 7, "mode": "slow", "seconds": 0.5, "is_dry": False, "rows": [1]}
    assert "last line" in page
    again = browser.get(part_of(page, r'href="(/runs/new\?run=[^"]*)"'))
    assert again.headers["location"] == f"/s/{new_name}@1.0.0/try?run={run['run_id']}"
    assert 'value="0.5"' in browser.get(again.headers["location"]).text


def test_a_call_of_a_tool_runs_again_with_its_args(sqlite_server: Server, new_name: str) -> None:
    parameters = {"text": {"type": "string", "description": "The text"}}
    tool = {"name": "say", "description": "Say it.", "script": "code/say.py", "parameters": parameters}
    files = [
        {"path": "tools.json", "content": json.dumps([tool])},
        {"path": "code/say.py", "content": "def handler(args):\n    return args['text']\n"},
    ]
    manifest = {"name": new_name, "version": "1.0.0", "kind": "action", "description": "Talk."}
    sqlite_server.rpc("create_skill", manifest=manifest, skill_md="# Talk\n", files=files)
    run_id = sqlite_server.rpc("call_tool", name=f"{new_name}/say", args={"text": "hello"})["run_id"]
    browser = Browser(sqlite_server.url, **HTML)
    form = browser.get(browser.get(f"/runs/new?run={run_id}").headers["location"]).text

    assert "Run say 1.0.0" in form
    assert 'value="hello"' in form


def test_code_runs_again_with_changes(server: Server) -> None:
    code = "def start(args):\n    return args['a'] + 1\n"
    run_id = server.rpc("run_code", language="python", code=code, entrypoint="start", args={"a": 1})["run_id"]
    browser = Browser(server.url, **HTML)
    again = f"/runs/new?run={run_id}"
    assert f'href="{again}"' in browser.get(f"/runs/{run_id}").text
    fields = browser.fields(again)
    sent = fields | {"language": "python", "code": code.replace("1", "10"), "args": '{"a": 5}', "entrypoint": "start"}

    assert html.unescape(browser.get(again).text).count(code) == 1
    assert ended(server.rpc, browser.post("/runs/new", sent).headers["location"])["output"] == 15
    refused = browser.post("/runs/new", sent | {"args": "[1]", "key": "other"})
    assert refused.status_code == 400
    assert "This must be an object" in refused.text
    assert "+ 10" in refused.text
    assert browser.post("/runs/new", sent | {"language": "cobol", "key": "third"}).status_code == 400


@pytest.mark.full
@pytest.mark.asyncio(loop_scope="session")
async def test_form_shows_defaults_as_ticks_and_words(
    sqlite_server: Server, open_page: OpenPage, new_name: str
) -> None:
    inputs = {
        "strict": {"type": "boolean", "default": False},
        "sorted": {"type": "boolean", "default": True},
        "mode": {"type": "string", "enum": ["slow", "quick"], "default": "quick"},
        "city": {"type": "string", "required": True},
        "weeks": {"type": "integer", "default": 12},
    }
    make(sqlite_server.rpc, new_name, inputs=inputs)
    browser = Browser(sqlite_server.url, **HTML)
    address = f"/s/{new_name}@1.0.0/try"
    form = browser.get(address).text
    assert re.findall(r'type="checkbox" name="(a\d)" value="true"( checked)?', form) == [("a0", ""), ("a1", " checked")]
    assert form.count("default: no") == form.count("default: yes") == 1
    assert 'value="&#34;quick&#34;" checked>' in form
    assert "left out" not in form
    assert 'placeholder="12"' in form
    assert "city is required." in browser.post(address, browser.fields(address)).text

    page = await open_page(sqlite_server, address)
    await page.get_by_label("strict").check()
    await page.get_by_label("sorted").uncheck()
    await page.get_by_label("slow").check()
    await page.get_by_label("city").fill("Bern")
    await page.get_by_role("button", name="Run").click()
    await page.get_by_role("heading", name="Inputs").wait_for()
    args = json.loads(await page.locator('[aria-label="The args as JSON"]').text_content() or "")
    assert args == {"city": "Bern", "strict": True, "sorted": False, "mode": "slow", "weeks": 12}


@pytest.mark.full
def test_form_warns_about_secrets_without_grant(tokens_sqlite: Server, new_name: str) -> None:
    admin = token_of(tokens_sqlite, f"{new_name}-admin", "admin")
    name, secret = f"{new_name}.weather", f"KEY_{new_name.upper()}"
    make(Rpc(tokens_sqlite.url, admin), name, permissions={"secrets": [secret]})
    browser = Browser(tokens_sqlite.url, **HTML)
    browser.sign_in(admin)

    page = browser.get(f"/s/{name}@1.0.0/try").text

    note = re.sub(r"<[^>]+>", "", page.partition('<p class="note warn">')[2].partition("</p>")[0])
    assert f"It would fail: &#39;{name}&#39; declares the secret &#39;{secret}&#39;, but has no secret grant" in note


def test_problems_are_at_their_fields_and_the_input_is_kept(sqlite_server: Server, new_name: str) -> None:
    make(sqlite_server.rpc, new_name)
    browser = Browser(sqlite_server.url, **HTML)
    page = f"/s/{new_name}@1.0.0/try"
    found = browser.post(
        page, browser.fields(page) | {"a1": "1.5", "a3": "many", "a5": "[1,", "more": "[]", "a0": "kept"}
    )

    assert found.status_code == 400
    for text in (
        "is not a whole number",
        "is not a number",
        "This is not JSON",
        "This must be an object",
        'value="kept"',
    ):
        assert text in html.unescape(found.text)
    assert 'aria-describedby="a1-help a1-problem" aria-invalid="true"' in found.text


def test_form_submitted_twice_starts_single_run(sqlite_server: Server, new_name: str) -> None:
    make(sqlite_server.rpc, new_name)
    browser = Browser(sqlite_server.url, **HTML)
    page = f"/s/{new_name}@1.0.0/try"
    fields = browser.fields(page)

    assert browser.post(page, fields).headers["location"] == browser.post(page, fields).headers["location"]


def test_an_uploaded_file_becomes_a_blob(server: Server, new_name: str) -> None:
    make(server.rpc, new_name)
    browser = Browser(server.url, **HTML)
    page = f"/s/{new_name}@1.0.0/try"
    fields = browser.fields(page)
    files = {name: (None, value) for name, value in fields.items()} | {
        "a6-upload": ("x.csv", b"a,b\n" * 9000, "text/csv")
    }
    found = browser.http.post(page, files=files, headers={"origin": browser.url})
    assert found.status_code == 303, found.text
    run = ended(server.rpc, found.headers["location"])
    output = run["output"]

    assert '"file": "blob:' in json.dumps(output)


@pytest.mark.parametrize("change", ["origin", "token", "order"])
def test_a_forged_upload_stores_nothing(tokens_sqlite: Server, new_name: str, change: str) -> None:
    token = token_of(tokens_sqlite, new_name, "read", "run", "publish", namespaces=["*"])
    rpc, browser = Rpc(tokens_sqlite.url, token), Browser(tokens_sqlite.url, **HTML)
    assert browser.sign_in(token).status_code == 303
    make(rpc, new_name)
    page = f"/s/{new_name}@1.0.0/try"
    fields = browser.fields(page)
    before = blob_usage(rpc)
    if change == "token":
        fields["form_token"] = "wrong"
    parts = {name: (None, value) for name, value in fields.items()}
    upload = {"a6-upload": ("x.csv", b"a,b\n" * 9000, "text/csv")}
    origin = "http://evil.example" if change == "origin" else browser.url
    files = upload | parts if change == "order" else parts | upload
    found = browser.http.post(page, files=files, headers={"origin": origin})

    assert found.status_code == 403
    assert blob_usage(rpc) == before


def blob_usage(rpc: Rpc) -> dict[str, object]:
    """Return what the blobs of the caller take."""
    return {name: figure for name, figure in rpc("get_usage").items() if "blob" in name}


def test_only_the_owner_sees_a_run_and_its_files(tokens_sqlite: Server, new_name: str) -> None:
    owner = token_of(tokens_sqlite, new_name, "read", "run", "publish", namespaces=["*"])
    other = token_of(tokens_sqlite, f"{new_name}-other", "read", "run")
    reader = token_of(tokens_sqlite, f"{new_name}-reader", "read")
    rpc = Rpc(tokens_sqlite.url, owner)
    make(rpc, new_name)
    run = rpc("execute_skill", name=new_name, args={})
    blob = run["files"][0]["blob_id"]
    address = f"/runs/{run['run_id']}"
    found = {}
    for token in (owner, other):
        browser = Browser(tokens_sqlite.url, **HTML)
        assert browser.sign_in(token).status_code == 303
        paths = (address, f"{address}/events", f"{address}/events?poll=1", f"{address}/blobs/{blob}")
        found[token] = [browser.get(path).status_code for path in paths]
        if token == other:
            unknown = browser.get("/runs/run_unknown")
            hidden = browser.get(address)
            assert unknown.status_code == hidden.status_code == 404
            assert browser.post(address, browser.fields("/account")).status_code in {403, 404}
    browser = Browser(tokens_sqlite.url, **HTML)
    assert browser.sign_in(reader).status_code == 303

    assert found == {owner: [200] * 4, other: [404] * 4}
    assert browser.get(f"/s/{new_name}/try").status_code == 403
    assert "Try it" not in browser.get(f"/s/{new_name}").text


def test_files_of_runs_are_sent_so_that_nothing_in_them_runs(server: Server, new_name: str) -> None:
    make(server.rpc, new_name)
    run = server.rpc("execute_skill", name=new_name, args={})
    browser = Browser(server.url, **HTML)
    page = browser.get(f"/runs/{run['run_id']}").text
    for one in run["files"]:
        found = browser.get(f"/runs/{run['run_id']}/blobs/{one['blob_id']}")
        assert found.headers["content-type"] == "text/plain; charset=utf-8"
        assert "sandbox" in found.headers["content-security-policy"]

    assert "=HYPERLINK(1)" in page
    assert "<script>window.__pwned" not in page
    assert "<img src=x" not in page


def test_the_list_has_filters(server: Server, new_name: str) -> None:
    make(server.rpc, new_name)
    server.rpc("execute_skill", name=new_name, args={})
    browser = Browser(server.url, **HTML)

    assert f">{new_name}</a>" in browser.get(f"/runs?skill={new_name}").text
    assert f">{new_name}</a>" in browser.get(f"/runs?skill={new_name}&status=completed&since=24h").text
    assert "No run matches these filters" in browser.get(f"/runs?skill={new_name}&status=failed").text
    assert browser.get("/runs?skill=%00&identity=%00").status_code == 200


@pytest.mark.full
def test_the_list_counts_the_runs_of_its_filter(server: Server, new_name: str) -> None:
    make(server.rpc, new_name)
    for args in ({}, {}, {}, {"mode": "odd"}):
        run = server.rpc("execute_skill", name=new_name, args=args)
    browser = Browser(server.url, **HTML)
    row = rf'<a href="/s/{new_name}@1.0.0">{new_name}</a>.*?<a href="/runs/{run["run_id"]}"><time'

    every, failed = (browser.get(f"/runs?skill={new_name}{more}").text for more in ("", "&status=failed"))

    assert "4 runs</strong>, 25.0 % failed, the first <time" in every
    assert re.search(row, every)
    assert "1 run</strong>, the first <time" in failed
    assert 'aria-label="Runs in 30 equal parts of this time, at most 1, failed ones in red"' in failed


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("plain", [("", "plain")]),
        ("\\x1b[1;31mred\\x1b[0m x", [("f1 b", "red"), ("", " x")]),
        ("\\x1b[2J\\x1b[5;5Hx\\x1b[?25l", [("", "x")]),
        ("\\x1b]8;;javascript:x\\x07link\\x1b]8;;\\x07", [("", "link")]),
        ("1 %\\x0d50 %\\x0d100 %\nnext\\x0d\n", [("", "100 %\nnext\n")]),
        ("\\x1b[38;5;9mx", [("", "x")]),
        ("\\x1b[97mx\\x1b[39my", [("f15", "x"), ("", "y")]),
    ],
)
def test_logs_keep_colours_and_nothing_else(text: str, parts: list[tuple[str, str]]) -> None:
    assert parts_of(text) == parts


@pytest.mark.full
@pytest.mark.asyncio(loop_scope="session")
async def test_the_pages_have_no_fault(sqlite_server: Server, open_page: OpenPage, new_name: str) -> None:
    make(sqlite_server.rpc, new_name)
    run = sqlite_server.rpc("execute_skill", name=new_name, args={"seconds": 0})
    failed = sqlite_server.rpc("execute_skill", name=new_name, args={"seconds": "x"})
    paths = [f"/s/{new_name}/try", "/s/text.csv.profile/try?example=1", "/runs", "/runs?skill=none.such"]
    paths += [f"/runs/{one['run_id']}" for one in (run, failed)]
    code = sqlite_server.rpc("run_code", language="python", code="def main(args):\n    return 1\n" * 9)
    paths += [f"/runs/new?run={code['run_id']}"]
    page = await open_page(sqlite_server, "/account")
    for path in paths:
        assert await faults(page, path, squeezed) == []
        assert await problems(page) == [], path
        assert await page.evaluate("window.__pwned") is None


@pytest.mark.smoke
@pytest.mark.asyncio(loop_scope="session")
async def test_a_page_follows_its_run_to_the_end(sqlite_server: Server, open_page: OpenPage, new_name: str) -> None:
    make(sqlite_server.rpc, new_name)
    for seconds in ("2", "20", "200"):  # on a loaded machine, a short run may have ended before its page is shown
        page = await open_page(sqlite_server, f"/s/{new_name}/try")
        await page.locator("[name=a3]").fill(seconds)
        await page.get_by_role("button", name=f"Run {new_name}").click()
        await page.wait_for_url("**/runs/run_*")
        if await page.get_by_role("button", name="Cancel this run").count() == 1:
            break
    await page.locator("[data-log] .f1", has_text="red").wait_for()
    await page.get_by_text("last line").wait_for()
    await page.locator("[data-status]", has_text="completed").wait_for()
    await page.get_by_role("link", name="Run again").wait_for()

    assert await page.evaluate("window.__pwned") is None
    text = await page.locator("[data-log]").text_content()
    assert text is not None
    assert "event: end" in text
    assert text.count("last line") == 1


@pytest.mark.full
@pytest.mark.asyncio(loop_scope="session")
async def test_run_page_redirects_to_login_after_session_ends(
    tokens_sqlite: Server, open_page: OpenPage, new_name: str
) -> None:
    root = Rpc(tokens_sqlite.url, token_of(tokens_sqlite, f"{new_name}-root", "admin"))
    code = "import time\ndef main(args):\n    print('begun')\n    time.sleep(600)\n"
    run_id = root("run_code", language="python", code=code, background=True)["run_id"]
    made = root("create_token", name=f"{new_name}-eve", scopes=["admin"])
    page = await open_page(tokens_sqlite, f"/runs/{run_id}", token=made["token"])
    await page.locator("[data-log]", has_text="begun").wait_for()

    root("revoke_token", id=made["id"])

    await page.wait_for_url("**/login**")
    assert run_id in page.url
    root("cancel_run", run_id=run_id)
    await problems(page)  # the refused stream


@pytest.mark.full
@pytest.mark.asyncio(loop_scope="session")
async def test_a_page_without_a_stream_asks_for_the_log(
    sqlite_server: Server, open_page: OpenPage, new_name: str
) -> None:
    make(sqlite_server.rpc, new_name)
    run_id = sqlite_server.rpc("execute_skill", name=new_name, args={"seconds": 600}, background=True)["run_id"]
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(httpx.AsyncClient(base_url=sqlite_server.url, timeout=300))
        for _ in range(4):
            stream = await stack.enter_async_context(client.stream("GET", f"/runs/{run_id}/events"))
            assert stream.status_code == 200
        refused = await client.get(f"/runs/{run_id}/events")
        page = await open_page(sqlite_server, f"/runs/{run_id}")
        await page.locator("[data-log]", has_text="red <script>").wait_for()
        await asyncio.to_thread(lambda: sqlite_server.rpc("cancel_run", run_id=run_id))
        await page.get_by_role("link", name="Run again").wait_for()
        text = await page.locator(".log").inner_text()

    assert refused.status_code == 503
    assert text.count("red <script>") == 1
    assert "503" in " ".join(await problems(page))


@pytest.mark.full
def test_a_stopping_server_ends_the_streams_of_pages(start_server: Callable[..., Server]) -> None:
    server = start_server()
    code = "import time\ndef main(args):\n    print('begun', flush=True)\n    time.sleep(600)\n"
    run_id = server.rpc("run_code", language="python", code=code, background=True)["run_id"]
    with httpx.stream("GET", f"{server.url}/runs/{run_id}/events", timeout=300) as stream:
        lines = stream.iter_lines()
        assert any("begun" in line for line in lines)
        server.process.send_signal(signal.SIGTERM)
        rest = list(lines)

    assert not any(line.startswith("event: log") for line in rest)
    assert server.stop() == 0


def test_the_network_of_a_run_is_shown_with_reasons(sqlite_server: Server, new_name: str) -> None:
    code = (
        "import urllib.request\ndef main(args):\n"
        "    try:\n        urllib.request.urlopen('https://other.example.com/')\n"
        "    except OSError:\n        return 1\n"
    )
    manifest = {
        "name": new_name,
        "version": "1.0.0",
        "kind": "action",
        "description": "Connect.",
        "runtime": {"language": "python", "entrypoint": "code/main.py"},
        "permissions": {"network": ["https://allowed.example.com"]},
    }
    files = [{"path": "code/main.py", "content": code}]
    sqlite_server.rpc("create_skill", manifest=manifest, skill_md="# x\n", files=files)
    run = sqlite_server.rpc("execute_skill", name=new_name, args={})
    page = Browser(sqlite_server.url, **HTML).get(f"/runs/{run['run_id']}").text
    text = " ".join(html.unescape(re.sub(r"<[^>]+>", " ", page)).split())

    assert "other.example.com :443 refused" in text
    assert run["network"][0]["reason"] in text


@pytest.mark.full
@pytest.mark.asyncio(loop_scope="session")
@pytest.mark.parametrize("javascript", [True, False], ids=["javascript", "no-javascript"])
async def test_a_user_cancels_a_run(
    sqlite_server: Server, open_page: OpenPage, new_name: str, javascript: bool
) -> None:
    make(sqlite_server.rpc, new_name)
    page = await open_page(sqlite_server, f"/s/{new_name}/try", javascript=javascript)
    await page.locator("[name=a3]").fill("600")
    await page.get_by_role("button", name=f"Run {new_name}").click()
    await page.get_by_role("button", name="Cancel this run").click()
    await page.get_by_text("The run is cancelled.").wait_for()
    run_id = page.url.rpartition("/")[2]
    sqlite_server.rpc("get_run", run_id=run_id, wait_ms=30000)
    await page.goto(f"/runs/{run_id}")

    assert await page.locator("[data-status]").text_content() == "failed"


@pytest.mark.full
@pytest.mark.asyncio(loop_scope="session")
async def test_first_run_needs_single_click_without_javascript(sqlite_server: Server, open_page: OpenPage) -> None:
    page = await open_page(sqlite_server, "/s/text.csv.profile/try?example=1", javascript=False)
    await page.get_by_role("button", name="Run text.csv.profile").click()
    await page.wait_for_url("**/runs/run_*")
    sqlite_server.rpc("get_run", run_id=page.url.rpartition("/")[2], wait_ms=60000)
    await page.reload()

    assert await page.get_by_text("4993 rows").count() > 0


def test_account_page_shows_permissions_and_saves_preferences(tokens_sqlite: Server, new_name: str) -> None:
    assert ASKS_FOR_TOKENS
    browser = Browser(tokens_sqlite.url, **HTML)
    assert browser.sign_in(token_of(tokens_sqlite, new_name, "read", "run")).status_code == 303
    text = browser.get("/account").text

    assert "You may run skills and code" in text
    assert "Not allowed: publish skills" in text
    found = browser.post("/account", browser.fields("/account") | {"theme": "dark", "keys": "off"})
    assert found.status_code == 303
    assert 'data-theme="dark" data-keys="off"' in browser.get("/account").text


@pytest.mark.parametrize("number", ["²", "٣", "9" * 5000])
def test_wrong_numbers_of_examples_answer_404(sqlite_server: Server, number: str) -> None:
    browser = Browser(sqlite_server.url, **HTML)
    for path in ("/s/text.csv.profile/try", "/s/text.csv.profile"):
        answer = browser.get(f"{path}?{urlencode({'example': number})}")

        assert answer.status_code == 404
        assert "There is no example" in answer.text


@pytest.mark.full
@pytest.mark.asyncio(loop_scope="session")
async def test_called_runs_are_shown_as_bars_of_their_time(
    sqlite_server: Server, open_page: OpenPage, new_name: str
) -> None:
    code = "def main(args):\n    return 1 / args['n']\n"
    publisher(sqlite_server.rpc)(new_name, code=code, permissions={"network": ["https://example.org"]})
    calls = f"""
from skills.{new_name.replace("-", "_")} import main as divide
def main(args):
    divide({{"n": 1}})
    try:
        divide({{"n": 0}})
    except Exception as error:
        return str(error)
"""
    call = {"language": "python", "code": calls, "mount_skills": [new_name]}
    run = await asyncio.to_thread(lambda: sqlite_server.rpc("run_code", **call))
    page = await open_page(sqlite_server, f"/runs/{run['run_id']}", width=390, color_scheme="dark")
    rows = page.get_by_role("region", name="Calls of this run").locator("tbody tr")

    assert await rows.locator(".tag").all_inner_texts() == ["completed", "failed"]
    words = [await row.get_attribute("aria-label") or "" for row in await rows.locator("svg.span").all()]
    assert [re.sub(r"(under )?[\d.,]+\s(ms|s)", "N", text) for text in words] == ["N after the start, for N"] * 2
    assert await rows.locator("svg.span .bad").count() == 1
    await page.get_by_text("All limits").click()
    assert await page.get_by_role("img", name="percent used").count() > 2
    assert await faults(page) == []
    assert await problems(page) == []
    await rows.nth(1).get_by_role("link").click()
    await page.get_by_text("Called by").wait_for()


@pytest.mark.full(after=1)
def test_runs_of_examples_are_checks_and_no_uses(server: Server, new_name: str) -> None:
    example = {"name": "one", "args": {"count": 1}, "expect_subset": {"got": {"count": 1}}}
    server.rpc(
        "create_skill",
        manifest=manifest(new_name, inputs={"count": {"type": "integer"}}, examples=[example]),
        skill_md="# Count\n",
        files=skill_files(),
    )
    [check] = server.rpc("describe_skill", name=new_name, detail="full")["skill"]["examples"]
    browser = Browser(server.url, **HTML)
    listed = [run for run in server.rpc("list_runs", limit=50)["runs"] if run["run_id"] == check["run_id"]]

    assert [run["check_of"] for run in listed] == [f"{new_name}@1.0.0"]
    assert f'check of <a href="/s/{new_name}@1.0.0">{new_name}</a>' in browser.get("/runs").text
    page = browser.get(f"/runs/{check['run_id']}").text
    assert f"check of {new_name}" in page
    assert "checks do not count as uses" in page
    assert server.rpc("describe_skill", name=new_name)["skill"]["usage"]["runs"] == 0
    run = server.rpc("execute_skill", name=new_name, args={"count": 1})
    assert server.rpc("get_run", run_id=run["run_id"])["check_of"] is None


def test_a_run_names_the_program_of_its_caller(server: Server, new_name: str) -> None:
    make(server.rpc, new_name)
    caller = Rpc(server.url)
    caller.http.headers["user-agent"] = "claude-code/2.1 (linux)"
    run_id = caller("execute_skill", name=new_name, args={})["run_id"]

    assert server.rpc("get_run", run_id=run_id)["client"] == "claude-code"
    page = Browser(server.url, **HTML).get(f"/runs/{run_id}").text
    assert '<dt>Program</dt><dd><bdi class="foreign">claude-code</bdi></dd>' in page


FILES_OF_A_DROP = """names => {
  const dropped = new DataTransfer();
  for (const name of names) dropped.items.add(new File(["a,b\\n1,2\\n"], name));
  return dropped;
}"""


@pytest.mark.full
@pytest.mark.asyncio(loop_scope="session")
async def test_a_file_is_dropped_on_its_field(sqlite_server: Server, open_page: OpenPage, new_name: str) -> None:
    await asyncio.to_thread(lambda: make(sqlite_server.rpc, new_name))
    page = await open_page(sqlite_server, f"/s/{new_name}/try")
    field = page.get_by_role("group", name="file").locator(".files")
    chosen = page.get_by_label("Choose or drop a file of this computer")
    dropped = {"dataTransfer": await page.evaluate_handle(FILES_OF_A_DROP, ["rows.csv", "second.csv"])}
    await field.dispatch_event("dragover", dropped)
    assert await chosen.evaluate("input => input.classList.contains('over')")
    await field.dispatch_event("drop", dropped)

    assert await chosen.evaluate("input => [...input.files].map(file => file.name)") == ["rows.csv"]
    assert not await chosen.evaluate("input => input.classList.contains('over')")
    assert await problems(page) == []
    await page.get_by_role("button", name=f"Run {new_name}").click()
    await page.wait_for_url("**/runs/run_*")
