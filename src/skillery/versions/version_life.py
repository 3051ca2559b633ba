"""The life of a skill's versions in the last 90 days, as spans of days: published, used, failing, yanked, labelled."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, date, datetime, time, timedelta
from itertools import groupby
from typing import Any, Literal, NamedTuple

from sqlalchemy import Connection, Select, bindparam, exists, func, literal_column, or_, select

from skillery.backends import Identity
from skillery.database import Statement, in_utc
from skillery.database.tables import RESOLVABLE, label_moves, skill_versions, use_days, version_steps
from skillery.registry.usage import first_day
from skillery.registry.visibility import WAS_PUBLISHED, View, parameters, view_of
from skillery.versions.version_tables import seen_through_skill

LIFE_DAYS = 90
MOST_VERSIONS, MOST_LABELS, _MOST_STEPS, _MOST_MOVES = 12, 6, 200, 500
_FAILING = 20
"""A day is failing if at least one in this number of its runs failed."""
_GAP = 0.4
"""The space in days between two versions of a label."""
Kind = Literal["published", "used", "failing", "yanked", "label"]
Span = tuple[Kind, float, float]
"""The kind, the start and the end. A time is in days since the beginning of the first day."""


class LifeRow(NamedTuple):
    """The spans of a version or a label."""

    name: str
    spans: list[Span]
    uses: int = 0
    versions: tuple[str, ...] = ()
    """The versions to which a label has pointed, the last one last. "" means that the label was removed."""

    @property
    def words(self) -> str:
        """The number of days of each kind, for users who do not see the spans."""
        kinds = dict.fromkeys(kind for kind, *_ in self.spans)
        days = {kind: round(sum(end - start for each, start, end in self.spans if each == kind)) for kind in kinds}
        return ", ".join(f"{kind} on {count} day{'' if count == 1 else 's'}" for kind, count in days.items())


class Life(NamedTuple):
    """The highest versions of a skill that were published, used or changed in LIFE_DAYS days, and its labels."""

    first: date
    end: float
    """Now, in days since the beginning of `first`."""
    versions: list[LifeRow]
    labels: list[LifeRow]

    @property
    def kinds(self) -> set[Kind]:
        return {kind for row in (*self.versions, *self.labels) for kind, *_ in row.spans}


def read_life(connection: Connection, identity: Identity, skill_id: int) -> Life:
    """Return the life of a skill, with the versions that the identity sees."""
    first, now = first_day(LIFE_DAYS), datetime.now(UTC)
    beginning = datetime.combine(first, time(), UTC)

    def place(instant: datetime | str) -> float:
        return (in_utc(instant) - beginning) / timedelta(days=1)

    changed = connection.execute(_versions(view_of(identity), skill_id, first), parameters(identity)).all()
    days: dict[int, list[tuple[int, int, int, int]]] = {}
    used = _USES.where(use_days.c.version_id.in_({row.id for row in changed}))
    for version_id, day, uses, runs, failed in connection.execute(used, {"of_skill": skill_id, "first": str(first)}):
        at = (date.fromisoformat(day) - first).days
        days.setdefault(version_id, []).append((at, int(uses), int(runs), int(failed)))
    versions = []
    for (version_id, version, created_at), steps in groupby(changed, lambda row: tuple(row[:3])):
        changes = [(place(at), step, status) for *_, at, step, status in steps if step]
        of_days = days.get(version_id, [])
        spans = [*_states(place(created_at), changes, place(now)), *_used(of_days)]
        versions.append(LifeRow(version, spans, sum(uses for _, uses, *_ in of_days)))
    moves: dict[str, list[tuple[float, str]]] = {}
    for label, version, moved_at in reversed(_MOVES.rows(connection, of_skill=skill_id)):
        moves.setdefault(label, []).append((place(moved_at), version or ""))
    labels = [_label(label, moves[label], place(now)) for label in sorted(moves)]
    return Life(first, place(now), versions, [label for label in labels if label.spans][:MOST_LABELS])


def _states(created: float, changes: list[tuple[float, str, str]], now: float) -> Iterator[Span]:
    """Yield the spans in which a version was published or yanked. `changes` are its steps, each with the new status."""
    # A version that no step publishes was published when it was created.
    begins_published = not changes or changes[0][1] in {"yank", "deprecate"}
    states = [(created, "published" if begins_published else ""), *((at, status) for at, _, status in changes)]
    for (at, status), (end, _) in zip(states, [*states[1:], (now, "")], strict=True):
        kind: Kind | None = "published" if status in RESOLVABLE else "yanked" if status == "yanked" else None
        if kind and end > 0:
            yield kind, max(0.0, at), end


def _used(days: Iterable[tuple[int, int, int, int]]) -> Iterator[Span]:
    """Yield the spans of days with uses, then the failing days. A day has its place, uses, runs and failed runs."""
    kinds: dict[Kind, list[int]] = {
        "used": sorted(at for at, uses, *_ in days if uses),
        "failing": sorted(at for at, _, runs, failed in days if failed and failed * _FAILING >= runs),
    }
    for kind, places in kinds.items():
        for _, row in groupby(enumerate(places), lambda each: each[1] - each[0]):
            together = [at for _, at in row]
            yield kind, together[0], together[-1] + 1


def _label(label: str, moves: list[tuple[float, str]], now: float) -> LifeRow:
    spans: list[Span] = []
    versions = []
    for (at, version), (end, _) in zip(moves, [*moves[1:], (now + _GAP, "")], strict=True):
        if end > 0:
            versions.append(version)
            if version:
                spans.append(("label", max(0.0, at), max(at, end - _GAP)))
    return LifeRow(label, spans, versions=tuple(versions))


_uses = use_days.c.runs + use_days.c.loads
_sums = (func.sum(column) for column in (_uses, use_days.c.completed + use_days.c.failed, use_days.c.failed))
_is_recent = use_days.c.skill_id == bindparam("of_skill"), use_days.c.day >= bindparam("first")
_USES = (
    select(use_days.c.version_id, use_days.c.day, *_sums)
    .where(*_is_recent)
    .group_by(use_days.c.version_id, use_days.c.day)
)
_MOVES = Statement(
    select(label_moves.c.label, skill_versions.c.version, label_moves.c.created_at)
    .outerjoin_from(label_moves, skill_versions, skill_versions.c.id == label_moves.c.version_id)
    .where(label_moves.c.skill_id == bindparam("of_skill"))
    .order_by(label_moves.c.id.desc())
    .limit(literal_column(str(_MOST_MOVES)))
)


def _versions(view: View | None, skill_id: int, first: date) -> Select[Any]:
    """Return the SELECT of the steps of the highest versions that were published, used or changed since `first`.

    The highest version is first, and the steps are in their order. A version without steps has one row.
    """
    versions, steps, beginning = skill_versions.c, version_steps.c, datetime.combine(first, time(), UTC)
    has_changed = exists().where(steps.version_id == versions.id, steps.created_at >= beginning)
    # A subquery: a skill can have more used versions than a statement may have parameters.
    used = select(use_days.c.version_id).where(use_days.c.skill_id == skill_id, use_days.c.day >= first.isoformat())
    highest = (
        select(versions.id, versions.version, versions.created_at, versions.precedence)
        .where(versions.skill_id == skill_id, versions.status.in_(WAS_PUBLISHED), *seen_through_skill(view))
        .where(or_(versions.created_at >= beginning, versions.id.in_(used), has_changed))
        .order_by(versions.precedence.desc())
        .limit(MOST_VERSIONS)
    )
    of = highest.subquery().c
    return (
        select(of.id, of.version, of.created_at, steps.created_at, steps.step, steps.status)
        .outerjoin(version_steps, steps.version_id == of.id)
        .order_by(of.precedence.desc(), steps.id)
        .limit(_MOST_STEPS)
    )
