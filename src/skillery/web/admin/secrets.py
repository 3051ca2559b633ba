"""`/admin/secrets`: secrets are granted to skills. Values are never shown, and set in a shell only."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

from skillery.errors import SkilleryError
from skillery.formats.secret_names import parse_grantee, parse_secret_name
from skillery.identity import secret_grants
from skillery.web.admin.layout import admin_page, asks_again
from skillery.web.frame import Done, Page, PageRequest, SeeOther, message_of


async def show_secrets(request: PageRequest) -> Page:
    return await _secrets(request)


async def _secrets(request: PageRequest, **values: Any) -> Page:
    grants = await request.read(secret_grants.list_grants)
    with_value = await asyncio.to_thread(request.site.state.secrets)
    granted = {grant.secret for grant in grants}
    shared = {"with_value": with_value, "ungranted": sorted(set(with_value) - granted), "typed": {}}
    return admin_page("secrets", grants=grants, **{**shared, **values})


async def change_secrets(request: PageRequest) -> Page | SeeOther:
    form = await request.form()
    again = asks_again(request, form)
    if again is not None:
        return again
    secret, grantee = form.get("secret").strip(), form.get("grantee").strip()
    actor, registry = request.identity, request.site.core.registry
    if form.get("action") == "revoke":
        await registry.write(partial(secret_grants.revoke, actor=actor, secret=secret, grantee=grantee))
        return SeeOther("/admin/secrets", Done(f"{secret} is no longer granted to {grantee}."))
    problems = _problems(secret, grantee)
    if problems:
        return await _secrets(request, problems=problems, typed=dict(form.pairs))
    values = partial(secret_grants.grant, actor=actor, secret=secret, grantee=grantee, granted_by=actor.name)
    words = "is granted" if await registry.write(values) else "was already granted"
    return SeeOther("/admin/secrets", Done(f"{secret} {words} to {grantee}."))


def _problems(secret: str, grantee: str) -> dict[str, str]:
    problems = {}
    for field, parse, text in (("secret", parse_secret_name, secret), ("grantee", parse_grantee, grantee)):
        try:
            parse(text)
        except SkilleryError as error:
            problems[field] = message_of(error)
    return problems
