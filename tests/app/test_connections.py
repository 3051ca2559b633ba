"""Limits on connections of a real server: sizes, trailers, requests with unread bodies, and their number."""

from __future__ import annotations

import contextlib
import json
import re
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.client import IncompleteRead
from pathlib import Path

import pytest

from tests.app.test_attacks import everybody_else_is_answered
from tests.cli.test_cli import skillery
from tests.conftest import Server
from tests.support.processes import eventually
from tests.support.raw_http import RawConnection, connected

MIB = 1024 * 1024
JSON = "application/json"
CHUNKED = {"transfer_encoding": "chunked", "content_type": JSON}
LIST = b'{"jsonrpc":"2.0","id":1,"method":"list_skills"}'
ONE_CHUNK = b"%x\r\n%s\r\n0\r\n" % (len(LIST), LIST)


def memory_of(server: Server) -> int:
    """Return the resident memory of the server process, in bytes."""
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) * 1024


@contextmanager
def memory_stays(server: Server) -> Iterator[None]:
    before = memory_of(server)
    yield
    assert memory_of(server) - before < 50 * MIB


def is_cut_off(connection: RawConnection, piece: bytes, most: int = 64 * MIB) -> bool:
    """Send `piece` repeatedly. Return whether the server stops reading before `most` bytes."""
    with suppress(OSError):
        for _ in range(most // len(piece)):
            connection.socket.sendall(piece)
        return False
    return True


@pytest.mark.parametrize(
    ("start", "piece"),
    [
        (ONE_CHUNK + b"x-long: ", b"a" * 65_536),
        (ONE_CHUNK, b"x-many: 1\r\n" * 6_000),
        (ONE_CHUNK, b"x" * 65_536),
        (b"1;a=", b"e" * 65_536),
        (b"", b"0" * 65_536),
        (b"1\r\na\r\n", b"0" * 65_536),
    ],
    ids=["one trailer", "many trailers", "a name", "a chunk extension", "a first size", "a second size"],
)
def test_endless_trailers_and_chunk_headers_are_cut_off(sqlite_server: Server, start: bytes, piece: bytes) -> None:
    with (
        connected(sqlite_server.url) as connection,
        everybody_else_is_answered(sqlite_server),
        memory_stays(sqlite_server),
    ):
        connection.send(connection.head("POST /rpc", **CHUNKED), start)
        assert is_cut_off(connection, piece)


def test_trailers_over_the_bound_are_refused_in_words(sqlite_server: Server) -> None:
    with connected(sqlite_server.url) as connection:
        connection.send(connection.head("POST /rpc", **CHUNKED), ONE_CHUNK, b"x-long: ", b"a" * 40_000)
        reply = connection.reply()
        assert (reply.status, reply.headers["connection"]) == (400, "close")
        assert b"trailers" in reply.body


def test_small_chunks_with_extensions_and_trailers_are_taken(sqlite_server: Server) -> None:
    chunks = b"".join(b"1;why=not\r\n%c\r\n" % byte for byte in LIST)
    with connected(sqlite_server.url) as connection:
        for _ in range(2):
            connection.send(connection.head("POST /rpc", **CHUNKED), chunks, b"0\r\nx-sum: 1\r\n\r\n")
            reply = connection.reply()
            assert (reply.status, b"skills" in reply.body) == (200, True)


def test_a_token_in_a_trailer_authenticates_nobody(tokens_sqlite: Server) -> None:
    home = ("--home", str(tokens_sqlite.home))
    made = skillery("token", "create", "--name", "t", "--scope", "read", "--json", *home)
    login = f"Bearer {made.json['token']}"
    with connected(tokens_sqlite.url) as connection:
        connection.send(connection.head("POST /rpc", **CHUNKED), ONE_CHUNK, f"authorization: {login}\r\n\r\n")
        assert connection.reply().status == 401
    with connected(tokens_sqlite.url) as connection:
        connection.send(connection.head("POST /rpc", **CHUNKED, authorization=login), ONE_CHUNK, b"\r\n")
        assert connection.reply().status == 200


def test_an_idempotency_key_in_a_trailer_has_no_effect(sqlite_server: Server, new_name: str) -> None:
    blob_ids = set()
    with connected(sqlite_server.url) as connection:
        for _ in range(2):
            connection.send(
                connection.head("POST /blobs", **CHUNKED), ONE_CHUNK, f"idempotency-key: {new_name}\r\n\r\n"
            )
            reply = connection.reply()
            assert reply.status == 201
            blob_ids.add(json.loads(reply.body)["blob_id"])
    assert len(blob_ids) == 2


def addresses_of_failed_logins(home: Path, count: int) -> list[str]:
    def addresses() -> list[str]:
        with contextlib.closing(sqlite3.connect(home / "skillery.db")) as database:
            found = database.execute("SELECT address FROM audit WHERE action = 'login' ORDER BY seq").fetchall()
        return [address for (address,) in found]

    return eventually(lambda: len(found := addresses()) >= count and found, problem=addresses)


def test_a_forwarded_address_in_a_trailer_is_not_believed(start_server: Callable[..., Server]) -> None:
    server = start_server(env={"SKILLERY_AUTH": "tokens", "SKILLERY_TRUSTED_PROXIES": "127.0.0.1"})
    with connected(server.url) as connection:
        connection.send(connection.head("POST /rpc", **CHUNKED), ONE_CHUNK, b"x-forwarded-for: 9.9.9.1\r\n\r\n")
        assert connection.reply().status == 401
    assert addresses_of_failed_logins(server.home, 1) == ["127.0.0.1"]
    with connected(server.url) as connection:
        connection.send(connection.head("POST /rpc", **CHUNKED, x_forwarded_for="9.9.9.2"), ONE_CHUNK, b"\r\n")
        assert connection.reply().status == 401
    assert addresses_of_failed_logins(server.home, 2) == ["127.0.0.1", "9.9.9.2"]


# -- heads -------------------------------------------------------------------------------------------------------


def test_the_head_of_a_later_request_is_bounded_too(sqlite_server: Server) -> None:
    with connected(sqlite_server.url) as connection, memory_stays(sqlite_server):
        assert connection.get().status == 200
        connection.send(b"GET /healthz HTTP/1.1\r\nX-Long: ")
        assert is_cut_off(connection, b"a" * 65_536)


def test_a_large_head_in_a_single_piece_is_refused(sqlite_server: Server) -> None:
    with connected(sqlite_server.url) as connection:
        connection.send(connection.head("GET /healthz", x_long="a" * 100_000))
        assert connection.reply().status == 400
        assert connection.is_closed()


def test_a_request_has_a_bounded_number_of_headers(sqlite_server: Server) -> None:
    for count, status in ((200, 200), (300, 400)):
        with connected(sqlite_server.url) as connection:
            connection.send(connection.head("GET /healthz", **{f"x_{number}": "1" for number in range(count)}))
            reply = connection.reply()
            assert reply.status == status
            assert connection.is_closed() if status == 400 else connection.get().status == 200


@pytest.mark.parametrize(
    "head",
    [
        "CONNECT example.org:443 HTTP/1.1\r\nhost: localhost\r\n\r\n",
        "POST /rpc HTTP/1.1\r\nhost: localhost\r\ncontent-length: 99999999999999999999999\r\n\r\n",
        "POST /rpc HTTP/1.1\r\nhost: localhost\r\ncontent-length: 3\r\ntransfer-encoding: chunked\r\n\r\nabc",
        "GET /healthz HTTP/1.1\r\nhost: localhost\r\nx: a\0b\r\n\r\n",
        "GET /heal\0thz HTTP/1.1\r\nhost: localhost\r\n\r\n",
        "GET /healthz HTTP/1.1\r\nhost: localhost\r\n\0: b\r\n\r\n",
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    ],
    ids=["connect", "length", "two lengths", "nul in a value", "nul in a url", "nul in a name", "http/2", "tls"],
)
def test_malformed_requests_get_400_and_are_closed(sqlite_server: Server, head: str) -> None:
    with connected(sqlite_server.url) as connection:
        connection.send(head)
        assert connection.reply().status == 400
        assert connection.is_closed()


def test_a_huge_content_length_is_answered_and_closed(sqlite_server: Server) -> None:
    with connected(sqlite_server.url) as connection:
        connection.send(
            connection.head("POST /rpc", content_type="application/json", content_length=str(2**63)), b"{" * 1_000
        )
        assert connection.reply().status == 413
        assert connection.is_closed()


@pytest.mark.parametrize("protocol", ["websocket", "h2c"])
def test_an_upgrade_is_declined_and_the_connection_goes_on(sqlite_server: Server, protocol: str) -> None:
    with connected(sqlite_server.url) as connection:
        asks = connection.head("GET /healthz", upgrade=protocol, connection="upgrade")
        connection.send(asks, asks)
        assert [connection.reply().status for _ in range(2)] == [200, 200]
        connection.send(
            connection.head(
                "POST /rpc",
                upgrade=protocol,
                connection="upgrade",
                content_type="application/json",
                content_length=str(len(LIST)),
            ),
            LIST,
        )
        assert b"skills" in connection.reply().body
        assert connection.get().status == 200


@pytest.mark.parametrize("framing", [{"content_length": "{}"}, {"transfer_encoding": "chunked"}])
def test_the_body_of_a_request_with_an_upgrade_is_no_request(sqlite_server: Server, framing: dict[str, str]) -> None:
    with connected(sqlite_server.url) as connection:
        smuggled = connection.head("GET /prompt")
        headers = {name: value.format(len(smuggled)) for name, value in framing.items()}
        body = smuggled if "content_length" in framing else b"%x\r\n%s\r\n0\r\n\r\n" % (len(smuggled), smuggled)
        connection.send(connection.head("POST /blobs", upgrade="h2c", connection="Upgrade, HTTP2-Settings", **headers))
        time.sleep(0.2)  # no event: the server reads the head before the body arrives
        connection.send(body, connection.head("GET /readyz"))
        assert connection.reply().status == 201
        assert b"ready" in connection.reply().body


@pytest.mark.parametrize("coding", ["gzip, chunked", "gzip", "chunked, chunked"])
def test_only_the_transfer_coding_chunked_is_read(sqlite_server: Server, coding: str) -> None:
    with connected(sqlite_server.url) as connection:
        connection.send(connection.head("POST /blobs", transfer_encoding=coding), b"1\r\nx\r\n0\r\n\r\n")
        assert connection.reply().status == 400
        assert connection.is_closed()


def test_http_1_0_is_answered_and_closed(sqlite_server: Server) -> None:
    with connected(sqlite_server.url) as connection:
        connection.send(f"GET /healthz HTTP/1.0\r\nhost: {connection.host}\r\n\r\n")
        assert connection.reply().status == 200
        assert connection.is_closed()


@pytest.mark.parametrize("path", ["/rpc", "/openrpc.json"], ids=["short", "long"])
def test_head_and_body_of_an_answer_arrive_together(sqlite_server: Server, path: str) -> None:
    with connected(sqlite_server.url) as connection:
        for _ in range(20):
            if path == "/rpc":
                length = str(len(LIST))
                connection.send(connection.head("POST /rpc", content_type=JSON, content_length=length), LIST)
            else:
                connection.send(connection.head(f"GET {path}"))
            first = connection.socket.recv(65_536)
            head, _, body = first.partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200")
            assert body[:1] == b"{"
            [size] = map(int, re.findall(rb"content-length: (\d+)", head))
            while len(body) < size:
                body += connection.socket.recv(65_536)
            assert len(body) == size


# -- pipelining --------------------------------------------------------------------------------------------------


def test_pipelined_requests_are_answered_in_order(sqlite_server: Server) -> None:
    with connected(sqlite_server.url) as connection:
        calls = [LIST.replace(b'"id":1', b'"id":%d' % number) for number in range(10)]
        heads = [
            connection.head("POST /rpc", content_type="application/json", content_length=str(len(call)))
            for call in calls
        ]
        connection.send(*(part for pair in zip(heads, calls, strict=True) for part in pair))
        assert [json.loads(connection.reply().body)["id"] for _ in calls] == list(range(10))
        assert connection.get().status == 200


@pytest.mark.parametrize("after", [b"", b"\0 is not a request"])
def test_requests_past_the_bound_are_not_read_and_those_before_are_answered(
    sqlite_server: Server, after: bytes
) -> None:
    with connected(sqlite_server.url) as connection, memory_stays(sqlite_server):
        sent = 3 if after else 100_000
        connection.send(connection.head("GET /healthz") * 3, after)
        with suppress(OSError):
            connection.send(connection.head("GET /healthz") * (sent - 3))
        replies = []
        with suppress(OSError, IncompleteRead):
            while True:
                replies.append(connection.reply())
        assert {reply.status for reply in replies} == {200}
        assert "connection" not in replies[0].headers
        assert replies[-1].headers["connection"] == "close"
        assert len(replies) == 3 if after else len(replies) < sent


# -- responses before the body was read --------------------------------------------------------------------------


@pytest.mark.parametrize("framing", ["content-length: 8388608", "transfer-encoding: chunked"])
def test_an_answer_before_the_end_of_the_body_is_read_and_closes(tokens_sqlite: Server, framing: str) -> None:
    with connected(tokens_sqlite.url) as connection:
        head = f"POST /rpc HTTP/1.1\r\nhost: {connection.host}\r\ncontent-type: application/json\r\n{framing}\r\n\r\n"
        connection.send(head)
        # This client sends the whole body before it reads the response.
        for _ in range(8):
            connection.send(b"100000\r\n", b" " * (MIB - 10), b"\r\n")
        reply = connection.reply()
        assert (reply.status, reply.headers["connection"]) == (401, "close")
        assert b"error" in reply.body
        assert connection.is_closed()


def test_a_body_that_is_too_large_is_answered_while_its_client_sends(sqlite_server: Server) -> None:
    with connected(sqlite_server.url) as connection:
        connection.send(connection.head("POST /rpc", content_type="application/json", content_length=str(100 * MIB)))
        with suppress(OSError):
            for _ in range(100):
                connection.send(b" " * MIB)
        assert connection.reply().status == 413
        assert connection.is_closed()


def test_a_client_that_waits_for_100_continue_gets_its_refusal(tokens_sqlite: Server) -> None:
    with connected(tokens_sqlite.url) as connection:
        connection.send(
            connection.head("POST /rpc", content_type="application/json", content_length="100", expect="100-continue")
        )
        reply = connection.reply()
        assert (reply.status, reply.headers["connection"]) == (401, "close")


def test_bytes_after_a_refusal_keep_no_connection(tokens_sqlite: Server) -> None:
    with connected(tokens_sqlite.url) as connection:
        connection.send(connection.head("POST /rpc", content_type="application/json", content_length="1000"))
        assert connection.reply().status == 401
        assert connection.drip(0.5, b" ")


def test_a_body_that_was_read_keeps_its_connection(tokens_sqlite: Server) -> None:
    with connected(tokens_sqlite.url) as connection:
        for _ in range(3):
            connection.send(
                connection.head("POST /rpc", content_type="application/json", content_length=str(len(LIST))), LIST
            )
            reply = connection.reply()
            assert (reply.status, reply.headers.get("connection")) == (401, None)


@pytest.mark.parametrize("hosts", ["", "Host: localhost\r\nHost: example.org\r\n", "Host: a\r\nHost: a\r\n"])
def test_requests_without_a_single_host_header_are_refused(sqlite_server: Server, hosts: str) -> None:
    with connected(sqlite_server.url) as connection:
        connection.send(f"GET /healthz HTTP/1.1\r\n{hosts}\r\n")
        assert connection.reply().status == 400
    with connected(sqlite_server.url) as connection:
        connection.send("GET /healthz HTTP/1.0\r\n\r\n")
        assert connection.reply().status == 200
