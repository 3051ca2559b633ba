from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio
from skillery.backends import Place
from skillery.testing import SandboxFunctions, SharedSandbox

from __MODULE__ import __CLASS__Sandbox, skillery_sandbox


# SandboxContract also has the cases about isolation. Use it as soon as this sandbox isolates its runs: before that,
# some cases would harm this computer.
class Test__CLASS__(SharedSandbox, SandboxFunctions):
    @pytest_asyncio.fixture(scope="class", loop_scope="class")
    @classmethod
    async def sandbox(cls) -> AsyncIterator[__CLASS__Sandbox]:
        offer = skillery_sandbox()
        sandbox = offer.open(offer.settings(), Place(Path()))
        await sandbox.start()
        yield sandbox
        await sandbox.close()


def test_the_offer_says_that_it_does_not_isolate() -> None:
    assert skillery_sandbox().unsafe
