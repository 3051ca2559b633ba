"""The cgroups of the runs of one pool: made ahead, and kept for later runs if nothing of the earlier run is left."""

from __future__ import annotations

import asyncio
import logging
from collections import deque

from cellblock.host.groups import ControlGroup, ControlGroups
from cellblock.values import Limits

log = logging.getLogger(__name__)
AHEAD = 8
MOST_RUNS = 200
"""The most runs that a group serves. The kernel's records of a group may grow a little with each run."""
CHECKS, CHECK_SECONDS = 3, 0.005


class GroupShelf:
    """Groups that wait for runs. `take` one, and give it back when all processes of its run have ended."""

    def __init__(self, groups: ControlGroups, kept: int) -> None:
        """`kept` is the number of groups that are kept for later runs. With 0, each run gets a new group.

        A group may serve several runs only if no process outside of these runs can join it: the zygote gets descriptors
        that let a process join. So pools whose zygote has imported foreign code keep none.
        """
        self._groups = groups
        self._most_kept = kept
        self._kept: set[ControlGroup] = set()
        self._waiting: deque[ControlGroup] = deque()
        self._making: asyncio.Task[None] | None = None
        self._filling = asyncio.Lock()
        self._closed = False

    async def fill(self, limits: Limits) -> None:
        """Make all groups that are kept, with these limits, or some groups ahead if none are kept."""
        async with self._filling:
            await asyncio.to_thread(self._fill, limits)

    def _fill(self, limits: Limits) -> None:
        try:
            while not self._closed and self._missing:
                self._waiting.append(self._make(limits, keep=self._most_kept > 0))
        except OSError as error:
            log.warning("no cgroups could be made ahead: %s", error.strerror)

    @property
    def _missing(self) -> bool:
        return len(self._kept) < self._most_kept if self._most_kept else len(self._waiting) < AHEAD

    def take(self, limits: Limits) -> ControlGroup:
        """Return a group with these limits, in which no process is. Raise OSError if that fails."""
        group = self._waiting.popleft() if self._waiting else self._groups.make()
        try:
            group.limit(limits)
        except BaseException:
            self._forget(group)
            raise
        if not self._most_kept:
            self._make_more(limits)
        group.runs += 1
        return group

    def _make_more(self, limits: Limits) -> None:
        if len(self._waiting) < AHEAD // 2 and (self._making is None or self._making.done()):
            self._making = asyncio.ensure_future(self.fill(limits))

    def _make(self, limits: Limits, *, keep: bool) -> ControlGroup:
        group = self._groups.make()
        try:
            if keep:
                group.keep_open()
                self._kept.add(group)
            group.limit(limits)
        except BaseException:
            self._forget(group)
            raise
        return group

    def _forget(self, group: ControlGroup) -> None:
        self._kept.discard(group)
        group.remove_now()

    async def give_back(self, group: ControlGroup, usual: Limits) -> None:
        """Keep the group for later runs if it is as new, else remove it and make another with `usual` limits."""
        if group in self._kept and await self._is_as_new(group):
            group.refresh()
            self._waiting.append(group)
            return
        await self.discard(group, usual)

    async def discard(self, group: ControlGroup, usual: Limits) -> None:
        """Remove the group. If it was kept, make another with `usual` limits."""
        if group in self._kept:
            self._kept.discard(group)
            await self.fill(usual)
        await group.remove()

    async def _is_as_new(self, group: ControlGroup) -> bool:
        """Return whether the group may serve another run. The kernel may need a moment to forget its last process."""
        if self._closed or group.runs >= MOST_RUNS:
            return False
        for _ in range(CHECKS):
            if group.is_as_new():
                return True
            await asyncio.sleep(CHECK_SECONDS)
        return False

    async def close(self) -> None:
        """Remove the groups that no run uses. The others are removed when they are given back."""
        self._closed = True
        async with self._filling:
            for group in self._waiting:
                group.remove_now()
            self._waiting.clear()
