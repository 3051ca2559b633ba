"""Cases for both backends: values, failures, limits, facts about the sandbox, and attacks."""

from __future__ import annotations

import platform
from typing import Any

import msgspec

from skillery.backends import Limits

QUICK = Limits(timeout_ms=300_000, memory_mb=256)
LONG = Limits(timeout_ms=300_000)
SMALL = Limits(timeout_ms=300_000, memory_mb=96, processes=20, disk_mb=8, disk_files=100, tmp_mb=4)
SHORT = Limits(timeout_ms=400, memory_mb=256)
TOOLS = """
import errno, fcntl, locale, os, resource, signal, socket, sys, time
def tried(act, *args, **more):
    try:
        found = act(*args, **more)
    except Exception as error:
        return [type(error).__name__, errno.errorcode.get(getattr(error, 'errno', None))]
    return 'done' if found is None else found
def main(args):
    return """


class Case(msgspec.Struct, frozen=True):
    """One case. `code` defines main(args)."""

    code: str
    args: dict[str, Any] = {}
    limits: Limits = QUICK
    environment: dict[str, str] = {}
    network: tuple[str, ...] = ()
    skill: bool = False
    """Run the code as a skill, not with run_code."""


def value(*lines: str, network: tuple[str, ...] = ()) -> Case:
    """Return the case of one expression, which may use all names of TOOLS."""
    return Case(TOOLS + "(" + " ".join(lines) + ")", network=network)


