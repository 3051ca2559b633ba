"""`/account`: who the user is, what the user may do, and the settings of the browser."""

from __future__ import annotations

from typing import Any

from skillery.edge.routing import Route
from skillery.web.cookies import cookie_of
from skillery.web.frame import CallFailed, Done, Page, PageRequest, SeeOther
from skillery.web.page_routes import page_route
from skillery.web.sending import KEYS_COOKIE, THEME_COOKIE, THEMES
from skillery.web.site import Site

SCOPES = {
    "read": "find and read skills, and see your runs",
    "run": "run skills and code, and create blobs",
    "publish": "publish skills",
    "review": "review versions, and approve or reject them",
    "admin": "administer this server",
}
_YEAR = 365 * 24 * 3600


async def show_account(request: PageRequest) -> Page:
    identity = request.identity
    try:
        usage: dict[str, Any] = await request.call("get_usage")
    except CallFailed:
        usage = {}
    values = {
        "identity": identity,
        "scopes": [(name, words, request.may(name) or "admin" in identity.scopes) for name, words in SCOPES.items()],  # type: ignore[arg-type]
        "grants": sorted(identity.namespaces),
        "usage": _rows(usage),
        "theme_now": cookie_of(request.headers, THEME_COOKIE) or "system",
        "themes": THEMES,
        "keys": cookie_of(request.headers, KEYS_COOKIE) != "off",
        "session": request.visit.session,
    }
    return Page("account.html", "Your account", values, "account")


def _rows(usage: dict[str, Any]) -> list[tuple[str, float, float | None]]:
    """Return the quotas: name, used, allowed. Allowed is None without a limit."""
    return [(name.replace("_", " "), one["used"], one["limit"]) for name, one in usage.items() if isinstance(one, dict)]


async def change_account(request: PageRequest) -> SeeOther:
    """Keep the theme and the keys in cookies of this browser."""
    form = await request.form()
    cookies = []
    if form.get("theme") in THEMES:
        cookies.append(request.visit.cookies.setting(THEME_COOKIE, form.get("theme"), _YEAR))
    if form.get("keys") in {"on", "off"}:
        cookies.append(request.visit.cookies.setting(KEYS_COOKIE, form.get("keys"), _YEAR))
    return SeeOther("/account", Done("The settings of this browser are saved."), tuple(cookies))


def routes(site: Site) -> list[Route]:
    return [page_route(site, "/account", ("/account",), {"GET": show_account, "POST": change_account})]
