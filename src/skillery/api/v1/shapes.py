"""Skills and versions for clients of OpenAI and Anthropic. One object has the fields that the clients of both expect.

Only timestamps, and the id of a deleted version, differ between OpenAI and Anthropic.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

import msgspec

from skillery.formats.agent_skill import index_name
from skillery.registry import ListedVersion

Timestamp = int | str
"""Seconds since 1970. Clients of Anthropic (headers `anthropic-version`, `anthropic-beta`) get a text in ISO 8601."""


class Skill(msgspec.Struct):
    """A skill. Its id is its name."""

    id: str
    object: str
    type: str
    name: str
    description: str
    display_title: str
    source: str
    created_at: Timestamp
    updated_at: Timestamp
    default_version: str
    latest_version: str


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
    """A page of skills, sorted by namespace and then by name."""

    object: str
    data: list[Skill]
    first_id: str | None
    last_id: str | None
    has_more: bool
    next_page: str | None


class SkillVersions(msgspec.Struct):
    """A page of versions, newest first."""

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


def is_anthropic(headers: Mapping[str, str]) -> bool:
    return "anthropic-version" in headers or "anthropic-beta" in headers


def timestamp(at: datetime | None, headers: Mapping[str, str]) -> Timestamp:
    at = at or datetime.fromtimestamp(0, UTC)
    return at.isoformat().replace("+00:00", "Z") if is_anthropic(headers) else int(at.timestamp())


def skill_of(
    name: str,
    version: str,
    description: str,
    ages: Mapping[str, tuple[datetime | None, datetime | None]],
    headers: Mapping[str, str],
) -> Skill:
    begun, changed = ages.get(name, (None, None))
    return Skill(
        id=name,
        object="skill",
        type="skill",
        name=name,
        description=description,
        display_title=name,
        source="custom",
        created_at=timestamp(begun, headers),
        updated_at=timestamp(changed, headers),
        default_version=version,
        latest_version=version,
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
