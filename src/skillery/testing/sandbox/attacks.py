"""Attacks on a sandbox, for example escapes that worked against other sandboxes. Each case expects that they fail."""

from __future__ import annotations

import errno
import os
import platform
import signal

import pytest

from skillery.backends import Limits
from skillery.testing.sandbox.trial import SandboxCases, Trial, failure_type

REFUSED = {errno.EPERM, errno.EACCES, errno.ENOSYS}
# number on x86_64, number on aarch64, arguments
CALLS: dict[str, tuple[int, int, str]] = {
    "unshare": (272, 97, "0x10000000"),
    "setns": (308, 268, "0, 0"),
    "clone with a user namespace": (56, 220, "0x10000011, 0, 0, 0, 0"),
    "clone with high bits set": (56, 220, "(1 << 40) | 0x10000011, 0, 0, 0, 0"),
    "clone3": (435, 435, "0, 0"),
    "mount": (165, 40, "0, b'/tmp', b'tmpfs', 0, 0"),
    "umount": (166, 39, "b'/proc', 2"),
    "pivot_root": (155, 41, "b'/', b'/'"),
    "chroot": (161, 51, "b'/workspace'"),
    "open_tree": (428, 428, "-100, b'/', 1"),
    "move_mount": (429, 429, "0, 0, 0, 0, 0"),
    "fsopen": (430, 430, "b'tmpfs', 0"),
    "mount_setattr": (442, 442, "-100, b'/', 0, 0, 0"),
    "open_by_handle_at": (304, 265, "0, 0, 0"),
    "ptrace": (101, 117, "16, 1, 0, 0"),
    "process_vm_readv": (310, 270, "1, 0, 0, 0, 0, 0"),
    "process_vm_writev": (311, 271, "1, 0, 0, 0, 0, 0"),
    "pidfd_getfd": (438, 438, "0, 0, 0"),
    "kcmp": (312, 272, "1, 1, 0, 0, 0"),
    "io_uring_setup": (425, 425, "1, 0"),
    "bpf": (321, 280, "0, 0, 0"),
    "perf_event_open": (298, 241, "0, 0, -1, -1, 0"),
    "userfaultfd": (323, 282, "1"),
    "keyctl": (250, 219, "0, -3, 0"),
    "add_key": (248, 217, "b'user', b'x', b'x', 1, -3"),
    "kexec_load": (246, 104, "0, 0, 0, 0"),
    "init_module": (175, 105, "0, 0, 0"),
    "memfd_secret": (447, 447, "0"),
    "fanotify_init": (300, 262, "0, 0"),
    "syslog": (103, 116, "3, 0, 0"),
    "settimeofday": (164, 170, "0, 0"),
    "sethostname": (170, 161, "b'x', 1"),
    "personality": (135, 92, "0x0040000"),
    "an unknown call": (5000, 5000, "0"),
}
SYSCALL = """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
def syscall(number, *arguments):
    wide = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    result = libc.syscall(ctypes.c_long(number), *wide)
    return [result, ctypes.get_errno() if result < 0 else 0]
"""


