"""How many published skills reach a host: what reviewers compare a new permission with."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection, func, select

from skillery.backends import Identity
from skillery.database.tables import catalogue, catalogue_hosts
from skillery.formats.network import NetworkPattern, parse_network_pattern
from skillery.registry.catalogue_filters import is_listed
from skillery.registry.visibility import parameters, sees_each, view_of

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
    """Return the entries that allow all hosts of `pattern`: it, and wildcards of the domains above."""
    scheme, _, rest = pattern.text.partition("://")
    port = rest.removeprefix("*.").removeprefix(pattern.host)
    labels = pattern.host.split(".")
    above = [f"{scheme}://*.{'.'.join(labels[place:])}{port}" for place in range(1, len(labels))]
    return [pattern.text, *above]
