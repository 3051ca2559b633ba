"""Other servers for the same kinds of work, measured in turn with Skillery: FastMCP (tools) and devpi (an index).

The peers are installed from the package index into a temporary environment. Their answers have other contents and
sizes, so the figures compare orders of magnitude.
"""

from __future__ import annotations

import base64
import contextlib
import io
import socket
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import httpx

from bench.http import publish
from bench.load import Load, call, send
from bench.report import Report, format_ms, median, percentile
from tests.conftest import Rpc, Server
from tests.support.mcp_client import LEGACY, MODERN, Mcp

PACKAGES = ("fastmcp", "devpi-server")
CONNECTIONS, TURNS, NUMBER = 8, 3, 50
START_SECONDS = 180
TOOLS = f"""
import sys
from fastmcp import FastMCP

server = FastMCP("peer")


def named(number):
    def tool(text: str = "", limit: int = 50) -> None:
        "Does nothing, and has a description of the usual length for a tool of an agent."

    tool.__name__ = f"tool_{{number}}"
    return tool


for number in range({NUMBER}):
    server.tool(named(number))
server.run(transport="http", host="127.0.0.1", port=int(sys.argv[1]), stateless_http=True, show_banner=False,
           uvicorn_config={{"access_log": False}})
"""


class Case(NamedTuple):
    """A request to one of the servers."""

    name: str
    url: str
    path: str
    body: bytes = b""
    headers: Mapping[str, str] = {}


def measure(report: Report, folder: Path, small: bool) -> None:
    requests = 200 if small else 1000
    with contextlib.ExitStack() as stack:
        python = install(folder, PACKAGES)
        ours = Server(folder / "home")
        stack.callback(ours.stop)
        send(ours.url, publish, NUMBER, CONNECTIONS)
        cases = [
            *_own(ours.url),
            *_of_fastmcp(stack.enter_context(_fastmcp(python, folder))),
            *_of_devpi(stack.enter_context(_devpi(python, folder))),
        ]
        loads = _in_turns(cases, requests)
    report.heading("Peers")
    report.text(
        f"Each server runs alone in one process, with {CONNECTIONS} connections; the requests take turns ({TURNS} "
        f"times {requests}, medians). Skillery has {NUMBER} published skills and the bundled ones, FastMCP {NUMBER} "
        f"tools, devpi {NUMBER} projects. `ratio` compares with `GET /healthz` of Skillery."
    )
    least = median([load.per_second for load in loads[cases[0].name]])
    report.table(
        ["request", "requests/s", "p50 ms", "p99 ms", "ratio"],
        [_row(name, all_, least) for name, all_ in loads.items()],
    )


def _in_turns(cases: Sequence[Case], requests: int) -> dict[str, list[Load]]:
    loads: dict[str, list[Load]] = {case.name: [] for case in cases}
    for turn in range(TURNS + 1):
        for case in cases:
            many = requests if turn else 50
            load = send(case.url, lambda _, case=case: case.body, many, CONNECTIONS, case.path, headers=case.headers)  # type: ignore[misc]
            if turn:
                loads[case.name].append(load)
    return loads


def _row(name: str, loads: Sequence[Load], least: float) -> list[object]:
    per_second = median([load.per_second for load in loads])
    latencies = [one for load in loads for one in load.latencies]
    times = [format_ms(median(latencies)), format_ms(percentile(latencies, 99))]
    return [name, f"{per_second:.0f}", *times, f"{per_second / least:.3f}"]


