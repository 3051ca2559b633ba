"""The order of search results: look-alikes are one result, and a deprecated skill follows its successor.

Two skills are look-alikes if their names end alike and their descriptions have most words in common, or if they are
copies. Only skills that the caller sees and that match the query are compared.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

import msgspec
from sqlalchemy import Connection, and_, func, select

from skillery.database import ListStatement, select_row
from skillery.database.tables import import_aliases, labels, search_words, skill_versions, skills
from skillery.formats.words import FILLERS, spelt_words

OFFICIAL = "official"
"""The label of a skill that is the original of its look-alikes."""
_LEAST_OVERLAP = 0.6
_LEAST_WORDS = 3
"""The minimum number of common words: a description with fewer says too little."""
_KEPT = 4096
_NUMBER = re.compile(r"-\d+$")


class Ranked(NamedTuple):
    """A skill that matches the words of a query, or that the ranker found: then it has no points."""

    skill_id: int
    name: str
    points: int
    copy_key: int
    successor: str | None
    """The skill to use instead, if the skill is deprecated."""


class Group(NamedTuple):
    """Look-alikes, best first."""

    members: tuple[Ranked, ...]
    points: int

    @property
    def is_near(self) -> bool:
        """Whether no member matches a word of the query: the ranker found the group."""
        return self.members[0].points == 0

    @property
    def position(self) -> str:
        """The name of the best member."""
        return self.members[0].name

    @property
    def successor(self) -> str | None:
        """The skill to use instead, or None if a member is not deprecated."""
        return self.members[0].successor if all(member.successor for member in self.members) else None


class Shown(NamedTuple):
    """The member of a group that is shown."""

    skill_id: int
    name: str
    points: int
    copies: int
    position: str
    """The name of the best member of the group."""
    is_near: bool
    """Whether only the ranker found the group."""


def in_groups(connection: Connection, rows: Sequence[Ranked]) -> list[Group]:
    """Return the groups of look-alikes, in the order of their best members."""
    leaves = [_leaf(row.name) for row in rows]
    often = Counter(leaves)
    if len(often) == len({row.copy_key for row in rows}) == len(rows):
        return [Group((row,), row.points) for row in rows]
    return _grouped(connection, rows, leaves, often)


def _grouped(
    connection: Connection, rows: Sequence[Ranked], leaves: Sequence[str], often: Mapping[str, int]
) -> list[Group]:
    shared = [row.skill_id for row, leaf in zip(rows, leaves, strict=True) if often[leaf] > 1]
    described = _descriptions(connection, shared) if shared else {}
    by_copy: dict[int, list[Ranked]] = {}
    by_leaf: dict[str, list[list[Ranked]]] = defaultdict(list)
    groups: list[list[Ranked]] = []
    for row, leaf in zip(rows, leaves, strict=True):
        group = by_copy.get(row.copy_key)
        if group is None and often[leaf] > 1:
            words = described.get(row.skill_id, frozenset())
            alike = (each for each in by_leaf[leaf] if overlap(words, described.get(each[0].skill_id, frozenset())))
            group = next(alike, None)
        if group is None:
            group = []
            groups.append(group)
            by_leaf[leaf].append(group)
        by_copy.setdefault(row.copy_key, group)
        group.append(row)
    return [Group(tuple(group), group[0].points) for group in groups]


def overlap(left: frozenset[str], right: frozenset[str]) -> bool:
    """Return whether two descriptions, as sets of words, are those of look-alikes."""
    common = len(left & right)
    return common >= max(_LEAST_WORDS, _LEAST_OVERLAP * (len(left) + len(right) - common))


def originals(connection: Connection, groups: Sequence[Group]) -> list[Shown]:
    """Return the member of each group that is shown: the original."""
    several = [member.skill_id for group in groups if len(group.members) > 1 for member in group.members]
    facts = _facts(connection, several) if several else {}
    shown = []
    for group in groups:
        # A query that names a member gives it far more points. A skill that was hidden after the ranking has no facts.
        near = [member for member in group.members if 4 * member.points >= 3 * group.members[0].points]
        known = [member for member in near if member.skill_id in facts] or group.members[:1]
        original = min(known, key=lambda member: facts.get(member.skill_id, ()))
        shown.append(
            Shown(original.skill_id, original.name, group.points, len(group.members), group.position, group.is_near)
        )
    return shown


def _leaf(name: str) -> str:
    """Return the last segment of a name, without the number that an import adds to a name that is taken."""
    return _NUMBER.sub("", name.rpartition(".")[2].replace("_", "-"))


# -- descriptions ------------------------------------------------------------------------------------------------------


class _Summary(msgspec.Struct):
    description: str


_summaries = msgspec.json.Decoder(_Summary)
_SUMMARIES = ListStatement(
    select(search_words.c.skill_id, skill_versions.c.summary_json).join_from(
        search_words, skill_versions, skill_versions.c.id == search_words.c.version_id
    ),
    skill_ids=search_words.c.skill_id,
)


def _descriptions(connection: Connection, skill_ids: Sequence[int]) -> dict[int, frozenset[str]]:
    """Return the words of the descriptions."""
    rows = _SUMMARIES.rows(connection, skill_ids=skill_ids)
    return {skill_id: _words(_summaries.decode(summary).description) for skill_id, summary in rows}


@lru_cache(_KEPT)
def _words(description: str) -> frozenset[str]:
    return frozenset(spelt_words(description)) - FILLERS


# -- originals ---------------------------------------------------------------------------------------------------------


class _Facts(NamedTuple):
    skill_id: int
    status: str
    label: str | None
    namespace: str | None
    source: str | None


_FACTS = ListStatement(
    select_row(_Facts, search_words, skill_versions, labels, import_aliases, namespace=import_aliases.c.namespace)
    .join_from(search_words, skills, skills.c.id == search_words.c.skill_id)
    .join(skill_versions, skill_versions.c.id == search_words.c.version_id)
    .outerjoin(labels, and_(labels.c.skill_id == skills.c.id, labels.c.label == OFFICIAL))
    .outerjoin(import_aliases, and_(import_aliases.c.name == skills.c.name, import_aliases.c.owns)),
    skill_ids=search_words.c.skill_id,
)
_SOURCES = ListStatement(
    select(import_aliases.c.namespace, import_aliases.c.source, func.count()).group_by(
        import_aliases.c.namespace, import_aliases.c.source
    ),
    namespaces=import_aliases.c.namespace,
    sources=import_aliases.c.source,
)


def _facts(connection: Connection, skill_ids: Sequence[int]) -> dict[int, tuple[bool, bool, float, int]]:
    """Return the sort key of each skill among its look-alikes: not deprecated, with the label `official`, of the source
    with the fewest skills, oldest.

    Authors publish few skills, and collections copy many. A skill that was not imported follows the imported ones: any
    publisher could copy a description.
    """
    rows = [*map(_Facts._make, _FACTS.rows(connection, skill_ids=skill_ids))]
    namespaces = {row.namespace for row in rows if row.namespace is not None}
    sources = {row.source for row in rows if row.source is not None}
    counted = _SOURCES.rows(connection, namespaces=[*namespaces], sources=[*sources]) if sources else []
    sizes = {(namespace, source): size for namespace, source, size in counted}
    facts: dict[int, tuple[bool, bool, float, int]] = {}
    for row in rows:
        size = sizes.get((row.namespace, row.source), float("inf"))
        key = (row.status == "deprecated", row.label is None, size, row.skill_id)
        facts[row.skill_id] = min(key, facts.get(row.skill_id, key))
    return facts


# -- successors --------------------------------------------------------------------------------------------------------


def below_successors(groups: Sequence[Group]) -> Sequence[Group]:
    """Return the groups with each deprecated skill directly below its successor, at the better place of the two."""
    if not any(group.successor for group in groups):
        return groups
    by_name = {member.name: group for group in groups for member in group.members}
    followers: dict[str, list[Group]] = defaultdict(list)
    first: dict[str, Group] = {}
    for group in groups:
        lead = _first_of(group, by_name)
        first[group.position] = lead
        successor = by_name.get(group.successor or "")
        if lead is not group and successor is not None:
            followers[successor.position].append(group)
    ordered: dict[str, Group] = {}
    for group in groups:
        for each in _family(first[group.position], followers):
            ordered.setdefault(each.position, each._replace(points=max(group.points, each.points)))
    return list(ordered.values())


def _first_of(group: Group, by_name: dict[str, Group]) -> Group:
    """Return the last successor of a group among the results. A circle of successors has none."""
    seen, lead = {group.position}, group
    while (successor := by_name.get(lead.successor or "")) is not None:
        if successor.position in seen:
            return group
        seen.add(successor.position)
        lead = successor
    return lead


def _family(lead: Group, followers: dict[str, list[Group]]) -> Iterator[Group]:
    yield lead
    for follower in followers.get(lead.position, ()):
        yield from _family(follower, followers)
