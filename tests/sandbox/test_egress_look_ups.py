"""Look-ups of names that hang: the real proxy, the host's resolver, and a name server that does not answer."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from cellblock.egress.lookups import BOUNDS
from cellblock.egress.service import Egress
from cellblock.egress.streams import Caps
from skillery.testing.upstreams import upstream
from tests.conftest import Server
from tests.support.name_server import NameServer, answer_of
from tests.support.people import Caller, Who, people_settings
from tests.support.processes import eventually_async

LOOPBACK = ("127.0.0.1",)
CAPS = Caps(look_up_seconds=3, look_up_wait_seconds=2)
PATIENT = Caps(look_up_seconds=300, look_up_wait_seconds=300)
"""For tests without look-ups that hang."""


class Asker:
    """Sends requests to a proxy as the code of a run does."""

    def __init__(self, port: int, target: int) -> None:
        self._port = port
        self._target = target

    async def ask(self, host: str) -> str:
        """Return the status line and the body of the response."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        head = f"GET http://{host}:{self._target}/ HTTP/1.1\r\nHost: {host}:{self._target}\r\n\r\n"
        writer.write(head.encode())
        try:
            async with asyncio.timeout(300):
                return (await reader.read()).decode("latin-1")
        finally:
            writer.close()

    async def ask_all(self, hosts: Sequence[str]) -> list[str]:
        return list(await asyncio.gather(*map(self.ask, hosts)))


@asynccontextmanager
async def a_run(egress: Egress, identity: str, target: int) -> AsyncIterator[Asker]:
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setblocking(False)
    port = listener.getsockname()[1]
    patterns = [f"http://*.hang.test:{target}", f"http://*.nowhere.test:{target}", f"http://ok.test:{target}"]
    session = await egress.open(patterns, listener, lambda line: None, identity=identity)
    try:
        yield Asker(port, target)
    finally:
        await session.close()


@asynccontextmanager
async def a_proxy(caps: Caps = CAPS) -> AsyncIterator[tuple[Egress, int]]:
    egress = Egress(LOOPBACK, caps=caps)
    with upstream() as here:
        try:
            yield egress, here.port
        finally:
            await egress.close()


def hanging(number: int) -> list[str]:
    """Return more names than a run and its identity have threads for look-ups."""
    return [f"h{number}-{one}.hang.test" for one in range(24)]


async def two_hostile_runs(names: NameServer) -> Any:
    async with a_proxy() as (egress, target):
        async with a_run(egress, "mallory", target) as one, a_run(egress, "mallory", target) as two:
            first, second = await asyncio.gather(one.ask_all(hanging(1)), two.ask_all(hanging(2)))
            held = names.look_ups("hang.test")
            async with a_run(egress, "mallory", target) as third, a_run(egress, "ann", target) as fourth:
                others = [await until_answered(third), await until_answered(fourth)]
            still = await one.ask("ok.test")
            names.let_go()
            later = await until_answered(one)
        return {"refused": first + second, "held": held, "others": others, "still": still, "later": later}


async def until_answered(run: Asker) -> str:
    """Repeat a request until it succeeds. The thread of a look-up ends shortly after the proxy has responded, and a
    loaded machine may take longer than the limits.
    """

    async def answered() -> str | None:
        answer = await run.ask("ok.test")
        return answer if "200 OK" in answer else None

    return await eventually_async(answered)


@pytest.mark.full
def test_hanging_look_ups_of_two_runs_do_not_block_other_runs() -> None:
    found = answer_of(f"{__name__}:two_hostile_runs")

    assert all(one.startswith("HTTP/1.1 50") for one in found["refused"])
    assert found["held"] == 2 * BOUNDS.of_run
    assert ["200 OK" in one for one in found["others"]] == [True, True]
    # A hanging thread still counts after its request has failed, so this run has no thread left ...
    assert found["still"].startswith("HTTP/1.1 503 ")
    assert "earlier look-ups are not answered yet" in found["still"]
    # ... until its threads return.
    assert "200 OK" in found["later"]


