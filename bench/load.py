"""A bounded load on one server of this machine: N requests over K kept connections, by a client that costs little."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from typing import Any, NamedTuple


class Load(NamedTuple):
    seconds: float
    latencies: list[float]
    """Milliseconds, one for each request."""

    @property
    def per_second(self) -> float:
        return len(self.latencies) / self.seconds


def call(method: str, **params: Any) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).encode()


def send(url: str, body: Callable[[int], bytes], requests: int, connections: int, path: str = "/rpc") -> Load:
    """Every request must be answered with 200 and, on /rpc, a result."""
    return asyncio.run(_send(url, body, requests, connections, path))


async def _send(url: str, body: Callable[[int], bytes], requests: int, connections: int, path: str) -> Load:
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
                f"Content-Length: {len(content)}\r\n\r\n"
            )
            started = time.perf_counter()
            writer.write(head.encode() + content)
            answer = await _answer(reader)
            latencies.append((time.perf_counter() - started) * 1000)
            if path == "/rpc" and b'"result"' not in answer:
                raise RuntimeError(answer.decode())
        writer.close()

    started = time.perf_counter()
    await asyncio.gather(*(work() for _ in range(connections)))
    return Load(time.perf_counter() - started, latencies)


async def _answer(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    if not head.startswith(b"HTTP/1.1 200"):
        raise RuntimeError(head.decode())
    length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
    return await reader.readexactly(int(length.split(b":")[1]))
