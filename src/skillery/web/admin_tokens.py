"""`/admin/tokens`, `/admin/secrets` and `/admin/audit`: who may do what, and who did what."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any, cast
from urllib.parse import urlencode

from skillery.audit import Head
from skillery.errors import InvalidParams, SkilleryError
from skillery.formats.names import parse_grantee, parse_secret_name
from skillery.identity import secret_grants
from skillery.identity.offboarding import RevokeToken, revoke_token
from skillery.identity.secret_grants import check_value
from skillery.identity.token_methods import CreateToken, ListTokens, create_token, list_tokens
from skillery.identity.tokens import REMARKS, SCOPES, remarked
from skillery.methods.table import METHODS
from skillery.registry.audit_trail import AuditPage, ListAudit, list_audit
from skillery.web.admin import admin_page, asks_again
from skillery.web.frame import Done, Form, Page, PageRequest, SeeOther, message_of
from skillery.web.visits import VALUE_OF_SECRET

MOST = 500
"""The maximum number of tokens on the page."""
FIELDS = ("name", "scopes", "namespaces", "expires")
"""The params of `create_token` that have a field with the same id on the page."""


async def show_tokens(request: PageRequest) -> Page:
    return await _tokens(request)


async def _tokens(request: PageRequest, **values: Any) -> Page:
    """Return the page of tokens. `values` replaces values of the template."""
    tokens = (await request.do(list_tokens, ListTokens())).tokens
    tokens.sort(key=lambda token: (token.status != "live", token.name))
    defaults = {
        "tokens": tokens[:MOST],
        "count": len(tokens),
        "scopes": SCOPES,
        "remarks": REMARKS,
        "remarked": remarked(tokens),
        "made": None,
        "typed": {},
        "chosen": [],
    }
    return admin_page("tokens", **{**defaults, **values})


async def change_tokens(request: PageRequest) -> Page | SeeOther:
    """Create or revoke a token. After creating, the page shows the token once."""
    form = await request.form(most_fields=40)
    again = asks_again(request, form)
    if again is not None:
        return again
    if form.get("action") == "revoke":
        revoked = await request.do(revoke_token, RevokeToken(id=form.get("id")))
        return SeeOther("/admin/tokens", Done(f"The token {revoked.id} of {revoked.name} is revoked."))
    typed = {"typed": dict(form.pairs), "chosen": form.all("scope")}
    if not form.has("scope"):
        return await _tokens(request, problems={"scopes": "Choose at least one scope."}, **typed)
    try:
        created = await request.do(create_token, _params(form))
    except SkilleryError as error:
        field = str(error.data.get("param", ""))
        return await _tokens(request, problems={field if field in FIELDS else "": message_of(error)}, **typed)
    # The only page with the token: pages are never stored by browsers.
    return await _tokens(request, made=created)


def _params(form: Form) -> CreateToken:
    """Return the params of `create_token` from the form."""
    return CreateToken(
        name=form.get("name").strip(),
        scopes=form.all("scope"),
        namespaces=form.get("namespaces").split(),
        kind=cast("Any", form.get("kind") or "person"),  # the call refuses other kinds
        expires=form.get("expires").strip(),
    )


# -- `/admin/secrets`: secrets are granted to skills. Values are never shown -------------------------------------------


async def show_secrets(request: PageRequest) -> Page:
    return await _secrets(request)


async def _secrets(request: PageRequest, **values: Any) -> Page:
    """Return the page of secret grants. `values` replaces values of the template."""
    grants = await request.read(secret_grants.list_grants)
    with_value = await asyncio.to_thread(request.site.state.secrets)
    granted = {grant.secret for grant in grants}
    defaults = {"with_value": with_value, "ungranted": sorted(set(with_value) - granted), "typed": {}}
    return admin_page("secrets", grants=grants, **{**defaults, **values})


async def change_secrets(request: PageRequest) -> Page | SeeOther:
    """Set the value of a secret, grant a secret to a skill, or revoke the grant."""
    form = await request.form()
    again = asks_again(request, form)
    if again is not None:
        return again
    secret, grantee = form.get("secret").strip(), form.get("grantee").strip()
    if form.get("action") == "set":
        return await _set_value(request, secret, form.get(VALUE_OF_SECRET))
    actor, registry = request.identity, request.site.core.registry
    if form.get("action") == "revoke":
        await registry.write(partial(secret_grants.revoke, actor=actor, secret=secret, grantee=grantee))
        return SeeOther("/admin/secrets", Done(f"{secret} is no longer granted to {grantee}."))
    problems = _problems(secret, grantee)
    if problems:
        return await _secrets(request, problems=problems, typed=dict(form.pairs))
    work = partial(secret_grants.grant, actor=actor, secret=secret, grantee=grantee, granted_by=actor.name)
    words = "is granted" if await registry.write(work) else "was already granted"
    return SeeOther("/admin/secrets", Done(f"{secret} {words} to {grantee}."))


async def _set_value(request: PageRequest, name: str, value: str) -> Page | SeeOther:
    """Set the value of a secret. The page of a failure does not contain the value."""
    try:
        field = "name"
        parse_secret_name(name)
        field = VALUE_OF_SECRET
        check_value(name, value)
        await asyncio.to_thread(request.site.state.set_secret, request.identity, name, value)
    except SkilleryError as error:
        return await _secrets(request, problems={field: message_of(error)}, typed={"name": name})
    return SeeOther("/admin/secrets", Done(f"{name} is set. A run gets it if a grant permits it."))


def _problems(secret: str, grantee: str) -> dict[str, str]:
    """Return the messages about an invalid secret name or grantee, by the id of the field."""
    problems = {}
    for field, parse, text in (("secret", parse_secret_name, secret), ("grantee", parse_grantee, grantee)):
        try:
            parse(text)
        except SkilleryError as error:
            problems[field] = message_of(error)
    return problems


# -- `/admin/audit`: the audit trail with filters, and a check of its chain --------------------------------------------


ACTIONS = sorted(name for name, method in METHODS.items() if method.audits)
"""The methods that leave entries, as suggestions for the filter. Other entries have other actions."""
FILTERS = ("identity", "action", "subject", "outcome", "since", "until")


async def show_audit(request: PageRequest) -> Page:
    return await _entries(request)


async def verify_audit(request: PageRequest) -> Page:
    """Check that all audit entries are unchanged, and that the entry of a given head exists.

    The check reads the whole trail, and changes nothing.
    """
    form = await request.form()
    typed = form.get("head").strip()
    head = _head(typed)
    if typed and head is None:
        problem = "A head is a number and a hash, as `skillery audit head` prints it: 123:4f5e…"
        return await _entries(request, problems={"head": problem}, typed=typed)
    verified = await asyncio.to_thread(request.site.state.verify_audit, head)
    return await _entries(request, verified=verified, typed=typed)


async def _entries(request: PageRequest, **values: Any) -> Page:
    """Return the page of the audit trail, with the filters of the query. `values` replaces values of the template."""
    filters: dict[str, Any] = {name: request.query.get(name, "").strip() for name in FILTERS}
    page = AuditPage((), None)
    problems: dict[str, str] = {}
    try:
        page = await request.do(list_audit, ListAudit(**filters, cursor=request.query.get("cursor", "")))
    except InvalidParams as error:
        field = str(error.data.get("param", ""))
        problems = {field if field in FILTERS else "": message_of(error)}
    set_filters = {name: value for name, value in filters.items() if value}
    next_address = (
        f"/admin/audit?{urlencode({**set_filters, 'cursor': page.next_cursor})}" if page.next_cursor else None
    )
    defaults = {
        "entries": page.entries,
        "actions": ACTIONS,
        "filters": filters,
        "next": next_address,
        "verified": None,
        "typed": "",
    }
    return admin_page("audit", **{**defaults, "problems": problems, **values})


def _head(text: str) -> Head | None:
    """Return the head that `skillery audit head` has printed as `SEQ:HASH`, or None for other text."""
    seq, _, digest = text.partition(":")
    is_head = seq.isdecimal() and len(seq) < 19 and len(digest) == 64
    return Head(int(seq), digest.lower()) if is_head else None
