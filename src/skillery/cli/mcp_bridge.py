"""Bridge between stdin and stdout and `POST /mcp`: messages go to the server, responses come back.

Messages are sent unchanged, except calls of the tools of skills with a `WorkDir`. The bridge reads only what HTTP needs
as headers: version, method and name of a message, and the session of clients older than 2026-07-28. A cancellation by a
newer client is not sent: the bridge closes the response of the cancelled request. Therefore, the bridge works with all
protocol versions that the server supports.
"""

from __future__ import annotations

import asyncio
import base64
import re
import sys
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import quote

import httpx
import msgspec

from skillery.cli.connection import connect
from skillery.cli.failures import CheckFailed
from skillery.cli.options import Target
from skillery.cli.work_dir import Mapped, WorkDir, lines_of_report
from skillery.client import AsyncClient, ClientError, ConnectionFailed
from skillery.client.async_transfers import lines_of
from skillery.errors import StartupError

MAX_LINE_BYTES = 128 * 1024 * 1024
"""Limit of the bytes of a message. The limits of servers are lower."""
DRAIN_SECONDS = 5.0
"""Seconds to wait for pending responses after the end of stdin."""
VERSION_KEY = "io.modelcontextprotocol/protocolVersion"
CAPABILITIES_KEY = "io.modelcontextprotocol/clientCapabilities"
TASKS = "io.modelcontextprotocol/tasks"
WORKSPACE_KEY = "skillery/workspace"
NAMED_BY = {"tools/call": "name", "prompts/get": "name", "resources/read": "uri"} | dict.fromkeys(
    ("tasks/get", "tasks/update", "tasks/cancel"), "taskId"
)
INITIALIZE, CANCELLED = "initialize", "notifications/cancelled"
INTERNAL_ERROR, PARSE_ERROR = -32603, -32700
_PLAIN = re.compile(r"[!-~](?:[ -~]*[!-~])?")
_IN_BASE64 = "=?base64?"


class _Message(msgspec.Struct):
    """The fields of a JSON-RPC message that the bridge reads."""

    method: str = ""
    id: str | int | float | msgspec.UnsetType | None = msgspec.UNSET
    params: dict[str, Any] = {}

    @property
    def version(self) -> str | None:
        """The protocol version in the message, or None. Clients since 2026-07-28 send the version in each message."""
        meta = self.params.get("_meta")
        version = meta.get(VERSION_KEY) if isinstance(meta, dict) else None
        # A version that no header can hold is not sent: the server then refuses the message.
        return version if isinstance(version, str) and _PLAIN.fullmatch(version) else None


