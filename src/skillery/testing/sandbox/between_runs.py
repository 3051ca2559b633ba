"""Traces of a run in the interpreter, in folders or in kernel objects that a later run could see."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Any

import pytest

from skillery.testing.sandbox.trial import OpenWith, SandboxCases, Trial

RUNS, LOOKS_BEFORE = 8, 3
"""More runs than a backend prepares in advance, so that some runs reuse a folder or a namespace."""
FLUSHES = 20_000
LEAVE = """
import ctypes, fcntl, json, os, random, resource, signal, socket, struct
libc = ctypes.CDLL(None, use_errno=True)
def tried(act):
    try: return act()
    except (OSError, ValueError, AttributeError): return None
def send(family, kind, address):
    with socket.socket(family, kind) as one:
        one.settimeout(0.2)
        one.connect(address)
        one.send(b'left')
def label():  # a flow label holds the text of its owner for as long as 150 seconds
    with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as one:
        to = socket.inet_pton(socket.AF_INET6, '::1')
        for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
            for share in (0, 1, 2, 3, 255):
                request = to + struct.pack('!I', 0x5EED) + struct.pack('=BBHHH4x', 0, share, 3, 150, 150)
                one.setsockopt(41, 32, request)
def bind(one, name): one.bind(name)
def main(args):
    json.left = 1; os.environ['LEFT'] = '1'; os.umask(0); random.seed(1); signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    for folder in ('/workspace', '/tmp', '/dev/shm'): open(f'{folder}/left', 'w').write('left')
    for family, host in ((socket.AF_INET, '127.0.0.1'), (socket.AF_INET, '192.0.2.1'), (socket.AF_INET, '224.0.0.1'),
                         (socket.AF_INET6, '::1'), (socket.AF_INET6, '2001:db8::1'), (socket.AF_INET6, 'ff02::1')):
        for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
            for port in (9, 3128): tried(lambda: send(family, kind, (host, port)))
    tried(label)
    channel = socket.socket(fileno=3)
    for one in (*socket.socketpair(), channel): tried(lambda: bind(one, f'\\0skillery-left-{one.fileno()}'))
    channel.detach()
    for name in ('left', '/left'): tried(lambda: libc.mq_open(name.encode(), 0o102, 0o666, None))
    for make in (lambda: libc.shmget(0x5EED, 4096, 0o1666), lambda: libc.semget(0x5EED, 1, 0o1666),
                 lambda: libc.msgget(0x5EED, 0o1666)): tried(make)
    libc.syscall(args['add_key'], b'user', b'left', b'left', 4, -4)
    for name in ('oom_score_adj', 'comm', 'timerslack_ns', 'coredump_filter', 'sched'):
        tried(lambda: open(f'/proc/self/{name}', 'w').write('1'))
    for order, value in ((fcntl.F_SETFL, os.O_APPEND | os.O_NONBLOCK), (fcntl.F_SETSIG, signal.SIGUSR1)):
        tried(lambda: fcntl.fcntl(0, order, value))
    tried(lambda: os.utime(os.__file__))
    tried(lambda: os.setxattr(os.__file__, 'user.left', b'1'))
    held = tried(lambda: os.open(os.__file__, os.O_RDONLY))
    if held is not None: tried(lambda: fcntl.flock(held, fcntl.LOCK_EX))
    return 'left'
"""
LOOK = """
import ctypes, fcntl, json, os, signal, socket, time
libc = ctypes.CDLL(None, use_errno=True)
# What these files show of the whole machine: docs/design/security.md names them.
OF_THE_HOST = {'softnet_stat', 'sockstat', 'sockstat6', 'protocols', 'stat'}
# A row for each socket that is open now, with numbers of its own.
ROWS = {'unix', 'netlink', 'ptype', 'packet', 'tcp', 'tcp6', 'udp', 'udp6'}
def text(path, name):
    try: found = open(path, errors='replace').read()
    except OSError as error: return type(error).__name__
    return len(found.splitlines()) if name in ROWS else found
def network():
    found = {}
    for folder, folders, files in os.walk('/proc/self/net'):
        folders[:] = [name for name in folders if name not in OF_THE_HOST]
        found |= {f'{folder}/{name}': text(f'{folder}/{name}', name) for name in files if name not in OF_THE_HOST}
    return found
def locked(path):
    try: held = os.open(path, os.O_RDONLY)
    except OSError: return False
    # Runs that are active now may lock the file, too. A lock that an ended run has left stays.
    until = time.monotonic() + 5
    while time.monotonic() < until:
        try: fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError: time.sleep(0.01)
        else: os.close(held); return False
    return True
