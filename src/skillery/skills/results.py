"""Structs of results. The registry mostly returns stored JSON text instead; a test decodes such answers into these
structs.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import UNSET, Meta, Struct, UnsetType

from skillery.formats.manifest import Kind
from skillery.registry.cursors import NextCursor
from skillery.registry.version_rows import Object
from skillery.skills.catalogue_counts import Facets
from skillery.skills.catalogue_listings import CatalogueEntry

SUMMARY = Meta(description="With detail 'summary'")
DEPRECATED = Meta(description="If the version is deprecated or yanked, with the successor")
CATALOGUE = Meta(description="With catalogue: true")
TOTAL = Meta(description="With counts: true: the number of matching rows of all pages, at most 1000")
IS_MORE = Meta(description="With counts: true: whether there are more than total")
FACETS = Meta(description="With counts: true")


class SkillRow(Struct, frozen=True):
    """The latest version of a skill."""

    name: str
    version: str
    description: str
    namespace: str
    kind: Kind
    tags: Annotated[list[str] | UnsetType, SUMMARY] = UNSET
    inputs: Annotated[Object | UnsetType, SUMMARY] = UNSET
    tools: Annotated[list[str] | UnsetType, SUMMARY] = UNSET
    warnings: Annotated[list[str] | UnsetType, DEPRECATED] = UNSET
    catalogue: Annotated[CatalogueEntry | UnsetType, CATALOGUE] = UNSET


class SkillPage(Struct, frozen=True):
    """A page of skills, sorted by the bytes of (namespace, name)."""

    skills: list[SkillRow]
    next_cursor: NextCursor
    total: Annotated[int | UnsetType, TOTAL] = UNSET
    total_is_more: Annotated[bool | UnsetType, IS_MORE] = UNSET
    facets: Annotated[Facets | UnsetType, FACETS] = UNSET
