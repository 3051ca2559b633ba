"""Runs are forked from a zygote, some in advance: no run sees another, and no run is lost with its zygote."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import resource
import signal
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

import pytest

import skillery
from cellblock.host import hierarchies, processes
from cellblock.host.cells import Demand
from cellblock.host.plan import shape
from cellblock.host.succession import GROUPS_KEPT, Warmth
from cellblock.host.zygotes import SHARED_FROM_MB, SLOTS
from skillery.backends import CodeCall, Job, Limits, Place
from skillery.builtin.linux_sandbox import skillery_sandbox
from skillery.jobs import limits_of
from skillery.testing.sandbox import MemoryHost, Trial
from skillery.testing.sandbox.leftovers import assert_none_since, descendants, traces
from skillery.testing.sandbox.secrets import SEARCH
from skillery.testing.sandbox.trial import failure_type, value_of
from tests.support.processes import eventually_async

T = TypeVar("T")
ANSWER_LIMITS = ("cellblock.host.zygote_answers.ANSWER_SECONDS", "cellblock.host.zygotes.ANSWER_SECONDS")
FIND_IN_MEMORY = SEARCH + "found = in_memory\n"


@asynccontextmanager
async def running(folder: Path, **settings: int) -> AsyncIterator[Trial]:
    """Start a sandbox with these settings. Fail if processes or files are left afterwards."""
    before = traces()
    offer = skillery_sandbox()
    sandbox = offer.open(offer.settings(**settings), Place(folder))
    await sandbox.start()
    try:
        yield Trial(sandbox, folder)
    finally:
        await sandbox.close()
    await assert_none_since(before, closed=True)


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give a zygote time for its answers. The engine replaces one that a loaded machine delays by two seconds."""
    for limit in ANSWER_LIMITS:
        monkeypatch.setattr(limit, 300)


def proc_file(pid: int, name: str) -> bytes:
    """Return the content of a file of /proc/PID, or nothing if the process has ended."""
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""


def children(pid: int) -> list[int]:
    return [int(child) for child in proc_file(pid, f"task/{pid}/children").split()]


def zygotes() -> list[int]:
    return [pid for pid in children(os.getpid()) if b"zygote.main" in proc_file(pid, "cmdline")]


async def workshops() -> list[int]:
    """Return the workshop of each zygote: its first child. The zygote forks the children for runs later."""
    below = await eventually_async(lambda: all(found := [children(parent) for parent in zygotes()]) and found)
    return [min(pids, key=lambda pid: int(processes.start_time(pid) or 0)) for pids in below]


def places() -> set[int]:
    return {pid for parent in zygotes() for pid in children(parent) if children(pid)}


def cpu_ticks() -> int:
    """Return the processor time of the zygotes and their descendants. Servers of other tests are left out."""
    engine = {pid for zygote in zygotes() for pid in (zygote, *descendants(zygote))}
    stats = [proc_file(pid, "stat").rpartition(b")")[2].split() for pid in engine]
    return sum(int(fields[11]) + int(fields[12]) for fields in stats if fields)


@pytest.mark.parametrize("prepared", [0, 2])
async def test_runs_that_wait_for_a_killed_zygote_are_answered_by_the_next(tmp_path: Path, prepared: int) -> None:
    async with running(tmp_path, prepared=prepared) as trial:
        (first,) = zygotes()
        os.kill(first, signal.SIGSTOP)
        code = "def main(args): return args['x']"
        runs = [asyncio.ensure_future(trial.value(code, {"x": number})) for number in range(6)]
        await asyncio.sleep(0.1)
        os.kill(first, signal.SIGKILL)
        assert await asyncio.gather(*runs) == [0, 1, 2, 3, 4, 5]
        assert first not in zygotes()


async def test_a_zygote_that_hangs_is_replaced(tmp_path: Path) -> None:
    async with running(tmp_path, prepared=0) as trial:
        (first,) = zygotes()
        os.kill(first, signal.SIGSTOP)
        await trial.is_well()
        await eventually_async(lambda: first not in zygotes())