class SystemCallCases(SandboxCases):
    @pytest.fixture
    def column(self) -> int:
        return {"x86_64": 0, "aarch64": 1}[platform.machine()]

    async def test_forbidden_system_calls_are_refused(self, trial: Trial, column: int) -> None:
        calls = ", ".join(f"{name!r}: syscall({call[column]}, {call[2]})" for name, call in CALLS.items())
        answers = await trial.value(f"{SYSCALL}\ndef main(args): return {{{calls}}}")
        assert {name: answer for name, answer in answers.items() if answer[0] != -1 or answer[1] not in REFUSED} == {}

    async def test_no_system_call_number_changes_the_identity_of_the_code(self, trial: Trial) -> None:
        code = f"""{SYSCALL}
import os, signal
NAMES = ('Cap', 'NoNew', 'Seccomp:', 'Uid', 'Gid')
def posture(): return [line for line in open('/proc/self/status') if line.startswith(NAMES)]
def main(args):
    before = posture()
    for number in range(600):
        if (child := os.fork()) == 0:
            signal.alarm(1)
            syscall(number, 0, 0, 0, 0, 0, 0)
            os._exit(0 if posture() == before else 77)
        if os.waitpid(child, 0)[1] == 77 << 8:
            return number
    return posture() == before
"""
        assert await trial.value(code) is True

    async def test_sockets_give_no_descriptor_of_the_server(self, trial: Trial) -> None:
        """A socket knows the process at its other end: its groups, its label, and a pidfd since Linux 6.5."""
        code = """
        import os, socket
        def main(args):
            told = []
            for number in range(8):
                try: end = socket.socket(fileno=os.dup(number))
                except OSError: continue
                for option in (31, 59, 77):
                    try: told.append((option, len(end.getsockopt(socket.SOL_SOCKET, option, 64))))
                    except OSError: pass
                try: told.append(end.setsockopt(socket.SOL_SOCKET, 76, 1))
                except OSError: pass
            return told
        """
        assert await trial.value(code) == []

    async def test_calls_by_the_x32_interface_end_the_process(self, trial: Trial) -> None:
        if platform.machine() != "x86_64":
            pytest.skip("the x32 interface exists only on x86_64")
        outcome = await trial.code(f"{SYSCALL}\ndef main(args): syscall(0x40000000 + 39)")
        assert outcome.failure is not None
        assert outcome.failure.type == "ProcessKilled"

    async def test_calls_by_the_32_bit_interface_end_the_process(self, trial: Trial) -> None:
        """Call numbers have another meaning in 32-bit mode: 20 is getpid there, and the filter would see writev."""
        if platform.machine() != "x86_64":
            pytest.skip("int 0x80 exists only on x86_64")
        code = """
        import ctypes, mmap
        def main(args):
            page = mmap.mmap(-1, 4096, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, 7)  # rwx
            page.write(b'\\xb8\\x14\\x00\\x00\\x00' + (b'\\xcd\\x80' if args['int80'] else b'\\x90\\x90') + b'\\xc3')
            return ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))()
        """
        assert await trial.value(code, {"int80": False}) == 20  # generated code runs
        outcome = await trial.code(code, {"int80": True})
        assert outcome.failure is not None
        assert outcome.failure.type == "ProcessKilled"

    async def test_terminal_injection_is_refused_whatever_the_high_bits_say(self, trial: Trial, column: int) -> None:
        ioctl = (16, 29)[column]
        calls = ", ".join(
            f"syscall({ioctl}, 0, {request}, b'x')" for request in ("0x5412", "(1 << 32) | 0x5412", "0x541C")
        )
        assert await trial.value(f"{SYSCALL}\ndef main(args): return [{calls}]") == [[-1, errno.EPERM]] * 3


