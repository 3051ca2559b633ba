"""Cost of a call over MCP, compared with the same call over /rpc."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import httpx

from bench.http import CONNECTIONS, SKILLS, publish
from bench.load import call, send
from bench.processor_time import processor_seconds
from bench.report import Report, format_ms, median, percentile
from tests.conftest import Rpc, Server
from tests.support.mcp_client import LEGACY, MODERN, Mcp

CALLS = 500
TURNS = 5
NOOP = {"language": "python", "code": "def main(args):\n    return None\n"}
ASKED: dict[str, dict[str, Any]] = {
    "list_skills (50)": {"name": "list_skills", "arguments": {"limit": 50}},
    "run_code, a no-op": {"name": "run_code", "arguments": NOOP},
}
Ways = dict[str, Callable[[], httpx.Response]]


def measure(report: Report, folder: Path, small: bool) -> None:
    calls = CALLS // 5 if small else CALLS
    report.heading("MCP")
    report.text(
        f"`tools/call` at `POST /mcp` and the same method at `POST /rpc`: one connection, {calls} calls of each in "
        "turn, SQLite. `more` is the difference of the medians."
    )
    server = Server(folder / "home")
    try:
        send(server.url, publish, SKILLS, CONNECTIONS)
        begun = time.perf_counter()
        Mcp(Rpc(server.url))("tools/list")
        first = time.perf_counter() - begun
        rows = [row for name, params in ASKED.items() for row in _rows(name, _ways(server.url, params), calls)]
        rates = _rates(server, calls)
        page = _taken({"": lambda: Mcp(Rpc(server.url)).send("skills/list", {})}, 20)[""]
    finally:
        server.stop()
    report.table(["call", "way", "p50 ms", "p99 ms", "more ms", "ratio"], rows)
    report.text(
        f"Requests per second with {CONNECTIONS} connections, {TURNS} turns each (medians). `processor` is the "
        "processor time of the server for a request."
    )
    report.table(["request", "requests/s", "processor ms", "ratio to /healthz"], rates)
    report.text(
        f"The first request of MCP imports the SDK, in a thread: {first * 1000:.0f} ms. A page of `skills/list` (50 "
        f"skills, with the digests of all their files): {format_ms(median(page))} ms."
    )


def _rates(server: Server, calls: int) -> list[list[object]]:
    cases: dict[str, tuple[bytes, str, dict[str, str]]] = {
        "GET /healthz": (b"", "/healthz", {}),
        "list_skills (50), /rpc": (call("list_skills", limit=50), "/rpc", {}),
    }
    for era in (MODERN, LEGACY):
        for name, method, params in (
            ("tools/list", "tools/list", {}),
            ("tools/call list_skills (50)", "tools/call", ASKED["list_skills (50)"]),
        ):
            message, headers = Mcp(Rpc(server.url), era).request(method, params)
            sent = {key: value for key, value in headers.items() if key != "content-type"}
            cases[f"{name}, {era}"] = message.encode(), "/mcp", sent
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in cases}
    for _ in range(TURNS):
        for name, (body, path, headers) in cases.items():
            before = processor_seconds(server.process.pid)
            load = send(server.url, lambda _, body=body: body, calls * 2, CONNECTIONS, path, headers=headers)  # type: ignore[misc]
            used_ms = (processor_seconds(server.process.pid) - before) * 1000
            found[name].append((load.per_second, used_ms / (calls * 2)))
    least = median([rate for rate, _ in found["GET /healthz"]])
    return [_rate_row(name, turns, least) for name, turns in found.items()]


def _rate_row(name: str, turns: list[tuple[float, float]], least: float) -> list[object]:
    rate, used = median([rate for rate, _ in turns]), median([used for _, used in turns])
    return [name, f"{rate:.0f}", f"{used:.3f}", f"{rate / least:.2f}"]


def _ways(url: str, params: dict[str, Any]) -> Ways:
    rpc = Rpc(url)
    body = call(params["name"], **params["arguments"])
    return {
        "/rpc": lambda: rpc.raw(body),
        **{f"/mcp, {era}": partial(Mcp(rpc, era).send, "tools/call", params) for era in (MODERN, LEGACY)},
    }


def _rows(name: str, ways: Ways, calls: int) -> list[list[object]]:
    taken = _taken(ways, calls)
    least = median(taken["/rpc"])
    return [
        [
            name,
            way,
            format_ms(middle := median(one)),
            format_ms(percentile(one, 99)),
            format_ms(middle - least),
            f"{middle / least:.2f}",
        ]
        for way, one in taken.items()
    ]


def _taken(ways: Ways, calls: int) -> dict[str, list[float]]:
    """Return milliseconds by way. The ways alternate, so that other load on the machine affects all of them."""
    taken: dict[str, list[float]] = {way: [] for way in ways}
    for number in range(calls + 10):
        for way, work in ways.items():
            begun = time.perf_counter()
            assert work().status_code == 200
            if number >= 10:
                taken[way].append((time.perf_counter() - begun) * 1000)
    return taken
