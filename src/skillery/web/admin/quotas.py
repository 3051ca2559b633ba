"""`/admin/quotas`: who uses how much of which quota."""

from __future__ import annotations

from functools import partial
from itertools import chain

from skillery.errors import SkilleryError
from skillery.identity.usage import list_namespace_uses, list_uses
from skillery.web.admin.layout import admin_page
from skillery.web.frame import Page, PageRequest, message_of
from skillery.web.quota_uses import Use, use_of_namespace, uses_of_caller, uses_of_identity

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
    identities = await request.read(partial(list_uses, quotas=quotas, most=MOST))
    namespaces = await request.read(partial(list_namespace_uses, quotas=quotas, most=MOST))
    uses = [*chain.from_iterable(map(uses_of_identity, identities)), *map(use_of_namespace, namespaces)]
    return sorted(uses, key=lambda use: (use.part, use.used or 0), reverse=True)
