"""describe_skill: the manifest and documentation of a version. Most of the answer is stored as JSON text."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any, Literal, cast

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType
from sqlalchemy import Connection, bindparam, select

from skillery.backends import Identity, Provenance, Storage
from skillery.context.budget import expect_result
from skillery.database import Statement
from skillery.database.tables import catalogue, skill_files, skill_versions, version_usage
from skillery.formats.check_results import CheckedExample, CheckFinding, PermissionsDiff
from skillery.formats.foreign_skill import Audience, title_of
from skillery.formats.json_pieces import JsonPieces, slices_of, string_pieces
from skillery.formats.licences import Origin
from skillery.formats.manifest import Kind
from skillery.formats.names import index_name
from skillery.formats.npm import NPM_LOCK
from skillery.formats.scripts import Script
from skillery.formats.skill_md import FILE as SKILL_MD
from skillery.formats.skill_md import text_of
from skillery.formats.version_spec import VersionSpec, parse_named
from skillery.method import Json, Method, Params, about
from skillery.registry.index_names import HOLDER, index_name_warning
from skillery.registry.requires import Required, declared_by, ranges_of, seen_calls, seen_closure, withdrawal_of
from skillery.registry.resolution import Lookup, resolve_with
from skillery.registry.revocations import require_readable
from skillery.registry.usage import USAGE, Usage, usage_from
from skillery.registry.uses import ContentParts
from skillery.registry.version_rows import Approval, Object, Objection, Status, VersionRow, standing_warnings
from skillery.registry.visibility import Visibility
from skillery.skills.catalogue_filters import is_listed
from skillery.skills.catalogue_listings import TITLE, Deprecation
from skillery.skills.catalogue_rows import LOOKS_LIKE
from skillery.skills.files import file_size, files_in, read_file
from skillery.skills.locked_packages import SkillLock, lock_json

_USAGE_OF_ROW = [
    select(column).where(version_usage.c.version_id == skill_versions.c.id).scalar_subquery().label(f"usage_{place}")
    for place, column in enumerate(USAGE)
]
_NPM_LOCK_OF_ROW = select(skill_files.c.sha256).where(
    skill_files.c.version_id == skill_versions.c.id, skill_files.c.path == NPM_LOCK
)
_LOOKS_LIKE_OF_ROW = select(LOOKS_LIKE).where(catalogue.c.skill_id == skill_versions.c.skill_id, is_listed())
_DETAILED = Lookup(
    *_USAGE_OF_ROW,
    HOLDER.label("holder"),
    _NPM_LOCK_OF_ROW.scalar_subquery().label("npm_lock"),
    _LOOKS_LIKE_OF_ROW.scalar_subquery().label("looks_like"),
)
# For development versions: their usage is empty, but another skill may hold their index name.
_DETAILS = Statement(
    select(*USAGE, HOLDER.label("holder")).where(version_usage.c.version_id == bindparam("version_id"))
)

Detail = Literal["manifest", "summary"]


def read_description(
    connection: Connection, identity: Identity, storage: Storage, *, name: str, spec: VersionSpec, detail: Detail
) -> msgspec.Raw:
    """Return `{"skill": {…}}` as JSON.

    Raise SkillNotFound, VersionNotFound or LabelNotFound if `name` and `spec` match no version that the identity sees.
    """
    row, details = _version_with_details(connection, identity, name, spec)
    return msgspec.Raw(f'{{"skill":{{{_described(connection, identity, storage, row, details, detail)}}}}}'.encode())


def describe_in_full(
    connection: Connection,
    identity: Identity,
    storage: Storage,
    *,
    name: str,
    spec: VersionSpec,
) -> tuple[int, JsonPieces]:
    """Return the id of the version and the answer of `describe_skill`, with SKILL.md and the list of files.

    Raise the errors of `expect_result`.
    """
    row, details = _version_with_details(connection, identity, name, spec)
    described = _described(connection, identity, storage, row, details, "full")
    files = [
        {"path": file.path, "size_bytes": file.size_bytes, "sha256": file.sha256, "executable": file.executable}
        for file in files_in(connection, row)
    ]
    expect_result(file_size(connection, row, SKILL_MD))
    skill_md = text_of(read_file(connection, storage, row, SKILL_MD))
    head, tail = f'{{"skill":{{{described},"skill_md":', f',"files":{_json(files)}}}}}'
    return row.version_id, JsonPieces([head.encode(), *string_pieces(slices_of(skill_md)), tail.encode()])


def _version_with_details(
    connection: Connection, identity: Identity, name: str, spec: VersionSpec
) -> tuple[VersionRow, tuple[Any, ...]]:
    """Return the version, and the further columns of _DETAILED."""
    wanted = index_name(name)
    row, details = resolve_with(_DETAILED, connection, identity, name, spec, index_name=wanted)
    if details is None:
        [of_name] = _DETAILS.rows(connection, version_id=row.version_id, index_name=wanted)
        npm_lock = next((file.sha256 for file in files_in(connection, row) if file.path == NPM_LOCK), None)
        details = (*of_name, npm_lock, None)
    else:
        require_readable(identity, row)
    return row, tuple(details)


def _described(
    connection: Connection,
    identity: Identity,
    storage: Storage,
    row: VersionRow,
    details: tuple[Any, ...],
    detail: Detail | Literal["full"],
) -> str:
    """Return the JSON fields of `skill` as text without the outer braces, without SKILL.md and the list of files."""
    usage_cells, last_run_at, holder, npm_lock, looks_like = details
    shared_name = index_name_warning(connection, identity, row.name) if holder not in (None, row.name) else None
    if row.standing_json is None and shared_name is None:
        fields = (
            f'"name":{_json(row.name)},"version":{_json(row.version)},"kind":"{row.kind}","digest":"{row.digest}",'
            f'"status":"{row.status}","visibility":"{row.visibility}","warnings":{row.warnings_json},'
            f'"manifest":{row.whole_manifest_json}'
        )
    else:
        fields = _with_more_warnings(row, shared_name)
    parts = [fields + lock_json(connection, storage, row, npm_lock, blocking=detail == "full")]
    required, hidden = seen_closure(connection, identity, row)
    if required:
        parts.append(f'"requires":{_json(required_skills(row, required))}')
    if hidden:
        parts.append(f'"requires_hidden":{hidden}')
    if detail != "manifest":
        usage = usage_from(usage_cells, last_run_at)
        labels = sorted(row.labels_text.split(",")) if row.labels_text else []
        parts.append(f'"labels":{_json(labels)},"skill_md_frontmatter":{row.frontmatter_json},"usage":{_json(usage)}')
        # Sent as stored, `verified` first. Most versions have no check results.
        parts.append(_checks(connection, identity, row, required))
        if title := title_of(msgspec.json.decode(row.frontmatter_json), "", row.name):
            parts.append(f'"title":{_json(title)}')
        if looks_like is not None:
            parts.append(f'"looks_like":{_json(looks_like)}')
        if row.audience is not None:
            parts.append(f'"audience":"{row.audience}"')
        if row.provenance_json:
            parts.append(f'"provenance":{row.provenance_json}')
    return ",".join(parts)


def _checks(connection: Connection, identity: Identity, row: VersionRow, required: Sequence[Required]) -> str:
    """Return the check results as JSON fields, with findings about required versions that were withdrawn since."""
    withdrawn = [finding for each in required if (finding := withdrawal_of(each.row))]
    has_calls = '"calls"' in (row.checks_json or "")
    if not (withdrawn or has_calls):
        return row.checks_json[1:-1] if row.checks_json else '"verified":false'
    checks = msgspec.json.decode(row.checks_json or '{"verified":false}')
    if has_calls and "permissions_diff" in checks:
        stored = msgspec.convert(checks["permissions_diff"], PermissionsDiff)
        checks["permissions_diff"] = seen_calls(connection, identity, stored)
    if withdrawn:
        checks["findings"] = [*checks.get("findings", []), *withdrawn]
    return _json(checks)[1:-1]


def required_skills(row: VersionRow, required: Sequence[Required]) -> list[RequiredSkill]:
    """Return the versions that a version requires, with the hosts and secrets of their calls."""
    ranges = ranges_of(row)
    return [
        RequiredSkill(
            name=each.name,
            version=each.version,
            digest=each.digest,
            status=cast(Status, each.status),
            range=ranges.get(each.name, ""),
            network=declared_by(each).permissions.network,
            secrets=declared_by(each).permissions.secrets,
        )
        for _, each in required
    ]


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()


def _with_more_warnings(row: VersionRow, more: str | None) -> str:
    """Return the JSON fields of a version that has an approval, a deprecation, a yank or a rejection, or the warning
    `more`.

    Each deprecation, yank or rejection is also a warning.
    """
    standing: dict[str, Any] = msgspec.json.decode(row.standing_json) if row.standing_json else {}
    stored = [*msgspec.json.decode(row.warnings_json), *standing_warnings(row.standing_json)]
    warnings = [*stored, more] if more else stored
    fields = {
        "name": row.name,
        "version": row.version,
        "kind": row.kind,
        "digest": row.digest,
        "status": row.status,
        "visibility": row.visibility,
        "warnings": warnings,
        **standing,
        "manifest": msgspec.Raw(row.whole_manifest_json.encode()),
    }
    return _json(fields)[1:-1]


# -- describe_skill ----------------------------------------------------------------------------------------------------


class DescribeSkill(Params, frozen=True, kw_only=True):
    """Retrieve a skill's manifest and documentation frontmatter."""

    name: Annotated[str, about("Skill name (e.g., 'salesforce.leads.sync')")]
    version: Annotated[str, about("Skill version (omit for latest)")] = ""
    detail: Annotated[Literal["manifest", "summary", "full"], about("Level of detail to return", default="summary")] = (
        "summary"
    )


