"""Pages of administrators: current problems, tokens, secrets, environments, webhooks, audit trail, garbage."""

from __future__ import annotations

import re
from functools import partial
from typing import Any, NamedTuple
from urllib.parse import urlencode

from skillery.identity import secret_grants
from skillery.web.admin.access import asks_again
from skillery.web.frame import CallFailed, Done, Page, PageRequest, SeeOther

SCOPES = ("read", "run", "publish", "review", "admin")
PAGES = {
    "tokens": "Tokens",
    "secrets": "Secrets",
    "environments": "Environments",
    "webhooks": "Webhooks",
    "audit": "Audit trail",
    "gc": "Garbage",
}
_SECRET = re.compile(r"[A-Z][A-Z0-9_]{0,127}")
_GRANTEE = re.compile(r"[a-z0-9][a-z0-9._-]{0,254}(\.\*)?")


class Problem(NamedTuple):
    """A current problem of the server, with its remedy. Level 0 is the worst."""

    level: int
    text: str
    remedy: str
    address: str


def _page(request: PageRequest, tab: str, title: str, **values: Any) -> Page:
    return Page(f"admin_{tab}.html", title, {"tab": tab, "pages": PAGES, "problem": "", **values}, "admin")


async def show_overview(request: PageRequest) -> Page:
    problems: list[Problem] = []
    environments = (await request.call("list_environments", {"limit": 100}))["environments"]
    for one in environments:
        if one["state"] == "failed":
            text = f"The environment {one['name']} could not be built."
            problems.append(Problem(0, text, "See its error, correct it, and build it again.", "/admin/environments"))
    for one in (await request.call("list_webhooks"))["webhooks"]:
        if one["state"] == "gone":
            problems.append(Problem(0, f"The webhook {one['url']} is gone.", "Remove it.", "/admin/webhooks"))
        elif one["state"] == "failing":
            text = f"The webhook {one['url']} fails: {one['last_error']}"
            problems.append(Problem(1, text, "Check the receiver.", "/admin/webhooks"))
        elif one["dead_letters"]:
            text = f"{one['dead_letters']} events for {one['url']} were not delivered."
            problems.append(Problem(2, text, "Check the receiver.", "/admin/webhooks"))
    waiting = (await request.call("list_versions", {"status": "in_review", "limit": 100}))["versions"]
    if waiting:
        text = f"{len(waiting)} version{'' if len(waiting) == 1 else 's'} in review."
        problems.append(Problem(3, text, "Review the oldest first.", "/review"))
    refused = await request.call("list_audit", {"outcome": "refused", "since": "24h", "limit": 50})
    if len(refused["entries"]) >= 10:
        problems.append(Problem(2, "Many requests were refused today.", "Read them.", "/admin/audit?outcome=refused"))
    runner = request.site.core.runner
    return _page(
        request,
        "overview",
        "Admin",
        problems=sorted(problems),
        active=runner.active,
        waiting=runner.waiting,
    )


async def show_tokens(request: PageRequest) -> Page:
    return await _tokens(request)


async def _tokens(request: PageRequest, **values: Any) -> Page:
    tokens = (await request.call("list_tokens"))["tokens"]
    tokens.sort(key=lambda one: (one["status"] != "live", one["name"]))
    shared = {"tokens": tokens[:500], "count": len(tokens), "scopes": SCOPES, "made": None, "typed": {}, "chosen": []}
    return _page(request, "tokens", "Tokens", **{**shared, **values})


async def change_tokens(request: PageRequest) -> Page | SeeOther:
    form = await request.form(most_fields=40)
    again = asks_again(request, form)
    if again is not None:
        return again
    if form.get("action") == "revoke":
        revoked = await request.call("revoke_token", {"id": form.get("id")})
        return SeeOther("/admin/tokens", Done(f"The token {revoked['id']} of {revoked['name']} is revoked."))
    params = {
        "name": form.get("name").strip(),
        "scopes": form.all("scope"),
        "namespaces": form.get("namespaces").split() or None,
        "kind": form.get("kind") or None,
        "expires": form.get("expires").strip() or None,
    }
    try:
        made = await request.call("create_token", params)
    except CallFailed as failed:
        page = await _tokens(
            request,
            problem=f"{failed.message}. {failed.hint}",
            typed=dict(form.pairs),
            chosen=form.all("scope"),
        )
        return page._replace(status=400)
    # The only page with the token: pages are never stored by browsers.
    return await _tokens(request, made=made)


