"""Network access: none without a list, and with a list only the named hosts. A refused server receives no byte."""

# ruff: noqa: S104 - no server binds to these addresses

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from skillery.backends import Limits, Outcome
from skillery.testing.sandbox.base import OpenWith, SandboxCases
from skillery.testing.sandbox.trial import Trial, failure_type, value_of
from skillery.testing.upstreams import Upstream, ca_pem, redirect, upstream

HERE = ("127.0.0.1",)
LOOKALIKES = (
    "api.test",
    "evilapi.test",
    "a.api.test.evil.test",
    "a.api.test..",
    "a..api.test",
    ".api.test",
    "*.api.test",
    "evil.test/.api.test",
    "evil.test#.api.test",
    "evil.test?.api.test",
    "evil.test\\.api.test",
    "evil.test\0.api.test",
    "evil.test%00.api.test",
    "evil.test%2e.api.test",
    "a%2eapi.test",
    "a.api.test@evil.test",
    "evil.test@a.api.test",
    "а.api.test",
    "a.api。test",
    "evil.test\t.api.test",
    "a_b.api.test",
    "a" * 64 + ".api.test",
)
"""Names that are not below `api.test`, or are not valid."""
ADDRESSES = (
    "127.0.0.1",
    "127.0.0.1.",
    "127.1",
    "2130706433",
    "0x7f000001",
    "0x7f.1",
    "0177.0.0.1",
    "017700000001",
    "0",
    "0.0.0.0",
    "[::1]",
    "[::]",
    "[::ffff:127.0.0.1]",
    "[::ffff:7f00:1]",
    "[::127.0.0.1]",
    "[64:ff9b::7f00:1]",
    "[::1%25lo]",
    "localhost",
)
INSIDE = {
    "loopback": HERE,
    "loopback of version 6": ("::1",),
    "a public address before it": ("8.8.8.8", "127.0.0.1"),
    "a public address behind it": ("127.0.0.1", "8.8.8.8"),
    "translated": ("64:ff9b::7f00:1",),
    "mapped": ("::ffff:127.0.0.1",),
    "the unspecified address": ("0.0.0.0",),
    "link-local": ("169.254.169.254",),
    "private": ("10.0.0.1", "172.16.0.1", "192.168.0.1"),
}
HOSTS: dict[str, tuple[str, ...]] = {
    **{name.removesuffix("."): HERE for name in (*LOOKALIKES, *ADDRESSES) if name.isascii() and name.isprintable()},
    **dict.fromkeys(("a.api.test", "b.api.test", "other.test", "evil.test"), HERE),
}
# Requests written by hand, with contradictory targets. {port} is the allowed port, {other} is another port.
CONTRADICTIONS = {
    "another port": "GET http://a.api.test:{other}/ HTTP/1.1\r\nHost: a.api.test:{other}\r\n\r\n",
    "no port": "GET http://a.api.test/ HTTP/1.1\r\nHost: a.api.test\r\n\r\n",
    "another scheme": "CONNECT a.api.test:{port} HTTP/1.1\r\nHost: a.api.test:{port}\r\n\r\n",
    "another Host": "GET http://a.api.test:{port}/ HTTP/1.1\r\nHost: evil.test:{port}\r\n\r\n",
    "two Hosts": "GET http://a.api.test:{port}/ HTTP/1.1\r\nHost: a.api.test:{port}\r\nHost: evil.test\r\n\r\n",
    "no Host": "GET http://a.api.test:{port}/ HTTP/1.1\r\n\r\n",
    "only a Host": "GET / HTTP/1.1\r\nHost: a.api.test:{port}\r\n\r\n",
    "a user": "GET http://evil.test@a.api.test:{port}/ HTTP/1.1\r\nHost: a.api.test:{port}\r\n\r\n",
    "two lengths": "POST http://a.api.test:{port}/ HTTP/1.1\r\nHost: a.api.test:{port}\r\nContent-Length: 3\r\n"
    "Content-Length: 30\r\n\r\nabc",
    "a length and chunks": "POST http://a.api.test:{port}/ HTTP/1.1\r\nHost: a.api.test:{port}\r\nContent-Length: 3\r\n"
    "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET http://evil.test/ HTTP/1.1\r\n\r\n",
    "an odd coding": "POST http://a.api.test:{port}/ HTTP/1.1\r\nHost: a.api.test:{port}\r\n"
    "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    "a folded line": "GET http://a.api.test:{port}/ HTTP/1.1\r\nHost: a.api.test:{port}\r\n evil.test\r\n\r\n",
    "bare line feeds": "GET http://a.api.test:{port}/ HTTP/1.1\nHost: a.api.test:{port}\n\n\r\n\r\n",
    "no HTTP": "\x16\x03\x01\x00\x05hello\r\n\r\n",
}
TALK = """
import os, socket, ssl, urllib.error, urllib.parse, urllib.request
def proxy():
    found = urllib.parse.urlsplit(os.environ.get('http_proxy', ''))
    return found.hostname, found.port
def say(text):  # and all that comes back
    got = b''
    with socket.create_connection(proxy(), 5) as one:
        try:
            one.sendall(text.encode())
            while piece := one.recv(65536): got += piece
        except OSError: pass
    return got.decode('latin-1')
def get(host, port): return say(f'GET http://{host}:{port}/x HTTP/1.1\\r\\nHost: {host}:{port}\\r\\n\\r\\n')
def tunnel(host, port, name, ca):  # a request over TLS; what came of it
    context = ssl.create_default_context(cadata=ca)
    context.check_hostname = False
    with socket.create_connection(proxy(), 5) as one:
        try:
            one.sendall(f'CONNECT {host}:{port} HTTP/1.1\\r\\nHost: {host}:{port}\\r\\n\\r\\n'.encode())
            answer = one.recv(4096)
            if b' 200 ' not in answer: return answer.decode('latin-1')
            with context.wrap_socket(one, server_hostname=name) as inner:
                inner.sendall(b'GET /t HTTP/1.1\\r\\n\\r\\n')
                return inner.recv(4096).decode('latin-1')
        except OSError as error: return type(error).__name__
def tried(act):
    try: return act()
    except OSError as error: return type(error).__name__
"""
PROBES = """
import os, socket, urllib.request
def tried(act):
    try: act()
    except OSError: return True
    return False
def stream(address, family=socket.AF_INET):
    with socket.socket(family) as one:
        one.settimeout(2)
        one.connect(address)
        one.sendall(b'x')
def datagram(address, family=socket.AF_INET):
    with socket.socket(family, socket.SOCK_DGRAM) as one: one.sendto(b'x', address)
def ping(kind):
    with socket.socket(socket.AF_INET, kind, socket.IPPROTO_ICMP) as one: one.sendto(bytes(8), ('127.0.0.1', 0))
def unreachable(port):
    ways = dict(
        loopback=lambda: stream(('127.0.0.1', port)),
        loopback6=lambda: stream(('::1', port), socket.AF_INET6),
        any=lambda: stream(('0.0.0.0', port)),
        private=lambda: stream(('10.0.0.1', 80)),
        metadata=lambda: stream(('169.254.169.254', 80)),
        public=lambda: stream(('192.0.2.1', 443)),
        public6=lambda: stream(('2001:db8::1', 443), socket.AF_INET6),
        udp=lambda: datagram(('127.0.0.1', port)),
        udp6=lambda: datagram(('::1', port), socket.AF_INET6),
        dns=lambda: datagram(('1.1.1.1', 53)),
        multicast=lambda: datagram(('224.0.0.251', 5353)),
        names=lambda: socket.getaddrinfo('example.com', 80),
        ping=lambda: ping(socket.SOCK_DGRAM),
        icmp=lambda: ping(socket.SOCK_RAW),
    )
    return [name for name, way in ways.items() if not tried(way)]
"""


