"""Each phase of a connection has a time limit: the protocol under uvicorn, with limits that are short enough for a
test.
"""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from functools import partial
from http.client import HTTPException
from typing import Any

import httpx
import pytest
import uvicorn
from msgspec import structs

from skillery.app.connection_admission import ConnectionAdmission, OwnConnections
from skillery.app.connection_protocol import Connection
from skillery.app.connection_transport import Bounds
from tests.conftest import Server
from tests.support import raw_http
from tests.support.processes import eventually
from tests.support.raw_http import RawConnection, connected

BOUNDS = Bounds(head_seconds=300, framing_seconds=0.8, window_seconds=2, linger_seconds=0.8, linger_bytes=1_000_000)
GRACE_SECONDS = 300
KEEP_ALIVE_SECONDS = 3
BODY = {"transfer_encoding": "chunked"}
PIECE = 65_536


class SmallServer:
    """An ASGI application behind `Connection`, in a thread, on its own port."""

    def __init__(self, bounds: Bounds = BOUNDS) -> None:
        self.count = OwnConnections()
        self.begun: list[str] = []
        self.given_up: list[str] = []
        admission = ConnectionAdmission(self.count, ceiling=1_000)
        protocol: Any = partial(Connection, admission=admission, bounds=bounds)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        config = uvicorn.Config(
            self._app,
            interface="asgi3",
            http=protocol,
            ws="none",
            lifespan="off",
            log_config=None,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=GRACE_SECONDS,
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [self._listener]}, daemon=True)
        self._thread.start()

    def stop(self) -> float:
        """Stop the server and return how many seconds this took."""
        begun = time.monotonic()
        self._server.should_exit = True
        self._thread.join()
        self._listener.close()
        return time.monotonic() - begun

    def is_empty(self) -> bool:
        """Wait until all connections have ended, once a request has begun."""
        return eventually(lambda: bool(self.begun) and not self.count.total)

    async def _app(self, scope: Any, receive: Any, send: Any) -> None:
        path = scope["path"]
        self.begun.append(path)
        if path == "/wait":
            await asyncio.sleep(3.5)  # longer than KEEP_ALIVE_SECONDS
        if path in {"/read", "/wait"} and not await self._read(path, receive):
            return
        if path == "/stream":
            await self._stream(receive, send)
            return
        body = b"a" * (8 * 1024 * 1024 if path == "/large" else 2)
        length = (b"content-length", str(len(body)).encode())
        await send({"type": "http.response.start", "status": 200, "headers": [length]})
        await send({"type": "http.response.body", "body": body})

    async def _read(self, path: str, receive: Any) -> bool:
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                self.given_up.append(path)
                return False
            if not message["more_body"]:
                return True

    async def _stream(self, receive: Any, send: Any) -> None:
        gone = asyncio.ensure_future(self._until_gone(receive))
        length = (b"content-length", str(1_000_000_000).encode())
        await send({"type": "http.response.start", "status": 200, "headers": [length]})
        while not gone.done():
            await send({"type": "http.response.body", "body": b"a" * PIECE, "more_body": True})
            await asyncio.sleep(0)

    async def _until_gone(self, receive: Any) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self.given_up.append("/stream")


@pytest.fixture
def edge() -> Iterator[SmallServer]:
    running = SmallServer()
    yield running
    running.stop()


@pytest.fixture
def quick() -> Iterator[SmallServer]:
    """Yield a server whose heads have little time."""
    running = SmallServer(structs.replace(BOUNDS, head_seconds=0.8))
    yield running
    running.stop()


@pytest.fixture
def connection(edge: SmallServer) -> Iterator[RawConnection]:
    with connected(edge.url) as made:
        yield made


def steadily(edge: SmallServer, act: Callable[[RawConnection, Callable[[float], None]], None]) -> None:
    """Call `act(connection, wait)`, and repeat it like `raw_http.steadily`."""

    def attempt(wait: Callable[[float], None]) -> None:
        with connected(edge.url) as connection:
            act(connection, wait)

    raw_http.steadily(attempt)


@contextmanager
def answered(edge: SmallServer, more: bytes = b"") -> Iterator[RawConnection]:
    """Yield a connection with one answered request. `more` follows the head of the request at once.

    On a loaded machine, the client may take longer than `head_seconds` between its connection and the head.
    """

    def attempt() -> RawConnection | None:
        connection = RawConnection(edge.url)
        with suppress(OSError, HTTPException):
            connection.send(connection.head("GET /"), more)
            if connection.reply().status == 200:
                return connection
        connection.close()
        return None

    with closing(eventually(attempt)) as connection:
        yield connection