async def show_secrets(request: PageRequest) -> Page:
    return await _secrets(request)


async def _secrets(request: PageRequest, **values: Any) -> Page:
    grants = await request.site.core.registry.read(secret_grants.list_grants)
    return _page(request, "secrets", "Secrets", **{"grants": grants, "typed": {}, **values})


async def change_secrets(request: PageRequest) -> Page | SeeOther:
    form = await request.form()
    again = asks_again(request, form)
    if again is not None:
        return again
    secret, grantee = form.get("secret").strip(), form.get("grantee").strip()
    if not _SECRET.fullmatch(secret) or not _GRANTEE.fullmatch(grantee):
        problem = "A secret is a name such as SHOP_TOKEN, a grantee is a skill, or a namespace such as shop.*"
        return (await _secrets(request, problem=problem, typed=dict(form.pairs)))._replace(status=400)
    actor, registry = request.identity, request.site.core.registry
    if form.get("action") == "revoke":
        await registry.write(partial(secret_grants.revoke, actor=actor, secret=secret, grantee=grantee))
        return SeeOther("/admin/secrets", Done(f"{secret} is no longer granted to {grantee}."))
    given = partial(secret_grants.grant, actor=actor, secret=secret, grantee=grantee, granted_by=actor.name)
    is_new = await registry.write(given)
    words = "is granted" if is_new else "was already granted"
    return SeeOther("/admin/secrets", Done(f"{secret} {words} to {grantee}."))


async def show_environments(request: PageRequest) -> Page:
    found = await request.call("list_environments", {"limit": 100, "cursor": request.query.get("cursor") or None})
    return _page(
        request,
        "environments",
        "Environments",
        environments=found["environments"],
        next_cursor=found["next_cursor"],
    )


async def change_environments(request: PageRequest) -> SeeOther:
    form = await request.form()
    await request.call("rebuild_environment", {"name": form.get("name")})
    return SeeOther("/admin/environments", Done(f"The environment {form.get('name')} is being built."))


async def show_webhooks(request: PageRequest) -> Page:
    found = await request.call("list_webhooks")
    return _page(request, "webhooks", "Webhooks", webhooks=found["webhooks"])


async def change_webhooks(request: PageRequest) -> SeeOther:
    form = await request.form()
    found = await request.call("test_webhook", {"id": form.get("id")})
    text = "The receiver has accepted the test event." if found["ok"] else f"The test failed: {found['error']}"
    return SeeOther("/admin/webhooks", Done(text))


async def show_audit(request: PageRequest) -> Page:
    names = ("identity", "action", "subject", "outcome", "since")
    given = {name: request.query.get(name, "").strip() for name in names}
    params: dict[str, Any] = {name: value or None for name, value in given.items()}
    problem = ""
    found: dict[str, Any] = {"entries": [], "next_cursor": None}
    try:
        found = await request.call("list_audit", {**params, "limit": 50, "cursor": request.query.get("cursor") or None})
    except CallFailed as failed:
        if failed.status != 400:
            raise
        problem = f"{failed.message}. {failed.hint}"
    kept = {name: value for name, value in given.items() if value}
    following = f"/admin/audit?{urlencode({**kept, 'cursor': found['next_cursor']})}" if found["next_cursor"] else None
    return _page(
        request, "audit", "Audit trail", entries=found["entries"], given=given, next=following, problem=problem
    )


async def show_garbage(request: PageRequest) -> Page:
    found = await request.call("collect_garbage", {"dry_run": True})
    return _page(request, "gc", "Garbage", removed=found["removed"])


async def collect(request: PageRequest) -> Page | SeeOther:
    form = await request.form()
    again = asks_again(request, form)
    if again is not None:
        return again
    found = await request.call("collect_garbage", {"dry_run": False})
    steps = sum(1 for one in found["removed"].values() if any(one.values()))
    text = f"The garbage is collected: {steps} steps removed something." if steps else "There was no garbage."
    return SeeOther("/admin/gc", Done(text))
