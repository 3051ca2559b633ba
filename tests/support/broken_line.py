"""A TCP proxy that breaks connections to a server at chosen points, for tests of clients."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import BinaryIO
from urllib.parse import urlsplit


class Line:
    """A local port that forwards to a server. Each connection takes the next entry of `troubles`.

    "lost": the server receives the request, and the response is dropped. A number: the connection ends after so many
    bytes of the response. Without an entry, nothing breaks.
    """

    def __init__(self, url: str) -> None:
        self.troubles: list[str | int] = []
        self.connections = 0
        place = urlsplit(url)
        self._server = (place.hostname or "", place.port or 0)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self.connections += 1
                trouble = self.troubles.pop(0) if self.troubles else None
                threading.Thread(target=self._serve, args=(client, trouble), daemon=True).start()

    def _serve(self, client: socket.socket, trouble: str | int | None) -> None:
        with client, socket.create_connection(self._server) as server, suppress(OSError):
            threading.Thread(target=_pump, args=(client, server), daemon=True).start()
            left = 0 if trouble == "lost" else trouble
            while piece := server.recv(65536):
                if isinstance(left, int):
                    if len(piece) >= left:
                        client.sendall(piece[:left])
                        break
                    left -= len(piece)
                client.sendall(piece)
            client.shutdown(socket.SHUT_RDWR)


def _pump(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while piece := source.recv(65536):
            target.sendall(piece)


@contextmanager
def line_to(url: str) -> Iterator[Line]:
    line = Line(url)
    try:
        yield line
    finally:
        line.close()


@contextmanager
def hanging_up(answer: bytes) -> Iterator[str]:
    """Yield the URL of a server that answers one request on each connection, and closes at the next request.

    A client sees this if the server's limit for idle connections ends while a request is under way.
    """
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=_accept, args=(listener, answer), daemon=True).start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


def _accept(listener: socket.socket, answer: bytes) -> None:
    with suppress(OSError):  # the listener is closed
        while True:
            threading.Thread(target=_answer_once, args=(listener.accept()[0], answer), daemon=True).start()


def _answer_once(connection: socket.socket, answer: bytes) -> None:
    with connection, connection.makefile("rb") as requests:
        _read_request(requests)
        connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(answer), answer))
        _read_request(requests)


def _read_request(requests: BinaryIO) -> None:
    size = 0
    while line := requests.readline().strip():
        name, _, value = line.partition(b":")
        size = int(value) if name.lower() == b"content-length" else size
    requests.read(size)
