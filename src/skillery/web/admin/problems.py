"""`/admin`: the current problems of the server, the worst first, each with its remedy."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import NamedTuple

from skillery.environments.methods import ListEnvironments, list_environments
from skillery.registry.audit_trail import ListAudit, list_audit
from skillery.versions.versions import ListVersions, list_versions
from skillery.web.admin.layout import admin_page
from skillery.web.admin.upkeep import uses_of
from skillery.web.display import size
from skillery.web.frame import Page, PageRequest
from skillery.webhooks.targets import ListWebhooks, Webhook, list_webhooks

BROKEN, FAILING, LOOK, WAITING = range(4)
MANY_REFUSALS = 10
NEAR = 0.8
"""The part of a quota that is a problem."""
LOW_DISK, FULL_DISK = 0.1, 0.02
"""The free part of a disk that is a problem."""
_PAGES = {"database": "/admin/storage", "storage": "/admin/storage"}


class Problem(NamedTuple):
    """A current problem of the server, with its remedy. Level 0 is the worst."""

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
    if name == "workers":
        remedy = "Wait a few seconds: the server replaces processes that have ended. Its log has the reason."
        return Problem(BROKEN, "Not all processes of the server answer.", remedy, "/readyz")
    remedy = f"Check the setting {name} with skillery doctor. The log of the server has the reason."
    return Problem(BROKEN, f"The {name} does not work.", remedy, _PAGES.get(name, "/admin/plugins"))


def _of_disk(request: PageRequest) -> Iterator[Problem]:
    disk = request.site.state.disk()
    free = disk.free / max(1, disk.total)
    if free < LOW_DISK:
        left, total = size(disk.free, request.language), size(disk.total, request.language)
        text = f"The disk of the server has {left} left of {total}."
        level = BROKEN if free < FULL_DISK else LOOK
        yield Problem(level, text, "Collect the garbage, or make the disk larger.", "/admin/gc")


async def _of_runs(request: PageRequest) -> list[Problem]:
    span = await request.site.state.span_of_runs()
    if span is None:
        return []
    hours = max(1, round(span.total_seconds() / 3600))
    text = (
        f"Runs are kept for {hours} {'hour' if hours == 1 else 'hours'} only: runs.keep_count shortens runs.keep_days."
    )
    return [Problem(LOOK, text, "Set runs.keep_count to 0 or to a higher number.", "/runs")]


def _of_plugins(request: PageRequest) -> Iterator[Problem]:
    for plugin in request.site.state.plugins():
        count = sum(failure["count"] for failure in plugin["failures"])
        if count:
            times = "once" if count == 1 else f"{count} times"
            text = f"The plugin {plugin['name']} has failed {times} since the start of the server."
            hangs = any(failure["reason"] == "hangs" for failure in plugin["failures"])
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
    waiting = (await request.do(list_versions, ListVersions(status="in_review", limit=100))).versions
    if not waiting:
        return []
    count = "100 or more versions wait" if len(waiting) == 100 else f"{len(waiting)} versions wait"
    text = "One version waits" if len(waiting) == 1 else count
    return [Problem(WAITING, f"{text} for a review.", "Review the oldest first.", "/review")]


async def _of_refusals(request: PageRequest) -> list[Problem]:
    refused = await request.do(list_audit, ListAudit(outcome="refused", since="24h", limit=MANY_REFUSALS))
    if len(refused.entries) < MANY_REFUSALS:
        return []
    address = "/admin/audit?outcome=refused&since=24h"
    return [Problem(LOOK, "Many requests were refused in the last 24 hours.", "Read who sent them, and why.", address)]
