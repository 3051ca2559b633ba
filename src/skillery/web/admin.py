"""Pages of admins: environments, webhooks, garbage, plugins, storage, quotas, tokens, secrets and the audit trail."""

from __future__ import annotations

import asyncio
from functools import partial
from itertools import chain
from typing import Any, cast

from skillery.audit import Head, Verified
from skillery.environments.methods import ListEnvironments, RebuildEnvironment, list_environments, rebuild_environment
from skillery.errors import InvalidParams, SkilleryError
from skillery.events import EVENT_TYPES
from skillery.formats.names import parse_grantee, parse_secret_name
from skillery.identity import secret_grants
from skillery.identity.offboarding import RevokeToken, revoke_token
from skillery.identity.secret_grants import check_value
from skillery.identity.token_methods import CreateToken, ListTokens, create_token, list_tokens
from skillery.identity.tokens import REMARKS, SCOPES, CreatedToken, remarked
from skillery.identity.usage import GetUsage, get_usage, list_namespace_uses, list_uses
from skillery.maintenance.garbage import CollectGarbage, Swept, collect_garbage
from skillery.maintenance.integrity import measure
from skillery.plugins.facts import ServerPlugin
from skillery.registry.audit_trail import AuditPage, ListAudit, list_actions, list_audit
from skillery.runs.incidents import SUBJECTS, GetIncident, get_incident
from skillery.web.account import Use, use_of_namespace, uses_of_identity
from skillery.web.frame import Done, FormRefused, Page, PageRequest, SeeOther, at_field, message_of
from skillery.web.visits import VALUE_OF_SECRET
from skillery.webhooks import targets as webhooks

# -- The layout of all pages of administrators -------------------------------------------------------------------------


TABS = {
    "": "Now",
    "tokens": "People and tokens",
    "secrets": "Secrets",
    "quotas": "Limits",
    "storage": "Storage",
    "environments": "Environments",
    "plugins": "Plugins",
    "webhooks": "Webhooks",
    "audit": "Audit trail",
    "incident": "Incident",
}


def admin_page(tab: str, **values: Any) -> Page:
    """Return a page of admins. `tab` is a key of TABS, and `values` are for the template."""
    title = TABS[tab] if tab else "Admin"
    return Page(f"admin_{tab or 'overview'}.html", title, {"tab": tab, "tabs": TABS, **values}, "admin")


async def show_environments(request: PageRequest) -> Page:
    page = await request.do(list_environments, ListEnvironments(limit=100, cursor=request.query.get("cursor", "")))
    return admin_page("environments", environments=page.environments, next_cursor=page.next_cursor)


async def change_environments(request: PageRequest) -> SeeOther:
    form = await request.form()
    await request.do(rebuild_environment, RebuildEnvironment(name=form.get("name")))
    return SeeOther("/admin/environments", Done(f"The environment {form.get('name')} is being built."))


async def show_webhooks(request: PageRequest, added: webhooks.AddedWebhook | None = None) -> Page:
    listed = (await request.do(webhooks.list_webhooks, webhooks.ListWebhooks())).webhooks
    return admin_page("webhooks", webhooks=listed, added=added, events=EVENT_TYPES)


async def change_webhooks(request: PageRequest) -> Page | SeeOther:
    """Add, remove or test a webhook. After adding, the page shows its secret once."""
    form = await request.form(most_fields=40)
    if form.get("action") == "test":
        test = await request.do(webhooks.test_webhook, webhooks.TestWebhook(id=form.get("id")))
        text = "The receiver has accepted the test event." if test.ok else f"The test failed: {test.error}"
        return SeeOther("/admin/webhooks", Done(text))
    request.require_recent_sign_in()
    if form.get("action") == "remove":
        await request.do(webhooks.remove_webhook, webhooks.RemoveWebhook(id=form.get("id")))
        return SeeOther("/admin/webhooks", Done("The webhook is removed."))
    params = webhooks.AddWebhook(
        url=form.get("url").strip(), events=form.all("event"), skills=form.get("skills").split()
    )
    return await show_webhooks(request, await request.do(webhooks.add_webhook, params))


