"""The choice of versions of the skills that a new version requires."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from graphlib import CycleError, TopologicalSorter
from typing import Any, NamedTuple

from resolvelib import AbstractProvider, BaseReporter, ResolutionImpossible, ResolutionTooDeep, Resolver
from sqlalchemy import Connection, bindparam, select

from skillery.backends import Identity
from skillery.database import Statement, select_row
from skillery.database.tables import RESOLVABLE, skill_versions, skills, version_requires
from skillery.errors import (
    RequiresCycle,
    RequiresDraft,
    RequiresHidden,
    RequiresUnknown,
    RequiresUnsolvable,
    SkilleryError,
)
from skillery.formats.manifest_tables import MOST_REQUIRED
from skillery.formats.names import import_name
from skillery.formats.version_spec import VersionSpec, parse_version_spec, selects
from skillery.registry.requires import Required, is_open, read_rows
from skillery.registry.resolution import skill_not_found
from skillery.registry.visibility import Visibility, sees_skill, sees_version

MOST_DEPTH = 8
MOST_ROUNDS = 500
MOST_SECONDS = 5.0
_SHOWN = 5
"""The maximum number of ranges and versions that an error shows."""


class Need(NamedTuple):
    """A range of versions of the skill `name`. `by` is the skill that needs it, with its version if it is stored."""

    name: str
    spec: str
    by: str

    def allows(self, version: Candidate) -> bool:
        return selects(_parsed(self.spec), version.precedence, is_release=version.is_release)


class Candidate(NamedTuple):
    name: str
    version_id: int
    version: str
    precedence: bytes
    is_release: bool
    status: str
    publisher: str
    skill_id: int
    visibility: Visibility


_CANDIDATES = Statement(
    select_row(Candidate, skill_versions, skills, version_id=skill_versions.c.id)
    .join_from(skill_versions, skills, skills.c.id == skill_versions.c.skill_id)
    .where(skills.c.name == bindparam("name"))
    .order_by(skill_versions.c.precedence.desc())
)
_NEEDS = Statement(
    select(version_requires.c.name, version_requires.c.spec)
    .where(version_requires.c.version_id == bindparam("version_id"))
    .order_by(version_requires.c.name)
)


@lru_cache(maxsize=4096)
def _parsed(spec: str) -> VersionSpec:
    return parse_version_spec(spec)


class Skills(AbstractProvider[Need, Candidate, str]):
    """The skills that an identity sees, as resolvelib asks for them: two SQL statements for each tried version."""

    def __init__(self, connection: Connection, identity: Identity, name: str) -> None:
        """`name` is the skill whose versions are never a candidate: it would require itself."""
        self._connection, self._identity, self._name = connection, identity, name
        self._versions: dict[str, list[Candidate]] = {}
        self._needs: dict[int, list[Need]] = {}
        self._until = time.monotonic() + MOST_SECONDS

    def versions(self, name: str) -> list[Candidate]:
        """Return the versions of a skill that the identity sees, the highest first."""
        if name not in self._versions:
            versions = [Candidate(*row) for row in _CANDIDATES.rows(self._connection, name=name)]
            is_seen = versions and sees_skill(
                self._connection, self._identity, versions[0].skill_id, name, versions[0].visibility
            )
            self._versions[name] = [
                each for each in versions if is_seen and sees_version(self._identity, name, each.status, each.publisher)
            ]
        return self._versions[name]

    def identify(self, requirement_or_candidate: Need | Candidate) -> str:
        return requirement_or_candidate.name

    def get_preference(
        self,
        identifier: str,
        resolutions: Mapping[str, Candidate],
        candidates: Mapping[str, Iterator[Candidate]],
        information: Mapping[str, Iterator[Any]],
        backtrack_causes: Sequence[Any],
    ) -> Any:
        """Choose the skills of the last conflict first, then by name: equal questions have equal answers."""
        return identifier not in {cause.requirement.name for cause in backtrack_causes}, identifier

    def find_matches(
        self,
        identifier: str,
        requirements: Mapping[str, Iterator[Need]],
        incompatibilities: Mapping[str, Iterator[Candidate]],
    ) -> list[Candidate]:
        if time.monotonic() > self._until:
            raise _too_hard(f"{MOST_SECONDS:g} s")
        if identifier == self._name:
            return []
        needs, refused = list(requirements[identifier]), set(incompatibilities[identifier])
        return [
            each
            for each in self.versions(identifier)
            if each.status in RESOLVABLE and each not in refused and all(need.allows(each) for need in needs)
        ]

    def is_satisfied_by(self, requirement: Need, candidate: Candidate) -> bool:
        return requirement.allows(candidate)

    def get_dependencies(self, candidate: Candidate) -> list[Need]:
        if candidate.version_id not in self._needs:
            rows = _NEEDS.rows(self._connection, version_id=candidate.version_id)
            by = f"'{candidate.name}' {candidate.version}"
            self._needs[candidate.version_id] = [Need(name, spec, by) for name, spec in rows]
        return self._needs[candidate.version_id]


def choose(
    connection: Connection,
    identity: Identity,
    name: str,
    requires: Iterable[tuple[str, str]],
    visibility: Visibility = "private",
    provider: Skills | None = None,
) -> list[Required]:
    """Return the versions that a new version of the skill `name` requires: one for each skill, the direct ones first.
    `requires` are the names of skills, each with a range. Several choices with one `provider` share its time limit.

    The identity must see all of them, and so must the callers of a skill with this visibility. Raise RequiresUnknown,
    RequiresUnsolvable, RequiresCycle, RequiresHidden or RequiresDraft.
    """
    provider = provider or Skills(connection, identity, name)
    needs = [Need(required, spec, f"'{name}'") for required, spec in requires]
    try:
        result = Resolver(provider, BaseReporter()).resolve(needs, max_rounds=MOST_ROUNDS)
    except ResolutionImpossible as error:
        raise _problem(connection, identity, provider, name, [cause.requirement for cause in error.causes]) from None
    except ResolutionTooDeep:
        raise _too_hard(f"{MOST_ROUNDS} rounds") from None
    chosen = result.mapping
    children = {each: sorted(filter(None, result.graph.iter_children(each))) for each in chosen}
    try:
        TopologicalSorter(children).prepare()
    except CycleError as error:
        raise _cycle(error.args[1][::-1]) from None
    depths, level = dict[str, int](), sorted({need.name for need in needs})
    while level:
        depths |= dict.fromkeys(level, max(depths.values(), default=0) + 1)
        level = sorted({below for each in level for below in children[each]} - depths.keys())
    if len(chosen) > MOST_REQUIRED or max(depths.values(), default=0) > MOST_DEPTH:
        raise RequiresUnsolvable(
            f"'{name}' would require {len(chosen)} skills on {max(depths.values())} levels; at most {MOST_REQUIRED} "
            f"skills on {MOST_DEPTH} levels are allowed",
            hint="Require fewer skills.",
        )
    for each in chosen.values():
        if not is_open(name, visibility, each.name, each.visibility):
            raise RequiresHidden(
                f"'{name}' is {visibility}, and '{each.name}' is {each.visibility}: callers of '{name}' may not see it",
                hint=f"Make '{each.name}' visible to the same callers, or do not require it.",
                name=each.name,
            )
    _refuse_same_import([name, *chosen])
    rows = read_rows(connection, [each.version_id for each in chosen.values()])
    return sorted((Required(depths[row.name], row) for row in rows), key=lambda each: (each.depth, each.row.name))


def choose_possible(
    connection: Connection, identity: Identity, name: str, names: Sequence[str], visibility: Visibility
) -> tuple[list[str], dict[str, SkilleryError]]:
    """Return the skills of `names` that a new version of the skill `name` can require together, in any version, and the
    errors about the others. If two names exclude each other, the earlier one is chosen. All choices together take at
    most MOST_SECONDS.
    """
    provider, chosen, errors = Skills(connection, identity, name), list[str](), dict[str, SkilleryError]()

    def add(added: Sequence[str]) -> None:
        needs = [(each, "*") for each in (*chosen, *added)]
        choose(connection, identity, name, needs, visibility, provider)
        chosen.extend(added)

    with suppress(SkilleryError):  # one choice is faster than one for each name
        add(names)
        return chosen, {}
    for required in names:
        try:
            add([required])
        except SkilleryError as error:
            errors[required] = error
    return chosen, errors


# -- Why there is no choice --------------------------------------------------------------------------------------------


def _problem(
    connection: Connection, identity: Identity, provider: Skills, name: str, needs: Sequence[Need]
) -> RequiresUnknown | RequiresUnsolvable | RequiresCycle | RequiresHidden | RequiresDraft:
    """Return the error for needs that no choice of versions satisfies."""
    for need in needs:
        versions, by = provider.versions(need.name), need.by.split("'")[1]
        if not versions and by != name:
            # The caller has not named this skill, so the error does not name it either.
            return RequiresHidden(
                f"{need.by} requires a skill that you may not see",
                hint=f"Ask a publisher of '{by}', or do not require it.",
                name=by,
            )
        if need.name == name:
            return _cycle([name, *([by] if by != name else []), name])
        if not versions:
            unknown = skill_not_found(connection, identity, need.name)
            return RequiresUnknown(
                f"{need.by} requires '{need.name}', which does not exist", hint=unknown.hint, **unknown.data
            )
        allowed = {each.status for each in versions if need.allows(each)}
        if allowed and allowed <= {"draft", "in_review"}:
            return RequiresDraft(
                f"{need.by} requires '{need.name}' {need.spec}, of which no version is published yet",
                hint=f"Publish '{need.name}' first.",
                name=need.name,
            )
    shown = list(dict.fromkeys(needs))[:_SHOWN]
    text = " and ".join(f"{need.by} requires '{need.name}' {need.spec}" for need in shown)
    existing = [each.version for each in provider.versions(needs[0].name) if each.status in RESOLVABLE][:_SHOWN]
    return RequiresUnsolvable(
        f"no versions satisfy all ranges: {text}",
        hint=f"The newest versions of '{needs[0].name}' are {', '.join(existing)}."
        if existing
        else f"No version of '{needs[0].name}' can be used.",
        required=[{"name": need.name, "spec": need.spec, "by": need.by} for need in shown],
    )


def _refuse_same_import(names: Iterable[str]) -> None:
    by_import: dict[str, str] = {}
    for name in sorted(names):
        other = by_import.setdefault(import_name(name), name)
        if other != name:
            raise RequiresUnsolvable(
                f"'{other}' and '{name}' would both be imported as {import_name(name)}",
                hint="Require one of the two.",
                names=[other, name],
            )


def _cycle(path: Sequence[str]) -> RequiresCycle:
    text = ", which requires ".join(f"'{name}'" for name in path[1:])
    return RequiresCycle(f"'{path[0]}' requires {text}", hint="Remove one of these requirements.", path=list(path))


def _too_hard(limit: str) -> RequiresUnsolvable:
    return RequiresUnsolvable(
        f"no versions that satisfy all ranges were found within {limit}", hint="Write narrower ranges."
    )
