"""`skillery storage`: copy all contents to another storage while servers are running, and verify a storage."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from skillery.cli.database import open_database, revision_of
from skillery.cli.failures import CHECK_FAILED
from skillery.cli.options import Target, home_options, json_option, user_of_this_machine
from skillery.cli.output import clean, print_fields, print_json, print_rows
from skillery.errors import StartupError

if TYPE_CHECKING:
    from skillery.audit import Actor
    from skillery.backends import Storage
    from skillery.contents.storage_copies import StorageCopy
    from skillery.database import Database
    from skillery.maintenance.integrity import Damage
    from skillery.maintenance.storage_copying import Progress
    from skillery.plugins import Plugins
    from skillery.settings.load import Settings

REPORT_SECONDS = 2.0


@click.group()
def storage() -> None:
    """Move all contents to another storage, and verify a storage."""


@storage.command("copy")
@click.option("--to", "target_name", metavar="NAME", required=True, help="The storage that gets the contents.")
@click.option("--verify", is_flag=True, help="Read every content of the target again and compare its digest.")
@home_options
@json_option
def copy(target: Target, target_name: str, verify: bool, as_json: bool) -> None:
    """Copy all contents to the storage NAME. Servers continue to run.

    From the start of the command, servers store new contents in both storages. Every content is compared with its
    digest. If the command is interrupted, run it again: it continues. At the end, set storage = "NAME", restart the
    servers, and run skillery storage finish.
    """
    from skillery.maintenance.storage_copying import Copier, begin

    with open_registry(target) as opened:
        source_name = _source_of(opened, target_name)
        source, target_storage = opened.storage(source_name), opened.storage(target_name)
        present_copy = begin(opened.database, source, target_storage, (source_name, target_name), _actor())
        report = _Report()
        copier = Copier(opened.database, source, target_storage, report)
        done = copier.complete(
            copier.copy(present_copy) if present_copy.state == "copying" else present_copy, verify=verify
        )
        report.end()
    faults = sorted(copier.faults.values(), key=lambda fault: fault.subject)
    if as_json:
        print_json({"copy": _shown(done), "faults": faults})
    elif not faults:
        click.echo(
            f"{done.contents} contents ({done.bytes} bytes) are in '{target_name}'. Servers store new ones in both.\n"
            f'Next: set storage = "{target_name}", restart every server, and run skillery storage finish.'
        )
    _end_with(faults, as_json)


@storage.command("status")
@home_options
@json_option
def status(target: Target, as_json: bool) -> None:
    """Show the copy that is under way."""
    from skillery.contents.storage_copies import find_copy
    from skillery.maintenance.storage_copying import count_stored

    with open_registry(target) as opened:
        copy = opened.database.read_now(find_copy)
        contents, size = opened.database.read_now(count_stored)
    if as_json:
        print_json({"storage": opened.settings.storage, "contents": contents, "bytes": size, "copy": _shown(copy)})
        return
    click.echo(f"the settings name '{opened.settings.storage}'; the registry has {contents} contents, {size} bytes")
    if copy is None:
        click.echo("no copy is under way")
        return
    print_fields([*_shown(copy).items()])


@storage.command("verify")
@click.option("--storage", "name", metavar="NAME", help="Verify this storage instead of the storage in the settings.")
@home_options
@json_option
def verify(target: Target, name: str | None, as_json: bool) -> None:
    """Read every content of the storage and compare it with its digest. The command changes nothing."""
    from skillery.maintenance.storage_copying import verify_storage

    with open_registry(target) as opened:
        report = _Report()
        faults = list(verify_storage(opened.database, opened.storage(name or opened.settings.storage), report))
        report.end()
    if as_json:
        print_json({"ok": not faults, "faults": faults})
    elif not faults:
        click.echo("ok: every content is in the storage and matches its digest")
    _end_with(faults, as_json)


@storage.command("finish")
@click.option("--abandon", is_flag=True, help="Abandon the copy: the contents stay in the previous storage.")
@home_options
@json_option
def finish(target: Target, abandon: bool, as_json: bool) -> None:
    """End the copy, after every server uses the new storage.

    From then on, servers store new contents only in the storage that the settings name. A server that still uses the
    other storage stores nothing until it is restarted.
    """
    from skillery.maintenance.storage_copying import finish as finish_copy

    with open_registry(target) as opened:
        name = opened.settings.storage
        ended = finish_copy(opened.database, name, _actor(), abandon=abandon)
    if as_json:
        print_json({"storage": name, "copy": _shown(ended)})
        return
    click.echo(f"the contents are in '{name}'; nothing reads '{ended.other(name)}' any more")


class OpenRegistry(NamedTuple):
    """The settings, the plugins and the database of a command."""

    settings: Settings
    plugins: Plugins
    database: Database

    def storage(self, name: str) -> Storage:
        return self.plugins.open_storage(name, self.settings, self.database)


@contextlib.contextmanager
def open_registry(target: Target) -> Iterator[OpenRegistry]:
    """Context manager: open the database of the settings. Raise StartupError if it is not at the revision of this
    release.
    """
    from skillery.cli.output import show_log
    from skillery.database import migrate
    from skillery.plugins import load_plugins

    settings = target.load().settings
    show_log(settings)
    plugins = load_plugins(settings.plugins_folder)
    plugins.check_settings(settings)
    with open_database(settings) as database:
        revision = revision_of(database)
        if revision != migrate.head():
            raise StartupError(
                f"the database is at revision {revision or 'none'}, but this release uses {migrate.head()}: "
                "start a server of this release first, or check --home"
            )
        yield OpenRegistry(settings, plugins, database)


def _source_of(opened: OpenRegistry, target_name: str) -> str:
    """Return the name of the source: the source of the present copy, or the storage in the settings."""
    from skillery.contents.storage_copies import find_copy

    copy = opened.database.read_now(find_copy)
    source = copy.source if copy is not None else opened.settings.storage
    if source == target_name:
        raise StartupError(f"the contents are in '{source}' already: choose another storage with --to")
    return source


def _actor() -> Actor:
    from skillery.audit import local_actor

    return local_actor(user_of_this_machine())


def _shown(copy: StorageCopy | None) -> Any:
    """Return the record of a copy as JSON values, or None."""
    if copy is None:
        return None
    return {
        "source": copy.source,
        "target": copy.target,
        "state": copy.state,
        "contents": copy.contents,
        "bytes": copy.bytes,
        "started_at": copy.started_at,
    }


def _end_with(faults: Sequence[Damage], as_json: bool) -> None:
    if not faults:
        return
    if not as_json:
        print_rows(["fault", "what"], [(fault.kind, clean(fault.message)) for fault in faults])
        click.echo("skillery check --deep lists all damaged contents; without them, the copy completes", err=True)
    raise click.exceptions.Exit(CHECK_FAILED)


class _Report:
    """Prints the progress to stderr: one line that changes on a terminal, otherwise a line every two seconds."""

    def __init__(self) -> None:
        self._last = time.monotonic()
        self._is_terminal = sys.stderr.isatty()
        self._printed = False

    def __call__(self, now: Progress) -> None:
        """Print the progress, unless the last line is too recent."""
        pause = REPORT_SECONDS / 10 if self._is_terminal else REPORT_SECONDS
        if time.monotonic() - self._last < pause:
            return
        self._last, self._printed = time.monotonic(), True
        seconds_left = now.remaining_seconds
        line = (
            f"{now.step}: {now.contents} of {now.all_contents} contents, {now.bytes / 1e6:.0f} of "
            f"{now.all_bytes / 1e6:.0f} MB, {now.rate / 1e6:.1f} MB/s"
            + (f", {seconds_left:.0f} s left" if seconds_left is not None else "")
        )
        click.echo(f"\r\x1b[K{line}" if self._is_terminal else line, err=True, nl=not self._is_terminal)

    def end(self) -> None:
        if self._printed and self._is_terminal:
            click.echo(err=True)
