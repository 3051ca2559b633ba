"""The layout of all pages of administrators."""

from __future__ import annotations

from typing import Any

from skillery.web.frame import Page

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
