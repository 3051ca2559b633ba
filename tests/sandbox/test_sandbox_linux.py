"""The backend `linux` passes the contract, as root and as an ordinary user, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path

import pytest
import pytest_asyncio
import uvloop

from cellblock.host import hierarchies, processes
from cellblock.host.zygote_answers import CannotStart
from cellblock.host.zygotes import Zygote
from skillery.backends import CodeCall, Job, Limits, Outcome, Place, SkillCall, SkillMount
from skillery.builtin.linux_sandbox import LinuxSandboxSettings, open_sandbox, skillery_sandbox
from skillery.builtin.linux_sandbox.sandbox import LinuxSandbox
from skillery.testing import LinuxLook, SandboxContract, SharedSandbox
from skillery.testing.sandbox import MemoryHost, Trial
from skillery.testing.sandbox.leftovers import descendants
from skillery.testing.sandbox.network import HERE, HOSTS
from skillery.testing.sandbox.trial import OpenWith, failure_type, log_of
from tests.sandbox.test_sandbox_warm import ANSWER_LIMITS
from tests.support.processes import eventually, eventually_async

TESTS = Path(__file__).parents[1]
AS_ORDINARY_USER = (sys.executable, str(TESTS / "support" / "ordinary_user.py"), sys.executable)
IS_ROOT = os.geteuid() == 0
only_as_root = pytest.mark.skipif(not IS_ROOT, reason="only root can change its uid")
full = pytest.mark.full(after=0 if IS_ROOT else 1)
"""Mark of cases that an ordinary user runs too: see test_an_ordinary_user_passes_as_well."""

# Each code tries to use 500 MB that no process's own counters show.
HIDDEN_MEMORY = {
    "a shared mapping of which one page is left": """
        import ctypes, mmap
        def main(args):
            kept = []
            for _ in range(50):
                kept.append(mmap.mmap(-1, 10 << 20))
                address = ctypes.addressof(ctypes.c_char.from_buffer(kept[-1]))
                ctypes.memset(address, 1, 10 << 20)
                ctypes.CDLL(None).munmap(ctypes.c_void_p(address + 4096), ctypes.c_size_t((10 << 20) - 4096))
        """,
    "a shared mapping of a device": """
        import ctypes, mmap, os
        def main(args):
            kept, device = [], os.open('/dev/zero', os.O_RDWR)
            for _ in range(50):
                kept.append(mmap.mmap(device, 10 << 20))
                address = ctypes.addressof(ctypes.c_char.from_buffer(kept[-1]))
                ctypes.memset(address, 1, 10 << 20)
                ctypes.CDLL(None).munmap(ctypes.c_void_p(address + 4096), ctypes.c_size_t((10 << 20) - 4096))
        """,
    "what waits in sockets": """
        import os, socket, time
        def fill():
            kept = []
            for _ in range(480):
                try: kept += socket.socketpair()
                except OSError: break
                for end in kept[-2:]:
                    end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
                    end.setblocking(False)
                    try:
                        while end.send(bytes(32_000)): pass
                    except BlockingIOError: pass
            time.sleep(1e6)
        def main(args):
            for _ in range(6):
                if os.fork() == 0: fill()
            time.sleep(100)
        """,
    "processes without their first thread": """
        import ctypes, os, platform, threading, time
        def fill():
            time.sleep(0.3)
            kept = b'x' * (70 << 20)
            time.sleep(1e6)
        def main(args):
            for _ in range(7):
                if os.fork() == 0:
                    threading.Thread(target=fill).start()
                    ctypes.CDLL(None).syscall({'x86_64': 60, 'aarch64': 93}[platform.machine()], 0)
            time.sleep(100)
        """,
    "page tables": """
        import ctypes, os, time
        mmap = ctypes.CDLL(None).mmap
        mmap.restype = ctypes.c_void_p
        def main(args):
            for _ in range(3):
                if os.fork() == 0:
                    for number in range(20_000):
                        place = 0x10000000000 + (number << 30)
                        mmap(ctypes.c_void_p(place), ctypes.c_size_t(4096), 1, 0x32, -1, ctypes.c_long(0))
                        ctypes.string_at(place, 1)
                    time.sleep(1e6)
            time.sleep(100)
        """,
    "pages that only a pipe holds": """
        import ctypes, mmap, os
        libc = ctypes.CDLL(None, use_errno=True)
        class Piece(ctypes.Structure): _fields_ = [('base', ctypes.c_void_p), ('size', ctypes.c_size_t)]
        def main(args):
            kept = []
            for _ in range(20):
                memory = mmap.mmap(-1, 28 << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
                memory.madvise(14)  # MADV_HUGEPAGE
                address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
                ctypes.memset(address, 1, 28 << 20)
                kept.append(os.pipe())
                for number in range(14):
                    piece = Piece(address + (number << 21), 1)
                    if libc.vmsplice(kept[-1][1], ctypes.byref(piece), ctypes.c_size_t(1), 0) < 0:
                        raise PermissionError(ctypes.get_errno())
                libc.munmap(ctypes.c_void_p(address), ctypes.c_size_t(28 << 20))
                kept.append(memory)
        """,
}


def make(folder: Path, *, allow_degraded: bool = False) -> LinuxSandbox:
    offer = skillery_sandbox()
    sandbox: LinuxSandbox = offer.open(offer.settings(), Place(folder, allow_degraded))
    return sandbox


def group_folders(pid: int) -> list[Path]:
    """Return the cgroups that a server with this pid has made."""
    return [
        path for h in hierarchies.candidates() for path in h.folder.glob(f"cellblock-*-{pid}-*-*/**/") if path.is_dir()
    ]


@pytest.mark.full(after=1)
class TestLinuxSandbox(SharedSandbox, SandboxContract, LinuxLook):  # type: ignore[misc]
    @pytest.fixture(scope="class")
    @classmethod
    def groups(cls) -> Iterator[None]:
        """Check that no cgroup is left when both sandboxes have closed."""
        yield
        assert group_folders(os.getpid()) == []

    @pytest_asyncio.fixture(scope="class", loop_scope="class")
    @classmethod
    async def sandbox(cls, groups: None, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LinuxSandbox]:  # type: ignore[override]
        sandbox = make(tmp_path_factory.mktemp("sandbox"))
        await sandbox.start()
        yield sandbox
        await sandbox.close()

    @pytest_asyncio.fixture(scope="class", loop_scope="class")
    @classmethod
    async def connected(cls, groups: None, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LinuxSandbox]:  # type: ignore[override]
        settings = LinuxSandboxSettings(hosts=HOSTS, allow_private=HERE)
        sandbox = open_sandbox(settings, Place(tmp_path_factory.mktemp("connected")))
        await sandbox.start()
        yield sandbox
        await sandbox.close()

    @pytest.fixture
    def open_with(self, tmp_path: Path) -> OpenWith:
        async def open_with(hosts: Mapping[str, tuple[str, ...]], allow_private: tuple[str, ...]) -> LinuxSandbox:
            settings = LinuxSandboxSettings(hosts=dict(hosts), allow_private=allow_private)
            sandbox = open_sandbox(settings, Place(tmp_path))
            await sandbox.start()
            return sandbox

        return open_with

    async def test_every_outcome_says_whether_the_memory_of_the_tree_is_degraded(self, trial: Trial) -> None:
        outcome = await trial.code("def main(args): pass")
        assert outcome.degraded == (() if IS_ROOT and hierarchies.candidates() else ("memory_tree",))

    async def test_unmountable_skill_causes_sandbox_error_without_path(self, trial: Trial, tmp_path: Path) -> None:
        outcome = await trial.code("def main(args): pass", skills=(SkillMount("gone", tmp_path / "gone"),))
        assert outcome.failure is not None
        assert outcome.failure.type == "SandboxError"
        assert str(tmp_path) not in outcome.failure.message

    async def test_files_that_only_the_server_may_read_reach_the_code(self, trial: Trial) -> None:
        skill = trial.skill("closed", {"code/main.py": "def main(args): return 1"})
        blob = trial.blob("blob:closed", b"content")
        for path in (skill.folder, skill.folder / "code"):
            path.chmod(0o700)
        blob.path.chmod(0o600)
        code = """
        from skills.closed import main as f
        from runtime import blobs
        def main(args): return blobs.read_text('blob:closed')
        """
        assert await trial.value(code, skills=(skill,), blobs=(blob,)) == "content"

    async def test_runs_with_little_and_with_much_memory_take_turns(self, trial: Trial) -> None:
        for memory_mb in (64, 64, 64, 512, 512, 512, 96, 256) * 2:
            await trial.value("def main(args): return 1", limits=Limits(timeout_ms=300_000, memory_mb=memory_mb))

    @pytest.mark.smoke
    async def test_two_hundred_runs_at_once_end_each_with_its_own_result(
        self, trial: Trial, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for limit in ("skillery.builtin.linux_sandbox.sandbox.SETUP_SECONDS", *ANSWER_LIMITS):
            monkeypatch.setattr(limit, 300)  # a loaded machine prepares two hundred runs more slowly
        code = "import os\ndef main(args): open('mine', 'x').close(); return [args['n'], os.listdir()]"
        limits = Limits(timeout_ms=120_000, memory_mb=64)
        found = await asyncio.gather(*(trial.value(code, {"n": n}, limits=limits) for n in range(200)))
        assert found == [[n, ["mine"]] for n in range(200)]

    async def test_threads_that_start_after_a_fork_work(self, trial: Trial) -> None:
        code = """
        import os
        from concurrent.futures import ThreadPoolExecutor
        def squares():
            with ThreadPoolExecutor(4) as pool: return sum(pool.map(lambda n: n * n, range(100)))
        def main(args):
            first = squares()
            if (child := os.fork()) == 0: os._exit(0 if squares() == first else 1)
            return [first, os.waitpid(child, 0)[1]]
        """
        assert await trial.value(code) == [328_350, 0]

    async def test_a_closed_umask_of_the_server_does_no_harm(self, trial: Trial) -> None:
        before = os.umask(0o077)
        try:
            await trial.is_well()
        finally:
            os.umask(before)

    async def test_a_server_out_of_descriptors_refuses_the_run_and_recovers(self, trial: Trial) -> None:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        for spare in range(10):
            resource.setrlimit(resource.RLIMIT_NOFILE, (len(list(Path("/proc/self/fd").iterdir())) - 1 + spare, hard))
            try:
                outcome = await trial.code("def main(args): pass")
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            assert outcome.failure is None or outcome.failure.type == "SandboxError"

    async def test_cancelling_run_after_any_delay_leaves_nothing(self, trial: Trial) -> None:
        for delay in (0, 0.001, 0.005, 0.01, 0.015, 0.02, 0.025, 0.03, 0.05):
            running = asyncio.ensure_future(trial.code("import time\ndef main(args): time.sleep(1e6)"))
            await asyncio.sleep(delay)
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running

    @pytest.mark.full(after=1 if IS_ROOT else len(HIDDEN_MEMORY))  # only a server of root has cgroups
    @pytest.mark.parametrize("way", HIDDEN_MEMORY)
    async def test_memory_that_no_process_shows_is_held_too(self, trial: Trial, way: str) -> None:
        limits = Limits(timeout_ms=300_000, memory_mb=96)
        outcome = await trial.code(HIDDEN_MEMORY[way], limits=limits)
        if way == "pages that only a pipe holds" and outcome.failure is None:  # the host had no free huge pages
            assert outcome.used
            assert (outcome.used.memory_bytes or 0) < 96 << 20
            return
        assert failure_type(outcome) in {"MemoryLimitExceeded", "PermissionError", "FileNotFoundError", "MemoryError"}

    async def test_code_cannot_watch_access_to_shared_files(self, trial: Trial) -> None:
        code = """
        import ctypes, fcntl, os
        def refused(act):
            try: act()
            except OSError: return True
        def main(args):
            folder, file = os.open('/usr/bin', os.O_RDONLY), open(os.__file__)
            return [ctypes.CDLL(None).inotify_init1(0), refused(lambda: fcntl.fcntl(folder, fcntl.F_NOTIFY, 1)),
                refused(lambda: fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_RDLCK))]
        """
        assert await trial.value(code) == [-1, True, True]

    async def test_the_limits_of_pid_1_are_not_the_codes_to_set(self, trial: Trial) -> None:
        code = """
        import resource
        def main(args):
            try: return resource.prlimit(1, resource.RLIMIT_CPU, (0, 0))
            except PermissionError: return resource.getrlimit(resource.RLIMIT_CPU) is not None
        """
        assert await trial.value(code) is True

    async def test_a_broken_channel_shows_no_path_of_the_host(self, trial: Trial) -> None:
        outcome = await trial.code("import os\ndef main(args): os.close(3)")
        assert failure_type(outcome) == "ProcessExited"
        assert log_of(outcome) == ""

    async def test_a_big_result_is_compact_and_checked(self, trial: Trial) -> None:
        code = """
        import os, struct, time
        def main(args):
            body = b'[' + b' "' + args['tail'].encode('latin-1') + b'",' * 1 + b'[ ] ,' * 200_000 + b'1]'
            os.write(3, struct.pack('>IQ', 15, len(body)) + b'{"op":"result"}')
            while body: body = body[os.write(3, body):]
            time.sleep(20)
        """
        assert await trial.value(code, {"tail": "x"}) == ["x", *([[]] * 200_000), 1]
        assert failure_type(await trial.code(code, {"tail": "\xff"})) == "InvalidOutput"

    async def test_hundreds_of_blobs_are_mounted(self, trial: Trial) -> None:
        blobs = tuple(trial.blob(f"blob:{number}", str(number).encode()) for number in range(300))
        code = (
            "import os\ndef main(args): return sum(int(open(f'/blobs/{name}').read()) for name in os.listdir('/blobs'))"
        )
        assert await trial.value(code, blobs=blobs) == sum(range(300))


@full
def test_doctor_probes_succeed_for_all_requirements(tmp_path: Path) -> None:
    probes = make(tmp_path).probe()
    assert [probe.name for probe in probes if probe.required and not probe.ok] == []
    assert all(probe.detail and (probe.ok or probe.fix) for probe in probes)
    assert probes[-1].name == "a whole run"


@only_as_root
@pytest.mark.full
@pytest.mark.long
def test_an_ordinary_user_passes_as_well() -> None:
    # The other examples of a case differ in what the code does, not in what the server may do.
    command = (*AS_ORDINARY_USER, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--full=none", __file__)
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]


ASK = """
import asyncio, json, sys
from pathlib import Path
from skillery.backends import CodeCall, Job, Place
from skillery.builtin.linux_sandbox import skillery_sandbox
from skillery.errors import SandboxUnavailable
from skillery.testing.sandbox import MemoryHost

