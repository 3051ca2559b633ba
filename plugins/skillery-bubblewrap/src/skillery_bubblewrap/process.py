"""The processes of one run as the server sees them: bwrap, a child of the server, and pid 1 of the run below bwrap."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cellblock.parts import INSIDE
from skillery_bubblewrap import inside
from skillery_bubblewrap.command import python

LAUNCHER = Path(inside.__file__).parent / "launcher.py"
KNOWN_SECONDS = 10.0
MOST_STATUS = 64 * 1024
MOST_ERRORS = 4096
LAST_SIGNAL = 64


def in_memory(name: str, content: bytes) -> int:
    """Return a descriptor of a file in memory with this content, positioned at its start. Raise OSError if that
    fails.
    """
    descriptor = os.memfd_create(name)
    try:
        with os.fdopen(descriptor, "wb", closefd=False) as file:
            file.write(content)
        os.lseek(descriptor, 0, os.SEEK_SET)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def parent_of(pid: int) -> int | None:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return None


class Watched:
    """A process, watched through its pidfd. `gone` is done when the process has ended."""

    def __init__(self, pid: int) -> None:
        """Raise OSError if the process cannot be watched."""
        self.pid = pid
        self._descriptor = os.pidfd_open(pid)
        self._loop = asyncio.get_running_loop()
        self.gone: asyncio.Future[None] = self._loop.create_future()
        self._loop.add_reader(self._descriptor, self._end)

    def _end(self) -> None:
        self._loop.remove_reader(self._descriptor)
        os.close(self._descriptor)
        self.gone.set_result(None)

    def forget(self) -> None:
        if not self.gone.done():
            self._end()

    def kill(self) -> None:
        if not self.gone.done():
            with contextlib.suppress(ProcessLookupError):  # the process has ended, and the loop will notice
                signal.pidfd_send_signal(self._descriptor, signal.SIGKILL)


class Bwrap:
    """The launcher, which becomes bwrap, and the processes of the run. Always call `end`."""

    def __init__(self, order: dict[str, Any], inherited: Sequence[int], status: int) -> None:
        """Start the launcher.

        `status` is the read end of bwrap's status pipe. This object closes it, unless the call raises OSError.
        """
        self._loop = asyncio.get_running_loop()
        self._known: asyncio.Future[None] = self._loop.create_future()
        self._first: Watched | None = None
        self._status = b""
        self.message = ""
        """The reason if the run could not be started."""
        self._errors = os.memfd_create("errors")
        self._read_end = status
        try:
            self._process = self._start({**order, "parent": os.getpid()}, inherited)
        except BaseException:
            os.close(self._errors)
            raise
        os.set_blocking(self._read_end, False)
        self._loop.add_reader(self._read_end, self._hear)

    def _start(self, order: dict[str, Any], inherited: Sequence[int]) -> subprocess.Popen[bytes]:
        order_end = in_memory("order", json.dumps(order).encode())
        try:
            process = subprocess.Popen(
                [python(), "-I", "-S", "-B", str(LAUNCHER), str(INSIDE.parent), str(order_end)],
                env={},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._errors,
                pass_fds=(*inherited, order_end),
                process_group=0,  # Ctrl-C must reach only the server, which ends its runs in order
            )
        finally:
            os.close(order_end)
        try:
            self._outer = Watched(process.pid)
        except BaseException:
            process.kill()
            process.wait()
            raise
        self._outer.gone.add_done_callback(lambda _: process.wait())
        return process

    def _hear(self) -> None:
        """Read the status of bwrap, which contains pid 1 of the run. No process of the run can write to this pipe."""
        try:
            piece = os.read(self._read_end, MOST_STATUS)
        except BlockingIOError:
            return
        *lines, self._status = (self._status + piece).split(b"\n")
        for line in filter(None, lines):
            self._take(json.loads(line))
        if not piece:
            self._loop.remove_reader(self._read_end)
            self._know()

    def _take(self, text: dict[str, Any]) -> None:
        self.message = text.get("message", self.message)
        if "child-pid" not in text:
            return
        try:
            first = Watched(text["child-pid"])
            if parent_of(first.pid) == self._outer.pid:
                self._first = first
            else:  # the process has ended, and another one has its number
                first.forget()
        except ProcessLookupError:
            pass
        except OSError as error:  # an unwatched process must not stay alive
            self.message = f"set-up: {os.strerror(error.errno or 0)}"
            os.kill(text["child-pid"], signal.SIGKILL)
        self._know()

    def _know(self) -> None:
        if not self._known.done():
            self._known.set_result(None)

    async def first(self) -> int | None:
        """Return the host's pid of the run's pid 1, or None if the server cannot watch it, for example after the end of
        bwrap.
        """
        await asyncio.wait({self._known, self._outer.gone}, return_when=asyncio.FIRST_COMPLETED)
        return self._first.pid if self._first else None

    async def exited(self) -> int | None:
        """Return the wait status of the code after its end, or None if bwrap was killed.

        bwrap reports a signal as 128 plus its number, like a shell. An exit with such a status looks the same.
        """
        await asyncio.wait({self._outer.gone})
        code = self._process.wait()
        if code < 0:
            return None
        return code - 128 if 0 < code - 128 <= LAST_SIGNAL else code << 8

    def errors(self) -> str:
        """Return the error output of bwrap and the launcher, for the server's log only, because it contains paths."""
        return os.pread(self._errors, MOST_ERRORS, 0).decode(errors="replace").strip()

    async def end(self) -> None:
        """Kill the run, and wait until no process is left."""
        # bwrap alone must not be killed before it has released pid 1, which would wait forever.
        await asyncio.wait({self._known, self._outer.gone}, timeout=KNOWN_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        if self._first is not None:
            self._first.kill()
            await asyncio.wait({self._first.gone})
        else:
            self._outer.kill()
        await asyncio.wait({self._outer.gone})
        if self._first is not None:
            with contextlib.suppress(ChildProcessError):  # only our child if no other init adopted it
                os.waitpid(self._first.pid, os.WNOHANG)  # noqa: ASYNC222 - does not wait

    def close(self) -> None:
        self._loop.remove_reader(self._read_end)
        os.close(self._read_end)
        os.close(self._errors)
