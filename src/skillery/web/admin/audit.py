"""`/admin/audit`: the audit trail with filters, and a check of its chain."""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import urlencode

from skillery.audit import Head
from skillery.errors import InvalidParams
from skillery.registry.audit_trail import AuditPage, ListAudit, list_audit
from skillery.web.admin.layout import admin_page
from skillery.web.frame import Page, PageRequest, message_of

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
    verified = await asyncio.to_thread(request.site.state.verify_audit, head)
    return await _entries(request, verified=verified, typed=typed)


async def _entries(request: PageRequest, **values: Any) -> Page:
    filters: dict[str, Any] = {name: request.query.get(name, "").strip() for name in FILTERS}
    page = AuditPage((), None)
    problems: dict[str, str] = {}
    try:
        page = await request.do(list_audit, ListAudit(**filters, cursor=request.query.get("cursor", "")))
    except InvalidParams as error:
        field = str(error.data.get("param", ""))
        problems = {field if field in FILTERS else "": message_of(error)}
    kept = {name: value for name, value in filters.items() if value}
    following = f"/admin/audit?{urlencode({**kept, 'cursor': page.next_cursor})}" if page.next_cursor else None
    shared = {"entries": page.entries, "filters": filters, "next": following, "verified": None, "typed": ""}
    return admin_page("audit", **{**shared, "problems": problems, **values})


def _head(text: str) -> Head | None:
    seq, _, digest = text.partition(":")
    is_head = seq.isdecimal() and len(seq) < 19 and len(digest) == 64
    return Head(int(seq), digest.lower()) if is_head else None
