"""The parts of the server that pages use, and the templates of pages."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple, Protocol

import msgspec
from jinja2 import Environment, PackageLoader, StrictUndefined, pass_context
from jinja2.runtime import Context

from skillery.backends import Authenticator
from skillery.context.worker_pool import WorkerPool
from skillery.http.gate import Gate
from skillery.http.health import ServerState
from skillery.http.run_streams import OpenStreams, RunStreams
from skillery.methods.core import Core
from skillery.web import display
from skillery.web.assets import Assets
from skillery.web.rendered_texts import RenderedTexts
from skillery.web.visits import Visits

# -- The templates: autoescape for all of them, and no undefined names -------------------------------------------------


class Templates:
    """All HTML templates of the package, compiled at start. They escape all values."""

    def __init__(self) -> None:
        self._environment = compiled_templates()

    def render(self, name: str, values: Mapping[str, Any]) -> str:
        """Return the HTML of a template. `values` are the variables. Raise UndefinedError if one is missing."""
        return self._environment.get_template(name).render(values)


@cache
def compiled_templates() -> Environment:
    """Return the environment with all templates compiled. They depend on no setting, so a process compiles them
    once.
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
        size=_localised(display.size),
        duration=_localised(display.duration),
        ago=display.ago,
        time=display.time_tag,
        visible=display.visible,
        sentence=display.sentence,
        foreign=display.foreign,
        short_digest=display.short_digest,
        decoded=msgspec.json.decode,
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


class Site(NamedTuple):
    """The parts of the server that pages use."""

    core: Core
    gate: Gate
    authenticator: Authenticator
    visits: Visits
    templates: Templates
    assets: Assets
    texts: RenderedTexts
    public_pages: bool
    """Whether callers without a login see the pages of public skills (the setting `public_downloads`)."""
    streams: RunStreams
    state: ServerState


class Shared(Protocol):
    """The parts of the server that both pages and endpoints for programs use."""

    @property
    def gate(self) -> Gate: ...

    @property
    def streams(self) -> OpenStreams: ...

    @property
    def state(self) -> ServerState: ...

    @property
    def page_workers(self) -> WorkerPool: ...

    @property
    def public_downloads(self) -> bool: ...


def open_site(core: Core, shared: Shared) -> Site:
    """Return the parts for pages. Compile all templates."""
    return Site(
        core=core,
        gate=shared.gate,
        authenticator=core.identities.authenticator,
        visits=Visits(shared.gate, core.identities.sessions, core.signer),
        templates=Templates(),
        assets=Assets(),
        texts=RenderedTexts(shared.page_workers),
        public_pages=shared.public_downloads,
        streams=RunStreams(core.following, shared.streams),
        state=shared.state,
    )
