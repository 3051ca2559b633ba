"""The backend `bubblewrap` passes the contract."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from bubblewrap_here import make
from skillery.testing import SandboxContract
from skillery_bubblewrap.sandbox import BubblewrapSandbox


class TestBubblewrap(SandboxContract):
    @pytest.fixture
    async def sandbox(self, tmp_path: Path) -> AsyncIterator[BubblewrapSandbox]:
        sandbox = make(tmp_path)
        await sandbox.start()
        yield sandbox
        await sandbox.close()
