"""Foreign text: no request with a slow text occupies the server, however the text looks."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import httpx

from tests.conftest import Server, manifest
from tests.git.test_git_requests import fetch, head_of, post
from tests.support.processes import own_seconds

MOST_SECONDS = 0.2
"""Limit of the processor time of the server for one request."""
TRIES = 3


def spent(server: Server, act: Callable[[], Any]) -> float:
    """Return the least processor time of the server for the action. Other work of the server may coincide with one."""
    least = float("inf")
    for _ in range(TRIES):
        before = own_seconds(server.process.pid)
        act()
        least = min(least, own_seconds(server.process.pid) - before)
        if least <= MOST_SECONDS:
            break
    return least


def test_hints_of_failed_runs_are_linear_in_the_code(sqlite_server: Server) -> None:
    code = f"# from skills import{' ' * 40_000}!\nfrom skills import gone\ndef main(args):\n    pass\n"

    def run() -> None:
        ran = sqlite_server.rpc("run_code", language="python", code=code)
        assert "mount_skills=['gone']" in ran["error"]["message"]

    assert spent(sqlite_server, run) <= MOST_SECONDS


def test_a_preview_of_a_table_counts_its_delimiters(sqlite_server: Server) -> None:
    code = """import os
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

    assert spent(sqlite_server, show) <= MOST_SECONDS
    assert ">2,3<" in pages[0]
    assert ">b<" in pages[0]


def test_repeated_names_of_deepen_not_cost_one_walk(sqlite_server: Server) -> None:
    name = f"deepen{os.getpid()}"
    for number in range(20):
        made = manifest(f"{name}.one", f"1.0.{number}", kind="instruction")
        sqlite_server.rpc("create_skill", manifest=made, skill_md="# One\n", files=[])
    with httpx.Client(base_url=f"{sqlite_server.url}/git/{name}.git") as client:
        head = head_of(client)
        body = fetch(f"want {head}", *["deepen-not HEAD"] * 30_000)

        assert spent(sqlite_server, lambda: post(client, body)) <= MOST_SECONDS
