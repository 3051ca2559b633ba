"""Blocking operations for both clients, as a function and as a coroutine: file access and sleep."""

from __future__ import annotations

import asyncio
import time
from typing import BinaryIO

sleep = time.sleep
sleep_async = asyncio.sleep


def read(file: BinaryIO, size: int) -> bytes:
    return file.read(size)


async def read_async(file: BinaryIO, size: int) -> bytes:
    return await asyncio.to_thread(file.read, size)


def write(file: BinaryIO, content: bytes) -> None:
    file.write(content)


async def write_async(file: BinaryIO, content: bytes) -> None:
    await asyncio.to_thread(file.write, content)
