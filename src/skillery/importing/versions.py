"""Versions of imported skills."""

from __future__ import annotations

from skillery.formats.semver import Version

FIRST = Version(1, 0, 0)


def next_version(declared: Version | None, taken: list[Version]) -> Version:
    """Return the declared version if it is free, else the lowest free patch after it.

    Without a declared version, return the next patch after all taken versions, or 1.0.0 for a new skill. `taken` is
    sorted.
    """
    precedences = {version.precedence for version in taken}
    if declared is not None and declared.precedence not in precedences:
        return declared
    if not taken:
        return FIRST
    version = declared.next_patch() if declared is not None else taken[-1].next_patch()
    while version.precedence in precedences:
        version = version.next_patch()
    return version
