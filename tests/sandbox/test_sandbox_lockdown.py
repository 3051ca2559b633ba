"""Steps of the lockdown of `linux` that the contract cannot check for every backend, seen from inside and from the
host.

Together with the contract, these cases detect missing steps: test_mutations.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import pytest_asyncio

from cellblock.host import hierarchies, processes
from cellblock.inside import kernel
from skillery.backends import Limits, Place
from skillery.builtin.linux_sandbox import LinuxSandboxSettings, open_sandbox
from skillery.builtin.linux_sandbox.sandbox import LinuxSandbox
from skillery.testing import SharedSandbox
from skillery.testing.sandbox import Trial
from skillery.testing.sandbox.leftovers import descendants, is_dying
from skillery.testing.sandbox.trial import value_of
from tests.sandbox.test_sandbox_warm import AT_ONCE, at_once
from tests.sandbox.test_sandbox_warm import zygotes as running_zygotes
from tests.support.processes import eventually_async

IS_ROOT = os.geteuid() == 0
only_as_root = pytest.mark.skipif(not IS_ROOT, reason="only root has these rights")
UNLIMITED = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
NAMESPACES = ("user", "mnt", "pid", "ipc", "uts", "net", "cgroup")
CAPABILITIES = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")
SETGID, SETUID, SYS_ADMIN = 1 << 6, 1 << 7, 1 << 21
WAIT = "import time\nfrom runtime import blobs\ndef main(args):\n    blobs.write_text('here')\n    time.sleep(1e6)"
LIMITS = Limits(timeout_ms=300_000, memory_mb=256, processes=40, disk_mb=8, disk_files=100, tmp_mb=4, cpus=1.0)


class TestLockdown(SharedSandbox):
    @pytest_asyncio.fixture(scope="class", loop_scope="class")
    @classmethod
    async def sandbox(cls, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LinuxSandbox]:  # type: ignore[override]
        async with unprepared(tmp_path_factory.mktemp("sandbox")) as sandbox:
            yield sandbox

    async def test_every_namespace_is_the_runs_own(self, trial: Trial) -> None:
        code = (
            AT_ONCE
            + f"""
def main(args):
    wait()
    return {{n: os.readlink(f'/proc/self/ns/{{n}}') for n in {NAMESPACES}}}
