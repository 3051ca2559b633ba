"""Contract suites for plugin authors: subclass one, provide its backend as a fixture, run it with pytest
(asyncio_mode=auto)."""

from skillery.testing.authenticator import AuthenticatorContract
from skillery.testing.sandbox import SandboxContract, SandboxFunctions, SandboxIsolation, SharedSandbox
from skillery.testing.secrets import SecretsContract
from skillery.testing.storage import StorageContract

__all__ = [
    "AuthenticatorContract",
    "SandboxContract",
    "SandboxFunctions",
    "SandboxIsolation",
    "SecretsContract",
    "SharedSandbox",
    "StorageContract",
]
