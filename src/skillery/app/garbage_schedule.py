"""The schedule of sweeps on a running server."""

from __future__ import annotations

import asyncio
import logging

from skillery.errors import Busy, SkilleryError
from skillery.maintenance.garbage import Collector

log = logging.getLogger(__name__)
FIRST_MINUTES = 1.0
"""Limit of the minutes before the first sweep. Servers that run only for a short time sweep too."""


async def sweep_periodically(collector: Collector, interval_minutes: float) -> None:
    """Sweep every `interval_minutes` until cancelled. If `interval_minutes` is 0, return at once.

    Only one server of a database sweeps the shared data at a time. If another server is sweeping, sweep only this
    server's own data.
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
