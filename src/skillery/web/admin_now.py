"""`/admin`: what needs an admin now, the worst first, each with its remedy; how the server is protected, and the latest
changes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Iterator
from functools import partial
from typing import NamedTuple

from skillery.environments.methods import ListEnvironments, list_environments
from skillery.registry.audit_trail import ListAudit, list_audit
from skillery.versions.checks import list_affected
from skillery.versions.versions import ListVersions, list_versions
from skillery.web.admin import MOST, admin_page, uses_of
from skillery.web.display import counted, size
from skillery.web.frame import Page, PageRequest
from skillery.webhooks.targets import ListWebhooks, Webhook, list_webhooks

BROKEN, FAILING, LOOK, WAITING = range(4)
"""Levels of problems, the worst first."""
LATEST = 10
"""The number of changes on the page."""
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
    core, state = request.site.core, request.site.state
    return admin_page(
        "",
        current=sorted(problems, key=lambda problem: problem.level),
        runner=core.runner,
        disk=state.disk(),
        checks=await state.checks(),
        scanners=[plugin.facts.name for plugin in state.plugins() if "before_publish" in plugin.facts.moments],
        signs=state.signs,
        latest=(await request.do(list_audit, ListAudit(outcome="done", limit=LATEST))).entries,
    )


async def _problems(request: PageRequest) -> AsyncIterator[Problem]:
    """Yield all current problems of the server, in no particular order."""
    for name, works in (await request.site.state.checks()).items():
        if not works:
            yield _of_check(name)
    for problems in (_of_disk(request), _of_plugins(request)):
        for problem in problems:
            yield problem
    for find in (_of_runs, _of_environments, _of_webhooks, _of_quotas, _of_vulnerabilities, _of_reviews, _of_refusals):
        for problem in await find(request):
            yield problem


def _of_check(name: str) -> Problem:
    """Return the problem of a failed readiness check."""
    if name == "workers":
        remedy = "Wait a few seconds: processes that have ended are replaced"
        return Problem(BROKEN, "Not all processes of the server answer.", remedy, "/readyz")
    remedy = f"Check the setting {name}: skillery doctor"
    return Problem(BROKEN, f"The {name} does not work.", remedy, _PAGES.get(name, "/admin/plugins"))


def _of_disk(request: PageRequest) -> Iterator[Problem]:
    """Yield a problem if the disk is nearly full."""
    disk = request.site.state.disk()
    free = disk.free / max(1, disk.total)
    if free < LOW_DISK:
        free_text, total = size(disk.free, request.language), size(disk.total, request.language)
        text = f"The disk of the server has {free_text} left of {total}."
        level = BROKEN if free < FULL_DISK else LOOK
        yield Problem(
            level, text, "Collect the garbage, or make the disk larger", "/admin/storage?garbage=shown#garbage"
        )


async def _of_runs(request: PageRequest) -> list[Problem]:
    """Return a problem if the limit for the number of runs shortens the time for which runs are kept."""
    span = await request.site.state.span_of_runs()
    if span is None:
        return []
    hours = max(1, round(span.total_seconds() / 3600))
    text = f"Runs are kept for {counted(hours, 'hour')} only: runs.keep_count shortens runs.keep_days."
    return [Problem(LOOK, text, "Raise runs.keep_count", "/runs")]


def _of_plugins(request: PageRequest) -> Iterator[Problem]:
    """Yield a problem for each plugin that has failed since the start of the server."""
    for plugin in request.site.state.plugins():
        count = sum(failure.count for failure in plugin.failures)
        if count:
            times = "once" if count == 1 else f"{count} times"
            text = f"The plugin {plugin.facts.name} has failed {times} since the start of the server."
            hangs = any(failure.reason == "hangs" for failure in plugin.failures)
            remedy = "See which functions fail"
            yield Problem(FAILING if hangs else LOOK, text, remedy, "/admin/plugins")


async def _of_environments(request: PageRequest) -> list[Problem]:
    environments = (await request.do(list_environments, ListEnvironments(limit=100))).environments
    remedy = "See its error, and build it again"
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
        return Problem(BROKEN, f"The webhook {url} is gone.", "Remove it", address)
    if webhook.state == "failing":
        return Problem(FAILING, f"The webhook {url} fails: {webhook.last_error}", "Check the receiver", address)
    if webhook.dead_letters:
        text = f"{webhook.dead_letters} events for {url} were not delivered."
        return Problem(LOOK, text, f"List them: skillery webhook dead {webhook.id}", address)
    return None


async def _of_quotas(request: PageRequest) -> list[Problem]:
    """Return a problem for each quota that is nearly used up."""
    problems = []
    for use in await uses_of(request):
        if use.part >= NEAR:
            is_full = use.part >= 1
            text = f"{use.of} {'has used up' if is_full else 'has almost used up'} its quota of {use.words}."
            problems.append(Problem(FAILING if is_full else LOOK, text, "See who uses it", "/admin/quotas"))
    return problems


async def _of_vulnerabilities(request: PageRequest) -> list[Problem]:
    """Return a problem for each of the newest versions whose packages have known vulnerabilities."""
    affected = await request.read_page(partial(list_affected, limit=MOST))
    remedy = "Look at its evidence"
    return [
        Problem(
            LOOK,
            f"{name} {version} has packages with known vulnerabilities: {', '.join(ids[:5])}.",
            remedy,
            f"/s/{name}@{version}",
        )
        for name, version, ids in affected
    ]


async def _of_reviews(request: PageRequest) -> list[Problem]:
    """Return a problem if versions wait for a review."""
    waiting = (await request.do(list_versions, ListVersions(waiting=True, limit=100))).versions
    if not waiting:
        return []
    count = "100 or more" if len(waiting) == 100 else str(len(waiting))
    text = "One version waits for a review." if len(waiting) == 1 else f"{count} versions wait for a review."
    return [Problem(WAITING, text, "Review the oldest", "/review")]


async def _of_refusals(request: PageRequest) -> list[Problem]:
    """Return a problem with its main cause if many requests were refused in the last 24 hours."""
    refused = (await request.do(list_audit, ListAudit(outcome="refused", since="24h", limit=1000))).entries
    causes: Counter[tuple[str, str]] = Counter()
    for entry in refused:
        causes[entry.identity.name if entry.identity else entry.address or "", entry.type or ""] += entry.count
    if (total := causes.total()) < MANY_REFUSALS:
        return []
    ((caller, kind), count) = causes.most_common(1)[0]
    cause = f"{count} of them {kind.replace('_', ' ')}{f', from {caller}' if caller else ''}"
    address = "/admin/audit?outcome=refused&since=24h"
    text = f"{total} requests were refused in the last 24 hours, {cause}."
    return [Problem(LOOK, text, "See who sent them", address)]
