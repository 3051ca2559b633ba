"""Pages of environments, webhooks, garbage, plugins, storage and quotas."""

from __future__ import annotations

from functools import partial
from itertools import chain
from typing import Any

from skillery.environments.methods import ListEnvironments, RebuildEnvironment, list_environments, rebuild_environment
from skillery.errors import SkilleryError
from skillery.identity.usage import list_namespace_uses, list_uses
from skillery.maintenance.garbage.collector import CollectGarbage, Swept, collect_garbage
from skillery.maintenance.integrity import measure
from skillery.web.admin.layout import admin_page, asks_again
from skillery.web.frame import Done, Page, PageRequest, SeeOther, message_of
from skillery.web.quota_uses import Use, use_of_namespace, uses_of_caller, uses_of_identity
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


# -- `/admin/plugins` and `/admin/storage`: the plugins with their health, and the sizes of database and storage -------


_ORDER = {"failing": 0, "ok": 1, "": 2}


async def show_plugins(request: PageRequest) -> Page:
    checks = await request.site.state.checks()
    rows = request.site.state.plugins()
    for row in rows:
        row["health"] = _health(row, checks)
    rows.sort(key=lambda plugin: (_ORDER[plugin["health"]], plugin["name"]))
    return admin_page("plugins", plugins=rows)


def _health(row: dict[str, Any], checks: dict[str, bool]) -> str:
    """Return `failing` if a chosen backend does not work or a call has failed, else `ok`, or "" if it is not used."""
    if not row["active"]:
        return ""
    chosen = [offer["kind"] for offer in row["offers"] if offer["chosen"]]
    works = all(checks.get(kind, True) for kind in chosen)
    return "ok" if works and not row["failures"] else "failing"


async def show_storage(request: PageRequest) -> Page:
    state = request.site.state
    checks = await state.checks()
    sizes = await request.read_page(measure) if checks.get("database") else None
    return admin_page("storage", sizes=sizes, checks=checks, disk=state.disk(), storage=state.storage)


# -- `/admin/quotas`: who uses how much of which quota -----------------------------------------------------------------


MOST = 25


async def show_quotas(request: PageRequest) -> Page:
    wanted = request.query.get("identity", "").strip()
    problems = {}
    uses: list[Use] = []
    try:
        uses = await (uses_of_caller(request, wanted) if wanted else uses_of(request))
    except SkilleryError as error:
        problems = {"identity": message_of(error)}
    shown = [use for use in uses if use.used or (wanted and use.limit)]
    return admin_page("quotas", uses=shown, wanted=wanted, problems=problems, most=MOST)


async def uses_of(request: PageRequest) -> list[Use]:
    """Return the uses of the identities and namespaces that keep most, the fullest first."""
    quotas = request.site.core.usage.quotas
    identities = await request.read_page(partial(list_uses, quotas=quotas, most=MOST))
    namespaces = await request.read_page(partial(list_namespace_uses, quotas=quotas, most=MOST))
    uses = [*chain.from_iterable(map(uses_of_identity, identities)), *map(use_of_namespace, namespaces)]
    return sorted(uses, key=lambda use: (use.part, use.used or 0), reverse=True)
