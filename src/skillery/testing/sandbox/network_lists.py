"""Runs with a network list: only the listed hosts can be reached. A refused server receives no byte."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from skillery.backends import Limits, Outcome
from skillery.testing.sandbox.loopback import printed, with_servers
from skillery.testing.sandbox.network import (
    ADDRESSES,
    CONTRADICTIONS,
    HERE,
    HOSTS,
    INSIDE,
    LOOKALIKES,
    PROBES,
    everything_at_one_port,
    visited,
)
from skillery.testing.sandbox.trial import OpenWith, SandboxCases, Trial, failure_type, value_of
from skillery.testing.upstreams import Upstream, ca_pem, redirect, upstream

TALK = """
import os, socket, ssl, urllib.error, urllib.parse, urllib.request
def proxy():
    found = urllib.parse.urlsplit(os.environ.get('http_proxy', ''))
    return found.hostname, found.port
def say(text):  # and all that comes back
    got = b''
    with socket.create_connection(proxy(), 300) as one:
        try:
            one.sendall(text.encode())
            while piece := one.recv(65536): got += piece
        except OSError: pass
    return got.decode('latin-1')
def get(host, port): return say(f'GET http://{host}:{port}/x HTTP/1.1\\r\\nHost: {host}:{port}\\r\\n\\r\\n')
def tunnel(host, port, name, ca):  # a request over TLS; what came of it
    context = ssl.create_default_context(cadata=ca)
    context.check_hostname = False
    with socket.create_connection(proxy(), 300) as one:
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


