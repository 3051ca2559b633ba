"""Damaged orders end the zygote, and never the server: another zygote takes its place."""

from __future__ import annotations

import os
import random
import socket
import struct
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

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
