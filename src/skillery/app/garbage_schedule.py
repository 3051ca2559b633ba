"""Periodic sweeps of a running server."""

from __future__ import annotations

import asyncio
import logging

from skillery.errors import Busy, SkilleryError
from skillery.maintenance.garbage import Collector

log = logging.getLogger(__name__)
FIRST_MINUTES = 1.0
"""Longest delay of the first sweep in minutes, so that servers that run for a short time sweep too."""


async def sweep_periodically(collector: Collector, interval_minutes: float) -> None:
    """Sweep every `interval_minutes` until this task is cancelled; never if the interval is 0.

    Only one server at a time sweeps the shared data of a database. Each server sweeps its local data.
    """
    if not interval_minutes:
        return
    await asyncio.sleep(60 * min(FIRST_MINUTES, interval_minutes))
    while True:
        try:
            await asyncio.to_thread(_sweep, collector)
        except SkilleryError as error:
            log.warning("the sweep failed and will be repeated: %s", error.message)
        except Exception:
            log.exception("the sweep failed and will be repeated")
        await asyncio.sleep(60 * interval_minutes)


def _sweep(collector: Collector) -> None:
    try:
        swept = collector.collect()
    except Busy:
        swept = collector.collect_own()
    for step, one in swept.items():
        if one.count:
            log.info("swept %s: %d, %d bytes", step, one.count, one.bytes)