async def describe_skill(contents: ContentParts, identity: Identity, params: DescribeSkill) -> Json[DescribedSkill]:
    name, spec = parse_named(params.name, params.version)
    storage = contents.registry.storage
    contents.uses.searches.open(identity.name, name)
    if params.detail == "full":
        # A large SKILL.md is in the storage, and not in the database.
        in_full = partial(describe_in_full, identity=identity, storage=storage, name=name, spec=spec)
        version_id, page = await contents.registry.read_page(in_full)
        contents.uses.note(name, "loads", version_id)
        return Json(page)
    work = partial(read_description, identity=identity, storage=storage, name=name, spec=spec, detail=params.detail)
    return Json(await contents.registry.read(work))


METHODS = (Method(describe_skill, "read", audits="", develops=True),)


_FULL = Meta(description="With detail 'full'")
_FROM_SUMMARY = Meta(description="From detail 'summary' on")


class SkillFileEntry(Struct, frozen=True):
    """A file of a bundle."""

    path: str
    size_bytes: int
    sha256: str
    executable: bool


class RequiredSkill(Struct, frozen=True):
    """A version that a skill requires, chosen when the skill was published."""

    name: str
    version: str
    digest: str
    status: Status
    range: Annotated[str, Meta(description="As in skill.toml. Empty if another required skill requires it")]
    network: Annotated[list[str], Meta(description="Hosts that a call of it may reach. Each call is a separate run")]
    secrets: list[str]


