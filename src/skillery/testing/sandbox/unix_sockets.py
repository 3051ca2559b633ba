"""UNIX sockets of programs: they serve the processes of their run, and reach no socket of the host."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from skillery.backends import Limits
from skillery.testing.sandbox.loopback import FILL, FORKS, WithLoopback, printed, program_that_printed, script
from skillery.testing.sandbox.network import visited
from skillery.testing.sandbox.trial import Trial, failure_type, value_of

MAKES = """
def made(kind): return name_of(lambda: socket.socket(socket.AF_UNIX, kind).close())
"""
KINDS = (socket.SOCK_STREAM, socket.SOCK_SEQPACKET)
# Each program queues data in sockets until it is stopped.
FLOODS = {
    "open pairs": """
kept = []
while True:
    try: kept += socket.socketpair()
    except OSError: signal.pause()
    for end in kept[-2:]: fill(end)
""",
    "accept queues": """
kept = []
while True:
    try: listener = socket.socket(socket.AF_UNIX)
    except OSError: signal.pause()
    listener.bind(f'\\0{os.getpid()}-{len(kept)}')
    listener.listen(4096)
    kept.append(listener)
    for _ in range(128):
        with socket.socket(socket.AF_UNIX) as client:
            client.setblocking(False)
            client.connect(listener.getsockname())
            fill(client)
""",
}


async def skip_without_names(trial: Trial) -> None:
    """Skip the case if programs of this host get no UNIX sockets: a folder that all runs see holds a socket."""
    if await printed(trial, f"{MAKES}print(json.dumps(made(socket.SOCK_STREAM)))") is not None:
        pytest.skip("this host has a socket in a folder that runs see")


class UnixSocketCases(WithLoopback):
    """Processes of a program connect by the names of UNIX sockets."""

    async def test_processes_of_a_program_connect_by_name(self, serving: Trial) -> None:
        await skip_without_names(serving)
        code = """
import os
heard = []
for kind in (socket.SOCK_STREAM, socket.SOCK_SEQPACKET):
    own = f'{os.getpid()}-{kind:d}'  # a sandbox without isolation has the names of the host
    for name in (f'/tmp/{own}', own, f'\\0{own}'):
        listener = socket.socket(socket.AF_UNIX, kind)
        listener.bind(name)
        listener.listen()
        if os.fork() == 0:
            with socket.socket(socket.AF_UNIX, kind) as client:
                client.connect(name)
                client.send(b'own')
            os._exit(0)
        heard.append(listener.accept()[0].recv(3).decode())
        if name[0] != '\\0':
            os.unlink(name)
print(json.dumps(heard))
"""
        assert await printed(serving, code) == ["own"] * 6

    async def test_managers_and_pools_of_processes_start(self, serving: Trial) -> None:
        await skip_without_names(serving)
        code = """
import multiprocessing
def square(number): return number ** 2
if __name__ == '__main__':
    values = []
    for method in ('fork', 'spawn', 'forkserver'):
        context = multiprocessing.get_context(method)
        with context.Manager() as manager, context.Pool(2) as pool:
            values.append(list(manager.list(pool.map(square, range(3)))))
    print(json.dumps(values))
"""
        assert await printed(serving, code) == [[0, 1, 4]] * 3


def short(stack: contextlib.ExitStack, name: str) -> str:
    """Return an address for a name, because paths of sockets have at most 107 bytes."""
    if name.startswith("\0"):
        return name
    folder = os.open(Path(name).parent, os.O_PATH)
    stack.callback(os.close, folder)
    return f"/proc/self/fd/{folder}/{Path(name).name}"


@contextlib.contextmanager
def listening(*names: str) -> Iterator[list[socket.socket]]:
    """Yield sockets of both kinds that listen at the names, each with the number of its kind at the end."""
    with contextlib.ExitStack() as stack:
        servers = []
        for name in names:
            for kind in KINDS:
                server = stack.enter_context(socket.socket(socket.AF_UNIX, kind))
                server.bind(f"{short(stack, name)}-{kind:d}")
                server.listen()
                servers.append(server)
                if not name.startswith("\0"):
                    Path(f"{name}-{kind:d}").chmod(0o777)
        yield servers


def names_of_host() -> str:
    return Path("/proc/net/unix").read_text()


class UnixSocketAttacks(WithLoopback):
    """Attacks with UNIX sockets."""

    async def test_pairs_connect_to_no_socket_of_the_host(self, serving: Trial) -> None:
        """A program may bind and connect the sockets of a pair, so these sockets must not reach the host by a name."""
        code = """
import os
def names():
    for parent, _, files in os.walk('/skills'):
        yield from (os.path.join(parent, name) for name in files if 'socket' in name)
    yield from args
