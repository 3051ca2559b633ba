"""`/admin`: what needs an admin now, each with its remedy; how the server is protected, and the latest changes."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import NamedTuple

import msgspec

from skillery.environments.methods import ListEnvironments, list_environments
from skillery.maintenance.backups import last_backup
from skillery.registry.audit_trail import ListAudit, last_verified, list_audit
from skillery.skills.insight import GetActivity, get_activity
from skillery.versions.checks import list_affected
from skillery.versions.versions import ListVersions, list_versions
from skillery.web.admin import MOST, admin_page, uses_of
from skillery.web.display import ago, counted, size
from skillery.web.frame import Page, PageRequest
from skillery.webhooks.targets import ListWebhooks, list_webhooks

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
OLD_BACKUP = timedelta(days=7)
"""The age from which the newest backup is a problem."""
_PAGES = {"database": "/admin/storage", "storage": "/admin/storage"}


class Problem(NamedTuple):
    """A current problem of the server: its level, its remedy, and the address of the page about it."""

    level: int
    text: str
    remedy: str
    address: str


async def show_overview(request: PageRequest) -> Page:
    problems = [problem for find in FINDERS async for problem in find(request)]
    core, state = request.site.core, request.site.state
    backed_up_at = await request.read(last_backup)
    return admin_page(
        "",
        current=sorted(problems, key=lambda problem: problem.level),
        runner=core.runner,
        disk=state.disk(),
        checks=await state.checks(),
        scanners=[plugin.facts.name for plugin in state.plugins() if "before_publish" in plugin.facts.moments],
        signs=state.signs,
        activity=await request.do(get_activity, GetActivity(days=7, limit=1)),
        backed_up_at=backed_up_at,
        is_backup_new=backed_up_at is not None and not _is_old(backed_up_at),
        verified=await request.read(last_verified),
        latest=(await request.do(list_audit, ListAudit(outcome="done", limit=LATEST))).entries,
    )


async def _of_checks(request: PageRequest) -> AsyncIterator[Problem]:
    """Yield a problem for each failed readiness check."""
    for name, works in (await request.site.state.checks()).items():
        if not works and name == "workers":
            remedy = "Wait a few seconds: processes that have ended are replaced"
            yield Problem(BROKEN, "Not all processes of the server answer.", remedy, "/readyz")
        elif not works:
            remedy = f"Check the setting {name}: skillery doctor"
            yield Problem(BROKEN, f"The {name} does not work.", remedy, _PAGES.get(name, "/admin/plugins"))


async def _of_disk(request: PageRequest) -> AsyncIterator[Problem]:
    """Yield a problem if the disk is nearly full."""
    disk = request.site.state.disk()
    free = disk.free / max(1, disk.total)
    if free < LOW_DISK:
        free_text, total = size(disk.free, request.language), size(disk.total, request.language)
        text = f"The disk of the server has {free_text} left of {total}."
        remedy = "Collect the garbage, or make the disk larger"
        yield Problem(BROKEN if free < FULL_DISK else LOOK, text, remedy, "/admin/storage?garbage=shown#garbage")


async def _of_backups(request: PageRequest) -> AsyncIterator[Problem]:
    """Yield a problem if the newest backup is old. A server without backups is no problem: its home may be copied."""
    backed_up_at = await request.read(last_backup)
    if backed_up_at is not None and _is_old(backed_up_at):
        yield Problem(LOOK, f"The newest backup was made {ago(backed_up_at)}.", "Make one: skillery backup", "/admin")


def _is_old(backed_up_at: datetime) -> bool:
    return datetime.now(UTC) - backed_up_at >= OLD_BACKUP


async def _of_trail(request: PageRequest) -> AsyncIterator[Problem]:
    """Yield a problem if the last verification found a fault in the audit trail."""
    verified = await request.read(last_verified)
    if verified is not None and not verified.is_intact:
        text = f"The audit trail is broken after entry {verified.seq}."
        yield Problem(BROKEN, text, "Compare it with a backup", "/admin/audit#chain")


async def _of_runs(request: PageRequest) -> AsyncIterator[Problem]:
    """Yield a problem if the limit for the number of runs shortens the time for which runs are kept."""
    span = await request.site.state.span_of_runs()
    if span is not None:
        hours = max(1, round(span.total_seconds() / 3600))
        text = f"Runs are kept for {counted(hours, 'hour')} only: runs.keep_count shortens runs.keep_days."
        yield Problem(LOOK, text, "Raise runs.keep_count", "/runs")


async def _of_plugins(request: PageRequest) -> AsyncIterator[Problem]:
    """Yield a problem for each plugin that has failed since the start of the server."""
    for plugin in request.site.state.plugins():
        count = sum(failure.count for failure in plugin.failures)
        if count:
            times = "once" if count == 1 else f"{count} times"
            text = f"The plugin {plugin.facts.name} has failed {times} since the start of the server."
            hangs = any(failure.reason == "hangs" for failure in plugin.failures)
            yield Problem(FAILING if hangs else LOOK, text, "See which functions fail", "/admin/plugins")


async def _of_environments(request: PageRequest) -> AsyncIterator[Problem]:
    for environment in (await request.do(list_environments, ListEnvironments(limit=100))).environments:
        if environment.state == "failed":
            text = f"The environment {environment.name} could not be built."
            yield Problem(BROKEN, text, "See its error, and build it again", "/admin/environments")


async def _of_webhooks(request: PageRequest) -> AsyncIterator[Problem]:
    """Yield a problem for each webhook whose events are not delivered."""
    address = "/admin/webhooks"
    for webhook in (await request.do(list_webhooks, ListWebhooks())).webhooks:
        url = webhook.url
        if webhook.state == "gone":
            yield Problem(BROKEN, f"The webhook {url} is gone.", "Remove it", address)
        elif webhook.state == "failing":
            yield Problem(FAILING, f"The webhook {url} fails: {webhook.last_error}", "Check the receiver", address)
        elif webhook.dead_letters:
            text = f"{webhook.dead_letters} events for {url} were not delivered."
            yield Problem(LOOK, text, f"List them: skillery webhook dead {webhook.id}", address)


async def _of_quotas(request: PageRequest) -> AsyncIterator[Problem]:
    """Yield a problem for each quota that is nearly used up."""
    for use in await uses_of(request):
        if use.part >= NEAR:
            is_full = use.part >= 1
            quota = use.quota.replace("_", " ")
            text = f"{use.of} {'has used up' if is_full else 'has almost used up'} its quota of {quota}."
            yield Problem(FAILING if is_full else LOOK, text, "See who uses it", "/admin/quotas")


async def _of_vulnerabilities(request: PageRequest) -> AsyncIterator[Problem]:
    """Yield a problem for each of the newest versions whose packages have known vulnerabilities."""
    for name, version, ids in await request.read_page(partial(list_affected, limit=MOST)):
        text = f"{name} {version} has packages with known vulnerabilities: {', '.join(ids[:5])}."
        yield Problem(LOOK, text, "Look at its evidence", f"/s/{name}@{version}")


async def _of_reviews(request: PageRequest) -> AsyncIterator[Problem]:
    """Yield a problem if versions wait for a review."""
    waiting = (await request.do(list_versions, ListVersions(waiting=True, limit=100))).versions
    if waiting:
        count = "100 or more" if len(waiting) == 100 else str(len(waiting))
        text = "One version waits for a review." if len(waiting) == 1 else f"{count} versions wait for a review."
        yield Problem(WAITING, text, "Review the oldest", "/review")


async def _of_refusals(request: PageRequest) -> AsyncIterator[Problem]:
    """Yield a problem with its main cause if many requests were refused in the last 24 hours."""
    refused = (await request.do(list_audit, ListAudit(outcome="refused", since="24h", limit=1000))).entries
    causes: Counter[tuple[str, str, str]] = Counter()
    for entry in refused:
        token = (msgspec.json.decode(entry.after) or {}).get("token", "")
        caller = "" if token else entry.identity.name if entry.identity else entry.address or ""
        causes[token, caller, "" if token else entry.type or ""] += entry.count
    if (total := causes.total()) >= MANY_REFUSALS:
        ((token, caller, kind), count) = causes.most_common(1)[0]
        cause = f"{count} of them {kind.replace('_', ' ')}{f', from {caller}' if caller else ''}"
        text = f"{total} requests were refused in the last 24 hours, {cause}."
        if token:
            text = f"{count} of {total} refused requests in the last 24 hours had the {token}."
        yield Problem(LOOK, text, "See who sent them", "/admin/audit?outcome=refused&since=24h")


FINDERS = (
    _of_checks,
    _of_disk,
    _of_trail,
    _of_backups,
    _of_plugins,
    _of_runs,
    _of_environments,
    _of_webhooks,
    _of_quotas,
    _of_vulnerabilities,
    _of_reviews,
    _of_refusals,
)
"""Functions that yield the current problems of the server."""
