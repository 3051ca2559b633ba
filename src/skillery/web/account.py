"""`/account`: who the user is, what the user may do, and the settings of the browser."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

from msgspec.structs import asdict

from skillery.errors import SkilleryError
from skillery.identity.usage import GetUsage, IdentityUse, NamespaceUse, Used, get_usage
from skillery.web.frame import Done, Page, PageRequest, SeeOther
from skillery.web.sending import KEYS_COOKIE, THEME_COOKIE, THEMES

# -- Uses of quotas, for the account of a user and for admins ----------------------------------------------------------


class Use(NamedTuple):
    """The use of one quota by an identity or a namespace."""

    of: str
    """The name of the identity or namespace."""
    quota: str
    amount: Used

    @property
    def part(self) -> float:
        """The used part of the limit, from 0.0, or 0.0 if there is no limit."""
        return (self.amount.used or 0) / self.amount.limit if self.amount.limit else 0.0


def uses_of_identity(usage: IdentityUse) -> Iterator[Use]:
    """Yield the uses of quotas in a result of `get_usage`, those of namespaces last."""
    for name, amount in asdict(usage).items():
        if isinstance(amount, Used):
            yield Use(usage.identity, name, amount)
    yield from map(use_of_namespace, usage.namespaces)


def use_of_namespace(usage: NamespaceUse) -> Use:
    """Return the use of the quota for the versions of a namespace."""
    return Use(usage.namespace, "bundle_bytes", usage.bundle_bytes)


async def show_account(request: PageRequest) -> Page:
    """Show the identity of the user, its rights and quotas, the settings of the browser, and the sessions."""
    session = request.visit.session
    sessions = await request.site.sessions.of_identity(request.identity.name) if session is not None else []
    uses: list[Use] = []
    with suppress(SkilleryError):  # the caller may not read them
        uses = list(uses_of_identity(await request.do(get_usage, GetUsage())))
    values = {"uses": uses, "themes": THEMES, "session": session, "sessions": sessions}
    return Page("account.html", "Your account", values, "account")


async def change_account(request: PageRequest) -> SeeOther:
    """Store the theme and the keys setting in cookies of this browser, or end the other sessions of the user."""
    form = await request.form()
    session = request.visit.session
    if form.get("action") == "end_others" and session is not None:
        ended = await request.site.sessions.end_others(session)
        text = "One other browser is" if ended == 1 else f"{ended} other browsers are"
        return SeeOther("/account", Done(f"{text} signed out."))
    cookies = []
    if form.get("theme") in THEMES:
        cookies.append(request.visit.cookies.setting(THEME_COOKIE, form.get("theme")))
    if form.get("keys") in {"on", "off"}:
        cookies.append(request.visit.cookies.setting(KEYS_COOKIE, form.get("keys")))
    return SeeOther("/account", Done("The settings of this browser are saved."), tuple(cookies))
