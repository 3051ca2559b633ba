"""The backend `bubblewrap` passes the contract, as root and as an ordinary user, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import pytest
import pytest_asyncio

from bubblewrap_here import CHECKOUT, bwrap, make
from cellblock.host import hierarchies
from cellblock.parts import ENVIRONMENT
from skillery.backends import CodeCall, Job, Limits, Place, SkillMount
from skillery.errors import SandboxUnavailable, StartupError
from skillery.testing import LinuxLook, SandboxFunctions, SandboxIsolation, SharedSandbox
from skillery.testing.sandbox import MemoryHost, Trial
from skillery.testing.sandbox.attacks import EscapeCases, SystemCallCases
from skillery.testing.sandbox.files import LayoutCases
from skillery.testing.sandbox.leftovers import descendants
from skillery.testing.sandbox.limits import DiskCases, MemoryCases, ProcessCases
from skillery.testing.sandbox.loopback import LoopbackAttacks
from skillery.testing.sandbox.network import HERE, HOSTS, NetworkCases
from skillery.testing.sandbox.network_lists import AllowedNetworkCases
from skillery.testing.sandbox.posture import PostureCases
from skillery.testing.sandbox.secrets import SecretCases
from skillery.testing.sandbox.trial import OpenWith, failure_type, value_of
from skillery.testing.sandbox.unix_sockets import UnixSocketAttacks
from skillery.testing.upstreams import upstream
from skillery_bubblewrap import BubblewrapSettings, open_sandbox, process
from skillery_bubblewrap.sandbox import BubblewrapSandbox
from tests.support.processes import eventually_async

IS_ROOT = os.geteuid() == 0
only_as_root = pytest.mark.skipif(not IS_ROOT, reason="only root can change its uid")
SLEEP = "import os, time\ndef main(args):\n    os.fork(); time.sleep(1e6)"


def group_folders(pid: int) -> list[Path]:
    """Return the cgroups that a server with this pid has made."""
    return [
        path for h in hierarchies.candidates() for path in h.folder.glob(f"cellblock-*-{pid}-*-*/**/") if path.is_dir()
    ]


class InheritanceHost(MemoryHost):
    """A host whose blobs name the files that other programs of this process would inherit."""

    async def read_blob(self, blob_id: str) -> bytes:
        return "\n".join(inheritable_files()).encode()


def inheritable_files() -> list[str]:
    """Return the targets of the inheritable descriptors of this process."""
    opened = [path for path in Path("/proc/self/fd").iterdir() if path.is_symlink()]
    return [str(path.readlink()) for path in opened if os.get_inheritable(int(path.name))]


class InBubblewrap(SharedSandbox):
    has_check_after_each_case = False  # each run has a launcher, bwrap and Python of its own

    @pytest_asyncio.fixture(scope="class", loop_scope="class")
    @classmethod
    async def sandbox(cls, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[BubblewrapSandbox]:  # type: ignore[override]
        sandbox = make(tmp_path_factory.mktemp("sandbox"))
        await sandbox.start()
        yield sandbox
        await sandbox.close()
        assert group_folders(os.getpid()) == []

    @pytest.fixture
    def open_with(self, tmp_path: Path) -> OpenWith:
        async def open_with(hosts: Mapping[str, tuple[str, ...]], allow_private: tuple[str, ...]) -> BubblewrapSandbox:
            settings = BubblewrapSettings(program=bwrap(), hosts=dict(hosts), allow_private=allow_private)
            sandbox = open_sandbox(settings, Place(tmp_path))
            await sandbox.start()
            return sandbox

        return open_with


@pytest.mark.full
class TestBubblewrapFunctions(InBubblewrap, SandboxFunctions):
    """The code inside is the runtime of `linux`, so its functions are tested there."""


CORE = (
    LayoutCases,
    PostureCases,
    NetworkCases,
    SecretCases,
    SystemCallCases,
    EscapeCases,
    MemoryCases,
    ProcessCases,
    DiskCases,
)


NETWORK = (AllowedNetworkCases, LoopbackAttacks, UnixSocketAttacks)
OTHERS = [cases for cases in SandboxIsolation.__bases__ if cases not in (*CORE, *NETWORK)]


@pytest.mark.full
class TestBubblewrapIsolation(InBubblewrap, *OTHERS):  # type: ignore[misc]
    """Isolation that the runtime provides, which is that of `linux`."""


@pytest.mark.full
class TestBubblewrapNetwork(InBubblewrap, *NETWORK):  # type: ignore[misc]
    """Isolation that does not depend on the user of the server: of networks and sockets."""

    @pytest_asyncio.fixture(scope="class", loop_scope="class")
    @classmethod
    async def connected(cls, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[BubblewrapSandbox]:  # type: ignore[override]
        settings = BubblewrapSettings(program=bwrap(), hosts=HOSTS, allow_private=HERE)
        sandbox = open_sandbox(settings, Place(tmp_path_factory.mktemp("connected")))
        await sandbox.start()
        yield sandbox
        await sandbox.close()


@pytest.mark.full(after=1)
class TestBubblewrap(InBubblewrap, LinuxLook, *CORE):  # type: ignore[misc]
    async def test_degraded_reports_memory_tree_only_if_it_is_not_enforced(
        self, trial: Trial, sandbox: BubblewrapSandbox
    ) -> None:
        outcome = await trial.code("def main(args): pass")
        assert ("memory_tree" in sandbox.capabilities) == (outcome.degraded == ())
        assert set(outcome.degraded) <= {"memory_tree"}
        assert {"disk", "disk_files", "processes", "network", "python", "stubs"} < sandbox.capabilities

    async def test_an_unmountable_skill_is_a_sandbox_error_without_host_path(
        self, trial: Trial, tmp_path: Path
    ) -> None:
        outcome = await trial.code("def main(args): pass", skills=(SkillMount("gone", tmp_path / "gone"),))
        assert outcome.failure is not None
        assert outcome.failure.type == "SandboxError"
        assert "'gone'" in outcome.failure.message
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

    @pytest.mark.full
    async def test_hundreds_of_blobs_are_mounted(self, trial: Trial) -> None:
        blobs = tuple(trial.blob(f"blob:{number}", str(number).encode()) for number in range(300))
        code = (
            "import os\ndef main(args): return sum(int(open(f'/blobs/{name}').read()) for name in os.listdir('/blobs'))"
        )
        assert await trial.value(code, blobs=blobs) == sum(range(300))

    async def test_a_server_out_of_descriptors_refuses_the_run_and_recovers(self, trial: Trial) -> None:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        for spare in range(16):
            resource.setrlimit(resource.RLIMIT_NOFILE, (len(list(Path("/proc/self/fd").iterdir())) - 1 + spare, hard))
            try:
                outcome = await trial.code("def main(args): pass")
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            assert outcome.failure is None or outcome.failure.type == "SandboxError"

    async def test_programs_of_the_server_inherit_no_descriptor_of_a_run(self, trial: Trial) -> None:
        trial.host = InheritanceHost()
        code = "from runtime import blobs\ndef main(args): return blobs.read_text('any').split('\\n')"
        before = inheritable_files()
        assert await trial.value(code) == before

    async def test_cancelling_at_any_time_leaves_nothing(self, trial: Trial) -> None:
        for delay in (0, 0.001, 0.005, 0.01, 0.015, 0.02, 0.025, 0.03, 0.035, 0.04, 0.05):
            running = asyncio.ensure_future(trial.code(SLEEP))
            await asyncio.sleep(delay)
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running

    async def test_killing_processes_at_any_time_fails_at_most_their_run(self, trial: Trial) -> None:
        for delay in (0, 0.005, 0.01, 0.015, 0.02, 0.025, 0.03, 0.04):
            running = asyncio.ensure_future(trial.code("import time\ndef main(args): time.sleep(0.2)"))
            before = descendants(os.getpid())
            await asyncio.sleep(delay)
            for pid in descendants(os.getpid()) - before:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            assert failure_type(await running) in {None, "SandboxError", "ProcessKilled"}

    async def test_a_closed_umask_of_the_server_does_no_harm(self, trial: Trial) -> None:
        before = os.umask(0o077)
        try:
            await trial.is_well()
        finally:
            os.umask(before)

    async def test_an_allowed_host_is_reached_and_no_other(self, tmp_path: Path) -> None:
        hosts: dict[str, tuple[str, ...]] = {"api.test": ("127.0.0.1",), "other.test": ("127.0.0.1",)}
        settings = BubblewrapSettings(program=bwrap(), allow_private=("127.0.0.1",), hosts=hosts)
        sandbox = open_sandbox(settings, Place(tmp_path))
        code = """
