"""Steps of the lockdown of `bubblewrap` that the contract cannot check for every backend, seen from the host and from
inside.

Together with the contract, these cases detect missing steps: test_bubblewrap_mutations.py.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import pytest_asyncio

from bubblewrap_here import bwrap, make
from cellblock.host import hierarchies
from skillery.backends import CodeCall, Job, Limits
from skillery.testing import SharedSandbox
from skillery.testing.sandbox import MemoryHost, Trial
from skillery.testing.sandbox.leftovers import descendants
from skillery_bubblewrap.sandbox import BubblewrapSandbox
from test_bubblewrap_contract import is_alive, status
from tests.sandbox.test_sandbox_lockdown import generous_server
from tests.support.processes import eventually_async

IS_ROOT = os.geteuid() == 0
CAPABILITIES = ("CapInh", "CapPrm", "CapEff", "CapAmb")
LIMITS = Limits(timeout_ms=300_000, memory_mb=256, processes=40, disk_mb=8, disk_files=100, tmp_mb=4, cpus=1.0)
SLEEP = "import time, runtime\ndef main(args): runtime.blobs.write_text('begun'); time.sleep(1e6)"
SERVER = """
import asyncio, sys
from pathlib import Path
from skillery.backends import CodeCall, Job
from skillery.testing.sandbox import MemoryHost
sys.path.insert(0, sys.argv[1])
import bubblewrap_here
from bubblewrap_changed import use_changed
if sys.argv[2]: use_changed(Path(sys.argv[2]), setattr)
job = Job("run_1", CodeCall("import time\\ndef main(args): time.sleep(1e6)", "main"), b"{}")
async def main():
    sandbox = bubblewrap_here.make(Path(sys.argv[3]))
    await sandbox.start()
    print("started", flush=True)
    await sandbox.run(job, MemoryHost())
