"""Time limits for coroutines that seldom wait: like `asyncio.timeout`, whether the coroutine waits or not."""

from __future__ import annotations

import asyncio

import pytest

from skillery.context.threads import within

pytestmark = pytest.mark.asyncio
LONG = 60


async def waits(times: int, seen: list[str]) -> str:
    try:
        for _ in range(times):
            await asyncio.sleep(0)
    except asyncio.CancelledError:
        seen.append("cancelled")
        raise
    return "done"


async def fails(times: int) -> None:
    await waits(times, [])
    raise LookupError(str(times))


@pytest.mark.parametrize("times", [0, 1, 5])
async def test_the_result_or_the_error_of_the_work_comes(times: int) -> None:
    assert await within(LONG, waits(times, [])) == "done"
    with pytest.raises(LookupError, match=str(times)):
        await within(LONG, fails(times))


async def test_work_without_waiting_ends_even_without_time() -> None:
    assert await within(-1, waits(0, [])) == "done"


async def test_work_that_takes_too_long_is_cancelled_at_its_place() -> None:
    seen: list[str] = []
    with pytest.raises(TimeoutError):
        await within(0.01, waits(10**9, seen))
    assert seen == ["cancelled"]


async def test_a_cancellation_reaches_the_work_and_raises_cancelled_error() -> None:
    seen: list[str] = []
    task = asyncio.create_task(within(LONG, waits(10**9, seen)))
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert seen == ["cancelled"]


async def test_work_may_handle_its_cancellation() -> None:
    async def stubborn() -> str:
        try:
            await asyncio.sleep(LONG)  # is cancelled
        except asyncio.CancelledError:
            await asyncio.sleep(0)
        return "ended in order"

    task = asyncio.create_task(within(LONG, stubborn()))
    await asyncio.sleep(0.01)
    task.cancel()
    assert await task == "ended in order"
