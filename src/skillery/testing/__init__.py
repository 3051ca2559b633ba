"""Contract suites for plugin authors: subclass one, provide its backend as a fixture, run it with pytest
(asyncio_mode=auto)."""

import pytest

# Before the imports: pytest then shows the values of a failed assertion, as in the author's own tests.
pytest.register_assert_rewrite(
    *(f"{__name__}.{module}" for module in ("authenticator", "contracts", "sandbox", "signer", "storage", "upstreams"))
)

from skillery.testing.authenticator import AuthenticatorContract, BrowserLoginContract  # noqa: E402
from skillery.testing.contracts import (  # noqa: E402
    EventsContract,
    RankerContract,
    SecretsContract,
    sample_events,
)
from skillery.testing.sandbox import (  # noqa: E402
    LinuxLook,
    SandboxContract,
    SandboxFunctions,
    SandboxIsolation,
    SandboxTransport,
    SharedSandbox,
)
from skillery.testing.signer import SignerContract  # noqa: E402
from skillery.testing.storage import StorageContract  # noqa: E402

__all__ = [
    "AuthenticatorContract",
    "BrowserLoginContract",
    "EventsContract",
    "LinuxLook",
    "RankerContract",
    "SandboxContract",
    "SandboxFunctions",
    "SandboxIsolation",
    "SandboxTransport",
    "SecretsContract",
    "SharedSandbox",
    "SignerContract",
    "StorageContract",
    "sample_events",
]
