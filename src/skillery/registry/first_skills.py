"""The question of a new server: whether a user has published a skill."""

from __future__ import annotations

from sqlalchemy import Connection, literal_column, select

from skillery.database import Statement
from skillery.database.tables import skill_versions

BUNDLED_BY = "skillery"
"""The identity that publishes the bundled skills."""


_OF_OTHERS = Statement(
    select(skill_versions.c.id)
    .where(skill_versions.c.publisher != literal_column(f"'{BUNDLED_BY}'"))
    .limit(literal_column("1"))
)


def has_skills_of_others(connection: Connection) -> bool:
    """Return whether a version exists that is not one of the bundled skills. Versions are never removed, so a yes is
    final.
    """
    return bool(_OF_OTHERS.rows(connection))
