"""The routes of the pages for administrators."""

from __future__ import annotations

from skillery.edge.routing import Route
from skillery.web.admin import pages
from skillery.web.admin.access import admin_route
from skillery.web.frame import Handler
from skillery.web.site import Site


def routes(site: Site) -> list[Route]:
    handlers: dict[str, dict[str, Handler]] = {
        "/admin": {"GET": pages.show_overview},
        "/admin/tokens": {"GET": pages.show_tokens, "POST": pages.change_tokens},
        "/admin/secrets": {"GET": pages.show_secrets, "POST": pages.change_secrets},
        "/admin/environments": {"GET": pages.show_environments, "POST": pages.change_environments},
        "/admin/webhooks": {"GET": pages.show_webhooks, "POST": pages.change_webhooks},
        "/admin/audit": {"GET": pages.show_audit},
        "/admin/gc": {"GET": pages.show_garbage, "POST": pages.collect},
    }
    return [admin_route(site, path, one) for path, one in handlers.items()]
