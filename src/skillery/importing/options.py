"""The options of one import."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from skillery.publishing.package_locks import Mode


class ImportOptions(NamedTuple):
    """The options of one import."""

    namespace: str = ""
    """The namespace for all imported skills. "" means none."""
    permissions: Mapping[str, Any] | None = None
    """`[permissions]` for skills without a skill.toml."""
    name: str = ""
    """The name of the archive, for a skill at its root that does not state a name."""
    source: str = ""
    """The source of the archive, or "" if unknown."""
    is_default_source: bool = False
    """True if the caller did not state the source. The source is then the archive's name, or the remote of its
    repository.
    """
    take_over: frozenset[str] = frozenset()
    """Names of skills of other sources that this import takes over for its source."""
    prune: bool = False
    """True if the import yanks the versions of skills that are no longer in the tree of the source."""
    dry_run: bool = False
    review: bool = False
    """True if each new version waits for a review, also if the importer may publish."""
    into: str = ""
    """The name of a skill, or "". The only skill of the archive becomes a version of this skill. The name in SKILL.md
    is ignored; a skill.toml must have this name.
    """
    keeps_name: bool = False
    """True if the SKILL.md must state the name of the skill `into`, with or without its namespace."""
    packages: Mode | None = None
    """The handling of undeclared packages. None means the setting of the server."""
    split: bool = False
    """True if a SKILL.md below another skill's folder is a separate skill."""
    is_new: bool = False
    """True if each skill must be new, or the same as the stored skill."""

    @property
    def is_upload(self) -> bool:
        """True for a single skill that is uploaded to /v1/skills. It has no source."""
        return self.is_new or bool(self.into)
