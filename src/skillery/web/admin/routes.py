"""The routes of the pages for administrators."""

from __future__ import annotations

from skillery.http.operations import Route
from skillery.web.admin import problems, tokens, upkeep
from skillery.web.admin.layout import admin_route
from skillery.web.frame import Handler
from skillery.web.site import Site


def routes(site: Site) -> list[Route]:
    handlers: dict[str, dict[str, Handler]] = {
        "/admin": {"GET": problems.show_overview},
        "/admin/tokens": {"GET": tokens.show_tokens, "POST": tokens.change_tokens},
        "/admin/secrets": {"GET": tokens.show_secrets, "POST": tokens.change_secrets},
        "/admin/quotas": {"GET": upkeep.show_quotas},
        "/admin/plugins": {"GET": upkeep.show_plugins},
        "/admin/storage": {"GET": upkeep.show_storage},
        "/admin/environments": {"GET": upkeep.show_environments, "POST": upkeep.change_environments},
        "/admin/webhooks": {"GET": upkeep.show_webhooks, "POST": upkeep.change_webhooks},
        "/admin/audit": {"GET": tokens.show_audit, "POST": tokens.verify_audit},
        "/admin/gc": {"GET": upkeep.show_garbage, "POST": upkeep.collect},
    }
    return [admin_route(site, path, one) for path, one in handlers.items()]
