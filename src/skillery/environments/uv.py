"""uv as a process: with what it is told and nothing else, for a limited time."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
import signal
import tempfile
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from skillery.errors import PackagesNotOffered, Unavailable

log = logging.getLogger(__name__)
AT_ONCE = 2
_PASSED_ON = ("SSL_CERT_FILE", "SSL_CERT_DIR", "HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY", "NO_PROXY")
"""How this machine reaches others at all. All else of the server's environment and of uv's own files is left out."""
_ALWAYS = ("--no-config", "--no-progress", "--color", "never")


class Ran(NamedTuple):
    code: int
    out: bytes
    err: str


class TooLong(Exception):
    """It was ended because its time was over."""


def find_uv() -> str | None:
    """The program that the extra `environments` installs; None where that is missing."""
    try:
        from uv import find_uv_bin
    except ImportError:
        return None
    try:
        return str(find_uv_bin())
    except FileNotFoundError:
        return None


class Uv:
    """Runs uv over one cache; a few at once."""

    def __init__(self, cache: Path) -> None:
        self._cache = cache
        self._turns = asyncio.Semaphore(AT_ONCE)
        self._lock = threading.Lock()
        self._running = 0

    async def run(self, arguments: Sequence[str], *, stdin: bytes, environment: dict[str, str], seconds: float) -> Ran:
        """Raises TooLong, PackagesNotOffered where there is no uv, Unavailable where it cannot be started. Cancelling
        it ends uv."""
        program = await asyncio.to_thread(find_uv)
        if program is None:
            raise PackagesNotOffered(
                "this server has no uv, which installs packages",
                hint="Its admin can install it: pip install 'skillery[packages]'.",
            )
        async with self._turns:
            with self._at_work(), tempfile.TemporaryDirectory(prefix="skillery-uv-") as folder:
                return await self._in_folder(folder, [program, *arguments, *_ALWAYS], stdin, environment, seconds)

    def forget(self, away: Path) -> None:
        """Blocking: drop what it has cached, by way of `away`, unless it is at work. What is installed stays: its files
        are only linked from there."""
        with self._lock:
            if self._running or not self._cache.is_dir():
                return
            self._cache.rename(away)
        shutil.rmtree(away)

    @contextlib.contextmanager
    def _at_work(self) -> Iterator[None]:
        with self._lock:
            self._running += 1
        try:
            yield
        finally:
            with self._lock:
                self._running -= 1

    async def _in_folder(
        self, folder: str, command: list[str], stdin: bytes, environment: dict[str, str], seconds: float
    ) -> Ran:
        own = {"PATH": "/usr/bin:/bin", "HOME": folder, "TMPDIR": folder, "UV_CACHE_DIR": str(self._cache)}
        passed = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
        more = {"UV_PYTHON_DOWNLOADS": "never", "UV_LINK_MODE": "hardlink", "UV_HTTP_RETRIES": "3"}
        try:
            process = await asyncio.create_subprocess_exec(
                *command,
                cwd=folder,
                env={**passed, **own, **more, **environment},
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as error:
            log.error("uv cannot be started: %s", error)
            raise Unavailable("this server cannot start uv, which installs packages") from None
        try:
            async with asyncio.timeout(seconds):
                out, err = await process.communicate(stdin)
        except TimeoutError:
            raise TooLong from None
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                await asyncio.shield(process.wait())
        return Ran(process.returncode or 0, out, err.decode("utf-8", "replace"))
