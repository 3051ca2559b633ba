"""Upload and download of blobs, compared with `cp` of the same size, and the memory of the server."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from bench.report import Report, median
from tests.conftest import Server

MIB = 1024 * 1024
ROUNDS = 3


def measure(report: Report, folder: Path, small: bool) -> None:
    size = 128 if small else 1024
    report.heading("Blobs")
    server = Server(folder / "home")
    source, copy = folder / "source", folder / "copy"
    piece = os.urandom(MIB)
    with source.open("wb") as file:
        for _ in range(size):
            file.write(piece)
    try:
        base = [_seconds(lambda: subprocess.run(["cp", source, copy], check=True)) for _ in range(ROUNDS)]
        ups, downs = [], []
        for _ in range(ROUNDS):
            blob_id, seconds = _upload(server, piece, size)
            ups.append(seconds)
            downs.append(_seconds(lambda blob_id=blob_id: _download(server, blob_id)))  # type: ignore[misc]
        peak = _peak_mib(server.process.pid)
    finally:
        server.stop()
    rows = [
        [what, f"{size / median(taken):.0f}", f"{median(base) / median(taken):.2f}"]
        for what, taken in (("upload (hashed, flushed)", ups), ("download", downs), ("`cp`", base))
    ]
    report.text(f"{size} MiB, medians of {ROUNDS}. The client is a Python process on the same machine.")
    report.table(["what", "MiB/s", "ratio to `cp`"], rows)
    report.text(f"Peak resident memory of the server after all of it: {peak:.0f} MiB.")


def _upload(server: Server, piece: bytes, pieces: int) -> tuple[str, float]:
    def content() -> Iterator[bytes]:
        for _ in range(pieces):
            yield piece

    started = time.perf_counter()
    response = server.rpc.http.post("/blobs", content=content())
    return response.json()["blob_id"], time.perf_counter() - started


def _download(server: Server, blob_id: str) -> None:
    with server.rpc.http.stream("GET", f"/blobs/{blob_id}") as response:
        for _ in response.iter_raw():
            pass


def _seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def _peak_mib(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))
