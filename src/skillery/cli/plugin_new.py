"""`skillery plugin new`: the package of a new plugin."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from skillery.cli.options import json_option
from skillery.cli.output import clean, print_json

if TYPE_CHECKING:
    from skillery.authoring.scaffold import PluginKind


@click.group()
def plugin() -> None:
    """Make the package of a new plugin."""


@plugin.command()
@click.argument("name")
@click.option(
    "--kind",
    required=True,
    type=click.Choice(["storage", "sandbox", "authenticator", "secrets", "events"]),
    help="The backend that the plugin offers; events: an object that reacts to events.",
)
@click.option(
    "--folder", type=click.Path(path_type=Path, file_okay=False), help="Folder of the package.  [default: NAME]"
)
@json_option
def new(name: str, kind: PluginKind, folder: Path | None, as_json: bool) -> None:
    """Make a working package NAME, with tests that pass. Nothing is downloaded, and no file is overwritten."""
    from skillery import __version__
    from skillery.authoring.scaffold import FilesExist, make_plugin
    from skillery.errors import InvalidName

    place = folder or Path(name)
    try:
        paths = make_plugin(place, kind, name, __version__)
    except InvalidName as error:
        raise click.UsageError(f"{error.message} {error.hint}") from None
    except FilesExist as error:
        raise click.UsageError(str(error)) from None
    except OSError as error:
        raise click.UsageError(f"'{place}' cannot be written: {error.strerror}") from None
    if as_json:
        print_json({"folder": str(place), "name": name, "kind": kind, "files": paths})
        return
    click.echo(f"{name} in {clean(place)}:")
    for path in paths:
        click.echo(f"  {path}")
    click.echo(
        clean(f"next: cd {place}, then python -m pytest (with skillery[testing]); README.md has the settings"), err=True
    )
