"""The backend `linux` passes the contract: here as whoever runs the tests."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from skillery.backends import Place
from skillery.builtin.linux_sandbox import skillery_sandbox
from skillery.builtin.linux_sandbox.sandbox import LinuxSandbox
from skillery.testing import SandboxContract


class TestLinuxSandbox(SandboxContract):
    @pytest.fixture
    async def sandbox(self, tmp_path: Path) -> AsyncIterator[LinuxSandbox]:
        offer = skillery_sandbox()
        sandbox: LinuxSandbox = offer.open(offer.settings(), Place(tmp_path))
        await sandbox.start()
        yield sandbox
        await sandbox.close()
