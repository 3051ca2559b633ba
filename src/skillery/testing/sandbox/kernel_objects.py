"""Kernel memory, and memory that belongs to no process."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from skillery.backends import Limits
from skillery.testing.sandbox.trial import OpenWith, SandboxCases, Trial, failure_type

SMALL = Limits(timeout_ms=300_000, memory_mb=128, processes=20)
OBJECTS = {
    "pipes": "kept.append(os.pipe())",
    "full pipes": "kept.append(os.pipe()); os.set_blocking(kept[-1][1], False); os.write(kept[-1][1], bytes(65536))",
    "pairs of sockets": "kept.append(socket.socketpair())",
    "full pairs of sockets": "kept.append(socket.socketpair()); fill_up(kept[-1][0])",
    "sockets": "kept.append(socket.socket())",
    "datagrams to itself": "kept.append(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)); send_to_itself(kept[-1])",
    "large pipes": "kept.append(os.pipe()); fcntl.fcntl(kept[-1][1], 1031, 1 << 20); fill_pipe(kept[-1][1], 1 << 20)",
    "pollers": "kept.append(select.epoll())",
    "open files": "kept.append(open('/dev/null'))",
    "memory files": "kept.append(os.memfd_create('x')); os.write(kept[-1], bytes(1 << 16))",
    "maps": "kept.append(mmap.mmap(-1, 4096, prot=mmap.PROT_READ if len(kept) % 2 else mmap.PROT_WRITE))",
    "timers": "kept.append(libc.timer_create(0, None, ctypes.byref(timer))); kept[-1] == 0 or 1 / 0",
    "locks of files": "lock(len(kept)); kept.append(1)",
    "names that are not there": "os.path.exists(f'/workspace/{len(kept)}'); kept.append(1)",
    "semaphores": "len(kept) < 128 or 1 / 0; kept.append(libc.semget(0, 32_000, 0o1600)); kept[-1] >= 0 or 1 / 0",
    "access lists": "make_with_list(len(kept)); kept.append(1)",
    "watches": "kept.append(libc.inotify_init1(0)); kept[-1] >= 0 or 1 / 0",
}
CODE = """
import ctypes, fcntl, mmap, os, select, socket, struct, time
libc, timer, kept = ctypes.CDLL(None), ctypes.c_void_p(), []
def lock(at): fcntl.fcntl(held, fcntl.F_SETLK, struct.pack('hhqqi', fcntl.F_WRLCK, 0, at * 2, 1, 0))
held = os.open('/workspace/held', os.O_RDWR | os.O_CREAT)
def entry(tag, uid=0xFFFFFFFF): return struct.pack('<HHI', tag, 7, uid)
LIST = struct.pack('<I', 2) + entry(1) + entry(2, 1000) * 8187 + entry(4) + entry(16) + entry(32)
def make_with_list(number):
    folder = f'/workspace/{os.getpid()}'
    if number == 0:
        os.mkdir(folder)
        os.setxattr(folder, 'system.posix_acl_default', LIST)  # 128 KiB in the kernel, again for each file
    os.close(os.open(f'{folder}/{number}', os.O_CREAT | os.O_WRONLY))
def widen(one):
    for option in (7, 8, 32, 33):
        try: one.setsockopt(socket.SOL_SOCKET, option, 1 << 28)
        except OSError: pass
    one.setblocking(False)
def fill_up(one):
    widen(one)
    try:
        while one.send(bytes(60_000)): pass
    except BlockingIOError: pass
def send_to_itself(one):
    widen(one)
    one.bind(('127.0.0.1', 0))
    for _ in range(400): one.sendto(bytes(60_000), one.getsockname())
def fill_pipe(one, size):
    os.set_blocking(one, False)
    os.write(one, bytes(size))
def fill():
    try:
        for _ in range(3_000): __MAKE__
    except (OSError, ArithmeticError): pass
def main(args):
    done, ends = os.pipe(), []
    for _ in range(6):
        if (child := os.fork()) == 0:
            fill()
            os.write(done[1], b'.')
            time.sleep(60)
            os._exit(0)
        ends.append(child)
    for _ in ends: os.read(done[0], 1)
    time.sleep(0.2)
    for child in ends: os.kill(child, 9)
    return 'done'
