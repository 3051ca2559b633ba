"""Which skills stand beside each other in one sandbox."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from skillery.errors import InvalidParams
from skillery.formats.names import import_name
from skillery.formats.version_spec import VersionSpec, parse_reference
from skillery.registry import VersionRow

MOST_MOUNTS = 100


class Reference(NamedTuple):
    name: str
    spec: VersionSpec


def parse_mounts(texts: Sequence[str]) -> list[Reference]:
    """`name` or `name@<version spec>` each."""
    if len(texts) > MOST_MOUNTS:
        raise InvalidParams(
            f"'mount_skills' names {len(texts)} skills, at most {MOST_MOUNTS} are allowed", param="mount_skills"
        )
    return [Reference(*parse_reference(text)) for text in texts]


def check_mounts(versions: Sequence[VersionRow]) -> list[VersionRow]:
    """Each version once, in the order asked for.

    Raises InvalidParams for one skill in two versions, and for two skills that would have one import name.
    """
    by_import: dict[str, VersionRow] = {}
    for version in versions:
        there = by_import.setdefault(import_name(version.name), version)
        if there.name != version.name:
            raise InvalidParams(
                f"'{there.name}' and '{version.name}' would both be imported as {import_name(version.name)}",
                hint="Mount one of the two.",
            )
        if there.version_id != version.version_id:
            raise InvalidParams(
                f"'{version.name}' is to be mounted in two versions, {there.version} and {version.version}",
                hint="Mount one version of a skill.",
            )
    return list(by_import.values())
