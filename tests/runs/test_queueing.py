"""The queue of runs: bounded, fair to all callers, and without lost runs."""

from __future__ import annotations

import asyncio
import random

import pytest

from skillery.context.queue import Queue, Slot, until_client_gone
from skillery.errors import Busy, Unavailable


async def turns(queue: Queue, callers: list[str]) -> list[str]:
    """Return the order in which the callers get a slot, if all ask in the given order."""
    order: list[str] = []

    async def one(caller: str) -> None:
        place = await queue.enter(caller, 1)
        order.append(caller)
        await asyncio.sleep(0)
        place.leave()

    await asyncio.gather(*(one(caller) for caller in callers))
    return order


async def test_callers_take_turns_regardless_of_request_counts() -> None:
    order = await turns(Queue(1, 100, 1000), [*"aaaaaaaa", *"bb", "c"])

    assert order == [*"aabcab", *"aaaaa"]


async def test_requests_of_a_caller_are_served_in_order_of_arrival() -> None:
    queue = Queue(2, 100, 1000)
    order: list[int] = []

    async def one(number: int) -> None:
        place = await queue.enter("a", 1)
        order.append(number)
        await asyncio.sleep(0)
        place.leave()

    await asyncio.gather(*(one(number) for number in range(20)))
    assert order == list(range(20))


@pytest.mark.parametrize(("waiting", "waiting_bytes"), [(2, 1000), (100, 8)])
async def test_past_its_bounds_it_is_busy(waiting: int, waiting_bytes: int) -> None:
    queue = Queue(1, waiting, waiting_bytes)
    place = await queue.enter("a", 500)
    line = [asyncio.ensure_future(queue.enter(caller, 4)) for caller in "bc"]
    await asyncio.sleep(0)

    with pytest.raises(Busy, match="queued_runs" if waiting == 2 else "queued_mb") as busy:
        await queue.enter("d", 1)

    assert busy.value.data["retry_after_ms"] > 0
    place.leave()
    for one in line:
        (await one).leave()


async def test_a_held_place_counts_once_and_keeps_its_turn() -> None:
    queue = Queue(1, 2, 1000)
    running = await queue.enter("a", 1)
    order: list[str] = []

    async def one(name: str, arrival: float | None = None) -> None:
        slot = await queue.enter("a", 1, arrival)
        order.append(name)
        slot.leave()

    with queue.place(1) as arrival:
        later = asyncio.ensure_future(one("later"))
        await asyncio.sleep(0)
        first = asyncio.ensure_future(one("first", arrival))
        await asyncio.sleep(0)
        running.leave()
        await asyncio.gather(first, later)

    assert order == ["first", "later"]
    assert queue.waiting == 0


async def test_cancelled_callers_leave_the_queue_without_losing_slots() -> None:
    random.seed(3)
    queue = Queue(2, 10_000, 10**9)
    running: set[Slot] = set()
    most = 0

    async def one(caller: str) -> None:
        nonlocal most
        place = await queue.enter(caller, 1)
        running.add(place)
        most = max(most, len(running))
        try:
            await asyncio.sleep(random.random() / 500)
        finally:
            running.discard(place)
            place.leave()

    tasks = [asyncio.ensure_future(one(random.choice("abc"))) for _ in range(400)]
    for _ in range(200):
        random.choice(tasks).cancel()
        await asyncio.sleep(random.random() / 1000)
    await asyncio.gather(*tasks, return_exceptions=True)

    assert most == 2
    places = [await asyncio.wait_for(queue.enter("z", 1), 300) for _ in range(2)]
    assert len(places) == 2


async def test_a_client_that_goes_away_leaves_the_line() -> None:
    queue = Queue(1, 10, 1000)
    place = await queue.enter("a", 1)
    gone = asyncio.Event()

    async def until_gone() -> None:
        await gone.wait()

    async def wait() -> Slot:
        until_client_gone.set(until_gone)
        return await queue.enter("b", 1)

    waiting = asyncio.ensure_future(wait())
    await asyncio.sleep(0)
    gone.set()

    with pytest.raises(Unavailable):
        await waiting
    place.leave()
    (await asyncio.wait_for(queue.enter("c", 1), 300)).leave()


async def test_ten_thousand_requests_hold_no_more_than_the_bound() -> None:
    queue = Queue(1, 1000, 10**9)
    place = await queue.enter("a", 1)

    async def one(number: int) -> bool:
        try:
            (await queue.enter(f"caller{number % 50}", 100)).leave()
        except Busy:
            return False
        return True

    asked = [asyncio.ensure_future(one(number)) for number in range(10_000)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    refused = sum(task.done() and not task.result() for task in asked)
    place.leave()
    served = sum(await asyncio.gather(*asked))

    assert (refused, served) == (9000, 1000)


async def test_retry_after_stays_short_after_a_single_long_run() -> None:
    queue = Queue(1, 4, 1000)
    for seconds in (0.2, 0.3, 600, 0.2, 0.3):
        queue.free(seconds)
        await queue.enter("a", 1)
    line = [asyncio.ensure_future(queue.enter("b", 1)) for _ in range(5)]
    await asyncio.sleep(0)

    with pytest.raises(Busy) as busy:
        await queue.enter("d", 1)

    assert 200 <= busy.value.data["retry_after_ms"] <= 5_000
    for one in line:
        one.cancel()
    await asyncio.gather(*line, return_exceptions=True)
