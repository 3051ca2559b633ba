"""Number of connections of a real server: in total, per address, and within its limit on descriptors."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from http.client import IncompleteRead
from pathlib import Path

import httpx
import pytest

from tests.app.test_connections import memory_of
from tests.conftest import Server
from tests.support.processes import eventually
from tests.support.raw_http import RawConnection, connected

StartServer = Callable[..., Server]
UPLOAD = {"content_type": "text/plain", "content_length": "1000"}


@pytest.fixture
def connect() -> Iterator[Callable[..., RawConnection]]:
    """Yield `connect(server, source)`, whose connections are closed after the test."""
    with ExitStack() as stack:
        yield lambda server, source="": stack.enter_context(connected(server.url, source))


Connect = Callable[..., RawConnection]


def busy(connection: RawConnection) -> RawConnection:
    """Begin an upload on the connection. Return when the server is reading the upload."""
    connection.send(connection.head("POST /blobs", **UPLOAD, expect="100-continue"))
    assert connection.socket.recv(100).startswith(b"HTTP/1.1 100 ")
    return connection


def is_refused(connection: RawConnection) -> bool:
    """Return whether the server closes the connection without a response."""
    try:
        connection.get()
    except (OSError, IncompleteRead):
        return True
    return False


def finish(connection: RawConnection) -> int:
    connection.send(b"a" * 1000)
    return connection.reply().status


def test_the_oldest_idle_connection_makes_room(start_server: StartServer, connect: Connect) -> None:
    server = start_server(env={"SKILLERY_MAX_CONNECTIONS": "3"})
    working = busy(connect(server))
    kept = connect(server)
    head_begun = connect(server)
    head_begun.send(b"GET /healthz HTTP/1.1\r\nhost:")
    assert kept.get().status == 200  # the server has read the incomplete head
    assert kept.get().status == 200  # now `kept` is younger than the connection with this head

    assert connect(server).get().status == 200

    assert head_begun.is_closed()
    assert kept.get().status == 200
    assert finish(working) == 201


def test_a_connection_is_refused_if_all_others_have_requests(start_server: StartServer, connect: Connect) -> None:
    server = start_server(env={"SKILLERY_MAX_CONNECTIONS": "3"})
    working = [busy(connect(server)) for _ in range(3)]

    assert all(is_refused(connect(server)) for _ in range(5))

    assert [finish(connection) for connection in working] == [201, 201, 201]
    assert connect(server).get().status == 200
    assert "all with active requests" in server.log.read_text()


def test_connections_are_limited_per_address(start_server: StartServer, connect: Connect) -> None:
    server = start_server(env={"SKILLERY_MAX_CONNECTIONS_PER_ADDRESS": "2"})
    working = [busy(connect(server, "127.0.0.2")) for _ in range(2)]
    idle = [connect(server, "127.0.0.3") for _ in range(2)]

    assert is_refused(connect(server, "127.0.0.2"))
    assert connect(server, "127.0.0.3").get().status == 200

    assert idle[0].is_closed()
    assert idle[1].get().status == 200
    assert connect(server, "127.0.0.4").get().status == 200
    assert [finish(connection) for connection in working] == [201, 201]


@pytest.mark.parametrize("trusted", ["127.0.0.8/31", "10.1.1.1,127.0.0.8", "*"])
@pytest.mark.full(after=1)
def test_proxies_are_exempt_from_the_bound_of_an_address(
    start_server: StartServer, connect: Connect, trusted: str
) -> None:
    server = start_server(env={"SKILLERY_MAX_CONNECTIONS_PER_ADDRESS": "1", "SKILLERY_TRUSTED_PROXIES": trusted})
    working = [busy(connect(server, "127.0.0.8")) for _ in range(4)]
    busy(connect(server, "127.0.0.10"))

    assert is_refused(connect(server, "127.0.0.10")) == (trusted != "*")
    assert [finish(connection) for connection in working] == [201] * 4


def test_proxies_count_for_the_bound_of_all(start_server: StartServer, connect: Connect) -> None:
    server = start_server(env={"SKILLERY_MAX_CONNECTIONS": "2", "SKILLERY_TRUSTED_PROXIES": "127.0.0.8"})
    _working = [busy(connect(server, "127.0.0.8")) for _ in range(2)]

    assert is_refused(connect(server, "127.0.0.8"))


def test_a_flood_of_refusals_logs_a_single_line_per_address(start_server: StartServer, connect: Connect) -> None:
    server = start_server(env={"SKILLERY_MAX_CONNECTIONS": "2"})
    _working = [busy(connect(server)) for _ in range(2)]

    for source in ("127.0.0.2", "127.0.0.3"):
        assert all(is_refused(connect(server, source)) for _ in range(50))

    lines = [line for line in server.log.read_text().splitlines() if "was closed" in line]
    assert [re.findall(r"127\.0\.0\.\d", line) for line in lines] == [["127.0.0.2"], ["127.0.0.3"]]


def test_a_flood_of_addresses_has_a_bounded_number_of_lines(start_server: StartServer) -> None:
    server = start_server()
    for number in range(150):
        with connected(server.url, f"127.0.1.{number + 1}") as connection:
            connection.send(b"\0\r\n\r\n")
            assert connection.reply().status == 400
    lines = [line for line in server.log.read_text().splitlines() if "127.0.1." in line or "other addresses" in line]
    assert len(lines) <= 101


# -- descriptors -------------------------------------------------------------------------------------------------


def with_descriptors(soft: int, hard: int | None = None) -> list[str]:
    hard_limit = f"ulimit -Hn {hard} && " if hard else ""
    return ["sh", "-c", f'ulimit -Sn {soft} && {hard_limit}exec "$@"', "sh"]


def descriptors_of(server: Server) -> int:
    return len(list(Path(f"/proc/{server.process.pid}/fd").iterdir()))


def everything_works(server: Server) -> bool:
    with httpx.Client(base_url=server.url, timeout=300) as client:
        assert client.get("/healthz").status_code == 200
        assert client.get("/readyz").json()["status"] == "ready"
        blob = client.post("/blobs", content=b"a" * 200_000, headers={"content-type": "text/plain"})
        assert blob.status_code == 201
        assert len(client.get(blob.headers["location"]).content) == 200_000
        call = {"language": "python", "code": "def main(args): return 7"}
        run = client.post("/rpc", json={"jsonrpc": "2.0", "id": 1, "method": "run_code", "params": call}).json()
    return bool(run["result"]["output"] == 7)


@pytest.mark.full
@pytest.mark.parametrize(("wanted", "limit"), [("0", 16_384), ("9000", 2 * 9_000 + 128 + 8 * 4)])
def test_the_soft_limit_is_raised_at_start(start_server: StartServer, wanted: str, limit: int) -> None:
    env = {"SKILLERY_MAX_CONNECTIONS": wanted, "SKILLERY_CONCURRENT_RUNS": "4"}
    server = start_server(wrapper=with_descriptors(256), env=env)

    limits = Path(f"/proc/{server.process.pid}/limits").read_text()
    found = re.search(r"Max open files +(\d+) +(\d+)", limits)
    assert found is not None
    assert int(found[1]) == min(int(found[2]), limit)


@pytest.mark.full
def test_unfinished_heads_take_a_bounded_amount_of_memory(start_server: StartServer, connect: Connect) -> None:
    server = start_server()
    before = memory_of(server)
    for _ in range(1_000):
        with suppress(OSError):
            connect(server).send(b"GET /healthz HTTP/1.1\r\nx-long: ", b"a" * 60_000)
    assert everything_works(server)
    assert memory_of(server) - before < 60 * 1024 * 1024
    assert "unfinished heads" in server.log.read_text()


@pytest.mark.full
def test_few_descriptors_are_never_used_up_by_slow_heads(start_server: StartServer, connect: Connect) -> None:
    """512 is the smallest hard limit that the sandbox accepts."""
    server = start_server(wrapper=with_descriptors(256, 512))
    for number in range(600):
        connection = connect(server)
        with suppress(OSError):
            connection.send(b"GET /healthz HTTP/1.1\r\nx-slow:")
        if number % 100 == 99:
            assert everything_works(server)
            assert descriptors_of(server) < 400
    assert "Too many open files" not in server.log.read_text()


@pytest.mark.full
def test_few_descriptors_are_never_used_up_by_many_connections_at_once(
    start_server: StartServer, connect: Connect
) -> None:
    server = start_server(wrapper=with_descriptors(256, 512))
    server.process.send_signal(signal.SIGSTOP)
    for _ in range(1_000):
        with suppress(OSError):
            connect(server).send(b"GET /healthz HTTP/1.1\r\nx-slow:")
    server.process.send_signal(signal.SIGCONT)
    for _ in range(1_000):
        assert descriptors_of(server) < 400
    assert everything_works(server)


@pytest.mark.full
def test_few_descriptors_are_never_used_up_by_requests(start_server: StartServer, connect: Connect) -> None:
    server = start_server(wrapper=with_descriptors(256, 512))
    working = []
    for _ in range(300):
        connection = connect(server)
        with suppress(OSError):  # refused
            connection.send(connection.head("POST /blobs", content_type="text/plain", content_length="1000000"))
            connection.send(b"a" * 200_000)
        working.append(connection)

    def refused() -> int:
        working[:] = [connection for connection in working if not connection.is_closed(0.001)]
        return 300 - len(working)

    eventually(lambda: refused() > 50)
    assert descriptors_of(server) < 450
    with httpx.Client(base_url=server.url) as client, pytest.raises(httpx.TransportError):
        client.get("/healthz")
    for connection in working[:20]:
        connection.send(b"a" * 800_000)
        assert connection.reply().status == 201
        connection.close()
    assert everything_works(server)
    assert "Too many open files" not in server.log.read_text()