def _own(url: str) -> list[Case]:
    listing, described = call("list_skills", limit=NUMBER), call("describe_skill", name="bench.team1.skill1")
    cases = [Case("Skillery: GET /healthz", url, "/healthz")]
    for method, params in (
        ("tools/list", {}),
        ("tools/call", {"name": "list_skills", "arguments": {"limit": NUMBER}}),
    ):
        body, headers = Mcp(Rpc(url), MODERN).request(method, params)
        sent = {name: value for name, value in headers.items() if name != "content-type"}
        cases.append(Case(f"Skillery: {method} {params.get('name', '')}".strip(), url, "/mcp", body.encode(), sent))
    return [
        *cases,
        Case(f"Skillery: list_skills ({NUMBER}), /rpc", url, "/rpc", listing),
        Case("Skillery: describe_skill, /rpc", url, "/rpc", described),
    ]


def _of_fastmcp(url: str) -> list[Case]:
    cases = []
    for name, method, params in (
        (f"FastMCP: tools/list ({NUMBER})", "tools/list", {}),
        ("FastMCP: tools/call, a no-op", "tools/call", {"name": "tool_1", "arguments": {}}),
    ):
        body, headers = Mcp(Rpc(url), LEGACY).request(method, params)
        sent = {name: value for name, value in headers.items() if name != "content-type"}
        cases.append(Case(name, url, "/mcp", body.encode(), sent))
    return cases


def _of_devpi(url: str) -> list[Case]:
    simple = {"Accept": "application/vnd.pypi.simple.v1+json"}
    return [
        Case(f"devpi: simple list ({NUMBER})", url, "/peer/index/+simple/", headers=simple),
        Case("devpi: project JSON", url, "/peer/index/project1", headers={"Accept": "application/json"}),
    ]


# -- the peers ---------------------------------------------------------------------------------------------------------


def install(folder: Path, packages: Sequence[str]) -> Path:
    """Install packages into an environment of their own, and return its Python."""
    environment = folder / "peers"
    subprocess.run([sys.executable, "-m", "venv", environment], check=True)
    python = environment / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "--quiet", *packages], check=True)
    return python


@contextlib.contextmanager
def _fastmcp(python: Path, folder: Path) -> Iterator[str]:
    program = folder / "peer_tools.py"
    program.write_text(TOOLS)
    port = free_port()
    with running([str(python), str(program), str(port)], folder / "fastmcp.log", port) as url:
        yield url


@contextlib.contextmanager
def _devpi(python: Path, folder: Path) -> Iterator[str]:
    state = str(folder / "devpi")
    binaries = python.parent
    subprocess.run(
        [binaries / "devpi-init", "--serverdir", state, "--no-root-pypi"], check=True, stdout=subprocess.DEVNULL
    )
    port = free_port()
    command = [str(binaries / "devpi-server"), "--serverdir", state, "--port", str(port), "--offline-mode"]
    with running(command, folder / "devpi.log", port) as url:
        _upload(url)
        yield url


def _upload(url: str) -> None:
    with httpx.Client(base_url=url, timeout=30) as client:
        client.put("/peer", json={"password": "peer"}).raise_for_status()
        told = client.post("/+login", json={"user": "peer", "password": "peer"}).raise_for_status().json()
        login = base64.b64encode(f"peer:{told['result']['password']}".encode()).decode()
        client.headers["X-Devpi-Auth"] = login
        client.put("/peer/index", json={"type": "stage", "bases": []}).raise_for_status()
        for number in range(NUMBER):
            name = f"project{number}"
            about = {":action": "file_upload", "name": name, "version": "1.0", "filetype": "bdist_wheel"}
            wheel = {"content": (f"{name}-1.0-py3-none-any.whl", _wheel(name), "application/zip")}
            client.post("/peer/index/", data=about, files=wheel).raise_for_status()


def _wheel(name: str) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        archive.writestr(f"{name}-1.0.dist-info/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        archive.writestr(f"{name}-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
    return content.getvalue()


@contextlib.contextmanager
def running(command: list[str], log: Path, port: int) -> Iterator[str]:
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out)
    try:
        deadline = time.monotonic() + START_SECONDS
        while not _listens(port):
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{command[0]} did not start: {log.read_text()[-2000:]}")
            time.sleep(0.2)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(30)


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