"""
        )
        outside = {name: str(Path(f"/proc/self/ns/{name}").readlink()) for name in NAMESPACES}
        found = [outside, *await at_once(trial.host, *(trial.value(code) for _ in range(2)))]
        assert [name for name in NAMESPACES if len({names[name] for names in found}) != 3] == []

    async def test_code_runs_as_single_user_and_group(self, trial: Trial) -> None:
        code = "import os\ndef main(args): return [*os.getresuid(), *os.getresgid(), os.getsid(0) == 0]"
        assert await trial.value(code) == [1000] * 6 + [False]

    async def test_code_sees_its_cgroups_as_roots(self, trial: Trial) -> None:
        code = "def main(args): return [line.rstrip().split(':')[2] for line in open('/proc/self/cgroup')]"
        assert set(await trial.value(code)) <= {"/"}

    async def test_the_machine_has_another_name_inside(self, trial: Trial) -> None:
        assert await trial.value("import socket\ndef main(args): return socket.gethostname()") == "sandbox"
        assert socket.gethostname() != "sandbox"

    async def test_code_runs_with_locked_securebits(self, trial: Trial) -> None:
        code = "import ctypes\ndef main(args): return ctypes.CDLL(None).prctl(27, 0, 0, 0, 0)"
        assert await trial.value(code) == 0xEF

    @only_as_root
    async def test_no_group_of_root_is_left(self, tmp_path: Path) -> None:
        before = os.getgroups()
        os.setgroups([27, 1234])
        try:
            async with unprepared(tmp_path) as sandbox:
                found = await Trial(sandbox, tmp_path).value("import os\ndef main(args): return os.getgroups()")
        finally:
            os.setgroups(before)
        assert found == []

    async def test_each_process_has_limits_of_its_own(self, tmp_path: Path) -> None:
        with generous_server():
            code = """
            import resource
            def main(args):
                return {n: resource.getrlimit(getattr(resource, n)) for n in dir(resource) if n.startswith('RLIMIT_')}
            """
            async with unprepared(tmp_path) as sandbox:
                found = await Trial(sandbox, tmp_path).value(code, limits=LIMITS)
        expected = {
            "CORE": 1,
            "NPROC": 41,
            "FSIZE": 8 << 20,
            "STACK": 8 << 20,
            "MEMLOCK": 0,
            "MSGQUEUE": 0,
            "RTPRIO": 0,
            "NICE": 0,
            "SIGPENDING": 1024,
        }
        assert found.pop("RLIMIT_CPU") == [302, 302]
        assert {name: found[f"RLIMIT_{name}"] for name in expected} == {n: [v, v] for n, v in expected.items()}
        assert 0 < found["RLIMIT_AS"][1] <= 64 << 30
        assert found["RLIMIT_NOFILE"] in ([1024, 1024], [256, 256])  # fewer without a cgroup

    async def test_each_mount_has_minimal_options(self, trial: Trial) -> None:
        skill = trial.skill("mine", {"code/main.py": "def main(args): pass"})
        code = "def main(args): return open('/proc/self/mountinfo').read().splitlines()"
        lines = await trial.value(code, skills=(skill,), blobs=(trial.blob("blob:x", b"content"),))
        mounts = [(line.split()[4], set(line.split()[5].split(","))) for line in lines]
        assert {"/", "/usr", "/skills", "/blobs", "/workspace"} <= {point for point, _ in mounts}
        for point, options in mounts:
            writable = point in {"/workspace", "/tmp", "/dev/shm"}
            is_device = point.startswith("/dev/") and not writable
            assert "nosuid" in options, point
            assert "nodev" in options or is_device, point
            assert "ro" in options or writable or is_device or point == "/proc", point
            assert "noexec" in options or not (is_device or point in {"/dev/shm", "/proc"}), point

    async def test_root_folder_contains_only_expected_entries(self, trial: Trial) -> None:
        allowed = {"etc", "var", "usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32"}
        allowed |= {"dev", "proc", "run", "workspace", "tmp", "skills", "packages", "blobs", "node_modules"}
        allowed |= {Path(sys.base_prefix).resolve().parts[1]}
        found = await trial.value("import os\ndef main(args): return [os.listdir(p) for p in ('/', '/dev', '/run')]")
        assert set(found[0]) <= allowed
        assert {"null", "random"} <= set(found[1])
        assert set(found[1]) <= {"null", "zero", "full", "random", "urandom", "shm", "fd", "stdin", "stdout", "stderr"}
        assert set(found[2]) == {"empty", "cellblock"}

    async def test_no_installed_package_is_there(self, trial: Trial) -> None:
        code = """
        import glob, os, sys
        def main(args):
            roots = {'/usr', '/usr/local', sys.base_prefix}
            return [p for r in roots for p in glob.glob(f'{r}/lib*/python*/*-packages') if os.listdir(p)]
        """
        assert await trial.value(code) == []

    @pytest.mark.skipif(kernel.landlock_version() == 0, reason="this kernel has no Landlock")
    async def test_code_cannot_write_its_proc_files(self, trial: Trial) -> None:
        """Only Landlock refuses this, because the code owns these files."""
        code = """
        import os
        def opened(name):
            try: return os.close(os.open(f'/proc/self/{name}', os.O_WRONLY)) is None
            except OSError: return False
        def main(args): return [n for n in ('oom_score_adj', 'comm', 'clear_refs', 'coredump_filter') if opened(n)]
        """
        assert await trial.value(code) == []

    @pytest.mark.skipif(kernel.landlock_version() < 4, reason="the Landlock of this kernel has no rules for ports")
    async def test_the_proxy_is_the_only_port_where_lo_is_up(self, tmp_path: Path) -> None:
        code = """
        import socket
        def refused(act):
            try: act()
            except PermissionError: return True
            except OSError: return False
        def main(args):
            one = socket.socket()
            return [refused(lambda: one.bind(('127.0.0.1', 8080))), refused(lambda: one.connect(('127.0.0.1', 8080)))]
        """
        async with unprepared(tmp_path) as sandbox:
            outcome = await Trial(sandbox, tmp_path).code(code, network=("http://api.test",))
        assert value_of(outcome) == [True, True]

    @pytest.mark.parametrize(("folder", "size"), [("/workspace", 8), ("/tmp", 4), ("/dev/shm", 64)])
    async def test_many_files_hold_no_more_than_their_folder(self, trial: Trial, folder: str, size: int) -> None:
        code = f"""
        def main(args):
            for count in range(100):
                try:
                    with open(f'{folder}/{{count}}', 'wb', buffering=0) as file:
                        if file.write(b'x' * (1 << 20)) < 1 << 20: return count
                except OSError: return count
            return 100
        """
        assert size - 1 <= await trial.value(code, limits=LIMITS) <= size

    @pytest.mark.parametrize(("folder", "most"), [("/workspace", 100), ("/tmp", 4096), ("/dev/shm", 1024)])
    async def test_a_folder_holds_only_so_many_files(self, trial: Trial, folder: str, most: int) -> None:
        code = f"""
        import os
        def main(args):
            for count in range(10_000):
                try: os.mkdir(f'{folder}/{{count}}')
                except OSError: return count
            return 10_000
        """
        assert most - 10 <= await trial.value(code, limits=LIMITS) <= most

    async def test_seen_from_the_host_every_process_of_a_run_is_locked(self, trial: Trial) -> None:
        """The process of the code and its parent are locked down before the first line of the code runs."""
        async with waiting_run(trial):
            seen = [entry for entry in run_processes() if int(entry["Pid"]) != os.getpid()]
        assert {len(entry["NSpid"].split()) for entry in seen} == {depth() + 1}
        assert {entry["NSpid"].split()[-1] for entry in seen} == {"1", "2"}
        for entry in seen:
            assert [int(entry[name], 16) for name in CAPABILITIES] == [0] * 5
            assert (entry["NoNewPrivs"], entry["Seccomp"]) == ("1", "2")
            assert len(set(entry["Uid"].split())) == 1
            assert not IS_ROOT or int(entry["Uid"].split()[0]) >= 100_000

    async def test_every_process_of_run_is_in_its_cgroups(self, trial: Trial) -> None:
        held = {name for hierarchy in hierarchies.candidates() for name in hierarchy.controllers} if IS_ROOT else set()
        async with waiting_run(trial):
            seen = [Path(f"/proc/{entry['Pid']}/cgroup").read_text() for entry in run_processes()]
        lines = [line.split(":", 2) for text in seen for line in text.splitlines()]
        assert [path for _, names, path in lines if held & set(names.split(",")) and "cellblock-" not in path] == []

    async def test_seen_from_the_host_pid_1_is_nobodys_to_read(self, trial: Trial) -> None:
        async with waiting_run(trial):
            [first] = [entry["Pid"] for entry in run_processes() if entry["NSpid"].split()[-1] == "1"]
            owner = Path(f"/proc/{first}/environ").stat().st_uid
        assert owner in {0, 65534}  # the kernel reports unreadable processes as owned by these uids

    async def test_an_interrupt_from_inside_does_not_end_pid_1(self, tmp_path: Path) -> None:
        before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job would ignore SIGINT
        try:
            async with unprepared(tmp_path) as sandbox:
                code = """
                import os, signal, time
                def main(args):
                    try: os.kill(1, signal.SIGINT)
                    except OSError: pass
                    time.sleep(0.2)
                    return 'still here'
                """
                assert await Trial(sandbox, tmp_path).value(code) == "still here"
        finally:
            signal.signal(signal.SIGINT, before)

    async def test_first_run_ignores_restrictive_umask_of_server(self, tmp_path: Path) -> None:
        before = os.umask(0o077)
        try:
            async with unprepared(tmp_path) as sandbox:
                code = "import os\ndef main(args): return [os.umask(0), len(os.listdir('/dev')) > 3]"
                assert await Trial(sandbox, tmp_path).value(code) == [0o022, True]
        finally:
            os.umask(before)

    @only_as_root
    async def test_the_process_that_runs_are_forked_from_keeps_three_rights(self, trial: Trial) -> None:
        await trial.is_well()
        ours = [status(pid) for pid in descendants(os.getpid()) if b"zygote.main" in command(pid)]
        [zygote] = [entry for entry in ours if int(entry["PPid"]) == os.getpid()]
        assert int(zygote["CapEff"], 16) == SETGID | SETUID | SYS_ADMIN

    async def test_a_zygote_ends_with_a_killed_server_although_its_sockets_stay_open(self, tmp_path: Path) -> None:
        """A child of the server keeps the sockets open, so the zygote reads no end of file when the server is
        killed.
        """
        server = subprocess.Popen([sys.executable, "-c", SERVER, str(tmp_path)], stdout=subprocess.PIPE)
        assert server.stdout is not None
        child = int(server.stdout.readline())
        engine = {pid: processes.start_time(pid) for pid in descendants(server.pid) if b"zygote.main" in command(pid)}
        assert len(engine) == 2
        server.kill()
        server.wait()
        server.stdout.close()
        try:
            await eventually_async(lambda: all(processes.start_time(pid) != began for pid, began in engine.items()))
        finally:
            os.kill(child, signal.SIGKILL)  # closes the sockets


SERVER = """
import asyncio, os, sys, time
from pathlib import Path
from skillery.backends import Place
from cellblock.host import zygotes
from skillery.builtin.linux_sandbox import LinuxSandboxSettings, open_sandbox
zygotes.HERE = Path(os.environ.get("SKILLERY_TEST_CELL") or zygotes.HERE)
async def main():
    await open_sandbox(LinuxSandboxSettings(prepared=0), Place(Path(sys.argv[1]))).start()
    child = os.fork()
    if child:
        print(child, flush=True)
    time.sleep(600)
