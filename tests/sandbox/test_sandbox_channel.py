"""The result channel: for any bytes from the code, the server's end stays small and never hangs, and the run ends."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import uvloop
from hypothesis import given, settings
from hypothesis import strategies as st

from cellblock.host.channel import HEAD, BrokenSetup, Channel
from cellblock.host.packets import Packets
from cellblock.values import FailureKind
from skillery.backends import CodeCall, Job, Limits, Place
from skillery.builtin.linux_sandbox import LinuxSandboxSettings, open_sandbox
from skillery.jobs.dialogue import Dialogue
from skillery.testing.sandbox import MemoryHost, Trial

LIMITS = Limits(result_mb=1, blobs=3, blobs_mb=1, timeout_ms=300_000)
JOB = Job("run_1", CodeCall("def main(args): pass", "main"), b"{}", limits=LIMITS)
OPS = ("result", "failure", "summary", "blob_write", "blob_read", "ready", "shell", "")
PATIENCE = 300.0
EXAMPLES = int(os.environ.get("SKILLERY_FUZZ_EXAMPLES", "150"))
fuzzed = settings(max_examples=EXAMPLES, deadline=None)

texts = st.text(max_size=30)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
headers = st.fixed_dictionaries(
    {"op": st.sampled_from(OPS) | values},
    optional=dict.fromkeys(("kind", "blob_id", "text", "type", "message", "traceback"), texts | values),
) | st.dictionaries(texts, values, max_size=3)
bodies = st.binary(max_size=300) | values.map(lambda value: json.dumps(value).encode())


@st.composite
def frames(draw: st.DrawFn) -> bytes:
    """Return mostly well-formed messages, sometimes with wrong sizes, sometimes arbitrary bytes."""
    header = draw(headers.map(lambda value: json.dumps(value).encode()) | st.binary(max_size=60))
    body = draw(bodies)
    claimed_header, claimed_body = len(header), len(body)
    if draw(st.integers(0, 5)) == 0:
        claimed_header = draw(st.integers(0, 2**32 - 1))
    if draw(st.integers(0, 5)) == 0:
        claimed_body = draw(st.integers(0, 2**64 - 1))
    return HEAD.pack(claimed_header, claimed_body) + header + body


streams = st.lists(frames() | st.binary(max_size=200), max_size=6).map(b"".join)


def conversation(sent: bytes, host: MemoryHost) -> Dialogue:
    """Send bytes to the server's end, from a peer that reads nothing until it has sent everything. Return the
    dialogue.
    """

    async def main() -> Dialogue:
        ours, theirs = socket.socketpair()
        theirs.setblocking(False)
        dialogue = Dialogue(await Channel.over(ours), JOB, host)
        saying = asyncio.ensure_future(say(theirs, sent))
        try:
            async with asyncio.timeout(PATIENCE):
                await dialogue.listen()
        finally:
            saying.cancel()
            await asyncio.gather(saying, return_exceptions=True)
            theirs.close()
            dialogue._channel.close()
        return dialogue

    return asyncio.run(main())


async def say(end: socket.socket, sent: bytes) -> None:
    loop = asyncio.get_running_loop()
    await loop.sock_sendall(end, sent)
    end.shutdown(socket.SHUT_WR)
    with contextlib.suppress(ConnectionError):
        while await loop.sock_recv(end, 1 << 16):
            pass


def assert_in_order(dialogue: Dialogue, host: MemoryHost) -> None:
    assert dialogue.result is None or dialogue.failure is None
    if dialogue.result is not None:
        assert len(dialogue.result) <= LIMITS.result_mb << 20
        msgspec.json.decode(dialogue.result)
    if dialogue.failure is not None:
        assert dialogue.failure.type or dialogue.failure.kind is not FailureKind.EXCEPTION
        assert len(dialogue.failure.message) <= 1000
        assert len(dialogue.failure.traceback) <= 4000
    assert len(dialogue.summary or "") <= 2000
    assert len(host.blobs) <= LIMITS.blobs
    assert sum(map(len, host.blobs.values())) <= LIMITS.blobs_mb << 20


@pytest.mark.smoke
@fuzzed
@given(streams)
def test_any_conversation_ends_in_order(sent: bytes) -> None:
    host = MemoryHost()
    assert_in_order(conversation(sent, host), host)


@pytest.mark.full
@fuzzed
@given(st.lists(frames(), max_size=4), st.integers(0, 400))
def test_a_conversation_that_breaks_off_ends_in_order(parts: list[bytes], cut: int) -> None:
    host = MemoryHost()
    assert_in_order(conversation(b"".join(parts)[:cut], host), host)


@pytest.mark.full
@fuzzed
@given(streams)
def test_whatever_comes_first_the_set_up_is_ready_or_broken(sent: bytes) -> None:
    async def main() -> None:
        ours, theirs = socket.socketpair()
        channel = await Channel.over(ours)
        theirs.sendall(sent)
        theirs.close()
        said = ""
        try:
            async with asyncio.timeout(PATIENCE):
                await Dialogue(channel, JOB, MemoryHost()).wait_ready()
        except BrokenSetup as broken:
            said = str(broken)
        finally:
            channel.close()
        assert len(said) <= 500

    asyncio.run(main())


@pytest.mark.parametrize("make_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_the_end_of_a_process_with_unread_input_is_noticed(make_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    """The kernel reports such a connection as reset. uvloop then calls the reader once, and not again."""

    async def channel_ends() -> list[str | None]:
        ours, theirs = socket.socketpair()
        channel = await Channel.over(ours)
        first = asyncio.ensure_future(channel.receive())
        await asyncio.sleep(0)  # the channel waits
        await channel.send({"op": "unread"})
        theirs.send(HEAD.pack(16, 0) + b'{"op": "ready" }')
        theirs.close()
        messages = [await first, await channel.receive()]
        channel.close()
        return [message.op if message else None for message in messages]

    async def link_ends() -> list[bytes | None]:
        link = Packets()
        first = asyncio.ensure_future(link.receive())
        await asyncio.sleep(0)  # the link waits
        link.send(b"unread")
        for message in (b"1", b"2"):
            link.theirs.send(message)
        link.theirs.close()
        received = [await first, await link.receive(), await link.receive()]
        link.close()
        return [each.raw if each else None for each in received]

    async def both() -> tuple[list[str | None], list[bytes | None]]:
        async with asyncio.timeout(PATIENCE):
            return await channel_ends(), await link_ends()

    with asyncio.Runner(loop_factory=make_loop) as runner:
        assert runner.run(both()) == (["ready", None], [b"1", b"2", None])


@pytest.mark.parametrize("op", OPS)
def test_oversized_message_is_refused_with_bounded_memory(op: str) -> None:
    header = json.dumps({"op": op}).encode()
    sent = HEAD.pack(len(header), 1 << 40) + header + bytes(48 << 20)
    host = MemoryHost()
    tracemalloc.start()
    try:
        dialogue = conversation(sent, host)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert_in_order(dialogue, host)
    assert dialogue.failure is not None
    assert peak < 8 << 20


# -- in a real sandbox ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(scope="module")
def trial(runner: asyncio.Runner, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trial]:
    """Yield one sandbox for all examples: damage by one example would make the next one fail."""
    folder = tmp_path_factory.mktemp("channel")
    sandbox = open_sandbox(LinuxSandboxSettings(), Place(folder))

    async def start() -> Trial:
        await sandbox.start()
        return Trial(sandbox, folder)

    yield runner.run(start())
    runner.run(sandbox.close())


WRITE = """
import os
def main(args):
    sent = bytes.fromhex(args['sent'])
    try:
        while sent: sent = sent[os.write(3, sent):]
    except OSError: pass
    if args['then'] == 'leave': os._exit(0)
    if args['then'] == 'close': os.close(3)
    if args['then'] == 'raise': raise ValueError
    return 'the end'
"""


@settings(max_examples=min(EXAMPLES, 1000) if EXAMPLES > 150 else 15, deadline=None)
@given(sent=streams, then=st.sampled_from(["return", "raise", "leave", "close"]))
def test_code_that_writes_to_its_channel_harms_only_its_own_run(
    runner: asyncio.Runner, trial: Trial, sent: bytes, then: str
) -> None:
    args: dict[str, Any] = {"sent": sent.hex(), "then": then}
    outcome = runner.run(trial.code(WRITE, args, limits=LIMITS))
    assert (outcome.result is None) != (outcome.failure is None)
    if outcome.result is not None:
        msgspec.json.decode(outcome.result)
    if outcome.failure is not None:
        assert outcome.failure.type not in {"SandboxError", "TimeoutError"}
    runner.run(trial.is_well())


def test_nothing_is_left_of_the_sandbox(runner: asyncio.Runner, trial: Trial, tmp_path: Path) -> None:
    """After all examples, runs are still separate."""
    assert runner.run(trial.value("import os\ndef main(args): return os.listdir()")) == []
