"""`skillery backup`, `restore` and `check` for the configured database and storage."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click
import msgspec

from skillery.cli.database import revision_of
from skillery.cli.failures import CHECK_FAILED, signals_interrupt
from skillery.cli.options import Target, home_options, json_option, user_of_this_machine
from skillery.cli.output import clean, print_json, print_rows
from skillery.errors import SkilleryError, StartupError

if TYPE_CHECKING:
    from skillery.backends import Storage
    from skillery.database import Database
    from skillery.maintenance.backup_stores import BackupStore, StoredBackup, StoredSource
    from skillery.maintenance.integrity import Damage
    from skillery.maintenance.restores import Source
    from skillery.plugins import Plugins
    from skillery.settings.load import Settings


KEY_FILE = "secrets.key"
file_argument = click.argument("file", required=False, type=click.Path(dir_okay=False, path_type=Path))


class _WithFile(click.Group):
    """A group whose first argument may be the FILE of its command `create`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args or args[0] not in {*self.commands, *ctx.help_option_names}:
            args = ["create", *args]
        return super().parse_args(ctx, args)


@click.group(cls=_WithFile)
def backup() -> None:
    """Back up the registry, and verify backups.

    `skillery backup FILE` is `skillery backup create FILE`.
    """


@backup.command("create")
@file_argument
@click.option(
    "--with-secret-key", is_flag=True, help="Include the key of secrets: the backup is then enough to decrypt them."
)
@click.option("--force", is_flag=True, help="Replace FILE if it exists.")
@home_options
@json_option
def create(target: Target, file: Path | None, with_secret_key: bool, force: bool, as_json: bool) -> None:
    """Back up the registry. Servers may continue to run.

    With FILE, the backup is one archive, which only its owner can read. Without, it is incremental: the storage of the
    setting backups.storage gets what earlier backups have not stored, and old backups are removed.

    A backup is a consistent copy of the database and the contents, for SQLite and Postgres. It exists only when it is
    complete. Its secrets are encrypted. Unless --with-secret-key is given, it does not contain the key of the secrets:
    store the key in another place.
    """
    from skillery import __version__
    from skillery.maintenance.backups import back_up

    settings = _loaded(target)
    if file is None and not settings.backups.storage:
        raise StartupError("name a FILE, or set backups.storage for incremental backups")
    if file is not None and file.exists() and not force:
        raise StartupError(f"{file} already exists; choose another name, or replace it with --force")
    if file is not None and not file.absolute().parent.is_dir():
        raise StartupError(f"the folder {file.absolute().parent} does not exist; create it first")
    key = _secret_key(settings) if with_secret_key else None
    with _opened(settings) as opened:
        if revision_of(opened.database) is None:
            raise StartupError(
                f"the home {settings.home} contains no registry to back up; check --home or start a server there first"
            )
        if file is None:
            _add(opened, settings, key, as_json)
            return
        result = back_up(opened.database, opened.storage, file.absolute(), __version__, key)
        _note(opened.database, file.name, result.contents)
    rows = sum(result.rows.values())
    if as_json:
        print_json({"file": str(file), "revision": result.revision, "rows": result.rows, "contents": result.contents})
        return
    click.echo(f"{rows} rows and {result.contents} contents ({result.bytes} bytes) in {file}")


def _add(opened: _Opened, settings: Settings, key: Path | None, as_json: bool) -> None:
    """Add a backup to the storage of backups, and print the result."""
    from skillery import __version__
    from skillery.maintenance.incremental_backups import add_backup

    store = _store(opened.plugins, settings)
    added = add_backup(opened.database, opened.storage, store, settings.backups, __version__, key)
    _note(opened.database, added.id, added.contents)
    if as_json:
        print_json(added)
        return
    removed = f"; removed {', '.join(added.removed)}" if added.removed else ""
    click.echo(
        f"{added.id}: {sum(added.rows.values())} rows and {added.contents} contents ({added.bytes} bytes), of these "
        f"{added.new_contents} contents and {added.new_bytes} bytes new{removed}"
    )


