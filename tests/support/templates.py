"""Copies of migrated databases: a copy replaces all migrations, which together take a third of a second.

All workers of a pytest run copy the same templates. The first worker to need a template makes it. The migrations are
tested in tests/database/test_database.py and tests/cli/test_cli.py, on empty databases.
"""

from __future__ import annotations

import functools
import shutil
from pathlib import Path

import psycopg
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from skillery.database import Database, migrate
from tests.support.parallel import once

DATABASE = "skillery.db"


@functools.cache
def sqlite_template() -> Path:
    """Return the file of a migrated database without rows."""

    def make(path: Path) -> None:
        migrated(f"sqlite:///{path}")

    return once(DATABASE, make)


@functools.cache
def postgres_template(url: str) -> str:
    """Return the name of a migrated database without rows on the Postgres server at `url`."""

    def make(path: Path) -> None:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("DROP DATABASE IF EXISTS template_skillery")  # of a worker that was killed
            connection.execute("CREATE DATABASE template_skillery")
        migrated(url.replace("/postgres?", "/template_skillery?"))
        path.write_text("template_skillery")

    return once("postgres", make).read_text()


def migrated(url: str) -> None:
    database = Database(url)
    migrate.upgrade(database)
    database.close()


def prepare_key(home: Path) -> None:
    """Put the signing key of all tests into the home if it has none: all servers of a database have one key."""
    path = home / "signing" / "ed25519.pem"
    if not path.parent.exists():
        home.mkdir(parents=True, exist_ok=True, mode=0o700)
        path.parent.mkdir(mode=0o700)
        key = Ed25519PrivateKey.from_private_bytes(b"servers of one database in tests")
        path.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        path.chmod(0o600)


def prepare_home(home: Path) -> None:
    """Put a migrated database into the home if it has none."""
    # A first start gives a new home this mode.
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    if not (home / DATABASE).exists():
        shutil.copyfile(sqlite_template(), home / DATABASE)
