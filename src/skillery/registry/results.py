"""Structs of results. The registry mostly returns stored JSON text instead; a test decodes such answers into these
structs.
"""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import UNSET, Meta, Struct, UnsetType

from skillery.backends import Provenance
from skillery.formats.check_results import CheckedExample, CheckFinding
from skillery.formats.manifest import Kind
from skillery.formats.permissions import PermissionsDiff
from skillery.registry.catalogue_counts import Facets
from skillery.registry.catalogue_listings import CatalogueEntry, Deprecation
from skillery.registry.cursors import NextCursor
from skillery.registry.usage import Usage
from skillery.registry.versions import Status
from skillery.registry.visibility import Visibility

Object = dict[str, Any]
_SUMMARY = Meta(description="With detail 'summary'")
_FROM_SUMMARY = Meta(description="From detail 'summary' on")
_DEPRECATED = Meta(description="If the version is deprecated or yanked, with the successor")
_FULL = Meta(description="With detail 'full'")
_CATALOGUE = Meta(description="With catalogue: true")
_TOTAL = Meta(description="With counts: true: the number of matching rows of all pages, at most 1000")
_IS_MORE = Meta(description="With counts: true: whether there are more than total")
_FACETS = Meta(description="With counts: true")


class SkillRow(Struct, frozen=True):
    """The latest version of a skill."""

    name: str
    version: str
    description: str
    namespace: str
    kind: Kind
    tags: Annotated[list[str] | UnsetType, _SUMMARY] = UNSET
    inputs: Annotated[Object | UnsetType, _SUMMARY] = UNSET
    tools: Annotated[list[str] | UnsetType, _SUMMARY] = UNSET
    warnings: Annotated[list[str] | UnsetType, _DEPRECATED] = UNSET
    catalogue: Annotated[CatalogueEntry | UnsetType, _CATALOGUE] = UNSET


class SkillPage(Struct, frozen=True):
    """A page of skills, sorted by the bytes of (namespace, name)."""

    skills: list[SkillRow]
    next_cursor: NextCursor
    total: Annotated[int | UnsetType, _TOTAL] = UNSET
    total_is_more: Annotated[bool | UnsetType, _IS_MORE] = UNSET
    facets: Annotated[Facets | UnsetType, _FACETS] = UNSET


class FoundSkill(Struct, frozen=True):
    """A skill that a search found."""

    name: str
    version: str
    description: str
    kind: Kind
    namespace: Annotated[str | UnsetType, _SUMMARY] = UNSET
    tags: Annotated[list[str] | UnsetType, _SUMMARY] = UNSET
    inputs: Annotated[Object | UnsetType, _SUMMARY] = UNSET
    tools: Annotated[list[str] | UnsetType, _SUMMARY] = UNSET
    score: Annotated[float | UnsetType, _SUMMARY] = UNSET
    snippet: Annotated[str | UnsetType, _SUMMARY] = UNSET
    copies: Annotated[int | UnsetType, _SUMMARY] = UNSET
    compact_inputs: Annotated[
        str | UnsetType, Meta(description="Of the first two skills; a question mark means optional")
    ] = UNSET
    warnings: Annotated[list[str] | UnsetType, _DEPRECATED] = UNSET
    catalogue: Annotated[CatalogueEntry | UnsetType, _CATALOGUE] = UNSET


class FoundSkillPage(Struct, frozen=True):
    """A page of search results, best first."""

    skills: list[FoundSkill]
    next_cursor: NextCursor
    total: Annotated[int | UnsetType, _TOTAL] = UNSET
    total_is_more: Annotated[bool | UnsetType, _IS_MORE] = UNSET
    facets: Annotated[Facets | UnsetType, _FACETS] = UNSET
    warnings: Annotated[list[str] | UnsetType, Meta(description="If the query was cut")] = UNSET


class ToolRow(Struct, frozen=True):
    """A tool of a skill or of a session."""

    name: str
    skill: Annotated[str | None, Meta(description="null for a tool of a session")]
    version: str | None
    description: str
    parameters: Annotated[Object, Meta(description="As the skill declares them")]


class ToolPage(Struct, frozen=True):
    """A page of tools, by skill and name."""

    tools: list[ToolRow]
    next_cursor: NextCursor


class Approval(Struct, frozen=True):
    """The reviewer who approved a version."""

    by: str
    kind: str
    at: str
    digest: str
    note: str


class Objection(Struct, frozen=True):
    """The identity that rejected or yanked a version, and the reason."""

    by: str
    kind: str
    at: str
    reason: str


class SkillPackage(Struct, frozen=True):
    """A package in the lock of a skill."""

    name: str
    version: str
    inferred: bool | UnsetType = UNSET


class EnvironmentState(Struct, frozen=True):
    """The state of an environment on one server."""

    state: str
    message: str | UnsetType = UNSET
    step: Annotated[str | UnsetType, Meta(description="While it is being built")] = UNSET
    done: int | UnsetType = UNSET
    total: int | UnsetType = UNSET


class SkillLock(Struct, frozen=True):
    """The locked packages of a skill with dependencies."""

    sha256: str
    packages: Annotated[list[SkillPackage] | None, Meta(description="null below detail 'full' if the lock is large")]
    environments: list[EnvironmentState]


class SkillFileEntry(Struct, frozen=True):
    """A file of a bundle."""

    path: str
    size_bytes: int
    sha256: str
    executable: bool


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
    provenance: Annotated[
        Provenance | UnsetType, Meta(description="From detail 'summary' on, if a CI job published it")
    ] = UNSET
    skill_md: Annotated[str | UnsetType, _FULL] = UNSET
    files: Annotated[list[SkillFileEntry] | UnsetType, _FULL] = UNSET


class DescribedSkill(Struct, frozen=True):
    """The result of describe_skill."""

    skill: Skill
