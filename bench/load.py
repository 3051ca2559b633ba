"""Bounded load on a local server: a number of requests over a number of connections, from a client with low
overhead.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from bench.processor_time import processor_seconds

IDLE_SECONDS, IDLE_SHARE, LONGEST_WAIT = 2.0, 0.03, 120.0


class Load(NamedTuple):
    seconds: float
    latencies: list[float]
    """Milliseconds of each request."""

    @property
    def per_second(self) -> float:
        return len(self.latencies) / self.seconds


def call(method: str, **params: Any) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).encode()


def send(
    url: str,
    body: Callable[[int], bytes],
    requests: int,
    connections: int,
    path: str = "/rpc",
    token: str = "",
    headers: Mapping[str, str] | None = None,
) -> Load:
    """Send the requests. Each must be answered with 200 and, on /rpc and /mcp, with a result."""
    login = {"Authorization": f"Bearer {token}"} if token else {}
    more = "".join(f"{name}: {value}\r\n" for name, value in {**login, **(headers or {})}.items())
    return asyncio.run(_send(url, body, requests, connections, path, more))


async def _send(url: str, body: Callable[[int], bytes], requests: int, connections: int, path: str, more: str) -> Load:
    host, port = url.removeprefix("http://").split(":")
    numbers = iter(range(requests))
    latencies: list[float] = []

    async def work() -> None:
        reader, writer = await asyncio.open_connection(host, int(port))
        for number in numbers:
            content = body(number)
            verb = "POST" if content else "GET"
            head = (
                f"{verb} {path} HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Type: application/json\r\n"
                f"{more}Content-Length: {len(content)}\r\n\r\n"
            )
            started = time.perf_counter()
            if writer.is_closing():
                reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(head.encode() + content)
            answer, is_closed = await _answered(reader)
            if is_closed:
                # Some servers close the connection after a streamed answer. Connecting again is part of the next call.
                writer.close()
            latencies.append((time.perf_counter() - started) * 1000)
            if path in ("/rpc", "/mcp") and b'"result"' not in answer:
                raise RuntimeError(answer.decode())
        writer.close()

    started = time.perf_counter()
    await asyncio.gather(*(work() for _ in range(connections)))
    return Load(time.perf_counter() - started, latencies)


def send_paced(url: str, body: Callable[[int], bytes], requests: int, per_second: float) -> Load:
    """Send requests at random times, on average `per_second`, without waiting for earlier responses.

    Latencies count from the time at which a request was due.
    """
    return asyncio.run(_send_paced(url, body, requests, per_second))


async def _send_paced(url: str, body: Callable[[int], bytes], requests: int, per_second: float) -> Load:
    host, port = url.removeprefix("http://").split(":")
    idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
    latencies: list[float] = []

    async def one(number: int, due: float) -> None:
        reader, writer = idle.pop() if idle else await asyncio.open_connection(host, int(port))
        content = body(number)
        head = (
            f"POST /rpc HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(content)}\r\n\r\n"
        )
        writer.write(head.encode() + content)
        answer = await _answer(reader)
        latencies.append((time.perf_counter() - due) * 1000)
        idle.append((reader, writer))
        if b'"result"' not in answer:
            raise RuntimeError(answer.decode())

    chance = random.Random(1)
    started = due = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for number in range(requests):
            due += chance.expovariate(per_second)
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            group.create_task(one(number, due))
    for _, writer in idle:
        writer.close()
    return Load(time.perf_counter() - started, latencies)


def wait_until_idle(pid: int) -> None:
    """Wait until the process has used less than IDLE_SHARE of a processor for IDLE_SECONDS, at most LONGEST_WAIT.

    A server works for some seconds after publications: it prepares the index of Agent Skills.
    """
    deadline = time.monotonic() + LONGEST_WAIT
    while time.monotonic() < deadline:
        before = processor_seconds(pid)
        time.sleep(IDLE_SECONDS)
        if processor_seconds(pid) - before < IDLE_SHARE * IDLE_SECONDS:
            return


async def _answer(reader: asyncio.StreamReader) -> bytes:
    return (await _answered(reader))[0]


async def _answered(reader: asyncio.StreamReader) -> tuple[bytes, bool]:
    """Return the body of a response, and whether the server closes the connection."""
    head = await reader.readuntil(b"\r\n\r\n")
    if not head.startswith(b"HTTP/1.1 200"):
        raise RuntimeError(head.decode())
    lines = head.lower().split(b"\r\n")
    is_closed = b"connection: close" in lines
    length = next((line for line in lines if line.startswith(b"content-length:")), None)
    if length is not None:
        return await reader.readexactly(int(length.split(b":")[1])), is_closed
    if b"transfer-encoding: chunked" in lines:
        return await _chunks(reader), is_closed
    return await reader.read(-1), True


async def _chunks(reader: asyncio.StreamReader) -> bytes:
    parts = []
    while size := int(await reader.readuntil(b"\r\n"), 16):
        parts.append((await reader.readexactly(size + 2))[:-2])
    await reader.readexactly(2)
    return b"".join(parts)
