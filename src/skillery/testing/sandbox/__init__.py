"""The contract of a sandbox. A plugin's tests subclass SandboxContract, and override its fixture `sandbox`.

A backend that only carries jobs to another sandbox uses SandboxTransport.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from skillery.backends import KeepsWarm, Sandbox
from skillery.testing.sandbox.attacks import EscapeCases, SystemCallCases
from skillery.testing.sandbox.between_runs import BetweenRunsCases
from skillery.testing.sandbox.blobs_and_logs import BlobCases, LogCases
from skillery.testing.sandbox.files import FileCases, FileLimitCases, LayoutCases, PackageCases
from skillery.testing.sandbox.imports import ImportCases
from skillery.testing.sandbox.kernel_objects import KernelObjectCases
from skillery.testing.sandbox.language_walls import LanguageIsolation
from skillery.testing.sandbox.languages import JavaScriptCases, ShellCases
from skillery.testing.sandbox.leftovers import Traces, assert_none_since, traces
from skillery.testing.sandbox.limits import DiskCases, EndingCases, MemoryCases, ProcessCases, TimeCases
from skillery.testing.sandbox.loopback import LoopbackAttacks, LoopbackCases
from skillery.testing.sandbox.network import HERE, HOSTS, NetworkCases
from skillery.testing.sandbox.network_lists import AllowedNetworkCases, opened, with_proxy
from skillery.testing.sandbox.outputs import CollectedCases, OutputCases
from skillery.testing.sandbox.posture import LinuxLook, PostureCases
from skillery.testing.sandbox.programs import HandlerCases, ScriptCases
from skillery.testing.sandbox.results import FailureCases, ResultCases
from skillery.testing.sandbox.secrets import SecretCases
from skillery.testing.sandbox.stubs import StubCases
from skillery.testing.sandbox.trial import MemoryHost, OpenWith, SandboxCases, Trial, state_of_server
from skillery.testing.sandbox.unix_sockets import UnixSocketAttacks, UnixSocketCases
from skillery.testing.sandbox.workspaces import WorkspaceCases


class SandboxFunctions(
    ResultCases,
    FailureCases,
    ImportCases,
    StubCases,
    BlobCases,
    LogCases,
    TimeCases,
    JavaScriptCases,
    ShellCases,
    HandlerCases,
    ScriptCases,
    PackageCases,
    FileCases,
    OutputCases,
    CollectedCases,
    WorkspaceCases,
    LoopbackCases,
    UnixSocketCases,
):
    """Behaviour of the code in a run, and the outcome of the run."""


class SandboxIsolation(
    LayoutCases,
    PostureCases,
    NetworkCases,
    AllowedNetworkCases,
    LoopbackAttacks,
    UnixSocketAttacks,
    SecretCases,
    SystemCallCases,
    EscapeCases,
    BetweenRunsCases,
    MemoryCases,
    KernelObjectCases,
    EndingCases,
    ProcessCases,
    DiskCases,
    FileLimitCases,
    LanguageIsolation,
):
    """Isolation: resources that the code cannot get, exhaust or reach.

    Do not run these cases against a backend without isolation: some would harm the machine.
    """


class SandboxContract(SandboxFunctions, SandboxIsolation):
    """The complete contract: functions and isolation."""


class SandboxTransport(
    ScriptCases,
    BlobCases,
    LogCases,
    PackageCases,
    FileCases,
    OutputCases,
    WorkspaceCases,
    SecretCases,
    EndingCases,
):
    """Cases for a backend that carries jobs to another sandbox, whose own tests run the contract.

    The cases check all content that travels in both directions, and the ends of runs.
    """


__all__ = [
    "LinuxLook",
    "MemoryHost",
    "SandboxContract",
    "SandboxFunctions",
    "SandboxIsolation",
    "SandboxTransport",
    "SharedSandbox",
    "Trial",
]


class SharedSandbox(SandboxCases):
    """Mixin for a contract class: one backend runs all its cases. Write it before the contract in the list of bases.

    Override `sandbox` with a fixture of `pytest_asyncio.fixture(scope="class", loop_scope="class")`. Leftovers of runs
    are found after each case, and leftovers of the closed backend after the last case. If you override `connected` in
    the same way, cases of runs with a network list share a backend too.
    """

    pytestmark = pytest.mark.asyncio(loop_scope="class")
    has_check_after_each_case = True
    """Whether each case ends with another run that checks the backend. Otherwise only the last case does, and a broken
    backend fails the next case. Backends whose runs have no process in common may set this to False.
    """

    @pytest_asyncio.fixture(scope="class", loop_scope="class", autouse=True)
    @classmethod
    async def closed(cls, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Traces | None]:
        """Check that the closed backend leaves nothing behind. Yield the traces from before it is opened."""
        folder = tmp_path_factory.mktemp("temporary")
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("TMPDIR", str(folder))
            patch.setattr(tempfile, "tempdir", str(folder))
            traces_before = traces() if sys.platform == "linux" else None
            yield traces_before
            assert [path.name for path in folder.iterdir()] == [], "temporary files were not removed"
            if traces_before is not None:
                await assert_none_since(traces_before, closed=True)

    @pytest.fixture(autouse=True)
    def whole(self) -> Iterator[None]:
        """Check that the server process is unchanged."""
        state = state_of_server()
        yield
        assert state_of_server() == state, "a run changed the server process"

    @pytest_asyncio.fixture(scope="class", loop_scope="class")
    @classmethod
    async def connected(cls) -> Sandbox | None:
        """Yield a started backend with the addresses HOSTS that may connect to HERE, and close it.

        With None, `open_with` opens a backend for each case with a network list.
        """
        return None

    @pytest_asyncio.fixture(scope="class", loop_scope="class")
    @classmethod
    async def idle(
        cls,
        closed: Traces | None,
        sandbox: Sandbox,
        connected: Sandbox | None,
        tmp_path_factory: pytest.TempPathFactory,
    ) -> AsyncIterator[Traces | None]:
        """Yield the traces of the started backends while they have no run."""
        folder = tmp_path_factory.mktemp("idle")
        if connected is not None:  # the first run with a network list starts the proxy
            await Trial(connected, folder).value("def main(args): pass", network=("http://a.api.test",))
        yield None if closed is None else traces(closed.processes, with_groups=False)
        await Trial(sandbox, folder).is_well()

    @pytest_asyncio.fixture(loop_scope="class")
    async def trial(self, sandbox: Sandbox, idle: Traces | None, tmp_path: Path) -> AsyncIterator[Trial]:  # type: ignore[override]
        trial = Trial(sandbox, tmp_path)
        yield trial
        if self.has_check_after_each_case:
            await trial.is_well()
        if idle is not None and not (isinstance(sandbox, KeepsWarm) and sandbox.warm()):
            await assert_none_since(idle)

    @pytest_asyncio.fixture(loop_scope="class")
    async def reaching(
        self, open_with: OpenWith | None, connected: Sandbox | None, idle: Traces | None, tmp_path: Path
    ) -> AsyncIterator[Trial]:
        if connected is None:
            async with opened(open_with, HOSTS, HERE, tmp_path) as trial:
                yield trial
            return
        trial = Trial(connected, tmp_path)
        yield trial
        await trial.is_well()
        if idle is not None:
            await assert_none_since(idle)

    @pytest_asyncio.fixture(loop_scope="class")
    async def by_hand(self, reaching: Trial) -> Trial:
        return await with_proxy(reaching)
