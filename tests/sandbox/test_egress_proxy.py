"""The proxy over real sockets: permitted and refused connections. A refused host receives no byte."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from cellblock.egress.log import Event, Uses
from cellblock.egress.policy import Policy
from cellblock.egress.process import RunProxy
from cellblock.egress.resolver import AddressRules
from cellblock.egress.service import Egress, EgressBroken
from cellblock.egress.streams import Caps
from cellblock.values import NetworkUse
from skillery.jobs import list_names
from skillery.testing.upstreams import Upstream, client_context, ok, upstream
from tests.support.processes import eventually, eventually_async

LOOPBACK = ("127.0.0.1",)


class Names:
    """A resolver that returns its answers in order. The last answer repeats."""

    def __init__(self, *answers: Sequence[str]) -> None:
        self._answers = list(answers)
        self.asked: list[str] = []

    async def look_up(self, host: str) -> list[str]:
        self.asked.append(host)
        return list(self._answers.pop(0) if len(self._answers) > 1 else self._answers[0])


class Door:
    """A proxy on a loopback port, with its log lines and recorded uses."""

    def __init__(self, port: int, names: Names) -> None:
        self.port = port
        self.names = names
        self.uses = Uses()
        self.lines: list[str] = []

    def tell(self, event: Event) -> None:
        line = self.uses.line(event)
        if line:
            self.lines.append(line)
        self.uses.add(event)

    async def send(self, data: bytes, *, half_close: bool = False) -> bytes:
        """Send the data and return everything that the proxy sends back."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(data)
        if half_close:
            writer.write_eof()
        try:
            async with asyncio.timeout(300):
                return await reader.read()
        finally:
            writer.close()

    async def tunnel(self, authority: str, *, sni: str | None, then: bytes) -> bytes:
        """Open a tunnel with TLS, send `then`, and return everything that arrives through TLS."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            async with asyncio.timeout(300):
                writer.write(f"CONNECT {authority} HTTP/1.1\r\nHost: {authority}\r\n\r\n".encode())
                answer = await reader.readuntil(b"\r\n\r\n")
                assert answer.startswith(b"HTTP/1.1 200"), answer
                context = client_context()
                context.check_hostname = sni is not None
                await writer.start_tls(context, server_hostname=sni or "")
                writer.write(then)
                return await reader.read()
        finally:
            writer.close()

    async def refused(self) -> list[NetworkUse]:
        """Return the recorded uses, once they are complete. All must be refusals."""
        uses = list(await eventually_async(self.uses.finish))
        assert all(not use.allowed and not use.bytes_out and not use.bytes_in for use in uses), uses
        return uses


@asynccontextmanager
async def door(
    *patterns: str, names: Names | None = None, allow_private: Sequence[str] = LOOPBACK, caps: Caps | None = None
) -> AsyncIterator[Door]:
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setblocking(False)
    opened = Door(listener.getsockname()[1], names or Names(["127.0.0.1"]))
    proxy = RunProxy(
        Policy.parse(patterns, list_names("linux")),
        opened.names,
        AddressRules(allow_private),
        opened.tell,
        caps or Caps(),
    )
    serving = asyncio.create_task(proxy.serve(listener))
    try:
        yield opened
    finally:
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
        assert listener.fileno() == -1


@pytest.fixture
def plain() -> Iterator[Upstream]:
    with upstream() as running:
        yield running


@pytest.fixture
def tls() -> Iterator[Upstream]:
    with upstream(tls=True) as running:
        yield running


@pytest.fixture(autouse=True)
def no_descriptors_are_left() -> Iterator[None]:
    before = len(list(Path("/proc/self/fd").iterdir()))
    yield
    # The event loop has opened some, and the threads of the upstreams close theirs when they notice the end.
    eventually(lambda: len(list(Path("/proc/self/fd").iterdir())) <= before + 8)


def get(host: str, port: int, path: str = "/x") -> bytes:
    return f"GET http://{host}:{port}{path} HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n".encode()


async def test_an_allowed_request_is_forwarded_and_recorded(plain: Upstream) -> None:
    async with door(f"http://api.test:{plain.port}") as opened:
        answer = await opened.send(get("API.test", plain.port))

    assert answer.endswith(b"Connection: close\r\n\r\nGET /x HTTP/1.1")
    assert (
        bytes(plain.received) == f"GET /x HTTP/1.1\r\nHost: api.test:{plain.port}\r\nConnection: close\r\n\r\n".encode()
    )
    [use] = opened.uses.finish()
    assert (use.host, use.port, use.allowed, use.connections) == ("api.test", plain.port, True, 1)
    assert use.reason == f"http://api.test:{plain.port}"
    assert use.bytes_out == len(plain.received)
    assert use.bytes_in > 0
    assert opened.lines == []


async def test_an_allowed_tunnel_carries_tls_to_the_host_it_was_opened_for(tls: Upstream) -> None:
    async with door(f"https://*.api.test:{tls.port}") as opened:
        answer = await opened.tunnel(f"a.api.test:{tls.port}", sni="a.api.test", then=b"GET /t HTTP/1.1\r\n\r\n")

    assert answer.endswith(b"GET /t HTTP/1.1")
    [use] = opened.uses.finish()
    assert use.allowed
    assert use.bytes_out > 200
    assert use.bytes_in > 200


@pytest.mark.parametrize(
    ("field", "body", "arrives"),
    [
        ("Content-Length: 5", "helloGET / HTTP/1.1\r\n\r\n", b"hello"),
        (
            "Transfer-Encoding: chunked",
            "5\r\nhello\r\n0A\r\n0123456789\r\n0\r\nX: y\r\n\r\nGET /",
            b"5\r\nhello\r\na\r\n0123456789\r\n0\r\n\r\n",
        ),
    ],
)
async def test_proxy_forwards_body_but_not_bytes_after_it(field: str, body: str, arrives: bytes) -> None:
    with upstream(until=arrives) as running:
        head = f"POST http://api.test:{running.port}/ HTTP/1.1\r\nHost: api.test:{running.port}\r\n{field}\r\n\r\n"
        async with door(f"http://api.test:{running.port}") as opened:
            assert b"200 OK" in await opened.send((head + body).encode())
        assert bytes(running.received).partition(b"\r\n\r\n")[2] == arrives


@pytest.mark.parametrize("body", ["5;x\r\nhello", "5\r\nhello!\r\n", "0x5\r\nhello\r\n", "5\nhello\r\n", "\r\n"])
async def test_chunks_that_lie_end_the_request(body: str) -> None:
    with upstream(until=b"never") as running:
        head = f"POST http://api.test:{running.port}/ HTTP/1.1\r\nHost: api.test:{running.port}\r\n"
        async with door(f"http://api.test:{running.port}") as opened:
            answer = await opened.send(f"{head}Transfer-Encoding: chunked\r\n\r\n{body}".encode())
            assert answer.startswith(b"HTTP/1.1 400 ")
        assert b"\r\n0\r\n" not in running.received


async def test_expect_100_continue_is_answered() -> None:
    with upstream(until=b"hi") as running:
        head = f"POST http://api.test:{running.port}/ HTTP/1.1\r\nHost: api.test:{running.port}\r\n"
        async with door(f"http://api.test:{running.port}") as opened:
            answer = await opened.send(f"{head}Expect: 100-continue\r\nContent-Length: 2\r\n\r\nhi".encode())
        assert answer.startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n")
        assert b"Expect" not in running.received


@pytest.mark.parametrize(
    ("request_text", "status"),
    [
        ("GET http://evil.test:{port}/ HTTP/1.1\r\nHost: evil.test:{port}\r\n\r\n", 403),
        ("GET http://api.test/ HTTP/1.1\r\nHost: api.test\r\n\r\n", 403),
        ("GET http://api.test:{port}/ HTTP/1.1\r\nHost: evil.test:{port}\r\n\r\n", 403),
        ("GET http://api.test:{port}/ HTTP/1.1\r\nHost: api.test:{port}\r\nHost: api.test:{port}\r\n\r\n", 400),
        ("GET http://api.test:{port}/ HTTP/1.1\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\nHost: api.test:{port}\r\n\r\n", 400),
        ("GET http://127.0.0.1:{port}/ HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n", 403),
        ("GET http://2130706433:{port}/ HTTP/1.1\r\nHost: 2130706433:{port}\r\n\r\n", 403),
        ("GET http://[::ffff:127.0.0.1]:{port}/ HTTP/1.1\r\nHost: [::ffff:127.0.0.1]:{port}\r\n\r\n", 403),
        ("GET http://evil.test@api.test:{port}/ HTTP/1.1\r\nHost: api.test:{port}\r\n\r\n", 403),
        ("POST http://api.test:{port}/ HTTP/1.1\r\nHost: api.test:{port}\r\nContent-Length: 3\r\n"
         "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /", 400),
        ("POST http://api.test:{port}/ HTTP/1.1\r\nHost: api.test:{port}\r\nContent-Length: 3\r\n"
         "Content-Length: 30\r\n\r\nabc", 400),
        ("POST http://api.test:{port}/ HTTP/1.1\r\nHost: api.test:{port}\r\nTransfer-Encoding: xchunked\r\n\r\n", 400),
        ("GET http://api.test:{port}/ HTTP/1.1\nHost: api.test:{port}\n\r\n\r\n", 400),
        ("GET http://api.test:{port}/ HTTP/1.1\r\nHost: api.test:{port}\r\nX: a\0b\r\n\r\n", 400),
        ("CONNECT api.test:{port} HTTP/1.1\r\nHost: api.test:{port}\r\n\r\n", 403),
        ("CONNECT tls.test:{port} HTTP/1.1\r\nHost: evil.test:{port}\r\n\r\n", 403),
        ("CONNECT tls.test:{port} HTTP/1.1\r\nHost: tls.test\r\nHost: tls.test\r\n\r\n", 400),
        ("CONNECT tls.test:{port} HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc", 400),
        ("CONNECT tls.test:22 HTTP/1.1\r\n\r\n", 403),
        ("CONNECT 127.0.0.1:{port} HTTP/1.1\r\n\r\n", 403),
        ("CONNECT x@tls.test:{port} HTTP/1.1\r\n\r\n", 403),
        ("GET https://tls.test:{port}/ HTTP/1.1\r\nHost: tls.test:{port}\r\n\r\n", 400),
        ("GET http://tls.test:{port}/ HTTP/1.1\r\nHost: tls.test:{port}\r\n\r\n", 403),
        ("\x16\x03\x01\x00\x05hello\r\n\r\n", 400),
    ],
)  # fmt: skip
async def test_refused_request_gets_response_and_never_reaches_upstream(
    plain: Upstream, request_text: str, status: int
) -> None:
    async with door(f"http://api.test:{plain.port}", f"https://tls.test:{plain.port}") as opened:
        answer = await opened.send(request_text.replace("{port}", str(plain.port)).encode("latin-1"))
        assert answer.startswith(f"HTTP/1.1 {status} ".encode()), answer
        [use] = await opened.refused()
    assert use.reason.encode() in answer.partition(b"\r\n\r\n")[2]
    assert len(opened.lines) == 1
    assert plain.connections == 0
    assert plain.received == b""


async def test_refusal_shows_missing_permission_to_code_and_log() -> None:
    async with door("https://api.test") as opened:
        answer = await opened.send(b"CONNECT other.test:8443 HTTP/1.1\r\n\r\n")
    advice = '"https://other.test:8443" in permissions.network of skill.toml would allow it'
    assert answer.count(advice.encode()) == 2  # in the body, and in the status line: some clients show no more
    assert opened.lines == [f"network: https://other.test:8443 is not in permissions.network of this skill; {advice}"]


@pytest.mark.parametrize(
    ("first", "reason"),
    [
        (b"GET / HTTP/1.1\r\nHost: tls.test\r\n\r\n", "this is not TLS"),
        (b"SSH-2.0-x\r\n", "this is not TLS"),
        (b"\x16\x03\x01\x00\x05\x01\x00\x00\x01\x00", "points past its end"),
        (b"", "no TLS began"),
    ],
)
async def test_nothing_but_tls_goes_into_a_tunnel(plain: Upstream, first: bytes, reason: str) -> None:
    async with door(f"https://tls.test:{plain.port}") as opened:
        connect = f"CONNECT tls.test:{plain.port} HTTP/1.1\r\n\r\n".encode()
        answer = await opened.send(connect + first, half_close=not first)
        assert answer.startswith(b"HTTP/1.1 200")
        assert answer.endswith(b"\r\n\r\n\x15\x03\x03\x00\x02\x02\x31")
        [use] = await opened.refused()
    assert reason in use.reason
    assert plain.received == b""


@pytest.mark.parametrize("sni", ["other.test", "b.api.test", None])
async def test_tls_for_another_host_than_the_tunnels_is_refused(tls: Upstream, sni: str | None) -> None:
    async with door(f"https://a.api.test:{tls.port}") as opened:
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await opened.tunnel(f"a.api.test:{tls.port}", sni=sni, then=b"GET / HTTP/1.1\r\n\r\n")
        [use] = await opened.refused()
    assert "SNI" in use.reason
    assert tls.received == b""


@pytest.mark.parametrize(
    "answers", [["127.0.0.1"], ["8.8.8.8", "127.0.0.1"], ["169.254.169.254"], ["::1"], ["10.0.0.1"]]
)
async def test_private_addresses_are_not_dialled_by_default(plain: Upstream, answers: list[str]) -> None:
    names = Names(answers)
    async with door(f"http://api.test:{plain.port}", names=names, allow_private=()) as opened:
        answer = await opened.send(get("api.test", plain.port))
        assert answer.startswith(b"HTTP/1.1 403 ")
        assert b"is not a public address; the operator can list it in `allow_private` of the sandbox" in answer
        await opened.refused()
    assert plain.connections == 0


async def test_proxy_dials_checked_address_without_second_look_up(plain: Upstream) -> None:
    """DNS rebinding: the first look-up returns a permitted address, the next one an address of the server."""
    names = Names(["127.0.0.2"], ["127.0.0.1"])
    async with door(f"http://api.test:{plain.port}", names=names, allow_private=["127.0.0.2"]) as opened:
        first = await opened.send(get("api.test", plain.port))
        assert first.startswith(b"HTTP/1.1 502 ")  # this address has no listener
        assert names.asked == ["api.test"]
        second = await opened.send(get("api.test", plain.port))
        assert second.startswith(b"HTTP/1.1 403 ")
    assert names.asked == ["api.test", "api.test"]
    assert plain.connections == 0


async def test_proxy_reports_name_without_address() -> None:
    async with door("http://api.test", names=Names([])) as opened:
        assert (await opened.send(get("api.test", 80))).startswith(b"HTTP/1.1 502 Bad Gateway: api.test has no address")


async def test_there_are_only_so_many_connections_in_all(plain: Upstream) -> None:
    async with door(f"http://api.test:{plain.port}", caps=Caps(in_all=3)) as opened:
        for _ in range(3):
            assert b"200 OK" in await opened.send(get("api.test", plain.port))
        with pytest.raises(ConnectionError):
            await opened.send(get("api.test", plain.port))
    assert plain.connections == 3
    assert opened.uses.finish()[-1].reason == "the run has made 3 connections, as many as it may"


async def test_only_so_many_are_open_at_once_and_the_others_wait(plain: Upstream) -> None:
    async with door(f"http://api.test:{plain.port}", caps=Caps(open_at_once=2, head_seconds=0.5)) as opened:
        slow = [await asyncio.open_connection("127.0.0.1", opened.port) for _ in range(2)]
        slow[0][1].write(b"GET http://api.test/ HTTP/1.1\r\n")
        assert b"200 OK" in await opened.send(get("api.test", plain.port))
        assert (await slow[0][0].read()).startswith(b"HTTP/1.1 400 ")
        for _, writer in slow:
            writer.close()


async def test_a_wildcard_is_good_for_so_many_names(plain: Upstream) -> None:
    async with door(f"http://*.api.test:{plain.port}", caps=Caps(hosts=2)) as opened:
        for name in ("a", "b", "a"):
            assert b"200 OK" in await opened.send(get(f"{name}.api.test", plain.port))
        answer = await opened.send(get("c.api.test", plain.port))
    assert b"403 Forbidden: c.api.test: the run has asked for 2 different hosts" in answer
    assert opened.names.asked == ["a.api.test", "b.api.test", "a.api.test"]


async def test_a_run_sends_only_so_many_bytes(plain: Upstream) -> None:
    head = (
        f"POST http://api.test:{plain.port}/ HTTP/1.1\r\nHost: api.test:{plain.port}\r\nContent-Length: 500000\r\n\r\n"
    )
    async with door(f"http://api.test:{plain.port}", caps=Caps(bytes_out=100_000)) as opened:
        await opened.send(head.encode() + b"x" * 500_000)
        assert (await opened.send(get("api.test", plain.port))).startswith(b"HTTP/1.1 403 ")
    assert len(plain.received) <= 100_000
    assert any("as much as it may" in use.reason for use in opened.uses.finish())


async def test_a_run_receives_only_so_many_bytes() -> None:
    with upstream(answer=lambda head: ok(b"x" * 1_000_000)) as large:
        async with door(f"http://api.test:{large.port}", caps=Caps(bytes_in=200_000)) as opened:
            answer = await opened.send(get("api.test", large.port))
    assert len(answer) <= 200_000
    assert any("as much as it may" in use.reason for use in opened.uses.finish())


async def test_idle_connection_is_closed_by_proxy() -> None:
    with upstream() as running:
        async with door(f"https://api.test:{running.port}", caps=Caps(idle_seconds=0.4)) as opened:
            reader, writer = await asyncio.open_connection("127.0.0.1", opened.port)
            writer.write(f"CONNECT api.test:{running.port} HTTP/1.1\r\n\r\n".encode())
            await reader.readuntil(b"\r\n\r\n")
            incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
            with pytest.raises(ssl.SSLWantReadError):
                client_context().wrap_bio(incoming, outgoing, server_hostname="api.test").do_handshake()
            writer.write(outgoing.read())
            async with asyncio.timeout(300):
                await reader.read()
            writer.close()
    assert any("nothing moved" in use.reason for use in opened.uses.finish())


async def test_an_answer_that_is_no_http_is_not_passed_on() -> None:
    with upstream(answer=lambda head: b"HTTP/1.1 101 Switching Protocols\r\n\r\n") as running:
        async with door(f"http://api.test:{running.port}") as opened:
            assert (await opened.send(get("api.test", running.port))).startswith(b"HTTP/1.1 502 ")
    with upstream(answer=lambda head: b"220 mail\r\n\r\n") as running:
        async with door(f"http://api.test:{running.port}") as opened:
            assert (await opened.send(get("api.test", running.port))).startswith(b"HTTP/1.1 502 ")


def test_network_record_and_log_are_bounded_for_many_hosts() -> None:
    uses = Uses()
    lines = [uses.line(event) for event in (Event(f"h{number}.test", 443, False, "no") for number in range(1000))]
    for number in range(1000):
        uses.add(Event(f"h{number}.test", 443, False, "no"))
    assert len(uses.finish()) <= 256
    assert sum(use.connections for use in uses.finish()) == 1000
    assert len([line for line in lines if line]) == 101


# -- the process ---------------------------------------------------------------------------------------------------


async def listening() -> tuple[socket.socket, int]:
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setblocking(False)
    return listener, listener.getsockname()[1]


async def test_the_process_serves_many_runs_each_by_its_own_rules(plain: Upstream) -> None:
    egress = Egress(LOOPBACK, {"api.test": LOOPBACK, "other.test": LOOPBACK})
    try:
        notes: list[str] = []
        first, first_port = await listening()
        second, second_port = await listening()
        one = await egress.open([f"http://api.test:{plain.port}"], first, notes.append)
        two = await egress.open([f"http://other.test:{plain.port}"], second, notes.append)

        assert b"200 OK" in await Door(first_port, Names()).send(get("api.test", plain.port))
        assert b"403" in await Door(second_port, Names()).send(get("api.test", plain.port))

        [allowed], [refused] = await one.close(), await two.close()
        assert (allowed.host, allowed.allowed, allowed.bytes_out > 0) == ("api.test", True, True)
        assert (refused.host, refused.allowed, refused.bytes_out) == ("api.test", False, 0)
        assert len(notes) == 1
        assert plain.connections == 1
        with pytest.raises(ConnectionError):
            await Door(first_port, Names()).send(get("api.test", plain.port))
    finally:
        await egress.close()


async def test_killed_proxy_ends_sessions_and_is_replaced_for_next_run(plain: Upstream) -> None:
    egress = Egress(LOOPBACK, {"api.test": LOOPBACK})
    try:
        listener, port = await listening()
        session = await egress.open([f"http://api.test:{plain.port}"], listener, lambda line: None)
        assert b"200 OK" in await Door(port, Names()).send(get("api.test", plain.port))
        first = egress.pid
        assert first is not None
        os.kill(first, 9)
        async with asyncio.timeout(300):
            while True:
                try:
                    await Door(port, Names()).send(get("api.test", plain.port))
                except ConnectionError:
                    break
        uses = await session.close()
        assert [use.allowed for use in uses] == [True, False]
        assert uses[-1].reason == "the proxy of this run has ended"

        listener, port = await listening()
        session = await egress.open([f"http://api.test:{plain.port}"], listener, lambda line: None)
        assert b"200 OK" in await Door(port, Names()).send(get("api.test", plain.port))
        await session.close()
        assert egress.pid != first
    finally:
        await egress.close()


def descriptors(pid: int | None) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


async def torment(port: int, target: int, number: int) -> None:
    """Open one faulty connection. `number` selects one of several kinds."""
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    match number % 6:
        case 0:
            writer.write(b"GET http://api.test")
        case 1:
            writer.write(b"\xff" * 1000 + b"\r\n\r\n")
        case 2:
            writer.write(get("api.test", target))
        case 3:
            writer.write(f"CONNECT api.test:{target} HTTP/1.1\r\n\r\n\x16\x03\x01".encode())
        case 4:
            writer.write(f"POST http://api.test:{target}/ HTTP/1.1\r\nHost: api.test:{target}\r\n".encode())
            writer.write(b"Content-Length: 1000000\r\n\r\nhalf")
            writer.write_eof()
    await asyncio.sleep(0.01)
    writer.transport.abort()


@pytest.mark.full
async def test_hundreds_of_broken_connections_leave_the_proxy_as_it_was(plain: Upstream) -> None:
    egress = Egress(LOOPBACK, {"api.test": LOOPBACK}, Caps(head_seconds=5, idle_seconds=5))
    try:
        listener, port = await listening()
        patterns = [f"http://api.test:{plain.port}", f"https://api.test:{plain.port}"]
        session = await egress.open(patterns, listener, lambda line: None)
        assert b"200 OK" in await Door(port, Names()).send(get("api.test", plain.port))
        before = descriptors(egress.pid)
        for _ in range(10):
            await asyncio.gather(*(torment(port, plain.port, number) for number in range(60)))
        async with asyncio.timeout(300):
            assert b"200 OK" in await Door(port, Names()).send(get("api.test", plain.port))
            await eventually_async(lambda: descriptors(egress.pid) <= before)
        await session.close()
        await eventually_async(lambda: descriptors(egress.pid) < before)
    finally:
        await egress.close()


async def test_a_pattern_of_older_rules_is_refused_at_the_run() -> None:
    egress = Egress()
    listener, _ = await listening()
    with pytest.raises(EgressBroken, match="no way to the network"):
        await egress.open(["https://*"], listener, lambda line: None)
    assert egress.pid is None


def uid_of(pid: int | None) -> str:
    status = Path(f"/proc/{pid}/status").read_text()
    return next(line for line in status.splitlines() if line.startswith("Uid:")).split()[1]


def test_the_process_runs_as_nobody_if_the_server_is_root() -> None:
    async def uid() -> str:
        egress = Egress()
        listener, _ = await listening()
        session = await egress.open([], listener, lambda line: None)
        try:
            return await eventually_async(lambda: (found := uid_of(egress.pid)) != "0" and found)
        finally:
            await session.close()
            await egress.close()

    assert asyncio.run(uid()) == ("65534" if os.geteuid() == 0 else str(os.geteuid()))
