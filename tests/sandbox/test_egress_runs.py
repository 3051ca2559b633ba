"""Runs with network access in the real sandbox, through the real proxy, to servers on loopback."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from cellblock.egress.listeners import ENVIRONMENT
from cellblock.inside import kernel
from skillery.backends import CodeCall, Job, Language, Limits, NetworkUse, Outcome, Place
from skillery.builtin.linux_sandbox import LinuxSandboxSettings, open_sandbox
from skillery.builtin.linux_sandbox.sandbox import LinuxSandbox
from skillery.errors import StartupError
from skillery.testing.sandbox import MemoryHost, Trial
from skillery.testing.sandbox.leftovers import assert_none_since, traces
from skillery.testing.sandbox.trial import log_of, value_of
from skillery.testing.upstreams import Upstream, ca_pem, redirect, upstream
from tests.conftest import Server, publisher
from tests.support.processes import eventually_async

NAMES = ("api.test", "a.api.test", "b.api.test", "other.test", "evil.test")
TESTS = Path(__file__).parents[1]
HOSTS: dict[str, tuple[str, ...]] = dict.fromkeys(NAMES, ("127.0.0.1",))
OPEN = LinuxSandboxSettings(allow_private=("127.0.0.1",), hosts=HOSTS)
in_module = pytest.mark.asyncio(loop_scope="module")
FETCH = """
import urllib.request, ssl
def fetch(url, ca=None):
    context = ssl.create_default_context(cadata=ca) if ca else None
    return urllib.request.urlopen(url, timeout=300, context=context).read().decode()
