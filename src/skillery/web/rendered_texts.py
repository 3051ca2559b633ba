"""Foreign contents as HTML, rendered by worker processes with a time limit. A cache keeps results by digest."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable
from hashlib import sha256
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from skillery.context.request import current
from skillery.context.threads import COMPARISONS
from skillery.context.worker_pool import TookTooLong, WorkerFailed, WorkerPool
from skillery.context.worker_process import signature_of
from skillery.errors import Unavailable
from skillery.formats.version_diffs import FileChange
from skillery.web.differences import MOST_WORDS, FileDiff, ResultsDiff, compare_results, file_diffs
from skillery.web.display import visible
from skillery.web.markdown import Place, Rendered, first_part, rendered
from skillery.web.views.shown import Shown, ToShow, plain_parts, show_parts

MOST_BYTES = 64 * 1024 * 1024
"""The size of the cache."""
log = logging.getLogger(__name__)
R = TypeVar("R")


class RenderedTexts:
    """Renders texts in worker processes, and caches the results. Use it only on the event loop.

    The key of a result has everything that the result depends on: digests of contents, and paths. It has no caller,
    because a page checks the rights of its caller before it asks for a text.
    """

    def __init__(self, workers: WorkerPool) -> None:
        self._workers = workers
        self._kept: OrderedDict[tuple[str, ...], bytes] = OrderedDict()
        self._kept_bytes = 0

    async def markdown(self, digest: str, place: Place, text: str) -> Rendered:
        """Return a Markdown text, or its first part, as HTML. `digest` is the key of its content in the cache."""
        part = first_part(text)
        made = await self._made(("markdown", digest, *place), rendered, part, place)
        if made is None:
            made = Rendered(await asyncio.to_thread(_plain, part), is_plain=True)
        return replace(made, is_cut=len(part) < len(text))

    async def parts(self, to_show: ToShow) -> Shown:
        """Return the views of the result of a run. If they take too long, return the start of each part as text."""
        digest = await asyncio.to_thread(lambda: sha256(msgspec.msgpack.encode(to_show)).hexdigest())
        key = ("parts", digest) if to_show.form != "raw" else ()  # few readers download a part twice
        shown = await self._made(key, show_parts, to_show)
        return plain_parts(to_show) if shown is None else shown

    async def differences(self, changes: list[FileChange], skill_md: str, *digests: str) -> list[FileDiff]:
        """Return file changes as HTML. If they take too long, no changed words are marked. `skill_md` is the new text.

        `digests` are those of both versions. If one is "", nothing is cached.
        """
        key = ("differences", *digests) if all(digests) else ()
        diffs = await self._made(key, file_diffs, changes, skill_md, MOST_WORDS)
        return await COMPARISONS.run(file_diffs, changes, skill_md, 0) if diffs is None else diffs

    async def results(self, old: ToShow, new: ToShow) -> ResultsDiff | None:
        """Return the differences of the results of two runs, or None if they take too long."""
        return await self._made((), compare_results, old, new)

    async def _made(self, key: tuple[str, ...], render: Callable[..., R], *args: Any) -> R | None:
        """Return the result of `render` in a worker process, or None if it takes too long. Cache it if there is a key.

        A caller waits only for its own slow texts.
        """
        if key in self._kept:
            self._kept.move_to_end(key)
            kept: R | None = msgspec.msgpack.decode(self._kept[key], type=signature_of(render).result | None)
            return kept
        request = current.get()
        caller = (request.identity or request.address) if request else ""
        made: R | None = None
        try:
            made = (await self._workers.call(caller, render, *args))[0]
        except (TookTooLong, WorkerFailed, Unavailable) as error:
            log.warning("%s %s was not rendered: %s", render.__name__, key, error or "it takes too long")
            if isinstance(error, Unavailable):  # a later call may have a result
                return None
        if key:
            self._keep(key, msgspec.msgpack.encode(made))
        return made

    def _keep(self, key: tuple[str, ...], content: bytes) -> None:
        """Add a result to the cache. If the cache is full, drop the least recently used results."""
        self._kept_bytes += len(content) - len(self._kept.pop(key, b""))
        self._kept[key] = content
        while self._kept_bytes > MOST_BYTES:
            self._kept_bytes -= len(self._kept.popitem(last=False)[1])


def _plain(text: str) -> str:
    return str(visible(text.replace("\r\n", "\n"), is_code=True))
