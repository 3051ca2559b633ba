"""Skills and versions for clients of OpenAI and Anthropic. One object has the fields that the clients of both expect.

Only timestamps differ between OpenAI and Anthropic. Clients of Anthropic's first interface (header `anthropic-beta:
skills-2025-10-02`) get the source as text, and the number of a deleted version as its id.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Literal

import msgspec

from skillery.formats.agent_skill import index_name
from skillery.versions.versions import ListedVersion

Timestamp = int | str
"""Seconds since 1970. Clients of Anthropic (headers `anthropic-version`, `anthropic-beta`) get a text in ISO 8601."""


FIRST_BETA = "skills-2025-10-02"
"""The value of `anthropic-beta` in requests of the client of Anthropic before its major version 1."""


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
    """Return a skill in the shape of `/v1/skills`. `version` is the latest version. `defaults` are default versions by
    the names of their skills. `headers` select the form of timestamps and of the source.
    """
    begun, changed = ages.get(name, (None, None))
    return Skill(
        id=name,
        object="skill",
        type="skill",
        name=name,
        description=description,
        display_name=name,
        display_title=name,
        source="custom" if is_first_beta(headers) else Source("custom"),
        created_at=timestamp(begun, headers),
        updated_at=timestamp(changed, headers),
        default_version=defaults.get(name, version),
        latest_version=version,
        latest_version_id=f"{name}@{version}",
    )


def version_of(row: ListedVersion, description: str, headers: Mapping[str, str]) -> SkillVersion:
    """Return a version in the shape of `/v1/skills`. `row` is an item of list_versions. `headers` select the form of
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
