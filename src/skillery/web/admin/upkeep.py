"""Pages of environments, webhooks and garbage."""

from __future__ import annotations

from skillery.web.admin.access import asks_again
from skillery.web.admin.layout import admin_page
from skillery.web.frame import Done, Page, PageRequest, SeeOther


async def show_environments(request: PageRequest) -> Page:
    found = await request.call("list_environments", {"limit": 100, "cursor": request.query.get("cursor") or None})
    return admin_page(
        "environments",
        environments=found["environments"],
        next_cursor=found["next_cursor"],
    )


async def change_environments(request: PageRequest) -> SeeOther:
    form = await request.form()
    await request.call("rebuild_environment", {"name": form.get("name")})
    return SeeOther("/admin/environments", Done(f"The environment {form.get('name')} is being built."))


async def show_webhooks(request: PageRequest) -> Page:
    found = await request.call("list_webhooks")
    return admin_page("webhooks", webhooks=found["webhooks"])


async def change_webhooks(request: PageRequest) -> SeeOther:
    form = await request.form()
    found = await request.call("test_webhook", {"id": form.get("id")})
    text = "The receiver has accepted the test event." if found["ok"] else f"The test failed: {found['error']}"
    return SeeOther("/admin/webhooks", Done(text))


async def show_garbage(request: PageRequest) -> Page:
    found = await request.call("collect_garbage", {"dry_run": True})
    return admin_page("gc", removed=found["removed"])


async def collect(request: PageRequest) -> Page | SeeOther:
    form = await request.form()
    again = asks_again(request, form)
    if again is not None:
        return again
    found = await request.call("collect_garbage", {"dry_run": False})
    steps = sum(1 for one in found["removed"].values() if any(one.values()))
    text = f"The garbage is collected: {steps} steps removed something." if steps else "There was no garbage."
    return SeeOther("/admin/gc", Done(text))
