"""Runs without a network list: no network access. A server that the code tries to reach receives no byte."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from skillery.testing.sandbox.trial import SandboxCases, Trial

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
        tcp_server = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        port: int = tcp_server.getsockname()[1]
        servers = [tcp_server]
        for family, kind, address in (
            (socket.AF_INET, socket.SOCK_DGRAM, "127.0.0.1"),
            (socket.AF_INET6, socket.SOCK_STREAM, "::1"),
            (socket.AF_INET6, socket.SOCK_DGRAM, "::1"),
        ):
            server = stack.enter_context(socket.socket(family, kind))
            with contextlib.suppress(OSError):  # a machine without IPv6
                server.bind((address, port))
                if kind == socket.SOCK_STREAM:
                    server.listen()
                servers.append(server)
        yield port, servers


def visited(servers: list[socket.socket]) -> list[str]:
    """Return the servers that received a connection or a datagram."""
    names = []
    for server in servers:
        server.setblocking(False)
        try:
            if server.type == socket.SOCK_DGRAM:
                server.recv(1)
            else:
                server.accept()[0].close()
        except BlockingIOError:
            continue
        names.append(f"{server.family.name} {server.type.name}")
    return names


class NetworkCases(SandboxCases):
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


# -- Targets that a run with a network list must not reach: names, addresses, and requests that name two targets -------


# ruff: noqa: S104 - no server binds to these addresses


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