import urllib.error, urllib.request
def main(args):
    text = urllib.request.urlopen(args['url']).read().decode()
    try: urllib.request.urlopen(args['url'].replace('api', 'other'))
    except urllib.error.HTTPError as error: return [text, error.code]
"""
        with upstream() as server:
            args = b'{"url": "http://api.test:%d/x"}' % server.port
            job = Job("run_1", CodeCall(code, "main"), args, network=(f"http://api.test:{server.port}",))
            outcome = await sandbox.run(job, MemoryHost())
        await sandbox.close()
        assert value_of(outcome) == ["GET /x HTTP/1.1", 403]
        assert [(use.host, use.allowed) for use in outcome.network] == [("api.test", True), ("other.test", False)]

    async def test_without_a_cgroup_the_memory_of_all_children_counts_together(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("skillery_bubblewrap.sandbox.control_groups", lambda: None)
        sandbox = make(tmp_path)
        code = """
        import os, time
        def main(args):
            for _ in range(8):
                if os.fork() == 0:
                    kept = bytearray(os.urandom(1)) * (40 << 20)
                    time.sleep(1e6)
            time.sleep(100)
        """
        outcome = await Trial(sandbox, tmp_path).code(code, limits=Limits(timeout_ms=300_000, memory_mb=128))
        await sandbox.close()
        assert (failure_type(outcome), outcome.degraded) == ("MemoryLimitExceeded", ("memory_tree",))
        assert "memory_tree" not in sandbox.capabilities


async def processes_of(sandbox: BubblewrapSandbox) -> list[dict[str, str]]:
    """Return /proc/PID/status of each process of a run while its code runs, including bwrap.

    The additional key "Environment" holds the initial environment; it is missing if the test may not read it.
    """
    before = descendants(os.getpid())
    job = Job(
        "run_1", CodeCall("import time\ndef main(args): print('runs', flush=True); time.sleep(1e6)", "main"), b"{}"
    )
    running = asyncio.ensure_future(sandbox.run(job, MemoryHost()))

    def chain() -> list[dict[str, str]]:
        seen = [status(pid) for pid in sorted(descendants(os.getpid()) - before)]
        filtered = len(seen) == 3 and seen[-1].get("Seccomp_filters") == "2"
        # bwrap sets the filters before it starts Python. A process that starts has no environment yet, and the
        # environment of a process that ends cannot be read.
        is_readable = not IS_ROOT or all("Environment" in one for one in seen)
        return seen if filtered and is_readable and seen[-1].get("Environment") != "" else []

    try:
        return await eventually_async(chain)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


def status(pid: int) -> dict[str, str]:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return {}
    found = {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}
    with contextlib.suppress(OSError):
        found["Environment"] = Path(f"/proc/{pid}/environ").read_text()
    return found


async def test_processes_of_a_run_get_no_variable_of_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No process has a variable of the server, because any process with the same uid could read it: the launcher, bwrap
    outside and inside, and the code.
    """
    monkeypatch.setenv("OF_THE_SERVER", "a value")
    monkeypatch.setattr(process, "LAUNCHER", telling_launcher(tmp_path))
    sandbox = make(tmp_path)
    bwrap_outside, first, code = await processes_of(sandbox)
    await sandbox.close()

    assert {path.read_text() for path in tmp_path.glob("environ-*")} == {""}
    if IS_ROOT:
        assert (bwrap_outside["Environment"], first["Environment"]) == ("", "")
        assert set(code["Environment"].strip("\0").split("\0")) == {
            *(f"{name}={value}" for name, value in ENVIRONMENT.items()),
            "MALLOC_ARENA_MAX=2",
            "PWD=/workspace",
        }
    for one in (bwrap_outside, first, code):
        assert "OF_THE_SERVER" not in one.get("Environment", "")


