"""Foreign text: no request with a slow text occupies the server, however the text looks."""

from __future__ import annotations

import asyncio
import gzip
import os
import re
import tarfile

import httpx
import msgspec
import pytest

from skillery.app.composition import PAGE_FUNCTIONS, PAGE_LIMITS, PAGE_LOADERS
from skillery.context.request import Silences, begin, note_task
from skillery.context.worker_pool import TookTooLong, WorkerFailed, WorkerPool
from skillery.context.worker_process import name_of
from skillery.web import rendering
from skillery.web.site import RenderedTexts
from skillery.web.views.parts import File
from skillery.web.views.shown import ToShow, show_parts
from tests.conftest import Server, manifest
from tests.git.test_git_requests import fetch, head_of, post
from tests.support.archives import tar_info
from tests.support.browser import Browser
from tests.support.growth import MOST_SECONDS, TRIES, spent
from tests.support.processes import eventually, peak_bytes
from tests.web.test_publish import send_archive


def test_hints_of_failed_runs_are_linear_in_the_code(sqlite_server: Server) -> None:
    code = f"# from skills import{' ' * 40_000}!\nfrom skills import gone\ndef main(args):\n    pass\n"

    def run() -> None:
        ran = sqlite_server.rpc("run_code", language="python", code=code)
        assert "mount_skills=['gone']" in ran["error"]["message"]

    assert spent(sqlite_server.process.pid, run) <= MOST_SECONDS


def test_a_preview_of_a_table_counts_its_delimiters(sqlite_server: Server) -> None:
    code = """import asyncio
import gzip
import os
import re
import tarfile
def main(args):
    os.makedirs("out")
    for name, text in args.items():
        open(f"out/{name}.csv", "w").write(text)
"""
    texts = {"quotes": '1,"a",2\n' + '"' * 240 + "x\n", "semicolons": "a;b,c\n1;2,3\n4;5\n", "bars": "a|b\n1|2\n"}
    ran = sqlite_server.rpc("run_code", language="python", code=code, args=texts)
    pages: list[str] = []

    def show() -> None:
        pages.append(sqlite_server.rpc.http.get(f"/runs/{ran['run_id']}", headers={"accept": "text/html"}).text)

    assert spent(sqlite_server.process.pid, show) <= MOST_SECONDS
    assert ">2,3<" in pages[0]
    assert ">b<" in pages[0]


def test_repeated_deepen_not_names_cost_a_single_walk(sqlite_server: Server) -> None:
    name = f"deepen{os.getpid()}"
    for number in range(20):
        made = manifest(f"{name}.one", f"1.0.{number}", kind="instruction")
        sqlite_server.rpc("create_skill", manifest=made, skill_md="# One\n", files=[])
    with httpx.Client(base_url=f"{sqlite_server.url}/git/{name}.git") as client:
        head = head_of(client)
        body = fetch(f"want {head}", *["deepen-not HEAD"] * 30_000)

        assert spent(sqlite_server.process.pid, lambda: post(client, body)) <= MOST_SECONDS


def archives() -> dict[str, bytes]:
    """Return archives that took seconds, gigabytes or forever in earlier versions."""
    digits = b"0" * 65_536
    folders = b"".join(tar_info(f"x/{number}", type=tarfile.DIRTYPE).tobuf() for number in range(12_000))
    back = bytearray(tar_info("back").tobuf(tarfile.GNU_FORMAT))
    back[124:136] = (-512 & (1 << 96) - 1).to_bytes(12, "big")
    back[148:156] = b"%06o\0 " % (sum(back[:148]) + sum(back[156:]) + 8 * 32)
    return {
        "digits": gzip.compress(tar_info("x", type=tarfile.XHDTYPE, size=len(digits)).tobuf() + digits + bytes(1024)),
        "loop": gzip.compress(bytes(back) + bytes(1024)),
        "folders": gzip.compress(folders + bytes(1024)),
    }


@pytest.mark.parametrize("kind", ["digits", "loop", "folders"])
@pytest.mark.full(after=1)
def test_hostile_archives_are_refused_at_every_entrance(sqlite_server: Server, kind: str) -> None:
    content = archives()[kind]
    browser = Browser(sqlite_server.url, accept="text/html")

    def send() -> None:
        imported = sqlite_server.rpc.http.post(
            "/import?namespace=hostile", content=content, headers={"content-type": "application/gzip"}
        )
        assert '"error"' in imported.text or '"total":0' in imported.text, imported.text
        assert send_archive(browser, "x.tgz", content).status_code in {400, 413}

    # Two archives of 12,000 entries, read in threads: no other request waits.
    assert spent(sqlite_server.process.pid, send) <= 3 * MOST_SECONDS
    assert peak_bytes(sqlite_server.process.pid) < 1 << 30