def read_some(connection: RawConnection, size: int) -> int:
    """Read up to `size` bytes and return how many arrived before the connection ended."""
    left = size
    while left and (got := connection.socket.recv(min(left, PIECE))):
        left -= len(got)
    return size - left


# -- heads -------------------------------------------------------------------------------------------------------


def test_a_connection_that_says_nothing_is_closed(quick: SmallServer) -> None:
    with connected(quick.url) as connection:
        assert connection.is_closed()


def test_a_slow_first_head_is_closed(quick: SmallServer) -> None:
    with connected(quick.url) as connection:
        connection.send(b"GET / HTTP/1.1\r\n")
        assert connection.drip(0.1, b"x: y\r\n")


@pytest.mark.parametrize("drop", [b"G", b"\r\n"])
def test_a_slow_second_head_is_closed(quick: SmallServer, drop: bytes) -> None:
    with answered(quick) as connection:
        assert connection.drip(0.1, drop)


def test_a_head_that_begins_with_the_end_of_a_request_is_timed(quick: SmallServer) -> None:
    with answered(quick, b"GET / HTTP/1.1\r\nx: ") as connection:
        assert connection.drip(0.1, b"a")


def test_a_connection_without_a_next_request_is_closed(connection: RawConnection) -> None:
    assert connection.get("/").status == 200
    assert connection.is_closed()


def test_a_slow_next_head_does_not_end_the_request_before(quick: SmallServer) -> None:
    def act(connection: RawConnection, wait: Callable[[float], None]) -> None:
        connection.send(connection.head("GET /wait"), b"GET / HTTP/1.1\r\n")
        for _ in range(15):
            connection.send(b"x: y\r\n")
            wait(0.1)
        assert connection.reply().status == 200
        connection.send(b"x: y\r\n")
        assert connection.is_closed()

    steadily(quick, act)


# -- bodies ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("start", "drops"),
    [
        (b"2\r\nab\r\n0\r\n", [b"x: y\r\n"]),
        (b"2\r\nab\r\n0\r\nx: ", [b"y"]),
        (b"2\r\nab\r\n0\r\n", [b""]),
        (b"2\r\nab\r\n", [b"0"]),
        (b"2;x=", [b"y"]),
        (b"5\r\n", [b""]),
    ],
    ids=["trailers", "one trailer", "silence", "a size", "an extension", "silence after a size"],
)
def test_slow_framing_is_closed(edge: SmallServer, connection: RawConnection, start: bytes, drops: list[bytes]) -> None:
    connection.send(connection.head("POST /read", **BODY), start)
    assert connection.drip(0.1, *drops)
    assert edge.is_empty()
    assert eventually(lambda: edge.given_up == ["/read"])


def test_pauses_between_chunks_are_no_slow_framing(edge: SmallServer) -> None:
    def act(connection: RawConnection, wait: Callable[[float], None]) -> None:
        connection.send(connection.head("POST /read", **BODY))
        for _ in range(4):
            connection.send(b"1000\r\n", b"a" * 4096)
            wait(0.05)
            connection.send(b"\r\n")
            wait(0.9)  # longer than `framing_seconds`
        connection.send(b"0\r\n\r\n")
        assert connection.reply().status == 200

    steadily(edge, act)


@pytest.mark.parametrize(("headers", "drop"), [({"content_length": "1000000"}, b"a"), (BODY, b"1\r\na\r\n")])
def test_a_dripping_body_is_closed(
    edge: SmallServer, connection: RawConnection, headers: dict[str, str], drop: bytes
) -> None:
    connection.send(connection.head("POST /read", **headers))
    assert connection.drip(0.1, drop)
    assert edge.is_empty()
    assert eventually(lambda: edge.given_up == ["/read"])


def test_a_body_at_the_least_rate_is_read(edge: SmallServer) -> None:
    def act(connection: RawConnection, wait: Callable[[float], None]) -> None:
        connection.send(connection.head("POST /read", content_length="12000"))
        for _ in range(30):
            connection.send(b"a" * 400)
            wait(0.1)
        assert connection.reply().status == 200

    steadily(edge, act)


