"""Environments: packages that runs find, by a name or by a lock."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from skillery.api.rpc import environment_params
from skillery.api.services import Services
from skillery.backends import Identity, KeepsWarm, Warm
from skillery.environments.queries import DescribedEnvironment, Environment, EnvironmentPage, WarmProcess

E = TypeVar("E", bound=Environment)


async def list_environments(
    services: Services, identity: Identity, asked: environment_params.ListEnvironments
) -> EnvironmentPage:
    if asked.installed:
        page = await services.showing.installed(identity, services.cursor_key, asked.limit, asked.cursor)
    else:
        page = await services.showing.named()
    warm = _warm(services)
    return EnvironmentPage([_with_warm(one, warm) for one in page.environments], page.next_cursor)


async def describe_environment(
    services: Services, identity: Identity, asked: environment_params.DescribeEnvironment
) -> DescribedEnvironment:
    return _with_warm(await services.showing.describe(identity, asked.name), _warm(services))


async def rebuild_environment(
    services: Services, identity: Identity, asked: environment_params.RebuildEnvironment
) -> DescribedEnvironment:
    await services.rebuilds.begin(identity, asked.name)
    return _with_warm(await services.showing.describe(identity, asked.name), _warm(services))


def _warm(services: Services) -> list[Warm]:
    return services.sandbox.warm() if isinstance(services.sandbox, KeepsWarm) else []


def _with_warm(one: E, warm: list[Warm]) -> E:
    """With the process that has imported just what it says; several may have the packages alone."""
    if one.lock is None:
        return one
    sha256, preload = one.lock.sha256, tuple(one.preload)
    found = next((kept for kept in warm if kept.lock == sha256 and kept.preload == (preload or kept.preload)), None)
    if found is None:
        return one
    return msgspec.structs.replace(one, warm=WarmProcess(found.state, found.memory_mb, found.message))
