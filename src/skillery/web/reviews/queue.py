"""`/review`: the versions that wait for a review, oldest first. `/review/waivers`: accepted findings."""

from __future__ import annotations

from typing import Any

from skillery.identity import access
from skillery.web.frame import Done, Page, PageRequest, SeeOther
from skillery.web.sending import MOST_WAITING


async def show_queue(request: PageRequest) -> Page:
    namespace = request.query.get("ns", "").strip()
    found = await request.call(
        "list_versions", {"status": "in_review", "namespace": namespace or None, "limit": MOST_WAITING}
    )
    mine = [one for one in found["versions"] if access.reviews(request.identity, one["name"])]
    rows: list[dict[str, Any]] = []
    for one in sorted(mine, key=lambda version: version["created_at"]):
        rows.append(await _row(request, one) if len(rows) < 30 else {**one, "facts": None})
    namespaces = sorted({one["name"].partition(".")[0] for one in mine})
    values = {"rows": rows, "ns": namespace, "namespaces": namespaces, "is_cut": found["next_cursor"] is not None}
    return Page("reviews_queue.html", "Review", values, "review")


async def _row(request: PageRequest, version: dict[str, Any]) -> dict[str, Any]:
    skill = (await request.call("describe_skill", {"name": version["name"], "version": version["version"]}))["skill"]
    difference = skill.get("permissions_diff") or {"added": {"network": [], "secrets": []}}
    examples = skill.get("examples") or []
    facts = {
        "more": len(difference["added"]["network"]) + len(difference["added"]["secrets"]),
        "findings": sum(not one["waiver"] for one in skill.get("findings") or ()),
        "examples": sum(len(skill["manifest"].get(key) or ()) for key in ("examples", "tool_examples")),
        "passed": sum(example["status"] == "passed" for example in examples),
    }
    return {**version, "facts": facts}


async def show_waivers(request: PageRequest) -> Page:
    found = await request.call("list_waivers", {"limit": 100, "cursor": request.query.get("cursor") or None})
    values = {"waivers": found["waivers"], "next_cursor": found["next_cursor"]}
    return Page("reviews_waivers.html", "Waivers", values, "review")


async def revoke_waiver(request: PageRequest) -> SeeOther:
    form = await request.form()
    found = await request.call("revoke_waiver", {"id": form.get("id")})
    return SeeOther("/review/waivers", Done(f"The waiver for {found['rule']} in {found['name']} is revoked."))
