"""Faulty backends that look correct: the contract must fail for each of them, in the right groups of cases.

Backends without isolation run only cases that are harmless there.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from skillery.testing.sandbox import leftovers
from tests.support.processes import eventually_async

PTRACE_SEIZE = 0x4206

TESTS = Path(__file__).parents[1]
OWN_PIDS = (sys.executable, str(TESTS / "support" / "own_pids.py"))
"""Runs the cases in a pid namespace, so that they cannot kill other processes."""
SUITE = """
import asyncio, json, os, subprocess, sys, tempfile
from pathlib import Path
import msgspec, pytest
from skillery.backends import CodeCall, Place
from skillery.builtin.linux_sandbox import LinuxSandboxSettings, open_sandbox
from skillery.builtin.unsafe_subprocess import UnsafeSubprocess
from skillery.testing import SandboxContract
from skillery.testing.sandbox import leftovers

leftovers.LOOKS = 25

class Wrapped:
    def __init__(self, hosts=None, allow_private=()):
        self.inner = open_sandbox(LinuxSandboxSettings(hosts=hosts or {}, allow_private=allow_private), Place(Path()))
    def probe(self): return self.inner.probe()
    async def start(self): await self.inner.start()
    async def run(self, job, host): return await self.inner.run(job, host)
    async def close(self): await self.inner.close()

class Faulty(SandboxContract):
    Weak = None

    @pytest.fixture
    async def sandbox(self):
        sandbox = self.Weak()
        await sandbox.start()
        yield sandbox
        await sandbox.close()

    @pytest.fixture
    def open_with(self):
        async def open_with(hosts, allow_private):
            sandbox = self.Weak(dict(hosts), allow_private)
            await sandbox.start()
            return sandbox
        return open_with if issubclass(self.Weak, Wrapped) else None
"""
CLASS = """
__BACKEND__

class Test__NUMBER__(Faulty):
    Weak = Weak
"""
CHOSEN = """
import pytest
def pytest_collection_modifyitems(items):
    items[:] = [item for item in items if item.originalname in __CASES__[type(item.instance).__name__]]
@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    report = (yield).get_result()
    group = next(c.__name__ for c in type(item.instance).__mro__ if item.originalname in vars(c))
    told = f"{type(item.instance).__name__} {group} {item.originalname}"
    if report.failed: print(f"@failed {told}")
    elif report.skipped: print(f"@skipped {told}")
    elif report.when == "call": print(f"@passed {told}")
"""


class Weak(msgspec.Struct, frozen=True):
    """A faulty backend, the cases to run, the groups with a failing case, and one case that must fail."""

    backend: str
    cases: tuple[str, ...]
    fails: frozenset[str]
    case: str


ARGUMENTS = "test_arguments_arrive_and_the_result_comes_back"
LISTS = "test_runs_at_the_same_time_have_lists_of_their_own"
LISTED = "test_listed_hosts_are_reached_and_recorded"
INSIDE = "test_a_name_that_leads_inside_is_refused"
FORKS = "test_a_fork_bomb_meets_its_limit"
FORGED = "test_a_result_printed_to_stdout_is_only_text"
KEPT = "test_blobs_written_before_a_failure_are_kept"
HARMLESS = (
    "test_the_files_of_a_skill_can_be_read",
    "test_input_blobs_are_files_named_by_their_id",
    "test_the_workspace_is_home_and_empty_and_gone_afterwards",
    "test_the_code_is_unprivileged",
    "test_no_capability_is_left_and_none_can_be_gained",
    "test_only_the_streams_and_the_channel_are_open",
    "test_other_processes_are_not_seen",
    "test_nothing_else_of_the_host_is_there",
    "test_a_file_of_the_server_cannot_be_read",
    "test_the_host_cannot_be_reached",
    "test_sockets_of_the_host_cannot_be_reached_by_name",
    "test_rare_socket_families_are_refused",
    "test_pid_1_cannot_be_read",
    "test_a_name_that_leads_inside_is_refused",
    "test_a_value_is_not_in_the_next_run",
    "test_arguments_arrive_and_the_result_comes_back",
    "test_an_exception_is_reported_with_the_frames_of_the_code",
)
"""Full names of harmless cases. Other cases kill, mount or fill whatever they can reach."""
BACKENDS = {
    "nothing is isolated": Weak(
        "Weak = UnsafeSubprocess",
        HARMLESS,
        frozenset({"LayoutCases", "PostureCases", "NetworkCases", "EscapeCases"}),
        "test_a_file_of_the_server_cannot_be_read",
    ),
    "its memory is not cleared": Weak(
        """
