"""The ranker `semantic`: skills by meaning, with a model in a helper process that all workers of a server share."""

from __future__ import annotations

import asyncio
import itertools
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from skillery import hookimpl
from skillery.backends import NoSettings, Offer, Place
from skillery.errors import StartupError, Unavailable
from skillery_semantic.messages import SOCKET, read_message, write_message

START_SECONDS = 60.0
"""The time for the start of the helper: it loads the model, on a busy computer too."""
_PAUSE_SECONDS = 0.1
ANSWER_SECONDS = 60.0
"""The time for one answer of the helper. It answers all requests in turn, and the model reads many texts slowly."""


class Semantic:
    """The connection of one worker to the helper of its home. The helper starts with the first connection."""

    revision = "use-multilingual-3-int8"

    def __init__(self, home: Path) -> None:
        self._home = home
        self._numbers = itertools.count()
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._writer: asyncio.StreamWriter | None = None
        self._reading: asyncio.Task[None] | None = None
        self._connecting = asyncio.Lock()
        self._helper: str | None = None
        """Random id of the helper that has got vectors of this worker."""

    async def start(self) -> None:
        """Start the helper and load its model. Raise StartupError if it does not start."""
        try:
            await self._connect()
        except Unavailable as error:
            raise StartupError(f"ranker 'semantic': {error.message}") from None

    async def close(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.wait({self._reading})

    async def vectors(self, texts: Sequence[str]) -> list[bytes]:
        await self._connect()
        vectors: list[bytes] = await self._ask("vectors", list(texts))
        return vectors

    async def hold(self, changed: Sequence[tuple[int, bytes | None]]) -> None:
        """Pass vectors to the helper. Raise Unavailable if it is a new helper, which has no earlier vectors."""
        helper = await self._connect()
        if self._helper not in (None, helper):
            self._helper = None
            raise Unavailable("the helper of the ranker 'semantic' was restarted")
        self._helper = helper
        if changed:
            await self._ask("hold", list(changed))

    async def nearest(self, query: str, most: int) -> list[tuple[int, float]]:
        return [(skill_id, similarity) for skill_id, similarity in await self._ask("nearest", query, most)]

    async def _connect(self) -> str:
        """Return the id of the helper. Start a helper if none runs."""
        async with self._connecting:
            if self._writer is None:
                await self._open()
        helper: str = await self._ask("id")
        return helper

    async def _open(self) -> None:
        process: subprocess.Popen[bytes] | None = None
        ends_at = asyncio.get_running_loop().time() + START_SECONDS
        while True:
            try:
                reader, self._writer = await asyncio.open_unix_connection(self._home / SOCKET)
                self._reading = asyncio.create_task(self._read(reader, self._writer))
                return
            except OSError as error:
                if asyncio.get_running_loop().time() > ends_at or (process is not None and process.poll()):
                    raise Unavailable(f"the helper in '{self._home}' does not start: {error.strerror}") from None
                # A helper that is not the first one of its home ends at once, with code 0.
                if process is None or process.poll() == 0:
                    process = _started(self._home)
                await asyncio.sleep(_PAUSE_SECONDS)

    async def _ask(self, method: str, *arguments: Any) -> Any:
        if self._writer is None:
            raise Unavailable("the helper of the ranker 'semantic' does not run")
        number = next(self._numbers)
        waiting = self._waiting[number] = asyncio.get_running_loop().create_future()
        try:
            write_message(self._writer, (number, method, arguments))
            async with asyncio.timeout(ANSWER_SECONDS):
                return await waiting
        except TimeoutError:
            raise Unavailable("the helper of the ranker 'semantic' does not answer") from None
        finally:
            del self._waiting[number]

    async def _read(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass answers to their callers until the helper ends."""
        try:
            while True:
                number, answer, error = await read_message(reader)
                waiting = self._waiting.get(number)
                if waiting is None or waiting.done():
                    continue
                if error:
                    waiting.set_exception(Unavailable(f"the helper of the ranker 'semantic' failed: {error}"))
                else:
                    waiting.set_result(answer)
        except (OSError, EOFError, msgspec.DecodeError):
            pass  # the callers get the error below
        finally:
            self._writer = None
            writer.close()
            for waiting in self._waiting.values():
                if not waiting.done():
                    waiting.set_exception(Unavailable("the helper of the ranker 'semantic' has ended"))


def _started(home: Path) -> subprocess.Popen[bytes]:
    """Start the helper. It ends itself when no worker is connected."""
    command = [sys.executable, "-m", "skillery_semantic.helper", str(home)]
    one_thread = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, env=os.environ | one_thread)


@hookimpl
def skillery_ranker() -> Offer:
    return Offer("semantic", _open, NoSettings)


def _open(_: NoSettings, place: Place) -> Semantic:
    return Semantic(place.home)