def test_differences_of_many_words_are_marked_within_a_budget(sqlite_server: Server, new_name: str) -> None:
    name = f"{new_name}.words"
    for number in range(TRIES + 1):
        words = ("a ", "b ") if number % 2 else ("b ", "a ")
        lines = [f"{line} {''.join(words) * 99}" for line in range(120)]
        made = manifest(name, f"1.{number}.0", kind="instruction")
        sqlite_server.rpc("create_skill", manifest=made, skill_md="\n".join(lines), files=[])
    pages: list[str] = []

    def show() -> None:
        path = f"/s/{name}@1.{len(pages) + 1}.0/diff/1.{len(pages)}.0"
        pages.append(sqlite_server.rpc.http.get(path, headers={"accept": "text/html"}).text)

    assert spent(sqlite_server.process.pid, show) <= MOST_SECONDS
    assert "<del>" in pages[0]
    assert pages[0].count('<tr class="minus">') >= 120


# -- worker processes --------------------------------------------------------------------------------------------------


@pytest.mark.full
async def test_a_confined_worker_highlights_every_language() -> None:
    pool = WorkerPool(PAGE_FUNCTIONS, PAGE_LIMITS, PAGE_LOADERS)
    text = "x = 1 <a href='b'>c</a> ```python\ndef f(): pass\n```\n<?php strlen($x); NSString *y; ?>"
    try:
        for ending in rendering._LEXERS:
            path = f"a.{ending}"
            file = File("blob:x", path, "text/plain", len(text), text.encode())
            to_show = ToShow("/runs/run", b"null", 4, [file], part=path, form="source")
            shown, _ = await pool.call("ann", show_parts, to_show)
            assert shown == show_parts(to_show), ending
            assert rendering.highlighted_lines(text, path)[0] in shown.views[0].html, ending
    finally:
        await pool.close()


@pytest.mark.parametrize(("path", "text"), [("a.py", "x = 1\n" * 100), ("a.csv", "city,amount\nBern,1\nOslo,2\n")])
async def test_equal_contents_are_rendered_once(path: str, text: str) -> None:
    pool = WorkerPool(PAGE_FUNCTIONS, PAGE_LIMITS, PAGE_LOADERS)
    texts = RenderedTexts(pool)

    def shows(content: str) -> ToShow:
        file = File("blob:x", path, "text/plain", len(content), content.encode())
        return ToShow("/s/a.b@1.0.0", b"null", 4, [file], part=path, folder="files")

    try:
        first = await texts.parts(shows(text))
    finally:
        await pool.close()

    assert first.views[0].kind == ("table" if path == "a.csv" else "text")
    assert await texts.parts(shows(text)) == first
    assert (await texts.parts(shows(f"{text}more"))).views[0].note  # it needs a worker, and the pool is closed


def searched(text: str) -> int:
    """Return the end of a match. The time grows with the square of the blanks."""
    match = re.search(r"[ ]+!", text)
    return match.end() if match else 0


def nested(depth: int) -> int:
    return nested(depth - 1) if depth else 0


@pytest.mark.full
async def test_a_call_past_its_time_or_depth_fails_alone() -> None:
    pool = WorkerPool([name_of(searched), name_of(nested)], msgspec.structs.replace(PAGE_LIMITS, cpu_seconds=0.2))
    try:
        slow = asyncio.create_task(pool.call("mallory", searched, " " * 200_000))
        assert (await pool.call("ann", searched, " !"))[0] == 2
        with pytest.raises(TookTooLong):
            await slow
        with pytest.raises(WorkerFailed, match="RecursionError"):
            await pool.call("mallory", nested, 100_000)
        assert (await pool.call("mallory", searched, "  !"))[0] == 3
    finally:
        await pool.close()


async def test_a_silent_event_loop_is_counted_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    begin("asked-1", "").method = "run_code"
    note_task(asyncio.current_task())
    silences = Silences(longest=0)
    with silences.watching():
        eventually(lambda: bool(caplog.records))  # blocks the event loop
    assert silences.count == 1
    assert "request asked-1, method run_code, at eventually (processes.py:" in caplog.text


def test_metrics_count_the_silences_of_the_event_loop(sqlite_server: Server) -> None:
    assert "skillery_event_loop_silences_total" in sqlite_server.rpc.http.get("/metrics").text