class Weak(Wrapped):
    kept = None
    async def run(self, job, host):
        self.kept = {**(self.kept or {}), **job.environment}
        return await self.inner.run(msgspec.structs.replace(job, environment=dict(self.kept)), host)
""",
        ("test_a_value_is_not_in_the_next_run", "test_the_environment_has_exactly_the_variables_of_the_job", ARGUMENTS),
        frozenset({"SecretCases", "PostureCases"}),
        "test_a_value_is_not_in_the_next_run",
    ),
    "its lists are those of all runs": Weak(
        """
class Weak(Wrapped):
    lists = frozenset()
    async def run(self, job, host):
        self.lists |= {*job.network}
        return await self.inner.run(msgspec.structs.replace(job, network=tuple(sorted(self.lists))), host)
""",
        (LISTS, LISTED, "test_the_host_cannot_be_reached"),
        frozenset({"AllowedNetworkCases"}),
        LISTS,
    ),
    "loopback is nobody's secret": Weak(
        """
class Weak(Wrapped):
    def __init__(self, hosts=None, allow_private=()):
        super().__init__(hosts, (*allow_private, "127.0.0.0/8", "::1"))
""",
        (INSIDE, LISTED, "test_an_address_is_refused_however_it_is_spelt"),
        frozenset({"AllowedNetworkCases"}),
        INSIDE,
    ),
    "limits are a suggestion": Weak(
        """
class Weak(Wrapped):
    async def run(self, job, host):
        doubled = {name: 2 * getattr(job.limits, name) for name in ("memory_mb", "processes", "disk_files", "disk_mb")}
        limits = msgspec.structs.replace(job.limits, **doubled)
        return await self.inner.run(msgspec.structs.replace(job, limits=limits), host)
""",
        (FORKS, "test_threads_count_as_processes", "test_the_number_of_files_is_held", ARGUMENTS),
        frozenset({"ProcessCases", "DiskCases"}),
        FORKS,
    ),
    "it leaves a process": Weak(
        """
class Weak(Wrapped):
    left = []
    async def run(self, job, host):
        self.left.append(subprocess.Popen(["sleep", "60"]))
        return await self.inner.run(job, host)
import atexit
atexit.register(lambda left=Weak.left: [one.kill() for one in left])
""",
        (ARGUMENTS,),
        frozenset({"ResultCases"}),
        ARGUMENTS,
    ),
    "it leaves a file": Weak(
        """
class Weak(Wrapped):
    async def run(self, job, host):
        tempfile.mkdtemp(prefix="work")
        return await self.inner.run(job, host)
""",
        (ARGUMENTS,),
        frozenset({"ResultCases"}),
        ARGUMENTS,
    ),
    "it leaves a cgroup": Weak(
        """
from skillery.testing.sandbox.leftovers import hierarchies
class Weak(Wrapped):
    made = []
    async def run(self, job, host):
        made = hierarchies()[0] / f"weak-{os.getpid()}-{len(self.made)}"
        made.mkdir()
        self.made.append(made)
        return await self.inner.run(job, host)
import atexit
atexit.register(lambda made=Weak.made: [one.rmdir() for one in made])
""",
        (ARGUMENTS,),
        frozenset({"ResultCases"}),
        ARGUMENTS,
    ),
    "it believes what is printed": Weak(
        """
class Weak(Wrapped):
    async def run(self, job, host):
        outcome = await self.inner.run(job, host)
        said = outcome.log.head.rpartition(b'{"op":"result"}')[2].strip()
        return msgspec.structs.replace(outcome, result=said) if said and b'"op"' in outcome.log.head else outcome
""",
        (FORGED, ARGUMENTS),
        frozenset({"FailureCases"}),
        FORGED,
    ),
    "a failed run is tried again": Weak(
        """
class Weak(Wrapped):
    async def run(self, job, host):
        outcome = await self.inner.run(job, host)
        return await self.inner.run(job, host) if outcome.failure else outcome