@contextlib.contextmanager
def everything_at_one_port() -> Iterator[tuple[int, list[socket.socket]]]:
    """Yield a port and servers on it that never answer: TCP and UDP, on the IPv4 and IPv6 loopback addresses."""
    with contextlib.ExitStack() as stack:
        first = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        port: int = first.getsockname()[1]
        opened = [first]
        for family, kind, address in (
            (socket.AF_INET, socket.SOCK_DGRAM, "127.0.0.1"),
            (socket.AF_INET6, socket.SOCK_STREAM, "::1"),
            (socket.AF_INET6, socket.SOCK_DGRAM, "::1"),
        ):
            one = stack.enter_context(socket.socket(family, kind))
            with contextlib.suppress(OSError):  # a machine without IPv6
                one.bind((address, port))
                if kind == socket.SOCK_STREAM:
                    one.listen()
                opened.append(one)
        yield port, opened


def visited(servers: list[socket.socket]) -> list[str]:
    """Return the servers that received a connection or a datagram."""
    found = []
    for server in servers:
        server.setblocking(False)
        try:
            if server.type == socket.SOCK_DGRAM:
                server.recv(1)
            else:
                server.accept()[0].close()
        except BlockingIOError:
            continue
        found.append(f"{server.family.name} {server.type.name}")
    return found


