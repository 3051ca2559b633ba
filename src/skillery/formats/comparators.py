"""The comparators of npm ranges, such as `^1.2` or `>=1`. Each comparator becomes bounds of `Version.precedence`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

import msgspec

from skillery.errors import InvalidVersionSpec
from skillery.formats.semver import BUILD, NUMBER, PRERELEASE, Version, core_key
from skillery.formats.wording import quoted

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
        """The key of this bound in the interval that contains only releases."""
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
    if not partial.numbers:
        return
    yield from _at_least(partial.floor())
    leading_zeros = next((i for i, number in enumerate(partial.numbers) if number), len(partial.numbers) - 1)
    yield _before(partial.above(leading_zeros + 1))


def _tilde(partial: _Partial) -> Iterator[Bound]:
    if not partial.numbers:
        return
    yield from _at_least(partial.floor())
    yield _before(partial.above(min(len(partial.numbers), 2)))


def _full(operator: str, partial: _Partial) -> Iterator[Bound]:
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
    partial = _partial(groups[1:])
    if partial.is_full:
        _check_prefix(">=" + str(groups[0]), whole)
    return _at_least(partial.floor()) if partial.numbers else iter(())


def _to_bounds(groups: tuple[str | None, ...], whole: str) -> Iterator[Bound]:
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
