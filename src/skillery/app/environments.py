"""Packages of skills, from the settings."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import NamedTuple

from skillery.app.home import Home
from skillery.database import Database
from skillery.environments import Builder, Environments, Locks, Sources, Uv
from skillery.errors import StartupError
from skillery.settings import Settings

MIB = 1024 * 1024


class Packages(NamedTuple):
    locks: Locks
    environments: Environments


def packages_of(settings: Settings, home: Home, database: Database) -> Packages:
    """Raises StartupError for a wheelhouse that is no folder."""
    asked, folder, sources = settings.packages, home.path / "environments", _sources(settings)
    uv = Uv(folder / "uv")
    locks = Locks(database, uv, sources, asked.lock_seconds, timedelta(hours=asked.reuse_hours))
    builder = Builder(folder, uv, sources, asked.build_seconds, asked.max_mb * MIB)
    return Packages(locks, Environments(folder, database, builder, home.server_id))


def _sources(settings: Settings) -> Sources:
    asked = settings.packages
    wheelhouse = Path(asked.wheelhouse).expanduser().absolute() if asked.wheelhouse else None
    if wheelhouse is not None and not wheelhouse.is_dir():
        raise StartupError(f"setting 'packages.wheelhouse' is '{asked.wheelhouse}', where there is no folder")
    return Sources(asked.index_urls, wheelhouse, asked.exclude_newer, _patterns(asked.allowed), _patterns(asked.denied))


def _patterns(names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(name.lower().replace("_", "-").replace(".", "-") for name in names)