"""
ATTEMPTS = 6
LOOKS, LOOK_SECONDS = 500, 0.02
ALLOWANCE_MB = 256
"""MiB for the processes of the run and for other programs of this machine."""
SHARED = """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
libc.shmat.restype = ctypes.c_void_p
"""


class KernelObjectCases(SandboxCases):
    @pytest.mark.parametrize("kind", OBJECTS)
    async def test_kernel_memory_of_the_code_has_a_limit(self, trial: Trial, kind: str) -> None:
        """Code creates many kernel objects. The run may succeed or fail.

        In both cases, the machine loses no more memory than the run may use.
        """
        await check_bound(trial, kind)

    @pytest.mark.parametrize("kind", ["sockets", "datagrams to itself"])
    async def test_sockets_of_runs_with_a_network_have_a_bound(
        self, open_with: OpenWith | None, tmp_path: Path, kind: str
    ) -> None:
        if open_with is None:
            pytest.skip("runs of this backend have no network: `open_with` is not overridden")
        sandbox = await open_with({}, ())
        try:
            await check_bound(Trial(sandbox, tmp_path), kind, network=("http://api.test",))
        finally:
            await sandbox.close()

    async def test_shared_memory_of_the_system_is_held(self, trial: Trial) -> None:
        code = f"""{SHARED}
def main(args):
    for number in range(64):
        found = libc.shmget(0, ctypes.c_size_t(16 << 20), 0o1600)
        if found < 0: return 'refused'
        place = libc.shmat(found, None, 0)
        ctypes.memset(place, 1, 16 << 20)
        libc.shmdt(ctypes.c_void_p(place))
    return 'all of it'
"""
        outcome = await trial.code(code, limits=SMALL)
        assert failure_type(outcome) == "MemoryLimitExceeded" or outcome.result == b'"refused"'

    async def test_objects_of_system_v_are_not_shared_with_the_next_run(self, trial: Trial) -> None:
        code = f"""{SHARED}
def main(args):
    make = 0o1666 if args['make'] else 0
    return [libc.shmget(0x5eed, ctypes.c_size_t(4096), make), libc.semget(0x5eed, 1, make), libc.msgget(0x5eed, make)]
"""
        await trial.value(code, {"make": True})
        assert await trial.value(code, {"make": False}) == [-1, -1, -1]

    async def test_memory_cannot_be_pinned(self, trial: Trial) -> None:
        code = """
        import ctypes, mmap
        libc = ctypes.CDLL(None, use_errno=True)
        def main(args):
            memory = mmap.mmap(-1, 1 << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            place = ctypes.addressof(ctypes.c_char.from_buffer(memory))
            return [libc.mlock(ctypes.c_void_p(place), ctypes.c_size_t(1 << 20)), libc.mlockall(3)]
        """
        assert await trial.value(code) == [-1, -1]


async def check_bound(trial: Trial, kind: str, **options: Any) -> None:
    """Check that the machine loses no more memory than a run may use. Other programs use memory too, so only memory
    that is missing in each of several measurements counts.
    """
    usual_mb = available_mb()
    for _ in range(ATTEMPTS):
        await memory_is_back(usual_mb)
        measurement = asyncio.ensure_future(most_memory_missing())
        outcome = await trial.code(CODE.replace("__MAKE__", OBJECTS[kind]), limits=SMALL, **options)
        measurement.cancel()
        held = await measurement
        assert failure_type(outcome) in {None, "MemoryLimitExceeded"}
        if held <= SMALL.memory_mb + ALLOWANCE_MB:
            return
    raise AssertionError(f"a run of {SMALL.memory_mb} MiB held {held} MiB of {kind}")


async def memory_is_back(usual_mb: int) -> None:
    """Wait until the memory of an earlier attempt is available again, or another program has it for good."""
    for _ in range(LOOKS):
        if available_mb() >= usual_mb - SMALL.memory_mb:
            return
        await asyncio.sleep(LOOK_SECONDS)


async def most_memory_missing() -> int:
    """Measure until cancelled. Then return the largest decrease of the machine's available memory, in MiB."""
    first_mb = least = available_mb()
    try:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            least = min(least, available_mb())
    except asyncio.CancelledError:
        return first_mb - least


def available_mb() -> int:
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")) >> 10
