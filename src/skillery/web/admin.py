"""Pages of environments, webhooks, garbage, plugins, storage, quotas and the current problems of a server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

from skillery.environments.methods import ListEnvironments, RebuildEnvironment, list_environments, rebuild_environment
from skillery.errors import SkilleryError
from skillery.identity.usage import list_namespace_uses, list_uses
from skillery.maintenance.garbage import CollectGarbage, Swept, collect_garbage
from skillery.maintenance.integrity import measure
from skillery.plugins.facts import ServerPlugin
from skillery.registry.audit_trail import ListAudit, list_audit
from skillery.versions.versions import ListVersions, list_versions
from skillery.web.account import Use, use_of_namespace, uses_of_caller, uses_of_identity
from skillery.web.display import size
from skillery.web.failures import Unsent, too_old_page
from skillery.web.frame import Done, Form, Page, PageRequest, SeeOther, message_of
from skillery.webhooks.targets import ListWebhooks, TestWebhook, Webhook, list_webhooks, test_webhook

# -- What all pages of administrators share: the layout, who may open them, and who may change something ---------------


RECENT = timedelta(minutes=15)
"""The maximum age of a sign-in that may change tokens, secrets and garbage."""
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
    """Return a page of admins. `tab` is a key of TABS, and `values` are for the template.

    In `values`, `problem` is a message at the top of the page, and `problems` has messages by the id of their field.
    With either, the status is 400.
    """
    shared = {"tab": tab, "tabs": TABS, "problem": "", "problems": {}}
    status = 400 if values.get("problem") or values.get("problems") else 200
    title = TABS[tab] if tab else "Admin"
    return Page(f"admin_{tab or 'overview'}.html", title, {**shared, **values}, "admin", status)


def asks_again(request: PageRequest, form: Form) -> Page | None:
    """Return the sign-in page if the session is too old for a change, else None. The page keeps the text of the form.

    Callers without a session cannot sign in, so their requests pass.
    """
    session = request.visit.session
    if session is None or datetime.now(UTC) - session.made_at <= RECENT:
        return None
    return too_old_page(request, Unsent(request.address, list(form.pairs)))


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
    return admin_page("storage", sizes=sizes, checks=checks, disk=state.disk(), storage=state.storage)


# -- `/admin/quotas`: who uses how much of which quota -----------------------------------------------------------------


MOST = 25
"""The number of identities and of namespaces on the page, those with the highest use."""


async def show_quotas(request: PageRequest) -> Page:
    identity = request.query.get("identity", "").strip()
    problems = {}
    uses: list[Use] = []
    try:
        uses = await (uses_of_caller(request, identity) if identity else uses_of(request))
    except SkilleryError as error:
        problems = {"identity": message_of(error)}
    shown = [use for use in uses if use.used or (identity and use.limit)]
    return admin_page("quotas", uses=shown, wanted=identity, problems=problems, most=MOST)


async def uses_of(request: PageRequest) -> list[Use]:
    """Return the uses of quotas by the MOST identities and namespaces that use most, the highest part of a quota
    first.
    """
    quotas = request.site.core.usage.quotas
    identities = await request.read_page(partial(list_uses, quotas=quotas, most=MOST))
    namespaces = await request.read_page(partial(list_namespace_uses, quotas=quotas, most=MOST))
    uses = [*chain.from_iterable(map(uses_of_identity, identities)), *map(use_of_namespace, namespaces)]
    return sorted(uses, key=lambda use: (use.part, use.used or 0), reverse=True)


# -- `/admin`: the current problems of the server, the worst first, each with its remedy -------------------------------


BROKEN, FAILING, LOOK, WAITING = range(4)
"""Levels of problems, the worst first."""
MANY_REFUSALS = 10
"""The number of refused requests in 24 hours that is a problem."""
NEAR = 0.8
"""From this part of a quota on, its use is a problem."""
LOW_DISK, FULL_DISK = 0.1, 0.02
"""Below these free parts, a disk is a problem: one to look at, and one that breaks the server."""
_PAGES = {"database": "/admin/storage", "storage": "/admin/storage"}


class Problem(NamedTuple):
    """A current problem of the server: its level, its remedy, and the address of the page about it."""

    level: int
    text: str
    remedy: str
    address: str


async def show_overview(request: PageRequest) -> Page:
    problems = [problem async for problem in _problems(request)]
    runner = request.site.core.runner
    return admin_page(
        "",
        current=sorted(problems, key=lambda problem: problem.level),
        active=runner.active,
        waiting=runner.waiting,
    )


async def _problems(request: PageRequest) -> AsyncIterator[Problem]:
    """Yield all current problems of the server, in no particular order."""
    for name, works in (await request.site.state.checks()).items():
        if not works:
            yield _of_check(name)
    for problems in (_of_disk(request), _of_plugins(request)):
        for problem in problems:
            yield problem
    for find in (_of_runs, _of_environments, _of_webhooks, _of_quotas, _of_reviews, _of_refusals):
        for problem in await find(request):
            yield problem


def _of_check(name: str) -> Problem:
    """Return the problem of a failed readiness check."""
    if name == "workers":
        remedy = "Wait a few seconds: the server replaces processes that have ended. Its log has the reason."
        return Problem(BROKEN, "Not all processes of the server answer.", remedy, "/readyz")
    remedy = f"Check the setting {name} with skillery doctor. The log of the server has the reason."
    return Problem(BROKEN, f"The {name} does not work.", remedy, _PAGES.get(name, "/admin/plugins"))


def _of_disk(request: PageRequest) -> Iterator[Problem]:
    """Yield a problem if the disk is nearly full."""
    disk = request.site.state.disk()
    free = disk.free / max(1, disk.total)
    if free < LOW_DISK:
        free_text, total = size(disk.free, request.language), size(disk.total, request.language)
        text = f"The disk of the server has {free_text} left of {total}."
        level = BROKEN if free < FULL_DISK else LOOK
        yield Problem(level, text, "Collect the garbage, or make the disk larger.", "/admin/gc")


async def _of_runs(request: PageRequest) -> list[Problem]:
    """Return a problem if the limit for the number of runs shortens the time for which runs are kept."""
    span = await request.site.state.span_of_runs()
    if span is None:
        return []
    hours = max(1, round(span.total_seconds() / 3600))
    text = (
        f"Runs are kept for {hours} {'hour' if hours == 1 else 'hours'} only: runs.keep_count shortens runs.keep_days."
    )
    return [Problem(LOOK, text, "Set runs.keep_count to 0 or to a higher number.", "/runs")]


def _of_plugins(request: PageRequest) -> Iterator[Problem]:
    """Yield a problem for each plugin that has failed since the start of the server."""
    for plugin in request.site.state.plugins():
        count = sum(failure.count for failure in plugin.failures)
        if count:
            times = "once" if count == 1 else f"{count} times"
            text = f"The plugin {plugin.facts.name} has failed {times} since the start of the server."
            hangs = any(failure.reason == "hangs" for failure in plugin.failures)
            remedy = "See which of its functions fail. The log of the server has each error."
            yield Problem(FAILING if hangs else LOOK, text, remedy, "/admin/plugins")


async def _of_environments(request: PageRequest) -> list[Problem]:
    environments = (await request.do(list_environments, ListEnvironments(limit=100))).environments
    remedy = "See its error, correct it, and build it again."
    return [
        Problem(BROKEN, f"The environment {environment.name} could not be built.", remedy, "/admin/environments")
        for environment in environments
        if environment.state == "failed"
    ]


async def _of_webhooks(request: PageRequest) -> list[Problem]:
    webhooks = (await request.do(list_webhooks, ListWebhooks())).webhooks
    return [problem for webhook in webhooks if (problem := _of_webhook(webhook)) is not None]


def _of_webhook(webhook: Webhook) -> Problem | None:
    """Return the problem of a webhook, or None if its events are delivered."""
    address, url = "/admin/webhooks", webhook.url
    if webhook.state == "gone":
        return Problem(BROKEN, f"The webhook {url} is gone.", f"Remove it: skillery webhook rm {webhook.id}", address)
    if webhook.state == "failing":
        return Problem(FAILING, f"The webhook {url} fails: {webhook.last_error}", "Check the receiver.", address)
    if webhook.dead_letters:
        text = f"{webhook.dead_letters} events for {url} were not delivered."
        return Problem(LOOK, text, f"List the events: skillery webhook dead {webhook.id}", address)
    return None


async def _of_quotas(request: PageRequest) -> list[Problem]:
    """Return a problem for each quota that is nearly used up."""
    problems = []
    for use in await uses_of(request):
        if use.part >= NEAR:
            is_full = use.part >= 1
            text = f"{use.of} {'has used up' if is_full else 'has almost used up'} its quota of {use.words}."
            problems.append(
                Problem(
                    FAILING if is_full else LOOK, text, "Delete unneeded data, or raise the quota.", "/admin/quotas"
                )
            )
    return problems


async def _of_reviews(request: PageRequest) -> list[Problem]:
    """Return a problem if versions wait for a review."""
    waiting = (await request.do(list_versions, ListVersions(waiting=True, limit=100))).versions
    if not waiting:
        return []
    count = "100 or more" if len(waiting) == 100 else str(len(waiting))
    text = "One version waits for a review." if len(waiting) == 1 else f"{count} versions wait for a review."
    return [Problem(WAITING, text, "Review the oldest first.", "/review")]


async def _of_refusals(request: PageRequest) -> list[Problem]:
    """Return a problem if many requests were refused in the last 24 hours."""
    refused = await request.do(list_audit, ListAudit(outcome="refused", since="24h", limit=MANY_REFUSALS))
    if len(refused.entries) < MANY_REFUSALS:
        return []
    address = "/admin/audit?outcome=refused&since=24h"
    return [Problem(LOOK, "Many requests were refused in the last 24 hours.", "Read who sent them, and why.", address)]