@pytest.mark.skipif(os.geteuid() != 0, reason="an ordinary user has no cgroups here")
@pytest.mark.full
async def test_a_lost_zygote_takes_no_group_with_it(tmp_path: Path) -> None:
    of_others = group_folders()

    def groups() -> set[str]:
        return {Path(folder).name for folder in group_folders() - of_others}

    async with running(tmp_path, prepared=0) as trial:
        await eventually_async(lambda: len(groups()) == GROUPS_KEPT)  # the cell of the start had another one
        kept = groups()
        os.kill(zygotes()[0], signal.SIGSTOP)
        await trial.is_well()
        await eventually_async(lambda: len(groups()) == GROUPS_KEPT and groups() != kept)


async def test_callers_of_code_have_no_path_of_the_host(tmp_path: Path) -> None:
    code = """
import sys
def main(args):
    frame, shown = sys._getframe(), ''
    while frame is not None:
        shown += repr(frame.f_locals)
        frame = frame.f_back
    return shown
"""
    async with running(tmp_path, prepared=0) as trial:
        shown = await trial.value(code)
    assert str(tmp_path) not in shown
    assert str(Path(skillery.__file__).parent) not in shown


async def test_a_workshop_that_dies_or_hangs_is_replaced(tmp_path: Path) -> None:
    async with running(tmp_path, prepared=2) as trial:
        skill = trial.skill("greet", {"code/main.py": "def main(args): return 'hello'"})
        for number in (signal.SIGKILL, signal.SIGSTOP):
            for pid in await workshops():
                os.kill(pid, number)
            outcome = await trial.execute(skill)
            assert outcome.result == b'"hello"'


@pytest.mark.usefixtures("patient")
async def test_runs_with_different_limits_alternate_in_same_zygote(tmp_path: Path) -> None:
    code = "import os\ndef main(args): return [args['x'], os.statvfs('/workspace').f_blocks * 4096 >> 20]"
    async with running(tmp_path, prepared=0) as trial:
        [zygote] = zygotes()
        sizes = [16, 16, 32, 16, 32, 32, 64, 16]
        for number, size in enumerate(sizes):
            assert await trial.value(code, {"x": number}, limits=Limits(disk_mb=size)) == [number, size]
        runs = [trial.value(code, {"x": number}, limits=Limits(disk_mb=size)) for number, size in enumerate(sizes * 3)]
        assert await asyncio.gather(*runs) == [[number, size] for number, size in enumerate(sizes * 3)]
        assert zygotes() == [zygote]


@pytest.mark.skipif(os.geteuid() != 0, reason="an ordinary user has no cgroups here")
@pytest.mark.usefixtures("patient")
async def test_a_run_without_memory_for_its_start_does_not_end_the_zygote(tmp_path: Path) -> None:
    async with running(tmp_path, prepared=0) as trial:
        [zygote] = zygotes()
        for memory in (1, 1, SHARED_FROM_MB, SHARED_FROM_MB):
            code = "def main(args): return len(b'x' * (args['x'] << 20))"
            outcome = await trial.code(code, {"x": memory}, limits=Limits(memory_mb=memory))
            assert failure_type(outcome) == "MemoryLimitExceeded"
        await trial.is_well()
        assert zygotes() == [zygote]


async def test_zygote_has_no_large_library_that_each_fork_copies(tmp_path: Path) -> None:
    code = """
    import os, sys
    def main(args):
        loaded = [name for name in ('ctypes', 'hashlib', '_hashlib', 'socket', 'pathlib') if name in sys.modules]
        return [loaded, 'libcrypto' in open('/proc/self/maps').read(), 'MALLOC_ARENA_MAX' in os.environ]
    """
    async with running(tmp_path, prepared=0) as trial:
        assert await trial.value(code) == [[], False, False]


async def test_a_run_outlives_its_zygote(tmp_path: Path) -> None:
    async with running(tmp_path, prepared=1) as trial:
        code = "import runtime, time\ndef main(args): runtime.blobs.write_text('x'); time.sleep(1); return 'done'"
        run = asyncio.ensure_future(trial.value(code))
        await eventually_async(lambda: trial.host.blobs)
        for pid in zygotes():
            os.kill(pid, signal.SIGKILL)
        await trial.is_well()
        assert await run == "done"


AT_ONCE = """
import os, time
from runtime import blobs
def wait():
    blobs.write_text("begun")
    while True:
        try: return blobs.read_bytes("blob:all")
        except Exception: time.sleep(0.02)
"""
"""The function `wait` returns when all runs of `at_once` have called it. The kernel reuses numbers of namespaces."""


