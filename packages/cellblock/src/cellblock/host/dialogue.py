"""The dialogue with the code of a run: receive its result, and answer its requests."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import subprocess
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from cellblock.host.channel import Channel, ChannelAbused, Message, check_ready, wait_ready
from cellblock.host.plan import base_python
from cellblock.values import Failure, FailureKind, Limits

log = logging.getLogger(__name__)
Ask = Callable[[str, Mapping[str, Any], bytes], Awaitable[bytes]]
MESSAGES_PER_SECOND = 200
BURST = 16
LEAST_PAUSE = 0.002
TERM_SECONDS = 2.0
"""Programs get SIGTERM this long before their time is over, or a fifth of the time before, if that is less."""
STACK_SECONDS = 0.1
"""A run writes the stack of its code to the log this long before its time is over. Shorter runs write no stack."""
COMPACT: dict[str, Any] = {"ensure_ascii": False, "allow_nan": False, "separators": (",", ":")}
LARGE_RESULT = 256 * 1024
"""Bytes above which another process converts a result. Each MiB takes about 50 ms."""
INTERPRETER_MB, OUT_OF_MEMORY = 64, 3
CONVERT = f"""
import json, resource, sys
resource.setrlimit(resource.RLIMIT_AS, (int(sys.argv[1]) << 20,) * 2)
try:
    sys.stdout.buffer.write(json.dumps(json.load(sys.stdin.buffer), **{COMPACT}).encode())
except MemoryError:
    sys.exit({OUT_OF_MEMORY})