class NetworkCases(SandboxCases):
    """Runs without a network list."""

    async def test_the_host_cannot_be_reached(self, trial: Trial) -> None:
        with everything_at_one_port() as (port, servers):
            code = f"{PROBES}\ndef main(args): return unreachable(args['port'])"
            assert await trial.value(code, {"port": port}) == []
            assert visited(servers) == []

    async def test_no_socket_gets_a_name(self, trial: Trial) -> None:
        """The server created the channel, so a name for the channel would be a name on the host."""
        code = """
        import os, socket
        def named(one, name):
            try: one.bind(name)
            except OSError: return False
            finally: one.detach()
            return True
        def open_sockets():
            for number in range(64):
                try: yield socket.socket(fileno=os.dup(number))
                except OSError: pass
        def main(args):
            pair = socket.socketpair()
            return [one.fileno() for one in [*open_sockets(), *pair] if named(one, args + str(one.fileno()))]
        """
        assert await trial.value(code, f"\0skillery-{os.getpid()}-") == []

    async def test_sockets_of_the_host_cannot_be_reached_by_name(self, trial: Trial, tmp_path: Path) -> None:
        """A run reaches no socket of the host by name: no abstract socket, and no socket in a mounted folder."""
        skill = trial.skill("talks", {"code/main.py": "def main(args): pass"})
        code = """
        import socket
        def reached(act):
            try: act()
            except OSError: return False
            return True
        def send(one, name): one.sendto(b'x', name)
        def pair(): return socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)[0]
        def main(args):
            for name in args['names']:
                yield reached(lambda: socket.socket(socket.AF_UNIX).connect(name))
                yield reached(lambda: send(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM), name))
                yield reached(lambda: send(pair(), name))
        reach = main
        def main(args): return any(list(reach(args)))
        """
        with contextlib.ExitStack() as stack:
            servers, names = [], []
            for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
                for at, seen in (
                    (f"\0skillery-{os.getpid()}-{kind}", f"\0skillery-{os.getpid()}-{kind}"),
                    (str(skill.folder / f"socket-{kind:d}"), f"/skills/talks/socket-{kind:d}"),
                ):
                    server = stack.enter_context(socket.socket(socket.AF_UNIX, kind))
                    server.bind(at)
                    if kind == socket.SOCK_STREAM:
                        server.listen()
                    servers.append(server)
                    names.append(seen)
            for path in skill.folder.glob("socket-*"):
                path.chmod(0o777)
            assert await trial.value(code, {"names": names}, skills=(skill,)) is False
            assert visited(servers) == []

    @pytest.mark.parametrize("family", [0, 3, 16, 17, 29, 38, 40, 44])
    async def test_rare_socket_families_are_refused(self, trial: Trial, family: int) -> None:
        code = "import socket\ndef main(args): socket.socket(args['f'], 3, 0)"
        outcome = await trial.code(code, {"f": family})
        assert outcome.failure is not None
        assert outcome.failure.type in {"OSError", "PermissionError"}

    async def test_socket_pairs_work(self, trial: Trial) -> None:
        code = """
        import socket
        def main(args):
            a, b = socket.socketpair()
            a.send(b'x')
            return b.recv(1).decode()
        """
        assert await trial.value(code) == "x"