asyncio.run(main())
"""


@asynccontextmanager
async def unprepared(folder: Path) -> AsyncIterator[LinuxSandbox]:
    """Start a sandbox without prepared cells, so that all processes belong to a run."""
    settings = LinuxSandboxSettings(prepared=0, hosts={"api.test": ("127.0.0.1",)}, allow_private=("127.0.0.1",))
    sandbox = open_sandbox(settings, Place(folder))
    await sandbox.start()
    try:
        yield sandbox
    finally:
        await sandbox.close()


@contextlib.contextmanager
def generous_server() -> Iterator[None]:
    """Raise the limits of this server as far as possible. Its runs must not inherit them."""
    names = [name for name in dir(resource) if name.startswith("RLIMIT_") and name != "RLIMIT_NOFILE"]
    before = {name: resource.getrlimit(getattr(resource, name)) for name in names}
    for name in names if IS_ROOT else ():
        high = (60, 60) if name in {"RLIMIT_RTPRIO", "RLIMIT_NICE"} else UNLIMITED
        with contextlib.suppress(ValueError):  # some containers refuse this
            resource.setrlimit(getattr(resource, name), high)
    try:
        yield
    finally:
        for name, held in before.items():
            resource.setrlimit(getattr(resource, name), held)


def status(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def depth() -> int:
    return len(status(os.getpid())["NSpid"].split())


@asynccontextmanager
async def waiting_run(trial: Trial) -> AsyncIterator[None]:
    """Context manager: a run whose code has begun and waits. The run is cancelled at the end of the block."""
    running = asyncio.ensure_future(trial.code(WAIT))
    try:
        await eventually_async(lambda: running.done() or trial.host.blobs)
        assert not running.done(), running
        yield
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


def run_processes() -> list[dict[str, str]]:
    """Return the status of each process of the only run. Servers of other tests are left out, and processes of earlier
    runs that have been killed, or that their parent has not removed yet.
    """
    seen = []
    for pid in {pid for zygote in running_zygotes() for pid in descendants(zygote)}:
        with contextlib.suppress(OSError):  # removed
            if not is_dying(pid):
                seen.append(status(pid))
    return [entry for entry in seen if len(entry["NSpid"].split()) > depth() and not entry["State"].startswith("Z")]
