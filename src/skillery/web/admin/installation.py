"""`/admin/plugins` and `/admin/storage`: the plugins with their health, and the sizes of database and storage."""

from __future__ import annotations

from typing import Any

from skillery.maintenance.sizes import measure
from skillery.web.admin.layout import admin_page
from skillery.web.frame import Page, PageRequest

_ORDER = {"failing": 0, "ok": 1, "": 2}


async def show_plugins(request: PageRequest) -> Page:
    checks = await request.site.state.checks()
    rows = request.site.state.plugins()
    for row in rows:
        row["health"] = _health(row, checks)
    rows.sort(key=lambda one: (_ORDER[one["health"]], one["name"]))
    return admin_page("plugins", plugins=rows)


def _health(row: dict[str, Any], checks: dict[str, bool]) -> str:
    """Return `failing` if a chosen backend does not work or a call has failed, else `ok`, or "" if it is not used."""
    if not row["active"]:
        return ""
    chosen = [one["kind"] for one in row["offers"] if one["chosen"]]
    works = all(checks.get(kind, True) for kind in chosen)
    return "ok" if works and not row["failures"] else "failing"


async def show_storage(request: PageRequest) -> Page:
    state = request.site.state
    checks = await state.checks()
    sizes = await request.read(measure) if checks.get("database") else None
    return admin_page("storage", sizes=sizes, checks=checks, disk=state.disk(), storage=state.storage)
