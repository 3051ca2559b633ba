"""Scripts of skills on pages: what publishing finds out about them, forms that run them, and runs that are repeated."""

from __future__ import annotations

import html
import json
import re
import sqlite3
from collections.abc import Callable
from contextlib import closing

import pytest
from playwright.async_api import expect

from tests.conftest import Rpc, Server
from tests.support.browser import Browser, part_of, token_of
from tests.support.chromium import OpenPage, faults, problems
from tests.support.processes import eventually
from tests.web.test_runs import ended

HTML = {"accept": "text/html"}
COUNT = '''"""Count the words of a file. The rest is not shown.

It needs no packages.
"""
import argparse, pathlib, sys

parser = argparse.ArgumentParser()
parser.add_argument("path", help="the file")
parser.add_argument("others", nargs="*")
parser.add_argument("-o", "--out", required=True)
parser.add_argument("--loud", action="store_true")
args = parser.parse_args()
count = len(pathlib.Path(args.path).read_text().split())
pathlib.Path(args.out).write_text(f"words\\n{count}\\n")
print(count, sys.stdin.read())
'''
SCRIPTS = {
    "scripts/count.py": COUNT,
    "scripts/pack.sh": '#!/bin/bash\n# Pack a folder. Slowly.\n\nif [ -z "$1" ]; then echo "Usage: $0 FOLDER"; fi\n',
    "scripts/draw.mjs": "/**\n * Draw <b>it</b>.\n *\n * Usage: node draw.mjs IN\n */\nconsole.log(1)\n",
    "scripts/show.py": "import sys, pdfplumber\nif __name__ == '__main__':\n    print(f'usage: {sys.argv[0]} PDF')\n",
    "scripts/broken.py": "def (\n",
    "scripts/__init__.py": "",
    "scripts/names.py": "import os\nHERE = os.getcwd()\ndef find():\n    return HERE\n",
    "code/other.py": "print(1)\n",
}


def make(rpc: Rpc, name: str, scripts: dict[str, str] = SCRIPTS) -> None:
    files = [{"path": path, "content": content} for path, content in scripts.items()]
    manifest = {"name": name, "version": "1.0.0", "kind": "instruction", "description": "Work with texts."}
    rpc("create_skill", manifest=manifest, skill_md="# Texts\n", files=files)


def test_publishing_describes_scripts_without_running_them(server: Server, new_name: str) -> None:
    make(server.rpc, new_name)
    described = server.rpc("describe_skill", name=new_name)["skill"]["scripts"]

    assert described == [
        {"path": "scripts/broken.py", "language": "python"},
        {
            "path": "scripts/count.py",
            "language": "python",
            "description": "Count the words of a file.",
            "usage": "count.py PATH [OTHERS …] --out OUT [--loud]",
        },
        {
            "path": "scripts/draw.mjs",
            "language": "javascript",
            "description": "Draw <b>it</b>.",
            "usage": "node draw.mjs IN",
        },
        {
            "path": "scripts/pack.sh",
            "language": "bash",
            "description": "Pack a folder.",
            "usage": "pack.sh FOLDER",
        },
        {"path": "scripts/show.py", "language": "python", "usage": "show.py PDF", "missing": ["pdfplumber"]},
    ]


def test_the_catalogue_counts_scripts(server: Server, new_name: str) -> None:
    make(server.rpc, f"{new_name}.several")
    make(server.rpc, f"{new_name}.single", {"scripts/count.py": COUNT})
    make(server.rpc, f"{new_name}.text", {})

    for address in (f"/?ns={new_name}", f"/?ns={new_name}&q=texts"):
        page = Browser(server.url, **HTML).get(address).text
        contents = dict(re.findall(rf'{new_name}\.(\w+)</a></h2>.*?class="meta"><span>([^<]*)', page, re.DOTALL))
        assert contents == {
            "several": "Instructions and 5 scripts",
            "single": "Instructions and 1 script",
            "text": "Instructions",
        }, address


