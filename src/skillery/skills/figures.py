"""Figures for pages: waiting reviews, skills that reach a host, the most used skills, first skills."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection, func, literal_column, select

from skillery.backends import Identity
from skillery.database import Database, Statement
from skillery.database.registry import Registry
from skillery.database.tables import catalogue, catalogue_hosts, skill_versions, skills, version_usage
from skillery.formats.network import NetworkPattern, parse_network_pattern
from skillery.registry.visibility import has_visibility, parameters, sees_each, view_of
from skillery.skills.catalogue_filters import is_listed

# -- How many published skills reach a host: what reviewers compare a new permission with ------------------------------


MOST_COUNTED = 1000


def count_host_uses(connection: Connection, identity: Identity, name: str, hosts: Sequence[str]) -> dict[str, int]:
    """Return for each host the number of other published skills that may reach it and that the identity sees.

    `hosts` are entries of `permissions.network`. `name` is the skill that is not counted. Each number is at most
    MOST_COUNTED.
    """
    return {host: _count(connection, identity, name, host) for host in hosts}


def _count(connection: Connection, identity: Identity, name: str, host: str) -> int:
    pattern = parse_network_pattern(host)
    if isinstance(pattern, str):
        return 0
    others = (
        select(catalogue.c.skill_id)
        .join_from(catalogue_hosts, catalogue, catalogue.c.version_id == catalogue_hosts.c.version_id)
        .where(catalogue_hosts.c.host.in_(_covering(pattern)), is_listed(), catalogue.c.name != name)
        .distinct()
        .limit(MOST_COUNTED)
    )
    view = view_of(identity)
    if view is not None:
        others = others.where(sees_each(view, catalogue, catalogue.c.skill_id))
    counted = select(func.count()).select_from(others.subquery())
    return connection.scalar(counted, parameters(identity)) or 0


def _covering(pattern: NetworkPattern) -> list[str]:
    """Return the entries that allow all hosts of `pattern`: the pattern itself, and wildcards of the domains above."""
    scheme, _, rest = pattern.text.partition("://")
    port = rest.removeprefix("*.").removeprefix(pattern.host)
    labels = pattern.host.split(".")
    above = [f"{scheme}://*.{'.'.join(labels[place:])}{port}" for place in range(1, len(labels))]
    return [pattern.text, *above]


# -- The most used skills, which new names are compared with -----------------------------------------------------------


_RUNS = func.sum(version_usage.c.runs)
_POPULAR = (
    select(skills.c.name)
    .join_from(version_usage, skill_versions, skill_versions.c.id == version_usage.c.version_id)
    .join(skills, skills.c.id == skill_versions.c.skill_id)
    .where(has_visibility("public"), skills.c.latest_version_id.is_not(None))
    .group_by(skills.c.name)
    .order_by(_RUNS.desc(), skills.c.name)
)


def popular_skills(database: Database, limit: int) -> list[str]:
    """Return the names of the public skills with the most runs, at most `limit`."""
    return database.read_now(lambda connection: list(connection.scalars(_POPULAR.limit(limit))))


# -- The question of a new server: whether a user has published a skill ------------------------------------------------


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
