"""`skillery db`: migrate and check the configured database. The backends of a home: check and close them."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from skillery.cli.failures import CHECK_FAILED
from skillery.cli.options import Target, home_options, json_option, user_of_this_machine
from skillery.cli.output import clean, print_json
from skillery.errors import StartupError

if TYPE_CHECKING:
    from skillery.database import Database
    from skillery.database.migration_plan import PlannedStep
    from skillery.settings.load import Settings


@click.group()
def db() -> None:
    """Migrate and check the configured database."""


@db.command("migrate")
@click.option("--dry-run", is_flag=True, help="Print the statements and the tables that they lock.")
@click.option(
    "--require-backup",
    metavar="DIR",
    type=click.Path(file_okay=False, path_type=Path),
    help="Refuse unless DIR has a backup of the present revision from the last 24 hours.",
)
@home_options
@json_option
def migrate_database(target: Target, dry_run: bool, require_backup: Path | None, as_json: bool) -> None:
    """Migrate the database to the revision of this release, step by step.

    A server migrates its database when it starts. Use this command to migrate before that. Servers of the previous
    release continue to run on Postgres. With --dry-run, the database does not change: the statements run on empty
    tables, on Postgres in a schema of their own, which needs the right CREATE on the database.
    """
    from skillery.app.home import Home
    from skillery.database import migrate, migration_plan
    from skillery.maintenance.backup_archives import check_fresh_backup

    settings = target.load().settings
    with contextlib.ExitStack() as stack:
        if not (settings.database or dry_run):
            stack.callback(Home(settings.home).close)
        database = stack.enter_context(open_database(settings))
        former_revision = revision_of(database)
        if dry_run:
            _print_plan(migration_plan.plan(database, former_revision), as_json)
            return
        if require_backup is not None and former_revision is not None and former_revision != migrate.head():
            check_fresh_backup(require_backup, former_revision)
        _log_steps()
        _upgrade(database)
        new_revision = migrate.current(database)
    if as_json:
        print_json({"before": former_revision, "revision": new_revision})
        return
    click.echo(
        f"already at {new_revision}"
        if former_revision == new_revision
        else f"migrated from {former_revision or 'nothing'} to {new_revision}"
    )


db.add_command(
    click.Command(
        "upgrade",
        callback=migrate_database.callback,
        params=migrate_database.params,
        hidden=True,
        deprecated="Run skillery db migrate.",
    )
)


def _print_plan(steps: Sequence[PlannedStep], as_json: bool) -> None:
    if as_json:
        print_json({"steps": steps})
        return
    for step in steps:
        click.echo(f"{step.revision}: {step.title}")
        for statement in step.statements:
            locks = "".join(f"\n      locks {table}: {mode}" for table, mode in statement.locks.items())
            click.echo(f"  {' '.join(statement.sql.split())}{locks}")
    if not steps:
        click.echo("nothing to migrate")


def _log_steps() -> None:
    """Print the log of the migrations to stderr."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(message)s"))
    logger = logging.getLogger("skillery.database.migrate")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)


@db.command("current")
@home_options
@json_option
def current(target: Target, as_json: bool) -> None:
    """Print the revision of the database and the newest revision that this release knows."""
    from skillery.database import migrate

    with open_database(target.load().settings) as database:
        revision = revision_of(database)
    head = migrate.head()
    if as_json:
        print_json({"revision": revision, "head": head})
        return
    click.echo(f"{revision or 'none'} (head {head})")


_REBUILD_PENDING = (
    "the rows that are derived from versions (the catalogue, the search index, the tools) wait for a rebuild that a "
    "migration has asked for: a server does it when it starts, and so does `skillery db migrate`"
)


@db.command("check")
@home_options
@json_option
def check(target: Target, as_json: bool) -> None:
    """Check that the database is at the revision of this release, has exactly the tables of this release, and needs no
    rebuild.
    """
    from skillery.database import migrate
    from skillery.versions.new_versions import is_rebuild_pending

    head = migrate.head()
    with open_database(target.load().settings) as database:
        revision = revision_of(database)
        problems = migrate.differences(database) if revision == head else [_off_head(revision, head)]
        if not problems and database.read_now(is_rebuild_pending):
            problems = [_REBUILD_PENDING]
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
    """Allow the next server to use a different storage with this database.

    Use this command if the previous storage is lost. Contents that are missing in the new storage are lost. `skillery
    check` lists them.
    """
    from skillery.contents.storage_copies import forget_mark

    settings = target.load().settings
    with open_database(settings) as database:
        migrated(database, settings).write_now(forget_mark)
    click.echo("the next start uses the storage from the settings")


