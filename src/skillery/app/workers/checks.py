"""Settings that several worker processes need."""

from __future__ import annotations

from skillery.errors import StartupError
from skillery.settings import Settings


def check_workers(settings: Settings) -> None:
    """Raise StartupError if the server cannot have `settings.workers` workers."""
    if settings.database_url.startswith("sqlite"):
        raise StartupError(
            f"setting 'workers' is {settings.workers}, and the database is SQLite, which has one writer at a time: "
            "set database to a Postgres, or workers to 1"
        )