def telling_launcher(folder: Path) -> Path:
    """Return a launcher that first writes its initial environment to a file, because it lives only for milliseconds."""
    path = folder / "launcher.py"
    note = f"open('/proc/self/environ').read(), file=open(f'{folder}/environ-{{os.getpid()}}', 'w')"
    before, start, after = process.LAUNCHER.read_text().partition('if __name__ == "__main__":\n')
    path.write_text(f"{before}{start}    print({note}, end='', flush=True)\n{after}")
    return path


async def test_no_process_of_a_run_keeps_anything(tmp_path: Path) -> None:
    sandbox = make(tmp_path)
    await sandbox.start()
    bwrap_outside, first, code = await processes_of(sandbox)
    again = await processes_of(sandbox)
    await sandbox.close()

    for one in (bwrap_outside, first, code):
        assert {name: int(one[name], 16) for name in ("CapInh", "CapPrm", "CapEff", "CapAmb")} == dict.fromkeys(
            ("CapInh", "CapPrm", "CapEff", "CapAmb"), 0
        )
        assert one["NoNewPrivs"] == "1"
        assert one["Groups"] == "" or not IS_ROOT
    assert (first["Seccomp"], code["Seccomp"], int(code["CapBnd"], 16)) == ("2", "2", 0)
    if IS_ROOT:
        uids = {one["Uid"].split()[0] for one in (bwrap_outside, first, code)}
        assert len(uids) == 1, "bwrap and the code have the same uid"
        assert 2_100_020_000 <= int(*uids) < 2_100_040_000
        assert {one["Uid"].split()[0] for one in again} != uids, "each run has its own uid"


