"""`/v1/skills` and `/v1/skills/{skill_id}`. The id of a skill is its name.

DELETE deletes nothing, but yanks all versions of a skill, because a version number is never used again.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Literal

import msgspec

from skillery.backends import Identity
from skillery.errors import InvalidParams, LabelNotFound, SkilleryError, VersionNotFound
from skillery.exports import Export
from skillery.formats.names import parse_namespace, parse_skill_name
from skillery.formats.semver import Version
from skillery.formats.version_spec import Exact, Label, Latest, VersionSpec, parse_version_spec
from skillery.http.requests import check_json, only, query_of, read_body
from skillery.importing import ImportOptions
from skillery.methods.errors import explain
from skillery.registry.visibility import hidden_audiences
from skillery.rest.exports import answer_export
from skillery.rest.skill_requests import (
    DEFAULT,
    REASON,
    Asked,
    Deleted,
    Headers,
    Skill,
    SkillParts,
    Skills,
    SkillVersion,
    SkillVersions,
    describe,
    is_anthropic,
    is_first_beta,
    limit_of,
    make_default,
    order_of,
    segments,
    send_answer,
    skill_of,
    version_number,
    version_of,
    versions_of,
    versions_page,
    with_token,
    yanked,
)
from skillery.rest.skill_uploads import published
from skillery.skills.catalogue_filters import CHOICES, FLAGS, CatalogueFilter, SkillFilters, filter_of
from skillery.skills.catalogue_listings import SkillPage, cursor_after_name, list_catalogue
from skillery.skills.creation_order import Order, cursor_after_creation, labelled_versions, list_by_creation
from skillery.skills.listings import cursor_after_skill, read_skills
from skillery.versions.lifecycle import yank, yank_skill
from skillery.versions.versions import ages, cursor_after_version, descriptions_of, find_version

WAITING = {"draft", "in_review"}
LIST_QUERY = ("limit", "after", "page", "order", "source", *FLAGS, *CHOICES)
MOST_BYTES = 64 * 1024
"""The maximum size of the body that sets the default version."""


class NewDefault(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of a request that sets the default version of a skill."""

    default_version: str


async def skills_endpoint(parts: SkillParts, scope: Any, receive: Any, send: Any, headers: Headers) -> None:
    """Answer `/v1/skills`. GET lists skills, POST publishes a new skill."""
    only(scope, "GET", "HEAD", "POST")
    segments(scope, 2)
    headers = with_token(headers)
    if scope["method"] == "POST":
        request = Asked(parts, await parts.gate.admit(scope, headers, "publish", "create_skill"), headers)
        query = query_of(scope, "beta", "namespace")
        options = ImportOptions(namespace=parse_namespace(query.get("namespace", "")), is_new=True)
        report, _ = await published(request, receive, options)
        await send_answer(send, await _skill(request, report.name, parse_version_spec(report.version)))
        return
    request = Asked(parts, await parts.gate.admit(scope, headers, "read", "list_skills"), headers)
    await send_answer(send, await _listed(request, query_of(scope, "beta", *LIST_QUERY)))


async def skill_endpoint(parts: SkillParts, scope: Any, receive: Any, send: Any, headers: Headers) -> None:
    """Answer `/v1/skills/{skill_id}`. GET describes a skill, POST sets its default version, DELETE yanks all its
    versions.
    """
    only(scope, "GET", "HEAD", "POST", "DELETE")
    headers = with_token(headers)
    _, _, skill_id = segments(scope, 3)
    query_of(scope, "beta")
    if scope["method"] == "DELETE":
        request = Asked(parts, await parts.gate.admit(scope, headers, "publish", "yank_version"), headers)
        await yanked(request, skill_id, partial(yank_skill, identity=request.identity, name=skill_id, reason=REASON))
        await send_answer(send, Deleted(skill_id, "skill.deleted", "skill_deleted", deleted=True))
        return
    if scope["method"] == "POST":
        check_json(headers)
        request = Asked(parts, await parts.gate.admit(scope, headers, "publish", "set_label"), headers)
        default_version = _new_default(await read_body(receive, headers, MOST_BYTES))
        name = parse_skill_name(skill_id)
        await make_default(request, name, parse_version_spec(version_number(name, default_version)))
        await send_answer(send, await _skill(request, name, Latest()))
        return
    request = Asked(parts, await parts.gate.admit(scope, headers, "read", "describe_skill"), headers)
    await send_answer(send, await _skill(request, parse_skill_name(skill_id), Latest()))


