"""Methods for environments of packages. An environment without a name is identified by the SHA-256 of its lock of
packages.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

from skillery.backends import Identity, KeepsWarm, Warm
from skillery.environments.queries import DescribedEnvironment, Environment, EnvironmentPage, WarmProcess
from skillery.methods import environment_params
from skillery.methods.core import Core

E = TypeVar("E", bound=Environment)


async def list_environments(
    core: Core, identity: Identity, asked: environment_params.ListEnvironments
) -> EnvironmentPage:
    if asked.installed:
        page = await core.environments.queries.installed(identity, core.registry.cursor_key, asked.limit, asked.cursor)
    else:
        page = await core.environments.queries.named()
    warm = _warm(core)
    return EnvironmentPage([_with_warm(environment, warm) for environment in page.environments], page.next_cursor)


async def describe_environment(
    core: Core, identity: Identity, asked: environment_params.DescribeEnvironment
) -> DescribedEnvironment:
    return _with_warm(await core.environments.queries.describe(identity, asked.name), _warm(core))


async def rebuild_environment(
    core: Core, identity: Identity, asked: environment_params.RebuildEnvironment
) -> DescribedEnvironment:
    await core.environments.rebuilds.begin(identity, asked.name)
    return _with_warm(await core.environments.queries.describe(identity, asked.name), _warm(core))


def _warm(core: Core) -> list[Warm]:
    return core.sandbox.warm() if isinstance(core.sandbox, KeepsWarm) else []


def _with_warm(one: E, warm: list[Warm]) -> E:
    """Return the environment with the state of its warm process, if `warm` has such a process.

    Several warm processes may have the packages of the environment. If the environment has `preload`, only a process
    that has imported exactly these modules counts.
    """
    if one.lock is None:
        return one
    sha256, preload = one.lock.sha256, tuple(one.preload)
    found = next((kept for kept in warm if kept.lock == sha256 and kept.preload == (preload or kept.preload)), None)
    if found is None:
        return one
    return msgspec.structs.replace(one, warm=WarmProcess(found.state, found.memory_mb, found.message))