@only_as_root
@pytest.mark.full
@pytest.mark.long
def test_an_ordinary_user_passes_as_well() -> None:
    ordinary = (sys.executable, str(CHECKOUT / "tests" / "support" / "ordinary_user.py"), sys.executable)
    suites = (__file__, str(Path(__file__).with_name("test_bubblewrap_lockdown.py")))
    # Of the functions, which are the shared runtime, those that depend on the owner of files are enough.
    of_functions = "TestBubblewrapFunctions and (file or workspace or blob)"
    cases = ("-k", f"not TestBubblewrapFunctions and not TestBubblewrapNetwork or {of_functions}")
    command = (*ordinary, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:xdist", *cases, *suites)
    environment = {**os.environ, "PATH": f"{Path(bwrap()).parent}:{os.environ['PATH']}"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]


TELL_AND_SLEEP = """
import os, time
from runtime import blobs
def main(args):
    if os.fork(): blobs.write_text('there are two of us')
    time.sleep(1e6)
"""
SERVE_AND_HANG = f"""
import asyncio, sys
from pathlib import Path
from skillery.backends import CodeCall, Job, Place
from skillery.testing.sandbox import MemoryHost
from skillery_bubblewrap import BubblewrapSettings, open_sandbox
async def main():
    sandbox = open_sandbox(BubblewrapSettings(program=sys.argv[1]), Place(Path()))
    host = MemoryHost()
    asking = asyncio.ensure_future(sandbox.run(Job("run_1", CodeCall({TELL_AND_SLEEP!r}, "main"), b"{{}}"), host))
    while not host.blobs and not asking.done():
        await asyncio.sleep(0.02)
    print("running", flush=True)
    await asking
asyncio.run(main())
"""


async def test_runs_die_with_a_killed_server(tmp_path: Path) -> None:
    command = [sys.executable, "-c", SERVE_AND_HANG, bwrap()]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=tmp_path)
    assert server.stdout is not None
    assert server.stdout.readline() == b"running\n"
    run = descendants(server.pid)
    assert len(run) >= 4
    server.send_signal(signal.SIGKILL)
    server.wait()
    server.stdout.close()
    await eventually_async(lambda: not any(is_alive(pid) for pid in run))


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_required_probes_pass_and_failed_probes_name_a_fix(tmp_path: Path) -> None:
    probes = make(tmp_path).probe()
    assert [probe.name for probe in probes if probe.required and not probe.ok] == []
    assert all(probe.detail and (probe.ok or probe.fix) for probe in probes)
    assert (probes[1].name, "bubblewrap" in probes[1].detail) == ("bwrap", True)
    assert probes[-1].name == "a whole run"


@pytest.mark.parametrize("program", ["/nowhere/bwrap", "/bin/true"])
async def test_an_unusable_program_is_reported_with_the_install_command(tmp_path: Path, program: str) -> None:
    sandbox = open_sandbox(BubblewrapSettings(program=program), Place(tmp_path))
    with pytest.raises(SandboxUnavailable, match="apt-get install bubblewrap"):
        await sandbox.start()
    assert any(not probe.ok and "apt-get install bubblewrap" in probe.fix for probe in sandbox.probe())


def test_an_address_that_is_none_is_refused_at_start(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match=r"\[backends.sandbox.bubblewrap\]"):
        open_sandbox(BubblewrapSettings(allow_private=("nonsense",)), Place(tmp_path))
