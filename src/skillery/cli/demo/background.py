"""A server in the background, which continues after the end of the command that started it."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from skillery.app.home import holder_of
from skillery.errors import StartupError

if TYPE_CHECKING:
    from skillery.client import AsyncClient

LOG = "server.log"
START_SECONDS = 60.0


class Server:
    """A running server that holds the home `home`. `ours` says whether this command started the server."""

    def __init__(self, home: Path, url: str, pid: int, *, ours: bool) -> None:
        self.home = home
        self.url = url
        self.pid = pid
        self.log = home / LOG
        self._ours = ours

    def stop_if_ours(self) -> None:
        """Stop the server if this command started the server."""
        if self._ours:
            os.kill(self.pid, signal.SIGTERM)

    async def wait_until_ready(self, client: AsyncClient) -> None:
        """Wait until database, storage and sandbox work. Raise StartupError if they do not work after START_SECONDS."""
        deadline = time.monotonic() + START_SECONDS
        while not await client.is_ready():
            if time.monotonic() > deadline:
                raise StartupError(f"the server at {self.url} is not ready; see {self.log}, or run `skillery doctor`")
            await asyncio.sleep(0.2)


def find_or_start(home: Path, port: int, config: str | None) -> Server:
    """Return the server that holds `home`. If no server holds `home`, start a server in a new session and return it.

    Raise StartupError if the new server does not start.
    """
    holder = holder_of(home)
    if holder is not None and holder.url:
        return Server(home, holder.url, holder.pid, ours=False)
    child = _start(home, port, config)
    try:
        return _wait_for_url(home, child)
    except BaseException:
        child.terminate()
        raise


def _wait_for_url(home: Path, child: subprocess.Popen[bytes]) -> Server:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        holder = holder_of(home)
        if holder is not None and holder.url:
            return Server(home, holder.url, holder.pid, ours=holder.pid == child.pid)
        if child.poll() is not None:
            raise StartupError(f"the server did not start: {_last_line(home / LOG)}")
        time.sleep(0.05)
    raise StartupError(f"the server did not answer within {START_SECONDS:.0f} s; see {home / LOG}")


def _start(home: Path, port: int, config: str | None) -> subprocess.Popen[bytes]:
    """Start `skillery serve` in a new session, with its output in the log file of the home."""
    try:
        home.mkdir(parents=True, exist_ok=True, mode=0o700)
        log = (home / LOG).open("ab")
    except OSError as error:
        raise StartupError(
            f"the home {home} cannot be used: {error.strerror}; choose another with --home or SKILLERY_HOME"
        ) from None
    command = [sys.executable, "-P", "-m", "skillery", "serve", "--home", str(home), "--port", str(port)]
    if config:
        command += ["--config", str(Path(config).absolute())]
    with log:
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )


def _last_line(log: Path) -> str:
    lines = log.read_text("utf-8", "replace").strip().splitlines()
    return lines[-1].removeprefix("error: ") if lines else "it left no word in its log"
