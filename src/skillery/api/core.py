"""The parts of the registry and the runtime that methods use. `skillery.app` builds them."""

from __future__ import annotations

from typing import NamedTuple

from skillery.audit import Refusals
from skillery.backends import Authenticator, Sandbox
from skillery.contents.blobs import Blobs
from skillery.environments.named import NamedEnvironments
from skillery.environments.queries import EnvironmentQueries
from skillery.environments.rebuilds import Rebuilds
from skillery.exports import Exports
from skillery.identity.idempotency import Once
from skillery.identity.quotas import Quotas
from skillery.importing import Importer
from skillery.maintenance.garbage import Collector
from skillery.publishing import Developer, Publisher, ToolMaker
from skillery.registry.registry import Registry
from skillery.runs import Runner
from skillery.workspaces.methods import Workspaces


class EnvironmentParts(NamedTuple):
    """The parts of the core for methods that use named environments."""

    named: NamedEnvironments
    queries: EnvironmentQueries
    rebuilds: Rebuilds


class Core(NamedTuple):
    """The parts of the core that methods use. An endpoint gets only the parts that it needs."""

    registry: Registry
    blobs: Blobs
    runner: Runner
    workspaces: Workspaces
    publisher: Publisher
    developer: Developer
    importer: Importer
    tools: ToolMaker
    environments: EnvironmentParts
    exports: Exports
    quotas: Quotas
    once: Once
    refusals: Refusals
    collector: Collector
    authenticator: Authenticator
    sandbox: Sandbox