"""


class Runs:
    """Runs code as a skill that may reach `network`."""

    def __init__(self, sandbox: LinuxSandbox) -> None:
        self.sandbox = sandbox

    async def __call__(
        self, code: str, *network: str, args: dict[str, Any] | None = None, timeout_ms: int = 60_000
    ) -> Outcome:
        call = CodeCall(FETCH + textwrap.dedent(code), "main")
        limits = Limits(timeout_ms=timeout_ms, memory_mb=256)
        job = Job("run_1", call, json.dumps(args or {}).encode(), limits=limits, network=network)
        return await self.sandbox.run(job, MemoryHost())

    async def value(self, code: str, *network: str, args: dict[str, Any] | None = None) -> Any:
        return value_of(await self(code, *network, args=args))


async def opened(settings: LinuxSandboxSettings, folder: Path) -> LinuxSandbox:
    sandbox = open_sandbox(settings, Place(folder))
    await sandbox.start()
    return sandbox


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[tuple[LinuxSandbox, frozenset[int]]]:
    """Yield a sandbox, and the processes that do not belong to it."""
    others = traces(with_groups=False).processes
    sandbox = await opened(OPEN, tmp_path_factory.mktemp("sandbox"))
    yield sandbox, others
    await sandbox.close()


@pytest_asyncio.fixture(loop_scope="module")
async def runs(shared: tuple[LinuxSandbox, frozenset[int]], tmp_path: Path) -> AsyncIterator[Runs]:
    """Yield a sandbox whose proxy is running. Fail if processes or files are left after the test."""
    sandbox, others = shared
    runs = Runs(sandbox)
    await runs.value("def main(args): pass", "http://api.test")
    before = traces(others, with_groups=False)
    yield runs
    await Trial(sandbox, tmp_path).is_well()
    await assert_none_since(before)


@pytest.fixture
def plain() -> Iterator[Upstream]:
    with upstream() as running:
        yield running


@pytest.fixture
def tls() -> Iterator[Upstream]:
    with upstream(tls=True) as running:
        yield running


def refused(outcome: Outcome) -> NetworkUse:
    [use] = outcome.network
    assert (use.allowed, use.bytes_out, use.bytes_in) == (False, 0, 0)
    return use


@in_module
async def test_code_reaches_an_allowed_host_over_http(runs: Runs, plain: Upstream) -> None:
    outcome = await runs(
        f"def main(args): return fetch('http://API.test:{plain.port}/x')", f"http://api.test:{plain.port}"
    )

    assert value_of(outcome) == "GET /x HTTP/1.1"
    [use] = outcome.network
    assert (use.host, use.port, use.allowed, use.connections) == ("api.test", plain.port, True, 1)
    assert use.bytes_out == len(plain.received)
    assert outcome.log.head == b""


@in_module
async def test_code_reaches_an_allowed_host_over_tls_end_to_end(runs: Runs, tls: Upstream) -> None:
    outcome = await runs(
        f"def main(args): return fetch('https://a.api.test:{tls.port}/t', args['ca'])",
        f"https://*.api.test:{tls.port}",
        args={"ca": ca_pem()},
    )

    assert value_of(outcome) == "GET /t HTTP/1.1"
    [use] = outcome.network
    assert use.reason == f"https://*.api.test:{tls.port}"
    assert tls.received.startswith(b"GET /t HTTP/1.1\r\n")


@pytest.mark.skipif(shutil.which("node") is None, reason="this host has no Node.js")
@in_module
async def test_node_and_bash_reach_hosts_only_through_proxy(runs: Runs, plain: Upstream) -> None:
    node = """
    import http from "node:http";
    const proxy = new URL(process.env.HTTP_PROXY);
    const get = (path) => new Promise((resolve, reject) => {
      const headers = { host: new URL(path).host };
      http.get({ host: proxy.hostname, port: proxy.port, path, headers }, async (answer) => {
        let text = "";
        for await (const piece of answer) text += piece;
        resolve([answer.statusCode, text]);
      }).on("error", reject);
    });
    export const main = async (args) => [
      process.env.NODE_USE_ENV_PROXY, await get(args.allowed), (await get(args.other))[0],
    ];
    """
    bash = """
    read -r args
    exec 9<>/dev/tcp/127.0.0.1/3128
    url=$(grep -o 'http://api[^"]*' <<< "$args"); host=${url#http://}
    printf 'GET %s HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n' "$url" "${host%%/*}" >&9
    tail -n 1 <&9
    { : > /dev/tcp/127.0.0.1/PORT; } 2> /dev/null && echo reached
    true
    """.replace("PORT", str(plain.port))
    base = f"http://api.test:{plain.port}"
    args = json.dumps({"allowed": f"{base}/x", "other": f"http://evil.test:{plain.port}/"}).encode()

    async def ran(code: str, language: Language) -> Any:
        job = Job("run_1", CodeCall(textwrap.dedent(code), "main", language), args, network=(base,))
        return value_of(await runs.sandbox.run(job, MemoryHost()))

    assert await ran(node, "javascript") == ["1", [200, "GET /x HTTP/1.1"], 403]
    assert await ran(bash, "bash") == "GET /x HTTP/1.1"


@pytest.mark.skipif(not Path("/usr/bin/curl").exists(), reason="this host has no curl")
@in_module
async def test_curl_uses_proxy_of_run(runs: Runs, plain: Upstream, tls: Upstream) -> None:
    code = f"""
    import subprocess, pathlib
    def curl(*words):
        done = subprocess.run(['curl', '-sS', '--max-time', '20', *words], capture_output=True, text=True)
        return [done.returncode, done.stdout, done.stderr]
    def main(args):
        pathlib.Path('ca.pem').write_text(args['ca'])
        return [
            curl('http://api.test:{plain.port}/c'),
            curl('--cacert', 'ca.pem', 'https://api.test:{tls.port}/c'),
            curl('-d', 'x' * 100000, 'http://api.test:{plain.port}/post'),
            curl('http://evil.test:{plain.port}/'),
            curl('https://evil.test:{tls.port}/'),
        ]
    """
    outcome = await runs(code, f"http://api.test:{plain.port}", f"https://api.test:{tls.port}", args={"ca": ca_pem()})

    over_http, over_tls, posted, refused_http, refused_tls = value_of(outcome)
    assert over_http[:2] == [0, "GET /c HTTP/1.1"]
    assert over_tls[:2] == [0, "GET /c HTTP/1.1"], over_tls
    assert posted[1] == "POST /post HTTP/1.1"
    assert f'"http://evil.test:{plain.port}" in permissions.network of skill.toml would allow it' in refused_http[1]
    assert refused_tls[0] != 0
    assert "403" in refused_tls[2]


@in_module
async def test_a_refusal_tells_the_code_the_log_and_the_record(runs: Runs, plain: Upstream) -> None:
    code = f"""
    import urllib.error
    def main(args):
        try:
            return fetch('http://evil.test:{plain.port}/')
        except urllib.error.HTTPError as error:
            return [error.code, error.reason, error.read().decode()]
    """
    outcome = await runs(code, f"http://api.test:{plain.port}")

    status, reason, body = value_of(outcome)
    says = f"http://evil.test:{plain.port} is not in permissions.network of this skill"
    advice = f'"http://evil.test:{plain.port}" in permissions.network of skill.toml would allow it'
    assert status == 403
    assert says in body
    assert advice in body
    assert says in reason
    assert log_of(outcome) == f"network: {says}; {advice}\n"
    assert refused(outcome).host == "evil.test"
    assert plain.connections == 0


@in_module
async def test_run_error_shows_missing_permission_after_uncaught_refusal(runs: Runs) -> None:
    outcome = await runs("def main(args): return fetch('https://evil.test/')", "https://api.test")

    assert outcome.failure is not None
    assert outcome.failure.type == "URLError"
    assert '"https://evil.test" in permissions.network of skill.toml would allow it' in outcome.failure.message


@in_module
async def test_a_redirect_to_a_host_that_is_not_allowed_is_refused(runs: Runs, plain: Upstream) -> None:
    with upstream(answer=redirect(f"http://evil.test:{plain.port}/stolen")) as redirecting:
        outcome = await runs(
            f"def main(args): return fetch('http://api.test:{redirecting.port}/')",
            f"http://api.test:{redirecting.port}",
        )
    assert outcome.failure is not None
    assert outcome.failure.type == "HTTPError"
    assert [use.allowed for use in outcome.network] == [True, False]
    assert plain.connections == 0


@in_module
async def test_tls_for_another_name_than_the_tunnels_is_refused(runs: Runs, tls: Upstream) -> None:
    code = f"""
    import socket, ssl
    def main(args):
        raw = socket.create_connection(('127.0.0.1', 3128))
        raw.sendall(b'CONNECT a.api.test:{tls.port} HTTP/1.1\\r\\n\\r\\n')
        assert b' 200 ' in raw.recv(4096)
        context = ssl.create_default_context(cadata=args['ca'])
        try:
            context.wrap_socket(raw, server_hostname='other.test')
        except (ssl.SSLError, OSError) as error:
            return type(error).__name__
    """
    outcome = await runs(code, f"https://*.api.test:{tls.port}", args={"ca": ca_pem()})
    assert value_of(outcome) in {"SSLError", "ConnectionResetError"}
    assert "'other.test'" in refused(outcome).reason
    assert tls.received == b""


@in_module
async def test_without_a_list_there_is_no_proxy_and_no_variable(runs: Runs) -> None:
    code = """
    import os, socket
    def main(args):
        try: socket.create_connection(('127.0.0.1', 3128), 5)
        except PermissionError: return [name for name in os.environ if 'proxy' in name.lower()]
    """
    outcome = await runs(code)
    assert value_of(outcome) == []
    assert outcome.network == ()


@in_module
async def test_the_proxy_is_all_there_is(runs: Runs, plain: Upstream) -> None:
    """A run has no route, no name server, no UDP and no port but the proxy's, and cannot listen on the port of the
    proxy.
    """
    code = f"""
    import errno, os, socket
    def attempt(act):
        try:
            return act()
        except OSError as error:
            return errno.errorcode.get(error.errno, type(error).__name__)
    def connect(address, family=socket.AF_INET, kind=socket.SOCK_STREAM):
        with socket.socket(family, kind) as one:
            one.settimeout(5)
            one.connect(address)
            one.send(b'x')
            return 'connected'
    def bind(port):
        with socket.socket() as one:
            one.bind(('127.0.0.1', port))
            return 'bound'
    def main(args):
        return dict(
            outside=attempt(lambda: connect(('192.0.2.1', 443))),
            metadata=attempt(lambda: connect(('169.254.169.254', 80))),
            upstream=attempt(lambda: connect(('127.0.0.1', {plain.port}))),
            udp=attempt(lambda: connect(('192.0.2.1', 53), kind=socket.SOCK_DGRAM)),
            outside6=attempt(lambda: connect(('2001:db8::1', 443), socket.AF_INET6)),
            dns=attempt(lambda: socket.getaddrinfo('api.test', 80)),
            bind=attempt(lambda: bind(3128)),
            bind_other=attempt(lambda: bind(8080)),
            proxy=attempt(lambda: connect(('127.0.0.1', 3128))),
            descriptors=sorted(int(name) for name in os.listdir('/proc/self/fd') if int(name) < 64)[:5],
            variables=sorted(name for name in os.environ if 'proxy' in name.lower()),
            http=os.environ['https_proxy'],
        )
    """
    found = await runs.value(code, f"http://api.test:{plain.port}")
    held = kernel.landlock_version() >= 4
    assert found["outside"] in ({"EACCES"} if held else {"ENETUNREACH"})
    assert found["metadata"] in ({"EACCES"} if held else {"ENETUNREACH"})
    assert found["upstream"] in ({"EACCES"} if held else {"ECONNREFUSED"})
    assert found["udp"] == "EACCES"
    assert found["outside6"] in ({"EACCES"} if held else {"ENETUNREACH", "EADDRNOTAVAIL"})
    assert found["dns"] in {"gaierror", "EAI_AGAIN"}, found["dns"]
    assert found["bind"] == found["bind_other"] == "EACCES"
    assert found["proxy"] == "connected"
    assert len([number for number in found["descriptors"] if number <= 3]) == 4
    assert found["variables"] == sorted(name for name in ENVIRONMENT if "proxy" in name.lower())
    assert found["http"] == "http://127.0.0.1:3128"
    assert plain.connections == 0


async def test_private_addresses_are_refused_unless_the_operator_lists_them(tmp_path: Path, plain: Upstream) -> None:
    assert LinuxSandboxSettings().allow_private == ()
    sandbox = await opened(LinuxSandboxSettings(hosts=HOSTS), tmp_path)
    try:
        outcome = await Runs(sandbox)(
            f"def main(args): return fetch('http://api.test:{plain.port}/')", f"http://api.test:{plain.port}"
        )
    finally:
        await sandbox.close()
    assert outcome.failure is not None
    assert "the operator can list it in backends.sandbox.linux.allow_private" in outcome.failure.message
    assert "127.0.0.1, which is not a public address" in refused(outcome).reason
    assert plain.connections == 0


def test_a_private_address_that_is_none_stops_the_start(tmp_path: Path) -> None:
    for settings in (LinuxSandboxSettings(allow_private=("all",)), LinuxSandboxSettings(hosts={"a.test": ("x",)})):
        with pytest.raises(StartupError, match=r"\[backends\.sandbox\.linux\]"):
            open_sandbox(settings, Place(tmp_path))


@in_module
async def test_runs_at_the_same_time_have_ways_out_of_their_own(runs: Runs, plain: Upstream) -> None:
    code = f"""
    import urllib.error
    def status(host):
        try:
            return fetch(f'http://{{host}}:{plain.port}/') and 200
        except urllib.error.HTTPError as error:
            return error.code
    def main(args): return [status(host) for host in ('a.api.test', 'b.api.test')]
    """
    of_a, of_b, of_none = await asyncio.gather(
        runs.value(code, f"http://a.api.test:{plain.port}"),
        runs.value(code, f"http://b.api.test:{plain.port}"),
        runs.value("def main(args): import os; return 'http_proxy' in os.environ"),
    )
    assert (of_a, of_b, of_none) == ([200, 403], [403, 200], False)


@in_module
async def test_a_run_that_ends_leaves_no_connection_behind(runs: Runs) -> None:
    with upstream(until=b"never") as endless:
        code = f"""
        import socket, time
        HOST = 'api.test:{endless.port}'
        def main(args):
            kept = []
            for _ in range(40):
                one = socket.create_connection(('127.0.0.1', 3128))
                one.sendall(f'GET http://{{HOST}}/ HTTP/1.1\\r\\nHost: {{HOST}}\\r\\n\\r\\n'.encode())
                kept.append(one)
            time.sleep(1e6)
        """
        outcome = await runs(code, f"http://api.test:{endless.port}", timeout_ms=1_500)
        assert outcome.failure is not None
        assert outcome.failure.type == "TimeoutError"
        assert sum(use.connections for use in outcome.network) <= 32
        assert endless.connections <= 32


@in_module
async def test_a_cancelled_run_leaves_nothing(runs: Runs, plain: Upstream) -> None:
    for delay in (0.0, 0.02, 0.05, 0.1, 0.2):
        running = asyncio.ensure_future(
            runs("import time\ndef main(args): time.sleep(1e6)", f"http://api.test:{plain.port}")
        )
        await asyncio.sleep(delay)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running


@in_module
async def test_a_proxy_that_is_killed_ends_no_run(runs: Runs, plain: Upstream) -> None:
    pid = runs.sandbox.egress.pid
    assert pid is not None
    code = f"""
    import http.client, time, runtime
    def main(args):
        first = fetch('http://api.test:{plain.port}/')
        print('go', flush=True)
        for _ in range(50_000):  # until the proxy is killed
            try:
                fetch('http://api.test:{plain.port}/')
            except (OSError, http.client.HTTPException):  # refused, or broken off in the middle of an answer
                return first
            time.sleep(0.02)
    """
    running = asyncio.ensure_future(runs(code, f"http://api.test:{plain.port}"))
    await eventually_async(lambda: plain.connections >= 2)  # the first response has arrived
    os.kill(pid, signal.SIGKILL)
    outcome = await running
    assert value_of(outcome) == "GET / HTTP/1.1"
    assert outcome.network[-1].reason == "the proxy of this run has ended"
    again = await runs(
        f"def main(args): return fetch('http://api.test:{plain.port}/')", f"http://api.test:{plain.port}"
    )
    assert again.failure is None
    assert runs.sandbox.egress.pid != pid
    await runs.sandbox.egress.close()


@in_module
@pytest.mark.full
async def test_a_proxy_that_hangs_is_replaced(runs: Runs, plain: Upstream) -> None:
    pid = runs.sandbox.egress.pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    outcome = await runs("def main(args): return 'done'", "http://api.test")
    assert value_of(outcome) == "done"
    again = await runs(
        f"def main(args): return fetch('http://api.test:{plain.port}/')", f"http://api.test:{plain.port}"
    )
    assert again.failure is None
    assert runs.sandbox.egress.pid != pid
    await runs.sandbox.egress.close()


@in_module
async def test_names_without_configured_address_are_resolved_by_host(runs: Runs) -> None:
    outcome = await runs("def main(args): return fetch('http://localhost/')", "http://localhost")
    assert outcome.failure is not None
    [use] = outcome.network
    assert "public address" in use.reason or "could not be looked up" in use.reason or use.reason.startswith("no conn")


@pytest.mark.full
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can change its uid")
def test_network_access_works_for_server_of_ordinary_user() -> None:
    command = (
        sys.executable,
        str(TESTS / "support" / "ordinary_user.py"),
        sys.executable,
        "-m",
        "pytest",
        "-q",
        str(Path(__file__)),
    )
    cases = "allowed_host or all_there_is or without_a_list or refusal_tells or cancelled"
    done = subprocess.run((*command, "-k", cases), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]


# -- over HTTP -----------------------------------------------------------------------------------------------------


def test_skill_reaches_hosts_of_its_manifest_and_run_records_them(
    start_server: Callable[..., Server], tmp_path: Path, plain: Upstream
) -> None:
    config = tmp_path / "skillery.toml"
    config.write_text('[backends.sandbox.linux]\nallow_private = ["127.0.0.1"]\nhosts = {"api.test" = ["127.0.0.1"]}\n')
    server = start_server("--config", str(config))
    publish = publisher(server.rpc)
    code = FETCH + f"def main(args): return fetch('http://api.test:{plain.port}/skill')"
    publish("net.allowed", code=code, permissions={"network": [f"http://api.test:{plain.port}"]})
    publish("net.denied", code=code, permissions={"network": []})

    allowed = server.rpc("execute_skill", name="net.allowed")
    denied = server.rpc("execute_skill", name="net.denied")
    mounted = server.rpc(
        "run_code",
        language="python",
        code="from skills.net.allowed import main",
        mount_skills=["net.allowed"],
    )

    assert allowed["output"] == "GET /skill HTTP/1.1"
    [use] = allowed["network"]
    assert (use["host"], use["port"], use["allowed"]) == ("api.test", plain.port, True)
    assert use["bytes_out"] > 0
    assert denied["status"] == "failed"
    assert "'net.denied' lists no host" in denied["error"]["message"]
    assert "permissions.network" in denied["error"]["message"]
    assert mounted["output"] == "GET /skill HTTP/1.1"  # in a separate sandbox
    code = f"import socket\ndef main(args): socket.create_connection(('127.0.0.1', {plain.port}))"
    assert "run_code has no network" in server.rpc("run_code", language="python", code=code)["error"]["message"]
    for answer in (denied, mounted):
        assert "network" not in answer
    assert plain.connections == 2
    with sqlite3.connect(server.home / "skillery.db") as database:
        rows = dict(database.execute("SELECT id, network_json FROM runs").fetchall())
    assert json.loads(rows[allowed["run_id"]]) == [use]
    assert json.loads(rows[denied["run_id"]]) == []


async def test_hosts_that_the_admin_names_may_be_anywhere_and_others_may_not(tmp_path: Path) -> None:
    """Locking and installing packages run with `Job.private_network`."""
    sandbox = await opened(LinuxSandboxSettings(hosts=HOSTS), tmp_path)
    with upstream() as here:
        url, other = f"http://api.test:{here.port}", f"http://other.test:{here.port}"
        call = CodeCall(FETCH + "def main(args): return fetch(args['url'])", "main")
        limits = Limits(timeout_ms=300_000, memory_mb=256)

        async def fetched(url: str, *, private: bool) -> Outcome:
            args = json.dumps({"url": url}).encode()
            job = Job("run_1", call, args, limits=limits, network=(f"http://api.test:{here.port}",))
            return await sandbox.run(msgspec.structs.replace(job, private_network=private), MemoryHost())

        let_through = await fetched(f"{url}/", private=True)
        closed = await fetched(f"{url}/", private=False)
        elsewhere = await fetched(f"{other}/", private=True)
    await sandbox.close()

    assert let_through.result is not None
    assert "is not a public address" in closed.network[0].reason
    assert "is not in permissions.network" in elsewhere.network[0].reason
