"""The checks of plugins have threads of their own."""

from __future__ import annotations

import asyncio
import threading

import pluggy

from skillery import hookimpl, hookspecs
from skillery.backends import Finding, Identity, Publication
from skillery.plugins.hooks import PluginEvents


class Waiting:
    """A check that waits until the test ends it."""

    def __init__(self) -> None:
        self.end = threading.Event()

    @hookimpl
    def before_publish(self, publication: Publication) -> list[Finding]:
        self.end.wait(300)
        return [Finding("thread", threading.current_thread().name, "info")]


async def test_many_slow_checks_leave_the_shared_threads_free() -> None:
    manager = pluggy.PluginManager("skillery")
    manager.add_hookspecs(hookspecs)
    check = Waiting()
    manager.register(check, "waiting")
    events = PluginEvents(manager, 60.0)
    versions = [Publication("a.b", f"1.0.{n}", "", {}, (), Identity(f"ann{n}")) for n in range(100)]
    checks = [asyncio.ensure_future(events.before_publish(one)) for one in versions]

    assert await asyncio.to_thread(lambda: "free") == "free"
    check.end.set()
    found = [one for answer in await asyncio.gather(*checks) for one in answer]
    assert len(found) == 100
    assert {one.message for one in found} == {"waiting before_publish"}
