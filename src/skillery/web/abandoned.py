"""Requests whose browser does not wait for the answer any more, such as searches while the user types."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from skillery.edge.exchanges import ClientGone
from skillery.edge.http import disconnected

T = TypeVar("T")


async def while_connected(receive: Any, work: Coroutine[Any, Any, T]) -> T:
    """Return the result of `work`. If the client disconnects first, cancel `work` and raise ClientGone.

    A statement that the database executes already is not interrupted. Later statements and the rendering are left out.
    Call this function only for requests without a body.
    """
    working = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(disconnected(receive))
    try:
        await asyncio.wait({working, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientGone
        return working.result()
    finally:
        working.cancel()
        gone.cancel()