async def at_once(host: MemoryHost, *runs: Awaitable[T]) -> list[T]:
    """Return the values of runs that exist at the same time, because each calls `wait` of AT_ONCE."""
    values = asyncio.gather(*runs)
    await eventually_async(lambda: values.done() or len(host.blobs) == len(runs))
    host.blobs["blob:all"] = b""
    return await values


def group_folders() -> set[str]:
    """Return the folders of all cgroups that this process has made for runs."""
    found = (h.folder.glob(f"cellblock-*-{os.getpid()}-*-*/run-*") for h in hierarchies.candidates())
    return {str(folder) for folders in found for folder in folders}


USED_UP = {
    "memory": ("def main(args):\n    wait()\n    return len(b'x' * (100 << 20))", Limits(memory_mb=64, cpus=1.0)),
    "processor time": ("def main(args):\n    wait()\n    for _ in range(100 << 15): pass", Limits(cpus=0.05)),
}


@pytest.mark.full
@pytest.mark.skipif(os.geteuid() != 0, reason="an ordinary user has no cgroups here")
@pytest.mark.parametrize("what", list(USED_UP))
async def test_cgroup_is_not_reused_after_run_hits_its_limits(tmp_path: Path, what: str) -> None:
    async with running(tmp_path, prepared=0) as trial:

        async def serves_again() -> bool:
            before = group_folders()
            await trial.is_well()
            return group_folders() == before != set()

        await eventually_async(serves_again)
        code, limits = USED_UP[what]
        run = asyncio.ensure_future(trial.code(AT_ONCE + code, limits=limits))
        await eventually_async(lambda: run.done() or trial.host.blobs)
        used = {folder for folder in group_folders() if (Path(folder) / "cgroup.procs").read_text()}
        trial.host.blobs["blob:all"] = b""
        await run
        assert used
        await eventually_async(lambda: not used & group_folders())


@pytest.mark.full
@pytest.mark.skipif(os.geteuid() != 0, reason="an ordinary user has no cgroups here")
async def test_with_a_zygote_for_each_run_no_cgroup_serves_two_runs(tmp_path: Path) -> None:
    async with running(tmp_path, prepared=0, recycle_runs=1) as trial:
        before = group_folders()
        for _ in range(12):
            await trial.is_well()
        await eventually_async(lambda: not group_folders() & before)


async def test_a_prepared_place_that_has_died_is_not_used(tmp_path: Path) -> None:
    async with running(tmp_path, prepared=2) as trial:
        for pid in children(zygotes()[0]):
            for inner in children(pid):
                with contextlib.suppress(ProcessLookupError):  # it has ended with another one
                    os.kill(inner, signal.SIGKILL)
        for _ in range(4):
            await trial.is_well()


async def test_no_more_than_the_set_number_of_runs_share_a_zygote(tmp_path: Path) -> None:
    async with running(tmp_path, prepared=1, recycle_runs=3) as trial:
        seeds = Counter([await trial.value("def main(args): return hash('seed')") for _ in range(12)])
        assert max(seeds.values()) <= 3
        assert len(seeds) >= 4


async def test_each_run_can_have_a_zygote_of_its_own(tmp_path: Path) -> None:
    async with running(tmp_path, prepared=0, recycle_runs=1) as trial:
        found = await asyncio.gather(*(trial.value("def main(args): return hash('seed')") for _ in range(4)))
        assert len(set(found)) == 4


async def test_an_old_zygote_is_replaced_by_the_next_run(tmp_path: Path) -> None:
    async with running(tmp_path, prepared=0, recycle_minutes=0) as trial:
        first = set(zygotes())

        async def is_replaced() -> bool:
            await trial.is_well()
            return not first & set(zygotes())

        await eventually_async(is_replaced)


async def test_random_numbers_of_fifty_runs_are_all_distinct(tmp_path: Path) -> None:
    code = """
    import random, secrets, tempfile, uuid
    def main(args): return [random.random(), secrets.token_hex(), str(uuid.uuid4()), tempfile.mkdtemp()]
    """
    async with running(tmp_path, prepared=3) as trial:
        found = [await trial.value(code) for _ in range(50)]
        assert [len(set(column)) for column in zip(*found, strict=True)] == [50] * 4


