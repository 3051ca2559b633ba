"""The fixtures that all groups of cases share."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from skillery.backends import Sandbox
from skillery.testing.sandbox.leftovers import assert_none_since, traces
from skillery.testing.sandbox.trial import Trial


class SandboxCases:
    """Override `sandbox` with a fixture that yields your backend, started, and closes it."""

    @pytest.fixture
    async def sandbox(self) -> Sandbox:
        raise NotImplementedError("override the fixture `sandbox`")

    @pytest.fixture
    async def trial(self, sandbox: Sandbox, tmp_path: Path) -> AsyncIterator[Trial]:
        """Each case ends with a look at the next run and at what is left of this one."""
        before = traces() if sys.platform == "linux" else None
        trial = Trial(sandbox, tmp_path)
        yield trial
        await trial.is_well()
        if before is not None:
            await assert_none_since(before)