def pairs():
    for kind in (socket.SOCK_STREAM, socket.SOCK_SEQPACKET):
        a, b = socket.socketpair(socket.AF_UNIX, kind)
        yield a
        yield b
        c, d = socket.socketpair(socket.AF_UNIX, kind)
        d.close()
        yield c
        e, f = socket.socketpair(socket.AF_UNIX, kind)
        e.shutdown(socket.SHUT_RDWR)
        yield e
        g, h = socket.socketpair(socket.AF_UNIX, kind)
        g.bind('\\0g' + str(kind))
        name_of(g.listen)
        yield g
reached, tries = [], 0
for end in pairs():
    for name in names():
        tries += 1
        if name_of(lambda: end.connect(name)) is None: reached.append(name)
        name_of(lambda: end.sendto(b'x', socket.MSG_DONTWAIT, name))
print(json.dumps([tries > 10, reached]))
"""
        skill = serving.skill("talks", {"code/main.py": ""})
        abstract = f"\0skillery-{os.getpid()}"
        with listening(abstract, str(skill.folder / "socket")) as servers:
            outside = [f"{abstract}-{kind:d}" for kind in KINDS]
            result = value_of(await script(serving, code, outside, others=(skill,)))
            assert (result["stderr"], json.loads(result["stdout"])) == ("", [True, []])
            assert visited(servers) == []

    @pytest.mark.parametrize("place", ["socket", "deep/er/socket", ".hidden", "packages"])
    async def test_no_unix_socket_is_made_if_a_mount_holds_a_socket(self, serving: Trial, place: str) -> None:
        """A read-only mount does not prevent `connect`."""
        skill = serving.skill("talks", {"code/main.py": "", "deep/er/file": ""})
        packages = serving.packages({"deep/module.py": ""})
        folder = packages.folder / "deep" if place == "packages" else skill.folder
        kinds = [*KINDS, socket.SOCK_DGRAM]
        with listening(str(folder / place)) as servers:
            code = f"{MAKES}print(json.dumps([made(kind) for kind in args]))"
            names = await printed(serving, code, kinds, others=(skill,), packages=(packages,))
            assert names == ["EACCES"] * 3
            assert visited(servers) == []

    async def test_names_reach_no_socket_outside_of_the_run(self, serving: Trial, tmp_path: Path) -> None:
        await skip_without_names(serving)
        code = """
def reached(kind, name):
    with socket.socket(socket.AF_UNIX, kind) as client: return name_of(lambda: client.connect(f'{name}-{kind:d}'))
print(json.dumps([reached(kind, name) for kind in args['kinds'] for name in args['names']]))
"""
        names = [f"\0skillery-{os.getpid()}", str(tmp_path / "socket")]
        with listening(*names) as servers:
            answers = await printed(serving, code, {"kinds": KINDS, "names": names})
            assert answers == ["ECONNREFUSED", "ENOENT"] * 2
            assert visited(servers) == []

    async def test_host_and_other_runs_reach_no_name_of_a_run(self, serving: Trial) -> None:
        await skip_without_names(serving)
        name = f"skillery-run-{os.getpid()}"
        binds = f"""
for name in ('/tmp/{name}', '\\0{name}'):
    server = socket.socket(socket.AF_UNIX)
    server.bind(name)
    server.listen()
"""
        async with program_that_printed(serving, binds):
            assert name not in names_of_host()
            with socket.socket(socket.AF_UNIX) as client:
                assert client.connect_ex(f"\0{name}") == errno.ECONNREFUSED
            code = """
ends = [socket.socket(socket.AF_UNIX) for _ in args]
print(json.dumps([name_of(lambda: end.connect(name)) for end, name in zip(ends, args)]))
"""
            names = [f"\0{name}", f"/tmp/{name}"]  # noqa: S108 - a path of the sandbox
            assert await printed(serving, code, names) == ["ECONNREFUSED", "ENOENT"]

    async def test_functions_make_no_unix_socket(self, serving: Trial) -> None:
        """Their process has the channel to the server, which `bind` would name in the host's net namespace."""
        code = "import socket\ndef main(args): socket.socket(socket.AF_UNIX)"
        assert failure_type(await serving.code(code)) == "OSError"

    @pytest.mark.parametrize("flood", FLOODS)
    async def test_data_in_unix_sockets_counts_as_memory(self, serving: Trial, flood: str) -> None:
        await skip_without_names(serving)
        limits = Limits(timeout_ms=300_000, memory_mb=64)
        outcome = await script(serving, FORKS + FILL + FLOODS[flood], {"processes": 8}, limits=limits)
        assert failure_type(outcome) == "MemoryLimitExceeded"
