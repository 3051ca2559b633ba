"""A server says that it is there, as long as it is."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

from skillery.database import Database
from skillery.errors import SkilleryError
from skillery.runs.presence import BEAT_SECONDS, beat, leave

log = logging.getLogger(__name__)


@asynccontextmanager
async def present(database: Database, server: str) -> AsyncIterator[None]:
    """`server` is there from here to the end, and closes what those left open that are not."""
    await _beat(database, server)
    beating = asyncio.create_task(_go_on(database, server))
    try:
        yield
    finally:
        beating.cancel()
        await asyncio.wait([beating])
        try:
            await database.write(partial(leave, server=server))
        except SkilleryError as error:
            log.warning("that this server ends could not be noted: %s", error)


async def _go_on(database: Database, server: str) -> None:
    while True:
        await asyncio.sleep(BEAT_SECONDS)
        try:
            await _beat(database, server)
        except SkilleryError as error:
            log.warning("that this server is there could not be noted: %s", error)
        except Exception:
            log.exception("that this server is there could not be noted")


async def _beat(database: Database, server: str) -> None:
    closed = await database.write(partial(beat, server=server))
    if closed:
        log.warning("%d runs of servers that are gone are recorded as failed", closed)