class Skill(Struct, frozen=True):
    """A version of a skill."""

    name: str
    version: str
    kind: Kind
    digest: str
    status: Status
    visibility: Visibility
    warnings: list[str]
    manifest: Annotated[Object, Meta(description="skill.toml as JSON")]
    lock: SkillLock | UnsetType = UNSET
    requires: Annotated[
        list[RequiredSkill] | UnsetType, Meta(description="All required versions, the direct ones first")
    ] = UNSET
    requires_hidden: Annotated[
        int | UnsetType, Meta(description="Number of further required skills, which the caller may not see")
    ] = UNSET
    approval: Approval | UnsetType = UNSET
    rejected: Objection | UnsetType = UNSET
    yanked: Objection | UnsetType = UNSET
    deprecated: Deprecation | UnsetType = UNSET
    labels: Annotated[list[str] | UnsetType, _FROM_SUMMARY] = UNSET
    skill_md_frontmatter: Annotated[Object | UnsetType, _FROM_SUMMARY] = UNSET
    usage: Usage | UnsetType = UNSET
    verified: Annotated[bool | UnsetType, _FROM_SUMMARY] = UNSET
    examples: list[CheckedExample] | UnsetType = UNSET
    findings: list[CheckFinding] | UnsetType = UNSET
    permissions_diff: PermissionsDiff | UnsetType = UNSET
    scripts: Annotated[list[Script] | UnsetType, _FROM_SUMMARY] = UNSET
    origin: Annotated[Origin | UnsetType, Meta(description="From detail 'summary' on, if it was imported")] = UNSET
    provenance: Annotated[
        Provenance | UnsetType, Meta(description="From detail 'summary' on, if a CI job published it")
    ] = UNSET
    title: Annotated[str | UnsetType, TITLE] = UNSET
    looks_like: Annotated[
        str | UnsetType, Meta(description="From detail 'summary' on: an older public skill of another publisher")
    ] = UNSET
    audience: Annotated[
        Audience | UnsetType, Meta(description="From detail 'summary' on, if the author made it for one audience")
    ] = UNSET
    skill_md: Annotated[str | UnsetType, _FULL] = UNSET
    files: Annotated[list[SkillFileEntry] | UnsetType, _FULL] = UNSET


class DescribedSkill(Struct, frozen=True):
    """The result of describe_skill."""

    skill: Skill