async def test_a_prepared_place_is_used_once_and_sees_nothing_of_earlier_runs(tmp_path: Path) -> None:
    leave = """
    import builtins, json, os, sys
    def main(args):
        builtins.left = json.left = sys.left = os.environ['LEFT'] = args['first'] + args['second']
        for folder in ('/workspace', '/tmp', '/dev/shm'): open(folder + '/left', 'w').write(sys.left)
        print(sys.left)
        return sys.left
    """
    look = (
        FIND_IN_MEMORY
        + """
import builtins, json, os, sys
def main(args):
    return [hasattr(builtins, 'left'), hasattr(json, 'left'), hasattr(sys, 'left'), 'LEFT' in os.environ,
            *(os.listdir(folder) for folder in ('/workspace', '/tmp', '/dev/shm')),
            found(args['first'], args['second'])]
"""
    )
    secret = {"first": "left-over-", "second": "secret-of-one-run"}
    async with running(tmp_path, prepared=2) as trial:
        for _ in range(5):
            assert await trial.value(leave, secret) == "left-over-secret-of-one-run"
            assert await trial.value(look, secret) == [False] * 4 + [[], [], []] + [False]


async def test_memory_search_finds_value_present_in_run(tmp_path: Path) -> None:
    code = (
        FIND_IN_MEMORY
        + "def main(args):\n    kept = args['a'] + args['b']\n    return found(args['a'], args['b']) and bool(kept)"
    )
    async with running(tmp_path) as trial:
        assert await trial.value(code, {"a": "need", "b": "le"}) is True


async def test_nothing_of_the_server_is_in_the_memory_of_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERVER_TOKEN", "token-of-the-server")
    code = FIND_IN_MEMORY + (
        "def main(args): return [found(args['a'], args['b']), 'SERVER' in open('/proc/self/environ').read()]"
    )
    async with running(tmp_path, prepared=2) as trial:
        assert await trial.value(code, {"a": "token-of-", "b": "the-server"}) == [False, False]


async def test_two_runs_at_a_time_never_share_a_net_namespace(tmp_path: Path) -> None:
    code = AT_ONCE + "def main(args): wait(); return os.stat('/proc/self/ns/net').st_ino"
    async with running(tmp_path, prepared=2) as trial:
        found = await at_once(trial.host, *(trial.value(code) for _ in range(6)))
        assert len(set(found)) == 6
        assert Path("/proc/self/ns/net").stat().st_ino not in found


@contextlib.contextmanager
def free_descriptors(count: int) -> Iterator[None]:
    """Let this process open only `count` more descriptors."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(path.name) for path in Path("/proc/self/fd").iterdir())
    filling = [os.dup(0)]
    while filling[-1] < highest:
        filling.append(os.dup(0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (filling[-1] + 1 + count, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for descriptor in filling:
            os.close(descriptor)


@pytest.mark.full
async def test_a_lost_descriptor_of_an_answer_takes_no_net_namespace(tmp_path: Path) -> None:
    offer = skillery_sandbox()
    sandbox = offer.open(offer.settings(), Place(tmp_path))
    capabilities = sandbox.look_around(Warmth(prepared=0, recycle_runs=1000, recycle_seconds=3600))
    pool, demand = capabilities.pool, Demand(shape(limits_of(Limits())))
    await pool.start()
    try:
        for count in range(16):
            for _ in range(SLOTS):
                try:
                    with free_descriptors(count):
                        pool.drop(await pool.take(demand))
                        break
                except OSError:
                    continue
        cell = await pool.take(demand)
        pool.drop(cell)
        assert cell.slot >= 0
    finally:
        await capabilities.close()
        await sandbox.close()


LO = """
import socket
def up():
    try: return socket.create_connection(('127.0.0.1', 3128), 5).close() is None
    except OSError: return False
def main(args):
    if args: wait()
    return [up(), os.stat('/proc/self/ns/net').st_ino]
