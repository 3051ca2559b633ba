"""`skillery serve --workers N` on Postgres: requests and runs per second, and memory, compared with one process."""

from __future__ import annotations

import itertools
from pathlib import Path

from bench.http import publish_instruction
from bench.load import Load, call, send
from bench.report import Report, format_ms, median, percentile
from tests.conftest import Rpc, Server, manifest, skill_files
from tests.support.postgres import running_postgres

SKILLS = 60
CONNECTIONS = 8
TURNS = 5
WORKERS = (1, 2)
MAIN = "def main(args):\n    return args\n"
_numbers = itertools.count()
CASES = {
    "list_skills (50)": lambda _: call("list_skills", limit=50),
    "describe_skill": lambda number: call("describe_skill", name=f"bench.n{number % SKILLS}"),
    "execute_skill, a no-op": lambda _: call("execute_skill", name="bench.n0"),
    "create_skill, no entrypoint": lambda _: publish_instruction(next(_numbers)),
}


def measure(report: Report, folder: Path, small: bool) -> None:
    report.heading("Several worker processes")
    report.text(
        f"One Postgres and one client with {CONNECTIONS} connections on the same machine. The servers take turns; the "
        "table has the medians. `ratio` compares with one process. The memory is measured before the first run: what a "
        "process does not share with another one (Private), and what it has in all (RSS)."
    )
    requests = 300 if small else 2000
    with running_postgres() as url:
        servers = {count: _server(folder, url, count) for count in WORKERS}
        try:
            _publish(servers[1])
            memory = {count: _memory(server, count) for count, server in servers.items()}
            loads: dict[tuple[str, int], list[Load]] = {(case, count): [] for case in CASES for count in WORKERS}
            # Publications last: new skills change the plans of Postgres for listings.
            turns = [(turn, case) for case in CASES for turn in range(TURNS)]
            for turn, case in turns:
                body = CASES[case]
                for count in WORKERS if turn % 2 else reversed(WORKERS):
                    amount = requests // 5 if case.startswith(("create", "execute")) else requests
                    loads[case, count].append(send(servers[count].url, body, amount, CONNECTIONS))
        finally:
            for server in servers.values():
                server.stop()
    report.table(["request", "workers", "requests/s", "p50 ms", "p99 ms", "ratio"], _rows(loads))
    report.table(["workers", "process", "private, MiB", "RSS, MiB"], [row for rows in memory.values() for row in rows])


def _server(folder: Path, url: str, count: int) -> Server:
    env = {
        "SKILLERY_DATABASE": url,
        "SKILLERY_BACKENDS_STORAGE_DIRECTORY_PATH": str(folder / "contents"),
        "SKILLERY_QUOTAS_RUNS_PER_MINUTE": "0",
    }
    return Server(folder / f"workers{count}", "--workers", str(count), env=env, wrapper=["env"])


def _publish(server: Server) -> None:
    rpc = Rpc(server.url)
    for number in range(SKILLS):
        rpc("create_skill", manifest=manifest(f"bench.n{number}"), skill_md="# A\n", files=skill_files(MAIN))


def _memory(server: Server, count: int) -> list[list[object]]:
    if count == 1:
        return [[count, "server", *_mib(server.process.pid)]]
    workers = sorted(_mib(pid) for pid in _children(server.process.pid))
    return [[count, "supervisor", *_mib(server.process.pid)], [count, "each worker, at most", *workers[-1]]]


def _mib(pid: int) -> list[int]:
    """Return the private and the resident memory of a process in MiB."""
    sizes = {"Private": 0, "Rss": 0}
    for line in (Path("/proc") / str(pid) / "smaps_rollup").read_text().splitlines():
        name = line.partition(":")[0].partition("_")[0]
        if name in sizes:
            sizes[name] += int(line.split()[1])
    return [round(kib / 1024) for kib in sizes.values()]


def _children(pid: int) -> list[int]:
    return [int(child) for child in (Path("/proc") / str(pid) / "task" / str(pid) / "children").read_text().split()]


def _rows(loads: dict[tuple[str, int], list[Load]]) -> list[list[object]]:
    rows: list[list[object]] = []
    for (case, count), each in loads.items():
        rate = median([load.per_second for load in each])
        base = median([load.per_second for load in loads[case, 1]])
        times = [ms for load in each for ms in load.latencies]
        rows.append(
            [case, count, round(rate), format_ms(median(times)), format_ms(percentile(times, 99)), f"{rate / base:.2f}"]
        )
    return rows
