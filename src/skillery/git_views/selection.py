"""Select the objects that a client wants and does not have."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import BinaryIO, NamedTuple

from skillery.git_views.repositories import BLOB, COMMIT, TREE, ObjectTable


class WantNotFound(Exception):
    """Raised for a wanted object that is not in the state. The argument is its id."""


class NothingSelected(Exception):
    """Raised if `deepen-since` or `deepen-not` leaves no commit."""


class Depth(NamedTuple):
    """The part of the history that a client asks for. Without a limit, the fields have their defaults."""

    commits: int | None = None
    """The number of commits, counted from each wanted commit, or from the client's boundary if `is_relative`."""
    is_relative: bool = False
    since: int | None = None
    """Only commits at or after this time, in seconds since 1970."""
    without: tuple[str, ...] = ()
    """Names of branches or tags whose commits are left out."""

    @property
    def is_limited(self) -> bool:
        return self.commits is not None or self.since is not None or bool(self.without)


class Filter(NamedTuple):
    """Objects that are left out unless they are wanted by their id."""

    blobs_over: int | None = None
    """The smallest size of blobs that are left out. 0 leaves out every blob."""
    trees: bool = False
    """Whether all trees and blobs are left out."""


class Selection(NamedTuple):
    """A request for objects. Ids are 40 hex digits."""

    wants: Sequence[str]
    haves: Sequence[str] = ()
    shallow: Sequence[str] = ()
    """The commits of the client without their parents."""
    depth: Depth = Depth()
    filter: Filter = Filter()


class Selected(NamedTuple):
    """The selected objects in the order of the pack, and the changes of the client's boundary, as ids of commits."""

    places: list[int]
    shallow: list[str]
    unshallow: list[str]


def select(table: ObjectTable, stream: BinaryIO, selection: Selection) -> Selected:
    """Return the objects to send. Blocking: wanted trees are read.

    Raise WantNotFound or NothingSelected.
    """
    wanted = [_place(table, want) for want in dict.fromkeys(selection.wants)]
    tips = [number for place in wanted if (number := table.commit_number(place)) is not None]
    boundary = set(_known(table, selection.shallow))
    has = _ancestors(table, _known(table, selection.haves), boundary)
    if selection.depth.is_limited:
        reached, edges = _limited(table, tips, boundary, selection.depth)
        shallow = sorted(edges - boundary)
        unshallow = sorted((boundary & reached) - edges)
    else:
        reached, shallow, unshallow = _ancestors(table, tips, boundary), [], []
    chosen = bytearray(len(table))
    for number in reached - has:
        for place in table.commits[number].objects:
            chosen[place] = 1
    for number in has:
        for place in table.commits[number].objects:
            chosen[place] = 0
    _leave_out(table, chosen, selection.filter)
    for place in wanted:
        _add_wanted(table, stream, chosen, place, selection.filter)
    return Selected(
        [place for place, is_chosen in enumerate(chosen) if is_chosen],
        [table.commit_id(number) for number in shallow],
        [table.commit_id(number) for number in unshallow],
    )


def common(table: ObjectTable, haves: Iterable[str]) -> list[str]:
    """Return those of the client's commits that are in the state."""
    return [have for have in haves if _known(table, [have])]


def _place(table: ObjectTable, want: str) -> int:
    place = table.find(want)
    if place is None:
        raise WantNotFound(want)
    return place


def _known(table: ObjectTable, ids: Iterable[str]) -> list[int]:
    places = (table.find(sha) for sha in ids)
    numbers = (table.commit_number(place) for place in places if place is not None)
    return [number for number in numbers if number is not None]


def _ancestors(table: ObjectTable, tips: Iterable[int], boundary: set[int]) -> set[int]:
    """Return the commits and their ancestors. The parents of commits in `boundary` are not followed."""
    reached: set[int] = set()
    waiting = list(tips)
    while waiting:
        number = waiting.pop()
        if number not in reached:
            reached.add(number)
            waiting += [] if number in boundary else table.commits[number].parents
    return reached


def _limited(table: ObjectTable, tips: Sequence[int], boundary: set[int], depth: Depth) -> tuple[set[int], set[int]]:
    """Return the commits within the depth, and those of them whose parents are left out."""
    if depth.commits is not None and depth.is_relative:
        below = {parent for number in boundary for parent in table.commits[number].parents}
        reached = _ancestors(table, tips, boundary) | _within(table, below, depth.commits)
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
    """Add an object that is wanted by its id, and below a tree all that the filter leaves."""
    if table.kind(place) == COMMIT:
        return
    chosen[place] = 1
    if table.kind(place) != TREE or filter_.trees:
        return
    waiting = [place]
    seen: set[int] = set()
    while waiting:
        for child in table.children(waiting.pop(), stream):
            if child in seen:
                continue
            seen.add(child)
            if table.kind(child) == TREE:
                waiting.append(child)
            if not _is_left_out(table, child, filter_):
                chosen[child] = 1
