"""The connection of a backend: its login, and an event loop in a separate thread, so that requests share connections
and have a limit on their whole time.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError
from typing import Any, TypeVar

from skillery.errors import StartupError, Unavailable
from skillery_openbao.failures import ServiceFailed
from skillery_openbao.logins import login_of
from skillery_openbao.service import Service
from skillery_openbao.session import Session
from skillery_openbao.settings import ServerSettings

log = logging.getLogger(__name__)
T = TypeVar("T")


class Connection:
    """Requests with the login of a section of the settings. Any number of threads may call at the same time."""

    def __init__(self, settings: ServerSettings) -> None:
        self._section = settings.section
        self._loop = _PrivateLoop()
        self._service = Service(settings)
        self.session = Session(self._service, login_of(settings, self._service))
        self._renewing: asyncio.Task[None] | None = None

    async def start(self, check: Callable[[Session], Coroutine[Any, Any, None]]) -> None:
        """Log in, check the service, and start to renew the token. Raise StartupError with the wrong setting."""
        try:
            await asyncio.to_thread(self._loop.call, self._begin(check))
        except ServiceFailed as failure:
            raise StartupError(failure.line_in(self._section)) from None

    async def close(self) -> None:
        """Revoke the token of an AppRole login, and close the connections."""
        await asyncio.to_thread(self._loop.call, self._end())
        await asyncio.to_thread(self._loop.close)

    def call(self, coroutine: Coroutine[Any, Any, T], subject: str) -> T:
        """Run the coroutine and return its result. Blocking. If the service fails, log the reason, and raise
        Unavailable with the message `subject`.
        """
        try:
            return self._loop.call(coroutine)
        except ServiceFailed as failure:
            log.warning("%s: %s", subject, failure.line_in(self._section))
            raise Unavailable(subject, hint="Try again. The log of the server has the reason.") from None

    async def _begin(self, check: Callable[[Session], Coroutine[Any, Any, None]]) -> None:
        await self.session.token()
        await check(self.session)
        self._renewing = asyncio.create_task(self.session.keep_alive())

    async def _end(self) -> None:
        if self._renewing is not None:
            self._renewing.cancel()
            self._renewing = None
        await self.session.end()
        await self._service.close()


class _PrivateLoop:
    """A loop that starts at the first call."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._runner: asyncio.Runner | None = None
        self._thread: threading.Thread | None = None

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run the coroutine in the loop and return its result. Blocking. Raise ServiceFailed if the loop ends first."""
        with self._lock:
            future = asyncio.run_coroutine_threadsafe(coroutine, self._started())
        try:
            return future.result()
        except CancelledError:
            raise ServiceFailed("", "the server of Skillery ends") from None

    def close(self) -> None:
        """End the loop and its thread, if they run. Calls that wait end too."""
        with self._lock:
            runner, thread = self._runner, self._thread
            self._runner = self._thread = None
        if runner is not None and thread is not None:
            loop = runner.get_loop()
            loop.call_soon_threadsafe(loop.stop)
            thread.join()

    def _started(self) -> asyncio.AbstractEventLoop:
        if self._runner is None:
            self._runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
            self._runner.get_loop()  # before another thread uses it
            self._thread = threading.Thread(target=_serve, args=(self._runner,), name="openbao", daemon=True)
            self._thread.start()
        return self._runner.get_loop()


def _serve(runner: asyncio.Runner) -> None:
    with runner:  # cancels all tasks at the end
        runner.get_loop().run_forever()