@pytest.mark.parametrize("size", [200_000, 4_000_000])
def test_a_body_that_the_application_does_not_read_yet_is_not_slow(edge: SmallServer, size: int) -> None:
    def act(connection: RawConnection, wait: Callable[[float], None]) -> None:
        connection.send(connection.head("POST /wait", **BODY))
        for _ in range(size // 50_000):
            connection.send(b"c350\r\n", b"a" * 50_000, b"\r\n")
        connection.send(b"0\r\n\r\n")
        assert connection.reply().status == 200

    steadily(edge, act)


def test_a_client_that_waits_for_100_continue_is_not_slow(edge: SmallServer) -> None:
    def act(connection: RawConnection, wait: Callable[[float], None]) -> None:
        connection.send(connection.head("POST /wait", content_length="2", expect="100-continue"))
        assert connection.socket.recv(100).startswith(b"HTTP/1.1 100 ")
        connection.send(b"ab")
        assert connection.reply().status == 200

    steadily(edge, act)


# -- responses ---------------------------------------------------------------------------------------------------


def test_a_client_that_does_not_read_a_stream_is_closed(edge: SmallServer, connection: RawConnection) -> None:
    connection.send(connection.head("GET /stream"))
    assert edge.is_empty()


def test_a_client_that_does_not_read_the_last_answer_is_closed(edge: SmallServer, connection: RawConnection) -> None:
    connection.send(connection.head("GET /large"))
    assert edge.is_empty()


def test_a_pipelining_client_that_does_not_read_answers_is_closed(edge: SmallServer, connection: RawConnection) -> None:
    connection.send(connection.head("GET /large") * 10)
    assert edge.is_empty()


def test_a_client_that_reads_slowly_but_steadily_is_kept(edge: SmallServer) -> None:
    def act(connection: RawConnection, wait: Callable[[float], None]) -> None:
        connection.send(connection.head("GET /stream"))
        for _ in range(40):
            assert read_some(connection, 100_000) == 100_000
            wait(0.1)

    steadily(edge, act)


def test_a_client_that_reads_slowly_gets_all_of_an_answer_that_closes(edge: SmallServer) -> None:
    def act(connection: RawConnection, wait: Callable[[float], None]) -> None:
        connection.send(connection.head("POST /large", content_length="5"))
        size = 0
        while got := connection.socket.recv(400_000):
            size += len(got)
            wait(0.1)
        assert size > 8 * 1024 * 1024

    steadily(edge, act)
    assert edge.is_empty()


# -- ends --------------------------------------------------------------------------------------------------------


def test_a_client_that_stays_after_an_answer_that_closes_is_closed(
    edge: SmallServer, connection: RawConnection
) -> None:
    connection.send(connection.head("POST /", content_length="1000000"))
    reply = connection.reply()
    assert (reply.status, reply.headers["connection"]) == (200, "close")
    assert connection.drip(0.1, b"a")
    assert edge.is_empty()


def test_a_client_that_sends_on_without_an_end_is_closed(edge: SmallServer, connection: RawConnection) -> None:
    connection.send(connection.head("POST /", content_length="1000000000"))
    with pytest.raises(OSError, match=r"reset|[Bb]roken pipe"):
        connection.socket.sendall(b"a" * 100_000_000)
    assert edge.is_empty()


def test_a_client_that_sends_nothing_more_after_its_request_is_answered(
    edge: SmallServer, connection: RawConnection
) -> None:
    connection.send(connection.head("GET /stream"))
    assert read_some(connection, 100_000) == 100_000
    connection.socket.shutdown(socket.SHUT_WR)
    assert edge.is_empty()


def test_a_client_disconnect_ends_the_request_before_a_pipelined_request(edge: SmallServer) -> None:
    with connected(edge.url) as connection:
        connection.send(connection.head("GET /stream"), connection.head("GET /"))
        assert read_some(connection, 100_000) == 100_000
    assert edge.is_empty()
    assert eventually(lambda: edge.given_up == ["/stream"])


def test_a_stop_waits_for_no_client_that_is_only_connected() -> None:
    edge = SmallServer()
    with connected(edge.url) as silent, connected(edge.url) as idle, connected(edge.url) as lingering:
        silent.send(b"GET")
        assert idle.get("/").status == 200
        lingering.send(lingering.head("POST /", content_length="1000000"))
        assert lingering.reply().status == 200
        assert edge.stop() < GRACE_SECONDS


@pytest.mark.long
def test_a_server_closes_slow_clients(sqlite_server: Server) -> None:
    """The limits are those of a server with default settings."""
    with connected(sqlite_server.url) as head, connected(sqlite_server.url) as trailers:
        assert head.get().status == 200
        head.send(b"GET /healthz HTTP/1.1\r\n")
        trailers.send(trailers.head("POST /rpc", **BODY, content_type="application/json"), b"2\r\n{}\r\n0\r\nx: ")
        assert trailers.drip(0.5, b"a")
        assert head.drip(0.5, b"a")
        assert httpx.get(f"{sqlite_server.url}/healthz").status_code == 200
