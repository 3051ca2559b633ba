"""The usage of one skill by day."""

from __future__ import annotations

from sqlalchemy import Connection

from skillery.backends import Identity
from skillery.registry.resolution import find_skill, skill_not_found
from skillery.registry.usage_days import UsageDay, days_of


def usage_by_day(connection: Connection, identity: Identity, name: str) -> list[UsageDay]:
    """Return the ended runs of a skill on each of the last 30 days, oldest day first. The last day is today (UTC).

    Raise SkillNotFound if the identity sees no such skill.
    """
    skill_id = find_skill(connection, identity, name)
    if skill_id is None:
        raise skill_not_found(connection, identity, name)
    return days_of(connection, skill_id)
