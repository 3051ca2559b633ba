"""The routes of all web pages."""

from __future__ import annotations

from typing import Protocol

from skillery.edge.gate import Gate
from skillery.edge.routing import Route
from skillery.methods.budgets import Bodies
from skillery.methods.core import Core
from skillery.web import login, provider_login
from skillery.web.visits import Visits


class SharedParts(Protocol):
    """The parts that pages share with the endpoints of `api`."""

    @property
    def gate(self) -> Gate: ...

    @property
    def bodies(self) -> Bodies: ...


def make_pages(core: Core, shared: SharedParts) -> list[Route]:
    """Return the routes of all pages."""
    visits = Visits(shared.gate, core.sessions, core.signer, shared.bodies)
    pages, elsewhere = login.LoginPages(visits), provider_login.ProviderLogin(visits)
    return [
        Route("/login", pages.answer, login.LOGIN_OPERATIONS),
        Route("/logout", pages.sign_out, login.LOGOUT_OPERATIONS),
        Route("/login/{name}", elsewhere.begin, provider_login.BEGIN, provider_login.BEGIN_PATHS, ("GET",)),
        Route("/login/{name}/callback", elsewhere.finish, provider_login.FINISH, provider_login.FINISH_PATHS, ("GET",)),
    ]
