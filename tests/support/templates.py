"""Copies of migrated databases: a copy replaces all migrations, which together take a third of a second.

The migrations are tested in tests/database/test_database.py and tests/cli/test_cli.py, on empty databases.
"""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import tempfile
from pathlib import Path

import psycopg

from skillery.database import Database, migrate

DATABASE = "skillery.db"


@functools.cache
def sqlite_template() -> Path:
    """Return the file of a migrated database without rows. Each test process makes it once."""
    folder = Path(tempfile.mkdtemp(prefix="skillery-template-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    path = folder / DATABASE
    migrated(f"sqlite:///{path}")
    return path


@functools.cache
def postgres_template(url: str) -> str:
    """Return the name of a migrated database without rows on the Postgres server at `url`."""
    name = f"template_{os.getpid()}"
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    migrated(url.replace("/postgres?", f"/{name}?"))
    return name


def migrated(url: str) -> None:
    database = Database(url)
    migrate.upgrade(database)
    database.close()


def prepare_home(home: Path) -> None:
    """Put a migrated database into the home if it has none."""
    # A first start gives a new home this mode.
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    if not (home / DATABASE).exists():
        shutil.copyfile(sqlite_template(), home / DATABASE)
