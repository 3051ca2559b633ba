"""The question of a new server: whether a user has published a skill."""

from __future__ import annotations

from sqlalchemy import Connection, literal_column, select

from skillery.database import Statement
from skillery.database.registry import Registry
from skillery.database.tables import skill_versions

BUNDLED_BY = "skillery"
"""The identity that publishes the bundled skills."""


_OF_OTHERS = Statement(
    select(skill_versions.c.id)
    .where(skill_versions.c.publisher != literal_column(f"'{BUNDLED_BY}'"))
    .limit(literal_column("1"))
)


class FirstSkills:
    """Remembers that users have published skills: versions are never removed, so a yes is final."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._exist = False

    async def exist(self) -> bool:
        """Return whether a version exists that is not one of the bundled skills."""
        self._exist = self._exist or await self._registry.read(_has_version_of_others)
        return self._exist


def _has_version_of_others(connection: Connection) -> bool:
    return bool(_OF_OTHERS.rows(connection))
