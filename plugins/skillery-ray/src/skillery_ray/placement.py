"""Placement: which nodes may run a job, and which of them runs it."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from skillery.backends import Job
from skillery_ray.members import Member
from skillery_ray.settings import Route, has_labels


def matches(route: Route, job: Job) -> bool:
    """Return whether a route applies to a job."""
    name = job.skills[0].name if job.skills else ""
    if route.skills and name not in route.skills:
        return False
    if route.namespaces and not any(_is_below(name, namespace) for namespace in route.namespaces):
        return False
    return job.limits.memory_mb >= route.memory_mb and job.limits.cpus >= route.cpus


def _is_below(name: str, namespace: str) -> bool:
    return name.startswith(f"{namespace}.")


def allowed(members: Collection[Member], routes: Sequence[Route], job: Job) -> list[Member]:
    """Return the nodes that may run the job, whether they are ready or not."""
    route = next((route for route in routes if matches(route, job)), None)
    return [member for member in members if route is None or has_labels(member.labels, route.labels)]


def by_load(members: Collection[Member]) -> list[Member]:
    """Return the ready nodes: nodes without trouble first, then nodes with fewer runs first."""
    return sorted((member for member in members if member.is_ready), key=lambda member: (member.is_marked, member.load))
