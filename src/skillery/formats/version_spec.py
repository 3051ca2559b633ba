"""Version specs: texts that select a version. Kinds: empty or `latest`, a version, a range, a label, a digest."""

from __future__ import annotations

import re
from typing import TypeAlias

import msgspec

from skillery.errors import InvalidLabel, InvalidVersion, InvalidVersionSpec
from skillery.formats.names import parse_skill_name
from skillery.formats.ranges import RANGE_HINT, Segment, parse_range
from skillery.formats.semver import Version
from skillery.formats.wording import quoted

# -- Labels: movable names for versions (`stable`). No label has the form of a version, range or digest ----------------


MAX_LENGTH = 64
LATEST = "latest"

_LABEL = re.compile(r"[a-z][a-z0-9._-]*")
# Also matches mistyped versions: the error for `v1.2.3.4` says that the text is not a label, instead of that the label
# does not exist.
_LIKE_A_VERSION = re.compile(r"v*(?:[0-9]|x(?:\.|$)).*")
_LABEL_HINT = (
    f"A label begins with a letter a-z, continues with a-z, 0-9, '.', '_' and '-', and has at most {MAX_LENGTH} "
    "characters, e.g. 'stable'."
)


def parse_label(text: str) -> str:
    """Return the label unchanged. Raise InvalidLabel, with the reason, if the text is not a valid label."""
    problem = label_problem(text)
    if problem:
        raise InvalidLabel(f"{quoted(text)} is not a label: {problem}", hint=_LABEL_HINT, label=text[:MAX_LENGTH])
    return text


def label_problem(text: str) -> str | None:
    """Return the reason why `text` is not a valid label, or None if it is valid. The reason is a clause for a
    message.
    """
    if not text.strip():
        return "it is blank"
    if text == LATEST:
        return "'latest' is computed and cannot be set"
    if text.startswith("sha256:"):
        return "it reads as a digest"
    if len(text) > MAX_LENGTH:
        return f"it has {len(text)} characters"
    if _LIKE_A_VERSION.fullmatch(text) or _is_range(text):
        return "it reads as a version or a range of versions"
    return None if _LABEL.fullmatch(text) else "it has other characters than a label may have"


def _is_range(text: str) -> bool:
    try:
        parse_range(text)
    except InvalidVersionSpec:
        return False
    return True


class Latest(msgspec.Struct, frozen=True):
    """Selects the highest release, or the highest pre-release if there is no release."""


class Exact(msgspec.Struct, frozen=True):
    """Selects one version. Without build metadata, it selects the version with any build metadata."""

    version: Version


class Range(msgspec.Struct, frozen=True):
    """Selects the highest version in any of the segments."""

    text: str
    segments: tuple[Segment, ...]


class Digest(msgspec.Struct, frozen=True):
    """Selects the version of the bundle with this digest (`sha256:` and 64 hex digits in lower case)."""

    digest: str


class Label(msgspec.Struct, frozen=True):
    """Selects the version that the label points to."""

    label: str


VersionSpec: TypeAlias = Latest | Exact | Range | Digest | Label

_DIGEST = re.compile(r"sha256:[0-9a-fA-F]{64}")
_HINT = (
    "Leave it out for the latest, or give a version ('1.2.3'), a range ('^1.2', '~1.2.3', '1.x', '>=1 <2', "
    "'1 - 2', '^1 || ^2'), a label ('stable') or a digest ('sha256:' and 64 hex digits)."
)


def parse_version_spec(text: str | None) -> VersionSpec:
    """Return the version spec. Raise InvalidVersionSpec if the text is not a version spec of any kind."""
    stripped = (text or "").strip()
    if stripped in ("", LATEST):
        return Latest()
    if stripped.startswith("sha256:"):
        return _parse_digest(stripped)
    try:
        return Exact(Version.parse(stripped))
    except InvalidVersion:
        pass
    # A label never reads as a range.
    return _parse_range(stripped) if label_problem(stripped) else Label(stripped)


def selects(spec: VersionSpec, precedence: bytes, *, is_release: bool) -> bool:
    """Return whether a version or a range of versions selects a version of this precedence."""
    if isinstance(spec, Exact):
        return precedence == spec.version.precedence
    segments = spec.segments if isinstance(spec, Range) else ()
    return any(
        segment.release == is_release
        and segment.low <= precedence
        and (segment.high is None or precedence < segment.high)
        for segment in segments
    )


def parse_reference(text: str) -> tuple[str, VersionSpec]:
    """Return name and version spec of a reference such as `name` or `name@<version spec>`.

    Raise InvalidName if the name is invalid, and InvalidVersionSpec if the version spec is invalid.
    """
    name, _, version = text.partition("@")
    return parse_skill_name(name), parse_version_spec(version)


def _parse_digest(text: str) -> Digest:
    if not _DIGEST.fullmatch(text):
        raise InvalidVersionSpec(f"{quoted(text)} is not a digest.", hint="A digest is 'sha256:' and 64 hex digits.")
    return Digest(text.lower())


def _parse_range(text: str) -> Range:
    try:
        return Range(text, parse_range(text))
    except InvalidVersionSpec as error:
        if error.hint != RANGE_HINT:
            raise
        raise InvalidVersionSpec(
            f"{quoted(text)} is neither a version, nor a range of versions, nor a label.", hint=_HINT
        ) from None


def parse_named(name: str, version: str) -> tuple[str, VersionSpec]:
    """Return the name of a skill and the version spec, both checked. Raise InvalidName or InvalidVersion."""
    return parse_skill_name(name), parse_version_spec(version)
