"""A program as a child of the run's process: give it input, collect its output, end it with all its children."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

PIECE = 256 * 1024
LAST_WORDS = 1 << 20
"""Most bytes that are read from one pipe after its program has ended.

A pipe holds fewer bytes, so this limit only cuts the output of a process that continues to write.
"""


class Sink:
    """Collects the output of one pipe: the first `keep` bytes, with `tail` the last bytes, and the size of all output.

    If `copy_to` is given, all output is also written to this descriptor.
    """

    def __init__(self, keep: int, *, tail: bool = False, copy_to: int | None = None) -> None:
        self.content = bytearray()
        self.size = 0
        self._keep = keep
        self._tail = tail
        self._copy_to = copy_to

    def take(self, piece: bytes) -> None:
        self.size += len(piece)
        if self._tail:
            self.content += piece
            del self.content[: -self._keep]
        else:
            self.content += piece[: self._keep - len(self.content)]
        if self._copy_to is not None:
            pass_on(self._copy_to, piece)


def pass_on(descriptor: int, content: bytes | bytearray) -> None:
    view = memoryview(content)
    while view:
        view = view[os.write(descriptor, view[:PIECE]) :]


class Program:
    """One program. Call `feed` and `drain`, then `run`."""

    def __init__(self) -> None:
        self._feeds: dict[int, memoryview] = {}
        self._sinks: dict[int, Sink] = {}
        self._theirs: list[int] = []

    def feed(self, content: bytes) -> int:
        """Return a descriptor from which the program reads this content."""
        reading, writing = os.pipe()
        os.set_blocking(writing, False)
        self._theirs.append(reading)
        self._feeds[writing] = memoryview(content)
        return reading

    def drain(self, sink: Sink) -> int:
        """Return a descriptor for the program. The sink collects what the program writes to it."""
        reading, writing = os.pipe()
        os.set_blocking(reading, False)
        self._theirs.append(writing)
        self._sinks[reading] = sink
        return writing

    def run(
        self,
        command: list[str],
        *,
        stdin: int = subprocess.DEVNULL,
        stdout: int | None = None,
        stderr: int | None = None,
        environment: dict[str, str] | None = None,
        folder: str | None = None,
        alone: bool,
        seconds: float,
    ) -> int:
        """Run the program to its end, and return its wait status. After `seconds`, it gets SIGTERM, and all processes
        that it has started too, if the run has its own pid namespace.

        The program has its standard streams and the descriptors from `feed` and `drain`, and no others. `alone` means
        that the run has its own pid namespace: then all processes that the program left are killed.
        """
        beyond = [descriptor for descriptor in self._theirs if descriptor not in {stdin, stdout, stderr}]
        woken, waking = os.pipe()
        for descriptor in (woken, waking):
            os.set_blocking(descriptor, False)
        before = signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(waking, warn_on_full_buffer=False)
        try:
            process = subprocess.Popen(
                command, stdin=stdin, stdout=stdout, stderr=stderr, env=environment, cwd=folder, pass_fds=beyond
            )
            self._let_go()
            is_late = self._converse(process, woken, time.monotonic() + seconds, alone=alone)
            while is_late and process.returncode:
                time.sleep(60)  # until the limit: other processes may still write results, and the run is too late
        finally:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, before)
            os.close(woken)
            os.close(waking)
        if alone:
            end_others()
        self._hear_last_words()
        code = process.returncode
        return -code if code < 0 else code << 8

    def _let_go(self) -> None:
        for descriptor in self._theirs:
            os.close(descriptor)

    def _converse(self, process: subprocess.Popen[bytes], woken: int, deadline: float, *, alone: bool) -> bool:
        """Pass data until the program ends. Return whether it got SIGTERM at the deadline."""
        is_late = False
        poller = select.poll()
        poller.register(woken, select.POLLIN)
        for descriptor in self._feeds:
            poller.register(descriptor, select.POLLOUT)
        for descriptor in self._sinks:
            poller.register(descriptor, select.POLLIN)
        while process.poll() is None:
            left = deadline - time.monotonic()
            if left <= 0 and not is_late:
                is_late = True
                os.kill(-1 if alone else process.pid, signal.SIGTERM)
            for descriptor, _ in poller.poll(None if is_late else left * 1000 + 1):
                if descriptor == woken:
                    os.read(woken, 4096)
                elif descriptor in self._feeds:
                    self._give(descriptor, poller)
                elif not take_from(descriptor, self._sinks[descriptor]):
                    poller.unregister(descriptor)
        for descriptor in self._feeds:
            os.close(descriptor)
        return is_late

    def _give(self, descriptor: int, poller: select.poll) -> None:
        try:
            rest = self._feeds[descriptor][os.write(descriptor, self._feeds[descriptor][:PIECE]) :]
        except BrokenPipeError:
            rest = memoryview(b"")  # the program does not read its input
        self._feeds[descriptor] = rest
        if not rest:
            poller.unregister(descriptor)
            os.close(descriptor)
            del self._feeds[descriptor]

    def _hear_last_words(self) -> None:
        for descriptor, sink in self._sinks.items():
            enough = sink.size + LAST_WORDS
            try:
                while sink.size < enough and take_from(descriptor, sink):
                    pass
            except BlockingIOError:
                pass  # a writer remains, but has not written
            os.close(descriptor)


def take_from(descriptor: int, sink: Sink) -> bool:
    """Read one piece into the sink. Return False at the end."""
    piece = os.read(descriptor, PIECE)
    sink.take(piece)
    return bool(piece)


def end_others() -> None:
    """Kill all processes of this pid namespace except pid 1 and this one, until none is left."""
    while True:
        try:
            os.kill(-1, signal.SIGKILL)
        except ProcessLookupError:
            return
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            pass  # pid 1 reaps the processes that are not our children


def be_unreadable() -> None:
    """Prevent the programs of this run from accessing the memory of this process, which has the channel to the
    server.
    """
    import ctypes
    import sys

    if sys.platform == "linux" and ctypes.CDLL(None, use_errno=True).prctl(4, 0, 0, 0, 0):  # PR_SET_DUMPABLE
        raise OSError(ctypes.get_errno(), "the process of the run could not be made unreadable")


def describe_end(status: int, output: bytes | bytearray = b"") -> dict[str, Any]:
    """Return the failure of a program that ended abnormally. `output` is the last part of its output."""
    words = bytes(output).decode("utf-8", "replace").strip()
    tail = f": {words}" if words else ""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        if number == signal.SIGXCPU:
            return {"type": "CpuTimeExceeded", "message": f"the program used more CPU time than the run allows{tail}"}
        name = signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
        return {"type": "ProcessKilled", "message": f"the program was killed by {name}{tail}"}
    return {"type": "ProcessExited", "message": f"the program exited with status {os.WEXITSTATUS(status)}{tail}"}
