"""Two backends with different foundations run the same jobs, and each is the other's oracle.

If one allows something that the other refuses, one of them has a hole, or DIFFERENCES gives the reason.
"""

from __future__ import annotations

import asyncio
import json
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import structs

from bubblewrap_cases import CASES, SHORT, Case
from bubblewrap_here import bwrap
from skillery.backends import BlobMount, CodeCall, Job, Outcome, Place, Sandbox, SkillCall, SkillMount
from skillery.builtin.linux_sandbox import LinuxSandboxSettings
from skillery.builtin.linux_sandbox import open_sandbox as open_linux
from skillery.testing.sandbox import MemoryHost
from skillery_bubblewrap import BubblewrapSettings
from skillery_bubblewrap import open_sandbox as open_bubblewrap

pytestmark = pytest.mark.full
DIFFERENCES = {
    "failure: exit 139": "bwrap says 128 and the number for a signal, as a shell does: this looks like SIGSEGV",
    "fact: owners in the root": "bwrap makes the root as the run's own uid; it is mounted read-only",
    "fact: mount flags of devices": "bwrap binds devices without noexec; none of them is a program",
    "fact: what is in /run": "`linux` keeps its empty folder there, this backend its prologue; both read-only",
}
"""Reasons why the backends differ, by case. A case without a difference must not be listed."""


class Pair:
    """Both backends, in one event loop."""

    def __init__(self, folder: Path) -> None:
        self._runner = asyncio.Runner()
        self._folder = folder
        self._sandboxes: dict[str, Sandbox] = {
            "linux": open_linux(LinuxSandboxSettings(), Place(folder / "linux")),
            "bubblewrap": open_bubblewrap(BubblewrapSettings(program=bwrap()), Place(folder / "bubblewrap")),
        }
        other = folder / "other" / "code"
        other.mkdir(parents=True)
        (other / "main.py").write_text("def main(args): return [__name__, args]\n")
        (folder / "blob").write_text("content")
        for sandbox in self._sandboxes.values():
            self._runner.run(sandbox.start())

    def close(self) -> None:
        for sandbox in self._sandboxes.values():
            self._runner.run(sandbox.close())
        self._runner.close()

    def seen(self, case: Case) -> dict[str, dict[str, Any]]:
        """Return all that a caller can see except the duration, by backend."""
        return {name: self._seen(sandbox, case) for name, sandbox in self._sandboxes.items()}

    def _seen(self, sandbox: Sandbox, case: Case) -> dict[str, Any]:
        host = MemoryHost()
        outcome: Outcome = self._runner.run(sandbox.run(self._job(case), host))
        return {
            "result": json.loads(outcome.result) if outcome.result is not None else None,
            "failure": msgspec.to_builtins(outcome.failure),
            "summary": outcome.summary,
            "log": (outcome.log.head, outcome.log.tail, outcome.log.dropped),
            "blobs": sorted(host.blobs.values()),
            "degraded": outcome.degraded,
            "network": outcome.network,
        }

    def _job(self, case: Case) -> Job:
        code = textwrap.dedent(case.code)
        skills = [SkillMount("other.one", self._folder / "other", "code/main.py")]
        if case.skill:
            folder = self._folder / f"skill-{abs(hash(code))}"
            folder.mkdir(exist_ok=True)
            (folder / "main.py").write_text(code)
            skills.insert(0, SkillMount("under.test", folder, "main.py"))
        call = SkillCall("under.test", "main") if case.skill else CodeCall(code, "main")
        blobs = (BlobMount("blob:in", self._folder / "blob"),)
        args = json.dumps(case.args).encode()
        return Job("run_1", call, args, tuple(skills), blobs, case.limits, case.environment, case.network)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    pair = Pair(tmp_path_factory.mktemp("pair"))
    yield pair
    pair.close()


@pytest.mark.parametrize("name", CASES)
def test_both_backends_say_the_same(pair: Pair, name: str) -> None:
    case = CASES[name]
    seen = pair.seen(case)
    for timeout_ms in (4_000, 40_000) if case.limits == SHORT else ():
        if seen["linux"] != seen["bubblewrap"]:  # on a loaded machine, the code of one may not have begun
            seen = pair.seen(structs.replace(case, limits=structs.replace(SHORT, timeout_ms=timeout_ms)))
    if name in DIFFERENCES:
        assert seen["linux"] != seen["bubblewrap"], f"take it out of DIFFERENCES: {DIFFERENCES[name]}"
    else:
        assert seen["linux"] == seen["bubblewrap"]


def test_every_difference_is_about_a_case() -> None:
    assert set(DIFFERENCES) <= set(CASES)