def main(args):
    return {
        'module': hasattr(json, 'left'), 'variable': 'LEFT' in os.environ, 'umask': os.umask(0o22),
        'stream': [fcntl.fcntl(0, order) for order in (fcntl.F_GETFL, fcntl.F_GETSIG)],
        'signal': str(signal.getsignal(signal.SIGUSR1)), 'locked': locked(os.__file__),
        'folders': [os.listdir(folder) for folder in ('/workspace', '/tmp', '/dev/shm')],
        'shared by key': [libc.shmget(0x5EED, 4096, 0), libc.semget(0x5EED, 1, 0), libc.msgget(0x5EED, 0)],
        'queue': libc.mq_open(b'left', 0) >= 0, 'key': libc.syscall(args['request_key'], b'user', b'left', 0, -4) >= 0,
        'keys': text('/proc/keys', ''), 'network': network(),
    }
"""
CALLS = {"x86_64": {"add_key": 248, "request_key": 249}, "aarch64": {"add_key": 217, "request_key": 218}}


class BetweenRunsCases(SandboxCases):
    async def test_a_run_sees_no_traces_of_the_run_before(self, trial: Trial) -> None:
        await check_nothing_is_left(trial)

    async def test_runs_with_a_network_leave_nothing_for_the_next(
        self, open_with: OpenWith | None, tmp_path: Path
    ) -> None:
        if open_with is None:
            pytest.skip("runs of this backend have no network: `open_with` is not overridden")
        sandbox = await open_with({}, ())
        try:
            await check_nothing_is_left(Trial(sandbox, tmp_path), network=("http://api.test",))
        finally:
            await sandbox.close()

    async def test_the_disk_of_the_host_cannot_be_flushed(self, trial: Trial) -> None:
        """A flush of any file waits for the whole disk, including the writes of other processes."""
        code = """
        import ctypes, mmap, os
        libc = ctypes.CDLL(None, use_errno=True)
        def main(args):
            held = os.open(os.__file__, os.O_RDONLY)
            place = libc.mmap
            place.restype = ctypes.c_void_p
            mapped = place(None, ctypes.c_size_t(4096), 1, 1, held, ctypes.c_long(0))
            found = set()
            for _ in range(args // 4):
                found |= {libc.fsync(held), libc.fdatasync(held), libc.sync_file_range(held, 0, 0, 7)}
                found.add(libc.msync(ctypes.c_void_p(mapped), ctypes.c_size_t(4096), 4))
            os.posix_fadvise(held, 0, 0, os.POSIX_FADV_DONTNEED)
            found.add(libc.readahead(held, ctypes.c_long(0), ctypes.c_size_t(4096)))
            # A call that does nothing does not even look at its descriptor.
            found |= {libc.fsync(-1), libc.fdatasync(-1), libc.readahead(-1, ctypes.c_long(0), ctypes.c_size_t(1))}
            found.add(libc.posix_fadvise(-1, ctypes.c_long(0), ctypes.c_long(0), 4))
            own = os.open('/workspace/own', os.O_RDWR | os.O_CREAT)
            os.write(own, b'kept')
            os.fsync(own)
            return [sorted(found), os.pread(own, 4, 0).decode()]
        """
        before = flushes_of_all_disks()
        assert await trial.value(code, FLUSHES) == [[0], "kept"]
        assert flushes_of_all_disks() - before < FLUSHES // 2


async def check_nothing_is_left(trial: Trial, **options: Any) -> None:
    """Check that runs leave no trace: each value of an observation (result of LOOK) after several runs is one from
    before them.
    """
    calls = CALLS[platform.machine()]

    async def look(times: int) -> list[Any]:
        return [await trial.value(LOOK, calls, **options) for _ in range(times)]

    observations_before = await look(LOOKS_BEFORE)
    for _ in range(RUNS):
        assert await trial.value(LEAVE, calls, **options) == "left"
    for observation_after in await look(RUNS):
        new = {
            key: value
            for key, value in observation_after.items()
            if value not in [before[key] for before in observations_before]
        }
        assert new.keys() <= {"network"}, new
        assert "network" not in new, differences(observations_before, observation_after)


def differences(before: list[Any], after: Any) -> dict[str, Any]:
    """Return the files below /proc/self/net whose text in the observation `after` is in none of the observations
    `before`, as path and text.

    An observation is the result of LOOK: a dict whose key `network` maps paths to texts.
    """
    return {
        path: text
        for path, text in after["network"].items()
        if text not in [other["network"].get(path) for other in before]
    }


def flushes_of_all_disks() -> int:
    """Return the number of completed flushes of all disks, or 0 if the kernel does not report them."""
    lines = [line.split() for line in Path("/proc/diskstats").read_text().splitlines()]
    # Column 18 of /proc/diskstats: completed flush requests (Linux 5.5 and later).
    return sum(int(line[18]) for line in lines if len(line) > 18)
