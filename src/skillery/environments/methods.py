"""The methods for environments of packages. An environment without a name is identified by the SHA-256 of its lock."""

from __future__ import annotations

from typing import Annotated, NamedTuple, TypeVar

import msgspec
from msgspec import Meta

from skillery.backends import Identity, KeepsWarm, Sandbox
from skillery.environments.named import NamedEnvironments
from skillery.environments.queries import (
    DescribedEnvironment,
    Environment,
    EnvironmentPage,
    EnvironmentQueries,
    WarmProcess,
)
from skillery.environments.rebuilds import Rebuilds
from skillery.method import Cursor, Method, PageLimit, Params, about

EnvironmentOrLock = Annotated[str, Meta(min_length=1, max_length=100)]
E = TypeVar("E", bound=Environment)


class EnvironmentParts(NamedTuple):
    """The parts of the core that the methods for environments use."""

    named: NamedEnvironments
    queries: EnvironmentQueries
    rebuilds: Rebuilds
    sandbox: Sandbox
    cursor_key: bytes

    def with_warm(self, environment: E) -> E:
        """Return the environment with the state of its warm process, if the sandbox has such a process.

        Several warm processes may have the packages of the environment. If the environment has `preload`, only a
        process that has imported exactly these modules counts.
        """
        if environment.lock is None or not isinstance(self.sandbox, KeepsWarm):
            return environment
        sha256, preload = environment.lock.sha256, tuple(environment.preload)
        for warm in self.sandbox.warm():
            if warm.lock == sha256 and warm.preload == (preload or warm.preload):
                return msgspec.structs.replace(environment, warm=WarmProcess(warm.state, warm.memory_mb, warm.message))
        return environment


# -- list_environments -------------------------------------------------------------------------------------------------


class ListEnvironments(Params, frozen=True, kw_only=True):
    """List the named environments, with the packages that the code of run_code may import."""

    installed: Annotated[bool, about("List all installed locks instead (for admins)", default=False)] = False
    limit: PageLimit = 50
    cursor: Cursor = ""


async def list_environments(
    environments: EnvironmentParts, identity: Identity, params: ListEnvironments
) -> EnvironmentPage:
    if params.installed:
        page = await environments.queries.installed(identity, environments.cursor_key, params.limit, params.cursor)
    else:
        page = await environments.queries.named()
    return EnvironmentPage([environments.with_warm(environment) for environment in page.environments], page.next_cursor)


# -- describe_environment ----------------------------------------------------------------------------------------------


class DescribeEnvironment(Params, frozen=True, kw_only=True):
    """Return one environment, and the versions that use its lock of packages."""

    name: Annotated[EnvironmentOrLock, about("Name of an environment, or the SHA-256 of a lock")]


async def describe_environment(
    environments: EnvironmentParts, identity: Identity, params: DescribeEnvironment
) -> DescribedEnvironment:
    return environments.with_warm(await environments.queries.describe(identity, params.name))


# -- rebuild_environment -----------------------------------------------------------------------------------------------


class RebuildEnvironment(Params, frozen=True, kw_only=True):
    """Lock a named environment again and install the new lock. For the SHA-256 of a lock, reinstall that lock."""

    name: Annotated[EnvironmentOrLock, about("Name of an environment, or the SHA-256 of a lock")]


async def rebuild_environment(
    environments: EnvironmentParts, identity: Identity, params: RebuildEnvironment
) -> DescribedEnvironment:
    await environments.rebuilds.begin(identity, params.name)
    return environments.with_warm(await environments.queries.describe(identity, params.name))


METHODS = (
    Method(list_environments, "run", audits=""),
    Method(describe_environment, "run", audits=""),
    Method(rebuild_environment, "admin", audits="name"),
)
