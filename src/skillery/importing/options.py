"""The options of one import."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from skillery.publishing import Mode


class ImportOptions(NamedTuple):
    """The parameters of an import."""

    namespace: str = ""
    """Namespace for all imported skills."""
    permissions: Mapping[str, Any] | None = None
    """`[permissions]` for skills without a skill.toml."""
    name: str = ""
    """Name of the archive, for a skill at its root that states no name."""
    source: str = ""
    """Source of the archive; "" if unknown."""
    is_default_source: bool = False
    """True if the caller did not state the source: it is the archive's name, or the remote of its repository."""
    take_over: frozenset[str] = frozenset()
    """Names of skills of other sources that become skills of this source."""
    prune: bool = False
    """True if the import yanks the skills that the source no longer contains."""
    dry_run: bool = False
    into: str = ""
    """Name of the skill that gets the archive's only skill as a version. The name that the files state is ignored."""
    packages: Mode | None = None
    """Handling of undeclared packages; None follows the server's setting."""
    split: bool = False
    """True if a SKILL.md below another skill's folder is a separate skill."""
    is_new: bool = False
    """True if each skill must be new, or equal to the stored one."""

    @property
    def is_upload(self) -> bool:
        """True for one skill uploaded to /v1/skills, which has no source."""
        return self.is_new or bool(self.into)