""",
        (KEPT, ARGUMENTS, "test_blobs_are_written_with_their_kinds"),
        frozenset({"BlobCases"}),
        KEPT,
    ),
}


@pytest.mark.full
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make the cgroups that a faulty backend leaves behind")
def test_the_contract_fails_for_backends_that_only_look_well(tmp_path: Path) -> None:
    classes = {f"Test{number}": name for number, name in enumerate(BACKENDS)}
    suite = tmp_path / "test_weak.py"
    parts = (
        CLASS.replace("__BACKEND__", BACKENDS[name].backend).replace("Test__NUMBER__", kind)
        for kind, name in classes.items()
    )
    suite.write_text(SUITE + "".join(parts))
    cases = {kind: BACKENDS[name].cases for kind, name in classes.items()}
    (tmp_path / "conftest.py").write_text(CHOSEN.replace("__CASES__", repr(cases)))
    (tmp_path / "pytest.ini").write_text("[pytest]\nasyncio_mode = auto\n")
    options = "-q -s --tb=short -p no:cacheprovider -p pytest_asyncio.plugin"
    command = (sys.executable, "-m", "pytest", *options.split())
    done = subprocess.run(
        (*OWN_PIDS, *command, suite.name),
        cwd=tmp_path,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},  # importing other plugins takes too long
        capture_output=True,
        text=True,
        timeout=1200,
        check=False,
    )
    told = re.findall(r"@(failed|passed) (\w+) (\w+) (\w+)", done.stdout)
    wrong = {}
    for kind, name in classes.items():
        failed = {(group, case) for result, of, group, case in told if (result, of) == ("failed", kind)}
        expected = BACKENDS[name]
        groups, names = ({entry[place] for entry in failed} for place in (0, 1))
        if groups != expected.fails or expected.case not in names:
            wrong[name] = sorted(failed)
    assert wrong == {}, done.stdout[-6000:]
    assert done.returncode == 1


# -- the check for leftovers -------------------------------------------------------------------------------------------


async def test_processes_that_other_tests_start_are_no_leftovers() -> None:
    command = ["sh", "-c", "read line; sleep 1000 & echo begun; wait"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, process_group=0) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        try:
            opened = leftovers.traces()
            idle = leftovers.traces(opened.processes)
            other.stdin.write(b"\n")
            other.stdin.flush()
            assert other.stdout.readline() == b"begun\n"
            assert leftovers.surplus(opened, leftovers.traces())  # a check of all processes would fail
            await leftovers.assert_none_since(idle)
            await leftovers.assert_none_since(opened, closed=True)
        finally:
            os.killpg(other.pid, signal.SIGKILL)


@pytest.mark.parametrize("command", [["sleep", "1000"], ["true"]], ids=["running", "zombie"])
async def test_a_process_that_stays_is_a_leftover(monkeypatch: pytest.MonkeyPatch, command: list[str]) -> None:
    monkeypatch.setattr(leftovers, "LOOKS", 5)
    before = leftovers.traces()
    with subprocess.Popen(command) as left:
        for closed in (False, True):
            with pytest.raises(AssertionError, match=rf"left behind: process.*\b{left.pid}\b"):
                await leftovers.assert_none_since(before, closed=closed)
        left.kill()


async def test_a_killed_process_has_time_to_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first process of a pid namespace ends after all others, and a tracer delays their end."""
    monkeypatch.setattr(leftovers, "LOOKS", 5)
    before = leftovers.traces()
    command = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "sh", "-c", "sleep 1000 & wait"]
    with subprocess.Popen(command) as namespace:
        unshare = namespace.pid
        [first] = await eventually_async(lambda: children(unshare), of=namespace)
        [member] = await eventually_async(lambda: children(first), of=namespace)
        assert ctypes.CDLL(None, use_errno=True).ptrace(PTRACE_SEIZE, member, None, None) == 0
        os.kill(first, signal.SIGKILL)
        check = asyncio.ensure_future(leftovers.assert_none_since(before))
        await asyncio.sleep(20 * leftovers.PAUSE_SECONDS)  # no event: the check must not fail in this time
        assert not check.done()
        assert leftovers.is_dying(first)
        os.waitpid(member, 0)
        namespace.wait()
        await check


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
