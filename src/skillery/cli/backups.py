"""`skillery backup`, `restore` and `check` for the configured database and storage; `skillery export` for skills."""

from __future__ import annotations

import contextlib
import os
import secrets
import tarfile
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from skillery.cli.database import revision_of
from skillery.cli.failures import CHECK_FAILED, CheckFailed
from skillery.cli.install import RECORD
from skillery.cli.lock_files import check_digest, lock_of, proofs_of, write_skill
from skillery.cli.locks import resolve_lock
from skillery.cli.options import Target, home_options, json_option, target_options, user_of_this_machine
from skillery.cli.output import clean, print_json, print_rows
from skillery.errors import StartupError

if TYPE_CHECKING:
    from skillery.backends import Storage
    from skillery.client import AsyncClient
    from skillery.client.results import Locked
    from skillery.database import Database
    from skillery.settings.load import Settings


KEY_FILE = "secrets.key"


@click.command()
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option(
    "--with-secret-key", is_flag=True, help="Include the key of secrets: FILE alone is then enough to decrypt them."
)
@click.option("--force", is_flag=True, help="Replace FILE if it exists.")
@home_options
@json_option
def backup(target: Target, file: Path, with_secret_key: bool, force: bool, as_json: bool) -> None:
    """Back up the registry to FILE. Servers may continue to run.

    The backup is a consistent copy of the database and the contents, for SQLite and Postgres. FILE appears only when it
    is complete, and only its owner can read it. Secrets in FILE are encrypted. Unless --with-secret-key is given, FILE
    does not contain the key of the secrets: store the key in another place.
    """
    from skillery import __version__
    from skillery.maintenance.backups import back_up

    settings = _loaded(target)
    if file.exists() and not force:
        raise StartupError(f"{file} already exists; choose another name, or replace it with --force")
    if not file.absolute().parent.is_dir():
        raise StartupError(f"the folder {file.absolute().parent} does not exist; create it first")
    key = _secret_key(settings) if with_secret_key else None
    with _opened(settings) as opened:
        if revision_of(opened.database) is None:
            raise StartupError(
                f"the home {settings.home} contains no registry to back up; check --home or start a server there first"
            )
        result = back_up(opened.database, opened.storage, file.absolute(), __version__, key)
    rows = sum(result.rows.values())
    if as_json:
        print_json({"file": str(file), "revision": result.revision, "rows": result.rows, "contents": result.contents})
        return
    click.echo(f"{rows} rows and {result.contents} contents ({result.bytes} bytes) in {file}")


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
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@home_options
@json_option
def restore(target: Target, file: Path, as_json: bool) -> None:
    """Restore a backup into an empty home.

    If the settings name a database or a storage, these must be empty too. FILE is verified completely before anything
    is written. If the command is interrupted, the database is either empty or complete.
    """
    from skillery.app.home import Home
    from skillery.attestations.signing import find_registry_key
    from skillery.audit import local_actor
    from skillery.maintenance.backups import restore as restore_backup

    settings = _loaded(target)
    home = Home(settings.home)
    try:
        with _opened(settings) as opened:
            actor = local_actor(user_of_this_machine())
            result = restore_backup(opened.database, opened.storage, file, settings.home / KEY_FILE, actor)
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
    elif faults:
        print_rows(["fault", "what"], [(fault.kind, clean(fault.message)) for fault in faults])
    else:
        click.echo("ok: nothing is missing" + (", and every content and signed row is valid" if deep else ""))
    if faults:
        raise click.exceptions.Exit(CHECK_FAILED)


class _Opened(NamedTuple):
    database: Database
    storage: Storage


@contextlib.contextmanager
def _opened(settings: Settings) -> Iterator[_Opened]:
    """Context manager: yield the database and the storage of the settings."""
    from skillery.database import Database
    from skillery.plugins import load_plugins

    plugins = load_plugins(settings.plugins_folder)
    plugins.check_settings(settings)
    database = Database(settings.database_url)
    try:
        yield _Opened(database, plugins.open("storage", settings, database))
    finally:
        database.close()


# -- `skillery export`: many skills in one archive, for a network without a connection to this server ------------------


AT_ONCE = 1000
"""The limit of `resolve_skills`."""


@click.command(short_help="Write skills to one archive.")
@click.argument("file", metavar="FILE", type=click.Path(path_type=Path, dir_okay=False))
@click.argument("skills", metavar="[NAME[@SPEC]...]", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="The latest version of each skill that you see.")
@click.option("--namespace", metavar="NS", default="", help="With --all: only the skills of this namespace and below.")
@target_options
@json_option
def export(file: Path, skills: Sequence[str], everything: bool, namespace: str, target: Target, as_json: bool) -> None:
    """Write skills to FILE, a .tar.gz that `skillery import` reads on another server.

    The archive has the stored files of each skill, verified by its digest, a lock of all skills and its proofs. FILE is
    written completely or not at all. `skillery install --locked --offline --from FILE` installs from it.
    """
    from skillery.cli.connection import with_client
    from skillery.proof.locks import encode_lock, encode_proofs

    if everything == bool(skills):
        raise click.UsageError("name the skills to export, or pass --all")

    async def write_all(client: AsyncClient, folder: Path) -> list[Locked]:
        names = [name async for name in _names(client, namespace)] if everything else list(skills)
        entries: list[Locked] = []
        for start in range(0, len(names), AT_ONCE):
            entries += await resolve_lock(client, names[start : start + AT_ONCE])
        for entry in entries:
            await write_skill(client, entry, folder)
            check_digest(entry, folder)
        lock, proofs = await lock_of(client, entries, with_seal=False)
        (folder / RECORD).write_bytes(encode_lock(lock))
        proofs_of(folder / RECORD).write_bytes(encode_proofs(proofs))
        return entries

    with _archive(file.absolute()) as folder:
        entries = with_client(target, lambda client: write_all(client, folder))
        if not entries:
            raise CheckFailed("there is no skill to export; nothing was written")
    if as_json:
        print_json({"file": str(file), "lock": entries})
    else:
        click.echo(clean(f"{file}: {len(entries)} {'skill' if len(entries) == 1 else 'skills'}"))


async def _names(client: AsyncClient, namespace: str) -> AsyncIterator[str]:
    cursor = None
    while True:
        page = await client.list_skills(namespace=namespace, detail="names", limit=AT_ONCE, cursor=cursor)
        for skill in page["skills"]:
            yield skill["name"]
        cursor = page["next_cursor"]
        if cursor is None:
            return


@contextmanager
def _archive(target_path: Path) -> Iterator[Path]:
    """Context manager: yield a new folder. After the block, its files become the archive at `target_path`."""
    partial = target_path.with_name(f".{target_path.name}.{secrets.token_hex(4)}")
    try:
        with tempfile.TemporaryDirectory() as folder:
            yield Path(folder)
            with tarfile.open(partial, "w:gz") as tar:
                for path in sorted(Path(folder).rglob("*")):
                    tar.add(path, path.relative_to(folder).as_posix(), recursive=False, filter=_without_user_and_time)
        partial.replace(target_path)
    except OSError as error:
        raise CheckFailed(
            f"cannot write '{target_path}': {os.strerror(error.errno or 0)}; nothing was written"
        ) from None
    finally:
        partial.unlink(missing_ok=True)


def _without_user_and_time(info: tarfile.TarInfo) -> tarfile.TarInfo:
    info.uid = info.gid = info.mtime = 0
    info.uname = info.gname = ""
    return info
