"""PAGES: the routes of all web pages. Each subject has a module that returns its routes."""

from __future__ import annotations

from collections.abc import Callable

from skillery.http.operations import Route
from skillery.web import login, provider_login
from skillery.web.account import routes as account
from skillery.web.admin import routes as admin
from skillery.web.assets import ICON, STATIC
from skillery.web.catalogue import routes as catalogue
from skillery.web.failures import failing
from skillery.web.publish import routes as publish
from skillery.web.reviews import routes as reviews
from skillery.web.runs import routes as runs
from skillery.web.site import Site
from skillery.web.skills import routes as skills

PAGES: tuple[Callable[[Site], list[Route]], ...] = (
    catalogue.routes,
    skills.routes,
    reviews.routes,
    runs.routes,
    publish.routes,
    account.routes,
    admin.routes,
)
"""The functions that return the routes of a subject."""


def make_pages(site: Site) -> list[Route]:
    """Return the routes of all pages, of the sign-in and of the static files."""
    return [
        *login_routes(site),
        Route(STATIC, site.assets.answer, (), is_mount=True, is_guarded=False),
        Route(ICON, site.assets.answer_icon, (), is_guarded=False),
        *(route for subject in PAGES for route in subject(site)),
    ]


def login_routes(site: Site) -> list[Route]:
    """Return the routes of the sign-in. They exist with `web = false` too."""
    pages, elsewhere = login.LoginPages(site), provider_login.ProviderLogin(site)
    fail = failing(site)
    return [
        Route("/login", pages.answer, login.LOGIN_OPERATIONS, fail=fail),
        Route("/logout", pages.sign_out, login.LOGOUT_OPERATIONS, fail=fail),
        Route(
            "/login/{name}",
            elsewhere.begin,
            provider_login.BEGIN,
            provider_login.BEGIN_PATHS,
            ("GET",),
            fail=fail,
        ),
        Route(
            "/login/{name}/callback",
            elsewhere.finish,
            provider_login.FINISH,
            provider_login.FINISH_PATHS,
            ("GET",),
            fail=fail,
        ),
    ]
