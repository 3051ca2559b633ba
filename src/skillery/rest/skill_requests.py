"""Functions that the endpoints of `/v1/skills` share: they read requests, call the registry, and make answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import partial
from typing import Any, Literal, NamedTuple, cast
from urllib.parse import unquote_to_bytes

import msgspec

from skillery.backends import Identity
from skillery.database.registry import Registry
from skillery.errors import InvalidParams, SkilleryError, VersionNotFound
from skillery.formats.names import index_name
from skillery.formats.semver import Version
from skillery.formats.version_spec import VersionSpec
from skillery.formats.wording import quoted
from skillery.http.gate import Gate
from skillery.http.requests import HttpRefusal, send_bytes
from skillery.importing import Importer
from skillery.labels.labels import point_label
from skillery.methods.errors import NOT_FOUND, encode, is_refusal, plain_error
from skillery.rest.exports import DownloadParts
from skillery.skills.creation_order import Order
from skillery.skills.descriptions import read_description
from skillery.versions.versions import ListedVersion, VersionPage, read_versions

# -- The parts of the server that the endpoints of `/v1/skills` use ----------------------------------------------------


class SkillParts(NamedTuple):
    """The parts of the server that the endpoints of `/v1/skills` use."""

    gate: Gate
    registry: Registry
    importer: Importer
    downloads: DownloadParts


DEFAULT_LIMIT = 20
MOST_LISTED = 1000
REASON = "Deleted at /v1/skills."
"""The reason of yanks by DELETE."""
DEFAULT = "default"
"""The label of the default version of a skill."""
Headers = dict[str, str]


class Asked(NamedTuple):
    """A request of an authenticated caller, with the parts of the server."""

    parts: SkillParts
    identity: Identity
    headers: Headers

    @property
    def registry(self) -> Registry:
        return self.parts.registry

    @property
    def key(self) -> bytes:
        return self.registry.cursor_key


async def describe(request: Asked, name: str, spec: VersionSpec) -> dict[str, Any]:
    """Return the result of describe_skill with the detail `manifest`. Raise its errors."""
    work = partial(
        read_description,
        identity=request.identity,
        storage=request.registry.storage,
        name=name,
        spec=spec,
        detail="manifest",
    )
    described = await request.registry.read(work)
    skill: dict[str, Any] = msgspec.json.decode(described)["skill"]
    return skill


async def versions_of(request: Asked, name: str, limit: int, cursor: str) -> list[ListedVersion]:
    """Return at most `limit` versions after `cursor`, newest first. Raise SkillNotFound for an invisible skill."""
    page = await request.registry.read_page(partial(versions_page, request, name, limit, cursor, "desc"))
    return page.versions


def versions_page(request: Asked, name: str, limit: int, cursor: str, order: Order, connection: Any) -> VersionPage:
    """Return a page of versions, for one database connection. Raise SkillNotFound if the caller sees no such skill."""
    return read_versions(
        connection,
        request.identity,
        request.key,
        name=name,
        status="",
        namespace="",
        limit=limit,
        cursor=cursor,
        oldest_first=order == "asc",
    )


async def yanked(request: Asked, subject: str, work: Callable[[Any], object]) -> None:
    """Yank versions with `work`. Record a refusal in the audit trail, with `subject`. Raise its errors."""
    await _written(request, "yank_version", subject, work)


async def make_default(request: Asked, name: str, spec: VersionSpec) -> None:
    """Point the label `default` to the version that `spec` selects. Raise the errors of `point_label`."""
    work = partial(point_label, identity=request.identity, name=name, label=DEFAULT, spec=spec)
    await _written(request, "set_label", f"{name}@{DEFAULT}", work)


async def _written(request: Asked, action: str, subject: str, work: Callable[[Any], Any]) -> None:
    """Change the registry with `work`. Record a refusal in the audit trail. Raise the errors of `work`."""
    try:
        await request.registry.write(work)
    except SkilleryError as error:
        if is_refusal(error, "name"):
            request.parts.gate.note_refusal(request.identity, action, subject, error)
        raise


def with_token(headers: Headers) -> Headers:
    """Return the headers with the token as `authorization`. Clients of Anthropic send it as `x-api-key`."""
    if "authorization" in headers or "x-api-key" not in headers:
        return headers
    return headers | {"authorization": f"Bearer {headers['x-api-key']}"}


def segments(scope: Any, *counts: int) -> list[str]:
    """Return the decoded segments of the address. Raise HttpRefusal 404 unless their number is in `counts`."""
    raw = scope["raw_path"].partition(b"?")[0].strip(b"/").split(b"/")
    try:
        parts = [unquote_to_bytes(part).decode() for part in raw]
    except UnicodeDecodeError:
        parts = []
    if len(parts) not in counts or any("/" in part or "\0" in part for part in parts):
        raise HttpRefusal(404, plain_error(NOT_FOUND, "there is nothing at this address", "not_found"))
    return parts


def limit_of(query: dict[str, str]) -> int:
    """Return the parameter `limit` of a list. Raise InvalidParams if it is invalid."""
    text = query.get("limit", str(DEFAULT_LIMIT))
    if not (text.isascii() and text.isdecimal() and len(text) < 10 and 1 <= int(text) <= MOST_LISTED):
        raise InvalidParams(
            f"the parameter 'limit' is {quoted(text)}", hint=f"Write a number from 1 to {MOST_LISTED}.", param="limit"
        )
    return int(text)


def order_of(query: dict[str, str]) -> Order | None:
    """Return the order of a list, or None if the query has none. Raise InvalidParams if it is unknown."""
    text = query.get("order")
    if text not in (None, "asc", "desc"):
        raise InvalidParams(f"the parameter 'order' is {quoted(text)}", hint="Write asc or desc.", param="order")
    return cast("Order | None", text)


def version_number(name: str, text: str) -> str:
    """Return the version spec in an address. If `text` is the id `name@version` of a version, return its version. Raise
    VersionNotFound if the id belongs to another skill.
    """
    skill, separator, version = text.rpartition("@")
    if not separator:
        return text
    if skill != name:
        raise VersionNotFound(
            f"{quoted(text)} is not a version of '{name}'",
            hint=f"Write the name and the number of a version: {name}@1.0.0.",
            name=name,
        )
    return str(Version.parse(version))


async def send_answer(send: Any, answer: Any) -> None:
    await send_bytes(send, 200, encode(answer))


# -- Skills and versions for clients of OpenAI and Anthropic: an object has the fields that the clients of both expect -
# Only timestamps differ between OpenAI and Anthropic. Clients of Anthropic's first interface (header `anthropic-beta:
# skills-2025-10-02`) get the source as text, and the number of a deleted version as its id.


Timestamp = int | str
"""Seconds since 1970 for OpenAI, text in ISO 8601 for Anthropic (headers `anthropic-version`, `anthropic-beta`)."""


FIRST_BETA = "skills-2025-10-02"
"""The value of `anthropic-beta` that the client of Anthropic sends before its major version 1."""


class Source(msgspec.Struct):
    """The origin of a skill. Every skill of this server has the type `custom`."""

    type: Literal["custom"]


class Skill(msgspec.Struct):
    """A skill. Its id is its name."""

    id: str
    object: str
    type: str
    name: str
    description: str
    display_name: str
    display_title: str
    source: Source | Literal["custom"]
    """The text `custom` for clients that send `anthropic-beta: skills-2025-10-02`."""
    created_at: Timestamp
    updated_at: Timestamp
    default_version: str
    """The version that the label `default` points to, or else the latest version."""
    latest_version: str
    latest_version_id: str


class SkillVersion(msgspec.Struct):
    """A version of a skill. Its id is `name@version`."""

    id: str
    object: str
    type: str
    skill_id: str
    version: str
    name: str
    description: str
    directory: str
    created_at: Timestamp
    status: str
    digest: str


class Skills(msgspec.Struct):
    """A page of skills, sorted by namespace and then by name, or by creation if `order` is given."""

    object: str
    data: list[Skill]
    first_id: str | None
    last_id: str | None
    has_more: bool
    next_page: str | None


class SkillVersions(msgspec.Struct):
    """A page of versions, newest first unless `order` is `asc`."""

    object: str
    data: list[SkillVersion]
    first_id: str | None
    last_id: str | None
    has_more: bool
    next_page: str | None


class Deleted(msgspec.Struct):
    """The answer to DELETE for a skill or a version. The deleted versions are yanked: only a request for an exact
    version finds them.
    """

    id: str
    object: str
    type: str
    deleted: bool
    version: str | None = None


class InlineSource(msgspec.Struct):
    """The files of an inline skill, as a zip in base64."""

    type: Literal["base64"]
    media_type: Literal["application/zip"]
    data: str


class InlineSkill(msgspec.Struct):
    """A skill in the form in which hosted shells accept it in a request. `name` is its name in the SKILL.md."""

    type: Literal["inline"]
    name: str
    description: str
    source: InlineSource


def is_anthropic(headers: Mapping[str, str]) -> bool:
    return "anthropic-version" in headers or "anthropic-beta" in headers


def is_first_beta(headers: Mapping[str, str]) -> bool:
    """Return whether the caller uses Anthropic's first interface for skills."""
    return FIRST_BETA in (part.strip() for part in headers.get("anthropic-beta", "").split(","))


