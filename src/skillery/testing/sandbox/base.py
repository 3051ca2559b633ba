"""The fixtures that all groups of cases share."""

from __future__ import annotations

import os
import socket
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path

import pytest

from skillery.backends import KeepsWarm, Sandbox
from skillery.testing.sandbox.leftovers import assert_none_since, traces
from skillery.testing.sandbox.trial import Trial

OpenWith = Callable[[Mapping[str, tuple[str, ...]], tuple[str, ...]], Awaitable[Sandbox]]
"""From the addresses of host names, to be used instead of looking these up, and the addresses that are not public and
may be dialled all the same, to a backend that has been started."""


class SandboxCases:
    """Override `sandbox` with a fixture that yields your backend, started, and closes it: one for each case. Give
    its cgroups names with the number of the server's process, and a leftover one is noticed. Where runs can be allowed
    to use the network, override `open_with` as well."""

    @pytest.fixture
    async def sandbox(self) -> Sandbox:
        raise NotImplementedError("override the fixture `sandbox`")

    @pytest.fixture
    def open_with(self) -> OpenWith | None:
        """None: no run of this backend ever has a network."""
        return None

    @pytest.fixture(autouse=True)
    async def whole(
        self, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
    ) -> AsyncIterator[None]:
        """Nothing of the backend is left when it has been closed, and the server is as it was before."""
        folder = tmp_path_factory.mktemp("temporary")
        monkeypatch.setenv("TMPDIR", str(folder))
        monkeypatch.setattr(tempfile, "tempdir", str(folder))
        before, state = traces() if sys.platform == "linux" else None, state_of_server()
        yield
        assert state_of_server() == state, "the server itself was changed"
        assert [path.name for path in folder.iterdir()] == [], "temporary files are left"
        if before is not None:
            await assert_none_since(before, closed=True)

    @pytest.fixture
    async def trial(self, sandbox: Sandbox, tmp_path: Path) -> AsyncIterator[Trial]:
        """Each case ends with a look at the next run and at what is left of this one."""
        before = traces() if sys.platform == "linux" else None
        trial = Trial(sandbox, tmp_path)
        yield trial
        await trial.is_well()
        keeps_imports = (
            isinstance(sandbox, KeepsWarm) and sandbox.warm()
        )  # they are there on purpose, until it is closed
        if before is not None and not keeps_imports:
            await assert_none_since(before)


def state_of_server() -> tuple[object, ...]:
    """What a run might change of the process that starts it."""
    umask = os.umask(0o022)
    os.umask(umask)
    return Path.cwd(), umask, os.getpriority(os.PRIO_PROCESS, 0), socket.gethostname()
