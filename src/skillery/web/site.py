"""The parts of the server that pages use, and the templates of pages."""

from __future__ import annotations

import asyncio
import gzip
import json
import logging
from collections import OrderedDict
from collections.abc import Callable
from functools import cache, partial
from hashlib import sha256
from importlib.resources import files
from typing import Any, NamedTuple, TypeVar

import msgspec
from jinja2 import Environment, PackageLoader, StrictUndefined, pass_context
from jinja2.runtime import Context
from markupsafe import Markup
from msgspec.structs import replace

from skillery.context.request import current
from skillery.context.threads import COMPARISONS
from skillery.context.worker_pool import Delayed, TookTooLong, WorkerFailed, WorkerPool
from skillery.context.worker_process import signature_of
from skillery.errors import Unavailable
from skillery.formats.version_diffs import FileChange
from skillery.http.gate import Gate
from skillery.http.health import ServerState
from skillery.http.requests import HttpRefusal, only, send_bytes
from skillery.http.run_streams import OpenStreams, RunStreams
from skillery.identity.web_sessions import WebSessions
from skillery.methods.core import Core
from skillery.methods.errors import NOT_FOUND, plain_error
from skillery.runs.remedies import explained
from skillery.web import display
from skillery.web.differences import MOST_WORDS, FileDiff, ResultsDiff, compare_results, file_diffs
from skillery.web.markdown import Place, Rendered, first_part, rendered
from skillery.web.views.charts import share, spans, spark
from skillery.web.views.shown import Shown, ToShow, plain_parts, show_parts

# The shared files of pages: the style sheet and the script bundle, `/static/{digest}/{name}`, and `/favicon.ico`.
#
# The digest in the address changes with the content, so browsers may keep each file for a year.
#
# Pages have no link to the icon: a link adds a request to the first visit, and Chromium requests the icon later anyway.


STATIC = "/static"
ICON = "/favicon.ico"
_FOLDER = files("skillery.web") / "static"
_VENDORED = ("htmx-4.0.1.min.js", "hx-csp-4.0.1.min.js")
_KINDS = {"css": "text/css; charset=utf-8", "js": "text/javascript; charset=utf-8"}


class _Asset(NamedTuple):
    """A file with its media type, and how long browsers keep it. `compressed` is its content in gzip."""

    kind: str
    content: bytes
    compressed: bytes
    kept: str


class Assets:
    """The style sheet, the script bundle and the icon, read once at start."""

    def __init__(self) -> None:
        contents = {
            "style.css": b"\n".join(_contents_of("styles")),
            "skillery.js": b"\n;\n".join([_htmx(), *_contents_of("scripts")]),
        }
        self._by_address: dict[str, _Asset] = {}
        self._addresses: dict[str, str] = {}
        for name, content in contents.items():
            self._addresses[name] = f"{STATIC}/{sha256(content).hexdigest()[:16]}/{name}"
            kind = _KINDS[name.rpartition(".")[2]]
            self._add(self._addresses[name], kind, content, "max-age=31536000, immutable")
        self._add(ICON, "image/x-icon", (_FOLDER / "favicon.ico").read_bytes(), "max-age=604800")

    def _add(self, address: str, kind: str, content: bytes, kept: str) -> None:
        self._by_address[address] = _Asset(kind, content, gzip.compress(content, 9, mtime=0), f"public, {kept}")

    def address(self, name: str) -> str:
        """Return the path of the asset `name`, for example "style.css". Raise KeyError for an unknown name."""
        return self._addresses[name]

    async def answer(self, scope: Any, _receive: Any, send: Any, headers: dict[str, str]) -> None:
        """Send the asset of the path, compressed if the browser accepts gzip. Raise HttpRefusal 404 for other paths."""
        only(scope, "GET", "HEAD")
        # In a mount, `path` lacks the prefix of the mount, so the raw path is used.
        asset = self._by_address.get(scope["raw_path"].partition(b"?")[0].decode("latin-1"))
        if asset is None:
            raise HttpRefusal(404, plain_error(NOT_FOUND, "this file does not exist", "not_found", "Reload the page."))
        headers_of_asset = [
            ("cache-control", asset.kept),
            ("cross-origin-resource-policy", "same-origin"),
            ("vary", "Accept-Encoding"),
        ]
        if accepts_gzip(headers):
            await send_bytes(send, 200, asset.compressed, asset.kind, [*headers_of_asset, ("content-encoding", "gzip")])
        else:
            await send_bytes(send, 200, asset.content, asset.kind, headers_of_asset)


