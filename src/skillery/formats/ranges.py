"""Version ranges by the rules of npm (https://docs.npmjs.com/cli/configuring-npm/package-json#dependencies).

A range becomes intervals of `Version.precedence`, so that a database finds the matching versions with a few index
scans. A range has alternatives (`||`). An alternative has comparators, and a version must satisfy all of them. A
pre-release matches only if a comparator of the same alternative names a pre-release of the same major.minor.patch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from operator import attrgetter

import msgspec

from skillery.errors import InvalidVersionSpec
from skillery.formats.comparators import Bound, first_key, key_of_release, parse_alternative
from skillery.formats.semver import Version
from skillery.formats.wording import quoted

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
    lower = [bound for bound in bounds if not bound.upper]
    upper = [bound for bound in bounds if bound.upper]
    low = max((bound.release_key for bound in lower), default=b"")
    high = min((bound.release_key for bound in upper), default=None)
    yield Segment(low, high, release=True)
    for tagged in {bound.tagged for bound in bounds if bound.tagged}:
        low = max((first_key(tagged), *(bound.key for bound in lower)))
        high = min((key_of_release(tagged), *(bound.key for bound in upper)))
        yield Segment(low, high, release=False)


def _merge(segments: Iterable[Segment]) -> tuple[Segment, ...]:
    merged: list[Segment] = []
    for segment in sorted(segments, key=lambda each: (each.release, each.low)):
        if segment.high is not None and segment.high <= segment.low:
            continue
        last = merged[-1] if merged else None
        if last is None or last.release != segment.release or _apart(last, segment):
            merged.append(segment)
        else:
            merged[-1] = Segment(last.low, _later(last.high, segment.high), last.release)
    return tuple(sorted(merged, key=attrgetter("low", "release")))


def _apart(earlier: Segment, later: Segment) -> bool:
    return earlier.high is not None and earlier.high < later.low


def _later(one: bytes | None, other: bytes | None) -> bytes | None:
    return None if one is None or other is None else max(one, other)
