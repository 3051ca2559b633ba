"""Preloading: runs are forked from a process that has imported packages of their environment.

The packages are untrusted: their import must reach nothing, delay no other run and leave nothing behind, and the code
must not notice that modules were imported earlier.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from cellblock.host import processes, zygotes
from cellblock.host.plan import ENVIRONMENT
from skillery.backends import KeepsWarm, Limits, PackageMount, Place, Warm
from skillery.builtin.linux_sandbox import skillery_sandbox
from skillery.testing.sandbox import Trial
from skillery.testing.sandbox.between_runs import check_nothing_is_left
from skillery.testing.sandbox.leftovers import assert_none_since, descendants, traces
from tests.sandbox import test_sandbox_lockdown as lockdown
from tests.support.preloading_everywhere import PreloadingEverywhere
from tests.support.processes import eventually_async

TESTS = Path(__file__).parents[1]
IS_ROOT = os.geteuid() == 0
only_as_root = pytest.mark.skipif(not IS_ROOT, reason="only root can change its uid")

COUNTS = """
import os, sys, time
PID, NAMES = os.getpid(), []
print("hello from the import")
"""
IS_WARM = """
    import counts, os
    def main(args): return counts.PID != os.getpid()
    """


@asynccontextmanager
async def running(folder: Path, **settings: Any) -> AsyncIterator[Trial]:
    """Start a sandbox with these settings. Fail if processes or files are left afterwards."""
    before = traces()
    offer = skillery_sandbox()
    sandbox = offer.open(offer.settings(**({"prepared": 1} | settings)), Place(folder))
    await sandbox.start()
    try:
        yield Trial(sandbox, folder)
    finally:
        await sandbox.close()
    await assert_none_since(before, closed=True)


def kept(trial: Trial) -> dict[str, Warm]:
    assert isinstance(trial.sandbox, KeepsWarm)
    return {one.preload[0]: one for one in trial.sandbox.warm()}


async def imported(trial: Trial, mount: PackageMount, *modules: str) -> Warm:
    """Run code with the modules, which starts the preload without waiting for it. Return the state of the finished
    preload.
    """
    assert await trial.value("def main(args): return 'cold'", packages=(mount,), preload=modules) == "cold"
    await eventually_async(lambda: kept(trial)[modules[0]].state != "starting")
    return kept(trial)[modules[0]]


async def spoiled(trial: Trial, source: str) -> str:
    """Preload `evil` with this source. Check that it fails and that other runs still work. Return the message of the
    failure.
    """
    mount = trial.packages({"evil.py": source})
    found = await imported(trial, mount, "evil")
    assert (found.state, found.memory_mb) == ("failed", 0)
    await trial.is_well()
    return found.message


# -- what the code sees -----------------------------------------------------------------------------------------------


async def test_a_module_is_imported_once_and_each_run_has_it_for_itself(tmp_path: Path) -> None:
    code = """
        import counts, os, sys
        def main(args):
            counts.NAMES.append(args['x'])
            for folder in ('/workspace', '/tmp', '/dev/shm'):
                open(f'{folder}/{args["x"]}', 'w').write('mine')
            print('hello from the run')
            return [counts.NAMES, sorted(os.listdir('/workspace') + os.listdir('/tmp') + os.listdir('/dev/shm'))]
        """
    async with running(tmp_path) as trial:
        mount = trial.packages({"counts.py": COUNTS})
        found = await imported(trial, mount, "counts")
        assert (found.lock, found.preload, found.state, found.message) == (mount.lock, ("counts",), "ready", "")
        assert 1 < found.memory_mb < 100
        for x in ("a", "b", "c"):
            outcome = await trial.code(code, {"x": x}, packages=(mount,), preload=("counts",))
            assert outcome.result == json.dumps([[x], [x, x, x]], separators=(",", ":")).encode()
            assert outcome.log.head == b"hello from the run\n"
        assert await trial.value(IS_WARM, packages=(mount,), preload=("counts",))


async def test_random_numbers_and_names_differ_from_run_to_run(tmp_path: Path) -> None:
    numpy = {
        "numpy/__init__.py": "",
        "numpy/random/__init__.py": "import os\nSTATE = [1]\ndef seed(): STATE[:] = os.urandom(8)",
    }
    code = """
        import random, uuid, numpy.random
        def main(args): return [random.random(), uuid.uuid4().hex, numpy.random.STATE]
        """
    async with running(tmp_path) as trial:
        mount = trial.packages({**numpy, "uses.py": "import random, uuid, numpy.random\nrandom.random()"})
        assert (await imported(trial, mount, "uses")).state == "ready"
        drawn = [await trial.value(code, packages=(mount,), preload=("uses",)) for _ in range(4)]
        for same in zip(*drawn, strict=True):
            assert len({str(one) for one in same}) == 4


async def test_run_keeps_variable_set_by_import_and_resets_other_state(tmp_path: Path) -> None:
    module = """
        import os, sys, warnings
        THREADS = os.environ.get('OMP_NUM_THREADS')
        os.environ['SET_BY_IMPORT'] = '1'
        warnings.simplefilter('ignore', DeprecationWarning)
        sys.argv.append('x')
        os.chdir('/tmp')
        open('/workspace/mine', 'w').close()
        sys.stdout = None
        """
    code = """
        import counts, os, sys
        def main(args):
            print('said')
            names = sorted(name for name in os.environ if 'THREADS' in name or 'SET_BY' in name)
            return [counts.THREADS, names, sys.argv, os.getcwd(), os.listdir()]
        """
    async with running(tmp_path) as trial:
        mount = trial.packages({"counts.py": module})
        assert (await imported(trial, mount, "counts")).state == "ready"
        outcome = await trial.code(code, packages=(mount,), preload=("counts",))
        assert outcome.result == b'["1",["SET_BY_IMPORT"],[""],"/workspace",[]]'
        assert outcome.log.head == b"said\n"


async def test_paths_are_in_the_same_order_as_where_nothing_is_preloaded(tmp_path: Path) -> None:
    code = "import sys, one, two\ndef main(args): return [sys.path, one.__file__, two.__file__, one.greet]"
    async with running(tmp_path) as trial:
        packages = trial.packages({"one.py": "greet = 1"}), trial.packages({"two.py": ""})
        skill = trial.skill("greet", {"main.py": "def main(args): pass", "one.py": "greet = 2"}, "main.py")
        cold = await trial.value(code, packages=packages, skills=(skill,))
        await imported(trial, packages[0], "one")
        assert await trial.value(code, packages=packages, preload=("one",), skills=(skill,)) == cold


async def test_runs_with_secrets_or_network_and_programs_are_not_forked_from_it(tmp_path: Path) -> None:
    async with running(tmp_path) as trial:
        mount = trial.packages({"counts.py": COUNTS})
        await imported(trial, mount, "counts")
        options: dict[str, Any] = {"packages": (mount,), "preload": ("counts",)}
        assert await trial.value(IS_WARM, **options)
        assert not await trial.value(IS_WARM, environment={"API_KEY": "k"}, **options)
        assert not await trial.value(IS_WARM, network=("https://example.com",), **options)
        assert await trial.value("echo 1", language="bash", **options) == 1


async def test_limits_hold_for_runs_of_it(tmp_path: Path) -> None:
    async with running(tmp_path) as trial:
        mount = trial.packages({"counts.py": COUNTS + "BALLAST = bytearray(os.urandom(1 << 20)) * 200"})
        await imported(trial, mount, "counts")
        options: dict[str, Any] = {"packages": (mount,), "preload": ("counts",), "limits": Limits(memory_mb=256)}
        assert await trial.value(IS_WARM, **options)
        eats = "import counts\ndef main(args):\n    kept = []\n    while True: kept.append(bytearray(b'x' * (8 << 20)))"
        outcome = await trial.code(eats, **options)
        assert outcome.failure is not None
        assert outcome.failure.type in {"MemoryLimitExceeded", "MemoryError"}
        forks = "import os, time\ndef main(args):\n    while True:\n        if os.fork() == 0: time.sleep(60)"
        outcome = await trial.code(forks, **options | {"limits": Limits(processes=8)})
        assert outcome.failure is not None
        assert outcome.failure.type == "BlockingIOError"
        assert await trial.value(IS_WARM, **options)


# -- starting and ending ----------------------------------------------------------------------------------------------


@pytest.mark.full
async def test_failed_preload_reports_reason_and_run_imports_module_itself(tmp_path: Path) -> None:
    async with running(tmp_path, preload_seconds=1) as trial:
        assert "longer than 1 seconds" in await spoiled(trial, "import time; time.sleep(60)")
        assert "longer than 1 seconds" in await spoiled(trial, "while True: pass")
    async with running(tmp_path, environment_memory_mb=128) as trial:
        assert "No module named 'nothing_of_the_kind'" in await spoiled(trial, "import nothing_of_the_kind")
        assert await spoiled(trial, "raise SystemExit(3)") == "import evil: SystemExit: 3"
        assert (
            await spoiled(trial, "raise ValueError('a\\nb' + 'c' * 999)") == "import evil: ValueError: a b" + "c" * 272
        )
        assert "ended" in await spoiled(trial, "import os; os._exit(0)")
        assert "ended" in await spoiled(trial, "import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
        assert "threads" in await spoiled(
            trial, "import threading, time\nthreading.Thread(target=time.sleep, args=(60,), daemon=True).start()"
        )
        assert "processes" in await spoiled(trial, "import os, time\nif os.fork() == 0: time.sleep(60)")
        assert "128" in await spoiled(trial, "kept = []\nwhile True: kept.append(bytearray(b'x' * (4 << 20)))")
        broken = trial.packages({"evil.py": "import os\nif os.getpid() != 2: raise ImportError\nX = 1"})
        assert (await imported(trial, broken, "evil")).state == "failed"
        code = "import evil\ndef main(args): return evil.X"
        assert await trial.value(code, packages=(broken,), preload=("evil",)) == 1
        assert not [one for one in kept(trial).values() if one.state == "ready"]


async def test_runs_do_not_wait_for_an_import(tmp_path: Path) -> None:
    async with running(tmp_path, preload_seconds=600) as trial:
        mount = trial.packages({"slow.py": "import os, time\ntime.sleep(600 if os.getpid() != 2 else 0)"})
        for _ in range(3):
            await trial.value("def main(args): pass", packages=(mount,), preload=("slow",))
            assert kept(trial)["slow"].state == "starting"


@pytest.mark.full
async def test_a_sandbox_that_is_closed_waits_for_no_import(tmp_path: Path) -> None:
    for pause in (0.0, 0.005, 0.05, 0.1, 0.2, 0.3):
        async with running(tmp_path, preload_seconds=600) as trial:
            mount = trial.packages({"slow.py": "import os, time\ntime.sleep(600 if os.getpid() != 2 else 0)"})
            await trial.value("def main(args): pass", packages=(mount,), preload=("slow",))
            await asyncio.sleep(pause)
            async with asyncio.timeout(300):
                await trial.sandbox.close()


async def test_least_recently_used_environment_zygote_is_replaced(tmp_path: Path) -> None:
    async with running(tmp_path, environment_zygotes=2) as trial:
        mounts = {name: trial.packages({f"{name}.py": ""}) for name in ("one", "two", "three")}
        await imported(trial, mounts["one"], "one")
        begun = time.monotonic()
        await imported(trial, mounts["two"], "two")
        await asyncio.sleep(time.monotonic() - begun)  # now it has been idle for longer than its start took
        await trial.value("def main(args): pass", packages=(mounts["one"],), preload=("one",))

        async def use_three() -> bool:
            await trial.value("def main(args): pass", packages=(mounts["three"],), preload=("three",))
            return "three" in kept(trial) and kept(trial)["three"].state == "ready"

        await eventually_async(use_three)
        assert set(kept(trial)) == {"one", "three"}


async def test_an_idle_zygote_ends_after_its_last_run(tmp_path: Path) -> None:
    others = frozenset(processes.children(os.getpid()))
    async with running(tmp_path, environment_idle_seconds=1) as trial:
        mount = trial.packages({"counts.py": COUNTS})
        before = len(descendants(os.getpid(), others))
        code = "import time, counts\ndef main(args): time.sleep(2); return counts.PID"

        async def outlasts_the_idle_time() -> bool:
            await trial.value("def main(args): pass", packages=(mount,), preload=("counts",))
            # On a loaded machine, the zygote may end before it is seen, or before the run begins.
            await eventually_async(lambda: "counts" not in kept(trial) or kept(trial)["counts"].state != "starting")
            return bool(await trial.value(code, packages=(mount,), preload=("counts",)) != 2)

        await eventually_async(outlasts_the_idle_time)
        await eventually_async(lambda: not kept(trial))
        await eventually_async(lambda: len(descendants(os.getpid(), others)) <= before)
        await trial.is_well()


async def test_no_environment_zygote_is_kept_if_settings_disable_them(tmp_path: Path) -> None:
    for settings in ({"recycle_runs": 1}, {"environment_zygotes": 0}):
        async with running(tmp_path, **settings) as trial:
            mount = trial.packages({"counts.py": COUNTS})
            assert not await trial.value(IS_WARM, packages=(mount,), preload=("counts",))
            assert kept(trial) == {}


async def test_a_zygote_is_replaced_after_so_many_runs_without_a_wait(tmp_path: Path) -> None:
    async with running(tmp_path, recycle_runs=10) as trial:
        mount = trial.packages({"counts.py": "import os, secrets\nPID, WHO = os.getpid(), secrets.token_hex()"})
        await imported(trial, mount, "counts")
        code = "import counts\ndef main(args): return [counts.PID != 2, counts.WHO]"
        seen = set()

        async def is_replaced() -> bool:
            is_warm, who = await trial.value(code, packages=(mount,), preload=("counts",))
            assert is_warm
            seen.add(who)
            return len(seen) > 1

        for _ in range(25):
            await is_replaced()
        assert len(seen) <= 3
        await eventually_async(is_replaced)


@pytest.mark.full
async def test_replacing_zygote_loses_no_run_being_forked(tmp_path: Path) -> None:
    async with running(tmp_path, recycle_runs=4) as trial:
        mount = trial.packages({"counts.py": COUNTS})
        await imported(trial, mount, "counts")
        for number in range(150):
            assert await trial.value(IS_WARM, packages=(mount,), preload=("counts",)), number
            await asyncio.sleep(0.01 * (number % 5))


async def test_killed_environment_zygote_fails_only_its_runs(tmp_path: Path) -> None:
    others = frozenset(processes.children(os.getpid()))
    async with running(tmp_path) as trial:
        before = descendants(os.getpid(), others)
        mount = trial.packages({"counts.py": COUNTS})
        await imported(trial, mount, "counts")
        sleeps = "import runtime, time, counts\ndef main(args): runtime.blobs.write_text('x'); time.sleep(1e6)"
        run = asyncio.ensure_future(trial.code(sleeps, packages=(mount,), preload=("counts",)))
        await eventually_async(lambda: trial.host.blobs)
        mine = descendants(os.getpid(), others) - before
        assert len(mine) >= 5
        for pid in sorted(mine):
            with contextlib.suppress(ProcessLookupError):  # the process has ended together with another one
                os.kill(pid, signal.SIGKILL)
        outcome = await run
        assert outcome.failure is not None
        # A process that is still dying could take the next run: its code may have started, so the run is not repeated.
        await eventually_async(lambda: not mine & descendants(os.getpid(), others))
        for _ in range(3):  # not preloaded
            assert not await trial.value(IS_WARM, packages=(mount,), preload=("counts",))
        assert kept(trial)["counts"].state == "failed"


@only_as_root
async def test_packages_that_only_root_may_read_are_read(tmp_path: Path) -> None:
    async with running(tmp_path) as trial:
        mount = trial.packages({"counts.py": COUNTS})
        (mount.folder / "counts.py").chmod(0o600)
        mount.folder.chmod(0o700)
        assert (await imported(trial, mount, "counts")).state == "ready"
        skill = trial.skill("greet", {"code/main.py": "def main(args): pass", "NAME": "greet"})
        skill.folder.chmod(0o700)
        code = "import counts\ndef main(args): return [counts.PID != 2, open('/skills/greet/NAME').read()]"
        found = await trial.value(code, packages=(mount,), preload=("counts",), skills=(skill,))
        assert found == [True, "greet"]


async def test_a_missing_folder_is_reported_without_its_path(tmp_path: Path) -> None:
    async with running(tmp_path) as trial:
        missing = PackageMount("ab" * 32, tmp_path / "not-there")
        await trial.code("def main(args): pass", packages=(missing,), preload=("counts",))
        await eventually_async(lambda: kept(trial)["counts"].state == "failed")
        assert kept(trial)["counts"].message == "no run could be forked: No such file or directory"


async def test_runs_of_same_environment_leave_nothing_for_each_other(tmp_path: Path) -> None:
    async with running(tmp_path) as trial:
        mount = trial.packages({"counts.py": "import os\nPID = os.getpid()"})
        await imported(trial, mount, "counts")
        await check_nothing_is_left(trial, packages=(mount,), preload=("counts",))
        assert kept(trial)["counts"].state == "ready"


async def test_runs_of_same_environment_share_no_memory_of_import(tmp_path: Path) -> None:
    """A fork copies memory, except memory that a module has mapped for several processes."""
    code = "import shares\ndef main(args):\n    found = shares.M[0]\n    shares.M[0] = 7\n    return found"
    async with running(tmp_path) as trial:
        # Without cgroups, a module gets no shared memory without a file.
        for maps in ("mmap.mmap(FILE.fileno(), 4096)", *(["mmap.mmap(-1, 4096)"] if IS_ROOT else [])):
            lines = ["import mmap, tempfile", "FILE = tempfile.TemporaryFile()", "FILE.truncate(4096)", f"M = {maps}"]
            mount = trial.packages({"shares.py": "\n".join(lines)})
            state = await imported(trial, mount, "shares")
            found = [await trial.value(code, packages=(mount,), preload=("shares",)) for _ in range(2)]
            assert (state.message, found) == ("the import left memory that processes share", [0, 0])


# -- attacks ----------------------------------------------------------------------------------------------------------

ATTACKS = """
    import ctypes, errno, os, signal, socket, sys
    LIBC = ctypes.CDLL(None, use_errno=True)

    def call(number, *args):
        if LIBC.syscall(number, *args) >= 0:
            return 'done'
        return errno.errorcode.get(ctypes.get_errno())

    def tried(attempt):
        try:
            return str(attempt())
        except BaseException as error:
            return type(error).__name__

    def connect(port):
        with socket.create_connection(('127.0.0.1', port), 2):
            return 'connected'

    def uncover():
        # a new user namespace with all rights in it, and the files below the mounts
        pid = os.fork()
        if pid == 0:
            found = []
            LIBC.unshare(0x10000000 | 0x00020000)
            for place in (b'/proc', b'/tmp', b'/workspace', b'/usr', b'/packages', b'/'):
                found.append(LIBC.umount2(place, 2))
            found += [LIBC.mount(b'/proc', b'/tmp', None, 4096, None)] if found[0] == 0 else []
            os._exit(0 if any(one == 0 for one in found) or os.path.exists('/etc/shadow') else 7)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    def fields(name):
        lines = dict(line.split(':', 1) for line in open('/proc/self/status'))
        return lines[name].strip()

    HOST_FILES = ('/etc/shadow', '/proc/sys', '/home', '/var/log')
    FROZEN = ('', '/usr', f'/packages/{LOCK}', '/run/cellblock')
    FOUND = {
        'processes': sorted(int(name) for name in os.listdir('/proc') if name.isdigit()),
        'kill the server': tried(lambda: os.kill(SERVER, signal.SIGKILL)),
        'kill the keeper': tried(lambda: [os.kill(1, n) for n in (2, 9, 15)] and 'asked'),
        'parent': os.getppid(),
        'read the keeper': tried(lambda: os.listdir('/proc/1/fd')),
        'memory of the keeper': tried(lambda: open('/proc/1/mem', 'rb').read(1)),
        'root of the keeper': tried(lambda: os.listdir('/proc/1/root')),
        'ptrace': call(101, 16, 1, 0, 0),
        'connect': tried(lambda: connect(PORT)),
        'network of the server': os.stat('/proc/self/ns/net').st_ino == NETWORK,
        'unix': tried(lambda: socket.socket(socket.AF_UNIX)),
        'host files': [path for path in (FILE, HOME, *HOST_FILES) if os.path.exists(path)],
        'write': [tried(lambda: open(f'{folder}/new', 'w')) for folder in FROZEN],
        'mount': call(165, b'tmpfs', b'/usr', b'tmpfs', 0, 0),
        'umount': call(166, b'/proc', 2),
        'mknod': tried(lambda: os.mknod('/tmp/disk', 0o60666, os.makedev(8, 0))),
        'setuid': tried(lambda: os.setuid(0)),
        'bpf': call(321, 0, 0, 0),
        'keys': call(250, 0, 0, 0),
        'uncover': uncover(),
        'streams': [os.readlink(f'/proc/self/fd/{n}') for n in (0, 1, 2)],
        'descriptors': len(os.listdir('/proc/self/fd')),
        'environment': sorted(name for name in os.environ if 'THREADS' not in name),
        'ids': [fields('Uid'), fields('Gid')],
        'groups': sorted(set(os.getgroups()) - {65534}),
        'capabilities': [fields(name) for name in ('CapInh', 'CapPrm', 'CapEff', 'CapBnd', 'CapAmb')],
        'held': [fields('NoNewPrivs'), fields('Seccomp')],
    }
    """


REACHED: dict[str, Any] = {
    "processes": [1, 3],
    "kill the server": "ProcessLookupError",
    "kill the keeper": "PermissionError" if IS_ROOT else "asked",
    "parent": 1,
    "read the keeper": "PermissionError",
    "memory of the keeper": "PermissionError",
    "root of the keeper": "PermissionError",
    "ptrace": "EPERM",
    "connect": "PermissionError",
    "network of the server": False,
    "unix": "OSError",
    "host files": [],
    "write": ["OSError"] * 4,
    "mount": "EPERM",
    "umount": "EPERM",
    "mknod": "PermissionError",
    "setuid": "OSError",
    "bpf": "EPERM",
    "keys": "EPERM",
    "uncover": 7,
    "streams": ["/dev/null"] * 3,
    "descriptors": 5,
    "environment": sorted(ENVIRONMENT),
    "ids": ["1000\t1000\t1000\t1000"] * 2,
    "groups": [],
    "capabilities": ["0" * 16, f"{1 << 21:016x}", f"{1 << 21:016x}", "0" * 16, "0" * 16],
    "held": ["1", "2"],
}


async def reached(folder: Path) -> Any:
    """Return what a module could do during its import, with the reason for each refusal."""
    secret = folder / "secret"
    secret.write_text("s")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        async with running(folder) as trial:
            mount = trial.packages({"evil.py": ""})
            constants = {
                "SERVER": os.getpid(),
                "PORT": listener.getsockname()[1],
                "NETWORK": Path("/proc/self/ns/net").stat().st_ino,
                "FILE": str(secret),
                "HOME": str(TESTS),
                "LOCK": mount.lock,
            }
            lines = [f"{name} = {value!r}" for name, value in constants.items()]
            (mount.folder / "evil.py").write_text("\n".join([*lines, textwrap.dedent(ATTACKS)]))
            state = await imported(trial, mount, "evil")
            await trial.is_well()
            if state.state == "failed":
                return state.message
            code = "import evil\ndef main(args): return evil.FOUND"
            return await trial.value(code, packages=(mount,), preload=("evil",))


async def test_an_import_reaches_nothing(tmp_path: Path) -> None:
    assert await reached(tmp_path) == REACHED


UNDONE = {  # a missing step, and the finding that shows it; without some steps, no import succeeds
    '        kernel.call("uid", kernel.SYS_SETRESUID, own["uid"], own["uid"], own["uid"])\n': "kill the keeper",
    " | kernel.NEWNET": "network of the server",
    " | kernel.NEWPID": "",
    "    kernel.unshare(kernel.NEWUSER)\n": "",
    '        os.dup2(os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC), stream)': "streams",
    "    lockdown.close_bounds()\n": "capabilities",
    "    lockdown.keep_capabilities(CAP_SYS_ADMIN)\n": "capabilities",
    '    kernel.prctl("no_new_privs", kernel.PR_SET_NO_NEW_PRIVS, 1)\n': "held",
    '    lockdown.load_filter(bytes.fromhex(own["filter"]))\n': "unix",
}


@only_as_root
@pytest.mark.parametrize("step", UNDONE)
@pytest.mark.full(after=2)
async def test_a_step_back_that_is_not_made_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    changed = tmp_path / "changed"
    shutil.copytree(zygotes.HERE / "inside", changed / "inside")
    program = changed / "inside" / "preloading.py"
    assert program.read_text().count(step) == 1
    program.write_text(program.read_text().replace(step, "        pass" if step.startswith("        os") else ""))
    monkeypatch.setattr(zygotes, "HERE", changed)
    found = await reached(tmp_path)
    shown = UNDONE[step]
    assert found[shown] != REACHED[shown] if shown else isinstance(found, str)


LINK = """
    import array, json, os, socket, stat, sys, time

    def links():
        for number in range(3, 64):
            try:
                if stat.S_ISSOCK(os.fstat(number).st_mode):
                    yield socket.socket(fileno=os.dup(number)), number
            except OSError:
                pass

    LINK, NUMBER = next(links())
    """
ABUSES = {
    "closes it": "os.close(NUMBER); LINK.close(); time.sleep(60)",
    "closes one end": "LINK.shutdown(socket.SHUT_RDWR); time.sleep(60)",
    "says that it is ready, and answers nothing": "LINK.send(b'{\"ready\": true}'); time.sleep(60)",
    "floods it": "LINK.send(b'{\"ready\": true}')\nwhile True: LINK.send(bytes(60000))",
    "floods it before": "while True: LINK.send(b'{}' + b' ' * 60000)",
    "says no JSON": "LINK.send(b'[' * 100000); time.sleep(60)",
    "says other JSON": "LINK.send(b'[1, 2]'); time.sleep(60)",
    "says strange numbers": "LINK.send(b'{\"ready\": 1}'); LINK.send(b'\\xff' * 8); time.sleep(60)",
    "says too little": "LINK.send(b'{\"ready\": 1}'); LINK.send(b'x'); time.sleep(60)",
    "says a long reason": "LINK.send(json.dumps({'message': 'x\\n' * 60000}).encode()); time.sleep(60)",
    "says a strange reason": "LINK.send(json.dumps({'message': {'a': 1}}).encode()); time.sleep(60)",
    "sends descriptors": """
