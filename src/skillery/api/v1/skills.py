"""`/v1/skills` and `/v1/skills/{skill_id}`. The id of a skill is its name.

DELETE yanks all versions of a skill and deletes nothing, because a version number is never used again.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec

from skillery import registry
from skillery.api.exports import answer_archive
from skillery.api.v1.parts import V1Parts
from skillery.api.v1.requests import (
    REASON,
    Asked,
    Headers,
    describe,
    limit_of,
    query_of,
    segments,
    send_answer,
    versions_of,
    with_token,
    yanked,
)
from skillery.api.v1.shapes import Deleted, Skill, Skills, skill_of
from skillery.api.v1.uploads import published
from skillery.edge.http import only
from skillery.errors import SkilleryError, VersionNotFound
from skillery.formats.names import parse_namespace, parse_skill_name
from skillery.formats.semver import Version
from skillery.formats.version_spec import Exact, Latest, VersionSpec, parse_version_spec
from skillery.importing import ImportOptions

WAITING = {"draft", "in_review"}


async def skills_endpoint(parts: V1Parts, scope: Any, receive: Any, send: Any, headers: Headers) -> None:
    """Answer `/v1/skills`. GET lists skills, POST publishes a new skill."""
    only(scope, "GET", "HEAD", "POST")
    segments(scope, 2)
    headers = with_token(headers)
    if scope["method"] == "POST":
        asked = Asked(parts, await parts.gate.admit(scope, headers, "publish", "create_skill"), headers)
        query = query_of(scope, "beta", "namespace")
        options = ImportOptions(namespace=parse_namespace(query.get("namespace", "")), is_new=True)
        report = await published(asked, receive, options)
        await send_answer(send, await _skill(asked, report.name, parse_version_spec(report.version)))
        return
    asked = Asked(parts, await parts.gate.admit(scope, headers, "read", "list_skills"), headers)
    await send_answer(send, await _listed(asked, query_of(scope, "beta", "limit", "after", "page", "source")))


async def skill_endpoint(parts: V1Parts, scope: Any, _receive: Any, send: Any, headers: Headers) -> None:
    """Answer `/v1/skills/{skill_id}`. GET describes a skill, DELETE yanks all its versions."""
    only(scope, "GET", "HEAD", "DELETE")
    headers = with_token(headers)
    _, _, skill_id = segments(scope, 3)
    query_of(scope, "beta")
    if scope["method"] == "DELETE":
        asked = Asked(parts, await parts.gate.admit(scope, headers, "publish", "yank_version"), headers)
        await yanked(
            asked, skill_id, partial(registry.yank_skill, identity=asked.identity, name=skill_id, reason=REASON)
        )
        await send_answer(send, Deleted(skill_id, "skill.deleted", "skill_deleted", deleted=True))
        return
    asked = Asked(parts, await parts.gate.admit(scope, headers, "read", "describe_skill"), headers)
    await send_answer(send, await _skill(asked, parse_skill_name(skill_id), Latest()))


async def content_endpoint(parts: V1Parts, scope: Any, _receive: Any, send: Any, headers: Headers) -> None:
    """Answer `/v1/skills/{skill_id}/content` and `…/versions/{version}/content` with a zip of the files."""
    only(scope, "GET", "HEAD")
    headers = with_token(headers)
    _, _, skill_id, *rest = segments(scope, 4, 6)
    query_of(scope, "beta")
    identity = await parts.gate.admit(scope, headers, "read", "read_skill_file")
    await answer_archive(parts.downloads, scope, send, headers, identity, skill_id, rest[1] if rest[1:] else "", "zip")


async def _listed(asked: Asked, query: dict[str, str]) -> Skills:
    limit = limit_of(query)
    cursor = query.get("page", "")
    if query.get("after"):
        cursor = await _cursor_after(asked, parse_skill_name(query["after"]))
    if query.get("source", "custom") != "custom":
        return Skills("list", [], None, None, has_more=False, next_page=None)
    work = partial(_listed_now, asked=asked, limit=limit, cursor=cursor)
    return await asked.registry.read_page(work)


def _listed_now(connection: Any, *, asked: Asked, limit: int, cursor: str) -> Skills:
    listing = registry.list_skills(
        connection, asked.identity, asked.key, namespace="", detail="names", limit=limit, cursor=cursor
    )
    page = msgspec.json.decode(listing, type=registry.SkillPage)
    rows, more = page.skills, page.next_cursor
    ages = registry.ages(connection, identity=asked.identity, names=[row.name for row in rows])
    data = [skill_of(row.name, row.version, row.description, ages, asked.headers) for row in rows]
    first, last = (data[0].id, data[-1].id) if data else (None, None)
    return Skills("list", data, first, last, has_more=more is not None, next_page=more)


async def _cursor_after(asked: Asked, name: str) -> str:
    """Return the cursor that continues a list of skills after the skill `name`. The skill need not exist."""
    namespace = name.rpartition(".")[0]
    try:
        described = await describe(asked, name, Latest())
    except SkilleryError:
        return registry.cursor_after_skill(asked.key, namespace, name)
    return registry.cursor_after_skill(asked.key, described["manifest"].get("namespace", namespace), name)


async def _skill(asked: Asked, name: str, spec: VersionSpec) -> Skill:
    """Return a skill in the shape of `/v1/skills`. If no version is published, describe the newest version that the
    caller sees, if it is a draft or in review.

    Raise SkillNotFound or VersionNotFound if the caller sees no such skill or version.
    """
    try:
        described = await describe(asked, name, spec)
    except VersionNotFound:
        waiting = [row for row in await versions_of(asked, name, 1, "") if row.status in WAITING]
        if not waiting:
            raise
        described = await describe(asked, name, Exact(Version.parse(waiting[0].version)))
    work = partial(registry.ages, identity=asked.identity, names=[name])
    ages = await asked.registry.read_page(work)
    description = described["manifest"]["description"]
    return skill_of(name, described["version"], description, ages, asked.headers)
