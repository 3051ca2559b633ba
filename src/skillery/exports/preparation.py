"""Background computation of the facts for indexes of Agent Skills, before a client requests an index."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from skillery.errors import SkilleryError
from skillery.exports.skill_exports import Exports

log = logging.getLogger(__name__)
QUIET_SECONDS = 1.0
"""The computation starts this long after the last publishing, so that it does not slow down an import."""
REST_SECONDS = 0.05
"""Seconds between two batches, in which the processor is free for requests."""
MOST_NAMES = 5_000
"""The maximum number of remembered skill names. After more publishings, all skills are checked."""


class FactsPreparation:
    """Computes the facts of latest versions in the background: of all skills at start, then of newly published ones."""

    def __init__(self, exports: Exports) -> None:
        self._exports = exports
        self._names: set[str] | None = None
        """The names of the skills to check, or None for all skills."""
        self._changed = asyncio.Event()
        self._changed.set()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._go_on())

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    def note(self, name: str) -> None:
        """Remember that a version of the skill `name` was published."""
        if self._names is not None:
            self._names.add(name)
            if len(self._names) > MOST_NAMES:
                self._names = None
        self._changed.set()

    async def _go_on(self) -> None:
        """Compute facts whenever versions were published and then no further ones for QUIET_SECONDS."""
        while True:
            await self._changed.wait()
            await self._wait_for_quiet()
            names, self._names = self._names, set()
            try:
                await self._prepare(None if names is None else sorted(names))
            except SkilleryError as error:
                log.warning("the index of Agent Skills is not prepared, so its first reader waits: %s", error.message)
            except Exception:
                log.exception("the index of Agent Skills could not be prepared")

    async def _wait_for_quiet(self) -> None:
        while self._changed.is_set():
            self._changed.clear()
            await asyncio.sleep(QUIET_SECONDS)

    async def _prepare(self, names: Sequence[str] | None) -> None:
        after: str | None = ""
        while after is not None:
            after = await self._exports.prepare(after, names)
            await asyncio.sleep(REST_SECONDS)
