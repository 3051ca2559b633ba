"""Versions by SemVer 2.0.0 (https://semver.org), with a key for sorting by plain byte comparison."""

from __future__ import annotations

import re

import msgspec

from skillery.errors import InvalidVersion
from skillery.formats.wording import quoted

MAX_LENGTH = 256

NUMBER = r"(?:0|[1-9][0-9]*)"
"""Regular expression for a number of a version, without leading zeros."""
PRERELEASE = r"(?:{0})(?:\.(?:{0}))*".format(r"0|[1-9][0-9]*|[0-9]*[a-zA-Z-][0-9a-zA-Z-]*")
BUILD = r"[0-9a-zA-Z-]+(?:\.[0-9a-zA-Z-]+)*"

VERSION_PATTERN = rf"({NUMBER})\.({NUMBER})\.({NUMBER})(?:-({PRERELEASE}))?(?:\+({BUILD}))?"
_VERSION = re.compile(VERSION_PATTERN)

_NUMERIC = b"\x01"
_ALPHANUMERIC = b"\x02"
_END = b"\x00"
_RELEASE = b"\xff"


class Version(msgspec.Struct, frozen=True):
    """A SemVer version. `==` compares build metadata too. `precedence` ignores build metadata, as SemVer §10
    requires.
    """

    major: int
    minor: int
    patch: int
    prerelease: tuple[str, ...] = ()
    build: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: str) -> Version:
        """Return the version in the text. Raise InvalidVersion if the text is not SemVer 2.0.0 or has over 256
        characters.
        """
        if len(text) > MAX_LENGTH:
            raise InvalidVersion(
                f"The version {quoted(text)} has {len(text)} characters, at most {MAX_LENGTH} are allowed.",
                hint="Shorten it, e.g. by leaving out build metadata.",
            )
        match = _VERSION.fullmatch(text)
        if match is None:
            raise InvalidVersion(f"{quoted(text)} is not a version.", hint=_hint(text))
        major, minor, patch, prerelease, build = match.groups()
        return cls(int(major), int(minor), int(patch), _identifiers(prerelease), _identifiers(build))

    def __str__(self) -> str:
        prerelease = "-" + ".".join(self.prerelease) if self.prerelease else ""
        build = "+" + ".".join(self.build) if self.build else ""
        return f"{self.major}.{self.minor}.{self.patch}{prerelease}{build}"

    @property
    def is_release(self) -> bool:
        return not self.prerelease

    @property
    def precedence(self) -> bytes:
        """A key for sorting: its byte order is SemVer precedence. Versions that differ only in build metadata have
        equal keys.

        No key is a prefix of another key. So no key sorts between a key and the same key with a zero byte added.
        """
        core = core_key(self.major, self.minor, self.patch)
        if not self.prerelease:
            return core + _RELEASE
        return core + b"".join(map(_identifier_key, self.prerelease)) + _END

    def next_patch(self) -> Version:
        """Return the lowest release above this version."""
        if self.prerelease:
            return Version(self.major, self.minor, self.patch)
        return Version(self.major, self.minor, self.patch + 1)

    def next_minor(self) -> Version:
        return Version(self.major, self.minor + 1, 0)

    def next_major(self) -> Version:
        return Version(self.major + 1, 0, 0)


def core_key(major: int, minor: int, patch: int) -> bytes:
    """Return the bytes with which the keys of `major.minor.patch` and all its pre-releases begin. They sort before
    these keys.
    """
    return _number_key(major) + _number_key(minor) + _number_key(patch)


def _number_key(number: int) -> bytes:
    # The length byte always fits: 256 characters of digits are at most 107 bytes.
    size = (number.bit_length() + 7) // 8
    return bytes((size,)) + number.to_bytes(size, "big")


def _identifier_key(identifier: str) -> bytes:
    if identifier.isdecimal():
        return _NUMERIC + _number_key(int(identifier))
    return _ALPHANUMERIC + identifier.encode("ascii") + _END


def _identifiers(text: str | None) -> tuple[str, ...]:
    return tuple(text.split(".")) if text else ()


def _hint(text: str) -> str:
    """Return a hint with the similar valid version, for a text that is not a version."""
    hint = "A version is MAJOR.MINOR.PATCH with an optional pre-release, e.g. '1.0.0' or '1.2.0-beta.1'."
    numbers = re.findall(r"[0-9]+", text)[:3]
    if not re.fullmatch(r"[vV=\s]*[0-9]+(\.[0-9]+){0,2}\s*", text):
        return hint
    suggestion = ".".join(str(int(number)) for number in (*numbers, "0", "0")[:3])
    return f"{hint} Perhaps {quoted(suggestion)}?"
