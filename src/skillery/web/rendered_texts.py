"""Foreign contents as HTML, rendered by worker processes with a time limit. A cache keeps Markdown of skills."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import OrderedDict
from typing import Any, NamedTuple

from markupsafe import Markup
from msgspec.structs import replace

from skillery.context.request import current
from skillery.context.threads import COMPARISONS
from skillery.context.worker_pool import TookTooLong, WorkerFailed, WorkerPool
from skillery.errors import Unavailable
from skillery.web.differences import MOST_WORDS, FileDiff, ToCompare, file_diffs
from skillery.web.display import visible
from skillery.web.markdown import Heading, Place, first_part, is_bounded, rendered
from skillery.web.views.shown import Shown, ToShow, plain_parts, show_parts

# -- Rendered parts of pages, kept in memory: the least recently used parts are dropped when the limit is reached ------
# The key of a part has everything that the part depends on: digests of contents, paths, and RENDERER. It has no caller,
# because a page checks the rights of its caller before it asks for a part.


MOST_BYTES = 64 * 1024 * 1024
RENDERER = "4"
"""The version of the renderer. Change it when the HTML changes."""
Key = tuple[str, ...]


class KeptParts:
    """A cache of rendered parts by key, of at most `most_bytes`. The least recently used parts are removed first."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most_bytes = most_bytes
        self._parts: OrderedDict[Key, tuple[Any, int]] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def get(self, key: Key) -> Any:
        """Return the cached part, or None."""
        with self._lock:
            if key not in self._parts:
                return None
            self._parts.move_to_end(key)
            return self._parts[key][0]

    def keep(self, key: Key, part: Any, size: int) -> None:
        """Add a part of about `size` bytes. If the key exists already, do nothing."""
        with self._lock:
            if key in self._parts:
                return
            self._parts[key] = part, size
            self._bytes += size
            while self._bytes > self._most_bytes:
                _, (_, dropped) = self._parts.popitem(last=False)
                self._bytes -= dropped


log = logging.getLogger(__name__)


class RenderedText(NamedTuple):
    """A Markdown text as HTML."""

    html: Markup
    is_plain: bool
    """Whether the text is shown as it is, because a bound was exceeded."""
    contents: tuple[Heading, ...] = ()
    is_cut: bool = False
    """Whether only the first part is shown, because the text is too long."""


class RenderedTexts:
    """Renders texts in worker processes, and caches the HTML."""

    def __init__(self, workers: WorkerPool) -> None:
        self.kept = KeptParts()
        self._workers = workers

    async def markdown(self, digest: str, place: Place, text: str) -> RenderedText:
        """Return a Markdown text, or its first part, as HTML. `digest` is the key of its content in the cache."""
        part, key = first_part(text), ("markdown", digest, *place, RENDERER)
        shown: RenderedText | None = self.kept.get(key)
        if shown is not None:
            return shown
        made, is_final = None, True  # only a final result is cached: an unavailable worker may answer later
        try:
            if is_bounded(part):
                made, _ = await self._workers.call(_caller(), rendered, part, place)
        except TookTooLong:
            pass
        except (WorkerFailed, Unavailable) as error:
            log.warning("a text was not rendered: %s", error)
            is_final = isinstance(error, WorkerFailed)
        # The worker has escaped the text.
        html = Markup(made.html) if made else await asyncio.to_thread(_plain, part)  # noqa: S704
        shown = RenderedText(html, not made, tuple(made.contents) if made else (), len(part) < len(text))
        if is_final:
            self.kept.keep(key, shown, 200 + len(html))
        return shown

    async def parts(self, to_show: ToShow, digest: str = "") -> Shown:
        """Return the views of the result of a run. If they take too long, return the start of each part as text.

        `digest` is the key of the only content in the cache. Without it, nothing is cached.
        """
        key = ("parts", digest, repr(replace(to_show, files=[])), RENDERER)
        if digest and (known := self.kept.get(key)) is not None:
            kept: Shown = known
            return kept
        try:
            shown, _ = await self._workers.call(_caller(), show_parts, to_show)
        except (TookTooLong, WorkerFailed, Unavailable) as error:
            log.warning("the result of %s was not rendered: %s", to_show.base, error or "it takes too long")
            return plain_parts(to_show)
        # A view without HTML costs little, or could not be made in time.
        if digest and all(view.html for view in shown.views):
            self.kept.keep(key, shown, sum(500 + len(view.html) for view in shown.views))
        return shown

    async def differences(self, changes: list[ToCompare]) -> list[FileDiff]:
        """Return the file changes of a page as HTML. If they take too long, no changed words are marked."""
        try:
            diffs, _ = await self._workers.call(_caller(), file_diffs, changes, MOST_WORDS)
        except (TookTooLong, WorkerFailed, Unavailable) as error:
            log.warning("changed words were not marked: %s", error or "it takes too long")
            return await COMPARISONS.run(file_diffs, changes, 0)
        return diffs


def _caller() -> str:
    """Return the identity of the request, or its address, so that a caller waits only for its own slow texts."""
    request = current.get()
    return (request.identity or request.address) if request else ""


def _plain(text: str) -> Markup:
    return visible(text.replace("\r\n", "\n"), is_code=True)
