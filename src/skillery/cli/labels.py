"""`skillery label`: movable names for versions of a skill."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import click

from skillery.cli.options import Target, json_option, name_and_version, print_change, target_options
from skillery.cli.output import clean, print_json, print_rows


@click.group()
def label() -> None:
    """Labels of versions, such as stable and canary. NAME@LABEL resolves to the version that the label points to."""


@label.command("set")
@click.argument("name", metavar="NAME@VERSION")
@click.argument("label", metavar="LABEL")
@target_options
@json_option
def set_(name: str, label: str, target: Target, as_json: bool) -> None:
    """Point LABEL to a version. VERSION may be another label, a range or latest: the command resolves it at once."""
    name, version = name_and_version(name, None)
    if not version:
        raise click.UsageError(f"'{name}' has no version: write NAME@VERSION, or {name}@latest")
    _move(target, as_json, "set_label", name=name, label=label, version=version)


@label.command("rollback")
@click.argument("name", metavar="NAME")
@click.argument("label", metavar="LABEL")
@target_options
@json_option
def rollback(name: str, label: str, target: Target, as_json: bool) -> None:
    """Undo the last move of LABEL. Repeat the command to undo earlier moves."""
    _move(target, as_json, "rollback_label", name=name, label=label)


@label.command("rm")
@click.argument("name", metavar="NAME")
@click.argument("label", metavar="LABEL")
@target_options
@json_option
def rm(name: str, label: str, target: Target, as_json: bool) -> None:
    """Remove LABEL. A rollback restores it."""
    _move(target, as_json, "remove_label", name=name, label=label)


@label.command("list")
@click.argument("name", metavar="NAME")
@click.argument("label", metavar="[LABEL]", required=False)
@click.option("--history", is_flag=True, help="List the moves of labels, newest first, instead of their versions.")
@click.option("--limit", type=click.IntRange(1, 1000), help="Maximum number of moves.  [default: 50]")
@click.option("--cursor", help="Continue after the page that returned this next_cursor.")
@target_options
@json_option
def list_(
    name: str,
    label: str | None,
    history: bool,
    limit: int | None,
    cursor: str | None,
    target: Target,
    as_json: bool,
) -> None:
    """List the labels of a skill, or their moves."""
    from skillery.cli.connection import with_client

    answer = with_client(target, lambda client: client.list_labels(name=name, label=label, limit=limit, cursor=cursor))
    if as_json:
        print_json(answer)
        return
    rows: Sequence[Mapping[str, Any]] = answer["history"] if history else answer["labels"]
    columns = ["label", *(("move", "version", "previous") if history else ("version", "status")), "by", "at"]
    print_rows(columns, [[row[column] or "-" for column in columns] for row in rows], none="No labels.")
    if history and answer["next_cursor"]:
        click.echo(f"More entries: --cursor {clean(answer['next_cursor'])}", err=True)


def _move(target: Target, as_json: bool, method: str, **params: Any) -> None:
    from skillery.cli.connection import with_client

    answer = with_client(target, lambda client: client.call(method, params))
    if as_json:
        print_json(answer)
    else:
        print_change(_moved(answer))


def _moved(answer: Mapping[str, Any]) -> str:
    before = f" (before: {answer['previous']})" if answer["previous"] else ""
    if answer["version"] is None:
        return f"{answer['name']}@{answer['label']} is removed{before}"
    return f"{answer['name']}@{answer['label']} is {answer['version']} {answer['digest']} {answer['status']}{before}"
