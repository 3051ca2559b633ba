"""`/admin/tokens`: tokens are made, shown once, and revoked."""

from __future__ import annotations

from typing import Any, cast

from skillery.errors import SkilleryError
from skillery.identity.offboarding import RevokeToken, revoke_token
from skillery.identity.tokens import CreateToken, ListTokens, create_token, list_tokens
from skillery.web.admin.layout import admin_page, asks_again
from skillery.web.frame import Done, Form, Page, PageRequest, SeeOther, message_of

SCOPES = ("read", "run", "publish", "review", "admin")
MOST = 500
FIELDS = ("name", "scopes", "namespaces", "expires")
"""The params of `create_token` with a field of the same id."""


async def show_tokens(request: PageRequest) -> Page:
    return await _tokens(request)


async def _tokens(request: PageRequest, **values: Any) -> Page:
    tokens = (await request.do(list_tokens, ListTokens())).tokens
    tokens.sort(key=lambda token: (token.status != "live", token.name))
    shared = {"tokens": tokens[:MOST], "count": len(tokens), "scopes": SCOPES, "made": None, "typed": {}, "chosen": []}
    return admin_page("tokens", **{**shared, **values})


async def change_tokens(request: PageRequest) -> Page | SeeOther:
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
        made = await request.do(create_token, _params(form))
    except SkilleryError as error:
        field = str(error.data.get("param", ""))
        return await _tokens(request, problems={field if field in FIELDS else "": message_of(error)}, **typed)
    # The only page with the token: pages are never stored by browsers.
    return await _tokens(request, made=made)


def _params(form: Form) -> CreateToken:
    return CreateToken(
        name=form.get("name").strip(),
        scopes=form.all("scope"),
        namespaces=form.get("namespaces").split(),
        kind=cast("Any", form.get("kind") or "person"),  # the call refuses other kinds
        expires=form.get("expires").strip(),
    )
