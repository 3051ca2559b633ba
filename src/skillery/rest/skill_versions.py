"""`/v1/skills/{skill_id}/versions` and the addresses below. DELETE yanks a version."""

from __future__ import annotations

from functools import partial
from typing import Any

from skillery.formats.names import parse_skill_name
from skillery.formats.semver import Version
from skillery.formats.version_spec import VersionSpec, parse_version_spec
from skillery.http.requests import only, query_of
from skillery.importing import ImportOptions
from skillery.rest.skill_requests import (
    REASON,
    Asked,
    Headers,
    V1Parts,
    describe,
    limit_of,
    make_default,
    order_of,
    segments,
    send_answer,
    version_number,
    versions_of,
    versions_page,
    with_token,
    yanked,
)
from skillery.rest.skill_shapes import Deleted, SkillVersion, SkillVersions, is_anthropic, is_first_beta, version_of
from skillery.rest.skill_uploads import published
from skillery.versions.lifecycle import yank
from skillery.versions.versions import cursor_after_version, descriptions_of, find_version

RESOLVABLE = {"published", "deprecated"}


async def versions_endpoint(parts: V1Parts, scope: Any, receive: Any, send: Any, headers: Headers) -> None:
    """Answer `/v1/skills/{skill_id}/versions`. GET lists the versions of a skill, POST publishes a new version."""
    only(scope, "GET", "HEAD", "POST")
    headers = with_token(headers)
    _, _, skill_id, _ = segments(scope, 4)
    name = parse_skill_name(skill_id)
    if scope["method"] == "POST":
        request = Asked(parts, await parts.gate.admit(scope, headers, "publish", "create_skill"), headers)
        query_of(scope, "beta")
        # The current clients of Anthropic promise that each upload has the name of the skill.
        keeps_name = is_anthropic(headers) and not is_first_beta(headers)
        # Raises SkillNotFound, so that an upload cannot create a skill or reveal a hidden one.
        await versions_of(request, name, 1, "")
        report, fields = await published(request, receive, ImportOptions(into=name, keeps_name=keeps_name))
        spec = parse_version_spec(report.version)
        if fields.is_default and report.status in RESOLVABLE:
            await make_default(request, name, spec)
        await send_answer(send, await _version(request, name, spec))
        return
    request = Asked(parts, await parts.gate.admit(scope, headers, "read", "list_versions"), headers)
    query = query_of(scope, "beta", "limit", "after", "page", "order")
    await send_answer(send, await _listed_versions(request, name, query))


async def version_endpoint(parts: V1Parts, scope: Any, _receive: Any, send: Any, headers: Headers) -> None:
    """Answer `/v1/skills/{skill_id}/versions/{version}`. GET describes a version, DELETE yanks it."""
    only(scope, "GET", "HEAD", "DELETE")
    headers = with_token(headers)
    _, _, skill_id, _, text = segments(scope, 5)
    query_of(scope, "beta")
    name = parse_skill_name(skill_id)
    if scope["method"] == "DELETE":
        request = Asked(parts, await parts.gate.admit(scope, headers, "publish", "yank_version"), headers)
        version = Version.parse(version_number(name, text))
        yank = partial(_delete_one, request, name, version)
        await yanked(request, f"{name}@{version}", yank)
        ident = str(version) if is_first_beta(headers) else f"{name}@{version}"
        kinds = ("skill.version.deleted", "skill_version_deleted")
        await send_answer(send, Deleted(ident, *kinds, deleted=True, version=str(version)))
        return
    request = Asked(parts, await parts.gate.admit(scope, headers, "read", "describe_skill"), headers)
    await send_answer(send, await _version(request, name, parse_version_spec(version_number(name, text))))


def _delete_one(request: Asked, name: str, version: Version, connection: Any) -> None:
    yank(connection, request.identity, name, version, REASON)


async def _version(request: Asked, name: str, spec: VersionSpec) -> SkillVersion:
    described = await describe(request, name, spec)
    work = partial(find_version, identity=request.identity, name=name, version=described["version"])
    row = await request.registry.read_page(work)
    return version_of(row, described["manifest"]["description"], request.headers)


async def _listed_versions(request: Asked, name: str, query: dict[str, str]) -> SkillVersions:
    work = partial(_listed_versions_now, request=request, name=name, query=query)
    return await request.registry.read_page(work)


def _listed_versions_now(connection: Any, *, request: Asked, name: str, query: dict[str, str]) -> SkillVersions:
    cursor, order = query.get("page", ""), order_of(query) or "desc"
    if query.get("after"):
        cursor = cursor_after_version(
            connection,
            identity=request.identity,
            key=request.key,
            name=name,
            version=version_number(name, query["after"]),
            oldest_first=order == "asc",
        )
    page = versions_page(request, name, limit_of(query), cursor, order, connection)
    versions = [row.version for row in page.versions]
    descriptions = descriptions_of(connection, name=name, versions=versions)
    data = [version_of(row, descriptions.get(row.version, ""), request.headers) for row in page.versions]
    first, last = (data[0].id, data[-1].id) if data else (None, None)
    more = page.next_cursor
    return SkillVersions("list", data, first, last, has_more=more is not None, next_page=more)