def test_skills_with_an_entrypoint_offer_no_scripts(sqlite_server: Server, new_name: str) -> None:
    files = [{"path": path, "content": SCRIPTS[path]} for path in ("scripts/count.py", "code/other.py")]
    manifest = {
        "name": new_name,
        "version": "1.0.0",
        "kind": "action",
        "description": "Do it.",
        "runtime": {"language": "python", "entrypoint": "code/main.py"},
    }
    files.append({"path": "code/main.py", "content": "def main(args):\n    return 1\n"})
    sqlite_server.rpc("create_skill", manifest=manifest, skill_md="# Do\n", files=files)

    assert "scripts" not in sqlite_server.rpc("describe_skill", name=new_name)["skill"]


def forget_descriptions(server: Server, *names: str) -> None:
    """Remove the descriptions of scripts, as an earlier release stored versions."""
    with closing(sqlite3.connect(server.home / "skillery.db")) as connection, connection:
        of_name = "skill_id = (SELECT id FROM skills WHERE name = ?)"
        for name in names:
            connection.execute(f"UPDATE skill_versions SET checks_json = NULL WHERE {of_name}", (name,))


def are_all_read(server: Server) -> bool:
    """Return whether the server has noted its newest version as described."""
    with closing(sqlite3.connect(server.home / "skillery.db")) as connection:
        noted = connection.execute("SELECT value FROM registry WHERE key = 'last described version'").fetchone()
        newest = connection.execute("SELECT max(id) FROM skill_versions").fetchone()
    return noted is not None and int(noted[0]) == newest[0]


@pytest.mark.full
def test_scripts_of_an_earlier_release_are_described_once_after_a_start(
    start_server: Callable[..., Server], new_name: str
) -> None:
    server = start_server(new_home=True)
    eventually(lambda: are_all_read(server))
    make(server.rpc, new_name)
    make(server.rpc, f"{new_name}-names", {"scripts/names.py": SCRIPTS["scripts/names.py"]})
    names = new_name, f"{new_name}-names"
    described = [server.rpc("describe_skill", name=name)["skill"]["scripts"] for name in names]
    server.stop()
    forget_descriptions(server, *names)
    server = start_server()

    assert (len(described[0]), described[1]) == (5, [])
    rpc = server.rpc
    eventually(lambda: [rpc("describe_skill", name=name)["skill"].get("scripts") for name in names] == described)

    # The next start reads only later versions.
    eventually(lambda: are_all_read(server))
    make(server.rpc, f"{new_name}-later")
    server.stop()
    forget_descriptions(server, new_name, f"{new_name}-later")
    rpc = start_server().rpc
    eventually(lambda: rpc("describe_skill", name=f"{new_name}-later")["skill"].get("scripts") == described[0])
    assert "scripts" not in rpc("describe_skill", name=new_name)["skill"]


def test_a_form_runs_a_script_with_files_and_input(server: Server, new_name: str) -> None:
    make(server.rpc, new_name)
    browser = Browser(server.url, **HTML)
    about = browser.get(f"/s/{new_name}").text
    address = part_of(about, r'<a href="([^"]*/scripts/scripts/count\.py)" aria-label="Try scripts/count\.py"')
    assert "needs pdfplumber, which no package provides" in re.sub(r"</?bdi[^>]*>", "", about)
    assert "Draw &lt;b&gt;it&lt;/b&gt;." in about
    assert f'href="/s/{new_name}@1.0.0#scripts">Try a script</a>' in about
    fields = browser.fields(address) | {"argv": "in/a b.txt\n--out\nout/table.csv\n", "stdin": "from stdin"}
    sent: list[tuple[str, tuple[str | None, str | bytes]]] = [(name, (None, value)) for name, value in fields.items()]
    sent.append(("files", ("a b.txt", b"one two three")))
    answer = browser.http.post(address, files=sent, headers={"origin": browser.url})
    assert answer.status_code == 303, answer.text
    run = ended(server.rpc, answer.headers["location"])
    page = browser.get(answer.headers["location"]).text

    assert run["status"] == "completed", run
    assert run["output"]["stdout"] == "3 from stdin\n"  # type: ignore[index]
    assert run["script"] == "scripts/count.py"
    assert "table.csv" in page
    again = browser.get(f"/runs/new?run={run['run_id']}").headers["location"]
    assert again == f"{address}?run={run['run_id']}"
    form = html.unescape(browser.get(again).text)
    assert "in/a b.txt\n--out\nout/table.csv</textarea>" in form
    assert "from stdin</textarea>" in form