def _note(database: Database, title: str, contents: int) -> None:
    """Record a complete backup in the database. If the database refuses, print a warning: the backup is usable."""
    from skillery.audit import local_actor
    from skillery.maintenance.backups import note_backup

    actor = local_actor(user_of_this_machine())
    try:
        database.write_now(partial(note_backup, actor=actor, title=title, contents=contents, at=datetime.now(UTC)))
    except SkilleryError as error:
        click.echo(f"warning: the backup is complete, but its time is not recorded: {error.message}", err=True)


@backup.command("list")
@home_options
@json_option
def list_(target: Target, as_json: bool) -> None:
    """List the incremental backups, newest first."""
    from skillery.maintenance.backup_stores import StoredSource

    settings = _loaded(target)
    store = _store(_plugins(settings), settings)
    backups = [_listed(backup, StoredSource(store, backup)) for backup in store.list()]
    if as_json:
        print_json({"backups": backups})
        return
    rows = [
        (row["id"], row["at"], row.get("release", "damaged"), row.get("contents", ""), row.get("bytes", ""))
        for row in backups
    ]
    print_rows(["backup", "at", "release", "contents", "bytes"], rows, none="no backup yet")


def _listed(backup: StoredBackup, source: StoredSource) -> dict[str, Any]:
    """Return a backup as `list` shows it. A damaged one has `damage` instead of its description."""
    try:
        document = source.document
    except StartupError as error:
        return {"id": backup.id, "at": backup.at, "damage": str(error)}
    described = {"release": document.head.release, "contents": document.contents, "bytes": document.bytes}
    return {"id": backup.id, "at": backup.at, **described}


@backup.command("verify")
@click.argument("wanted", metavar="[BACKUP|FILE]", required=False)
@click.option("--quick", is_flag=True, help="Look for every content, and do not read it.")
@home_options
@json_option
def verify(target: Target, wanted: str | None, quick: bool, as_json: bool) -> None:
    """Restore a backup into a temporary database, and check it as `skillery check --deep` does.

    Without an argument, verify the newest incremental backup. BACKUP is an id of `skillery backup list`, or its start.
    The temporary files are below TMPDIR: the rows of the backup, and the contents of FILE.
    """
    from skillery.audit import local_actor
    from skillery.database import Database
    from skillery.maintenance.integrity import check as check_registry
    from skillery.maintenance.restores import restore as restore_backup

    settings = _loaded(target)
    plugins = _plugins(settings)
    is_file = wanted is not None and Path(wanted).is_file()
    source = _source(plugins, settings, Path(wanted or "") if is_file else None, wanted)
    with signals_interrupt(), tempfile.TemporaryDirectory(prefix="skillery-verify-") as folder:
        own = msgspec.structs.replace(settings, home=Path(folder), database="", backends={})
        storage = source.storage or plugins.open_storage("directory", own)
        database = Database(own.database_url)
        try:
            actor = local_actor(user_of_this_machine())
            result = restore_backup(database, storage, source, own.home / KEY_FILE, actor)
            faults = list(check_registry(database, storage, deep=not quick, dead_servers=frozenset()))
        finally:
            database.close()
    if as_json:
        shown = {"backup": source.title, "rows": result.rows, "contents": result.contents}
        print_json({"ok": not faults, "faults": faults, **shown})
    elif not faults:
        rows = sum(result.rows.values())
        click.echo(f"ok: {source.title} restores {rows} rows and {result.contents} contents, and nothing is missing")
    _end_with(faults, as_json)


def _source(plugins: Plugins, settings: Settings, file: Path | None, wanted: str | None) -> Source:
    """Return the backup in FILE, or the incremental backup whose id begins with `wanted`, or the newest one."""
    from skillery.maintenance.backup_archives import Archive
    from skillery.maintenance.backup_stores import StoredSource

    if file is not None:
        return Archive(file)
    store = _store(plugins, settings)
    return StoredSource(store, store.find(wanted))


def _store(plugins: Plugins, settings: Settings) -> BackupStore:
    from skillery.maintenance.backup_stores import BackupStore

    if not settings.backups.storage:
        raise StartupError("name a FILE, or set backups.storage for incremental backups")
    return BackupStore(plugins.open_backup_store(settings), settings.backups.storage)


def _plugins(settings: Settings) -> Plugins:
    from skillery.plugins import load_plugins

    plugins = load_plugins(settings.plugins_folder)
    plugins.check_settings(settings)
    return plugins