@db.command("copy")
@click.option(
    "--to",
    "to",
    metavar="URL",
    help="The new, empty database; - reads the URL with its password from stdin.",
)
@click.option("--resume-writes", is_flag=True, help="Give up the copy: make the present database writable again.")
@click.option(
    "--new-database-is-deleted",
    is_flag=True,
    help="Confirm that the copy is deleted and no server uses it. --resume-writes requires this after a complete copy.",
)
@home_options
@json_option
def copy(target: Target, to: str | None, resume_writes: bool, new_database_is_deleted: bool, as_json: bool) -> None:
    """Copy the registry to another database, SQLite or Postgres. Servers continue to run.

    At the end, the present database becomes read-only, and servers refuse changes: set the setting database to URL and
    restart them. If the command is interrupted, the new database is empty: run the command again, or give the copy up
    with --resume-writes.
    """
    if resume_writes == (to is not None):
        raise click.UsageError("pass either --to URL or --resume-writes")
    if new_database_is_deleted and not resume_writes:
        raise click.UsageError("--new-database-is-deleted requires --resume-writes")
    settings = target.load().settings
    if to is None:
        _resume_writes(settings, new_database_is_deleted, as_json)
        return
    from skillery.audit import local_actor
    from skillery.database import Database
    from skillery.maintenance.database_copying import copy_database

    url = sys.stdin.readline().strip() if to == "-" else to
    with open_database(settings) as source, contextlib.closing(Database(url)) as new:
        if revision_of(source) is None:
            raise StartupError(f"the home {settings.home} contains no registry to copy; check --home")
        actor = local_actor(user_of_this_machine())
        done = copy_database(source, new, actor, lambda text: click.echo(text, err=True))
    if as_json:
        print_json(done)
        return
    click.echo(
        f"{sum(done.rows.values())} rows are in {done.target}, compared by count and checksum. The copy took "
        f"{done.seconds:.1f} s. In the last {done.read_only_seconds:.1f} s, servers refused changes, and still do.\n"
        f'Next: set database = "{done.target}" (with its password and options) and restart every server.\n'
        f"To keep the present database instead: delete {done.target}, then run skillery db copy --resume-writes "
        "--new-database-is-deleted"
    )


def _resume_writes(settings: Settings, new_is_deleted: bool, as_json: bool) -> None:
    """Let the database accept changes again after a copy. Raise StartupError if the copy is complete, unless it is
    deleted.
    """
    from skillery.database.read_only import accept_writes, find_read_only

    with open_database(settings) as database:
        note = migrated(database, settings).read_now(find_read_only)
        if note is not None and note.is_copied and not new_is_deleted:
            raise StartupError(
                f"the registry was copied to {note.target}, and servers may use that database now. Two databases with "
                "one storage delete each other's contents. If you want to keep the present database, stop all servers "
                f"of {note.target} and delete it. Then run skillery db copy --resume-writes --new-database-is-deleted"
            )
        accept_writes(database)
    if as_json:
        print_json({"was_read_only": note is not None})
    elif note is None:
        click.echo("the database accepts changes; it was not read-only")
    else:
        click.echo(f"the database accepts changes again; a copy in {note.target} is outdated")


def _off_head(revision: str | None, head: str) -> str:
    if revision is None:
        return f"the database has no tables yet; this release is at {head}: run skillery db migrate to create them"
    return f"the database is at {revision}, this release at {head}: run skillery db migrate, or start the newer release"


@contextlib.contextmanager
def open_database(settings: Settings) -> Iterator[Database]:
    """Context manager: yield the database of the settings, without migrating it."""
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

    Servers and commands share a database with the right revision without a lock. Only the migration of a database in
    the home locks the home, so that no other release uses the database at the same time.
    """
    from skillery.app.home import Home
    from skillery.database import migrate

    if revision_of(database) == migrate.head():
        return database
    if settings.database:
        _upgrade(database)
        return database
    home = Home(settings.home)
    try:
        _upgrade(database)
    finally:
        home.close()
    return database


def _upgrade(database: Database) -> None:
    from skillery.database import migrate
    from skillery.versions.new_versions import rebuild_derived_rows

    migrate.upgrade(database)
    rebuild_derived_rows(database)


# -- Backends that use a service over the network: check them, and close them after a command --------------------------


T = TypeVar("T")


def service_problem(backends: Iterable[object]) -> str | None:
    """Start and close the backends that use a service. Return the message of the first one that fails."""
    import asyncio

    from skillery.backends import UsesService

    async def started() -> None:
        for backend in backends:
            if isinstance(backend, UsesService):
                try:
                    await backend.start()
                finally:
                    await backend.close()

    try:
        asyncio.run(started())
    except StartupError as error:
        return str(error)
    return None


@contextlib.contextmanager
def closing_service(backend: T) -> Iterator[T]:
    """Context manager: yield the backend, and close it at the end if it uses a service."""
    import asyncio

    from skillery.backends import UsesService

    try:
        yield backend
    finally:
        if isinstance(backend, UsesService):
            asyncio.run(backend.close())
