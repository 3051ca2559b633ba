"""Servers on loopback that a run wants to reach, and that remember every byte they were sent."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

DATA = Path(__file__).parent / "data" / "egress"
CA = DATA / "ca.pem"
"""For `api.test`, `*.api.test` and `other.test`, with a key that everybody has: trust it nowhere."""


class Upstream:
    """Answers one request on each connection, once `until` has come: 200 with the request line as body, or what
    `answer` makes of it."""

    def __init__(
        self, *, tls: bool = False, answer: Callable[[bytes], bytes] | None = None, until: bytes = b"\r\n\r\n"
    ) -> None:
        self.received = bytearray()
        """As it came over TCP; of TLS the decrypted bytes."""
        self.connections = 0
        self._answer = answer or echo
        self._until = until
        self._tls = server_context() if tls else None
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            connection.settimeout(20)
            if self._tls:
                connection = self._tls.wrap_socket(connection, server_side=True)
            with connection:
                head = b""
                while self._until not in head:
                    piece = connection.recv(65536)
                    if not piece:
                        return
                    self.received += piece
                    head += piece
                connection.sendall(self._answer(head))
                connection.shutdown(socket.SHUT_WR)
                while piece := connection.recv(65536):
                    self.received += piece

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(10)


def echo(head: bytes) -> bytes:
    return ok(head.partition(b"\r\n")[0])


def ok(body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body


def redirect(to: str) -> Callable[[bytes], bytes]:
    return lambda head: f"HTTP/1.1 302 Found\r\nLocation: {to}\r\nContent-Length: 0\r\n\r\n".encode()


def server_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(DATA / "server.pem")
    return context


def client_context() -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(CA))


@contextlib.contextmanager
def upstream(
    *, tls: bool = False, answer: Callable[[bytes], bytes] | None = None, until: bytes = b"\r\n\r\n"
) -> Iterator[Upstream]:
    running = Upstream(tls=tls, answer=answer, until=until)
    try:
        yield running
    finally:
        running.close()