"""


async def has_lo(trial: Trial, network: tuple[str, ...], host: MemoryHost | None = None) -> tuple[bool, int]:
    """Return whether a run has a network, and its namespace. With a `host`, the run is one of `at_once`."""
    job = Job("run_1", CodeCall(AT_ONCE + LO, "main"), json.dumps(host is not None).encode(), network=network)
    is_up, namespace = value_of(await trial.sandbox.run(job, host or MemoryHost()))
    return is_up, namespace


@pytest.mark.parametrize("prepared", [0, 2])
async def test_only_runs_with_network_have_lo_and_no_run_reuses_their_namespace(tmp_path: Path, prepared: int) -> None:
    async with running(tmp_path, prepared=prepared) as trial:
        for network in (("http://api.test",), ()) * 4:
            assert (await has_lo(trial, network))[0] is bool(network)
        host = MemoryHost()
        together = await at_once(host, *(has_lo(trial, network, host) for network in (("http://api.test",), ()) * 3))
        assert [is_up for is_up, _ in together] == [True, False] * 3
        assert len({namespace for _, namespace in together}) == 6


async def test_runs_with_network_take_no_prepared_place(tmp_path: Path) -> None:
    async with running(tmp_path, prepared=2) as trial:
        await eventually_async(lambda: len(places()) == 2)  # the cell of the first test run has ended
        waiting = places()
        for _ in range(3):
            await has_lo(trial, ("http://api.test",))
        assert waiting <= places()
        await has_lo(trial, ())  # its limits are those of prepared places
        await eventually_async(lambda: not waiting <= places())


async def test_a_server_that_may_open_few_files_runs_all_the_same(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = max(map(int, os.listdir("/proc/self/fd")))  # noqa: PTH208 - other tests of this process leave servers open
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + 170, hard))
    try:
        async with running(tmp_path, prepared=1) as trial:
            await trial.is_well()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGKILL])
async def test_a_run_with_network_outlives_a_lost_zygote_too(tmp_path: Path, number: int) -> None:
    async with running(tmp_path, prepared=1) as trial:
        os.kill(zygotes()[0], number)
        assert (await has_lo(trial, ("http://api.test",)))[0] is True


@pytest.mark.usefixtures("patient")
async def test_runs_with_a_thousand_blobs_each_are_no_harm_to_each_other(tmp_path: Path) -> None:
    async with running(tmp_path, prepared=1) as trial:
        first, blobs = zygotes(), tuple(trial.blob(f"blob:{'n' * 40}{number}", b"x") for number in range(1000))
        code = "import os\ndef main(args): return len(os.listdir('/blobs'))"
        many = [trial.value(code, blobs=blobs) for _ in range(4)]
        few = [trial.value("def main(args): return 0") for _ in range(4)]
        assert await asyncio.gather(*many, *few) == [1000] * 4 + [0] * 4
        assert zygotes() == first


async def test_more_runs_than_are_prepared_do_not_wait_for_each_other(tmp_path: Path) -> None:
    async with running(tmp_path, prepared=1) as trial:
        code = """
        import time
        def main(args):
            begun = time.monotonic()
            time.sleep(args['seconds'])
            return begun, time.monotonic()
        """

        async def overlap(seconds: float) -> bool:
            """Return whether two of the runs overlap. Runs that wait for each other would not."""
            times = await asyncio.gather(*(trial.value(code, {"seconds": seconds}) for _ in range(8)))
            return any(one[0] < other[0] < one[1] for one in times for other in times)

        # A loaded machine may need longer than 1.5 s from one start to the next.
        assert await overlap(1.5) or await overlap(15)


async def test_a_waiting_engine_uses_no_processor(tmp_path: Path) -> None:
    async with running(tmp_path, prepared=3) as trial:
        await trial.is_well()
        async with asyncio.timeout(300):  # the engine still prepares runs at first
            while True:
                before = cpu_ticks()
                await asyncio.sleep(1)  # the period in which the engine does nothing
                if cpu_ticks() <= before + 1:
                    return


@pytest.mark.usefixtures("patient")
async def test_server_with_hundreds_of_descriptors_keeps_its_zygote(tmp_path: Path) -> None:
    """The zygote has net namespaces at high numbers, and the server passes on its socket at a number of its own."""
    with contextlib.ExitStack() as held:
        for _ in range(300 - len(list(Path("/proc/self/fd").iterdir()))):
            held.callback(os.close, os.dup(0))
        async with running(tmp_path, prepared=0) as trial:
            [zygote] = zygotes()
            code = "import time\ndef main(args): time.sleep(0.5); return args['x']"
            runs = (trial.value(code, {"x": number}) for number in range(12))
            assert await asyncio.gather(*runs) == [*range(12)]
            assert zygotes() == [zygote]


def test_the_settings_of_the_engine_can_be_set() -> None:
    settings = skillery_sandbox().settings
    assert {"prepared", "recycle_runs", "recycle_minutes"} <= set(settings.__struct_fields__)
