"""The filters of the catalogue, as one SQL predicate: rows, totals and facets use the same conditions."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
from msgspec import UNSET, UnsetType
from sqlalchemy import ColumnElement, FromClause, and_, bindparam, literal_column, or_, select

from skillery.backends import Identity
from skillery.database.tables import catalogue, catalogue_tags
from skillery.errors import InvalidParams
from skillery.formats.licences import Origin, licence_of
from skillery.formats.media_types import SkillLanguage, language_of
from skillery.method import HIDDEN, Params, about, annotated_params, or_none
from skillery.registry.visibility import (
    SEEN_BY_ALL,
    Hidden,
    View,
    parameters,
    sees_each,
    versions_for,
    written_or_reviewed,
)

ListedStatus = Literal["published", "deprecated"]
FilterStatus = Literal["published", "deprecated", "draft", "in_review", "rejected", "yanked"]

LISTED = ("published", "deprecated")
MOST_TAGS = 16
_LONG_TAG = 100


class _Permissions(msgspec.Struct):
    network: list[str] = []
    secrets: list[str] = []


class Manifest(msgspec.Struct):
    """The parts of a manifest that filters use."""

    runtime: dict[str, Any] | None = None
    permissions: _Permissions = msgspec.field(default_factory=_Permissions)
    tags: list[str] = []
    description: str = ""


class Checks(msgspec.Struct):
    """The results of checks that filters use."""

    verified: bool = False
    origin: Origin | None = None


class VersionParts(NamedTuple):
    """The parts of a version that a Flag computes its value from."""

    manifest: Manifest
    checks: Checks
    paths: Sequence[str]
    """The paths of the files."""
    kind: str = "action"
    frontmatter: Mapping[str, object] = {}
    is_reviewed: bool = False

    @property
    def language(self) -> SkillLanguage:
        return language_of(self.manifest.runtime, self.paths)


class Flag(NamedTuple):
    """A boolean filter: the value of a version, and the choice on the page of skills."""

    offered: bool
    """The value that the page offers."""
    words: str
    """The words for this value."""
    of: Callable[[VersionParts], bool]


class Choice(NamedTuple):
    """A filter by a text: the value of a version."""

    of: Callable[[VersionParts], str]


def _contents(version: VersionParts) -> str:
    if version.kind == "action":
        return "action"
    return "instructions" if version.language == "markdown" else "scripts"


def _licence(version: VersionParts) -> str:
    origin, stated = version.checks.origin, licence_of(version.frontmatter)
    return (origin.licence if origin and stated == "none" else "") or stated


class SkillFilters(Params, frozen=True, kw_only=True):
    """The filters that list_skills and search_skills have in common.

    A field with a Flag or a Choice is also a column of the catalogue (FLAG_COLUMNS, CHOICE_COLUMNS), a facet, and a
    filter of the page of skills.
    """

    kind: Annotated[Literal["action", "instruction"] | UnsetType, HIDDEN, about("Only skills of this kind")] = UNSET
    tags: Annotated[list[str], HIDDEN, about("Only skills with all these tags")] = []
    language: Annotated[
        SkillLanguage | UnsetType, HIDDEN, about("Only skills in this language; 'markdown' means without code")
    ] = UNSET
    verified: Annotated[
        bool | UnsetType,
        HIDDEN,
        about("Only skills whose examples all passed (true), or only others (false)"),
        Flag(offered=True, words="verified", of=lambda version: version.checks.verified),
    ] = UNSET
    network: Annotated[
        bool | UnsetType,
        HIDDEN,
        about("Only skills without network access (false), or only with it (true)"),
        Flag(offered=False, words="no network", of=lambda version: bool(version.manifest.permissions.network)),
    ] = UNSET
    secrets: Annotated[
        bool | UnsetType,
        HIDDEN,
        about("Only skills without secrets (false), or only with secrets (true)"),
        Flag(offered=False, words="no secrets", of=lambda version: bool(version.manifest.permissions.secrets)),
    ] = UNSET
    reviewed: Annotated[
        bool | UnsetType,
        HIDDEN,
        about("Only skills whose latest version a reviewer has approved (true), or only others (false)"),
        Flag(offered=True, words="reviewed", of=lambda version: version.is_reviewed),
    ] = UNSET
    contains: Annotated[
        Literal["instructions", "scripts", "action"] | UnsetType,
        HIDDEN,
        about("Only skills with instructions alone, with instructions and scripts, or with an action"),
        Choice(of=_contents),
    ] = UNSET
    licence: Annotated[
        str | UnsetType,
        HIDDEN,
        about("Only skills with this open licence, as its SPDX expression; or 'other', or 'none'"),
        Choice(of=_licence),
    ] = UNSET
    include_internal: Annotated[bool, HIDDEN, about("Also skills that their authors call internal", default=False)] = (
        False
    )
    counts: Annotated[
        bool, HIDDEN, about("Add the number of matching skills, in all and by value of each filter", default=False)
    ] = False
    catalogue: Annotated[bool, HIDDEN, about("Add facts and usage to each skill", default=False)] = False

    def facts(self, status: FilterStatus | UnsetType) -> Facts:
        flags = tuple((name, value) for name in (*FLAGS, *CHOICES) if (value := getattr(self, name)) is not UNSET)
        return Facts(or_none(self.language) or "", or_none(status) or "", flags)


FLAGS: Mapping[str, Flag] = {
    field.name: flag
    for field, annotation in annotated_params(SkillFilters)
    for flag in annotation.__metadata__
    if isinstance(flag, Flag)
}


CHOICES: Mapping[str, Choice] = {
    field.name: choice
    for field, annotation in annotated_params(SkillFilters)
    for choice in annotation.__metadata__
    if isinstance(choice, Choice)
}


class Facts(NamedTuple):
    """Filters by values of a version. An empty text means that the filter is absent."""

    language: SkillLanguage | Literal[""] = ""
    status: FilterStatus | Literal[""] = ""
    flags: tuple[tuple[str, bool | str], ...] = ()
    """The names and values of further filters, in the order of FLAGS and CHOICES."""

    @property
    def values(self) -> dict[str, str | bool]:
        """The filters that are present, by column."""
        texts = {name: text for name, text in (("language", self.language), ("status", self.status)) if text}
        return {**texts, **dict(self.flags)}


class CatalogueFilter(NamedTuple):
    """All filters of a listing. `tags` are stored tags, sorted; a version needs all of them."""

    namespace: str = ""
    kind: str = ""
    tags: tuple[str, ...] = ()
    facts: Facts = Facts()
    hidden: Hidden = ()

    @property
    def of_listed(self) -> bool:
        """Whether the rows are the latest versions of skills, one for each skill. Else each version is a row."""
        return self.facts.status in {"", *LISTED}

    @property
    def shape(self) -> CatalogueFilter:
        """A filter with the same conditions, in which the values that are SQL parameters are replaced."""
        language: SkillLanguage | Literal[""] = "python" if self.facts.language else ""
        facts = self.facts._replace(language=language, flags=tuple((name, True) for name, _ in self.facts.flags))
        return CatalogueFilter(
            "." if self.namespace else "", "." if self.kind else "", ("",) * len(self.tags), facts, self.hidden
        )


def fact_conditions(names: tuple[str, ...], rows: FromClause = catalogue) -> list[ColumnElement[bool]]:
    """Return the SQL conditions of the facts with these names. `fact_parameters` returns their parameters."""
    return [rows.c[name] == bindparam(f"fact_{name}", type_=rows.c[name].type) for name in names]


def fact_parameters(facts: Facts) -> dict[str, Any]:
    return {f"fact_{name}": value for name, value in facts.values.items()}


def is_listed(rows: FromClause = catalogue) -> ColumnElement[bool]:
    """Return the condition for latest versions, in the form that partial indexes need."""
    return rows.c.status.in_([literal_column(f"'{status}'") for status in LISTED])


def conditions(filters: CatalogueFilter, view: View | None) -> list[ColumnElement[bool]]:
    """Return the conditions for the rows that pass the filters and that identities with this view see.

    Filters of the same shape have the same conditions.
    """
    where = [*_of_status(filters, view), *_in_namespace(filters)]
    if filters.kind:
        where.append(catalogue.c.kind == bindparam("of_kind"))
    for number in range(len(filters.tags)):
        tagged = select(catalogue_tags.c.version_id).where(catalogue_tags.c.tag == bindparam(f"filter_tag_{number}"))
        where.append(catalogue.c.version_id.in_(tagged))
    if filters.hidden and filters.of_listed:  # publishers and reviewers need the versions for other audiences too
        where.append(catalogue.c.version_id.not_in(versions_for(filters.hidden)))
    if view is not None:
        where.append(sees_each(view, catalogue, catalogue.c.skill_id))
    return where + fact_conditions(tuple(name for name in filters.facts.values if name != "status"))


def condition_parameters(filters: CatalogueFilter, identity: Identity) -> dict[str, Any]:
    """Return the parameters of `conditions`."""
    values = parameters(identity) | fact_parameters(filters.facts._replace(status=""))
    values |= {f"filter_tag_{number}": tag for number, tag in enumerate(filters.tags)}
    if filters.kind:
        values["of_kind"] = filters.kind
    if filters.namespace:
        # "/" follows "." in the order of bytes.
        values |= {"namespace": filters.namespace, "below": f"{filters.namespace}.", "past": f"{filters.namespace}/"}
    return values


def filter_of(
    namespace: str, kind: str, tags: Sequence[str], facts: Facts, hidden: Hidden = ("internal",)
) -> CatalogueFilter:
    """Return a filter. Raise InvalidParams if `tags` is invalid."""
    return CatalogueFilter(namespace, kind, tuple(map(stored_tag, check_tags(tags))), facts, hidden)


def check_tags(tags: Sequence[str]) -> list[str]:
    """Return the tags of a filter, sorted and in lower case. Raise InvalidParams if there are too many."""
    if len(tags) > MOST_TAGS:
        raise InvalidParams(
            f"'tags' has {len(tags)} tags, at most {MOST_TAGS} are allowed", hint="Filter by fewer tags.", param="tags"
        )
    if not all(tag.isprintable() for tag in tags):
        raise InvalidParams(
            "'tags' contains a character that tags cannot contain",
            hint="Copy the tags from the answer of list_skills.",
            param="tags",
        )
    return sorted({tag.strip().casefold() for tag in tags if tag.strip()})


def stored_tag(tag: str) -> str:
    """Return a tag as the catalogue stores it: in lower case. Long tags are stored as a hash after a line feed."""
    tag = tag.strip().casefold()
    return tag if len(tag) <= _LONG_TAG else f"\n{hashlib.blake2b(tag.encode(), digest_size=16).hexdigest()}"


def _in_namespace(filters: CatalogueFilter) -> list[ColumnElement[bool]]:
    if not filters.namespace:
        return []
    # The first condition is one range of an index. Similar names (`a-b` between `a` and `a.c`) need the second one.
    nearby = and_(catalogue.c.namespace >= bindparam("namespace"), catalogue.c.namespace < bindparam("past"))
    return [nearby, or_(catalogue.c.namespace == bindparam("namespace"), catalogue.c.namespace >= bindparam("below"))]


def _of_status(filters: CatalogueFilter, view: View | None) -> list[ColumnElement[bool]]:
    """Return the conditions for the status of a filter, and for versions of this status that the view sees."""
    # A literal status and the literal list of `is_listed` let both databases use the partial indexes.
    status = filters.facts.status
    if not status:
        return [is_listed()]
    is_of: ColumnElement[bool] = catalogue.c.status == literal_column(f"'{status}'")
    if filters.of_listed:
        return [is_listed(), is_of]
    where = [catalogue.c.status.not_in([literal_column(f"'{listed}'") for listed in LISTED]), is_of]
    if view is not None and status not in SEEN_BY_ALL:
        where.append(or_(*written_or_reviewed(view, catalogue, catalogue)))
    return where
