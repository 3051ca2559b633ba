"""Packages of skills, from the settings."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import NamedTuple

import msgspec

from skillery.app.home import Home
from skillery.backends import Storage
from skillery.database import Database
from skillery.environments import (
    Builder,
    Defined,
    Environments,
    Locks,
    Named,
    NamedEnvironments,
    Rebuilds,
    Showing,
    Sources,
    Uv,
)
from skillery.errors import StartupError
from skillery.settings import Settings

MIB = 1024 * 1024


class Packages(NamedTuple):
    locks: Locks
    environments: Environments
    named: NamedEnvironments
    showing: Showing
    rebuilds: Rebuilds


def defined_in(settings: Settings) -> Defined:
    """The named environments. Raises StartupError."""
    asked = settings.environments
    defined = Defined([Named(name, **msgspec.structs.asdict(one)) for name, one in asked.items()])
    if len(defined) and not (settings.packages.index_urls or settings.packages.wheelhouse):
        raise StartupError(
            f"setting 'environments.{next(iter(asked))}' needs packages, and there are none: set packages.index_urls, "
            "for instance to https://pypi.org/simple, or packages.wheelhouse"
        )
    return defined


def packages_of(settings: Settings, home: Home, database: Database, storage: Storage) -> Packages:
    """Raises StartupError for a wheelhouse that is no folder, and as `defined_in`."""
    asked, folder, sources = settings.packages, home.path / "environments", _sources(settings)
    uv = Uv(folder / "uv")
    locks = Locks(database, uv, sources, asked.lock_seconds, timedelta(hours=asked.reuse_hours))
    builder = Builder(folder, uv, sources, asked.build_seconds, asked.max_mb * MIB)
    environments = Environments(folder, database, builder, home.server_id)
    named = NamedEnvironments(database, locks, environments, defined_in(settings))
    return Packages(
        locks,
        environments,
        named,
        Showing(database, storage, environments, named, home.server_id),
        Rebuilds(database, storage, locks, environments, named, home.server_id),
    )


def _sources(settings: Settings) -> Sources:
    asked = settings.packages
    wheelhouse = Path(asked.wheelhouse).expanduser().absolute() if asked.wheelhouse else None
    if wheelhouse is not None and not wheelhouse.is_dir():
        raise StartupError(f"setting 'packages.wheelhouse' is '{asked.wheelhouse}', where there is no folder")
    return Sources(asked.index_urls, wheelhouse, asked.exclude_newer, _patterns(asked.allowed), _patterns(asked.denied))


def _patterns(names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(name.lower().replace("_", "-").replace(".", "-") for name in names)