"""


class Pace:
    """Slows down code that sends too many messages, so that other runs do not wait."""

    def __init__(self, per_second: int) -> None:
        self._burst = min(BURST, per_second)
        self._interval = self._burst / per_second
        self._began = time.monotonic()

    async def after(self, number: int) -> None:
        """Wait after the message `number`, counted from 0.

        A burst of messages may be fast. After its last message, this method waits until the time for the burst is over,
        and yields to other tasks even if no wait is needed.
        """
        if number % self._burst < self._burst - 1:
            return
        remaining = self._began + self._interval - time.monotonic()
        await asyncio.sleep(max(remaining, min(self._interval, LEAST_PAUSE)))
        self._began = time.monotonic()


def _do_nothing() -> None:
    pass


def compact(body: bytes) -> bytes:
    """Return the JSON text without blanks. Raise ValueError or RecursionError if it is not JSON."""
    return json.dumps(json.loads(body), **COMPACT).encode()


def compact_apart(body: bytes, memory_mb: int) -> bytes:
    """Return `compact(body)` from another process, which may use `memory_mb` MiB for the value. Blocking.

    Raise ValueError if the text is not JSON, ChannelAbused if its value is too large, OSError if no process is free.
    """
    command = [base_python(), "-I", "-S", "-c", CONVERT, str(memory_mb + INTERPRETER_MB)]
    done = subprocess.run(command, input=body, capture_output=True, check=False)
    if done.returncode == OUT_OF_MEMORY:
        raise ChannelAbused("a result that needs more memory than the run may use")
    if done.returncode:
        raise ValueError
    return done.stdout


def header(
    *,
    timeout_ms: int,
    result_bytes: int,
    code: str | None = None,
    code_path: str = "/run/code/run_code.py",
    file: str = "",
    module: str = "",
    function: str | None = None,
    program: Mapping[str, Any] | None = None,
    workspace: str = "/workspace",
    own_processes: bool = True,
    environment: Mapping[str, str] | None = None,
    packages: Sequence[str] = (),
    guest: Any = None,
    waits: bool = False,
) -> dict[str, Any]:
    """Return the description of a run for the process inside, without the arguments of the code.

    - `function` is called: in the Python code `code`, in the file `file`, or in a module. `program` describes another
      program. Without any of them, only the guest does something.
    - `own_processes`: whether the run has its own pid namespace. `waits`: see `Dialogue`.
    """
    return {
        "code": code,
        "code_path": code_path,
        "file": file or None,
        "module": module or None,
        "function": function,
        "program": dict(program) if program is not None else None,
        "workspace": workspace,
        "own_processes": own_processes,
        "environment": dict(environment or {}),
        "packages": list(packages),
        "stack_seconds": max(0.0, timeout_ms / 1000 - STACK_SECONDS),
        "term_seconds": timeout_ms / 1000 - min(TERM_SECONDS, timeout_ms / 1000 / 5),
        "result_bytes": result_bytes,
        "guest": guest,
        "waits": waits,
    }


class Dialogue:
    """The dialogue with the code of one run. After `listen`, either `result` or `failure` is set, or the code ended.

    This class accepts a result, a failure and a summary, and passes requests to `ask`. Subclasses may answer requests
    themselves.
    """

    def __init__(
        self,
        channel: Channel,
        *,
        result_bytes: int,
        disk_bytes: int,
        memory_mb: int = Limits().memory_mb,
        per_second: int = MESSAGES_PER_SECOND,
        waits: bool = False,
        ask: Ask | None = None,
    ) -> None:
        """`result_bytes`, `disk_bytes` and `memory_mb` are limits of the run. `per_second` limits the rate of messages.
        `waits` says whether the guest may ask before the code starts. Then the code starts when the guest is ready.
        """
        self._channel = channel
        self._waits = waits
        self._ask = ask
        self._result_bytes = result_bytes
        self._most_disk_bytes = disk_bytes
        self._memory_mb = memory_mb
        self._per_second = per_second
        self._ahead: asyncio.Future[Message | None] | None = None
        """The next message, if it was received while a request was answered."""
        self.heard_at: float | None = None
        """The time (`time.monotonic`) at which the last byte of the result or failure arrived. Later work does not
        count as time of the run.
        """
        self.when_heard: Callable[[], None] = _do_nothing
        """Called when `heard_at` is set."""
        self.summary: str | None = None
        self.result: bytes | None = None
        self.failure: Failure | None = None
        self.disk_bytes: int | None = None
        """The size of the files in the workspace, as the process of the code has measured it at its end."""

    async def wait_ready(self) -> None:
        """Wait until the sandbox is ready for code. Raise BrokenSetup if it cannot be prepared."""
        await wait_ready(self._channel)

    async def begin(self, header: Mapping[str, Any], args: bytes = b"{}") -> None:
        """Send the job."""
        await self._channel.send(header, args)

    async def go(self) -> None:
        """Start the code. Raise BrokenSetup if the guest cannot prepare the run."""
        if self._waits:
            try:
                message = await self._answer_until("ready", "broken")
            except ChannelAbused:  # the process was killed during a message
                message = None
            check_ready(message)
        await self._channel.send({"op": "go"})

    async def listen(self) -> None:
        """Answer requests until the code sends its result or its failure, or ends."""
        try:
            message = await self._answer_until("result", "failure")
            if message is not None:
                await self._take_end(message)
        except ChannelAbused as abuse:
            self.failure = Failure(FailureKind.OUTPUT, f"the code wrote to the result channel of its run: {abuse}")
        finally:
            if self._ahead is not None:
                self._ahead.cancel()

    async def _receive(self) -> Message | None:
        ahead, self._ahead = self._ahead, None
        return await (ahead or self._channel.receive())

    async def _answer_until(self, *last: str) -> Message | None:
        """Answer messages, and return the first one whose operation is in `last`; None at the end.

        Raise ChannelAbused if a message is unknown or not allowed.
        """
        pace = Pace(self._per_second)
        for number in itertools.count():
            message = await self._receive()
            if message is None or message.op in last:
                return message
            if message.op == "summary":
                self.summary = message.text[:2000]
            else:
                await self._answer_request(message)
            await pace.after(number)
        raise AssertionError

    async def _answer_request(self, message: Message) -> None:
        """Answer a request of the code. Raise ChannelAbused if the message is no request."""
        match message.op:
            case "progress":
                return
            case "ready" | "broken" | "result" | "failure" | "go" | "":
                raise ChannelAbused("an unknown message")
            case _ if self._ask is None:
                await self._refuse_request(message, "no host answers the requests of this run")
            case _ if message.body > self._result_bytes:
                await self._refuse_request(message, f"a request has {message.body} bytes; at most {self._result_bytes}")
            case _:
                await self._pass_on(message, self._ask)

    async def _pass_on(self, message: Message, ask: Ask) -> None:
        body = await self._channel.body(message.body)
        header = {name: value for name, value in message.header.items() if name != "op"}
        try:
            answer = await ask(message.op, header, body)
        except Exception:
            # The message may have secrets of the owner. A refusal belongs into the answer.
            log.exception("a host could not answer a request of a run")
            await self._refuse_request(Message(message.op), "the host could not do this")
            return
        await self._channel.send({}, answer)

    async def _refuse_request(self, message: Message, reason: str) -> None:
        await self._discard(message.body)
        await self._channel.send({"error": {"type": "HostError", "message": reason}})

    async def _take_end(self, message: Message) -> None:
        """Receive the result or the failure. Raise ChannelAbused if a result is too large or not JSON."""
        if message.disk is not None and message.disk >= 0:
            self.disk_bytes = min(message.disk, self._most_disk_bytes)
        is_result = message.op == "result"
        if is_result and message.body > self._result_bytes:
            raise ChannelAbused(f"a result of {message.body} bytes")
        body = await self._channel.body(message.body) if is_result else b""
        self.heard_at = self._channel.heard_at
        self.when_heard()
        if not is_result:
            kind, text = FailureKind.EXCEPTION, message.message[:1000]
            self.failure = Failure(kind, text, message.type[:200] or "Exception", message.traceback[:4000])
            return
        try:
            self.result = await self._normal(body)
        except (ValueError, RecursionError):
            raise ChannelAbused("a result that is not JSON") from None
        except OSError:
            self.failure = Failure(FailureKind.SANDBOX, "no process is free to check the result")

    async def _normal(self, body: bytes) -> bytes:
        """Return the JSON text without blanks. Raise ValueError or RecursionError if it is not JSON."""
        # In a thread alone, `json` would keep the lock of the interpreter, and the event loop would stand still.
        return (
            compact(body)
            if len(body) <= LARGE_RESULT
            else await asyncio.to_thread(compact_apart, body, self._memory_mb)
        )

    async def _discard(self, size: int) -> None:
        async for _ in self._channel.pieces(size):
            pass