VALUES = {
    "arguments come back": Case("def main(args): return args", {"a": [1, 2.5, None, True, "grüße"], "b": 10**30}),
    "null": Case("def main(args): pass"),
    "a tuple": Case("def main(args): return (1, ('ü',))"),
    "a megabyte": Case("def main(args): return 'x' * (1 << 20)"),
    "an async function": Case("async def main(args): return 7"),
    "a summary": Case("import runtime\ndef main(args): runtime.summary('did it')"),
    "all streams": Case("""
        import os, sys
        from runtime import log
        def main(args):
            print('a'); print('b', file=sys.stderr); log.info('c'); os.system('echo d'); print(chr(0xd800), chr(27))
    """),
    "a flood of log": Case("def main(args):\n    for n in range(300_000): print(n)"),
    "blobs": Case("""
        from runtime import blobs
        def main(args):
            return [blobs.read_text('blob:in'), blobs.read_text(blobs.write_json({'a': 1})), len(blobs.write_text('x'))]
    """),
    "a blob of another identity": Case("from runtime import blobs\ndef main(args): blobs.read_text('blob:other')"),
    "a skill": Case("def main(args): return [__name__, __file__]", skill=True),
    "a skill that is mounted": Case("import skills.other.one as one\ndef main(args): return one.main({'x': 1})"),
    "secrets": Case("import os\ndef main(args): return sorted(os.environ.items())", environment={"API_KEY": "k"}),
    "programs": Case("""
        import subprocess
        def main(args):
            script = 'echo $HOME; id -u; pwd; umask'
            return subprocess.run(['sh', '-c', script], capture_output=True, text=True).stdout
    """),
    "threads": Case("""
        from concurrent.futures import ThreadPoolExecutor
        def main(args):
            with ThreadPoolExecutor(4) as pool: return list(pool.map(str, range(20)))
    """),
}
SIGNALS = ("SIGKILL", "SIGTERM", "SIGSEGV", "SIGABRT", "SIGRTMIN")
FAILURES = {
    "an exception": Case("def inner(): raise ValueError('no such customer')\ndef main(args): inner()"),
    "an exception of a skill": Case("import json\ndef main(args): json.loads('{')", skill=True),
    "a syntax error": Case("def main(args):\n    return (\n"),
    "a missing function": Case("def other(args): pass"),
    "a missing module": Case("import numpy_is_not_here\ndef main(args): pass"),
    "sys.exit": Case("import sys\ndef main(args): sys.exit(0)"),
    "an interrupt": Case("import os, time\ndef main(args): os.kill(os.getpid(), 2); time.sleep(5)"),
    "exit 0": Case("import os\ndef main(args): os._exit(0)"),
    "exit 3": Case("import os\ndef main(args): print('x', flush=True); os._exit(3)"),
    "exit 139": Case("import os\ndef main(args): os._exit(139)"),
    "a crash": Case("import ctypes\ndef main(args): ctypes.string_at(1)"),
    "a closed channel": Case("import os\ndef main(args): os.close(3); return 1"),
    "garbage on the channel": Case("import os\ndef main(args): os.write(3, b'garbage' * 1000)"),
    "an unknown word": Case("""
        import os, struct
        def main(args): os.write(3, struct.pack('>IQ', 14, 0) + b'{"op":"shell"}')
    """),
    "an object": Case("def main(args): return object()"),
    "nan": Case("def main(args): return float('nan')"),
    "too large a result": Case("def main(args): return 'x' * (17 << 20)"),
    "broken builtins": Case("import builtins\ndef main(args): builtins.len = None; raise ValueError"),
    **{name: Case(f"import os, signal\ndef main(args): os.kill(os.getpid(), signal.{name})") for name in SIGNALS},
}
FILL = """
def main(args):
    with open('FOLDER/x', 'wb', buffering=0) as file:
        for count in range(500):
            try:
                if file.write(bytes(1 << 20)) < 1 << 20: return count
            except OSError as error: return [count, error.errno]
"""
LIMITED = {
    "time": Case("def main(args):\n    print('so far')\n    while True: pass", limits=SHORT),
    "time of a stopped process": Case("import os\ndef main(args): os.kill(os.getpid(), 19)", limits=SHORT),
    "one absurd allocation": Case("def main(args): return len(b'x' * 10**12)", limits=SMALL),
    "the memory of a tree": Case(
        """
        import os, time
        def main(args):
            for _ in range(8):
                if os.fork() == 0:
                    kept = bytearray(os.urandom(1)) * (30 << 20)
                    time.sleep(1e6)
            time.sleep(100)
        """,
        limits=SMALL,
    ),
    "processes": Case(
        """
        import os, time
        def main(args):
            for count in range(1000):
                try:
                    if os.fork() == 0: time.sleep(1e6)
                except BlockingIOError: return count
        """,
        limits=SMALL,
    ),
    "threads": Case(
        """
        import threading, time
        def main(args):
            for count in range(1000):
                try: threading.Thread(target=time.sleep, args=(1e6,), daemon=True).start()
                except RuntimeError: return count
        """,
        limits=SMALL,
    ),
    "files": Case(
        """
        def main(args):
            for count in range(1000):
                try: open(f'/workspace/{count}', 'w').close()
                except OSError as error: return [count, error.errno]
        """,
        limits=SMALL,
    ),
    **{
        f"the size of {folder}": Case(FILL.replace("FOLDER", folder), limits=SMALL)
        for folder in ("/workspace", "/tmp", "/dev/shm")
    },
    "the number and size of blobs": Case(
        """
        from runtime import blobs
        def tried(size):
            try: return bool(blobs.write_bytes(bytes(size)))
            except OSError as error: return str(error)
        def main(args): return [tried(size) for size in (1, 2 << 20, 1, 1)]
        """,
        limits=Limits(timeout_ms=300_000, blobs=3, blobs_mb=1),
    ),
}
FACTS = {
    "uids and groups": value("os.getresuid(), os.getresgid(), os.getgroups()"),
    "its number": value("os.getpid(), os.getppid()"),
    "session and group": value("os.getsid(0), os.getpgrp()"),
    "status": value(
        "[line.split() for line in open('/proc/self/status') if line.startswith(",
        "('Cap', 'NoNew', 'Seccomp:', 'Uid', 'Gid', 'Groups', 'Threads', 'Sig', 'Umask'))]",
    ),
    "rlimits": value("{n: resource.getrlimit(getattr(resource, n)) for n in dir(resource) if n.startswith('RLIMIT')}"),
    "the root": value("{name: os.lstat('/' + name).st_mode >> 12 for name in os.listdir('/')}"),
    "owners in the root": value("{name: os.lstat('/' + name).st_uid for name in os.listdir('/')}"),
    "devices": value("{n: [s.st_mode, s.st_rdev] for n in os.listdir('/dev') for s in [os.lstat('/dev/' + n)]}"),
    "mount flags": value(
        "{folder: os.statvfs(folder).f_flag & 15 for folder in ('/', '/usr', '/proc', '/workspace', '/tmp',",
        "'/dev/shm', '/skills', '/skills/other.one', '/blobs', '/blobs/blob:in', '/run')}",
    ),
    "room for files": value("{f: os.statvfs(f).f_files for f in ('/workspace', '/tmp', '/dev/shm')}"),
    "mount flags of devices": value("[os.statvfs('/dev/' + name).f_flag & 15 for name in ('null', 'urandom')]"),
    "every mount": value("all('nosuid' in line for line in open('/proc/self/mountinfo'))"),
    "processes": value("sorted(os.listdir('/proc'))"),
    "what is in /run": value("os.listdir('/run'), os.listdir('/run/cellblock')"),
    "what is in the runtime": value("sorted(os.listdir('/run/cellblock/runtime'))"),
    "descriptors": value("[n for n in range(4096) if tried(os.fstat, n)[0] != 'OSError']"),
    "terminals": value("os.isatty(0), os.isatty(1), tried(open, '/dev/tty')"),
    "names": value("os.uname().nodename, open('/proc/self/cgroup').read().count('..')"),
    "network": value("[name for _, name in socket.if_nameindex()]"),
    "the interpreter": value(
        "list(sys.flags), sys.path, sys.argv, sys.orig_argv, os.getcwd(), sys.getfilesystemencoding(),",
        "locale.getlocale(), sys.executable",
    ),
    "modules": value("sorted(n for n in sys.modules if n.startswith(('inside', 'skill', '__main__', 'runtime')))"),
    "environment at start": value("b'SERVER' in open('/proc/self/environ', 'rb').read()"),
    "scheduling": value("os.nice(0), os.sched_getscheduler(0), open('/proc/self/oom_score_adj').read()"),
    "signals": value("[str(signal.getsignal(n)) for n in (1, 2, 3, 13, 15, 17)]"),
}
HOST_FILES = ("/etc/shadow", "/sys", "/home", "/var/log", "/opt", "/proc/sys", "/proc/kcore", "/dev/mem", "/dev/kvm")
GIVEN = ("/skills", "/skills/other.one", "/skills/other.one/code/main.py", "/blobs/blob:in")
ATTACKS = {
    "signals to others": Case("""
        import os
        def main(args):
            for pid in (-1, 1, *range(3, 500)):
                try: os.kill(pid, 9)
                except OSError: pass
            return 'still here'
    """),
    "reading pid 1": value("[tried(os.open, f'/proc/1/{n}', 0) for n in ('mem', 'environ', 'maps', 'root', 'fd/0')]"),
    "limits of pid 1": value("tried(lambda: resource.prlimit(1, 0, (0, 0)))"),
    "raising limits": value("[tried(resource.setrlimit, n, (1 << 50,) * 2) for n in range(16) if n not in (2, 10)]"),
    "making devices": value(
        "[tried(os.mknod, '/workspace/d', kind | 0o666, os.makedev(1, 1)) for kind in (0o20000, 0o60000)]"
    ),
    "setuid programs": Case("""
        import os, subprocess
        def main(args):
            os.system('cp /usr/bin/id /workspace/id; chmod 4755 /workspace/id')
            return subprocess.run(['/workspace/id', '-u'], capture_output=True, text=True).stdout
    """),
    "writing": Case("""
        import os
        def main(args):
            found = []
            for folder, folders, _ in os.walk('/'):
                if folder.startswith('/proc') or folder.count('/') > 5:
                    folders.clear()
                    continue
                try:
                    os.close(os.open(folder + '/.x', os.O_CREAT | os.O_WRONLY))
                    found.append(folder)
                except OSError: pass
            return sorted(found)
    """),
    "what is given is read-only": value(
        f"[tried(act, path) for path in {GIVEN} for act in (lambda p: os.chmod(p, 0o777), os.utime,",
        "lambda p: os.rename(p, p + 'x'), lambda p: os.truncate(p, 0), lambda p: os.link(p, '/workspace/l'))]",
    ),
    "files of the host": value(f"[os.path.exists(path) for path in {HOST_FILES}]"),
    "links out of the workspace": value("[os.symlink('/etc/shadow', '/workspace/l'), tried(open, '/workspace/l')]"),
    "sockets": value(
        "[[f, k, p, tried(lambda: socket.socket(f, k, p).close())]",
        "for f in range(46) for k in (1, 2, 3, 5) for p in (0, 1, 6, 17)]",
    ),
    "its own loopback": value(
        "tried(socket.create_connection, ('127.0.0.1', 9), 1), tried(lambda: socket.socket().bind(('127.0.0.1', 0))),",
        "[tried(socket.socket(2, 2).sendto, b'x', (a, 9)) for a in ('127.0.0.1', '127.3.3.3', '1.1.1.1')],",
        "tried(socket.socket(10, 2).sendto, b'x', ('::1', 9))",
    ),
    "a host that is not allowed": Case(
        """
        from urllib.request import urlopen
        def tried(url):
            try: urlopen(url)
            except OSError as error: return str(error)
        def main(args): return [tried(url) for url in ('http://other.test/', 'https://api.test/', 'http://127.0.0.1/')]
        """,
        network=("http://api.test",),
    ),
    "past the proxy": value(
        "[tried(socket.create_connection, to, 1) for to in (('127.0.0.1', 80), ('1.1.1.1', 80), ('::1', 3128))],",
        "tried(lambda: socket.socket().bind(('127.0.0.1', 8000)))",
        network=("http://api.test",),
    ),
    "names of hosts": value("tried(socket.getaddrinfo, 'example.com', 80)"),
    "terminal injection": value("[tried(fcntl.ioctl, 0, n, b'x') for n in (0x5412, 0x541C, 0x5423)]"),
    "namespaces": value(
        "[os.system(command + ' 2>/dev/null') != 0 for command in",
        "('unshare -U true', 'unshare -n true', 'mount -t tmpfs t /tmp', 'umount /proc')]",
    ),
    "leases and notices": value(
        "tried(fcntl.fcntl, os.open('/usr/bin', 0), fcntl.F_NOTIFY, 1),",
        "tried(fcntl.fcntl, os.open(os.__file__, 0), fcntl.F_SETLEASE, fcntl.F_RDLCK)",
    ),
    "priorities": value(
        "tried(os.nice, -5), tried(os.sched_setscheduler, 0, 1, os.sched_param(1)), tried(os.setpriority, 0, 1, -5)"
    ),
    "packages of the server": value(
        "[tried(__import__, name) for name in ('skillery', 'skillery_bubblewrap', 'cellblock', 'msgspec', 'inside', "
        "'prologue')]"
    ),
    "every system call": Case(
        """
        import ctypes, errno, os, time
        libc = ctypes.CDLL(None, use_errno=True)
        libc.syscall.restype = ctypes.c_long
        def state(pid): return open(f'/proc/{pid}/stat').read().rpartition(')')[2].split()[0]
        def verdict(number):
            reading, writing = os.pipe()
            if (child := os.fork()) == 0:
                failed = libc.syscall(ctypes.c_long(number), *[ctypes.c_long(0)] * 6) < 0
                found = ctypes.get_errno() if failed else 0
                if found in (errno.EPERM, errno.ENOSYS): os.write(writing, bytes([found]))
                os._exit(0)
            os.close(writing)
            while (now := state(child)) != 'Z':
                if now in 'ST': os.kill(child, 9)  # the call waits for an event
                time.sleep(0.001)
            os.waitpid(child, 0)
            found = os.read(reading, 1)
            os.close(reading)
            return found[0] if found else 0
        def main(args): return {str(n): verdict(n) for n in range(480) if n not in args['skip']}
        """,
        # These numbers are calls that send signals: to process group 0, which is the whole run.
        {"skip": [62, 129, 200, 234] if platform.machine() == "x86_64" else [129, 130, 131]},
        limits=LONG,
    ),
}
CASES = {
    f"{group}: {name}": case
    for group, cases in {
        "value": VALUES,
        "failure": FAILURES,
        "limit": LIMITED,
        "fact": FACTS,
        "attack": ATTACKS,
    }.items()
    for name, case in cases.items()
}
