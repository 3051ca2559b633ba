"""The selection of the objects that a client wants and does not have."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import BinaryIO, NamedTuple

from skillery.git_views.repositories import BLOB, COMMIT, TREE, ObjectTable


class WantNotFound(Exception):
    """Raised if a wanted object is not in the state. The argument is its id."""


class NothingSelected(Exception):
    """Raised if `deepen-since` or `deepen-not` leaves no commit."""


class Depth(NamedTuple):
    """The part of the history that a client asks for. The defaults mean no limit."""

    commits: int | None = None
    """The number of commits, counted from each wanted commit, or from the client's boundary if `is_relative`."""
    is_relative: bool = False
    since: int | None = None
    """Only commits from this time on, in seconds since 1970."""
    without: tuple[str, ...] = ()
    """Names of branches or tags. Their commits are left out."""

    @property
    def is_limited(self) -> bool:
        return self.commits is not None or self.since is not None or bool(self.without)


class Filter(NamedTuple):
    """The objects to leave out, unless they are wanted by their id."""

    blobs_over: int | None = None
    """Blobs of this size or more are left out. 0 leaves out all blobs."""
    trees: bool = False
    """Whether all trees and blobs are left out."""


class Selection(NamedTuple):
    """A request for objects. Ids have 40 hex digits."""

    wants: Sequence[str]
    haves: Sequence[str] = ()
    shallow: Sequence[str] = ()
    """The commits without parents in the client's shallow clone, which are its boundary."""
    depth: Depth = Depth()
    filter: Filter = Filter()


class Selected(NamedTuple):
    """The places of the selected objects, and the changes of the client's boundary as commit ids."""

    places: list[int]
    shallow: list[str]
    unshallow: list[str]


def select(table: ObjectTable, stream: BinaryIO, selection: Selection) -> Selected:
    """Return the objects to send. Raise WantNotFound or NothingSelected. Blocking, because wanted trees are read."""
    wanted_places = [_place(table, want) for want in dict.fromkeys(selection.wants)]
    tips = [number for place in wanted_places if (number := table.commit_number(place)) is not None]
    boundary = set(_known(table, selection.shallow))
    had = _ancestors(table, _known(table, selection.haves), boundary)
    if selection.depth.is_limited:
        reached, edges = _limited(table, tips, boundary, selection.depth)
        shallow = sorted(edges - boundary)
        unshallow = sorted((boundary & reached) - edges)
    else:
        reached, shallow, unshallow = _ancestors(table, tips, boundary), [], []
    chosen = bytearray(len(table))
    for number in reached - had:
        for place in table.commits[number].objects:
            chosen[place] = 1
    for number in had:
        for place in table.commits[number].objects:
            chosen[place] = 0
    _leave_out(table, chosen, selection.filter)
    for place in wanted_places:
        _add_wanted(table, stream, chosen, place, selection.filter)
    return Selected(
        [place for place, is_chosen in enumerate(chosen) if is_chosen],
        [table.commit_id(number) for number in shallow],
        [table.commit_id(number) for number in unshallow],
    )


def common(table: ObjectTable, haves: Iterable[str]) -> list[str]:
    """Return the ids in `haves` that are commits of the state."""
    return [have for have in haves if _known(table, [have])]


def _place(table: ObjectTable, want: str) -> int:
    place = table.find(want)
    if place is None:
        raise WantNotFound(want)
    return place


def _known(table: ObjectTable, ids: Iterable[str]) -> list[int]:
    """Return the indexes of the commits that the state has."""
    places = (table.find(sha) for sha in ids)
    numbers = (table.commit_number(place) for place in places if place is not None)
    return [number for number in numbers if number is not None]


def _ancestors(table: ObjectTable, tips: Iterable[int], boundary: set[int]) -> set[int]:
    """Return the indexes of `tips` and of their ancestors. Parents of commits in `boundary` are not followed."""
    reached: set[int] = set()
    waiting = list(tips)
    while waiting:
        number = waiting.pop()
        if number not in reached:
            reached.add(number)
            waiting += [] if number in boundary else table.commits[number].parents
    return reached


def _limited(table: ObjectTable, tips: Sequence[int], boundary: set[int], depth: Depth) -> tuple[set[int], set[int]]:
    """Return the commits within the depth, and those of them that have parents outside. Raise NothingSelected.

    Commits are indexes in the table.
    """
    if depth.commits is not None and depth.is_relative:
        parents_of_boundary = {parent for number in boundary for parent in table.commits[number].parents}
        reached = _ancestors(table, tips, boundary) | _within(table, parents_of_boundary, depth.commits)
    elif depth.commits is not None:
        reached = _within(table, tips, depth.commits)
    else:
        reached = _ancestors(table, tips, set())
    if depth.since is not None:
        reached = {number for number in reached if table.commits[number].time >= depth.since}
    named = (next((table.refs[name] for name in _names(ref) if name in table.refs), None) for ref in depth.without)
    reached -= _ancestors(table, {number for number in named if number is not None}, set())
    if tips and not reached:
        raise NothingSelected
    return reached, {number for number in reached if not reached.issuperset(table.commits[number].parents)}


def _within(table: ObjectTable, tips: Iterable[int], commits: int) -> set[int]:
    """Return `tips` and their ancestors, at most `commits` generations."""
    reached: set[int] = set()
    level = set(tips)
    while level and commits > 0:
        reached |= level
        level = {parent for number in level for parent in table.commits[number].parents} - reached
        commits -= 1
    return reached


def _names(ref: str) -> tuple[str, ...]:
    return ref, f"refs/tags/{ref}", f"refs/heads/{ref}"


def _leave_out(table: ObjectTable, chosen: bytearray, filter_: Filter) -> None:
    if filter_ == Filter():
        return
    for place in range(len(chosen)):
        if chosen[place] and _is_left_out(table, place, filter_):
            chosen[place] = 0


def _is_left_out(table: ObjectTable, place: int, filter_: Filter) -> bool:
    kind = table.kind(place)
    if filter_.trees:
        return kind != COMMIT
    return kind == BLOB and filter_.blobs_over is not None and table.size(place) >= filter_.blobs_over


def _add_wanted(table: ObjectTable, stream: BinaryIO, chosen: bytearray, place: int, filter_: Filter) -> None:
    """Mark a wanted tree or blob as chosen. Below a tree, mark all objects that the filter does not leave out."""
    if table.kind(place) == COMMIT:
        return
    chosen[place] = 1
    if table.kind(place) != TREE or filter_.trees:
        return
    waiting = [place]
    visited: set[int] = set()
    while waiting:
        for child in table.children(waiting.pop(), stream):
            if child in visited:
                continue
            visited.add(child)
            if table.kind(child) == TREE:
                waiting.append(child)
            if not _is_left_out(table, child, filter_):
                chosen[child] = 1