async def many_hostile_runs(names: NameServer) -> Any:
    async with a_proxy() as (egress, target):
        async with AsyncExitStack() as open_runs:
            numbers = range(BOUNDS.of_identity // BOUNDS.of_run + 2)
            runs = [await open_runs.enter_async_context(a_run(egress, "mallory", target)) for _ in numbers]
            await asyncio.gather(*(run.ask_all(hanging(number)) for number, run in enumerate(runs)))
        held = names.look_ups("hang.test")
        async with a_run(egress, "mallory", target) as last, a_run(egress, "ann", target) as other:
            return {"held": held, "last": await last.ask("ok.test"), "other": await until_answered(other)}


@pytest.mark.full
def test_look_up_limit_of_identity_covers_its_ended_runs() -> None:
    found = answer_of(f"{__name__}:many_hostile_runs")

    assert found["held"] == BOUNDS.of_identity < BOUNDS.in_all
    assert found["last"].startswith("HTTP/1.1 503 ")
    assert "200 OK" in found["other"]


def threads_of(egress: Egress) -> int:
    return len(list(Path(f"/proc/{egress.pid}/task").iterdir()))


async def one_name_a_thousand_times(names: NameServer) -> Any:
    async with a_proxy() as (egress, target), a_run(egress, "mallory", target) as run:
        await until_answered(run)
        threads = threads_of(egress)
        refused = [one for _ in range(40) for one in await run.ask_all(["a.hang.test"] * 25)]
        more = threads_of(egress) - threads
        statuses = list({one[:13] for one in refused})
        look_ups, ok = names.look_ups("hang.test"), await until_answered(run)
        return {"refused": len(refused), "statuses": statuses, "threads": more, "look_ups": look_ups, "ok": ok}


@pytest.mark.full
def test_hanging_name_uses_single_look_up_thread_for_many_requests() -> None:
    found = answer_of(f"{__name__}:one_name_a_thousand_times")

    assert found["refused"] == 1000
    assert found["statuses"] == ["HTTP/1.1 502 "]
    assert found["threads"] <= 1
    assert found["look_ups"] == 1
    assert "200 OK" in found["ok"]


async def a_name_that_does_not_exist(names: NameServer) -> Any:
    async with (
        a_proxy(PATIENT) as (egress, target),
        a_run(egress, "ann", target) as run,
        a_run(egress, "ann", target) as other,
    ):
        refused = [await run.ask("a.nowhere.test") for _ in range(5)]
        of_one = names.look_ups("nowhere.test")
        await other.ask("a.nowhere.test")
        of_two = names.look_ups("nowhere.test")
        found = [await run.ask("ok.test") for _ in range(2)]
    return {"refused": refused, "of_one": of_one, "of_two": of_two, "found": found, "ok": names.look_ups("ok.test")}


@pytest.mark.full
def test_a_failure_is_remembered_for_the_run_and_an_address_is_not() -> None:
    found = answer_of(f"{__name__}:a_name_that_does_not_exist")

    assert [one.startswith("HTTP/1.1 502 ") for one in found["refused"]] == [True] * 5
    assert all("a.nowhere.test could not be looked up" in one for one in found["refused"])
    assert (found["of_one"], found["of_two"]) == (1, 2)
    assert all("200 OK" in one for one in found["found"])
    assert found["ok"] == 2  # addresses may change, so each connection looks up the name again


# -- the identity of a run -----------------------------------------------------------------------------------------

TELLING = """
from pathlib import Path
from skillery import hookimpl
from skillery.backends import Identity, Offer
from skillery.builtin.unsafe_subprocess import UnsafeSubprocess

class Telling(UnsafeSubprocess):
    async def run(self, job, host):
        with Path(__file__).with_name("asked").open("a") as asked:
            asked.write(job.identity + "\\n")
        return await super().run(job, host)

@hookimpl
def skillery_sandbox() -> Offer:
    return Offer("telling", lambda settings, place: Telling())
"""


def test_a_sandbox_gets_the_identity_of_a_run(tmp_path: Path, start_server: Callable[..., Server]) -> None:
    more = {"SKILLERY_SANDBOX": "telling", "SKILLERY_ALLOW_UNSAFE_SANDBOX": "true"}
    settings = people_settings(tmp_path / "plugins", **more)
    (tmp_path / "plugins" / "telling.py").write_text(TELLING)
    url = start_server(env=settings).url
    ann, bob = (Caller(url, Who(name, "read run publish", "*")) for name in ("ann", "bob"))
    ann.create("acme.greet")

    assert ann("run_code", language="python", code="def main(args): pass")["status"] == "completed"
    assert bob("execute_skill", name="acme.greet")["status"] == "completed"

    assert (tmp_path / "plugins" / "asked").read_text().split() == ["ann", "bob"]
