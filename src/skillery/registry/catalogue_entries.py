"""The entries of the catalogue: what a page shows of a version next to its item of list_skills."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from functools import cache
from typing import Annotated

import msgspec
from msgspec import Meta
from sqlalchemy import BindParameter, Connection, bindparam, func, literal_column, select

from skillery.database import Statement, in_utc
from skillery.database.tables import catalogue, labels, skill_versions
from skillery.formats.languages import SkillLanguage
from skillery.registry.catalogue_filters import FilterStatus
from skillery.registry.usage_days import SUMS, from_first_day, sums_from
from skillery.registry.version_rows import standing_warnings


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
    runs_30d: Annotated[int, Meta(description="Ended runs of the skill in the last 30 days")]
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
    warnings: list[str]


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
_SIZES = (1, 20, 50)
"""Numbers of versions that statements are compiled for. A shorter list repeats its last version."""
_labels = func.aggregate_strings(labels.c.label, literal_column("','"))  # type: ignore[arg-type]
_COLUMNS = (
    catalogue.c.version_id,
    skill_versions.c.names_json,
    skill_versions.c.summary_json,
    skill_versions.c.manifest_json,
    skill_versions.c.standing_json,
    catalogue.c.status,
    catalogue.c.language,
    catalogue.c.verified,
    catalogue.c.published_at,
    SUMS,
    # A column of each row, because a separate statement would be another round trip to Postgres.
    select(_labels).where(labels.c.version_id == catalogue.c.version_id).scalar_subquery(),
)


@cache
def _statement(count: int) -> Statement:
    wanted: list[BindParameter[int]] = [bindparam(f"version_{place}") for place in range(count)]
    both = catalogue.join(skill_versions, skill_versions.c.id == catalogue.c.version_id)
    return Statement(select(*_COLUMNS).select_from(both).where(catalogue.c.version_id.in_(wanted)))


def show(connection: Connection, version_ids: Sequence[int]) -> list[Shown]:
    """Return the items and entries of these versions, in this order, without versions that have left the catalogue."""
    found: dict[int, Shown] = {}
    for start in range(0, len(version_ids), _SIZES[-1]):
        wanted = version_ids[start : start + _SIZES[-1]]
        count = next(size for size in _SIZES if size >= len(wanted))
        given = {f"version_{place}": wanted[min(place, len(wanted) - 1)] for place in range(count)}
        found |= {row[0]: _shown(*row) for row in _statement(count).rows(connection, **given, **from_first_day())}
    return [found[version_id] for version_id in version_ids if version_id in found]


def _shown(
    version_id: int,
    names_json: str,
    summary_json: str,
    manifest_json: str,
    standing_json: str | None,
    status: FilterStatus,
    language: SkillLanguage,
    verified: bool,
    published_at: datetime | str,
    sums: str,
    labels_text: str | None,
) -> Shown:
    manifest = _manifest.decode(manifest_json)
    runs, completed, failed = sums_from(sums)
    counted = completed + failed
    entry = CatalogueEntry(
        status=status,
        language=language,
        tags=manifest.tags,
        verified=bool(verified),
        labels=sorted(labels_text.split(",")) if labels_text else [],
        hosts=len(manifest.permissions.network),
        secrets=len(manifest.permissions.secrets),
        published_at=in_utc(published_at),
        runs_30d=runs,
        success_rate_30d=round(completed / counted, 4) if counted else None,
        deprecated=_standing.decode(standing_json).deprecated if standing_json else None,
    )
    return Shown(version_id, names_json, summary_json, entry, standing_warnings(standing_json))


def with_entry(item_json: str, entry: CatalogueEntry) -> str:
    """Return the JSON text of an item with the member `catalogue` added."""
    return f'{item_json[:-1]},"catalogue":{msgspec.json.encode(entry).decode()}}}'
