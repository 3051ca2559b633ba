"""Cases that share one started backend, for backends that start slowly."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from skillery.backends import KeepsWarm, Sandbox
from skillery.testing.sandbox.leftovers import Traces, assert_none_since, traces
from skillery.testing.sandbox.network import HERE, HOSTS
from skillery.testing.sandbox.network_lists import opened, with_proxy
from skillery.testing.sandbox.trial import OpenWith, SandboxCases, Trial, state_of_server


class SharedSandbox(SandboxCases):
    """Mixin for a contract class: one backend runs all its cases. Write it before the contract in the list of bases.

    Override `sandbox` with a fixture of `pytest_asyncio.fixture(scope="class", loop_scope="class")`. Leftovers of runs
    are found after each case, and leftovers of the closed backend after the last case.
    """

    pytestmark = pytest.mark.asyncio(loop_scope="class")

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
    async def idle(cls, closed: Traces | None, sandbox: Sandbox) -> Traces | None:
        """Return the traces of the started backend while it has no run."""
        return None if closed is None else traces(closed.processes, with_groups=False)

    @pytest_asyncio.fixture(loop_scope="class")
    async def trial(self, sandbox: Sandbox, idle: Traces | None, tmp_path: Path) -> AsyncIterator[Trial]:  # type: ignore[override]
        trial = Trial(sandbox, tmp_path)
        yield trial
        await trial.is_well()
        if idle is not None and not (isinstance(sandbox, KeepsWarm) and sandbox.warm()):
            await assert_none_since(idle)

    @pytest_asyncio.fixture(loop_scope="class")
    async def reaching(self, open_with: OpenWith | None, tmp_path: Path) -> AsyncIterator[Trial]:
        async with opened(open_with, HOSTS, HERE, tmp_path) as trial:
            yield trial

    @pytest_asyncio.fixture(loop_scope="class")
    async def by_hand(self, reaching: Trial) -> Trial:
        return await with_proxy(reaching)