asyncio.run(main())
"""


@asynccontextmanager
async def three(sandbox: BubblewrapSandbox) -> AsyncIterator[list[int]]:
    """Yield the processes of a run whose code sleeps: bwrap outside, pid 1, the code."""
    await sandbox.start()
    before = descendants(os.getpid())
    host = MemoryHost()
    running = asyncio.ensure_future(sandbox.run(Job("run_1", CodeCall(SLEEP, "main"), b"{}"), host))
    try:
        chain = await eventually_async(lambda: len(found := descendants(os.getpid()) - before) == 3 and found)
        pids = sorted(chain, key=lambda pid: len(status(pid)["NSpid"].split()) * 1000 + innermost(pid))
        await eventually_async(lambda: os.getsid(pids[1]) != os.getsid(pids[2]))
        await eventually_async(lambda: host.blobs)  # the code runs
        yield pids
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


def innermost(pid: int) -> int:
    return min(int(status(pid)["NSpid"].split()[-1]), 999)


class TestLockdown(SharedSandbox):
    @pytest_asyncio.fixture(scope="class", loop_scope="class")
    @classmethod
    async def sandbox(cls, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[BubblewrapSandbox]:  # type: ignore[override]
        sandbox = make(tmp_path_factory.mktemp("sandbox"))
        await sandbox.start()
        yield sandbox
        await sandbox.close()

    async def test_every_process_is_in_the_groups_of_its_run(self, sandbox: BubblewrapSandbox) -> None:
        held = {name for hierarchy in hierarchies.candidates() for name in hierarchy.controllers} if IS_ROOT else set()
        async with three(sandbox) as pids:
            lines = [
                line.split(":", 2) for pid in pids for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines()
            ]
        assert [path for _, names, path in lines if held & set(names.split(",")) and "cellblock-" not in path] == []

    async def test_no_process_is_the_servers_user(self, sandbox: BubblewrapSandbox) -> None:
        async with three(sandbox) as pids:
            seen = [status(pid) for pid in pids]
        if IS_ROOT:
            for ids in ("Uid", "Gid"):
                numbers = [int(number) for process in seen for number in process[ids].split()]
                assert all(2_100_020_000 <= number < 2_100_040_000 for number in numbers)
            assert [one["Groups"] for one in seen] == [""] * 3

    @pytest.mark.skipif(not IS_ROOT, reason="only root can set its groups")
    async def test_no_group_of_the_server_is_left_to_any_process(self, sandbox: BubblewrapSandbox) -> None:
        before = os.getgroups()
        os.setgroups([27, 1234])
        try:
            async with three(sandbox) as pids:
                found = [status(pid)["Groups"] for pid in pids]
        finally:
            os.setgroups(before)
        assert found == ["", "", ""]

    async def test_no_process_is_started_with_a_variable(self, sandbox: BubblewrapSandbox) -> None:
        """test_bubblewrap_contract.py checks the launcher too."""
        async with three(sandbox) as pids:
            found = [one.get("Environment", "") for one in map(status, pids)]
        assert found[:2] == ["", ""]

    async def test_processes_have_no_capabilities_and_cannot_gain_privileges(self, sandbox: BubblewrapSandbox) -> None:
        async with three(sandbox) as pids:
            seen = [status(pid) for pid in pids]
        for one in seen:
            assert [int(one[name], 16) for name in CAPABILITIES] == [0] * 4
            assert one["NoNewPrivs"] == "1"

    async def test_pid_1_and_the_code_are_held_by_filters(self, sandbox: BubblewrapSandbox) -> None:
        async with three(sandbox) as pids:
            _, first, code = (status(pid).get("Seccomp_filters") for pid in pids)
        assert (first, code) == ("1", "2")

    async def test_pid_1_has_a_session_of_its_own(self, sandbox: BubblewrapSandbox) -> None:
        async with three(sandbox) as pids:
            sessions = [os.getsid(pid) for pid in pids]
        assert os.getsid(0) not in sessions[1:]
        assert len(set(sessions[1:])) == 2

    async def test_code_runs_with_locked_securebits(self, trial: Trial) -> None:
        code = "import ctypes\ndef main(args): return ctypes.CDLL(None).prctl(27, 0, 0, 0, 0)"
        assert await trial.value(code) == 0xEF

    async def test_each_process_has_limits_of_its_own(self, trial: Trial) -> None:
        code = """
        import resource
        def main(args):
            return {n: resource.getrlimit(getattr(resource, n)) for n in dir(resource) if n.startswith('RLIMIT_')}
        """
        with generous_server():
            found = await trial.value(code, limits=LIMITS)
        expected = {"CORE": 1, "NPROC": 41, "FSIZE": 8 << 20, "STACK": 8 << 20, "MEMLOCK": 0}
        expected |= {"MSGQUEUE": 0, "RTPRIO": 0, "NICE": 0, "SIGPENDING": 1024}
        assert found.pop("RLIMIT_CPU") == [302, 302]
        assert {name: found[f"RLIMIT_{name}"] for name in expected} == {n: [v, v] for n, v in expected.items()}
        assert 0 < found["RLIMIT_AS"][1] <= 64 << 30
        assert found["RLIMIT_NOFILE"] in ([1024, 1024], [256, 256])  # fewer without a cgroup

    async def test_its_loopback_is_down_and_has_no_address(self, trial: Trial) -> None:
        code = """
        def addresses(name):
            try: return open(f'/proc/self/net/{name}').read()
            except FileNotFoundError: return ''
        def main(args): return [name for name in ('if_inet6', 'fib_trie') if 'lo' in addresses(name).split()
                                or '127.0.0.1' in addresses(name)]
        """
        assert await trial.value(code) == []

    async def test_root_dev_and_run_contain_only_allowed_entries(self, trial: Trial) -> None:
        allowed = {
            "etc",
            "var",
            "usr",
            "bin",
            "sbin",
            "lib",
            "lib32",
            "lib64",
            "libx32",
            Path(sys.base_prefix).resolve().parts[1],
        }
        allowed |= {"dev", "proc", "run", "workspace", "tmp", "skills", "packages", "blobs", "node_modules"}
        found = await trial.value("import os\ndef main(args): return [os.listdir(p) for p in ('/', '/dev', '/run')]")
        assert set(found[0]) <= allowed
        assert set(found[1]) <= {"null", "zero", "full", "random", "urandom", "shm", "fd", "stdin", "stdout", "stderr"}
        assert set(found[2]) == {"cellblock"}

    async def test_each_place_of_the_host_is_read_only(self, trial: Trial) -> None:
        skill = trial.skill("mine", {"code/main.py": "def main(args): pass"})
        code = "def main(args): return open('/proc/self/mountinfo').read().splitlines()"
        lines = await trial.value(code, skills=(skill,), blobs=(trial.blob("blob:x", b"content"),))
        mounts = [(line.split()[4], set(line.split()[5].split(","))) for line in lines]
        assert {"/", "/usr", "/skills/mine", "/blobs/blob:x", "/run/cellblock/inside"} <= {point for point, _ in mounts}
        writable = ("/workspace", "/tmp", "/dev/", "/proc")
        assert [point for point, options in mounts if "ro" not in options and not point.startswith(writable)] == []
        assert [point for point, options in mounts if "nosuid" not in options] == []

    async def test_it_ends_with_a_killed_server(self) -> None:
        changed = os.environ.get("SKILLERY_TEST_CHANGED", "")
        with tempfile.TemporaryDirectory() as folder:
            command = (sys.executable, "-c", SERVER, str(Path(__file__).parent), changed, folder)
            environment = {**os.environ, "PATH": f"{Path(bwrap()).parent}:{os.environ['PATH']}"}
            server = subprocess.Popen(command, stdout=subprocess.PIPE, env=environment)
            assert server.stdout is not None
            assert server.stdout.readline() == b"started\n"
            run: set[int] = set()
            try:
                run = await eventually_async(lambda: len(run := descendants(server.pid)) >= 3 and run, of=server)
                server.kill()
                server.wait()
                server.stdout.close()
                await eventually_async(lambda: not any(is_alive(pid) for pid in run))
            finally:
                end({server.pid, *run})


def end(pids: set[int]) -> None:
    for pid in pids:
        if is_alive(pid):
            os.kill(pid, signal.SIGKILL)
