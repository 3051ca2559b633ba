"""One launched process: started, told what to do, waited for, and always ended."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec

HERE = Path(__file__).parent
START = "import sys; sys.path.append('.'); from cell import launch; launch.main(*map(int, sys.argv[1:]))"
BASE_ENVIRONMENT = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": "/workspace", "LANG": "C.UTF-8"}
KILL_PATIENCE = 5.0


class Event(msgspec.Struct, frozen=True):
    """How it ended. `status` is the wait status of the code's process, or of pid 1 where it did not live to say it
    (`whole` is false then)."""

    event: str
    status: int = 0
    whole: bool = True
    message: str = ""


class Launcher:
    """The process outside the run's namespaces: the only child that the server has of a run.

    Made in one step, so that there is no moment at which it could be lost; then connected.
    """

    def __init__(self, python: str, channel: socket.socket, log: int) -> None:
        """Forks from this very thread, not from a worker: the launcher dies with the thread that forked it."""
        self._socket, theirs = socket.socketpair()
        numbers = [str(number) for number in (os.getpid(), theirs.fileno(), channel.fileno(), log)]
        try:
            self._process = subprocess.Popen(
                [python, "-I", "-S", "-B", "-c", START, *numbers],
                cwd=HERE,
                env=BASE_ENVIRONMENT,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(), channel.fileno(), log),
                process_group=0,  # a Ctrl-C at the terminal is for the server, which then ends its runs in order
            )
            self._pidfd = open_pidfd(self._process)
        except BaseException:
            self._socket.close()
            raise
        finally:
            theirs.close()
        self._gone = asyncio.get_running_loop().create_future()
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        asyncio.get_running_loop().add_reader(self._pidfd, self._reap)

    async def connect(self) -> None:
        self._socket.setblocking(False)
        self._reader, self._writer = await asyncio.open_connection(sock=self._socket)

    def _reap(self) -> None:
        asyncio.get_running_loop().remove_reader(self._pidfd)
        os.close(self._pidfd)
        self._process.wait()
        self._gone.set_result(None)

    @property
    def pid(self) -> int:
        return self._process.pid

    def tell(self, line: bytes) -> None:
        if self._writer is not None and not self._writer.is_closing():  # it may have been killed by others
            self._writer.write(line + b"\n")

    def tell_plan(self, plan: dict[str, Any]) -> None:
        self.tell(json.dumps(plan).encode())

    async def event(self) -> Event | None:
        """What it says next, None when it has nothing more to say."""
        if self._reader is None:
            return None
        try:
            line = await self._reader.readline()
        except ConnectionError:  # it ended before it read our last word
            return None
        return msgspec.json.decode(line, type=Event) if line else None

    async def end(self) -> None:
        """Kill the run and wait until nothing of it is left."""
        if not self._gone.done():
            self._tell_to_end()
            await asyncio.wait({self._gone}, timeout=KILL_PATIENCE)
        if not self._gone.done():
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
            await asyncio.wait({self._gone})
        if self._writer is not None:
            self._writer.transport.abort()
        self._socket.close()

    def _tell_to_end(self) -> None:
        if self._writer is not None:
            self.tell(b"kill")
        else:
            self._socket.close()  # to it that means the same


def open_pidfd(process: subprocess.Popen[bytes]) -> int:
    """A descriptor that becomes readable when it ends; where there is none to be had, it does not live."""
    try:
        return os.pidfd_open(process.pid)
    except OSError:
        process.kill()
        process.wait()
        raise


def base_python() -> str:
    """The interpreter itself, past every virtual environment and symbolic link."""
    return os.path.realpath(getattr(sys, "_base_executable", sys.executable))
