"""Build the named environments from the settings."""

from __future__ import annotations

import msgspec

from skillery.app.environments import PackageServices
from skillery.app.home import Home
from skillery.backends import Sandbox
from skillery.database import Database
from skillery.database.registry import Registry
from skillery.environments.definitions import Defined, Named
from skillery.environments.methods import EnvironmentParts
from skillery.environments.named import NamedEnvironments
from skillery.environments.queries import EnvironmentQueries
from skillery.environments.rebuilds import Rebuilds
from skillery.errors import StartupError
from skillery.settings import Settings


def defined_in(settings: Settings) -> Defined:
    """Return the named environments that the settings define. Raise StartupError if they are not valid or there is
    no source of packages.
    """
    asked = settings.environments
    defined = Defined([Named(name, **msgspec.structs.asdict(one)) for name, one in asked.items()])
    if len(defined) and not (settings.packages.index_urls or settings.packages.wheelhouse):
        raise StartupError(
            f"setting 'environments.{next(iter(asked))}' needs a source of packages: set packages.index_urls, "
            "for instance to https://pypi.org/simple, or packages.wheelhouse"
        )
    return defined


def named_of(
    settings: Settings, home: Home, database: Database, registry: Registry, packages: PackageServices, sandbox: Sandbox
) -> EnvironmentParts:
    """Build the parts for named environments. Raise StartupError if the settings of an environment are not valid."""
    locks, environments, server = packages.locks, packages.environments, home.server_id
    named = NamedEnvironments(database, locks, environments, defined_in(settings))
    queries = EnvironmentQueries(database, registry.storage, environments, named, server)
    rebuilds = Rebuilds(database, registry.storage, locks, environments, named, server)
    return EnvironmentParts(named, queries, rebuilds, sandbox, registry.cursor_key)