class AllowedNetworkCases(SandboxCases):
    """Cases of runs with a network list. All names, refused ones too, resolve to servers on loopback: a request that
    the sandbox lets through by mistake arrives there and is noticed.
    """

    @pytest.fixture
    async def reaching(self, open_with: OpenWith | None, tmp_path: Path) -> AsyncIterator[Trial]:
        """Yield a Trial whose sandbox resolves the names in HOSTS and may connect to loopback addresses. Skip the case
        if runs of the backend have no network.
        """
        async with opened(open_with, HOSTS, HERE, tmp_path) as trial:
            yield trial

    @pytest.fixture
    async def by_hand(self, reaching: Trial) -> Trial:
        """Return `reaching` for cases that write requests to the proxy by hand. Skip the case if the backend has no
        HTTP proxy.
        """
        return await with_proxy(reaching)

    @pytest.fixture
    def plain(self) -> Iterator[Upstream]:
        with upstream() as running:
            yield running

    @pytest.fixture
    def tls(self) -> Iterator[Upstream]:
        with upstream(tls=True) as running:
            yield running

    async def test_listed_hosts_are_reached_and_recorded(self, reaching: Trial, plain: Upstream, tls: Upstream) -> None:
        code = f"""{TALK}
def main(args):
    context = ssl.create_default_context(cadata=args['ca'])
    urls = ('http://A.api.test:{plain.port}/p', 'https://api.test:{tls.port}/t')
    return [urllib.request.urlopen(url, timeout=300, context=context).read().decode() for url in urls]
"""
        network = (f"http://*.api.test:{plain.port}", f"https://api.test:{tls.port}")
        outcome = await reaching.code(code, {"ca": ca_pem()}, network=network)
        assert value_of(outcome) == ["GET /p HTTP/1.1", "GET /t HTTP/1.1"]
        assert {(use.host, use.port, use.allowed) for use in outcome.network} == {
            ("a.api.test", plain.port, True),
            ("api.test", tls.port, True),
        }

    async def test_names_similar_to_listed_names_are_refused(self, by_hand: Trial, plain: Upstream) -> None:
        code = f"{TALK}\ndef main(args): return [get(host, {plain.port}) for host in args['hosts']]"
        outcome = await by_hand.code(code, {"hosts": LOOKALIKES}, network=(f"http://*.api.test:{plain.port}",))
        assert refused(outcome, plain) == len(LOOKALIKES)
        await self.is_reached(by_hand, plain)

    async def test_names_similar_to_listed_names_get_no_tunnel(self, by_hand: Trial, plain: Upstream) -> None:
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

    async def test_requests_with_contradictory_hosts_are_refused(self, by_hand: Trial, plain: Upstream) -> None:
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

    async def test_a_name_that_leads_inside_is_refused(
        self, open_with: OpenWith | None, plain: Upstream, tmp_path: Path
    ) -> None:
        """One private address among several is enough to refuse a name, unless the operator allows it."""
        names = {f"n{number}.api.test": kind for number, kind in enumerate(INSIDE)}
        hosts = {name: INSIDE[kind] for name, kind in names.items()}
        code = f"""{TALK}
def main(args):
    try: return urllib.request.urlopen(f'http://{{args["name"]}}:{plain.port}/', timeout=300).read().decode()
    except OSError: return 'refused'
"""
        wrong = {}
        async with opened(open_with, hosts, (), tmp_path) as trial:
            for name, kind in names.items():
                outcome = await trial.code(code, {"name": name}, network=(f"http://{name}:{plain.port}",))
                seen = (value_of(outcome), [use.allowed for use in outcome.network], plain.connections)
                if seen != ("refused", [False], 0) or plain.received:
                    wrong[kind] = seen
        assert wrong == {}

    async def test_a_redirect_leads_nowhere_else(self, reaching: Trial, plain: Upstream) -> None:
        with upstream(answer=redirect(f"http://evil.test:{plain.port}/stolen")) as first:
            code = f"""{TALK}
def main(args):
    return tried(lambda: urllib.request.urlopen('http://a.api.test:{first.port}/', timeout=300).read().decode())
"""
            outcome = await reaching.code(code, network=(f"http://a.api.test:{first.port}",))
            assert value_of(outcome) == "HTTPError"
            assert first.connections == 1
        assert [use.allowed for use in outcome.network] == [True, False]
        assert (plain.connections, bytes(plain.received)) == (0, b"")

    async def test_the_proxy_is_the_only_route_to_the_network(self, reaching: Trial) -> None:
        with everything_at_one_port() as (port, servers):
            code = f"{PROBES}\ndef main(args): return unreachable(args['port'])"
            reached = await reaching.value(code, {"port": port}, network=(f"http://a.api.test:{port}",))
            assert reached == []
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
        results = await asyncio.gather(*(by_hand.value(code, network=network) for network in lists))
        assert results == [[True, False], [False, True], "no proxy"]
        assert plain.connections == 2

    async def test_own_server_and_listed_hosts_are_reached_together(self, by_hand: Trial, plain: Upstream) -> None:
        code = f"""
import os, urllib.error, urllib.parse
def status(url):
    try: return urllib.request.urlopen(url).status
    except urllib.error.HTTPError as error: return error.code
def bound():
    with socket.socket() as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        one.bind(('127.0.0.1', urllib.parse.urlsplit(os.environ['http_proxy']).port))
        one.listen()
print(json.dumps([
    status(f'http://localhost:{{serve(0)}}/'), status('http://a.api.test:{plain.port}/'),
    status('http://b.other.test:{plain.port}/'), name_of(bound),
    name_of(lambda: socket.create_connection(('127.0.0.1', {plain.port}))),
    name_of(lambda: socket.create_connection(('10.0.0.1', 80))),
]))
"""
        seen = await printed(with_servers(by_hand), code, network=(f"http://a.api.test:{plain.port}",))
        assert seen == [200, 200, 403, "EADDRINUSE", "ECONNREFUSED", "ENETUNREACH"]
        assert plain.connections == 1

    async def test_connections_that_never_end_end_with_the_run(self, by_hand: Trial) -> None:
        with upstream(until=b"never") as endless:
            code = f"""{TALK}
import time
def main(args):
    kept = []
    for number in range(300):
        one = socket.create_connection(proxy(), 300)
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
    """Open a backend with these names and their addresses, and yield its Trial. `allow_private` lists private networks
    that runs may reach.
    """
    if open_with is None:
        pytest.skip("runs of this backend have no network: `open_with` is not overridden")
    sandbox = await open_with(hosts, allow_private)
    try:
        trial = Trial(sandbox, folder)
        yield trial
        await trial.is_well()
    finally:
        await sandbox.close()


async def with_proxy(reaching: Trial) -> Trial:
    """Return the same Trial, if the backend gives access through an HTTP proxy. Otherwise skip the case."""
    proxy = await reaching.value(f"{TALK}\ndef main(args): return proxy()[1]", network=("http://a.api.test",))
    if proxy is None:
        pytest.skip("this backend has no HTTP proxy that a case could call directly")
    return reaching


def refused(outcome: Outcome, *servers: Upstream) -> int:
    """Return the number of requests of the run. Check that none was allowed, answered with 200, or received by a
    server.
    """
    tries: list[str] = value_of(outcome)
    assert [text for text in tries if text.startswith("HTTP/1.1 200 OK")] == []
    assert [use for use in outcome.network if use.allowed or use.bytes_in or use.bytes_out] == []
    assert [(server.connections, bytes(server.received)) for server in servers] == [(0, b"")] * len(servers)
    return len(tries)