async def ask(code, host=None):
    offer = skillery_sandbox()
    sandbox = offer.open(offer.settings(), Place(Path()))
    try:
        await sandbox.start()
    except SandboxUnavailable as error:
        return f"refused: {error}"
    outcome = await sandbox.run(Job("run_1", CodeCall(code, "main"), b"{}"), host or MemoryHost())
    await sandbox.close()
    return json.loads(outcome.result) if outcome.result else outcome.failure.message
"""


@full
@only_as_root
def test_groups_of_the_server_do_not_reach_the_code() -> None:
    script = ASK + "print(asyncio.run(ask('import os\\ndef main(args): return os.getgroups()')))"
    done = subprocess.run(
        [sys.executable, "-c", script], extra_groups=[27, 1234], capture_output=True, text=True, check=True
    )
    assert (done.stdout, done.stderr) == ("[]\n", "")


@full
@only_as_root
def test_run_is_refused_with_remedy_without_user_namespaces() -> None:
    script = ASK + (
        "from cellblock.inside import kernel, root\n"
        "kernel.unshare(kernel.NEWUSER); root.write_own_maps(65533, 65533)\n"
        "open('/proc/sys/user/max_user_namespaces', 'w').write('0')\n"
        "print(asyncio.run(ask('def main(args): pass')))"
    )
    done = subprocess.run((*AS_ORDINARY_USER, "-c", script), capture_output=True, text=True, timeout=300, check=False)
    assert done.stdout.startswith("refused: ")
    assert "user.max_user_namespaces" in done.stdout


TELL_AND_SLEEP = """
import os, time
from runtime import blobs
def main(args):
    if os.fork(): blobs.write_text('there are two of us')
    time.sleep(1e6)
