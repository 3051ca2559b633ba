"""The sweep of a server, now and then while it serves."""

from __future__ import annotations

import asyncio
import logging

from skillery.errors import Busy, SkilleryError
from skillery.maintenance.garbage import Collector

log = logging.getLogger(__name__)
FIRST_MINUTES = 1.0
"""Also servers that never run for long sweep."""


async def sweep_now_and_then(collector: Collector, interval_minutes: float) -> None:
    """Until it is cancelled; not at all where the interval is 0. Of the servers on one database one sweeps at a time,
    and what is a machine's own each sweeps for itself."""
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
