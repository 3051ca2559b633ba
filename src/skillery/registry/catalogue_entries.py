"""The entries of the catalogue: what a page shows of a version next to its item of list_skills."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any

import msgspec
from msgspec import Meta
from sqlalchemy import BindParameter, Connection, bindparam, select

from skillery.database import in_utc
from skillery.database.tables import catalogue, labels, skill_versions
from skillery.formats.languages import SkillLanguage
from skillery.registry.catalogue_filters import FilterStatus


class Deprecation(msgspec.Struct, frozen=True):
    """The message of a deprecated skill, and its successor."""

    message: str
    successor: str | None


class CatalogueEntry(msgspec.Struct, frozen=True):
    """Facts about a version and the usage of its skill, for a row of a catalogue."""

    status: FilterStatus
    language: Annotated[SkillLanguage, Meta(description="markdown for a skill without code")]
    tags: list[str]
    verified: Annotated[bool, Meta(description="Whether it has examples and all passed")]
    labels: Annotated[list[str], Meta(description="Labels that point to this version")]
    hosts: Annotated[int, Meta(description="Number of entries of permissions.network")]
    secrets: Annotated[int, Meta(description="Number of entries of permissions.secrets")]
    published_at: Annotated[datetime, Meta(description="Time of the approval, or of the publication without a review")]
    runs_30d: Annotated[int, Meta(description="Ended runs of the skill in the last 30 days, added up every hour")]
    success_rate_30d: Annotated[
        float | None, Meta(description="Completed runs divided by completed and failed runs; null without any")
    ]
    deprecated: Deprecation | None


class Shown(msgspec.Struct, frozen=True):
    """The stored items of a version, and its entry."""

    version_id: int
    names_json: str
    summary_json: str
    entry: CatalogueEntry


class _Permissions(msgspec.Struct):
    network: list[str] = []
    secrets: list[str] = []


class _Manifest(msgspec.Struct):
    permissions: _Permissions = msgspec.field(default_factory=_Permissions)
    tags: list[str] = []


class _Standing(msgspec.Struct):
    deprecated: Deprecation | None = None


_manifest = msgspec.json.Decoder(_Manifest)
_standing = msgspec.json.Decoder(_Standing)
_ids: BindParameter[int] = bindparam("version_ids", expanding=True)
_SHOWN = (
    select(
        catalogue,
        skill_versions.c.names_json,
        skill_versions.c.summary_json,
        skill_versions.c.manifest_json,
        skill_versions.c.standing_json,
    )
    .join_from(catalogue, skill_versions, skill_versions.c.id == catalogue.c.version_id)
    .where(catalogue.c.version_id.in_(_ids))
)
_LABELS = select(labels.c.version_id, labels.c.label).where(labels.c.version_id.in_(_ids)).order_by(labels.c.label)


def show(connection: Connection, version_ids: Sequence[int]) -> list[Shown]:
    """Return the items and entries of these versions, in this order, without versions that have left the catalogue."""
    given = {"version_ids": list(version_ids)}
    labelled: dict[int, list[str]] = {}
    for version_id, label in connection.execute(_LABELS, given):
        labelled.setdefault(version_id, []).append(label)
    found = {row.version_id: _shown(row, labelled.get(row.version_id, [])) for row in connection.execute(_SHOWN, given)}
    return [found[version_id] for version_id in version_ids if version_id in found]


def _shown(row: Any, labels_of_version: list[str]) -> Shown:
    manifest = _manifest.decode(row.manifest_json)
    counted = row.completed_30d + row.failed_30d
    entry = CatalogueEntry(
        status=row.status,
        language=row.language,
        tags=manifest.tags,
        verified=row.verified,
        labels=labels_of_version,
        hosts=len(manifest.permissions.network),
        secrets=len(manifest.permissions.secrets),
        published_at=in_utc(row.published_at),
        runs_30d=row.runs_30d,
        success_rate_30d=round(row.completed_30d / counted, 4) if counted else None,
        deprecated=_standing.decode(row.standing_json).deprecated if row.standing_json else None,
    )
    return Shown(row.version_id, row.names_json, row.summary_json, entry)


def with_entry(item_json: str, entry: CatalogueEntry) -> str:
    """Return the JSON text of an item with the member `catalogue` added."""
    return f'{item_json[:-1]},"catalogue":{msgspec.json.encode(entry).decode()}}}'
