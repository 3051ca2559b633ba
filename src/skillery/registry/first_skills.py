"""The question of a new server: whether a user has published a skill."""

from __future__ import annotations

from sqlalchemy import Connection, select

from skillery.database.tables import skill_versions

BUNDLED_BY = "skillery"
"""The identity that publishes the bundled skills."""


def has_skills_of_others(connection: Connection) -> bool:
    """Return whether a version exists that is not one of the bundled skills."""
    found = select(skill_versions.c.id).where(skill_versions.c.publisher != BUNDLED_BY).limit(1)
    return connection.execute(found).first() is not None
