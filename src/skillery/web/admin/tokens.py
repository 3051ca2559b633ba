"""`/admin/tokens`: tokens are made, shown once, and revoked."""

from __future__ import annotations

from typing import Any

from skillery.web.admin.access import asks_again
from skillery.web.admin.layout import admin_page
from skillery.web.frame import CallFailed, Done, Form, Page, PageRequest, SeeOther

SCOPES = ("read", "run", "publish", "review", "admin")
MOST = 500
FIELDS = ("name", "scopes", "namespaces", "expires")
"""The params of `create_token` with a field of the same id."""


async def show_tokens(request: PageRequest) -> Page:
    return await _tokens(request)


async def _tokens(request: PageRequest, **values: Any) -> Page:
    tokens = (await request.call("list_tokens"))["tokens"]
    tokens.sort(key=lambda one: (one["status"] != "live", one["name"]))
    shared = {"tokens": tokens[:MOST], "count": len(tokens), "scopes": SCOPES, "made": None, "typed": {}, "chosen": []}
    return admin_page("tokens", **{**shared, **values})


async def change_tokens(request: PageRequest) -> Page | SeeOther:
    form = await request.form(most_fields=40)
    again = asks_again(request, form)
    if again is not None:
        return again
    if form.get("action") == "revoke":
        revoked = await request.call("revoke_token", {"id": form.get("id")})
        return SeeOther("/admin/tokens", Done(f"The token {revoked['id']} of {revoked['name']} is revoked."))
    typed = {"typed": dict(form.pairs), "chosen": form.all("scope")}
    if not form.has("scope"):
        return await _tokens(request, problems={"scopes": "Choose at least one scope."}, **typed)
    try:
        made = await request.call("create_token", _params(form))
    except CallFailed as failed:
        field = str(failed.data.get("param", ""))
        problems = {field if field in FIELDS else "": f"{failed.message}. {failed.hint}".strip()}
        return await _tokens(request, problems=problems, **typed)
    # The only page with the token: pages are never stored by browsers.
    return await _tokens(request, made=made)


def _params(form: Form) -> dict[str, Any]:
    return {
        "name": form.get("name").strip(),
        "scopes": form.all("scope"),
        "namespaces": form.get("namespaces").split() or None,
        "kind": form.get("kind") or None,
        "expires": form.get("expires").strip() or None,
    }
