"""The parts of the server that pages use."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from skillery.backends import Authenticator
from skillery.context.budget import Answers, Bodies
from skillery.context.worker_pool import WorkerPool
from skillery.edge.gate import Gate
from skillery.edge.run_streams import OpenStreams, RunStreams
from skillery.edge.server_state import ServerState
from skillery.methods.core import Core
from skillery.web.assets import Assets
from skillery.web.rendered_texts import RenderedTexts
from skillery.web.rendering import Templates
from skillery.web.visits import Visits


class Site(NamedTuple):
    """The parts of the server that pages use."""

    core: Core
    gate: Gate
    authenticator: Authenticator
    visits: Visits
    bodies: Bodies
    answers: Answers
    templates: Templates
    assets: Assets
    texts: RenderedTexts
    public_pages: bool
    """Whether callers without a login see pages of public skills (the setting `public_downloads`)."""
    streams: RunStreams
    state: ServerState


class Shared(Protocol):
    """The parts that pages share with the endpoints of `api`."""

    @property
    def gate(self) -> Gate: ...

    @property
    def bodies(self) -> Bodies: ...

    @property
    def answers(self) -> Answers: ...

    @property
    def streams(self) -> OpenStreams: ...

    @property
    def state(self) -> ServerState: ...

    @property
    def page_workers(self) -> WorkerPool: ...

    @property
    def public_downloads(self) -> bool: ...


def open_site(core: Core, shared: Shared) -> Site:
    """Return the parts of the site. Compile all templates."""
    return Site(
        core=core,
        gate=shared.gate,
        authenticator=core.identities.authenticator,
        visits=Visits(shared.gate, core.identities.sessions, core.signer, shared.bodies),
        bodies=shared.bodies,
        answers=shared.answers,
        templates=Templates(),
        assets=Assets(),
        texts=RenderedTexts(shared.page_workers),
        public_pages=shared.public_downloads,
        streams=RunStreams(core.runner, shared.streams),
        state=shared.state,
    )
