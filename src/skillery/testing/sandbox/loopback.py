"""Servers on loopback: a program of a run may have them, and nothing outside the run reaches them or is reached."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from skillery.backends import Capability, CodeCall, HandlerCall, Job, Limits, Outcome, ScriptCall, SkillMount
from skillery.testing.sandbox.languages import javascript, shell, with_node
from skillery.testing.sandbox.network import PROBES, everything_at_one_port, visited
from skillery.testing.sandbox.trial import QUICK, Listening, SandboxCases, Trial, failure_type, value_of

SERVER = """
import errno, http.server, json, socket, threading, urllib.request
class Quiet(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'own')
    def log_message(self, *args): pass
def serve(port):
    server = http.server.ThreadingHTTPServer(('127.0.0.1', port), Quiet)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server.server_port
def name_of(act):
    try: act()
    except OSError as error: return errno.errorcode.get(error.errno, str(error))
"""
FORKS = """
import os, signal
for _ in range(args['processes']):
    if os.fork() == 0: break
"""
# Each program fills sockets with data until it is stopped: open pairs, and queued connections whose clients have ended.
FLOODS = {
    "open pairs": """
kept = []
while True:
    listener = socket.create_server(('127.0.0.1', 0))
    kept.append(listener)
    for _ in range(100):
        try:
            ends = [socket.create_connection(listener.getsockname())]
            ends.append(listener.accept()[0])
        except OSError: signal.pause()
        kept += ends
        for end in ends: fill(end)
""",
    "accept queues": """
kept = []
while True:
    try: listener = socket.create_server(('127.0.0.1', 0), backlog=4096)
    except OSError: signal.pause()
    kept.append(listener)
    for _ in range(128):
        with socket.socket() as client:
            client.setblocking(False)
            client.connect_ex(listener.getsockname())
            fill(client)
""",
}
FILL = """
def fill(end):
    end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 24)
    end.setblocking(False)
    try:
        while True: end.send(bytes(65536))
    except OSError: pass
"""


async def script(
    trial: Trial, code: str, args: Any = None, others: tuple[SkillMount, ...] = (), **options: Any
) -> Outcome:
    """Run Python code as a script: a program that has `args`, and prints JSON."""
    heading = f"import json, sys\nargs = json.loads(sys.argv[1])\n{SERVER}"
    skill = trial.skill("acme.server", {"s.py": heading + code}, entrypoint=None)
    call = ScriptCall("acme.server", "s.py", (json.dumps(args),))
    options.setdefault("limits", QUICK)
    return await trial.call(call, skills=(skill, *others), **options)


async def printed(trial: Trial, code: str, args: Any = None, **options: Any) -> Any:
    """Return the JSON that a script prints. The test fails if the script fails."""
    result = value_of(await script(trial, code, args, **options))
    assert result["exit_code"] == 0, result["stderr"]
    return json.loads(result["stdout"])


@contextlib.asynccontextmanager
async def program_that_printed(trial: Trial, code: str) -> AsyncIterator[None]:
    """Run Python code as a program that stays until the end of the context. Skip the case if the backend passes no log
    while the code runs.
    """
    host = Listening()
    stays = f"{SERVER}{code}\nprint('up', flush=True)\nthreading.Event().wait()"
    call = CodeCall(f"cat > s.py <<'END'\n{stays}\nEND\npython3 -u s.py >&2", "main", "bash")
    running = asyncio.create_task(trial.sandbox.run(Job("run_1", call, b"{}", limits=QUICK), host))
    printing = asyncio.create_task(host.has_printed.wait())
    try:
        await asyncio.wait({running, printing}, timeout=30, return_when=asyncio.FIRST_COMPLETED)
        assert not running.done(), running.result()
        if not printing.done():
            pytest.skip("the backend passes no log while the code runs")
        yield
    finally:
        running.cancel()
        printing.cancel()
        await asyncio.gather(running, printing, return_exceptions=True)


def with_servers(trial: Trial) -> Trial:
    """Return the Trial. Skip the case if programs of the backend cannot have servers."""
    if Capability.LOOPBACK not in trial.sandbox.capabilities:
        pytest.skip("programs of this backend cannot have servers on loopback")
    return trial


class WithLoopback(SandboxCases):
    @pytest.fixture
    def serving(self, trial: Trial) -> Trial:
        """See `with_servers`."""
        return with_servers(trial)


class LoopbackCases(WithLoopback):
    """Programs have servers on loopback."""

    async def test_script_reaches_its_own_web_server(self, serving: Trial) -> None:
        code = """
for name in ('127.0.0.1', 'localhost'):
    answer = urllib.request.urlopen(f'http://{name}:{serve(0)}/').read().decode()