def _loaded(target: Target) -> Settings:
    from skillery.cli.output import show_log

    settings = target.load().settings
    show_log(settings)
    return settings


def _secret_key(settings: Settings) -> Path:
    values = settings.backends.get("secrets", {}).get("database", {})
    path = Path(values["key_file"]).expanduser() if values.get("key_file") else settings.home / KEY_FILE
    if values.get("key") or not path.is_file():
        key_source = "in the settings" if values.get("key") else f"not at {path}"
        raise StartupError(f"the key of secrets is {key_source}; omit --with-secret-key")
    return path


@click.command()
@file_argument
@click.option("--backup", "wanted", metavar="ID", help="Start of the id of an incremental backup.  [default: newest]")
@home_options
@json_option
def restore(target: Target, file: Path | None, wanted: str | None, as_json: bool) -> None:
    """Restore a backup into an empty home.

    Without FILE, restore an incremental backup of the setting backups.storage. If the settings name a database or a
    storage, these must be empty too. The backup is verified before any row is written. If the command is interrupted,
    the database is either empty or complete.
    """
    from skillery.app.home import Home
    from skillery.attestations.signing import find_registry_key
    from skillery.audit import local_actor
    from skillery.maintenance.restores import restore as restore_backup

    settings = _loaded(target)
    home = Home(settings.home)
    try:
        with _opened(settings) as opened:
            actor = local_actor(user_of_this_machine())
            source = _source(opened.plugins, settings, file, wanted)
            result = restore_backup(opened.database, opened.storage, source, settings.home / KEY_FILE, actor)
            signing_key = opened.database.read_now(find_registry_key)
    finally:
        home.close()
    if as_json:
        print_json(
            {
                "revision": result.revision,
                "rows": result.rows,
                "contents": result.contents,
                "key": result.secret_key,
                "signing_key": signing_key and signing_key.keyid,
            }
        )
        return
    click.echo(f"{sum(result.rows.values())} rows and {result.contents} contents restored to {settings.home}")
    if signing_key:
        click.echo(
            f"This registry signs with {signing_key.keyid}. The key is in no backup: copy signing/ed25519.pem of its "
            "home before the first start.",
            err=True,
        )


@click.command()
@click.option("--deep", is_flag=True, help="Also verify every content, signed statement, seal and sealed run.")
@home_options
@json_option
def check(target: Target, deep: bool, as_json: bool) -> None:
    """Check the registry for missing or inconsistent data.

    The check covers files of versions, contents, unfinished runs and latest versions. The command changes nothing.
    Servers may continue to run.
    """
    from skillery.app.home import holder_of, server_id_of
    from skillery.database import migrate
    from skillery.maintenance.integrity import check as check_registry

    settings = _loaded(target)
    own_server = server_id_of(settings.home)
    dead_servers = frozenset({own_server} if own_server and holder_of(settings.home) is None else ())
    with _opened(settings) as opened:
        revision = revision_of(opened.database)
        if revision != migrate.head():
            raise StartupError(
                f"the database is at revision {revision or 'none'}, but this release needs {migrate.head()}: "
                "run skillery db migrate, or use the release that serves this database"
            )
        faults = list(check_registry(opened.database, opened.storage, deep=deep, dead_servers=dead_servers))
    if as_json:
        print_json({"ok": not faults, "faults": faults})
    elif not faults:
        click.echo("ok: nothing is missing" + (", and every content and signed row is valid" if deep else ""))
    _end_with(faults, as_json)


def _end_with(faults: Sequence[Damage], as_json: bool) -> None:
    """Print the faults, and exit with CHECK_FAILED if there are any."""
    if not as_json and faults:
        print_rows(["fault", "what"], [(fault.kind, clean(fault.message)) for fault in faults])
    if faults:
        raise click.exceptions.Exit(CHECK_FAILED)


class _Opened(NamedTuple):
    plugins: Plugins
    database: Database
    storage: Storage


@contextlib.contextmanager
def _opened(settings: Settings) -> Iterator[_Opened]:
    """Context manager: yield the plugins, the database and the storage of the settings."""
    from skillery.database import Database

    plugins = _plugins(settings)
    database = Database(settings.database_url)
    try:
        yield _Opened(plugins, database, plugins.open("storage", settings, database))
    finally:
        database.close()
