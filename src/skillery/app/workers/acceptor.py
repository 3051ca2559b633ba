"""Accepts connections so that all workers get about equally many.

The kernel wakes all workers for a new connection. If each accepted all that wait, the worker that wakes first would get
most of them, and clients keep their connections for long.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable

log = logging.getLogger(__name__)
PAUSE_SECONDS = 0.001
"""How long a worker with more than its share leaves a new connection to the others."""
FULL_PAUSE_SECONDS = 0.1
"""Pause if the process can open no further file."""


class Acceptor:
    """Accepts one connection after the other."""

    def __init__(
        self, listener: socket.socket, make_protocol: Callable[[], asyncio.Protocol], is_ahead: Callable[[], bool]
    ) -> None:
        """is_ahead: returns whether this worker has more than its share of the connections."""
        self._loop = asyncio.get_running_loop()
        self._listener = listener
        self._make_protocol = make_protocol
        self._is_ahead = is_ahead
        self._connecting: set[asyncio.Task[object]] = set()
        self._pause: asyncio.TimerHandle | None = None
        self._is_patient = True
        """Whether the worker still leaves the next connection to others. It does so once."""
        listener.setblocking(False)
        self._loop.add_reader(listener.fileno(), self._accept)

    def close(self) -> None:
        self._loop.remove_reader(self._listener.fileno())
        if self._pause is not None:
            self._pause.cancel()

    def _accept(self) -> None:
        if self._is_patient and self._is_ahead():
            self._is_patient = False
            self._rest(PAUSE_SECONDS)
            return
        self._is_patient = True
        try:
            connection, _ = self._listener.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return  # another worker was faster, or the client has gone
        except OSError as error:
            log.warning("no connection can be accepted: %s", error.strerror)
            self._rest(FULL_PAUSE_SECONDS)
            return
        task: asyncio.Task[object] = self._loop.create_task(self._connect(connection))
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)

    async def _connect(self, connection: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(self._make_protocol, connection)
        except OSError as error:
            log.debug("a new connection ended at once: %s", error)
            connection.close()

    def _rest(self, seconds: float) -> None:
        self._loop.remove_reader(self._listener.fileno())
        self._pause = self._loop.call_later(seconds, self._loop.add_reader, self._listener.fileno(), self._accept)
