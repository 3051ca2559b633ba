"""`unsafe-subprocess` does all that a sandbox does for well-meaning code, and fails the cases about isolation: the
contract bites. Only cases that are harmless outside a sandbox are tried on it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from skillery.backends import Place
from skillery.builtin.unsafe_subprocess import UnsafeSubprocess, skillery_sandbox
from skillery.testing import SandboxFunctions, SandboxIsolation, Trial

ISOLATION_CASES = [
    "test_no_capability_is_left_and_none_can_be_gained",
    "test_other_processes_are_not_seen",
    "test_there_is_no_terminal",
    "test_the_host_cannot_be_reached",
    "test_socket_pairs_work",
    "test_pid_1_cannot_be_read",
    "test_the_memory_of_all_children_counts_together",
    "test_memory_that_is_a_file_is_held_too",
]


def make() -> UnsafeSubprocess:
    offer = skillery_sandbox()
    sandbox: UnsafeSubprocess = offer.open(offer.settings(), Place(Path()))
    return sandbox


class TestUnsafeSubprocess(SandboxFunctions):
    @pytest.fixture
    async def sandbox(self) -> AsyncIterator[UnsafeSubprocess]:
        sandbox = make()
        await sandbox.start()
        yield sandbox
        await sandbox.close()