async def content_endpoint(parts: SkillParts, scope: Any, _receive: Any, send: Any, headers: Headers) -> None:
    """Answer `/v1/skills/{skill_id}/content` and `…/versions/{version}/content` with a zip of the files."""
    await _send_files(parts, scope, send, headers, "zip")


async def inline_endpoint(parts: SkillParts, scope: Any, _receive: Any, send: Any, headers: Headers) -> None:
    """Answer `/v1/skills/{skill_id}/inline` and `…/versions/{version}/inline` with the files in a JSON object."""
    await _send_files(parts, scope, send, headers, "inline")


async def _send_files(
    parts: SkillParts, scope: Any, send: Any, headers: Headers, form: Literal["zip", "inline"]
) -> None:
    only(scope, "GET", "HEAD")
    headers = with_token(headers)
    identity = await parts.gate.admit(scope, headers, "read", "read_skill_file")
    export, spec = await _exported(parts, scope, identity)
    await answer_export(parts.downloads, scope, send, headers, identity, export, spec, form)


async def _exported(parts: SkillParts, scope: Any, identity: Identity) -> tuple[Export, VersionSpec]:
    """Return the export of the version in the address, or of the default version, and its version spec."""
    _, _, skill_id, *rest = segments(scope, 4, 6)
    query_of(scope, "beta")
    name, exports = parse_skill_name(skill_id), parts.downloads.exports
    if rest[1:]:
        spec = parse_version_spec(version_number(name, rest[1]))
        return await exports.find(identity, name, spec), spec
    try:
        return await exports.find(identity, name, Label(DEFAULT)), Label(DEFAULT)
    except LabelNotFound:
        return await exports.find(identity, name, Latest()), Latest()


def _new_default(body: bytes) -> str:
    """Return the version spec in the body. Raise InvalidParams if the body is invalid."""
    try:
        return msgspec.json.decode(body, type=NewDefault).default_version
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidParams(
            f"the body sets no default version: {error}", hint='Send {"default_version": "1.0.0"}.'
        ) from None


async def _listed(request: Asked, query: dict[str, str]) -> Skills:
    """Return a page of skills for the parameters of the query. Raise InvalidParams if one is invalid."""
    limit = limit_of(query)
    cursor, order, filters = query.get("page", ""), order_of(query), _filters_of(request, query)
    if order is not None and filters is not None:
        raise InvalidParams(
            "filters and 'order' exclude each other", hint="Filtered skills are sorted by name.", param="order"
        )
    if query.get("after"):
        cursor = await _cursor_after(request, parse_skill_name(query["after"]), order, filters)
    if query.get("source", "custom") != "custom":
        return Skills("list", [], None, None, has_more=False, next_page=None)
    work = partial(_listed_now, request=request, limit=limit, cursor=cursor, order=order, filters=filters)
    return await request.registry.read_page(work)


def _filters_of(request: Asked, query: dict[str, str]) -> CatalogueFilter | None:
    """Return the filters of list_skills in the query, or None. Raise InvalidParams if one is invalid."""
    texts = {name: text for name, text in query.items() if name in FLAGS or name in CHOICES}
    booleans = {"true": True, "false": False}
    params = msgspec.json.encode({name: booleans.get(texts[name], texts[name]) for name in texts})
    try:
        facts = msgspec.json.decode(params, type=SkillFilters).facts(msgspec.UNSET)
    except msgspec.ValidationError as error:
        raise explain(error, SkillFilters, msgspec.Raw(params)) from None
    return filter_of("", "", (), facts, hidden_audiences(request.identity)) if texts else None


def _listed_now(
    connection: Any, *, request: Asked, limit: int, cursor: str, order: Order | None, filters: CatalogueFilter | None
) -> Skills:
    """Return a page of skills, for one database connection."""
    page = _page(connection, request, limit, cursor, order, filters)
    rows, next_cursor = page.skills, page.next_cursor
    names = [row.name for row in rows]
    ages, defaults = _facts(connection, request, names)
    data = [skill_of(row.name, row.version, row.description, ages, defaults, request.headers) for row in rows]
    first, last = (data[0].id, data[-1].id) if data else (None, None)
    return Skills("list", data, first, last, has_more=next_cursor is not None, next_page=next_cursor)


def _page(
    connection: Any, request: Asked, limit: int, cursor: str, order: Order | None, filters: CatalogueFilter | None
) -> SkillPage:
    """Return a page of list_skills: by creation if there is an `order`, else by name."""
    caller, key = request.identity, request.key
    if order is not None:
        return list_by_creation(connection, caller, key, order=order, limit=limit, cursor=cursor)
    if filters is not None:
        listing = list_catalogue(connection, caller, key, filters=filters, limit=limit, cursor=cursor)
    else:
        listing = read_skills(connection, caller, key, namespace="", detail="names", limit=limit, cursor=cursor)
    return msgspec.json.decode(listing, type=SkillPage)