def accepts_gzip(headers: dict[str, str]) -> bool:
    """Return whether the header Accept-Encoding permits gzip."""
    offers = headers.get("accept-encoding", "").lower().replace(" ", "").split(",")
    return any(offer == "gzip" or (offer.startswith("gzip;") and offer != "gzip;q=0") for offer in offers)


def _contents_of(folder: str) -> list[bytes]:
    """Return the contents of the files in a folder of static files, in the order of their names."""
    return [path.read_bytes() for path in sorted((_FOLDER / folder).iterdir(), key=lambda path: path.name)]


def _htmx() -> bytes:
    """Return the script that starts htmx in a task of its own, on pages that use htmx.

    Other pages do not execute htmx, which takes most of the time of the script bundle. With one bundle, a page needs
    one request.
    """
    vendored = b"\n;\n".join((_FOLDER / "vendor" / name).read_bytes() for name in _VENDORED)
    return b'if (document.querySelector("[hx-get], [hx-post]")) setTimeout(() => {\n' + vendored + b"\n});"


# -- The templates: autoescape for all of them, and no undefined names -------------------------------------------------


_FILTERS: tuple[Callable[..., Any], ...] = (
    *(display.ago, display.visible, display.sentence, display.foreign, display.glyph, display.short_digest),
    *(display.address_of_subject, display.address_of_contact, spark, spans, share, explained),
)


@cache
def compiled_templates() -> Environment:
    """Return the environment with all templates compiled. They escape all values, and a missing value is an error.

    They depend on no setting, so a process compiles them once.
    """
    environment = Environment(
        loader=PackageLoader("skillery.web"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
        cache_size=-1,
        extensions=["jinja2.ext.do"],
    )
    environment.filters.update(
        number=_localised(display.number),
        counted=_localised(lambda value, language, word: display.counted(value, word, language)),
        size=_localised(display.size),
        duration=_localised(display.duration),
        time=display.time_tag,
        as_html=Markup,  # only for HTML of the rendering process
        decoded=msgspec.json.decode,
        encoded=partial(json.dumps, ensure_ascii=False),
        **{function.__name__: function for function in _FILTERS},
    )
    for name in environment.list_templates(["html"]):
        environment.get_template(name)
    return environment


def _localised(function: Any) -> Any:
    """Return a filter that formats numbers for the language of the reader."""

    @pass_context
    def localised(context: Context, value: Any, *args: Any) -> str:
        text: str = function(value, context.resolve("language"), *args)
        return text

    return localised


# -- Foreign contents as HTML, rendered by worker processes with a time limit ------------------------------------------


MOST_KEPT_BYTES = 64 * 1024 * 1024
"""The size of the cache of rendered texts."""
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
            if isinstance(error, Delayed | Unavailable):  # a later call may have a result
                return None
        if key:
            self._keep(key, msgspec.msgpack.encode(made))
        return made

    def _keep(self, key: tuple[str, ...], content: bytes) -> None:
        """Add a result to the cache. If the cache is full, drop the least recently used results."""
        self._kept_bytes += len(content) - len(self._kept.pop(key, b""))
        self._kept[key] = content
        while self._kept_bytes > MOST_KEPT_BYTES:
            self._kept_bytes -= len(self._kept.popitem(last=False)[1])


def _plain(text: str) -> str:
    return str(display.visible(text.replace("\r\n", "\n"), is_code=True))


# -- The site ----------------------------------------------------------------------------------------------------------


class Site(NamedTuple):
    """The parts of the server that pages use."""

    core: Core
    gate: Gate
    assets: Assets
    texts: RenderedTexts
    public_pages: bool
    """Whether callers without a login see the pages of public skills (the setting `public_downloads`)."""
    streams: RunStreams
    state: ServerState

    @property
    def sessions(self) -> WebSessions:
        """The sessions of browsers."""
        return self.core.identities.sessions


def open_site(
    core: Core, gate: Gate, streams: OpenStreams, state: ServerState, workers: WorkerPool, public_pages: bool
) -> Site:
    """Return the parts for pages. Compile all templates."""
    compiled_templates()
    streams_of_runs = RunStreams(core.following, streams)
    return Site(core, gate, Assets(), RenderedTexts(workers), public_pages, streams_of_runs, state)
