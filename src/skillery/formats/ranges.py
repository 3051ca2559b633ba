"""Version ranges by the rules of npm (https://docs.npmjs.com/cli/configuring-npm/package-json#dependencies).

A range becomes intervals of `Version.precedence`, so that a database finds the matching versions with a few index
scans. A range has alternatives (`||`). An alternative has comparators, and a version must satisfy all of them. A
pre-release matches only if a comparator of the same alternative names a pre-release of the same major.minor.patch.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from operator import attrgetter

import msgspec

from skillery.errors import InvalidVersionSpec
from skillery.formats.semver import BUILD, NUMBER, PRERELEASE, Version, core_key
from skillery.formats.wording import quoted

# -- The comparators of npm ranges, such as `^1.2` or `>=1`. Each comparator becomes bounds of `Version.precedence` ----


RANGE_HINT = "Ranges are written as in npm, e.g. '^1.2', '~1.2.3', '1.x', '>=1 <2', '1 - 2' or '^1 || ^2'."

_PART = rf"(?:{NUMBER}|[xX*])"
_PARTIAL = rf"[v=]*({_PART})(?:\.({_PART})(?:\.({_PART})(?:-({PRERELEASE}))?(?:\+{BUILD})?)?)?"
_HYPHEN = re.compile(rf"({_PARTIAL})\s+-\s+({_PARTIAL})")
_OPERATOR_SPACE = re.compile(r"(~>?|\^|[<>]=?|=)\s+")
_COMPARATOR = re.compile(rf"(~>?|\^|[<>]?=?)({_PARTIAL})")
_FULL_PREFIX = re.compile(r"[<>]?=?v?[0-9]")


class _Partial(msgspec.Struct, frozen=True):
    """A version whose last numbers may be missing (`1.x`, `1`, `*`)."""

    numbers: tuple[int, ...]
    prerelease: tuple[str, ...]

    def floor(self) -> Version:
        """Return the version with 0 for each missing number."""
        major, minor, patch = (*self.numbers, 0, 0, 0)[:3]
        return Version(major, minor, patch, self.prerelease)

    def above(self, digits: int) -> Version:
        """Return the lowest release above all versions with the same first `digits` numbers."""
        major, minor, patch = (*self.numbers[: digits - 1], self.numbers[digits - 1] + 1, 0, 0)[:3]
        return Version(major, minor, patch)

    @property
    def is_full(self) -> bool:
        return len(self.numbers) == 3


class Bound(msgspec.Struct, frozen=True):
    """One bound of a comparator on the precedence: a lower bound (`>=`), or an upper bound (`<`)."""

    upper: bool
    key: bytes
    tagged: Version | None = None
    """The version of the comparator if it is a pre-release, else None. Pre-releases with the same numbers then
    match.
    """

    @property
    def release_key(self) -> bytes:
        """The key of this bound among releases only: at a pre-release, the key of its release, or `first_key` for an
        upper bound.
        """
        if self.tagged is None:
            return self.key
        return first_key(self.tagged) if self.upper else key_of_release(self.tagged)


_NOTHING = Bound(upper=True, key=core_key(0, 0, 0))


def parse_alternative(text: str, whole: str) -> list[Bound]:
    """Return the bounds of one alternative (a part of a range between `||`), or [] if every release matches.

    Raise InvalidVersionSpec, which quotes the range `whole`, if the text is not an alternative.
    """
    hyphen = _HYPHEN.fullmatch(text)
    if hyphen:
        groups = hyphen.groups()
        return [*_from_bounds(groups[:5], whole), *_to_bounds(groups[5:], whole)]
    tokens = _OPERATOR_SPACE.sub(r"\1", text).split()
    return [bound for token in tokens for bound in _comparator(token, whole)]


def _comparator(token: str, whole: str) -> Iterator[Bound]:
    """Return the bounds of one comparator, for example `>=1.2` or `^2`. `whole` is the whole range, for errors."""
    match = _COMPARATOR.fullmatch(token)
    if match is None:
        raise _invalid(whole, token)
    operator, partial_text, *groups = match.groups()
    partial = _partial(groups)
    if operator == "^":
        return _caret(partial)
    if operator.startswith("~"):
        return _tilde(partial)
    if partial.is_full:
        _check_prefix(operator + partial_text, whole)
        return _full(operator, partial)
    return _open(operator, partial)


def _check_prefix(text: str, whole: str) -> None:
    """Raise InvalidVersionSpec for prefixes that npm refuses: a full version takes one operator and one `v`
    (`>=v1.2.3`).

    npm accepts `==1.2`, but not `==1.2.3`.
    """
    if not _FULL_PREFIX.match(text):
        raise _invalid(whole, text)


def _partial(groups: Iterable[str | None]) -> _Partial:
    major, minor, patch, prerelease = groups
    numbers: list[int] = []
    for part in (major, minor, patch):
        if part is None or part in "xX*":
            break
        numbers.append(int(part))
    is_full = len(numbers) == 3
    return _Partial(tuple(numbers), tuple(prerelease.split(".")) if prerelease and is_full else ())


def _caret(partial: _Partial) -> Iterator[Bound]:
    """Yield the bounds of `^`: the first number that is not zero must stay."""
    if not partial.numbers:
        return
    yield from _at_least(partial.floor())
    leading_zeros = next((i for i, number in enumerate(partial.numbers) if number), len(partial.numbers) - 1)
    yield _before(partial.above(leading_zeros + 1))


def _tilde(partial: _Partial) -> Iterator[Bound]:
    """Yield the bounds of `~`: the minor number must stay, or the major number if only that is stated."""
    if not partial.numbers:
        return
    yield from _at_least(partial.floor())
    yield _before(partial.above(min(len(partial.numbers), 2)))


def _full(operator: str, partial: _Partial) -> Iterator[Bound]:
    """Yield the bounds of a comparator with a full version, for example `>1.2.3`."""
    version = partial.floor()
    if operator == ">=":
        yield from _at_least(version)
    if operator in ("", "="):
        yield Bound(False, version.precedence, _tag(version))
    if operator in ("", "=", "<="):
        yield _up_to(version)
    if operator == ">":
        yield Bound(False, _after(version), _tag(version))
    if operator == "<":
        yield Bound(True, version.precedence, _tag(version))


def _open(operator: str, partial: _Partial) -> Iterator[Bound]:
    """Yield the bounds of a comparator whose version has missing numbers, for example `>1.2`."""
    digits = len(partial.numbers)
    if not digits:
        if operator in ("<", ">"):
            yield _NOTHING
        return
    if operator == ">":
        yield from _at_least(partial.above(digits))
        return
    if operator in ("", "=", ">="):
        yield from _at_least(partial.floor())
    if operator in ("", "=", "<="):
        yield _before(partial.above(digits))
    if operator == "<":
        yield _before(partial.floor())


def _from_bounds(groups: tuple[str | None, ...], whole: str) -> Iterator[Bound]:
    """Yield the lower bound of `A - B`."""
    partial = _partial(groups[1:])
    if partial.is_full:
        _check_prefix(">=" + str(groups[0]), whole)
    return _at_least(partial.floor()) if partial.numbers else iter(())


def _to_bounds(groups: tuple[str | None, ...], whole: str) -> Iterator[Bound]:
    """Yield the upper bound of `A - B`."""
    partial = _partial(groups[1:])
    if not partial.numbers:
        return
    if not partial.is_full:
        yield _before(partial.above(len(partial.numbers)))
        return
    # npm rebuilds a pre-release from its parts, and thereby drops a prefix such as `=v`.
    if not partial.prerelease:
        _check_prefix("<=" + str(groups[0]), whole)
    yield _up_to(partial.floor())


def _at_least(version: Version) -> Iterator[Bound]:
    if version != Version(0, 0, 0):  # as in npm, `>=0.0.0` is not a bound
        yield Bound(False, version.precedence, _tag(version))


def _before(release: Version) -> Bound:
    """Return an upper bound that excludes a release and all its pre-releases: `<2.0.0-0` in the notation of npm."""
    return Bound(True, first_key(release))


def _up_to(version: Version) -> Bound:
    return Bound(True, _after(version), _tag(version))


def _tag(version: Version) -> Version | None:
    """Return a pre-release unchanged, and None for a release: other pre-releases of the same major.minor.patch then
    match too.
    """
    return version if version.prerelease else None


def _after(version: Version) -> bytes:
    return version.precedence + b"\x00"  # keys are prefix-free: no version is between


def first_key(version: Version) -> bytes:
    """Return the key that sorts before all pre-releases of this major.minor.patch."""
    return core_key(version.major, version.minor, version.patch)


def key_of_release(version: Version) -> bytes:
    """Return the key that sorts after all pre-releases of this major.minor.patch: the key of the release."""
    return Version(version.major, version.minor, version.patch).precedence


def _invalid(whole: str, token: str) -> InvalidVersionSpec:
    where = "" if token == whole else f": {quoted(token)} is not a comparator"
    return InvalidVersionSpec(f"{quoted(whole)} is not a version range{where}.", hint=RANGE_HINT)


MAX_LENGTH = 256
MAX_ALTERNATIVES = 32


class Segment(msgspec.Struct, frozen=True):
    """An interval of versions: `low <= precedence < high`. It contains only releases, or only pre-releases (`release`
    False).

    `high` None means no upper bound.
    """

    low: bytes
    high: bytes | None
    release: bool

    def contains(self, version: Version) -> bool:
        key = version.precedence
        in_bounds = self.low <= key and (self.high is None or key < self.high)
        return in_bounds and version.is_release == self.release


def parse_range(text: str) -> tuple[Segment, ...]:
    """Return the segments of an npm range, sorted and disjoint. No segment is empty.

    Return () if no version can match, for example for `>2 <1`. Raise InvalidVersionSpec if the text is not a range or
    is too long.
    """
    if len(text) > MAX_LENGTH:
        raise InvalidVersionSpec(
            f"The version range {quoted(text)} has {len(text)} characters, at most {MAX_LENGTH} are allowed.",
            hint="Use a wider range with fewer alternatives.",
        )
    parts = text.split("||")
    if len(parts) > MAX_ALTERNATIVES:
        raise InvalidVersionSpec(
            f"The version range {quoted(text)} has {len(parts)} alternatives, at most {MAX_ALTERNATIVES} are allowed.",
            hint="Use a wider range with fewer alternatives.",
        )
    alternatives = [parse_alternative(part.strip(), text) for part in parts]
    # As in npm, an alternative without bounds replaces the whole range, so `* || 1.0.0-a` matches no pre-release.
    if any(not bounds for bounds in alternatives):
        alternatives = [[]]
    return _merge(segment for bounds in alternatives for segment in _segments(bounds))


def _segments(bounds: list[Bound]) -> Iterator[Segment]:
    """Yield the segments of one alternative: one of releases, and one of pre-releases for each version that allows
    them.
    """
    lower_bounds = [bound for bound in bounds if not bound.upper]
    upper_bounds = [bound for bound in bounds if bound.upper]
    low = max((bound.release_key for bound in lower_bounds), default=b"")
    high = min((bound.release_key for bound in upper_bounds), default=None)
    yield Segment(low, high, release=True)
    for tagged in {bound.tagged for bound in bounds if bound.tagged}:
        low = max((first_key(tagged), *(bound.key for bound in lower_bounds)))
        high = min((key_of_release(tagged), *(bound.key for bound in upper_bounds)))
        yield Segment(low, high, release=False)


def _merge(segments: Iterable[Segment]) -> tuple[Segment, ...]:
    """Return the segments sorted, without empty ones; segments that overlap or touch are one."""
    merged: list[Segment] = []
    for segment in sorted(segments, key=lambda interval: (interval.release, interval.low)):
        if segment.high is not None and segment.high <= segment.low:
            continue
        previous = merged[-1] if merged else None
        if previous is None or previous.release != segment.release or _separate(previous, segment):
            merged.append(segment)
        else:
            merged[-1] = Segment(previous.low, _later(previous.high, segment.high), previous.release)
    return tuple(sorted(merged, key=attrgetter("low", "release")))


def _separate(earlier: Segment, later: Segment) -> bool:
    return earlier.high is not None and earlier.high < later.low


def _later(left: bytes | None, right: bytes | None) -> bytes | None:
    """Return the later of two upper bounds. None is the latest: no bound."""
    return None if left is None or right is None else max(left, right)
