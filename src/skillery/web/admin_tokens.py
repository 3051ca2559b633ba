"""`/admin/tokens`, `/admin/secrets` and `/admin/audit`: who may do what, and who did what."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any, cast
from urllib.parse import urlencode

from skillery.audit import Head, Verified
from skillery.errors import InvalidParams
from skillery.formats.names import parse_grantee, parse_secret_name
from skillery.identity import secret_grants
from skillery.identity.offboarding import RevokeToken, revoke_token
from skillery.identity.secret_grants import check_value
from skillery.identity.token_methods import CreateToken, ListTokens, create_token, list_tokens
from skillery.identity.tokens import REMARKS, SCOPES, CreatedToken, remarked
from skillery.methods.table import METHODS
from skillery.registry.audit_trail import AuditPage, ListAudit, list_audit
from skillery.web.admin import admin_page
from skillery.web.frame import Done, FormRefused, Page, PageRequest, SeeOther, at_field, message_of
from skillery.web.visits import VALUE_OF_SECRET

MOST = 500
"""The maximum number of tokens on the page."""


async def show_tokens(request: PageRequest, made: CreatedToken | None = None) -> Page:
    """Show the tokens, and a new token once."""
    tokens = (await request.do(list_tokens, ListTokens())).tokens
    tokens.sort(key=lambda token: (token.status != "live", token.name))
    return admin_page(
        "tokens",
        tokens=tokens[:MOST],
        count=len(tokens),
        scopes=SCOPES,
        remarks=REMARKS,
        remarked=remarked(tokens),
        made=made,
    )


async def change_tokens(request: PageRequest) -> Page | SeeOther:
    """Create or revoke a token. After creating, the page shows the token once."""
    form = await request.form(most_fields=40)
    request.require_recent_sign_in()
    if form.get("action") == "revoke":
        revoked = await request.do(revoke_token, RevokeToken(id=form.get("id")))
        return SeeOther("/admin/tokens", Done(f"The token {revoked.id} of {revoked.name} is revoked."))
    if not form.has("scope"):
        raise FormRefused({"scopes": "Choose at least one scope."})
    params = CreateToken(
        name=form.get("name").strip(),
        scopes=form.all("scope"),
        namespaces=form.get("namespaces").split(),
        kind=cast("Any", form.get("kind") or "person"),  # the call refuses other kinds
        expires=form.get("expires").strip(),
    )
    # The only page with the token: pages are never stored by browsers.
    return await show_tokens(request, await request.do(create_token, params))


# -- `/admin/secrets`: secrets are granted to skills. Values are never shown -------------------------------------------


async def show_secrets(request: PageRequest) -> Page:
    grants = await request.read(secret_grants.list_grants)
    with_value = await asyncio.to_thread(request.site.state.secrets)
    ungranted = sorted(set(with_value) - {grant.secret for grant in grants})
    return admin_page("secrets", grants=grants, with_value=with_value, ungranted=ungranted)


async def change_secrets(request: PageRequest) -> SeeOther:
    """Set the value of a secret, grant a secret to a skill, or revoke the grant."""
    form = await request.form()
    request.require_recent_sign_in()
    secret, grantee = form.get("secret").strip(), form.get("grantee").strip()
    if form.get("action") == "set":
        return await _set_value(request, secret, form.get(VALUE_OF_SECRET))
    actor, registry = request.identity, request.site.core.registry
    if form.get("action") == "revoke":
        await registry.write(partial(secret_grants.revoke, actor=actor, secret=secret, grantee=grantee))
        return SeeOther("/admin/secrets", Done(f"{secret} is no longer granted to {grantee}."))
    with at_field("secret"):
        parse_secret_name(secret)
    with at_field("grantee"):
        parse_grantee(grantee)
    work = partial(secret_grants.grant, actor=actor, secret=secret, grantee=grantee, granted_by=actor.name)
    words = "is granted" if await registry.write(work) else "was already granted"
    return SeeOther("/admin/secrets", Done(f"{secret} {words} to {grantee}."))


async def _set_value(request: PageRequest, name: str, value: str) -> SeeOther:
    """Set the value of a secret. The page of a failure does not contain the value."""
    with at_field("name"):
        parse_secret_name(name)
    with at_field(VALUE_OF_SECRET):
        check_value(name, value)
        await asyncio.to_thread(request.site.state.set_secret, request.identity, name, value)
    return SeeOther("/admin/secrets", Done(f"{name} is set. A run gets it if a grant permits it."))


# -- `/admin/audit`: the audit trail with filters, and a check of its chain --------------------------------------------


ACTIONS = sorted(name for name, method in METHODS.items() if method.audits)
"""The methods that leave entries, as suggestions for the filter. Other entries have other actions."""
FILTERS = ("identity", "action", "subject", "outcome", "since", "until")


async def verify_audit(request: PageRequest) -> Page:
    """Check that all audit entries are unchanged, and that the entry of a given head exists.

    The check reads the whole trail, and changes nothing.
    """
    form = await request.form()
    typed = form.get("head").strip()
    head = _head(typed)
    if typed and head is None:
        raise FormRefused({"head": "A head is a number and a hash, as `skillery audit head` prints it: 123:4f5e…"})
    return await show_audit(request, await asyncio.to_thread(request.site.state.verify_audit, head))


async def show_audit(request: PageRequest, verified: Verified | None = None) -> Page:
    """Show the entries that match the filters of the query, and the result of a check of the chain."""
    filters: dict[str, Any] = {name: request.query.get(name, "").strip() for name in FILTERS}
    page = AuditPage((), None)
    try:
        page = await request.do(list_audit, ListAudit(**filters, cursor=request.query.get("cursor", "")))
    except InvalidParams as error:
        field = str(error.data.get("param", ""))
        request.problems = {field if field in FILTERS else "": message_of(error)}
    set_filters = {name: value for name, value in filters.items() if value}
    return admin_page(
        "audit",
        entries=page.entries,
        actions=ACTIONS,
        filters=filters,
        next=f"/admin/audit?{urlencode({**set_filters, 'cursor': page.next_cursor})}" if page.next_cursor else None,
        verified=verified,
        head=dict(request.sent or ()).get("head", ""),
    )


def _head(text: str) -> Head | None:
    """Return the head that `skillery audit head` has printed as `SEQ:HASH`, or None for other text."""
    seq, _, digest = text.partition(":")
    is_head = seq.isdecimal() and len(seq) < 19 and len(digest) == 64
    return Head(int(seq), digest.lower()) if is_head else None
