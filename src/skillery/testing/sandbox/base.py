"""Fixtures that all groups of cases share."""

from __future__ import annotations

import os
import socket
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path

import pytest

from skillery.backends import KeepsWarm, Sandbox
from skillery.testing.rules import Contract
from skillery.testing.sandbox.leftovers import Traces, assert_none_since, traces
from skillery.testing.sandbox.trial import Trial

OpenWith = Callable[[Mapping[str, tuple[str, ...]], tuple[str, ...]], Awaitable[Sandbox]]
"""Function that returns a started backend.

Its arguments are the addresses of host names, which are used instead of DNS, and the private addresses that are
allowed.
"""


class SandboxCases(Contract):
    """Base class of all cases.

    Override `sandbox` with a fixture that yields your started backend and closes it, once per case (with
    `SharedSandbox`, once for all cases). Put the server's process id into the names of its cgroups, so that leftover
    cgroups are found. If runs can use the network, override `open_with` as well.
    """

    @pytest.fixture
    async def sandbox(self) -> Sandbox:
        raise NotImplementedError("override the fixture `sandbox`")

    @pytest.fixture
    def open_with(self) -> OpenWith | None:
        """None means that no run of this backend has a network."""
        return None

    @pytest.fixture(autouse=True)
    async def whole(
        self, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
    ) -> AsyncIterator[Traces | None]:
        """Check that a closed backend leaves nothing behind, and that the server process is unchanged.

        Yield the traces from before the backend is opened.
        """
        folder = tmp_path_factory.mktemp("temporary")
        monkeypatch.setenv("TMPDIR", str(folder))
        monkeypatch.setattr(tempfile, "tempdir", str(folder))
        before, state = traces() if sys.platform == "linux" else None, state_of_server()
        yield before
        assert state_of_server() == state, "a run changed the server process"
        assert [path.name for path in folder.iterdir()] == [], "temporary files were not removed"
        if before is not None:
            await assert_none_since(before, closed=True)

    @pytest.fixture
    async def trial(self, whole: Traces | None, sandbox: Sandbox, tmp_path: Path) -> AsyncIterator[Trial]:
        """Yield a Trial. Each case ends with a run that checks the sandbox, and with a check for leftovers."""
        before = None if whole is None else traces(whole.processes, with_groups=False)
        trial = Trial(sandbox, tmp_path)
        yield trial
        await trial.is_well()
        keeps_imports = (
            isinstance(sandbox, KeepsWarm) and sandbox.warm()
        )  # warm processes stay until the backend is closed
        if before is not None and not keeps_imports:
            await assert_none_since(before)


def state_of_server() -> tuple[object, ...]:
    """Return properties of the server process that a run might change."""
    umask = os.umask(0o022)
    os.umask(umask)
    return Path.cwd(), umask, os.getpriority(os.PRIO_PROCESS, 0), socket.gethostname()