class McpBridge:
    """Connects one client at stdin and stdout with a server. `run` ends when stdin ends."""

    def __init__(
        self,
        connect: Callable[[], AbstractAsyncContextManager[AsyncClient]],
        tools: Sequence[str],
        source: BinaryIO | None = None,
        sink: BinaryIO | None = None,
        *,
        work_dir: Path | None = None,
    ) -> None:
        self._work_dir = WorkDir(work_dir) if work_dir else None
        self._connect = connect
        self._address = f"/mcp?tools={quote(','.join(tools), safe=',')}" if tools else "/mcp"
        self._source, self._sink = source or sys.stdin.buffer, sink or sys.stdout.buffer
        self._session: dict[str, str] = {}
        """Headers of the session, set by a handshake."""
        self._tasks: dict[str | int | float, asyncio.Task[None]] = {}

    async def run(self) -> None:
        async for line in self._lines():
            await self._handle(line)
        if self._tasks:
            await asyncio.wait(self._tasks.values(), timeout=DRAIN_SECONDS)
        for task in self._tasks.values():
            task.cancel()

    async def _lines(self) -> AsyncIterator[bytes]:
        """Yield the lines of stdin. A daemon thread reads them, because a read of stdin cannot be interrupted."""
        lines: asyncio.Queue[bytes] = asyncio.Queue(1)
        loop = asyncio.get_running_loop()

        def read() -> None:
            line = b"begin"
            while line:
                line = self._source.readline(MAX_LINE_BYTES)
                try:
                    asyncio.run_coroutine_threadsafe(lines.put(line), loop).result()
                except RuntimeError:  # the loop is closed
                    return

        threading.Thread(target=read, name="stdin", daemon=True).start()
        while line := await lines.get():
            if line.strip():
                yield line

    async def _handle(self, line: bytes) -> None:
        """Send one line of stdin to the server. Requests run as tasks, so that their answers may come in any order."""
        try:
            message = msgspec.json.decode(line, type=_Message)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            self._write_error(None, PARSE_ERROR, "each line must be one JSON-RPC message")
            return
        if message.method == CANCELLED and self._cancels_locally(message):
            return
        if message.id is msgspec.UNSET or message.id is None or message.method == INITIALIZE:
            # Without a task, because the messages after a handshake depend on the handshake.
            await self._exchange(message, line)
            return
        self._tasks[message.id] = task = asyncio.create_task(self._exchange(message, line))
        task.add_done_callback(partial(self._ended, message.id))

    def _ended(self, request_id: str | int | float, task: asyncio.Task[None]) -> None:
        if self._tasks.get(request_id) is task:
            del self._tasks[request_id]

    def _cancels_locally(self, message: _Message) -> bool:
        """Close the response of the request that the notification names, which cancels the request. Return True.

        Return False for a client older than 2026-07-28, which has a session: the bridge must then send the notification
        to the server.
        """
        if self._session:
            return False
        request_id = message.params.get("requestId")
        task = self._tasks.get(request_id) if isinstance(request_id, str | int | float) else None
        if task is not None:
            task.cancel()
        return True

    async def _exchange(self, message: _Message, line: bytes) -> None:
        """Send a message and write the answer. If the tool works in a folder, bring its files there."""
        try:
            async with self._connect() as client:
                if self._work_dir is None or not _calls_skill(message):
                    await self._send(client, message, line, None)
                    return
                async with self._work_dir.mapped(client) as mapped:
                    await self._send(client, message, _in_workspace(line, mapped.workspace), mapped)
        except (StartupError, CheckFailed, ClientError, OSError) as error:
            if message.id is not msgspec.UNSET:
                self._write_error(message.id, INTERNAL_ERROR, str(error))

    async def _send(self, client: AsyncClient, message: _Message, line: bytes, mapped: Mapped | None) -> None:
        headers = self._headers(message)
        async with client.stream("POST", self._address, content=line, headers=headers) as response:
            await self._forward(message, response, mapped)

    def _headers(self, message: _Message) -> dict[str, str]:
        headers = {"content-type": "application/json", "accept": "application/json, text/event-stream"}
        if message.version is None:
            return headers | self._session
        headers |= {"mcp-protocol-version": message.version, "mcp-method": _header_value(message.method)}
        name = message.params.get(NAMED_BY.get(message.method, ""))
        return headers | ({"mcp-name": _header_value(name)} if isinstance(name, str) else {})

    async def _forward(self, message: _Message, response: httpx.Response, mapped: Mapped | None) -> None:
        """Write the messages of a response: one JSON object, or a stream of events."""
        kind = response.headers.get("content-type", "").partition(";")[0].strip()
        if kind == "text/event-stream":
            async for line in lines_of(response):
                if line.startswith(b"data:") and line[5:].strip():
                    await self._forward_message(message, response, line[5:].strip(), mapped)
            return
        body = await response.aread()
        if message.id is msgspec.UNSET:
            return
        if kind != "application/json":
            self._write_error(message.id, INTERNAL_ERROR, f"the server answered HTTP {response.status_code}")
            return
        await self._forward_message(message, response, body, mapped)

    async def _forward_message(
        self, message: _Message, response: httpx.Response, body: bytes, mapped: Mapped | None
    ) -> None:
        """Write one message of a response to stdout."""
        try:
            answer = msgspec.json.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError):
            answer = None
        if not isinstance(answer, dict):
            self._write_error(message.id, INTERNAL_ERROR, f"the server answered HTTP {response.status_code}")
            return
        if "method" not in answer and answer.get("id") is None:
            # The server refused the request before it read the id.
            answer = {"jsonrpc": "2.0", "id": message.id, "error": answer.get("error")}
        if message.method == INITIALIZE and "result" in answer:
            self._begin_session(answer["result"], response)
        if mapped is not None and isinstance(answer.get("result"), dict):
            await _bring_back(answer["result"], mapped)
        self._write(answer)

    def _begin_session(self, result: Any, response: httpx.Response) -> None:
        version = result.get("protocolVersion") if isinstance(result, dict) else None
        self._session = {"mcp-protocol-version": version} if isinstance(version, str) else {}
        session = response.headers.get("mcp-session-id")
        if session:
            self._session["mcp-session-id"] = session

    def _write_error(self, reply_to: Any, code: int, text: str) -> None:
        self._write({"jsonrpc": "2.0", "id": reply_to, "error": {"code": code, "message": text}})

    def _write(self, message: dict[str, Any]) -> None:
        self._sink.write(msgspec.json.encode(message) + b"\n")
        self._sink.flush()


