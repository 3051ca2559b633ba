"""What all pages of administrators share: the layout, who may open them, and who may change something."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from skillery.http.operations import Route
from skillery.http.requests import HttpRefusal
from skillery.methods.errors import NOT_FOUND, plain_error
from skillery.web.failures import too_old_page
from skillery.web.frame import Answer, Form, Handler, Page, PageRequest
from skillery.web.page_routes import page_route
from skillery.web.site import Site
from skillery.web.unsent import Unsent

RECENT = timedelta(minutes=15)
"""The age of a sign-in that may change tokens, secrets and garbage."""
TABS = {
    "": "Problems",
    "tokens": "Tokens",
    "secrets": "Secrets",
    "quotas": "Quotas",
    "plugins": "Plugins",
    "storage": "Storage",
    "environments": "Environments",
    "webhooks": "Webhooks",
    "audit": "Audit trail",
    "gc": "Garbage",
}


def admin_page(tab: str, **values: Any) -> Page:
    """Return a page. `problem` is a message at the top, and `problems` has messages by the id of their field."""
    shared = {"tab": tab, "tabs": TABS, "problem": "", "problems": {}}
    status = 400 if values.get("problem") or values.get("problems") else 200
    title = TABS[tab] if tab else "Admin"
    return Page(f"admin_{tab or 'overview'}.html", title, {**shared, **values}, "admin", status)


def admin_route(site: Site, path: str, handlers: Mapping[str, Handler]) -> Route:
    """Return the route of a page for administrators. All other callers get 404, as for an unknown address."""
    return page_route(site, path, (path,), {name: _hidden(handler) for name, handler in handlers.items()})


def _hidden(handler: Handler) -> Handler:
    async def answer(request: PageRequest) -> Answer:
        if not request.may("admin"):
            hint = "JSON-RPC is at POST /rpc."
            raise HttpRefusal(404, plain_error(NOT_FOUND, "this path does not exist", "not_found", hint))
        return await handler(request)

    return answer


def asks_again(request: PageRequest, form: Form) -> Page | None:
    """Return the page of the sign-in if the session is too old for a change. Callers without a session have no login.

    The page keeps the text of the form.
    """
    session = request.visit.session
    if session is None or datetime.now(UTC) - session.made_at <= RECENT:
        return None
    return too_old_page(request, Unsent(request.address, list(form.pairs)))
