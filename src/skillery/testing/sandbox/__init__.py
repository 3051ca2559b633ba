"""The contract of a sandbox. A plugin's tests subclass SandboxContract, and override its fixture `sandbox`.

A backend that only carries jobs to another sandbox uses SandboxTransport.
"""

from skillery.testing.sandbox.attacks import EscapeCases, SystemCallCases
from skillery.testing.sandbox.between_runs import BetweenRunsCases
from skillery.testing.sandbox.blobs_and_logs import BlobCases, LogCases
from skillery.testing.sandbox.files import FileCases, FileLimitCases, LayoutCases, PackageCases
from skillery.testing.sandbox.imports import ImportCases
from skillery.testing.sandbox.kernel_objects import KernelObjectCases
from skillery.testing.sandbox.language_walls import LanguageIsolation
from skillery.testing.sandbox.languages import JavaScriptCases, ShellCases
from skillery.testing.sandbox.limits import DiskCases, EndingCases, MemoryCases, ProcessCases, TimeCases
from skillery.testing.sandbox.loopback import LoopbackAttacks, LoopbackCases
from skillery.testing.sandbox.network import NetworkCases
from skillery.testing.sandbox.network_lists import AllowedNetworkCases
from skillery.testing.sandbox.outputs import CollectedCases, OutputCases
from skillery.testing.sandbox.posture import LinuxLook, PostureCases
from skillery.testing.sandbox.programs import HandlerCases, ScriptCases
from skillery.testing.sandbox.results import FailureCases, ResultCases
from skillery.testing.sandbox.secrets import SecretCases
from skillery.testing.sandbox.shared import SharedSandbox
from skillery.testing.sandbox.stubs import StubCases
from skillery.testing.sandbox.trial import MemoryHost, Trial
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
):
    """Behaviour of the code in a run, and the outcome of the run."""


class SandboxIsolation(
    LayoutCases,
    PostureCases,
    NetworkCases,
    AllowedNetworkCases,
    LoopbackAttacks,
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
