"""`skillery db`: migrate and check the configured database."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from skillery.cli.failures import CHECK_FAILED
from skillery.cli.options import Target, home_options, json_option
from skillery.cli.output import clean, print_json

if TYPE_CHECKING:
    from skillery.database import Database
    from skillery.settings import Settings


@click.group()
def db() -> None:
    """Migrate and check the configured database."""


@db.command("upgrade")
@home_options
@json_option
def upgrade(target: Target, as_json: bool) -> None:
    """Migrate the database to the revision of this release.

    A server migrates its database when it starts. Use this command to migrate before that.
    """
    from skillery.app.home import Home
    from skillery.database import migrate

    settings = target.load().settings
    with contextlib.ExitStack() as stack:
        if not settings.database:
            stack.callback(Home(settings.home).close)
        database = stack.enter_context(_opened(settings))
        before = revision_of(database)
        migrate.upgrade(database)
        after = migrate.current(database)
    if as_json:
        print_json({"before": before, "revision": after})
        return
    click.echo(f"already at {after}" if before == after else f"migrated from {before or 'nothing'} to {after}")


@db.command("current")
@home_options
@json_option
def current(target: Target, as_json: bool) -> None:
    """Print the revision of the database and the newest revision that this release knows."""
    from skillery.database import migrate

    with _opened(target.load().settings) as database:
        revision = revision_of(database)
    head = migrate.head()
    if as_json:
        print_json({"revision": revision, "head": head})
        return
    click.echo(f"{revision or 'none'} (head {head})")


@db.command("check")
@home_options
@json_option
def check(target: Target, as_json: bool) -> None:
    """Check that the database is at the revision of this release, and has exactly the tables of this release."""
    from skillery.database import migrate

    head = migrate.head()
    with _opened(target.load().settings) as database:
        revision = revision_of(database)
        found = migrate.differences(database) if revision == head else []
    problems = found if revision == head else [_off_head(revision, head)]
    if as_json:
        print_json({"ok": not problems, "revision": revision, "head": head, "problems": problems})
    elif problems:
        click.echo("\n".join(clean(problem) for problem in problems), err=True)
    else:
        click.echo(f"ok: at {head}, and the tables are those of this release")
    if problems:
        raise click.exceptions.Exit(CHECK_FAILED)


@db.command("adopt-storage")
@home_options
def adopt_storage(target: Target) -> None:
    """Allow the next server to use another storage than the storage that this database was used with.

    Use this command if the previous storage is lost. Contents that are missing in the new storage are lost. `skillery
    check` lists them.
    """
    from skillery.contents.storage_marks import forget_mark

    settings = target.load().settings
    with _opened(settings) as database:
        migrated(database, settings).write_now(forget_mark)
    click.echo("the next start uses the storage from the settings")


def _off_head(revision: str | None, head: str) -> str:
    if revision is None:
        return f"the database has no tables yet; this release is at {head}: run skillery db upgrade to create them"
    return f"the database is at {revision}, this release at {head}: run skillery db upgrade, or start the newer release"


@contextlib.contextmanager
def _opened(settings: Settings) -> Iterator[Database]:
    from skillery.database import Database

    database = Database(settings.database_url)
    try:
        yield database
    finally:
        database.close()


def revision_of(database: Database) -> str | None:
    """Return the revision of the database, or None if the database has no tables. Do not create a missing SQLite
    file.
    """
    from skillery.database import migrate

    if database.is_sqlite and not Path(database.url.database or "").exists():
        return None
    return migrate.current(database)


def migrated(database: Database, settings: Settings) -> Database:
    """Return the database after migrating it to the revision of this release, if necessary.

    Servers and commands share a database with the right revision without a lock. Only a migration locks the home, so
    that no other release uses the database at the same time.
    """
    from skillery.app.home import Home
    from skillery.database import migrate

    if revision_of(database) == migrate.head():
        return database
    if settings.database:
        migrate.upgrade(database)
        return database
    home = Home(settings.home)
    try:
        migrate.upgrade(database)
    finally:
        home.close()
    return database
