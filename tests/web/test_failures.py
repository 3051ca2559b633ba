"""What fails: remedies on the page of a failed run, /insight/failures, and the way back to the version before."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.conftest import Rpc, Server, manifest, publisher, skill_files
from tests.support.browser import Browser, token_of
from tests.support.chromium import OpenPage, faults
from tests.web.test_run_parts import text_of

HTML = {"accept": "text/html"}
BY_LETTER = """
import json, subprocess

def main(args):
    kind = args["kind"]
    if kind == "key": return {"north": 1}["west"]
    if kind == "index": return [][1]
    if kind == "zero": return 1 / 0
    if kind == "file": return open("orders.csv")
    if kind == "number": return float("12,50")
    if kind == "none": return None.city
    if kind == "json": return json.loads("<html>")
    if kind == "text": return b"\\x89PNG".decode()
    if kind == "program": return subprocess.run(["false"], check=True)
    raise type("OrderError", (Exception,), {})("order 7 is closed")
"""
REMEDIES = {
    "key": "The data has no key 'west'.",
    "index": "an entry behind the end of a list",
    "zero": "The code divides by 0.",
    "file": "The run has no file orders.csv.",
    "number": "'12,50' is no number",
    "none": "The code reads .city of a value that is missing",
    "json": "A text is not JSON at line 1 column 1:",
    "text": "A file is not utf-8 text: it has the byte 0x89 at 0.",
    "program": "A program that the code started ended with 1.",
    "own": "Correct the input that the message is about, or look at the failing line.",
}
FAILS = "def main(args):\n    return {'north': 1}['west' if args.get('strict') else 'north']\n"
MISSES = "def main(args):\n    return open('out/x.txt', 'w').write('x') if args.get('strict') else 1\n"
WORKS = "def main(args):\n    return 1\n"


def remedy_in(page: str) -> str:
    """Return the text of the card with the remedy."""
    return text_of(page.partition('<section class="remedy"')[2].partition("</section>")[0])


@pytest.mark.full
def test_remedies_name_the_values_of_a_failure(server: Server, new_name: str) -> None:
    publisher(server.rpc)(new_name, code=BY_LETTER)
    browser = Browser(server.url, **HTML)

    for kind, words in REMEDIES.items():
        run = server.rpc("execute_skill", name=new_name, args={"kind": kind})
        remedy = remedy_in(browser.get(f"/runs/{run['run_id']}").text)
        assert words in remedy, remedy
        assert f"{new_name} raised" in remedy


def test_wrong_inputs_and_used_up_limits_open_on_their_value(server: Server, new_name: str) -> None:
    inputs = {"weeks": {"type": "integer", "required": True}}
    runtime = {"language": "python", "entrypoint": "code/main.py", "export": "main", "limits": {"memory_mb": 64}}
    publisher(server.rpc)(
        new_name, code="def main(args):\n    return bytearray(10**9)\n", inputs=inputs, runtime=runtime
    )
    browser = Browser(server.url, **HTML)

    def remedy(**args: Any) -> str:
        run = server.rpc("execute_skill", name=new_name, args=args)
        return remedy_in(browser.get(f"/runs/{run['run_id']}").text)

    wrong = remedy(weeks="soon")
    assert wrong.index("Argument 'weeks' is a string") < wrong.index("Correct the inputs")
    large = remedy(weeks=1)
    assert large.index("It needs more memory than 64 MiB") < large.index("Inputs of completed runs")


@pytest.mark.full
@pytest.mark.full
def test_the_hint_of_a_run_is_the_heading(server: Server, new_name: str) -> None:
    publisher(server.rpc)(new_name, code=MISSES)
    browser = Browser(server.url, **HTML)
    for strict in (False, True) * 5:
        run = server.rpc("execute_skill", name=new_name, args={"strict": strict})

    page = browser.get(f"/runs/{run['run_id']}").text
    heading = text_of(page.partition('<h2 id="failure">')[2].partition("</h2>")[0]).strip()
    assert heading == "Create the folder out before you write to it: os.makedirs('out', exist_ok=True)"
    assert f"{new_name} raised FileNotFoundError." in remedy_in(page)
    assert "fails when" not in remedy_in(page)


def test_an_input_of_all_failed_runs_is_the_heading(server: Server, new_name: str) -> None:
    publisher(server.rpc)(new_name, code=FAILS)
    browser = Browser(server.url, **HTML)

    def run(**args: Any) -> str:
        return str(server.rpc("execute_skill", name=new_name, args=args)["run_id"])

    failed = [run(strict=True, weeks=number) for number in range(5)][-1]
    assert "fails when" not in browser.get(f"/runs/{failed}").text  # no run has completed

    for number in range(5):
        run(strict=False, weeks=number)

    remedy = remedy_in(browser.get(f"/runs/{failed}").text)
    assert "1.0.0 fails when strict is yes" in remedy
    assert "Run again with other inputs" in remedy


class Failing:
    """A skill whose label `stable` points to 1.3.0, which fails, unlike 1.2.4; its publisher and a caller."""

    def __init__(self, server: Server, name: str) -> None:
        self.server = server
        self.name = f"{name}.weekly"
        self.publisher = token_of(server, f"{name}-ann", "read", "run", "publish", namespaces=[f"{name}.*"])
        self.caller = token_of(server, f"{name}-bob", "read", "run")
        self.rpc, bob = Rpc(server.url, self.publisher), Rpc(server.url, self.caller)
        for version, code in (("1.2.4", WORKS), ("1.3.0", FAILS)):
            self.rpc("create_skill", manifest=manifest(self.name, version), skill_md="# W\n", files=skill_files(code))
            self.rpc("set_label", name=self.name, label="stable", version=version)
            for _ in range(20 if version == "1.2.4" else 0):
                bob("execute_skill", name=self.name, version=version)
        self.run = bob("execute_skill", name=self.name, args={"strict": True})["run_id"]

    def browser(self, token: str) -> Browser:
        browser = Browser(self.server.url, **HTML)
        assert browser.sign_in(token).status_code == 303
        return browser

    @property
    def stable(self) -> str:
        [label] = self.rpc("list_labels", name=self.name)["labels"]
        return str(label["version"])


@pytest.mark.full
def test_publishers_roll_a_label_back_and_undo_it(tokens_server: Server, new_name: str) -> None:
    failing = Failing(tokens_server, new_name)
    ann, bob = failing.browser(failing.publisher), failing.browser(failing.caller)
    remedy = remedy_in(bob.get(f"/runs/{failing.run}").text)
    assert "1.2.4 never failed this way" in remedy
    assert "Run again on 1.2.4" in remedy
    assert "Roll stable back" not in remedy
    assert bob.get("/insight/failures").status_code == 404
    for path in (f"/insight/failures?skill={failing.name}", f"/s/{failing.name}"):
        page = ann.get(path).text
        assert "new in 1.3.0" in page
        assert "Roll stable back to 1.2.4" in page
        assert "'west'" not in page.partition("<ol")[2].partition("</ol>")[0]  # the value of a run of bob
    target = f"/s/{failing.name}@1.2.4"
    assert f'action="{target}"' in page
    form = {"form_token": ann.fields("/insight/failures")["form_token"], "action": "set_label", "label": "stable"}

    answer = ann.post(target, form)

    assert answer.status_code == 303
    assert failing.stable == "1.2.4"
    done = ann.get(answer.headers["location"]).text.partition('<div class="note done"')[2].partition("</div>")[0]
    assert "stable moved from 1.3.0 to 1.2.4" in done
    fields = dict(re.findall(r'name="([a-z_]+)" value="([^"]*)"', done))
    undo = re.search(r'action="([^"]+)"', done)
    assert undo is not None
    assert ann.post(undo[1], fields).status_code == 303
    assert failing.stable == "1.3.0"


@pytest.mark.full
def test_publishers_yank_a_failing_version_with_a_reason(tokens_sqlite: Server, new_name: str) -> None:
    name = f"{new_name}.weekly"
    token = token_of(tokens_sqlite, f"{new_name}-ann", "read", "run", "publish", namespaces=[f"{new_name}.*"])
    rpc, browser = Rpc(tokens_sqlite.url, token), Browser(tokens_sqlite.url, **HTML)
    browser.sign_in(token)
    publisher(rpc)(name, code=FAILS)
    rpc("execute_skill", name=name, args={"strict": True})
    page = browser.get(f"/insight/failures?skill={name}").text

    reason = re.search(r"<textarea name=\"reason\"[^>]*>([^<]*)</textarea>", page)
    assert reason is not None
    assert reason[1] == "KeyError in 1 run of 1 caller, since 1.0.0"
    form = {"form_token": browser.fields("/insight/failures")["form_token"], "action": "yank", "reason": reason[1]}
    assert browser.post(f"/s/{name}@1.0.0", form).status_code == 303

    described = rpc("describe_skill", name=name, version="1.0.0", detail="summary")["skill"]
    assert described["yanked"]["reason"] == reason[1]


@pytest.mark.full
@pytest.mark.asyncio(loop_scope="session")
async def test_pages_of_failures_are_accessible(tokens_sqlite: Server, new_name: str, open_page: OpenPage) -> None:
    failing = Failing(tokens_sqlite, new_name)
    own = Rpc(tokens_sqlite.url, failing.publisher)("execute_skill", name=failing.name, args={"strict": True})
    page = await open_page(tokens_sqlite, f"/runs/{own['run_id']}", token=failing.publisher)
    for path in (f"/runs/{own['run_id']}", f"/insight/failures?skill={failing.name}", f"/s/{failing.name}"):
        await page.goto(path)
        assert await faults(page) == []
        for width in (390, 1280):
            await page.set_viewport_size({"width": width, "height": 800})
            assert await page.get_by_role("link", name="Search", exact=True).is_visible() is (width == 390), path
    for width in (1280, 390):
        await page.set_viewport_size({"width": width, "height": 800})
        await page.get_by_role("button", name="Roll stable back to 1.2.4").click()
        await page.get_by_text("stable moved from 1.3.0 to 1.2.4").wait_for()
        await page.get_by_role("button", name="Undo").click()
        await page.get_by_text("stable is 1.3.0 again").wait_for()