class EscapeCases(SandboxCases):
    async def test_signals_reach_no_process_outside(self, trial: Trial) -> None:
        code = """
        import os, signal
        def tried(pid, number):
            try: os.kill(pid, number)
            except OSError: pass
        def main(args):
            [tried(1, number) for number in (2, 9, 11, 15)]
            tried(-1, 9)
            [tried(pid, 9) for pid in (*range(3, 4000), args['server'])]
            return 'still here'
        """
        assert await trial.value(code, {"server": os.getpid()}) == "still here"

    async def test_signals_of_files_reach_no_process_outside(self, trial: Trial) -> None:
        seen: list[int] = []
        before = signal.signal(signal.SIGURG, lambda number, _: seen.append(number))
        code = """
        import fcntl, os, signal, socket
        def main(args):
            a, b = socket.socketpair()
            for pid in (1, args['server'], args['parent'], -args['server']):
                try:
                    fcntl.fcntl(b, fcntl.F_SETOWN, pid)
                    fcntl.fcntl(b, 10, signal.SIGURG)  # F_SETSIG
                    fcntl.fcntl(b, fcntl.F_SETFL, os.O_ASYNC)
                    a.send(b'x')
                except OSError: pass
            return 'done'
        """
        try:
            assert await trial.value(code, {"server": os.getpid(), "parent": os.getppid()}) == "done"
        finally:
            signal.signal(signal.SIGURG, before)
        assert seen == []

    async def test_above_the_root_is_the_root(self, trial: Trial) -> None:
        code = """
        import os
        def same(a, b): return (a.st_dev, a.st_ino) == (b.st_dev, b.st_ino)
        def main(args):
            folder, root = os.open('/', os.O_RDONLY), os.stat('/')
            for _ in range(40): folder = os.open('..', os.O_RDONLY, dir_fd=folder)
            os.symlink('../' * 40, '/workspace/up')
            ways = [os.stat(way) for way in ('/workspace/up', '/proc/self/root/..', '/proc/self/cwd/../..')]
            return [same(way, root) for way in (os.fstat(folder), *ways)]
        """
        assert await trial.value(code) == [True] * 4

    async def test_no_object_of_the_server_is_in_the_interpreter(self, trial: Trial) -> None:
        code = """
        import gc, sys
        def main(args):
            kinds = {type(one).__module__ for one in gc.get_objects()} | {*sys.modules}
            return sorted(k for k in kinds if str(k).partition('.')[0] in args['packages'])
        """
        packages = ["skillery", "msgspec", "sqlalchemy", "litestar", "pluggy", "psycopg"]
        assert await trial.value(code, {"packages": packages}) == []

    async def test_limits_cannot_be_raised(self, trial: Trial) -> None:
        code = """
        import os, resource
        def failed(act):
            try: act()
            except (OSError, ValueError): return True
            return False
        LIMITS = ('RLIMIT_NPROC', 'RLIMIT_NOFILE', 'RLIMIT_FSIZE', 'RLIMIT_MEMLOCK', 'RLIMIT_CORE', 'RLIMIT_AS')
        def main(args):
            return [failed(lambda: resource.setrlimit(getattr(resource, n), (1 << 50, 1 << 50))) for n in LIMITS] + [
                failed(lambda: os.nice(-5)), failed(lambda: os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1)))]
        """
        assert await trial.value(code) == [True] * 8

    async def test_the_code_cannot_change_the_scheduling_of_pid_1(self, trial: Trial) -> None:
        code = """
        import ctypes, os
        libc = ctypes.CDLL(None, use_errno=True)
        def refused(act):
            try: return act() == -1
            except OSError: return True
        def main(args):
            return [refused(lambda: os.sched_setscheduler(1, os.SCHED_IDLE, os.sched_param(0))),
                    refused(lambda: os.sched_setparam(1, os.sched_param(0))),
                    refused(lambda: os.sched_setaffinity(1, {0})),
                    refused(lambda: os.setpriority(os.PRIO_PROCESS, 1, 19)),
                    refused(lambda: os.setpriority(os.PRIO_USER, 1000, 19)),
                    refused(lambda: libc.syscall(args, 1, 1, 3 << 13))]
        """
        ioprio_set = {"x86_64": 251, "aarch64": 30}[platform.machine()]
        assert await trial.value(code, ioprio_set) == [True] * 6

    async def test_many_busy_processes_end_with_their_run(self, trial: Trial) -> None:
        code = """
        import os
        def main(args):
            for _ in range(40):
                if os.fork() == 0: break
            try: os.nice(19)
            except OSError: pass
            while True: pass
        """
        outcome = await trial.code(code, limits=Limits(timeout_ms=500, processes=60, cpus=0.1))
        assert failure_type(outcome) == "TimeoutError"

    async def test_no_descriptor_can_be_sent_to_the_server(self, trial: Trial) -> None:
        code = """
        import array, socket
        def main(args):
            channel = socket.socket(fileno=3)
            try:
                channel.sendmsg([b'x'], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array('i', [0]))])
            except PermissionError:
                return 'refused'
            finally:
                channel.detach()
        """
        assert await trial.value(code) == "refused"

    async def test_pid_1_cannot_be_read(self, trial: Trial) -> None:
        code = """
        import os
        def opened(path):
            try: return bool(os.open(path, os.O_RDONLY))
            except OSError: return False
        NAMES = ('mem', 'environ', 'maps', 'root/etc/shadow', 'fd/0')
        def main(args): return [opened(f'/proc/1/{name}') for name in NAMES]
        """
        for _ in range(20):  # the protection may be set only after the code has begun
            assert await trial.value(code) == [False] * 5

    async def test_devices_cannot_be_made(self, trial: Trial) -> None:
        code = """
        import os, stat
        def main(args):
            for kind in (stat.S_IFCHR, stat.S_IFBLK):
                try: os.mknod('/workspace/d', kind | 0o666, os.makedev(1, 1))
                except OSError: continue
                return 'made'
        """
        assert await trial.value(code) is None

    async def test_programs_with_the_setuid_bit_gain_nothing(self, trial: Trial) -> None:
        code = """
        import os, subprocess
        def seen(program): return subprocess.run([program, '-u'], capture_output=True, text=True).stdout.strip()
        def main(args):
            os.system('cp /usr/bin/id /workspace/id; chmod 4755 /workspace/id')
            mounts = [line for line in open('/proc/self/mountinfo') if ' /proc ' not in line]
            return [seen('/workspace/id') == seen('/usr/bin/id') != '0', all('nosuid' in line for line in mounts)]
        """
        assert await trial.value(code) == [True, True]

    async def test_random_numbers_differ_between_runs(self, trial: Trial) -> None:
        code = """
        import random, secrets, uuid
        def main(args): return [random.random(), secrets.token_hex(), str(uuid.uuid4())]
        """
        runs = [await trial.value(code) for _ in range(6)]
        assert all(len(set(column)) == 6 for column in zip(*runs, strict=True))
