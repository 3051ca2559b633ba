"""Pages of environments, webhooks, garbage, plugins, storage, quotas and the current problems of a server."""

from __future__ import annotations

from functools import partial
from itertools import chain
from typing import Any

from skillery.environments.methods import ListEnvironments, RebuildEnvironment, list_environments, rebuild_environment
from skillery.errors import SkilleryError
from skillery.events import EVENT_TYPES
from skillery.identity.usage import list_namespace_uses, list_uses
from skillery.maintenance.garbage import CollectGarbage, Swept, collect_garbage
from skillery.maintenance.integrity import measure
from skillery.plugins.facts import ServerPlugin
from skillery.web.account import Use, use_of_namespace, uses_of_caller, uses_of_identity
from skillery.web.frame import Done, Page, PageRequest, SeeOther, message_of
from skillery.webhooks.targets import (
    AddedWebhook,
    AddWebhook,
    ListWebhooks,
    RemoveWebhook,
    TestWebhook,
    add_webhook,
    list_webhooks,
    remove_webhook,
    test_webhook,
)

# -- The layout of all pages of administrators -------------------------------------------------------------------------


TABS = {
    "": "Now",
    "tokens": "People and tokens",
    "secrets": "Secrets",
    "quotas": "Limits",
    "storage": "Storage",
    "environments": "Environments",
    "plugins": "Plugins",
    "webhooks": "Webhooks",
    "audit": "Audit trail",
}


def admin_page(tab: str, **values: Any) -> Page:
    """Return a page of admins. `tab` is a key of TABS, and `values` are for the template."""
    title = TABS[tab] if tab else "Admin"
    return Page(f"admin_{tab or 'overview'}.html", title, {"tab": tab, "tabs": TABS, **values}, "admin")


async def show_environments(request: PageRequest) -> Page:
    page = await request.do(list_environments, ListEnvironments(limit=100, cursor=request.query.get("cursor", "")))
    return admin_page("environments", environments=page.environments, next_cursor=page.next_cursor)


async def change_environments(request: PageRequest) -> SeeOther:
    form = await request.form()
    await request.do(rebuild_environment, RebuildEnvironment(name=form.get("name")))
    return SeeOther("/admin/environments", Done(f"The environment {form.get('name')} is being built."))


async def show_webhooks(request: PageRequest, added: AddedWebhook | None = None) -> Page:
    listed = (await request.do(list_webhooks, ListWebhooks())).webhooks
    return admin_page("webhooks", webhooks=listed, added=added, events=EVENT_TYPES)


async def change_webhooks(request: PageRequest) -> Page | SeeOther:
    """Add, remove or test a webhook. After adding, the page shows its secret once."""
    form = await request.form(most_fields=40)
    if form.get("action") == "test":
        test = await request.do(test_webhook, TestWebhook(id=form.get("id")))
        text = "The receiver has accepted the test event." if test.ok else f"The test failed: {test.error}"
        return SeeOther("/admin/webhooks", Done(text))
    request.require_recent_sign_in()
    if form.get("action") == "remove":
        await request.do(remove_webhook, RemoveWebhook(id=form.get("id")))
        return SeeOther("/admin/webhooks", Done("The webhook is removed."))
    params = AddWebhook(url=form.get("url").strip(), events=form.all("event"), skills=form.get("skills").split())
    return await show_webhooks(request, await request.do(add_webhook, params))


async def collect(request: PageRequest) -> SeeOther:
    await request.form()
    request.require_recent_sign_in()
    garbage = await request.do(collect_garbage, CollectGarbage())
    steps = sum(swept != Swept() for swept in garbage.removed.values())
    text = f"The garbage is collected: {steps} steps removed something." if steps else "There was no garbage."
    return SeeOther("/admin/storage", Done(text))


# -- `/admin/plugins` and `/admin/storage`: the plugins with their health, and the sizes of database and storage -------


# The order of plugins on the page, by their health.
_ORDER = {"failing": 0, "ok": 1, "": 2}


async def show_plugins(request: PageRequest) -> Page:
    checks = await request.site.state.checks()
    rows = [(plugin, _health(plugin, checks)) for plugin in request.site.state.plugins()]
    return admin_page("plugins", plugins=sorted(rows, key=lambda row: _ORDER[row[1]]))


def _health(plugin: ServerPlugin, checks: dict[str, bool]) -> str:
    """Return `failing` if a chosen backend of the plugin does not work or a call of the plugin has failed.

    Else return `ok`, or "" if the plugin is not active.
    """
    if not plugin.facts.active:
        return ""
    works = all(checks.get(offer.kind, True) for offer in plugin.facts.offers if offer.chosen)
    return "ok" if works and not plugin.failures else "failing"


async def show_storage(request: PageRequest) -> Page:
    state = request.site.state
    checks = await state.checks()
    sizes = await request.read_page(measure) if checks.get("database") else None
    garbage = None
    if sizes is not None and "garbage" in request.query:  # a dry run may read the whole storage
        removed = (await request.do(collect_garbage, CollectGarbage(dry_run=True))).removed
        garbage = {step: swept for step, swept in removed.items() if swept != Swept()}
    return admin_page("storage", sizes=sizes, checks=checks, disk=state.disk(), storage=state.storage, garbage=garbage)


# -- `/admin/quotas`: who uses how much of which quota -----------------------------------------------------------------


MOST = 25
"""The number of identities and of namespaces on the page, those with the highest use."""


async def show_quotas(request: PageRequest) -> Page:
    identity = request.query.get("identity", "").strip()
    uses: list[Use] = []
    try:
        uses = await (uses_of_caller(request, identity) if identity else uses_of(request))
    except SkilleryError as error:
        request.problems = {"identity": message_of(error)}
    shown = [use for use in uses if use.used or (identity and use.limit)]
    return admin_page("quotas", uses=shown, wanted=identity, most=MOST)


async def uses_of(request: PageRequest) -> list[Use]:
    """Return the uses of quotas by the MOST identities and namespaces that use most, the highest part of a quota
    first.
    """
    quotas = request.site.core.usage.quotas
    identities = await request.read_page(partial(list_uses, quotas=quotas, most=MOST))
    namespaces = await request.read_page(partial(list_namespace_uses, quotas=quotas, most=MOST))
    uses = [*chain.from_iterable(map(uses_of_identity, identities)), *map(use_of_namespace, namespaces)]
    return sorted(uses, key=lambda use: (use.part, use.used or 0), reverse=True)
