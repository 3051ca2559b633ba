"""The threads that writes and reads of a database use."""

from __future__ import annotations

import asyncio
import threading
import weakref

import pytest

from skillery.context.threads import Workers


class Thing:
    """An object to which weak references are possible."""


async def test_results_and_errors_reach_the_caller() -> None:
    workers = Workers("test", 2)
    assert await workers.run(divmod, 7, 2) == (3, 1)
    with pytest.raises(ZeroDivisionError):
        await workers.run(divmod, 1, 0)
    workers.close()


async def test_a_single_thread_keeps_order_and_several_threads_work_concurrently() -> None:
    one, several = Workers("one", 1), Workers("several", 3)
    order: list[int] = []
    await asyncio.gather(*(one.run(order.append, number) for number in range(20)))
    assert order == list(range(20))
    together = threading.Barrier(3, timeout=300)
    assert sorted(await asyncio.gather(*(several.run(together.wait) for _ in range(3)))) == [0, 1, 2]
    one.close()
    several.close()


async def test_work_cancelled_before_it_starts_does_not_run() -> None:
    workers, go = Workers("test", 1), threading.Event()
    done: list[int] = []
    first = asyncio.ensure_future(workers.run(go.wait, 300))
    second = asyncio.ensure_future(workers.run(done.append, 1))
    await asyncio.sleep(0)
    second.cancel()
    await asyncio.sleep(0)
    go.set()
    assert await first
    await workers.run(done.append, 2)
    assert done == [2]
    workers.close()


async def test_closing_waits_for_all_work_and_refuses_more() -> None:
    workers = Workers("test", 1)
    done: list[int] = []
    waiting = [asyncio.ensure_future(workers.run(done.append, number)) for number in range(5)]
    await asyncio.sleep(0)
    await asyncio.to_thread(workers.close)
    assert done == list(range(5))
    await asyncio.gather(*waiting)
    with pytest.raises(RuntimeError, match="the threads `test` are closed"):
        await workers.run(done.append, 5)


async def test_a_waiting_thread_keeps_no_result() -> None:
    workers = Workers("test", 1)
    kept = weakref.ref(await workers.run(Thing))
    await workers.run(divmod, 1, 1)
    assert kept() is None
    workers.close()


def test_work_that_raises_does_not_end_its_thread(caplog: pytest.LogCaptureFixture) -> None:
    workers = Workers("test", 1)
    workers.submit(lambda: divmod(1, 0) and None)
    assert workers.run_now(divmod, 7, 2) == (3, 1)
    assert "work in a thread of `test` raised" in caplog.text
    workers.close()
