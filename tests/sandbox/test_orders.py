"""Damaged orders end the zygote, and never the server: another zygote takes its place."""

from __future__ import annotations

import asyncio
import os
import random
import socket
import struct
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cellblock import Limits
from cellblock.filter.rules import Sockets
from cellblock.host import plan
from cellblock.host.zygotes import Zygote
from skillery.builtin.linux_sandbox.sandbox import LinuxSandbox
from skillery.testing.sandbox import Trial
from tests.sandbox.test_sandbox_warm import running, zygotes
from tests.support.processes import eventually_async

pytestmark = pytest.mark.full
NUMBER = struct.pack("=q", 1 << 40)
SLOT_AT = plan.HEAD.size + len(NUMBER) - 8
EXAMPLES = int(os.environ.get("SKILLERY_FUZZ_EXAMPLES", "20"))


def whole(slot: int = -1, port: int | None = None) -> bytes:
    limits = plan.tree_limits(plan.shape(Limits()), cgroups=True)
    parameters = plan.parameters(limits, (), port, Sockets.PAIRS)
    order = plan.order(100_900, slot, parameters, ahead=False, shares_memory=True)
    return order[: plan.NUMBER_AT] + NUMBER + order[plan.NUMBER_AT :]


def changed(offset: int, content: bytes) -> bytes:
    order = whole()
    return order[:offset] + content + order[offset + len(content) :]


DAMAGED = {
    "one byte": b"x",
    "one byte less": whole()[:-1],
    "one byte more": whole() + b"x",
    "sixteen orders": whole() * 16,
    "no version": changed(0, bytes(4)),
    "the next version": changed(0, struct.pack("=I", plan.VERSION + 1)),
    "an unknown flag": changed(4, struct.pack("=I", 8)),
    "a slot below -1": whole(slot=-2),
    "a slot too high": whole(slot=64),
    "a port too high": whole(port=0x10000),
    "unknown sockets": changed(68, struct.pack("=I", len(Sockets))),
    "random bytes": random.Random(1).randbytes(len(whole())),
    "zeros": bytes(len(whole())),
}


@pytest.fixture
async def trial(tmp_path: Path) -> AsyncIterator[Trial]:
    async with running(tmp_path, prepared=0) as trial:
        yield trial


def current(trial: Trial) -> Zygote:
    assert isinstance(trial.sandbox, LinuxSandbox)
    assert trial.sandbox._capabilities is not None
    zygote = trial.sandbox._capabilities.pool._zygotes._current
    assert zygote is not None
    return zygote


def test_an_order_has_272_bytes() -> None:
    assert len(whole()) == 272


async def send(trial: Trial, content: bytes, descriptors: int = 3) -> int:
    """Send the bytes with copies of /dev/null to the zygote. Return the pid of the zygote."""
    zygote, null = current(trial), os.open(os.devnull, os.O_RDWR)
    socket.send_fds(zygote._forks.link._socket, [content], [null] * descriptors)
    os.close(null)
    return zygote.pid


@pytest.mark.parametrize("name", DAMAGED)
async def test_damaged_order_ends_the_zygote_and_not_the_server(trial: Trial, name: str) -> None:
    pid = await send(trial, DAMAGED[name])
    await eventually_async(lambda: pid not in zygotes())
    await trial.is_well()


@pytest.mark.parametrize("count", [0, 2, 17])
async def test_order_with_wrong_number_of_descriptors_ends_the_zygote(trial: Trial, count: int) -> None:
    pid = await send(trial, whole(), count)
    await eventually_async(lambda: pid not in zygotes())
    await trial.is_well()


async def test_random_parameters_never_end_the_server(trial: Trial) -> None:
    """The version, the flags, the slot and the port are right, so the zygote tries to fork these runs."""
    chosen = random.Random(2)
    for _ in range(20):
        order = bytearray(whole())
        order[16:56] = chosen.randbytes(40)
        order[72:] = chosen.randbytes(len(order) - 72)
        await send(trial, bytes(order))
        await trial.is_well()


# -- Any orders: few examples in the suite, many in `make fuzz` --------------------------------------------------------


@st.composite
def orders(draw: st.DrawFn) -> bytes:
    """Return arbitrary bytes, or an order of this release with a few changes: other numbers, more or fewer bytes."""
    if draw(st.integers(0, 3)) == 0:
        return draw(st.binary(max_size=2 * len(whole())))
    order = bytearray(whole(draw(st.sampled_from([-1, 0, 63]))))
    number = st.sampled_from([0, 1, 2**31 - 1, 2**31, 2**32 - 1]) | st.integers(0, 2**32 - 1)
    for _ in range(draw(st.integers(0, 3))):
        struct.pack_into("=I", order, 4 * draw(st.integers(0, len(order) // 4 - 1)), draw(number))
    end = draw(st.sampled_from([len(order)] * 4 + [len(order) - 1, 8, 0]))
    return bytes(order[:end]) + draw(st.sampled_from([b""] * 4 + [b"x", bytes(order)]))


def is_valid(order: bytes) -> bool:
    if len(order) != len(whole()):
        return False
    version, flags, slot, port, sockets = (
        struct.unpack_from(form, order, offset)[0]
        for form, offset in (("=I", 0), ("=I", 4), ("=q", SLOT_AT), ("=I", SLOT_AT + 8), ("=I", SLOT_AT + 12))
    )
    known = version == plan.VERSION and flags < 8 and sockets < len(Sockets)
    return bool(known and -1 <= slot < 64 and port <= 0xFFFF)


@pytest.fixture(scope="module")
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(scope="module")
def shared_trial(runner: asyncio.Runner, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trial]:
    """Yield one sandbox for all examples."""
    sandbox = running(tmp_path_factory.mktemp("orders"), prepared=0)
    yield runner.run(sandbox.__aenter__())
    runner.run(sandbox.__aexit__(None, None, None))


@settings(max_examples=min(EXAMPLES, 1000), deadline=None)
@given(order=orders())
def test_zygote_refuses_damaged_orders_and_no_order_crashes_it(
    runner: asyncio.Runner, shared_trial: Trial, order: bytes
) -> None:
    async def check() -> None:
        await shared_trial.is_well()
        zygote = current(shared_trial)
        await send(shared_trial, order)
        if not is_valid(order):
            await eventually_async(lambda: zygote._process.returncode is not None)
            assert zygote._process.returncode == 0
        await shared_trial.is_well()
        assert zygote._process.returncode in {None, 0, 1}

    runner.run(check())