def timestamp(at: datetime | None, headers: Mapping[str, str]) -> Timestamp:
    """Return a time in the form for the client that sends `headers`. None is 1970."""
    at = at or datetime.fromtimestamp(0, UTC)
    return at.isoformat().replace("+00:00", "Z") if is_anthropic(headers) else int(at.timestamp())


def skill_of(
    name: str,
    version: str,
    description: str,
    ages: Mapping[str, tuple[datetime | None, datetime | None]],
    defaults: Mapping[str, str],
    headers: Mapping[str, str],
) -> Skill:
    """Return a skill in the form of `/v1/skills`. `version` is the latest version. `ages` are the creation times of the
    first and last version, and `defaults` the default versions, both by skill name. `headers` select the form of
    timestamps and of the source.
    """
    created_at, updated_at = ages.get(name, (None, None))
    return Skill(
        id=name,
        object="skill",
        type="skill",
        name=name,
        description=description,
        display_name=name,
        display_title=name,
        source="custom" if is_first_beta(headers) else Source("custom"),
        created_at=timestamp(created_at, headers),
        updated_at=timestamp(updated_at, headers),
        default_version=defaults.get(name, version),
        latest_version=version,
        latest_version_id=f"{name}@{version}",
    )


def version_of(row: ListedVersion, description: str, headers: Mapping[str, str]) -> SkillVersion:
    """Return a version in the form of `/v1/skills`. `row` is an item of list_versions. `headers` select the form of
    timestamps.
    """
    name, version = row.name, row.version
    return SkillVersion(
        id=f"{name}@{version}",
        object="skill.version",
        type="skill_version",
        skill_id=name,
        version=version,
        name=name,
        description=description,
        directory=index_name(name),
        created_at=timestamp(row.created_at, headers),
        status=row.status,
        digest=row.digest,
    )
