"""`/admin/audit`: the audit trail with filters, and a check of its chain."""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import urlencode

from skillery.audit import Head
from skillery.web.admin.layout import admin_page
from skillery.web.frame import CallFailed, Page, PageRequest

FILTERS = ("identity", "action", "subject", "outcome", "since", "until")


async def show_audit(request: PageRequest) -> Page:
    return await _entries(request)


async def verify_audit(request: PageRequest) -> Page:
    """Check that every entry is unchanged. The check reads the whole trail, and changes nothing."""
    form = await request.form()
    typed = form.get("head").strip()
    head = _head(typed)
    if typed and head is None:
        problem = "A head is a number and a hash, as `skillery audit head` prints it: 123:4f5e…"
        return await _entries(request, problems={"head": problem}, typed=typed)
    found = await asyncio.to_thread(request.site.state.verify_audit, head)
    return await _entries(request, verified=found, typed=typed)


async def _entries(request: PageRequest, **values: Any) -> Page:
    given = {name: request.query.get(name, "").strip() for name in FILTERS}
    params: dict[str, Any] = {name: value or None for name, value in given.items()}
    found: dict[str, Any] = {"entries": [], "next_cursor": None}
    problems: dict[str, str] = {}
    try:
        found = await request.call("list_audit", {**params, "limit": 50, "cursor": request.query.get("cursor") or None})
    except CallFailed as failed:
        if failed.status != 400:
            raise
        field = str(failed.data.get("param", ""))
        problems = {field if field in FILTERS else "": f"{failed.message}. {failed.hint}".strip()}
    kept = {name: value for name, value in given.items() if value}
    following = f"/admin/audit?{urlencode({**kept, 'cursor': found['next_cursor']})}" if found["next_cursor"] else None
    shared = {"entries": found["entries"], "given": given, "next": following, "verified": None, "typed": ""}
    return admin_page("audit", **{**shared, "problems": problems, **values})


def _head(text: str) -> Head | None:
    seq, _, digest = text.partition(":")
    is_head = seq.isdecimal() and len(seq) < 19 and len(digest) == 64
    return Head(int(seq), digest.lower()) if is_head else None