print(json.dumps(answer))
"""
        assert await printed(serving, code) == "own"

    async def test_shell_and_its_children_share_loopback(self, serving: Trial) -> None:
        code = """
        mkdir site; echo served > site/page
        python3 -u -m http.server --directory site 0 > log 2>&1 &
        until port=$(grep -om1 'port [0-9]*' log); do sleep 0.05; done
        exec 3<> /dev/tcp/127.0.0.1/${port#port }
        printf 'GET /page HTTP/1.0\\r\\n\\r\\n' >&3
        tail -n 1 <&3
        """
        assert value_of(await shell(serving, code)) == "served"

    @with_node
    async def test_node_fetches_from_its_own_server(self, serving: Trial) -> None:
        code = """
        import http from "node:http";
        export async function main() {
          const server = http.createServer((request, response) => response.end("own"));
          await new Promise((resolve) => server.listen(0, resolve));
          const answer = await fetch(`http://localhost:${server.address().port}/`);
          server.close();
          return await answer.text();
        }
        """
        assert value_of(await javascript(serving, code)) == "own"


class LoopbackAttacks(WithLoopback):
    """Attacks by programs that may have servers."""

    async def test_program_reaches_no_address_outside_of_its_run(self, serving: Trial) -> None:
        with everything_at_one_port() as (port, servers):
            assert await printed(serving, f"{PROBES}\nprint(json.dumps(unreachable(args)))", port) == []
            assert visited(servers) == []

    async def test_program_meets_no_route_and_no_server_of_the_host(self, serving: Trial) -> None:
        code = """
outside = [name_of(lambda: socket.create_connection((host, 80))) for host in args['outside']]
print(json.dumps([outside, name_of(lambda: socket.create_connection(('127.0.0.1', args['port'])))]))
"""
        outside = ["10.0.0.1", "169.254.169.254", "8.8.8.8", "224.0.0.1"]
        with everything_at_one_port() as (port, servers):
            reached = await printed(serving, code, {"outside": outside, "port": port})
            assert reached == [["ENETUNREACH"] * len(outside), "ECONNREFUSED"]
            assert visited(servers) == []

    async def test_only_tcp_sockets_of_version_4_can_be_made(self, serving: Trial) -> None:
        code = """
def made(family, kind, protocol): return name_of(lambda: socket.socket(family, kind, protocol))
print(json.dumps([made(*kind) for kind in args]))
"""
        kinds = {
            (socket_family, kind, protocol): name
            for socket_family, kind, protocol, name in (
                *((2, 1, 0, None), (2, 1, 6, None), (2, 1, 132, "EPERM"), (2, 1, 262, "EPERM")),
                *((2, 2, 0, "EACCES"), (2, 3, 1, "EACCES"), (2, 5, 132, "EACCES"), (2, 6, 33, "EACCES")),
                *((1, 2, 0, "EACCES"), (1, 3, 0, "EACCES")),
                *((10, 1, 0, "EAFNOSUPPORT"), (10, 2, 0, "EAFNOSUPPORT"), (16, 3, 0, "EAFNOSUPPORT")),
                *((17, 3, 0, "EAFNOSUPPORT"), (38, 5, 0, "EAFNOSUPPORT"), (40, 1, 0, "EAFNOSUPPORT")),
                *((43, 1, 0, "EAFNOSUPPORT"), (21, 5, 0, "EAFNOSUPPORT"), (31, 1, 0, "EAFNOSUPPORT")),
            )
        }
        assert await printed(serving, code, list(kinds)) == list(kinds.values())

    async def test_urgent_data_and_fast_open_are_refused(self, serving: Trial) -> None:
        code = """
listener = socket.create_server(('127.0.0.1', 0))
client = socket.create_connection(listener.getsockname())
pair = socket.socketpair()
fast = socket.socket()
print(json.dumps([
    *(name_of(lambda: end.send(b'x', socket.MSG_OOB)) for end in (client, pair[0])),
    *(name_of(lambda: end.sendmsg([b'x'], [], socket.MSG_OOB)) for end in (client, pair[0])),
    *(name_of(lambda: end.recv(1, socket.MSG_OOB)) for end in (client, pair[1])),
    *(name_of(lambda: end.recvmsg(1, 0, socket.MSG_OOB)) for end in (client, pair[1])),
    name_of(lambda: fast.sendto(b'x', socket.MSG_FASTOPEN, listener.getsockname())),
]))
"""
        assert await printed(serving, code) == ["ENOTSUP"] * 9

    async def test_rare_options_and_requests_of_sockets_are_refused(self, serving: Trial) -> None:
        """Each of them is a part of the kernel with a history of faults, loads a module, or takes uncounted memory."""
        code = """
import fcntl, mmap, struct
listener = socket.create_server(('127.0.0.1', 0))
client = socket.create_connection(listener.getsockname())
pair, _ = socket.socketpair()
group = struct.pack('=4s4s', bytes([224, 0, 0, 1]), bytes(4))
options = [(6, 31, b'tls'), (6, 13, b'reno'), (6, 14, bytes(216)), (6, 19, 1), (6, 23, 5), (6, 30, 1),
           (6, 38, bytes(280)), (0, 4, bytes(4)), (0, 35, group), (0, 41, bytes(16)), (282, 1, bytes(40)), (284, 1, 1),
           (1, 29, 1), (1, 37, 4)]
def mapped():
    with mmap.mmap(client.fileno(), 4096, mmap.MAP_SHARED, mmap.PROT_READ): client.getsockopt(6, 35, 64)
print(json.dumps([
    [name_of(lambda: client.setsockopt(*option)) for option in options],
    name_of(mapped),
    [name_of(lambda: fcntl.ioctl(end, request, bytes(64)))
     for end in (client, pair) for request in (0x8940, 0x8982, 0x89A0, 0x89A2, 0x8914, 0x8946, 0x89E0, 0x89F0, 0x8B01)],
    name_of(lambda: client.send(b'x', 0x4000000)),
    name_of(lambda: client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)),
]))
"""
        options, mapped, requests, pinned, usual = await printed(serving, code)
        assert options == ["ENOPROTOOPT"] * 14
        assert mapped == "ENOPROTOOPT"
        assert requests == ["EPERM"] * 18
        assert (pinned, usual) == ("ENOTSUP", None)

    async def test_settings_of_loopback_cannot_be_changed(self, serving: Trial) -> None:
        code = """
