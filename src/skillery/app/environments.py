"""Packages of skills, from the settings."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

from skillery.app.home import Home
from skillery.database import Database
from skillery.environments import Locks, Sources, Uv
from skillery.errors import StartupError
from skillery.settings import Settings


def sources_of(settings: Settings) -> Sources:
    """Raises StartupError for a wheelhouse that is no folder."""
    asked = settings.environments
    wheelhouse = Path(asked.wheelhouse).expanduser().absolute() if asked.wheelhouse else None
    if wheelhouse is not None and not wheelhouse.is_dir():
        raise StartupError(f"setting 'environments.wheelhouse' is '{asked.wheelhouse}', where there is no folder")
    return Sources(asked.index_urls, wheelhouse, asked.exclude_newer, _patterns(asked.allowed), _patterns(asked.denied))


def locks_of(settings: Settings, home: Home, database: Database) -> Locks:
    asked = settings.environments
    uv = Uv(home.path / "environments" / "uv")
    return Locks(database, uv, sources_of(settings), asked.lock_seconds, timedelta(hours=asked.reuse_hours))


def _patterns(names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(name.lower().replace("_", "-").replace(".", "-") for name in names)