try:
    for _ in range(300):
        rights = array.array('i', [os.open('/dev/null', 0)] * 8)
        LINK.sendmsg([b'{"ready": true}'], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
finally:
    os._exit(1)
""",
    "answers for runs": """
LINK.send(b'{"ready": true}')
while True:
    order, rights, _, _ = socket.recv_fds(LINK, 100000, 16)
    KEPT = rights
    LINK.send(order[:8] + (1).to_bytes(8, sys.byteorder))
""",
    "greets for runs": """
LINK.send(b'{"ready": true}')
while True:
    order, rights, _, _ = socket.recv_fds(LINK, 100000, 16)
    socket.socket(fileno=rights[0]).send(b'h')
    LINK.send(order[:8] + bytes(8))
""",
    "floods a run's control": """
LINK.send(b'{"ready": true}')
order, rights, _, _ = socket.recv_fds(LINK, 100000, 16)
control = socket.socket(fileno=rights[0])
LINK.send(order[:8] + bytes(8))
while True: control.send(b'h' * 60000)
""",
}


@pytest.mark.parametrize("abuse", ABUSES)
@pytest.mark.full(after=2)
async def test_an_import_that_takes_over_the_link_gains_nothing(tmp_path: Path, abuse: str) -> None:
    async with running(tmp_path, preload_seconds=2) as trial:
        before = len(list(Path("/proc/self/fd").iterdir()))
        message = await spoiled(trial, textwrap.dedent(LINK) + ABUSES[abuse])
        assert message
        assert len(message) <= 400
        assert message.isprintable()
        await eventually_async(lambda: len(list(Path("/proc/self/fd").iterdir())) <= before + 4)
        await trial.is_well()


BEHIND = {  # called right after the import; the frames above it are those of the zygote
    "keeps all ends of its runs and goes on": """
import os
real = os.close
os.close = lambda number: None if number >= 200 else real(number)
""",
    "lets nobody write": "import os\nos.write = lambda *args: 1",
    "dies in the first fork": "import os\nos.register_at_fork(before=lambda: os._exit(1))",
    "hangs in the second fork": """
import os, time
count = [0]
def hang():
    count[0] += 1
    if count[0] > 1: time.sleep(60)
os.register_at_fork(before=hang)
""",
    "answers nonsense": """
import sys
link = sys.modules['cell.link']
link.Link.send = lambda self, content, descriptors=(): self._socket.send(content[:8] + b'[' * 9)
""",
    "leaves processes later": """
import os, time
def bomb():
    for _ in range(300):
        try:
            if os.fork() == 0: time.sleep(600)
        except OSError: break
armed = [2]
def after():
    armed[0] -= 1
    if armed[0] == 0: bomb()
os.register_at_fork(after_in_parent=after)
""",
    "changes what runs do": """
import os, sys
os.register_at_fork(after_in_child=lambda: os.kill(1, 9) or sys.exit(3))
""",
}


@pytest.mark.parametrize("behind", BEHIND)
@pytest.mark.full(after=2)
@pytest.mark.long
async def test_module_tampering_with_zygote_breaks_only_its_runs(tmp_path: Path, behind: str) -> None:
    async with running(tmp_path) as trial:
        mount = trial.packages({"evil.py": BEHIND[behind]})
        await imported(trial, mount, "evil")
        for _ in range(4):
            # The run ends with any outcome, and other runs work at the same time.
            run = asyncio.ensure_future(trial.code("def main(args): return 1", packages=(mount,), preload=("evil",)))
            await trial.is_well()
            outcome = await run
            assert outcome.result == b"1" or outcome.failure is not None


async def test_a_fork_bomb_in_an_import_is_held(tmp_path: Path) -> None:
    async with running(tmp_path, preload_seconds=3) as trial:
        message = await spoiled(
            trial,
            """
            import os, time
            for _ in range(10):  # a thousand processes without a limit
                try: os.fork()
                except OSError: pass
            time.sleep(10)
            """,
        )
        assert message


async def test_the_kernel_counts_the_processes_of_an_import(tmp_path: Path) -> None:
    """The server counts too, but a fork bomb can delay the server."""
    async with running(tmp_path) as trial:
        message = await spoiled(
            trial,
            """
            import os, resource, signal
            hard = resource.getrlimit(resource.RLIMIT_NPROC)[1]
            resource.setrlimit(resource.RLIMIT_NPROC, (hard, hard))
            count = 0
            try:
                while count < 1000:
                    if os.fork() == 0: signal.pause()
                    count += 1
            except OSError as error:
                raise RuntimeError(f'{error.strerror} after {count}') from None
            """,
        )
        if message == "the import started too many processes":
            assert not IS_ROOT
            return
        assert "Resource temporarily unavailable after " in message
        assert int(message.rpartition(" ")[2]) <= 256


@pytest.mark.full
async def test_all_of_it_ends_with_a_killed_server(tmp_path: Path) -> None:
    script = f"""
import asyncio, os, sys
sys.path.insert(0, {str(TESTS.parent)!r})
from pathlib import Path
from tests.sandbox.test_preloaded import imported, kept
from skillery.backends import Place
from skillery.builtin.linux_sandbox import skillery_sandbox
from skillery.testing.sandbox import Trial
from skillery.testing.sandbox.leftovers import descendants

async def main():
    offer = skillery_sandbox()
    sandbox = offer.open(offer.settings(prepared=1), Place(Path({str(tmp_path)!r})))
    await sandbox.start()
    trial = Trial(sandbox, Path({str(tmp_path)!r}))
    # it does not die with its parent by itself
    mount = trial.packages({{"evil.py": "import ctypes; ctypes.CDLL(None).prctl(1, 0)"}})
    assert (await imported(trial, mount, "evil")).state == "ready", kept(trial)
    print(sorted(descendants(os.getpid())), flush=True)
    await asyncio.sleep(60)

asyncio.run(main())
"""
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        below = json.loads(server.stdout.readline())
        assert len(below) >= 6
        started = {pid: processes.start_time(pid) for pid in below}
        server.kill()
    await eventually_async(lambda: not [pid for pid in below if processes.start_time(pid) == started[pid] is not None])


class TestLockdownOfPreloaded(lockdown.TestLockdown):
    """A run of a preloaded environment is locked down like every other run."""

    @pytest_asyncio.fixture(scope="class", loop_scope="class")
    @classmethod
    async def sandbox(cls, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Any]:  # type: ignore[override]
        folder = tmp_path_factory.mktemp("sandbox")
        async with lockdown.unprepared(folder) as sandbox:
            everywhere = PreloadingEverywhere(sandbox, folder)
            await everywhere.warm_up()
            yield everywhere

    # These cases look for processes of runs only below the common zygote.
    test_seen_from_the_host_every_process_of_a_run_is_locked = None  # type: ignore[assignment]
    test_seen_from_the_host_pid_1_is_nobodys_to_read = None  # type: ignore[assignment]
    test_the_process_that_runs_are_forked_from_keeps_three_rights = None  # type: ignore[assignment]
    # These cases start a sandbox of their own, which does not preload.
    test_no_group_of_root_is_left = None  # type: ignore[assignment]
    test_each_process_has_limits_of_its_own = None  # type: ignore[assignment]
    test_the_proxy_is_the_only_port_where_lo_is_up = None  # type: ignore[assignment]
    test_an_interrupt_from_inside_does_not_end_pid_1 = None  # type: ignore[assignment]
    test_first_run_ignores_restrictive_umask_of_server = None  # type: ignore[assignment]
    test_a_zygote_ends_with_a_killed_server_although_its_sockets_stay_open = None  # type: ignore[assignment]

    async def test_each_process_has_minimal_privileges_seen_from_host(self, trial: Trial) -> None:
        async with lockdown.waiting_run(trial):
            seen = [entry for entry in lockdown.run_processes() if len(entry["NSpid"].split()) > lockdown.depth()]
            owners = {entry["Pid"]: Path(f"/proc/{entry['Pid']}/environ").stat().st_uid for entry in seen}
        runs = [entry for entry in seen if len(entry["NSpid"].split()) == lockdown.depth() + 2]
        zygotes = [entry for entry in seen if entry not in runs]
        assert sorted(entry["NSpid"].split()[-1] for entry in runs) == ["1", "2"]
        assert sorted(entry["NSpid"].split()[-1] for entry in zygotes) == ["1", "3"]
        for entry in runs:
            assert [int(entry[name], 16) for name in lockdown.CAPABILITIES] == [0] * 5
            assert (entry["NoNewPrivs"], entry["Seccomp"]) == ("1", "2")
        assert len({entry["Uid"] for entry in (*runs, *zygotes)}) == (2 if IS_ROOT else 1)  # root owns the keeper
        for entry in zygotes:
            kept = lockdown.SYS_ADMIN if entry["NSpid"].split()[-1] == "3" else 0
            assert [int(entry[name], 16) for name in lockdown.CAPABILITIES] == [0, kept, kept, 0, 0]
        first = {owners[entry["Pid"]] for entry in (*runs, *zygotes) if entry["NSpid"].split()[-1] == "1"}
        assert first <= {0, 65534}


@only_as_root
@pytest.mark.full
@pytest.mark.long
def test_all_this_holds_for_an_ordinary_user_too() -> None:
    command = (sys.executable, str(TESTS / "support" / "ordinary_user.py"), sys.executable, "-m", "pytest", "-q")
    arguments = ("-p", "no:cacheprovider", __file__)
    done = subprocess.run((*command, *arguments), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
