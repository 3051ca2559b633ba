"""`/admin/quotas`: who uses how much of which quota."""

from __future__ import annotations

from functools import partial

import msgspec

from skillery.identity.usage import list_namespace_uses, list_uses
from skillery.web.admin.layout import admin_page
from skillery.web.frame import CallFailed, Page, PageRequest
from skillery.web.quota_uses import Use, uses_of_result

MOST = 25


async def show_quotas(request: PageRequest) -> Page:
    wanted = request.query.get("identity", "").strip()
    problems = {}
    uses: list[Use] = []
    try:
        uses = await _of_one(request, wanted) if wanted else await uses_of(request)
    except CallFailed as failed:
        problems = {"identity": f"{failed.message}. {failed.hint}".strip()}
    shown = [use for use in uses if use.used or (wanted and use.limit)]
    return admin_page("quotas", uses=shown, wanted=wanted, problems=problems, most=MOST)


async def uses_of(request: PageRequest) -> list[Use]:
    """Return the uses of the identities and namespaces that keep most, the fullest first."""
    core = request.site.core
    identities = await core.registry.read_page(partial(list_uses, quotas=core.usage.quotas, most=MOST))
    namespaces = await core.registry.read_page(partial(list_namespace_uses, quotas=core.usage.quotas, most=MOST))
    found = [one for use in identities for one in uses_of_result(msgspec.to_builtins(use))]
    found += [
        Use(namespace.namespace, "bundle_bytes", namespace.bundle_bytes.used, namespace.bundle_bytes.limit)
        for namespace in namespaces
    ]
    return sorted(found, key=lambda one: (one.part, one.used or 0), reverse=True)


async def _of_one(request: PageRequest, identity: str) -> list[Use]:
    return list(uses_of_result(await request.call("get_usage", {"identity": identity})))
