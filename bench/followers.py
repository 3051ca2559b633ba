"""`python -m bench.followers`: what 200 readers of the events of one run cost a server, and one reader that is stuck.

The run prints 1,000 lines a second. The readers are another process. `python -m bench.followers pages` has readers of
the page of the run: 50 signed-in admins with four streams each, as many as the page allows.
"""

from __future__ import annotations

import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench.processor_time import processor_seconds
from tests.conftest import Rpc, Server, clean_environment
from tests.support.browser import Browser

READERS, SECONDS, CALLS_A_SECOND, TURNS = 200, 10.0, 50, 3
SESSIONS = READERS // 4
PRINTS = """
import time
def main(args):
    begun = time.monotonic()
    for number in range(args["lines"]):
        print("a line of the log, which is as long as lines of a log are, number", number, flush=number % 10 == 0)
        time.sleep(max(0, begun + number / 1000 - time.monotonic()))
"""
READ_ALL = """
import asyncio, sys
async def begin(host, port, path, cookie):
    reader, writer = await asyncio.open_connection(host, int(port))
    extra = f"Cookie: skillery={cookie}\\r\\n" if cookie else ""
    head = f"GET {path} HTTP/1.1\\r\\nHost: {host}:{port}\\r\\nAccept: text/event-stream\\r\\n{extra}\\r\\n"
    writer.write(head.encode())
    begun = await reader.read(65536)
    assert b" 200 " in begun[:20], begun[:200]
    return reader, writer
async def read(reader, _):
    while await reader.read(65536): pass
async def main():
    cookies = sys.argv[5:] or [""]
    numbers = range(int(sys.argv[4]))
    opened = await asyncio.gather(*(begin(*sys.argv[1:4], cookies[number % len(cookies)]) for number in numbers))
    print("ready", flush=True)
    await asyncio.gather(*(read(*one) for one in opened))
asyncio.run(main())
"""


def main() -> None:
    of_pages = "pages" in sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        settings = {"SKILLERY_AUTH": "tokens"} if of_pages else {}
        server = Server(Path(folder) / "home", env=clean_environment(settings))
        try:
            measure_pages(server) if of_pages else measure(server)
        finally:
            server.stop()


def measure(server: Server) -> None:
    host, port = server.url.removeprefix("http://").split(":")
    compare(server, server.rpc, "/v1/runs/{}/events", [])
    stuck(server, host, int(port))


def measure_pages(server: Server) -> None:
    command = [sys.executable, "-m", "skillery", "token", "create", "--name", "root", "--scope", "admin", "--json"]
    made = subprocess.run([*command, "--home", str(server.home)], capture_output=True, check=True)
    rpc = Rpc(server.url, json.loads(made.stdout)["token"])
    cookies = []
    for number in range(SESSIONS):
        browser = Browser(server.url, accept="text/html")
        browser.sign_in(rpc("create_token", name=f"reader{number}", scopes=["admin"])["token"])
        cookies.append(browser.cookie() or "")
    compare(server, rpc, "/runs/{}/events", cookies)


def compare(server: Server, rpc: Rpc, address: str, cookies: list[str]) -> None:
    """Print the costs of a run without and with readers, measured in turns."""
    host, port = server.url.removeprefix("http://").split(":")
    found: dict[int, list[tuple[float, float, float]]] = {0: [], READERS: []}
    grown: list[float] = []
    for readers in (0, READERS) * TURNS:
        lines = int((SECONDS + 20) * 1000)
        run_id = rpc("run_code", language="python", code=PRINTS, args={"lines": lines}, background=True)["run_id"]
        before = resident(server.process.pid)
        more = [host, port, address.format(run_id), str(readers), *cookies]
        # The readers have a lower priority: on a real server they are other machines.
        command = ["nice", "-n", "10", sys.executable, "-c", READ_ALL, *more]
        following = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert following.stdout is not None
        assert following.stdout.readline() == b"ready\n"
        time.sleep(1)
        found[readers].append(sampled(server.process.pid, rpc))
        if readers:
            grown.append((resident(server.process.pid) - before) / readers)
        rpc("cancel_run", run_id=run_id)
        assert following.wait(30) == 0
    for readers, samples in found.items():
        processor, usual, p99 = (statistics.median(column) for column in zip(*samples, strict=True))
        print(f"{readers:4} readers: {processor:5.1f} % of a processor, /rpc median {usual:.2f} ms, p99 {p99:.2f} ms")
    print(f"a reader: {max(grown) / 1024:.0f} KiB of memory in the first turn, {min(grown) / 1024:.0f} KiB later")


def sampled(pid: int, rpc: Rpc) -> tuple[float, float, float]:
    """Return the share of a processor of the server in percent, and the median and p99 of a listing in ms."""
    begun, used, took = time.perf_counter(), processor_seconds(pid), []
    while time.perf_counter() - begun < SECONDS:
        at = time.perf_counter()
        rpc("list_skills")
        took.append((time.perf_counter() - at) * 1000)
        time.sleep(1 / CALLS_A_SECOND)
    share = (processor_seconds(pid) - used) / (time.perf_counter() - begun) * 100
    return share, statistics.median(took), sorted(took)[int(len(took) * 0.99)]


def stuck(server: Server, host: str, port: int) -> None:
    """Print the memory of the server for each reader that reads nothing."""
    before = resident(server.process.pid)
    run_id = server.rpc("run_code", language="python", code=PRINTS, args={"lines": 8000}, background=True)["run_id"]
    readers = [socket.create_connection((host, port)) for _ in range(READERS)]
    for reader in readers:
        reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        reader.sendall(f"GET /v1/runs/{run_id}/events HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
    time.sleep(8)
    grown = (resident(server.process.pid) - before) / READERS
    print(f"a reader that reads nothing: {grown / 1024:.0f} KiB")
    for reader in readers:
        reader.close()


def resident(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


if __name__ == "__main__":
    main()
