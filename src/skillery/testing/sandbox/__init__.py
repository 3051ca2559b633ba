"""What every sandbox must do and withstand. A plugin's tests subclass SandboxContract and give it their backend:

    class TestMySandbox(SandboxContract):
        @pytest.fixture
        async def sandbox(self):
            sandbox = MySandbox()
            await sandbox.start()
            yield sandbox
            await sandbox.close()

        @pytest.fixture
        def open_with(self):  # only where runs can be allowed to use the network
            async def open_with(hosts, allow_private):
                sandbox = MySandbox(hosts=hosts, allow_private=allow_private)
                await sandbox.start()
                return sandbox
            return open_with

`SandboxFunctions` is the part that a backend without isolation can pass, `SandboxIsolation` the part that it cannot.
"""

from skillery.testing.sandbox.attacks import EscapeCases, SystemCallCases
from skillery.testing.sandbox.between_runs import BetweenRunsCases
from skillery.testing.sandbox.blobs_and_logs import BlobCases, LogCases
from skillery.testing.sandbox.endings import EndingCases
from skillery.testing.sandbox.files import FileCases, FileLimitCases
from skillery.testing.sandbox.imports import ImportCases, StubCases
from skillery.testing.sandbox.kernel_objects import KernelObjectCases
from skillery.testing.sandbox.language_walls import LanguageIsolation
from skillery.testing.sandbox.languages import JavaScriptCases, ShellCases
from skillery.testing.sandbox.layout import LayoutCases
from skillery.testing.sandbox.limits import DiskCases, MemoryCases, ProcessCases, TimeCases
from skillery.testing.sandbox.network import AllowedNetworkCases, NetworkCases
from skillery.testing.sandbox.outputs import OutputCases
from skillery.testing.sandbox.packages import PackageCases
from skillery.testing.sandbox.posture import PostureCases
from skillery.testing.sandbox.programs import HandlerCases, ScriptCases
from skillery.testing.sandbox.results import FailureCases, ResultCases
from skillery.testing.sandbox.secrets import SecretCases
from skillery.testing.sandbox.trial import MemoryHost, Trial


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
):
    """What the code gets and what comes back."""


class SandboxIsolation(
    LayoutCases,
    PostureCases,
    NetworkCases,
    AllowedNetworkCases,
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
    """What the code cannot get, use up or reach. Not for a backend that isolates nothing: some cases would harm the
    machine."""


class SandboxContract(SandboxFunctions, SandboxIsolation):
    """All of it."""


__all__ = ["MemoryHost", "SandboxContract", "SandboxFunctions", "SandboxIsolation", "Trial"]
