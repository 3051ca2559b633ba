"""The process of a scan survives a busy server, and no answer reaches another request."""

from __future__ import annotations

import os
import resource
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from skillery_scanner.process import ScanFailed, ScanProcess

# The worker answers each request with the request. It answers `interrupt` late, before its next answer, and ends at
# `crash`.
WORKER = """
import os, signal, sys

held = []
while head := sys.stdin.buffer.read(8):
    held.append(sys.stdin.buffer.read(int.from_bytes(head, "big")))
    if held == [b"crash"]:
        os._exit(3)
    if held == [b"interrupt"]:
        os.kill(os.getppid(), signal.SIGUSR1)
        continue
    for answer in held:
        sys.stdout.buffer.write(len(answer).to_bytes(8, "big") + answer)
    sys.stdout.buffer.flush()
    held.clear()
"""


@pytest.fixture
def process(tmp_path: Path) -> Iterator[ScanProcess]:
    worker = tmp_path / "worker.py"
    worker.write_text(WORKER)
    started = ScanProcess([sys.executable, "-I", str(worker)], first_seconds=300, seconds=300)
    yield started
    started.close()


@pytest.fixture
def many_descriptors() -> Iterator[None]:
    """Open descriptors until all numbers below 1100 are in use."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(2_048, before[1]), before[1]))
    null = os.open(os.devnull, os.O_RDONLY)
    opened = [null]
    while opened[-1] < 1_100:
        opened.append(os.dup(null))
    yield
    for one in opened:
        os.close(one)
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.usefixtures("many_descriptors")
def test_a_scan_starts_while_the_server_has_more_than_1024_descriptors(process: ScanProcess) -> None:
    assert process.ask(b"one") == b"one"
    assert process.ask(b"two" * 100_000) == b"two" * 100_000


def test_a_crash_fails_only_its_scan_and_restarts_the_process(process: ScanProcess) -> None:
    assert process.ask(b"one") == b"one"
    with pytest.raises(ScanFailed, match="the process of the scan ended with the code"):
        process.ask(b"crash")

    assert process.ask(b"next") == b"next"


class Unforeseen(Exception):
    """Raised by a signal in the middle of a request."""


@pytest.fixture
def errors_by_signal() -> Iterator[None]:
    def fail(*_: object) -> None:
        raise Unforeseen

    before = signal.signal(signal.SIGUSR1, fail)
    yield
    signal.signal(signal.SIGUSR1, before)


@pytest.mark.usefixtures("errors_by_signal")
def test_an_unexpected_error_ends_the_process_and_discards_its_late_answer(process: ScanProcess) -> None:
    with pytest.raises(Unforeseen):
        process.ask(b"interrupt")

    assert process.ask(b"next") == b"next"