def _calls_skill(message: _Message) -> bool:
    """Return whether a message calls a tool that is not a method of the server: a tool of a skill."""
    from skillery.methods.table import METHODS

    name = message.params.get("name")
    return message.method == "tools/call" and isinstance(name, str) and name not in METHODS


def _in_workspace(line: bytes, workspace: str) -> bytes:
    """Return a tool call for a workspace. The server must answer the call itself, not a task: without its result, the
    bridge does not know when the files are complete.
    """
    call = msgspec.json.decode(line)
    meta = call["params"].get("_meta")
    meta = call["params"]["_meta"] = {**(meta if isinstance(meta, dict) else {}), WORKSPACE_KEY: workspace}
    capabilities = meta.get(CAPABILITIES_KEY)
    if isinstance(capabilities, dict) and isinstance(capabilities.get("extensions"), dict):
        other_extensions = {name: value for name, value in capabilities["extensions"].items() if name != TASKS}
        meta[CAPABILITIES_KEY] = {**capabilities, "extensions": other_extensions}
    return msgspec.json.encode(call)


async def _bring_back(result: dict[str, Any], mapped: Mapped) -> None:
    """Bring back the files of a successful call, and add the report to its result."""
    answer = result.get("structuredContent")
    if not isinstance(answer, dict):
        return
    if not result.get("isError"):
        await mapped.bring_back(answer.get("workspace"))
    answer["work_dir"] = mapped.report
    if lines := "\n".join(lines_of_report(mapped.report)):
        result["content"] = [*result.get("content", ()), {"type": "text", "text": lines}]


def _header_value(value: str) -> str:
    """Return the value for an HTTP header. If a header cannot hold the value, return it in Base64 with a mark."""
    if _PLAIN.fullmatch(value) and not value.startswith(_IN_BASE64):
        return value
    return f"{_IN_BASE64}{base64.b64encode(value.encode()).decode()}?="


# Access to the registry for a command that runs for a long time: the command holds the home only during requests and
# for a few seconds afterwards.


LINGER_SECONDS = 5.0
"""Seconds without a request after which the home is released.

Opening a home takes most of a second, so the home is not released at once. Other commands wait longer than this for the
home (`connection.WAIT_SECONDS`).
"""


class RegistryAccess:
    """Gives clients of the target. If the target is a home without a server, this process holds the home during
    requests, and for LINGER_SECONDS after the last one.

    Call `close` at the end.
    """

    def __init__(self, target: Target) -> None:
        self._target = target
        self._requests = 0
        self._release_timer: asyncio.TimerHandle | None = None
        self._holder: asyncio.Task[None] | None = None
        self._client: asyncio.Future[AsyncClient] | None = None
        self._release = asyncio.Event()

    @asynccontextmanager
    async def client(self) -> AsyncIterator[AsyncClient]:
        """Context manager: yield a client. Raise StartupError if the home cannot be opened.

        After StartupError or ConnectionFailed in the `with` block, the next call connects again, because the server may
        have ended.
        """
        self._requests += 1
        if self._release_timer is not None:
            self._release_timer.cancel()
        try:
            if self._client is None:
                self._open()
            assert self._client is not None
            yield await asyncio.shield(self._client)
        except (StartupError, ConnectionFailed):
            # The server may have ended: the next request connects again.
            self._release_client()
            raise
        finally:
            self._requests -= 1
            if not self._requests:
                self._release_timer = asyncio.get_running_loop().call_later(LINGER_SECONDS, self._release_client)

    async def close(self) -> None:
        self._release_client()
        if self._holder is not None:
            await asyncio.wait({self._holder})

    def _open(self) -> None:
        client, self._release = asyncio.get_running_loop().create_future(), asyncio.Event()
        self._client = client
        self._holder = asyncio.create_task(self._hold(client, self._release, self._holder))

    def _release_client(self) -> None:
        self._client = None
        self._release.set()

    async def _hold(
        self, client: asyncio.Future[AsyncClient], release: asyncio.Event, before: asyncio.Task[None] | None
    ) -> None:
        """Open a client, and close it when `release` is set. One task does both, because async context managers require
        this.

        Wait for the end of the task `before` first, which holds the home.
        """
        if before is not None:
            await asyncio.wait({before})
        try:
            async with connect(self._target, sandbox=True) as opened:
                client.set_result(opened)
                await release.wait()
        except Exception as error:
            if client.done():
                raise
            client.set_exception(error)
            if self._client is client:
                self._client = None
