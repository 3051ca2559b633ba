"""`unsafe-subprocess` runs well-meaning code like a sandbox, and fails the cases about isolation.

This shows that the contract detects missing isolation. Only cases that are harmless outside a sandbox run on it.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from skillery.backends import Limits, Place
from skillery.builtin.unsafe_subprocess import UnsafeSubprocess, skillery_sandbox
from skillery.context.threads import JSON
from skillery.testing import SandboxFunctions, SandboxIsolation, SharedSandbox
from skillery.testing.sandbox import Trial
from skillery.testing.sandbox.loopback import LoopbackCases
from skillery.testing.sandbox.outputs import OutputCases
from skillery.testing.sandbox.results import FailureCases, ResultCases
from skillery.testing.sandbox.unix_sockets import UnixSocketCases

HARMLESS_ISOLATION_CASES: dict[str, dict[str, Any]] = {
    "test_other_processes_are_not_seen": {},
    "test_the_host_cannot_be_reached": {},
    "test_sockets_of_the_host_cannot_be_reached_by_name": {},
    "test_nothing_else_of_the_host_is_there": {"path": "/etc/shadow"},
    "test_a_file_of_the_server_cannot_be_read": {},
    "test_no_capability_is_left_and_none_can_be_gained": {},
    "test_the_files_of_a_skill_can_be_read": {},
    "test_input_blobs_are_files_named_by_their_id": {},
}


CORE = (ResultCases, FailureCases, OutputCases)
SOCKETS = (LoopbackCases, UnixSocketCases)
"""Without isolation, programs have the sockets of the server: these cases would only test Python."""
OTHERS = [cases for cases in SandboxFunctions.__bases__ if cases not in (*CORE, *SOCKETS)]


class InSubprocesses(SharedSandbox):
    has_check_after_each_case = False  # each run has an interpreter of its own

    @pytest_asyncio.fixture(scope="class", loop_scope="class")
    @classmethod
    async def sandbox(cls) -> AsyncIterator[UnsafeSubprocess]:  # type: ignore[override]
        offer = skillery_sandbox()
        sandbox: UnsafeSubprocess = offer.open(offer.settings(), Place(Path()))
        await sandbox.start()
        yield sandbox
        await sandbox.close()


@pytest.mark.full(after=1)
class TestUnsafeSubprocess(InSubprocesses, *CORE):  # type: ignore[misc]
    pass


@pytest.mark.full
class TestUnsafeSubprocessLikeLinux(InSubprocesses, *OTHERS):  # type: ignore[misc]
    """The other cases of the functions: their code is the same as in the sandbox `linux`."""


@pytest.mark.parametrize("case", HARMLESS_ISOLATION_CASES)
async def test_the_contract_notices_that_nothing_is_isolated(case: str, tmp_path: Path) -> None:
    method = getattr(SandboxIsolation(), case)
    given = {"trial": Trial(UnsafeSubprocess(), tmp_path), "tmp_path": tmp_path, **HARMLESS_ISOLATION_CASES[case]}
    with pytest.raises(AssertionError):
        await method(**{name: given[name] for name in inspect.signature(method).parameters})


def test_it_says_of_itself_that_it_is_unsafe() -> None:
    assert skillery_sandbox().unsafe
    assert any(not probe.ok for probe in UnsafeSubprocess().probe())


async def test_every_outcome_reports_missing_isolation(tmp_path: Path) -> None:
    outcome = await Trial(UnsafeSubprocess(), tmp_path).code("def main(args): return 1")
    assert "isolation" in outcome.degraded


async def test_run_time_excludes_result_processing_on_host(tmp_path: Path) -> None:
    for timeout_ms in (3_000, 12_000, 48_000):  # on a loaded machine, an interpreter may need longer to start
        free = threading.Event()
        busy = [asyncio.ensure_future(JSON.run(free.wait)) for _ in range(50)]
        code, limits = "def main(args): return 'x' * 300_000", Limits(timeout_ms=timeout_ms)
        run = asyncio.ensure_future(Trial(UnsafeSubprocess(), tmp_path).code(code, limits=limits))
        await asyncio.sleep(timeout_ms / 1000 + 1)  # longer than the timeout of the run

        free.set()
        outcome = await run
        await asyncio.gather(*busy)
        if outcome.failure is None:
            break

    assert outcome.failure is None
    assert len(outcome.result or b"") == 300_002
    assert outcome.duration_ms <= timeout_ms
