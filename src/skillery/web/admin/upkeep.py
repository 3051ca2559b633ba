"""Pages of environments, webhooks and garbage."""

from __future__ import annotations

from skillery.environments.methods import ListEnvironments, RebuildEnvironment, list_environments, rebuild_environment
from skillery.maintenance.garbage.collector import CollectGarbage, Swept, collect_garbage
from skillery.web.admin.layout import admin_page, asks_again
from skillery.web.frame import Done, Page, PageRequest, SeeOther
from skillery.webhooks.targets import ListWebhooks, TestWebhook, list_webhooks, test_webhook


async def show_environments(request: PageRequest) -> Page:
    page = await request.do(list_environments, ListEnvironments(limit=100, cursor=request.query.get("cursor", "")))
    return admin_page("environments", environments=page.environments, next_cursor=page.next_cursor)


async def change_environments(request: PageRequest) -> SeeOther:
    form = await request.form()
    await request.do(rebuild_environment, RebuildEnvironment(name=form.get("name")))
    return SeeOther("/admin/environments", Done(f"The environment {form.get('name')} is being built."))


async def show_webhooks(request: PageRequest) -> Page:
    return admin_page("webhooks", webhooks=(await request.do(list_webhooks, ListWebhooks())).webhooks)


async def change_webhooks(request: PageRequest) -> SeeOther:
    form = await request.form()
    test = await request.do(test_webhook, TestWebhook(id=form.get("id")))
    text = "The receiver has accepted the test event." if test.ok else f"The test failed: {test.error}"
    return SeeOther("/admin/webhooks", Done(text))


async def show_garbage(request: PageRequest) -> Page:
    return admin_page("gc", removed=(await request.do(collect_garbage, CollectGarbage(dry_run=True))).removed)


async def collect(request: PageRequest) -> Page | SeeOther:
    form = await request.form()
    again = asks_again(request, form)
    if again is not None:
        return again
    garbage = await request.do(collect_garbage, CollectGarbage())
    steps = sum(swept != Swept() for swept in garbage.removed.values())
    text = f"The garbage is collected: {steps} steps removed something." if steps else "There was no garbage."
    return SeeOther("/admin/gc", Done(text))
