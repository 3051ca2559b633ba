"""`skillery new` and `skillery schema`: the folder of a new skill, and the schemas of its files."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, get_args

import click

from skillery.cli.output import clean, print_json

if TYPE_CHECKING:
    from skillery.authoring.scaffold import Kind


@click.command()
@click.argument("name", metavar="FILE", type=click.Choice(["skill.toml", "frontmatter", "tools.json"]))
def schema(name: str) -> None:
    """Print the JSON Schema of a file of a skill.

    The files are skill.toml, the frontmatter of SKILL.md, and tools.json. Editors complete and check files with a
    schema. A server has the schemas at /schemas/FILE.json.
    """
    from skillery.formats.file_schemas import schema_of_file

    print_json(schema_of_file(name))


@click.command()
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path, file_okay=False))
@click.option(
    "--kind",
    type=click.Choice(["action", "instruction", "tools"]),
    help="action: code that runs; instruction: a text to read; tools: functions that agents call by name.  "
    "[default: action; asked for on a terminal]",
)
@click.option("--name", help="The name of the skill.  [default: the name of DIR; asked for on a terminal]")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def new(folder: Path, kind: Kind | None, name: str | None, as_json: bool) -> None:
    """Make a skill in DIR, with an example and tests that pass.

    No file is overwritten. On a terminal and without --json, the command asks for a missing kind and name.
    """
    from skillery.authoring.scaffold import FilesExist, make_skill

    if not as_json and _is_interactive():
        kind, name = kind or _asked_kind(), name or _asked_name(folder)
    chosen, named = kind or "action", _checked(folder, name)
    try:
        paths = make_skill(folder, chosen, named)
    except FilesExist as error:
        raise click.UsageError(str(error)) from None
    except OSError as error:
        raise click.UsageError(f"'{folder}' cannot be written: {error.strerror}") from None
    if as_json:
        print_json({"folder": str(folder), "name": named, "kind": chosen, "files": paths})
        return
    _print_made(folder, named, paths)


def _is_interactive() -> bool:
    return sys.stdin.isatty() and sys.stdout.isatty()


def _asked_kind() -> Kind:
    from skillery.authoring.scaffold import Kind

    kinds = click.Choice(get_args(Kind))
    kind: Kind = click.prompt("Kind of the skill", type=kinds, default="action")
    return kind


def _asked_name(folder: Path) -> str:
    name: str = click.prompt("Name of the skill", default=folder.resolve().name)
    return name


def _checked(folder: Path, name: str | None) -> str:
    """Return the name of the skill. Raise UsageError with the remedy."""
    from skillery.authoring.scaffold import checked_name, name_for
    from skillery.errors import InvalidName

    try:
        return checked_name(name) if name else name_for(folder)
    except InvalidName as error:
        raise click.UsageError(f"{error.message} {error.hint}") from None


def _print_made(folder: Path, name: str, paths: list[str]) -> None:
    click.echo(f"{name} in {clean(folder)}:")
    for path in paths:
        click.echo(f"  {path}")
    click.echo(clean(f"next: skillery test {folder}, then skillery publish {folder}"), err=True)
