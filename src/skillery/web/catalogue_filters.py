"""The state of the catalogue page: search words, filters and order, each a field of the address."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple, cast
from urllib.parse import quote_plus

from skillery.formats.media_types import SkillLanguage
from skillery.skills.catalogue_counts import Facets, FacetValue
from skillery.skills.catalogue_filters import CHOICES, FLAGS, MOST_TAGS, CatalogueFilter, Facts, filter_of

ROWS = 20
LANGUAGES = {"python": "Python", "javascript": "Node.js", "bash": "Shell", "markdown": "Markdown"}
STATUSES = {
    "published": "published",
    "deprecated": "deprecated",
    "draft": "drafts",
    "in_review": "in review",
    "rejected": "rejected",
    "yanked": "yanked",
}
SEARCHED_STATUSES = ("published", "deprecated")
"""The statuses that a search can filter by, because a search covers only the latest versions of skills."""


class Filter(NamedTuple):
    """A filter by one text: the name of its facet and param, its title, and the words of its values."""

    facet: str
    title: str
    words: Mapping[str, str]


CONTENTS = {"instructions": "instructions only", "scripts": "instructions and scripts", "action": "an action"}
TEXTS = {
    "contains": Filter("contains", "Contains", CONTENTS),
    "lang": Filter("language", "Language", LANGUAGES),
    "licence": Filter("licence", "Licence", {"other": "another licence", "none": "not stated"}),
    "status": Filter("status", "Status", STATUSES),
}
"""The filters by one text, by their field of the address."""
SORTS = {"best": "best match", "newest": "newest", "used": "most used", "name": "name"}
MOST_QUERY = 200


class Filters(NamedTuple):
    """The search words, filters and order of a catalogue page, each with the name of its field in the address."""

    q: str = ""
    ns: str = ""
    contains: str = ""
    licence: str = ""
    lang: str = ""
    status: str = ""
    flags: tuple[str, ...] = ()
    """The names of the boolean filters that are set. The page offers only one value of each."""
    sort: str = ""
    tags: tuple[str, ...] = ()

    @property
    def order(self) -> str:
        """The order of the rows: a valid `sort`, else the best match for a search, else the most used."""
        if self.sort in SORTS and (self.q or self.sort != "best"):
            return self.sort
        return "best" if self.q else "used"

    def params(self) -> dict[str, Any]:
        """Return the params of search_skills or list_skills, without a cursor."""
        search = {"query": self.q} if self.q else {"detail": "summary"}
        params = {
            **search,
            "namespace": self.ns or None,
            "tags": list(self.tags) or None,
            **{text.facet: getattr(self, name) or None for name, text in TEXTS.items()},
            **{name: FLAGS[name].offered for name in self.flags},
            "sort": self.order,
            "limit": ROWS,
        }
        return {name: value for name, value in params.items() if value is not None}

    def of_versions(self) -> CatalogueFilter:
        """Return the filter of versions without the status. Raise InvalidParams if a tag is invalid."""
        flags = [(name, FLAGS[name].offered) for name in self.flags]
        choices = [(name, getattr(self, name)) for name in CHOICES if getattr(self, name)]
        facts = Facts(language=cast(SkillLanguage, self.lang), flags=(*flags, *choices))
        return filter_of(self.ns, "", self.tags, facts)

    def fields(self) -> list[tuple[str, str]]:
        """Return the fields of the address as pairs of name and value. Empty fields are left out."""
        texts = ((name, getattr(self, name)) for name in ("q", "ns", *TEXTS))
        flags = [(name, _field(name)) for name in self.flags]
        return [field for field in (*texts, *flags, ("sort", self.sort)) if field[1]] + [
            ("tag", tag) for tag in self.tags
        ]

    def address(self, cursor: str = "", **changes: Any) -> str:
        """Return the address of the page with some fields changed."""
        # A page has about 200 of these addresses. `urlencode` takes four times as long.
        fields = [f"{name}={quote_plus(value)}" for name, value in self._replace(**changes).fields()]
        if cursor:
            fields.append(f"cursor={quote_plus(cursor)}")
        return f"/?{'&'.join(fields)}" if fields else "/"

    def toggled(self, field: str, value: str) -> str:
        """Return the address without a value of a filter if it is set, else with the value."""
        current = getattr(self, field)
        if isinstance(current, str):
            return self.address(**{field: "" if current == value else value})
        others = tuple(other for other in current if other != value)
        changes: dict[str, Any] = {field: others if value in current else (*others, value)}
        return self.address(**changes)

    def set_filters(self) -> list[tuple[str, str]]:
        """Return a pair for each filter that is set: its words, and the address without it."""
        filters = [(f"namespace {self.ns}", self.address(ns=""))] if self.ns else []
        for name, text in TEXTS.items():
            if value := getattr(self, name):
                words = text.words.get(value, value)
                filters.append((f"licence {words}" if name == "licence" else words, self.address(**{name: ""})))
        filters += [(FLAGS[name].words, self.toggled("flags", name)) for name in self.flags]
        return filters + [(f"tag {tag}", self.toggled("tags", tag)) for tag in self.tags]


def _field(flag: str) -> str:
    """Return the value that a set boolean filter has in the address."""
    return "1" if FLAGS[flag].offered else "no"


def filters_of(query: Mapping[str, str], tags: list[str]) -> Filters:
    """Return the filters of an address. Unknown values are left out. `tags` are the values of the field `tag`."""
    q = " ".join(query.get("q", "").split())[:MOST_QUERY].replace("\x00", "")
    known: dict[str, Collection[str]] = {"sort": SORTS, **{name: text.words for name, text in TEXTS.items()}}
    if q:
        known["status"] = SEARCHED_STATUSES
    return Filters(
        q=q,
        ns=query.get("ns", "").strip().strip("."),
        flags=tuple(name for name in FLAGS if query.get(name) == _field(name)),
        tags=tuple(dict.fromkeys(tag.strip() for tag in tags if tag.strip()))[:MOST_TAGS],
        **{name: query[name] for name, values in known.items() if query.get(name) in values},
    )._replace(licence=query.get("licence", "").strip()[:40])


class Choice(NamedTuple):
    """A value of a filter: its words, the number of skills with it, and the address that sets or removes it."""

    words: str
    number: int | None
    address: str
    is_set: bool


def _choice(filters: Filters, field: str, value: str, words: str, number: int | None) -> Choice:
    current = getattr(filters, field)
    is_set = value == current if isinstance(current, str) else value in current
    return Choice(words, number, filters.toggled(field, value), is_set)


def facets_of(filters: Filters, facets: Facets) -> list[tuple[str, list[Choice]]]:
    """Return the titles and choices of the filters. Filters that would select nothing are left out."""
    contents, *others = ((text.title, _choices(filters, facets, name)) for name, text in TEXTS.items())
    trust = [choice for name in FLAGS for choice in _flag_choices(filters, facets.of(name), name)]
    return [(title, choices) for title, choices in (contents, ("Trust", trust), *others) if choices]


def _choices(filters: Filters, facets: Facets, field: str) -> list[Choice]:
    """Return the choices of a filter by a text, without a value that all skills of the page have."""
    current, words = getattr(filters, field), TEXTS[field].words
    numbers = {str(facet.value): facet.count for facet in facets.of(TEXTS[field].facet)}
    has_several = len(numbers) > 1
    if current:
        numbers.setdefault(current, 0)
    return [
        _choice(filters, field, value, words.get(value, value), number)
        for value, number in numbers.items()
        if value == current or has_several
    ]


def _flag_choices(filters: Filters, counts: list[FacetValue], name: str) -> list[Choice]:
    """Return the choice of the boolean filter `name`, or [] if it is not set and would select nothing."""
    flag = FLAGS[name]
    number = next((facet.count for facet in counts if facet.value is flag.offered), None)
    if name not in filters.flags and (number is None or len(counts) == 1):
        return []
    return [_choice(filters, "flags", name, flag.words, number or 0)]


def branches_of(filters: Filters, counts: list[FacetValue]) -> list[tuple[int, Choice]]:
    """Return the namespaces above the current one, the current one, and its children by name, each with its depth.

    `counts` are those of the children. The others have no number.
    """
    branches = [(0, Choice("All", None, filters.address(ns=""), is_set=not filters.ns))]
    parts = filters.ns.split(".") if filters.ns else []
    for depth in range(1, len(parts) + 1):
        name = ".".join(parts[:depth])
        branches.append((min(depth, 2), Choice(name, None, filters.address(ns=name), is_set=name == filters.ns)))
    below = sorted((str(facet.value), facet.count) for facet in counts if facet.value != filters.ns)
    depth = min(len(parts) + 1, 3)
    return branches + [(depth, Choice(name, count, filters.address(ns=name), is_set=False)) for name, count in below]


def tags_of(filters: Filters, counts: list[FacetValue], most: int = 16) -> list[Choice]:
    """Return at most `most` tags: those that are set, then the most frequent others."""
    numbers = {str(facet.value): facet.count for facet in counts}
    chosen = {tag.lower() for tag in filters.tags}
    others = [tag for tag in numbers if tag not in chosen][: max(0, most - len(filters.tags))]
    tags = [*filters.tags, *(others if len(filters.tags) < MOST_TAGS else ())]
    return [_choice(filters, "tags", tag, tag, numbers.get(tag.lower())) for tag in tags]
