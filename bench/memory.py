"""Memory of a server: idle, and after it has listed a large registry."""

from __future__ import annotations

from pathlib import Path

import httpx

from bench.catalogue import fill
from bench.load import call, send
from bench.report import Report
from skillery.database import Database, migrate
from tests.conftest import Rpc, Server
from tests.support.mcp_client import Mcp

MIB = 1024
ROUNDS = 3
PAGE = 1000
SEPARATE = {"PYTHONUNBUFFERED": "1"}
"""A server with this variable is a new process. Other servers are forked from a process with the modules of tests."""


def measure(report: Report, folder: Path, small: bool) -> None:
    size = 10_000 if small else 100_000
    home = folder / "home"
    home.mkdir(parents=True)
    database = Database(f"sqlite:///{home / 'skillery.db'}")
    migrate.upgrade(database)
    fill(database, size)
    database.close()
    server = Server(home, env=SEPARATE)
    try:
        rows = _rows(server)
    finally:
        server.stop()
    report.heading("Memory")
    report.text(
        f"Resident memory (RSS) of the server process in MiB, without the processes of its sandbox. SQLite, {size:,} "
        f"skills. Each round lists all of them in pages of {PAGE}."
    )
    report.table(["after", "RSS", "private"], rows)


def _rows(server: Server) -> list[list[object]]:
    pid = server.process.pid
    rows: list[list[object]] = [["start, idle", *_memory(pid)]]
    for number in range(ROUNDS):
        assert _list_all(server.url) > PAGE
        rows.append([f"round {number + 1} of listing", *_memory(pid)])
    send(server.url, lambda _: call("list_skills", limit=50), 2000, 8)
    rows.append(["2,000 pages of 50, 8 callers", *_memory(pid)])
    Mcp(Rpc(server.url))("tools/list")
    rows.append(["the first request of MCP", *_memory(pid)])
    return rows


def _list_all(url: str) -> int:
    found, cursor = 0, ""
    with httpx.Client(base_url=url, headers={"content-type": "application/json"}, timeout=60) as client:
        while True:
            answer = client.post("/rpc", content=call("list_skills", limit=PAGE, cursor=cursor)).json()["result"]
            found += len(answer["skills"])
            if answer["next_cursor"] is None:
                return found
            cursor = answer["next_cursor"]


def _memory(pid: int) -> list[str]:
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    sizes = {line.split(":")[0]: int(line.split()[1]) for line in text.splitlines()[1:]}
    return [f"{value / MIB:.0f}" for value in (sizes["Rss"], sizes["Private_Clean"] + sizes["Private_Dirty"])]