import fcntl, os, struct
client = socket.socket()
for option in (socket.SO_SNDBUF, socket.SO_RCVBUF, 32, 33): client.setsockopt(socket.SOL_SOCKET, option, 1 << 24)
sizes = [client.getsockopt(socket.SOL_SOCKET, option) for option in (socket.SO_SNDBUF, socket.SO_RCVBUF)]
down = struct.pack('=16sH22x', b'lo', 0)
print(json.dumps([
    sizes, name_of(lambda: fcntl.ioctl(client, 0x8914, down)), os.path.exists('/proc/sys'),
    name_of(lambda: client.setsockopt(socket.SOL_SOCKET, 25, b'lo')),
]))
"""
        assert await printed(serving, code) == [[16384, 16384], "EPERM", False, None]

    async def test_two_runs_have_servers_on_the_same_port(self, serving: Trial) -> None:
        """The second run neither meets the server of the first one nor finds its port in use."""
        async with program_that_printed(serving, "serve(8080)"):
            code = """
before = name_of(lambda: socket.create_connection(('127.0.0.1', 8080)))
serve(8080)
print(json.dumps([before, urllib.request.urlopen('http://127.0.0.1:8080/').read().decode()]))
"""
            assert await printed(serving, code) == ["ECONNREFUSED", "own"]

    async def test_functions_and_handlers_in_python_open_no_server(self, serving: Trial) -> None:
        """Their process has the channel to the server, which is a socket of the host's net namespace."""
        code = "import socket\ndef main(args): socket.create_server(('127.0.0.1', 0))"
        handler = serving.skill("acme.tool", {"t.py": code.replace("main", "handler")}, entrypoint=None)
        assert failure_type(await serving.code(code)) == "PermissionError"
        handled = await serving.call(HandlerCall("acme.tool", "t.py"), skills=(handler,))
        assert failure_type(handled) == "PermissionError"

    async def test_program_has_no_socket_that_the_server_created(self, serving: Trial) -> None:
        code = """
import os, stat
kinds = [stat.S_ISSOCK(os.fstat(number).st_mode) for number in range(1024) if os.path.exists(f'/proc/self/fd/{number}')]
print(json.dumps([len(kinds) >= 3, any(kinds)]))
"""
        assert await printed(serving, code) == [True, False]

    @pytest.mark.parametrize("flood", FLOODS)
    @pytest.mark.parametrize("processes", [0, 40])
    async def test_sockets_hold_no_more_than_a_quarter_of_the_memory(
        self, serving: Trial, flood: str, processes: int
    ) -> None:
        limits = Limits(timeout_ms=300_000, memory_mb=64)
        outcome = await script(serving, FORKS + FILL + FLOODS[flood], {"processes": processes}, limits=limits)
        assert failure_type(outcome) == "MemoryLimitExceeded"

    async def test_many_ended_connections_hold_no_memory(self, serving: Trial) -> None:
        code = """
listener = socket.create_server(('127.0.0.1', 0))
for _ in range(args):
    with socket.create_connection(listener.getsockname()): listener.accept()[0].close()
print(json.dumps('done'))
"""
        assert await printed(serving, code, 5_000) == "done"