def _facts(connection: Any, request: Asked, names: list[str]) -> tuple[Any, dict[str, str]]:
    """Return the creation times and the default versions of skills, both by name."""
    labelled = labelled_versions(connection, names=names, label=DEFAULT)
    return ages(connection, identity=request.identity, names=names), labelled


async def _cursor_after(request: Asked, name: str, order: Order | None, filters: CatalogueFilter | None) -> str:
    """Return the cursor with which a list of skills continues after the skill `name`.

    If the list is not ordered by creation (`order` is None), the skill need not exist.
    """
    if order is not None:
        after = partial(cursor_after_creation, identity=request.identity, key=request.key, order=order, name=name)
        return await request.registry.read_page(after)
    namespace = name.rpartition(".")[0]
    try:
        described = await describe(request, name, Latest())
        namespace = described["manifest"].get("namespace", namespace)
    except SkilleryError:
        pass  # the namespace of a skill is usually the start of its name
    if filters is not None:
        return cursor_after_name(request.key, filters, namespace, name)
    return cursor_after_skill(request.key, namespace, name)


async def _skill(request: Asked, name: str, spec: VersionSpec) -> Skill:
    """Return a skill in the form of `/v1/skills`.

    If no version is published, describe the newest version that the caller sees, if it is a draft or in review. Raise
    SkillNotFound or VersionNotFound if the caller sees no such version.
    """
    try:
        described = await describe(request, name, spec)
    except VersionNotFound:
        waiting = [row for row in await versions_of(request, name, 1, "") if row.status in WAITING]
        if not waiting:
            raise
        described = await describe(request, name, Exact(Version.parse(waiting[0].version)))
    ages, defaults = await request.registry.read_page(partial(_facts, request=request, names=[name]))
    description = described["manifest"]["description"]
    return skill_of(name, described["version"], description, ages, defaults, request.headers)


# -- `/v1/skills/{skill_id}/versions` and the addresses below. DELETE yanks a version ----------------------------------


RESOLVABLE = {"published", "deprecated"}


async def versions_endpoint(parts: SkillParts, scope: Any, receive: Any, send: Any, headers: Headers) -> None:
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


async def version_endpoint(parts: SkillParts, scope: Any, _receive: Any, send: Any, headers: Headers) -> None:
    """Answer `/v1/skills/{skill_id}/versions/{version}`. GET describes a version, DELETE yanks it."""
    only(scope, "GET", "HEAD", "DELETE")
    headers = with_token(headers)
    _, _, skill_id, _, text = segments(scope, 5)
    query_of(scope, "beta")
    name = parse_skill_name(skill_id)
    if scope["method"] == "DELETE":
        request = Asked(parts, await parts.gate.admit(scope, headers, "publish", "yank_version"), headers)
        version = Version.parse(version_number(name, text))
        work = partial(yank, identity=request.identity, name=name, version=version, reason=REASON)
        await yanked(request, f"{name}@{version}", work)
        version_id = str(version) if is_first_beta(headers) else f"{name}@{version}"
        kinds = ("skill.version.deleted", "skill_version_deleted")
        await send_answer(send, Deleted(version_id, *kinds, deleted=True, version=str(version)))
        return
    request = Asked(parts, await parts.gate.admit(scope, headers, "read", "describe_skill"), headers)
    await send_answer(send, await _version(request, name, parse_version_spec(version_number(name, text))))


async def _version(request: Asked, name: str, spec: VersionSpec) -> SkillVersion:
    """Return a version in the form of `/v1/skills`. Raise SkillNotFound or VersionNotFound."""
    described = await describe(request, name, spec)
    work = partial(find_version, identity=request.identity, name=name, version=described["version"])
    row = await request.registry.read_page(work)
    return version_of(row, described["manifest"]["description"], request.headers)


async def _listed_versions(request: Asked, name: str, query: dict[str, str]) -> SkillVersions:
    work = partial(_listed_versions_now, request=request, name=name, query=query)
    return await request.registry.read_page(work)


def _listed_versions_now(connection: Any, *, request: Asked, name: str, query: dict[str, str]) -> SkillVersions:
    """Return a page of versions for the parameters of the query, for one database connection."""
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
    next_cursor = page.next_cursor
    return SkillVersions("list", data, first, last, has_more=next_cursor is not None, next_page=next_cursor)