def test_help_of_a_script_is_a_run(sqlite_server: Server, new_name: str) -> None:
    make(sqlite_server.rpc, new_name)
    browser = Browser(sqlite_server.url, **HTML)
    assert browser.get(f"/s/{new_name}@1.0.0/try").headers["location"].endswith("/scripts/scripts/broken.py")
    address = f"/s/{new_name}@1.0.0/scripts/scripts/count.py"
    answer = browser.post(address, browser.fields(address) | {"help": "1", "argv": "ignored"})
    run = ended(sqlite_server.rpc, answer.headers["location"])

    assert "the file" in run["output"]["stdout"]  # type: ignore[index]


def test_forms_of_scripts_refuse_readers_and_colliding_files(tokens_sqlite: Server, new_name: str) -> None:
    owner = token_of(tokens_sqlite, new_name, "read", "run", "publish", namespaces=["*"])
    reader = token_of(tokens_sqlite, f"{new_name}-reader", "read")
    make(Rpc(tokens_sqlite.url, owner), new_name)
    address = f"/s/{new_name}@1.0.0/scripts/scripts/count.py"
    browsers = {token: Browser(tokens_sqlite.url, **HTML) for token in (owner, reader)}
    for token, browser in browsers.items():
        assert browser.sign_in(token).status_code == 303
    browser = browsers[owner]
    fields = browser.fields(address)
    same_names = [(name, (None, value)) for name, value in fields.items()]
    same_names += [("files", ("x/a.txt", b"1")), ("files", ("a.txt", b"2"))]  # type: ignore[list-item]
    refused = browser.http.post(address, files=same_names, headers={"origin": browser.url})

    assert refused.status_code == 400
    assert "in/a.txt" in refused.text
    assert browser.get(f"/s/{new_name}@1.0.0/scripts/scripts/none.py").status_code == 404
    assert browser.post(address, fields | {"form_token": "x"}).status_code == 403
    assert browsers[reader].get(address).status_code == 403
    about = browsers[reader].get(f"/s/{new_name}").text
    assert "Count the words of a file." in about
    assert "Try a script" not in about
    assert "/scripts/scripts/" not in about


def test_a_module_has_no_form_to_run_it_again(sqlite_server: Server, new_name: str) -> None:
    make(sqlite_server.rpc, new_name)
    run = sqlite_server.rpc("execute_skill", name=new_name, module="scripts.names")
    page = Browser(sqlite_server.url, **HTML).get(f"/runs/{run['run_id']}").text

    assert sqlite_server.rpc("get_run", run_id=run["run_id"])["script"] == "-m scripts.names"
    assert "/runs/new" not in page


@pytest.mark.full
@pytest.mark.asyncio(loop_scope="session")
async def test_pages_of_scripts_have_no_fault(sqlite_server: Server, open_page: OpenPage, new_name: str) -> None:
    make(sqlite_server.rpc, new_name, SCRIPTS | {f"scripts/{'long_' * 20}.py": "print(1)\n"})
    page = await open_page(sqlite_server, f"/s/{new_name}")
    for path in (f"/s/{new_name}", f"/s/{new_name}@1.0.0/scripts/scripts/count.py"):
        assert await faults(page, path) == []
        assert await problems(page) == [], path
    await page.get_by_label("Arguments").fill(json.dumps("x"))
    await page.get_by_role("button", name="Show its --help").click()
    await page.locator("[data-status]", has_text="completed").wait_for()
    await expect(page.locator("main")).to_contain_text("--loud")  # the page loads itself again at the end
