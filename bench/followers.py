"""`python -m bench.followers`: what 200 readers of the events of one run cost a server, and one reader that is stuck.

The run prints 1,000 lines a second. The readers are another process.
"""

from __future__ import annotations

import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.conftest import Rpc, Server, clean_environment

READERS, SECONDS, CALLS_A_SECOND = 200, 10.0, 50
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
async def read(host, port, path):
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(f"GET {path} HTTP/1.1\\r\\nHost: {host}\\r\\nAccept: text/event-stream\\r\\n\\r\\n".encode())
    while await reader.read(65536): pass
async def main():
    await asyncio.gather(*(read(*sys.argv[1:4]) for _ in range(int(sys.argv[4]))))
asyncio.run(main())
"""


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        server = Server(Path(folder) / "home", env=clean_environment())
        try:
            measure(server)
        finally:
            server.stop()


def measure(server: Server) -> None:
    host, port = server.url.removeprefix("http://").split(":")
    found = {}
    for readers in (0, READERS):
        lines = int((SECONDS + 4) * 1000)
        run_id = server.rpc("run_code", language="python", code=PRINTS, args={"lines": lines}, background=True)[
            "run_id"
        ]
        path = f"/v1/runs/{run_id}/events"
        following = subprocess.Popen([sys.executable, "-c", READ_ALL, host, port, path, str(readers)])
        time.sleep(2)
        found[readers] = sampled(server.process.pid, server.rpc)
        server.rpc("cancel_run", run_id=run_id)
        following.wait(30)
        processor, median, p99 = found[readers]
        print(f"{readers:4} readers: {processor:5.1f} % of a processor, /rpc median {median:.2f} ms, p99 {p99:.2f} ms")
    print(f"{READERS} readers: {found[READERS][0] - found[0][0]:.1f} % of a processor more")
    stuck(server, host, int(port))


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


def processor_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


if __name__ == "__main__":
    main()
