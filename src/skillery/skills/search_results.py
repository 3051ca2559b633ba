"""The results of a search: the details of each skill that is shown, and the items of an answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal, NamedTuple

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType
from sqlalchemy import Connection, and_

from skillery.database import ListStatement, select_row
from skillery.database.tables import objects, search_words, skill_files, skill_versions
from skillery.formats.inputs import compact_inputs, inputs_in
from skillery.formats.search_fields import snippet_of
from skillery.registry.cursors import NextCursor
from skillery.registry.version_rows import Object, standing_warnings
from skillery.skills.catalogue_counts import Counts, Facets
from skillery.skills.catalogue_listings import (
    CATALOGUE,
    DEPRECATED,
    FACETS,
    IS_MORE,
    SUMMARY,
    TITLE,
    TOTAL,
    CatalogueEntry,
    SkillRow,
)
from skillery.skills.search_index import SKILL_MD, body_in
from skillery.skills.search_order import Shown
from skillery.skills.search_terms import Meaning

Kind = Literal["", "action", "instruction"]
WITH_INPUTS = 2
"""Number of items of a page that have the inputs in compact form."""
BRIEF_DESCRIPTION = 200
NOT_BRIEF = ("title", "namespace", "tags", "inputs", "tools", "score", "snippet", "copies")
_LEAST_SCORE = 0.001


class _StoredRow(SkillRow, frozen=True, kw_only=True):
    """The summary of a version as it was stored. Summaries that early releases stored do not have `namespace` and
    `kind`.
    """

    namespace: str = ""
    kind: Literal["action", "instruction"] = "action"


_rows = msgspec.json.Decoder(_StoredRow)


class _Details(NamedTuple):
    skill_id: int
    version_id: int
    summary_json: str
    standing_json: str | None
    skill_md_start: str | None
    data: bytes | None
    """The content of SKILL.md, if the file is small."""


_DETAILS = ListStatement(
    select_row(_Details, search_words, skill_versions, objects)
    .join_from(search_words, skill_versions, skill_versions.c.id == search_words.c.version_id)
    .outerjoin(skill_files, and_(skill_files.c.version_id == skill_versions.c.id, skill_files.c.path == SKILL_MD))
    .outerjoin(objects, objects.c.sha256 == skill_files.c.sha256),
    skill_ids=search_words.c.skill_id,
)


class FoundSkill(Struct, frozen=True):
    """A skill that a search found."""

    name: str
    version: str
    description: str
    kind: Kind
    title: Annotated[str | UnsetType, TITLE] = UNSET
    namespace: Annotated[str | UnsetType, SUMMARY] = UNSET
    tags: Annotated[list[str] | UnsetType, SUMMARY] = UNSET
    inputs: Annotated[Object | UnsetType, SUMMARY] = UNSET
    tools: Annotated[list[str] | UnsetType, SUMMARY] = UNSET
    score: Annotated[float | UnsetType, SUMMARY] = UNSET
    snippet: Annotated[str | UnsetType, SUMMARY] = UNSET
    copies: Annotated[int | UnsetType, SUMMARY] = UNSET
    found_by: Annotated[
        Literal["meaning"] | UnsetType, Meta(description="If no word matches, but the ranker found the skill")
    ] = UNSET
    compact_inputs: Annotated[
        str | UnsetType, Meta(description="Of the first two skills; a question mark means optional")
    ] = UNSET
    warnings: Annotated[list[str] | UnsetType, DEPRECATED] = UNSET
    catalogue: Annotated[CatalogueEntry | UnsetType, CATALOGUE] = UNSET


class FoundSkillPage(Struct, frozen=True):
    """A page of search results, best first."""

    skills: list[FoundSkill]
    next_cursor: NextCursor
    total: Annotated[int | UnsetType, TOTAL] = UNSET
    total_is_more: Annotated[bool | UnsetType, IS_MORE] = UNSET
    facets: Annotated[Facets | UnsetType, FACETS] = UNSET
    warnings: Annotated[list[str] | UnsetType, Meta(description="If the query was cut")] = UNSET
    ranking: Annotated[
        Literal["words"] | UnsetType, Meta(description="If the ranker of the server did not answer in time")
    ] = UNSET


class Result(NamedTuple):
    """One skill in the results, with its details."""

    shown: Shown
    details: _Details

    @property
    def size(self) -> int:
        return len(self.details.summary_json.encode())


def read_results(connection: Connection, rows: Sequence[Shown]) -> list[Result]:
    """Return the rows with their details. A skill that was hidden or yanked after the ranking is left out."""
    rows_read = map(_Details._make, _DETAILS.rows(connection, skill_ids=[row.skill_id for row in rows]))
    details = {each.skill_id: each for each in rows_read}
    return [Result(row, details[row.skill_id]) for row in rows if row.skill_id in details]


def items_of(
    page: Sequence[Result],
    meanings: Sequence[Meaning],
    most: int,
    entries: Mapping[int, CatalogueEntry],
    *,
    is_brief: bool,
) -> list[FoundSkill]:
    """Return the items of a page. `most` is the highest possible number of points."""
    items = [_item(result, meanings, most, entries.get(result.details.version_id)) for result in page]
    items = [*map(_with_inputs, items[:WITH_INPUTS]), *items[WITH_INPUTS:]]
    return [_brief(item) for item in items] if is_brief else items


def page_of(
    items: list[FoundSkill], next_cursor: str | None, warnings: list[str], counted: Counts | None, *, by_words: bool
) -> FoundSkillPage:
    """Return the answer. `by_words` says that the ranker did not answer."""
    page = FoundSkillPage(items, next_cursor, warnings=warnings or UNSET, ranking="words" if by_words else UNSET)
    if counted is None:
        return page
    return msgspec.structs.replace(
        page, total=counted.total, total_is_more=counted.total_is_more, facets=counted.facets
    )


def _item(result: Result, meanings: Sequence[Meaning], most: int, entry: CatalogueEntry | None) -> FoundSkill:
    summary = _rows.decode(result.details.summary_json)
    body = body_in(result.details.skill_md_start, result.details.data)
    further = {"warnings": standing_warnings(result.details.standing_json) or UNSET, "catalogue": entry or UNSET}
    return FoundSkill(
        **(msgspec.structs.asdict(summary) | further),
        score=max(_LEAST_SCORE, round(result.shown.points / most, 3)),
        snippet=snippet_of((summary.description, body), meanings),
        copies=result.shown.copies,
        found_by="meaning" if result.shown.is_near else UNSET,
    )


def _with_inputs(item: FoundSkill) -> FoundSkill:
    if item.kind == "instruction" or not isinstance(item.inputs, Mapping):
        return item
    return msgspec.structs.replace(item, compact_inputs=compact_inputs(inputs_in(item.inputs)))


def _brief(item: FoundSkill) -> FoundSkill:
    cut = item.description[: BRIEF_DESCRIPTION - 1] + "…"
    description = item.description if len(item.description) <= BRIEF_DESCRIPTION else cut
    return msgspec.structs.replace(item, description=description, **dict.fromkeys(NOT_BRIEF, UNSET))
