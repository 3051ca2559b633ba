"""Code and Markdown of skills as HTML: worker processes with a time limit. Finished texts are kept."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from markupsafe import Markup

from skillery.context.request import current
from skillery.context.worker_pool import TookTooLong, WorkerFailed, WorkerPool
from skillery.errors import Unavailable
from skillery.web.display import visible
from skillery.web.highlighting import highlighted_lines
from skillery.web.kept import RENDERER, KeptParts, Key
from skillery.web.markdown import Place, is_bounded, rendered

log = logging.getLogger(__name__)
MOST_HIGHLIGHTED = 200_000
"""Bytes of a file that is highlighted. The HTML of a file is about five times as large as the file."""
Lines = list[str] | None


class RenderedText(NamedTuple):
    """A text as HTML."""

    lines: tuple[Markup, ...]
    """The lines of a file. Markdown is one line."""
    is_plain: bool
    """Whether the text is shown as it is, because it is past a bound."""


class RenderedTexts:
    def __init__(self, workers: WorkerPool) -> None:
        self.kept = KeptParts()
        self._workers = workers

    async def code(self, digest: str, path: str, text: str) -> RenderedText:
        """Return the lines of a file. `digest` is that of the bundle."""

        async def make() -> Lines:
            lines, _ = await self._workers.call(_caller(), highlighted_lines, text, path)
            return lines

        return await self._kept(("code", digest, path, RENDERER), make if len(text) <= MOST_HIGHLIGHTED else None, text)

    async def markdown(self, digest: str, place: Place, text: str, shift: int = 2) -> RenderedText:
        """Return a Markdown text. `digest` is that of the bundle."""

        async def make() -> Lines:
            made, _ = await self._workers.call(_caller(), rendered, text, place, shift)
            return None if made is None else [made]

        key = ("markdown", digest, *place, str(shift), RENDERER)
        return await self._kept(key, make if is_bounded(text) else None, text)

    async def _kept(self, key: Key, make: Callable[[], Awaitable[Lines]] | None, text: str) -> RenderedText:
        """Return the kept text, or make it. A text past a bound is shown as it is."""
        found: RenderedText | None = self.kept.get(key)
        if found is not None:
            return found
        lines, is_final = None, True
        try:
            lines = await make() if make else None
        except TookTooLong:
            pass
        except (WorkerFailed, Unavailable) as error:
            log.warning("a text was not rendered: %s", error)
            is_final = isinstance(error, WorkerFailed)
        # The worker has escaped the text.
        shown = (
            RenderedText(tuple(map(Markup, lines)), False)
            if lines is not None
            else await asyncio.to_thread(_plain, text)
        )
        if is_final:
            self.kept.keep(key, shown, _size(shown))
        return shown


def _caller() -> str:
    """Return the identity of the request: one caller waits for its own slow texts."""
    request = current.get()
    return (request.identity or request.address) if request else ""


def _plain(text: str) -> RenderedText:
    lines = visible(text.replace("\r\n", "\n"), is_code=True).removesuffix("\n").split("\n")
    return RenderedText(tuple(map(Markup, lines)), True)


def _size(made: RenderedText) -> int:
    return 200 + sum(len(line) + 60 for line in made.lines)
