"""What code can make of the kernel's own memory, and of memory that belongs to no process."""

from __future__ import annotations

import pytest

from skillery.backends import Limits
from skillery.testing.sandbox.base import SandboxCases
from skillery.testing.sandbox.trial import Trial, failure_type

SMALL = Limits(timeout_ms=30_000, memory_mb=128, processes=20)
OBJECTS = {
    "pipes": "kept.append(os.pipe())",
    "full pipes": "kept.append(os.pipe()); os.set_blocking(kept[-1][1], False); os.write(kept[-1][1], bytes(65536))",
    "pairs of sockets": "kept.append(socket.socketpair())",
    "sockets": "kept.append(socket.socket())",
    "pollers": "kept.append(select.epoll())",
    "open files": "kept.append(open('/dev/null'))",
    "memory files": "kept.append(os.memfd_create('x')); os.write(kept[-1], bytes(1 << 16))",
    "maps": "kept.append(mmap.mmap(-1, 4096, prot=mmap.PROT_READ if len(kept) % 2 else mmap.PROT_WRITE))",
    "timers": "kept.append(libc.timer_create(0, None, ctypes.byref(timer))); kept[-1] == 0 or 1 / 0",
    "locks of files": "lock(len(kept)); kept.append(1)",
    "names that are not there": "os.path.exists(f'/workspace/{len(kept)}'); kept.append(1)",
    "watches": "kept.append(libc.inotify_init1(0)); kept[-1] >= 0 or 1 / 0",
}
SHARED = """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
libc.shmat.restype = ctypes.c_void_p
"""


class KernelObjectCases(SandboxCases):
    @pytest.mark.parametrize("kind", OBJECTS)
    async def test_what_the_kernel_keeps_for_the_code_has_a_bound(self, trial: Trial, kind: str) -> None:
        """It meets an error, or the limit of its memory, or has had its fill; the next run finds nothing missing."""
        code = f"""
        import ctypes, fcntl, mmap, os, select, socket, struct
        libc, timer, kept = ctypes.CDLL(None), ctypes.c_void_p(), []
        def lock(at): fcntl.fcntl(held, fcntl.F_SETLK, struct.pack('hhqqi', fcntl.F_WRLCK, 0, at * 2, 1, 0))
        held = os.open('/workspace/held', os.O_RDWR | os.O_CREAT)
        def fill():
            try:
                for _ in range(3_000): {OBJECTS[kind]}
            except (OSError, ArithmeticError): pass
        def main(args):
            children = []
            for _ in range(6):
                if (child := os.fork()) == 0:
                    fill()
                    os._exit(0)
                children.append(child)
            [os.waitpid(child, 0) for child in children]
            return 'done'
        """
        assert failure_type(await trial.code(code, limits=SMALL)) in {None, "MemoryLimitExceeded"}

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

    async def test_what_is_shared_by_key_is_not_shared_with_the_next_run(self, trial: Trial) -> None:
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
