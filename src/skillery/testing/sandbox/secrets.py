"""Secrets of a run, which no other process may see."""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from skillery.backends import Outcome
from skillery.testing.sandbox.leftovers import descendants
from skillery.testing.sandbox.trial import SandboxCases, Trial, failure_type, log_of

SEARCH = """
import os
def in_memory(first, second):
    # Whether one stands before the other anywhere in our memory. They are never put together for the search.
    first, second = first.encode(), second.encode()
    maps = [line.split() for line in open('/proc/self/maps').read().splitlines() if '[v' not in line]
    with open('/proc/self/mem', 'rb', buffering=0) as memory:
        for where in [fields[0] for fields in maps if 'r' in fields[1]]:
            start, end = (int(part, 16) for part in where.split('-'))
            try: memory.seek(start); content = memory.read(end - start)
            except OSError: continue
            at = content.find(first)
            while at >= 0:
                if content.startswith(second, at + len(first)): return True
                at = content.find(first, at + 1)
    return False
def in_processes(first, second):
    for pid in [name for name in os.listdir('/proc') if name.isdigit()]:
        for name in ('environ', 'cmdline'):
            try: content = open(f'/proc/{pid}/{name}').read()
            except OSError: continue
            if first in content and second in content: return True
    return False
"""
LOOK = f"""{SEARCH}
def main(args):
    pair = args['first'], args['second']
    return [in_memory(*pair), in_processes(*pair), 'API_KEY' in os.environ]
"""
HOLD = """
import os, runtime, time
def main(args):
    runtime.blobs.write_text(os.environ['API_KEY'][-4:])
    time.sleep(1e6)
"""


@asynccontextmanager
async def holding(trial: Trial, whole: str) -> AsyncIterator[asyncio.Task[Outcome]]:
    """Start a run that has the value in its environment, and cancel it at the end."""
    run = asyncio.create_task(trial.code(HOLD, environment={"API_KEY": whole}))
    try:
        yield run
        assert list(trial.host.blobs.values()) == [whole[-4:].encode()]
        assert not run.done()
    finally:
        run.cancel()
        await asyncio.gather(run, return_exceptions=True)


def value() -> tuple[str, str, str]:
    """Return a fresh value and its two halves."""
    first, second = secrets.token_hex(16), secrets.token_hex(16)
    return first + second, first, second


class SecretCases(SandboxCases):
    async def test_a_secret_is_in_the_environment_of_its_run_only(self, trial: Trial) -> None:
        """A positive control: the search of the other cases finds a value that is there."""
        whole, first, second = value()
        matches = await trial.value(LOOK, {"first": first, "second": second}, environment={"API_KEY": whole})
        assert matches == [True, False, True]

    async def test_a_value_is_not_in_the_next_run(self, trial: Trial) -> None:
        whole, first, second = value()
        code = "import os\ndef main(args): open('/tmp/kept', 'w').write(os.environ['API_KEY']); return True"
        for _ in range(4):
            assert await trial.value(code, environment={"API_KEY": whole}) is True
            assert await trial.value(LOOK, {"first": first, "second": second}) == [False, False, False]

    async def test_a_value_is_not_in_another_run_at_the_same_time(self, trial: Trial) -> None:
        whole, first, second = value()
        async with holding(trial, whole) as run:
            while not (trial.host.blobs or run.done()):  # noqa: ASYNC110 - the host of these cases has no event
                await asyncio.sleep(0.02)
            look = trial.value(LOOK, {"first": first, "second": second}, environment={"OTHER": "x"})
            assert await look == [False, False, False]

    async def test_a_secret_is_in_no_argument_or_variable_of_host_processes(self, trial: Trial) -> None:
        whole, first, _ = value()
        seen = set()
        async with holding(trial, whole) as run:
            has_value = False
            while not (has_value or run.done()):  # the last look is at a run that has the value
                has_value = bool(trial.host.blobs)
                seen |= {name for pid in descendants(os.getpid()) for name in shown(pid) if first in name}
                await asyncio.sleep(0.02)
        assert seen == set()

    async def test_a_failure_of_the_set_up_contains_no_secret(self, trial: Trial) -> None:
        whole, first, _ = value()
        for code in ("import os\ndef main(args): os._exit(3)", "import ctypes\ndef main(args): ctypes.string_at(1)"):
            outcome = await trial.code(code, environment={"API_KEY": whole})
            assert failure_type(outcome) in {"ProcessExited", "ProcessKilled"}
            assert first not in log_of(outcome) + repr(outcome.failure)

    async def test_a_crash_writes_no_core(self, trial: Trial, tmp_path: Path) -> None:
        code = """
        import ctypes, os, resource
        def main(args):
            try: resource.setrlimit(resource.RLIMIT_CORE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
            except (ValueError, OSError): pass
            if (child := os.fork()) == 0: ctypes.string_at(1)
            status = os.waitpid(child, 0)[1]
            return [os.WIFSIGNALED(status), os.WCOREDUMP(status), os.listdir()]
        """
        assert await trial.value(code) == [True, False, []]


def shown(pid: int) -> list[str]:
    """Return what other processes can read about a process without access to its memory."""
    texts = []
    for name in ("cmdline", "environ"):
        try:
            texts.append(Path(f"/proc/{pid}/{name}").read_text(errors="replace"))
        except OSError:
            continue  # the process has ended
    return texts
