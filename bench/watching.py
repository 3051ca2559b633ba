"""Measurement of an attack's effect on a server: its memory, and the longest silence of /healthz."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

from bench.prober import GIVE_UP_SECONDS
from bench.victim import MIB
from skillery.testing.sandbox.leftovers import descendants

SAMPLE_SECONDS = 0.05


class Silence(NamedTuple):
    longest_ms: float
    p99_ms: float
    asked: int


class Prober:
    """Context manager of the prober process. `silence` is set at the end."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.silence = Silence(0, 0, 0)

    def __enter__(self) -> Prober:
        command = [sys.executable, "-m", "bench.prober", self._url]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self._process.stdout.readline()  # the first answer has arrived
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        try:
            output, _ = self._process.communicate(timeout=GIVE_UP_SECONDS * 2)
        except subprocess.TimeoutExpired:
            self._process.kill()
            output, _ = self._process.communicate()
        if output:
            self.silence = Silence(*json.loads(output))


class Memory:
    """Context manager that measures the peak memory of a process and its children, relative to `idle` (bytes)."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self.idle = resident(pid)
        self.grown = self.children_grown = 0
        self._ended = threading.Event()
        self._sampling = threading.Thread(target=self._sample)

    def __enter__(self) -> Memory:
        with contextlib.suppress(OSError):  # otherwise the samples are the only source
            Path(f"/proc/{self._pid}/clear_refs").write_text("5")  # reset VmHWM, see proc_pid_clear_refs(5)
        self._children = children_of(self._pid)
        self._sampling.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._ended.set()
        self._sampling.join()
        self.grown = max(self.grown, resident(self._pid, "VmHWM") - self.idle)

    def _sample(self) -> None:
        while not self._ended.wait(SAMPLE_SECONDS):
            self.grown = max(self.grown, resident(self._pid) - self.idle)
            self.children_grown = max(self.children_grown, children_of(self._pid) - self._children)


def resident(pid: int, field: str = "VmRSS") -> int:
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith(f"{field}:"):
                return int(line.split()[1]) * 1024
    return 0


def children_of(pid: int) -> int:
    """Return the memory of all descendants of a process. Shared memory counts for each of them."""
    return sum(map(resident, descendants(pid)))


def settled(pid: int) -> int:
    """Wait until memory stands still, at most two seconds. Return it."""
    before = resident(pid)
    for _ in range(20):
        time.sleep(0.1)
        now = resident(pid)
        if abs(now - before) < MIB // 4:
            return now
        before = now
    return before
