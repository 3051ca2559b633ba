"""A watchdog for the event loop: a thread that notices silences, counts them, and logs where the event loop is busy."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from skillery.context.request import request_of

log = logging.getLogger(__name__)
LONGEST = 1.0
"""Seconds without a turn of the event loop that count as a silence."""
BETWEEN_LINES = 60.0
"""Seconds between two lines of the log."""
_TICK = 0.25
_MOST_FRAMES = 12


class Silences:
    """Counts the times in which the event loop was silent for over `longest` seconds."""

    def __init__(self, longest: float = LONGEST) -> None:
        self.count = 0
        self._longest = longest
        self._beat = 0.0
        self._logged = float("-inf")

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Context manager that watches the running event loop. Enter it in the thread of the loop."""
        loop, ended = asyncio.get_running_loop(), threading.Event()
        self._beat = time.monotonic()
        self._tick(loop, ended)
        thread = threading.Thread(
            target=self._watch, args=(loop, threading.get_ident(), ended), name="silences", daemon=True
        )
        thread.start()
        try:
            yield
        finally:
            ended.set()

    def _tick(self, loop: asyncio.AbstractEventLoop, ended: threading.Event) -> None:
        self._beat = time.monotonic()
        if not ended.is_set():
            loop.call_later(_TICK, self._tick, loop, ended)

    def _watch(self, loop: asyncio.AbstractEventLoop, thread: int, ended: threading.Event) -> None:
        counted = 0.0
        while not ended.wait(_TICK):
            beat = self._beat
            if beat == counted or time.monotonic() - beat <= self._longest + _TICK:
                continue
            counted = beat
            self.count += 1
            if time.monotonic() - self._logged >= BETWEEN_LINES:
                self._logged = time.monotonic()
                self._report(loop, sys._current_frames().get(thread))

    def _report(self, loop: asyncio.AbstractEventLoop, frame: FrameType | None) -> None:
        """Log the functions of the stack, innermost first, without their values."""
        request = request_of(asyncio.current_task(loop))
        stack = traceback.StackSummary.extract(traceback.walk_stack(frame), limit=_MOST_FRAMES, lookup_lines=False)
        log.warning(
            "the event loop is silent for over %g s; request %s, method %s, at %s",
            self._longest,
            request.id if request else "-",
            (request.method if request else "") or "-",
            " < ".join(f"{entry.name} ({entry.filename.rpartition('/')[2]}:{entry.lineno})" for entry in stack),
        )