async def collect(request: PageRequest) -> SeeOther:
    await request.form()
    request.require_recent_sign_in()
    garbage = await request.do(collect_garbage, CollectGarbage())
    steps = sum(swept != Swept() for swept in garbage.removed.values())
    text = f"The garbage is collected: {steps} steps removed something." if steps else "There was no garbage."
    return SeeOther("/admin/storage", Done(text))


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
    garbage = None
    if sizes is not None and "garbage" in request.query:  # a dry run may read the whole storage
        removed = (await request.do(collect_garbage, CollectGarbage(dry_run=True))).removed
        garbage = {step: swept for step, swept in removed.items() if swept != Swept()}
    return admin_page("storage", sizes=sizes, checks=checks, disk=state.disk(), storage=state.storage, garbage=garbage)


# -- `/admin/quotas`: who uses how much of which quota -----------------------------------------------------------------


MOST = 25
"""The number of identities and of namespaces on the page, those with the highest use."""


async def show_quotas(request: PageRequest) -> Page:
    identity = request.query.get("identity", "").strip()
    uses = [] if identity else await uses_of(request)
    if identity:
        try:
            uses = list(uses_of_identity(await request.do(get_usage, GetUsage(identity=identity))))
        except SkilleryError as error:
            request.problems = {"identity": message_of(error)}
    shown = [use for use in uses if use.amount.used or (identity and use.amount.limit)]
    return admin_page("quotas", uses=shown, wanted=identity, most=MOST)


async def uses_of(request: PageRequest) -> list[Use]:
    """Return the uses of quotas by the MOST identities and namespaces that use most, the fullest quota first."""
    quotas = request.site.core.usage.quotas
    identities = await request.read_page(partial(list_uses, quotas=quotas, most=MOST))
    namespaces = await request.read_page(partial(list_namespace_uses, quotas=quotas, most=MOST))
    uses = [*chain.from_iterable(map(uses_of_identity, identities)), *map(use_of_namespace, namespaces)]
    return sorted(uses, key=lambda use: (use.part, use.amount.used or 0), reverse=True)


# -- `/admin/tokens` ---------------------------------------------------------------------------------------------------


MOST_TOKENS = 500
"""The maximum number of tokens on the page."""


async def show_tokens(request: PageRequest, made: CreatedToken | None = None) -> Page:
    """Show the tokens, and a new token once."""
    tokens = (await request.do(list_tokens, ListTokens())).tokens
    tokens.sort(key=lambda token: (token.status != "live", token.name))
    return admin_page(
        "tokens",
        tokens=tokens[:MOST_TOKENS],
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


async def show_incident(request: PageRequest) -> Page:
    """Show what a version, secret, identity or host has touched."""
    subject, name = request.query.get("subject", ""), request.query.get("name", "").strip()
    subject, report = (subject if subject in SUBJECTS else SUBJECTS[0]), None
    try:
        if name:
            cursor = request.query.get("cursor", "")
            report = await request.do(get_incident, GetIncident(subject=cast("Any", subject), name=name, cursor=cursor))
    except SkilleryError as error:
        request.problems = {"name": message_of(error)}
    return admin_page("incident", report=report, subject=subject, subjects=SUBJECTS, wanted=name)


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


FILTERS = ("identity", "action", "subject", "outcome", "since", "until")


async def verify_audit(request: PageRequest) -> Page:
    """Check that all audit entries are unchanged, and that the entry of a given head exists.

    The check reads the whole trail, and changes nothing.
    """
    form = await request.form()
    typed = form.get("head").strip()
    try:
        head = Head.parse(typed) if typed else None
    except ValueError:
        message = "A head is a number and a hash, as `skillery audit head` prints it: 123:4f5e…"
        raise FormRefused({"head": message}) from None
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
    actions = {*await request.read_page(list_actions), filters["action"]} - {""}
    return admin_page(
        "audit",
        entries=page.entries,
        choices={"action": sorted(actions), "outcome": ("done", "refused")},
        filters=filters,
        next_cursor=page.next_cursor,
        verified=verified,
        head=dict(request.sent or ()).get("head", ""),
    )
