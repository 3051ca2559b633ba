"""Foreign contents as HTML, rendered by worker processes with a time limit. A cache keeps Markdown of skills."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, TypeVar

from msgspec.structs import replace

from skillery.context.request import current
from skillery.context.threads import COMPARISONS
from skillery.context.worker_pool import TookTooLong, WorkerFailed, WorkerPool
from skillery.errors import Unavailable
from skillery.web.differences import MOST_WORDS, FileDiff, ToCompare, file_diffs
from skillery.web.display import visible
from skillery.web.markdown import Place, Rendered, first_part, rendered
from skillery.web.views.shown import Shown, ToShow, plain_parts, show_parts

# -- Rendered parts of pages, kept in memory: the least recently used parts are dropped when the limit is reached ------
# The key of a part has everything that the part depends on: digests of contents, paths, and RENDERER. It has no caller,
# because a page checks the rights of its caller before it asks for a part.


MOST_BYTES = 64 * 1024 * 1024
RENDERER = "4"
"""The version of the renderer. Change it when the HTML changes."""
Key = tuple[str, ...]


class KeptParts:
    """A cache of rendered parts by key, of at most `most_bytes`. Use it only on the event loop.

    The least recently used parts are removed first.
    """

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most_bytes = most_bytes
        self._parts: OrderedDict[Key, tuple[Any, int]] = OrderedDict()
        self._bytes = 0

    def get(self, key: Key) -> Any:
        """Return the cached part, or None."""
        if key not in self._parts:
            return None
        self._parts.move_to_end(key)
        return self._parts[key][0]

    def keep(self, key: Key, part: Any, size: int) -> None:
        """Add a part of about `size` bytes. If the key exists already, do nothing."""
        if key in self._parts:
            return
        self._parts[key] = part, size
        self._bytes += size
        while self._bytes > self._most_bytes:
            _, (_, dropped) = self._parts.popitem(last=False)
            self._bytes -= dropped


log = logging.getLogger(__name__)
R = TypeVar("R")


class RenderedTexts:
    """Renders texts in worker processes, and caches the HTML."""

    def __init__(self, workers: WorkerPool) -> None:
        self.kept = KeptParts()
        self._workers = workers

    async def markdown(self, digest: str, place: Place, text: str) -> Rendered:
        """Return a Markdown text, or its first part, as HTML. `digest` is the key of its content in the cache."""
        part, key = first_part(text), ("markdown", digest, *place, RENDERER)
        known: Rendered | None = self.kept.get(key)
        if known is not None:
            return known
        made, is_final = await self._made(f"the text of {place.base}", rendered, part, place)
        if made is None:
            made = Rendered(await asyncio.to_thread(_plain, part), is_plain=True)
        shown = replace(made, is_cut=len(part) < len(text))
        if is_final:
            self.kept.keep(key, shown, 200 + len(shown.html))
        return shown

    async def parts(self, to_show: ToShow, digest: str = "") -> Shown:
        """Return the views of the result of a run. If they take too long, return the start of each part as text.

        `digest` is the key of the only content in the cache. Without it, nothing is cached.
        """
        key = ("parts", digest, repr(replace(to_show, files=[])), RENDERER)
        known: Shown | None = self.kept.get(key) if digest else None
        if known is not None:
            return known
        shown, _ = await self._made(f"the result of {to_show.base}", show_parts, to_show)
        if shown is None:
            return plain_parts(to_show)
        # A view without HTML costs little, or could not be made in time.
        if digest and all(view.html for view in shown.views):
            self.kept.keep(key, shown, sum(500 + len(view.html) for view in shown.views))
        return shown

    async def differences(self, changes: list[ToCompare]) -> list[FileDiff]:
        """Return the file changes of a page as HTML. If they take too long, no changed words are marked."""
        diffs, _ = await self._made("a difference", file_diffs, changes, MOST_WORDS)
        return await COMPARISONS.run(file_diffs, changes, 0) if diffs is None else diffs

    async def _made(self, words: str, render: Callable[..., R], *args: Any) -> tuple[R | None, bool]:
        """Return the result of `render` in a worker process, or None, and whether a later call has the same result.

        A caller waits only for its own slow texts.
        """
        request = current.get()
        caller = (request.identity or request.address) if request else ""
        try:
            made: R | None = (await self._workers.call(caller, render, *args))[0]
        except (TookTooLong, WorkerFailed, Unavailable) as error:
            log.warning("%s was not rendered: %s", words, error or "it takes too long")
            return None, not isinstance(error, Unavailable)
        return made, True


def _plain(text: str) -> str:
    return str(visible(text.replace("\r\n", "\n"), is_code=True))