"""
SERVE_AND_HANG = (
    ASK
    + f"""
async def main():
    host = MemoryHost()
    asking = asyncio.ensure_future(ask({TELL_AND_SLEEP!r}, host))
    while not host.blobs and not asking.done():
        await asyncio.sleep(0.02)
    print("running", flush=True)
    await asking
asyncio.run(main())
"""
)


@full
async def test_runs_die_with_a_killed_server_and_the_next_start_sweeps_up(tmp_path: Path) -> None:
    server = subprocess.Popen([sys.executable, "-c", SERVE_AND_HANG], stdout=subprocess.PIPE)
    assert server.stdout is not None
    assert server.stdout.readline() == b"running\n"
    run = descendants(server.pid)
    assert len(run) >= 4
    server.send_signal(signal.SIGKILL)
    server.wait()
    server.stdout.close()
    await eventually_async(lambda: not any(processes.start_time(pid) for pid in run))
    sandbox = make(tmp_path)
    await sandbox.start()
    # A server of another test that starts now may remove a part of them.
    await eventually_async(lambda: not group_folders(server.pid))
    await sandbox.close()


FIND_GROUPS = """
import sys
from cellblock.host import groups
print("ready", flush=True)
sys.stdin.read()
groups.find().close()
"""


@full
@only_as_root
@pytest.mark.skipif(not hierarchies.candidates(), reason="this host has no cgroups")
def test_servers_that_start_at_once_remove_the_groups_of_dead_servers_together() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as dead:
        dead.wait()
    for hierarchy in filter(hierarchies.usable, hierarchies.candidates()):
        for number in range(150):
            (hierarchy.folder / f"cellblock-{hierarchies.pid_namespace()}-{dead.pid}-1-{number:08x}").mkdir()
    starting = [
        subprocess.Popen([sys.executable, "-c", FIND_GROUPS], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        for _ in range(3)
    ]
    assert [server.stdout.readline() for server in starting if server.stdout] == [b"ready\n"] * 3
    for server in starting:
        assert server.stdin is not None
        server.stdin.close()

    assert [server.wait(timeout=300) for server in starting] == [0, 0, 0]
    # A server of another test that starts now may remove a part of them.
    eventually(lambda: not group_folders(dead.pid))


@full
def test_killing_sandbox_processes_fails_only_their_run_and_leaks_nothing(tmp_path: Path) -> None:
    """The event loop is the one of real servers: uvloop refuses to write to a closed transport."""
    others = processes.children(os.getpid())

    async def main() -> set[str | None]:
        offer = skillery_sandbox()
        sandbox: LinuxSandbox = offer.open(offer.settings(prepared=0), Place(tmp_path))
        await sandbox.start()
        await open_a_stream()
        trial, failures, descriptors = Trial(sandbox, tmp_path), set(), open_descriptors()
        for network in ((), ("http://api.test",)):
            for delay in (0, 0.001, 0.002, 0.003, 0.005, 0.01, 0.02, 0.05):
                running = asyncio.ensure_future(sleeping(sandbox, network))
                await asyncio.sleep(delay)
                for pid in descendants_beside(others):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                failures.add(failure_type(await running))
        await trial.is_well()
        await sandbox.egress.close()
        await eventually_async(lambda: open_descriptors() <= descriptors)
        await sandbox.close()
        return failures

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(main()) <= {None, "SandboxError", "ProcessKilled"}
    assert descendants_beside(others) == set()
    assert group_folders(os.getpid()) == []


async def open_a_stream() -> None:
    """Open and close a stream. For the first stream of a loop, libuv opens /dev/null, and keeps it open."""
    one, other = socket.socketpair()
    with other:
        _, writer = await asyncio.open_connection(sock=one)
        writer.close()
        await writer.wait_closed()


def descendants_beside(others: list[int]) -> set[int]:
    """Return the descendants of this process, without `others`, which belong to other tests, and without their
    descendants.
    """
    return descendants(os.getpid()).difference(others, *(descendants(pid) for pid in others))


async def sleeping(sandbox: LinuxSandbox, network: tuple[str, ...]) -> Outcome:
    code = CodeCall("import time\ndef main(args): time.sleep(0.2)", "main")
    return await sandbox.run(Job("run_1", code, b"{}", network=network), MemoryHost())


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_a_zygote_that_hangs_up_and_lives_on_is_ended(tmp_path: Path) -> None:
    program = tmp_path / "zygote"
    program.write_text(f"#!{sys.executable}\nimport os, time\nos.closerange(3, 256)\ntime.sleep(1e6)\n")
    program.chmod(0o700)

    async def main() -> None:
        zygote = Zygote(str(program), {})
        with pytest.raises(CannotStart, match="ended while it was being set up"):
            await zygote.prepare()
        assert processes.start_time(zygote.pid)
        await zygote.close()
        assert processes.start_time(zygote.pid) is None

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())


@only_as_root
async def test_skill_runs_from_folder_with_non_utf_8_name(tmp_path: Path) -> None:
    folder = tmp_path / os.fsdecode(b"\xff") / "skill"
    folder.mkdir(parents=True)
    (folder / "main.py").write_text("def main(args): return 42")
    sandbox = open_sandbox(LinuxSandboxSettings(), Place(tmp_path))
    try:
        call = SkillCall("a.b", "main")
        outcome = await sandbox.run(
            Job("run_0", call, b"{}", skills=(SkillMount("a.b", folder, "main.py"),)), MemoryHost()
        )
        assert outcome.result == b"42", outcome.failure
    finally:
        await sandbox.close()


async def test_it_starts_by_itself_when_it_is_first_used(tmp_path: Path) -> None:
    sandbox = make(tmp_path)
    job = Job("run_1", CodeCall("def main(args): return args", "main"), b'{"a": 1}', limits=Limits())
    outcomes = await asyncio.gather(*(sandbox.run(job, MemoryHost()) for _ in range(3)))
    assert [json.loads(outcome.result or b"") for outcome in outcomes] == [{"a": 1}] * 3
    await sandbox.close()
