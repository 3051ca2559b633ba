"""The most used skills, which new names are compared with."""

from __future__ import annotations

from sqlalchemy import func, literal_column, select

from skillery.database import Database
from skillery.database.tables import skill_versions, skills, version_usage

_RUNS = func.sum(version_usage.c.runs)
_POPULAR = (
    select(skills.c.name)
    .join_from(version_usage, skill_versions, skill_versions.c.id == version_usage.c.version_id)
    .join(skills, skills.c.id == skill_versions.c.skill_id)
    .where(skills.c.visibility == literal_column("'public'"), skills.c.latest_version_id.is_not(None))
    .group_by(skills.c.name)
    .order_by(_RUNS.desc(), skills.c.name)
)


def popular_skills(database: Database, limit: int) -> list[str]:
    """Return the names of the public skills with the most runs, at most `limit`."""
    return database.read_now(lambda connection: list(connection.scalars(_POPULAR.limit(limit))))
