"""Requests per second of one server process, on SQLite and on Postgres."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import psycopg

from bench.load import Load, call, send, wait_until_idle
from bench.report import Report, format_ms, median, percentile
from tests.conftest import Server, clean_environment
from tests.support.postgres import running_postgres

CONNECTIONS = 8
SKILLS = 500
_TURNS = 8
WITH_TOOLS, TOOLS_EACH = 100, 10
ROWS = 7
"""The number of rows of `_rows`. The first one is that of /healthz."""
MAIN = "def main(args):\n    return args\n"


def measure(report: Report, folder: Path, small: bool) -> None:
    report.heading("One server process over HTTP")
    report.text(
        f"A client on the same machine keeps {CONNECTIONS} connections busy. `ratio` compares with `GET /healthz` in "
        "the same measurement, which is the minimum of this stack."
    )
    rows: list[list[object]] = []
    in_turns: list[list[object]] = []
    with running_postgres() as url:
        for name, database in (("SQLite", ""), ("Postgres", url)):
            server = Server(folder / name, env={"SKILLERY_DATABASE": database})
            requests = 500 if small else 4000
            try:
                rows += _rows(server, name, requests, database)
            finally:
                server.stop()
            rows.append(_with_import_check(folder, name, database, rows[-ROWS][2]))
            in_turns += _with_a_token(folder, name, database, requests)
    report.table(["database", "request", "requests/s", "p50 ms", "p99 ms", "ratio"], rows)
    report.text(
        f"Cost of tokens: one registry, two servers, {_TURNS} turns each (medians). `ratio` compares with the server "
        "without tokens."
    )
    report.table(["database", "request", "requests/s", "p50 ms", "p99 ms", "ratio"], in_turns)


def _with_a_token(folder: Path, name: str, database: str, requests: int) -> list[list[object]]:
    """Measure the same listing on a server without authentication and on a server with tokens.

    The servers alternate, so that other load on the machine affects both.
    """
    home, copy = folder / name, folder / f"{name}-tokens"
    shutil.copytree(home, copy)
    tokens = {"SKILLERY_DATABASE": database, "SKILLERY_AUTH": "tokens"}
    servers = [Server(home, env={"SKILLERY_DATABASE": database})]
    try:
        servers.append(Server(copy, env=tokens))
        token = _reader(copy, tokens)
        cases = [("list_skills (50), open", servers[0], ""), ("list_skills (50), with a token", servers[1], token)]
        loads: dict[str, list[Load]] = {case: [] for case, _, _ in cases}
        for turn in range(_TURNS):
            for case, server, login in cases if turn % 2 else reversed(cases):
                loads[case].append(send(server.url, _listing, requests, CONNECTIONS, token=login))
    finally:
        for server in servers:
            server.stop()
    least = median([load.per_second for load in loads["list_skills (50), open"]])
    return [_in_turns(name, case, found, least) for case, found in loads.items()]


def _listing(_: int) -> bytes:
    return call("list_skills", limit=50)


def _reader(home: Path, env: dict[str, str]) -> str:
    command = [sys.executable, "-m", "skillery", "token", "create", "--name", "bench", "--scope", "read", "--json"]
    made = subprocess.run([*command, "--home", str(home)], capture_output=True, check=True, env=clean_environment(env))
    token: str = json.loads(made.stdout)["token"]
    return token


def _in_turns(database: str, case: str, loads: list[Load], least: float) -> list[object]:
    latencies = [one for load in loads for one in load.latencies]
    per_second = median([load.per_second for load in loads])
    times = [format_ms(median(latencies)), format_ms(percentile(latencies, 99))]
    return [database, case, f"{per_second:.0f}", *times, f"{per_second / least:.3f}"]


def _row(database: str, request: str, load: Load, least: Load) -> list[object]:
    latencies = load.latencies
    per_second, ratio = f"{load.per_second:.0f}", f"{load.per_second / least.per_second:.2f}"
    return [database, request, per_second, format_ms(median(latencies)), format_ms(percentile(latencies, 99)), ratio]


def publish(number: int) -> bytes:
    manifest = {
        "name": f"bench.team{number % 10}.skill{number}",
        "version": "1.0.0",
        "description": "What it does.",
        "runtime": {"language": "python", "entrypoint": "code/main.py", "export": "main"},
    }
    files = [{"path": "code/main.py", "content": MAIN}, {"path": "resources/note.md", "content": f"Note {number}"}]
    return call("create_skill", manifest=manifest, skill_md=f"# Skill {number}\n", files=files)


def publish_instruction(number: int) -> bytes:
    manifest = {
        "name": f"bench.notes{number % 10}.skill{number}",
        "version": "1.0.0",
        "description": "What it does.",
        "kind": "instruction",
    }
    files = [{"path": f"notes/{one}.md", "content": f"Note {number} {one}"} for one in ("a", "b")]
    return call("create_skill", manifest=manifest, skill_md=f"# Skill {number}\n", files=files)


def _with_import_check(folder: Path, name: str, database: str, least: object) -> list[object]:
    """Measure publications of skills whose entrypoint is imported in the sandbox. `least` is the rate of /healthz."""
    env = {"SKILLERY_DATABASE": database, "SKILLERY_PUBLISHING_IMPORT_SECONDS": "15"}
    server = Server(folder / name, env=env)
    try:
        load = send(server.url, lambda number: publish(number + SKILLS), SKILLS // 5, CONNECTIONS)
    finally:
        server.stop()
    times = [format_ms(median(load.latencies)), format_ms(percentile(load.latencies, 99))]
    ratio = f"{load.per_second / float(str(least)):.2f}"
    return [name, "create_skill, with the import check", f"{load.per_second:.0f}", *times, ratio]


def _publish_tools(number: int) -> bytes:
    parameters = {"text": {"type": "string", "description": "The text"}}
    tools = [
        {"name": f"tool_{number}_{one}", "description": "What it does.", "parameters": parameters}
        for one in range(TOOLS_EACH)
    ]
    manifest = {"name": f"bench.tools.skill{number}", "version": "1.0.0", "description": "What it does."}
    files = [{"path": "tools.json", "content": json.dumps(tools)}]
    return call("create_skill", manifest=manifest, skill_md="# Tools\n", files=files)


def _rows(server: Server, database: str, requests: int, address: str) -> list[list[object]]:
    name, url = "bench.team1.skill1", server.url
    send(url, publish, SKILLS, CONNECTIONS)
    publishing = send(url, publish_instruction, SKILLS, CONNECTIONS)
    send(url, _publish_tools, WITH_TOOLS, CONNECTIONS)
    if address:
        # Autovacuum does this a minute later. Before, Postgres plans for a registry that is nearly empty.
        with psycopg.connect(address, autocommit=True) as connection:
            connection.execute("VACUUM ANALYZE")
    wait_until_idle(server.process.pid)
    least = send(url, lambda _: b"", requests, CONNECTIONS, "/healthz")
    loads = {
        "GET /healthz": least,
        "list_skills (50)": send(url, _listing, requests, CONNECTIONS),
        "describe_skill": send(url, lambda _: call("describe_skill", name=name), requests, CONNECTIONS),
        "read_skill_file": send(
            url, lambda _: call("read_skill_file", name=name, path="SKILL.md"), requests, CONNECTIONS
        ),
        "create_blob (1 kB)": send(
            url, lambda n: call("create_blob", content=f"{n:04}" * 256, kind="text/plain"), requests // 4, CONNECTIONS
        ),
        "create_skill, no entrypoint": publishing,
        "list_tools (1000), alone": send(url, lambda _: call("list_tools", limit=1000), requests // 20, 1),
    }
    return [_row(database, request, load, least) for request, load in loads.items()]