class AllowedNetworkCases(SandboxCases):
    """Runs with a network list.

    All names lead to servers on loopback, including refused names, so that a request that is let through by mistake
    arrives and is seen.
    """

    @pytest.fixture
    async def reaching(self, open_with: OpenWith | None, tmp_path: Path) -> AsyncIterator[Trial]:
        """Yield a Trial for a backend that knows the names and may dial loopback."""
        async with opened(open_with, HOSTS, HERE, tmp_path) as trial:
            yield trial

    @pytest.fixture
    async def by_hand(self, reaching: Trial) -> Trial:
        """Return the same Trial, if the backend gives access through an HTTP proxy."""
        found = await reaching.value(f"{TALK}\ndef main(args): return proxy()[1]", network=("http://a.api.test",))
        if found is None:
            pytest.skip("this backend has no HTTP proxy that a case could call directly")
        return reaching

    @pytest.fixture
    def plain(self) -> Iterator[Upstream]:
        with upstream() as running:
            yield running

    @pytest.fixture
    def tls(self) -> Iterator[Upstream]:
        with upstream(tls=True) as running:
            yield running

    async def test_what_is_listed_is_reached_and_recorded(
        self, reaching: Trial, plain: Upstream, tls: Upstream
    ) -> None:
        code = f"""{TALK}
def main(args):
    context = ssl.create_default_context(cadata=args['ca'])
    urls = ('http://A.api.test:{plain.port}/p', 'https://api.test:{tls.port}/t')
    return [urllib.request.urlopen(url, timeout=20, context=context).read().decode() for url in urls]
"""
        network = (f"http://*.api.test:{plain.port}", f"https://api.test:{tls.port}")
        outcome = await reaching.code(code, {"ca": ca_pem()}, network=network)
        assert value_of(outcome) == ["GET /p HTTP/1.1", "GET /t HTTP/1.1"]
        assert {(use.host, use.port, use.allowed) for use in outcome.network} == {
            ("a.api.test", plain.port, True),
            ("api.test", tls.port, True),
        }

    async def test_what_only_looks_like_a_listed_name_is_refused(self, by_hand: Trial, plain: Upstream) -> None:
        code = f"{TALK}\ndef main(args): return [get(host, {plain.port}) for host in args['hosts']]"
        outcome = await by_hand.code(code, {"hosts": LOOKALIKES}, network=(f"http://*.api.test:{plain.port}",))
        assert refused(outcome, plain) == len(LOOKALIKES)
        await self.is_reached(by_hand, plain)

    async def test_what_only_looks_like_a_listed_name_gets_no_tunnel(self, by_hand: Trial, plain: Upstream) -> None:
        code = (
            f"{TALK}\ndef main(args):"
            f" return [tunnel(host, {plain.port}, 'a.api.test', args['ca']) for host in args['hosts']]"
        )
        args = {"hosts": LOOKALIKES, "ca": ca_pem()}
        outcome = await by_hand.code(code, args, network=(f"https://*.api.test:{plain.port}",))
        assert refused(outcome, plain) == len(LOOKALIKES)

    async def test_an_address_is_refused_however_it_is_spelt(self, by_hand: Trial, plain: Upstream) -> None:
        code = f"{TALK}\ndef main(args): return [get(host, {plain.port}) for host in args['hosts']]"
        network = (f"http://*.api.test:{plain.port}", f"http://api.test:{plain.port}")
        outcome = await by_hand.code(code, {"hosts": ADDRESSES}, network=network)
        assert refused(outcome, plain) == len(ADDRESSES)
        await self.is_reached(by_hand, plain)

    async def test_requests_that_are_not_what_they_say_are_refused(self, by_hand: Trial, plain: Upstream) -> None:
        with upstream() as other:
            texts = [
                text.replace("{port}", str(plain.port)).replace("{other}", str(other.port))
                for text in CONTRADICTIONS.values()
            ]
            code = f"{TALK}\ndef main(args): return [say(text) for text in args['texts']]"
            outcome = await by_hand.code(code, {"texts": texts}, network=(f"http://a.api.test:{plain.port}",))
            assert refused(outcome, plain, other) == len(CONTRADICTIONS)
        await self.is_reached(by_hand, plain)

    async def test_in_a_tunnel_goes_nothing_but_tls_for_its_host(self, by_hand: Trial, plain: Upstream) -> None:
        code = f"""{TALK}
def main(args):
    hello = 'CONNECT a.api.test:{plain.port} HTTP/1.1\\r\\n\\r\\n'
    found = [tunnel('a.api.test', {plain.port}, name, args['ca']) for name in ('b.api.test', 'other.test', None)]
    found += [say(hello + said) for said in ('GET / HTTP/1.1\\r\\nHost: a.api.test\\r\\n\\r\\n', 'SSH-2.0-x\\r\\n')]
    return found
"""
        outcome = await by_hand.code(code, {"ca": ca_pem()}, network=(f"https://*.api.test:{plain.port}",))
        assert refused(outcome) == 5
        assert plain.received == b""  # a connection is allowed here, but no byte

    @pytest.mark.parametrize("way", INSIDE)
    async def test_a_name_that_leads_inside_is_refused(
        self, open_with: OpenWith | None, plain: Upstream, way: str, tmp_path: Path
    ) -> None:
        """One private address among several is enough to refuse a name, unless the operator allows it."""
        async with opened(open_with, {"api.test": INSIDE[way]}, (), tmp_path) as trial:
            code = f"""{TALK}
def main(args):
    try: return urllib.request.urlopen('http://api.test:{plain.port}/', timeout=20).read().decode()
    except OSError: return 'refused'
"""
            outcome = await trial.code(code, network=(f"http://api.test:{plain.port}",))
            assert value_of(outcome) == "refused"
            assert [use.allowed for use in outcome.network] == [False]
            assert (plain.connections, bytes(plain.received)) == (0, b"")

    async def test_a_redirect_leads_nowhere_else(self, reaching: Trial, plain: Upstream) -> None:
        with upstream(answer=redirect(f"http://evil.test:{plain.port}/stolen")) as first:
            code = f"""{TALK}
def main(args):
    return tried(lambda: urllib.request.urlopen('http://a.api.test:{first.port}/', timeout=20).read().decode())
"""
            outcome = await reaching.code(code, network=(f"http://a.api.test:{first.port}",))
            assert value_of(outcome) == "HTTPError"
            assert first.connections == 1
        assert [use.allowed for use in outcome.network] == [True, False]
        assert (plain.connections, bytes(plain.received)) == (0, b"")

    async def test_there_is_no_other_way_than_the_one_that_was_given(self, reaching: Trial) -> None:
        with everything_at_one_port() as (port, servers):
            code = f"{PROBES}\ndef main(args): return unreachable(args['port'])"
            found = await reaching.value(code, {"port": port}, network=(f"http://a.api.test:{port}",))
            assert found == []
            assert visited(servers) == []

    async def test_the_code_cannot_listen_on_a_port(self, by_hand: Trial) -> None:
        """The code cannot listen on the port of the proxy, nor on any other port."""
        code = f"""{TALK}
def bound(port):
    with socket.socket() as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        one.bind(('127.0.0.1', port))
        one.listen()
def main(args):
    return [tried(lambda: bound(port)) for port in (proxy()[1], 8080)]
"""
        assert None not in await by_hand.value(code, network=("http://a.api.test",))

    async def test_runs_at_the_same_time_have_lists_of_their_own(self, by_hand: Trial, plain: Upstream) -> None:
        code = f"""{TALK}
def main(args):
    if not proxy()[1]: return 'no proxy'
    return [' 200 ' in get(host, {plain.port})[:16] for host in ('a.api.test', 'b.api.test')]
"""
        lists = ((f"http://a.api.test:{plain.port}",), (f"http://b.api.test:{plain.port}",), ())
        found = await asyncio.gather(*(by_hand.value(code, network=network) for network in lists))
        assert found == [[True, False], [False, True], "no proxy"]
        assert plain.connections == 2

    async def test_connections_that_never_end_end_with_the_run(self, by_hand: Trial) -> None:
        with upstream(until=b"never") as endless:
            code = f"""{TALK}
import time
def main(args):
    kept = []
    for number in range(300):
        one = socket.create_connection(proxy(), 5)
        one.setblocking(False)
        try: one.send(b'GET http://a.api.test:{endless.port}/ HTTP/1.1\\r\\nHost: a.api.test:{endless.port}\\r\\n'
                      + b'\\r\\n' * (number % 2))
        except OSError: pass
        kept.append(one)
    time.sleep(1e6)
"""
            limits = Limits(timeout_ms=1_500)
            network = (f"http://a.api.test:{endless.port}",)
            assert failure_type(await by_hand.code(code, network=network, limits=limits)) in {"TimeoutError", "OSError"}
            assert endless.connections < 300

    async def is_reached(self, trial: Trial, server: Upstream) -> None:
        """Check that an allowed request works, so that refusals are not caused by a broken network."""
        code = f"{TALK}\ndef main(args): return get('a.api.test', {server.port})"
        assert " 200 " in (await trial.value(code, network=(f"http://*.api.test:{server.port}",)))[:16]


@contextlib.asynccontextmanager
async def opened(
    open_with: OpenWith | None, hosts: dict[str, tuple[str, ...]], allow_private: tuple[str, ...], folder: Path
) -> AsyncIterator[Trial]:
    if open_with is None:
        pytest.skip("runs of this backend have no network: `open_with` is not overridden")
    sandbox = await open_with(hosts, allow_private)
    try:
        trial = Trial(sandbox, folder)
        yield trial
        await trial.is_well()
    finally:
        await sandbox.close()


def refused(outcome: Outcome, *servers: Upstream) -> int:
    """Return the number of attempts. Check that none was allowed, answered with 200, or received by a server."""
    tries: list[str] = value_of(outcome)
    assert [text for text in tries if text.startswith("HTTP/1.1 200 OK")] == []
    assert [use for use in outcome.network if use.allowed or use.bytes_in or use.bytes_out] == []
    assert [(server.connections, bytes(server.received)) for server in servers] == [(0, b"")] * len(servers)
    return len(tries)
