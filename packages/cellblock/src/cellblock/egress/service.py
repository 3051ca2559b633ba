"""The client of the proxy in the server.

The client starts the proxy when a run first needs it, sends the listening sockets of runs, and keeps the reports.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from cellblock.egress.log import Event, Uses
from cellblock.egress.orders import GOODBYE, Order
from cellblock.egress.policy import ListNames, Policy
from cellblock.egress.resolver import AddressRules
from cellblock.egress.streams import Caps
from cellblock.values import NetworkUse

END_SECONDS = 5.0
MAX_LINE = 64 * 1024
START = "import sys; sys.path[:] = sys.argv[2:]; from cellblock.egress.process import main; main()"


class EgressBroken(Exception):
    """Raised if the proxy is not available. Callers may see the message."""


class Session:
    """The use of the proxy by one run."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        note: Callable[[str], None],
        give_up: Callable[[], None],
    ) -> None:
        """`give_up` is called if the proxy no longer answers."""
        self._writer = writer
        self._note = note
        self._give_up = give_up
        self._uses = Uses()
        self._listening = asyncio.ensure_future(self._listen(reader))

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        with contextlib.suppress(ConnectionError):
            while line := await reader.readline():
                if line == GOODBYE:
                    return
                self._take(Event.parse(line))
        self._take(Event("", 0, False, "the proxy of this run has ended"))

    def _take(self, event: Event) -> None:
        self._uses.add(event)
        line = self._uses.line(event)
        if line:
            self._note(line)

    async def close(self) -> tuple[NetworkUse, ...]:
        """Close all connections of the run, and return their uses. A second call returns the same result."""
        with contextlib.suppress(OSError, RuntimeError):  # the proxy has ended, or this is the second call
            self._writer.write_eof()
        await asyncio.wait({self._listening}, timeout=END_SECONDS)
        if not self._listening.done():
            self._give_up()
        self._listening.cancel()
        await asyncio.gather(self._listening, return_exceptions=True)
        self._writer.transport.abort()
        return self._uses.finish()


class Egress:
    """One proxy process for all runs of a server. If the process ends, the next run starts a new one."""

    def __init__(
        self,
        allow_private: Sequence[str] = (),
        hosts: Mapping[str, Sequence[str]] | None = None,
        caps: Caps | None = None,
        names: ListNames = ListNames(),  # noqa: B008 - frozen
    ) -> None:
        """Allow the private addresses and networks in `allow_private`. `hosts` has fixed addresses of host names.
        `names` are the words for lists in messages to the code.

        Raise ValueError if an address is invalid.
        """
        AddressRules(allow_private)
        self._order = Order(
            patterns=(),
            allow_private=tuple(allow_private),
            hosts={name: tuple(addresses) for name, addresses in (hosts or {}).items()},
            caps=caps or Caps(),
            names=names,
        )
        for addresses in self._order.hosts.values():
            AddressRules(addresses)
        self._control: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """The pid of the proxy, or None if the proxy does not run."""
        return self._process.pid if self._process is not None else None

    async def open(
        self,
        patterns: Sequence[str],
        listener: socket.socket,
        note: Callable[[str], None],
        *,
        private: bool = False,
        identity: str = "",
    ) -> Session:
        """Let the proxy accept connections on `listener`. This method closes `listener`. Raise EgressBroken if the
        proxy fails.

        `note` gets the lines for the run's log. `private` allows any address. `identity` is the identity that requested
        the run.
        """
        with listener:
            try:
                Policy.parse(patterns)
                report = self._hand_over(listener)
            except (ValueError, OSError) as error:
                reason = error.strerror if isinstance(error, OSError) else str(error)
                raise EgressBroken(f"the run has no way to the network: {reason}") from None
        try:
            reader, writer = await asyncio.open_connection(sock=report, limit=MAX_LINE)
        except BaseException:
            report.close()
            raise
        order = replace(self._order, patterns=tuple(patterns), private=private, identity=identity)
        writer.write(order.line())
        return Session(reader, writer, note, partial(self._bury, self._process))

    def _hand_over(self, listener: socket.socket) -> socket.socket:
        """Send the listening socket to the proxy. Return the socket for the reports of the proxy."""
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        try:
            with theirs:
                self._send(listener.fileno(), theirs.fileno())
        except BaseException:
            ours.close()
            raise
        return ours

    def _send(self, *descriptors: int) -> None:
        try:
            socket.send_fds(self._running(), [b"r"], descriptors)
        except ConnectionError:  # the proxy has died: start a new one
            self._bury(self._process)
            socket.send_fds(self._running(), [b"r"], descriptors)

    def _bury(self, process: subprocess.Popen[bytes] | None) -> None:
        """Kill this proxy process. The next run starts a new one."""
        if process is self._process:
            self._forget()
        if process is not None and process.returncode is None:
            process.kill()
            process.wait()

    def _running(self) -> socket.socket:
        if self._process is not None and self._process.poll() is not None:
            self._forget()
        if self._control is None:
            self._start()
        if self._control is None:
            raise OSError("the proxy could not be started")
        return self._control

    def _start(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        # Isolated mode, with this server's path to the packages, however this server was started.
        command = [sys.executable, "-I", "-c", START, str(theirs.fileno()), *filter(None, sys.path)]
        try:
            with theirs:
                self._process = subprocess.Popen(
                    command, env={}, stdin=subprocess.DEVNULL, pass_fds=(theirs.fileno(),), process_group=0
                )
        except BaseException:
            ours.close()
            raise
        self._control = ours

    def _forget(self) -> None:
        if self._control is not None:
            self._control.close()
        self._control = self._process = None

    async def close(self) -> None:
        process = self._process
        self._forget()
        if process is None:
            return
        try:
            await asyncio.to_thread(process.wait, END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            await asyncio.to_thread(process.wait)
