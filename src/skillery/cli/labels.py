"""`skillery label`: movable names for versions of a skill."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from skillery.cli.options import Target, json_option, name_and_version, print_change, target_options
from skillery.cli.output import print_json
from skillery.cli.verbs import Table, Verb, argument, option


def _print_moved(answer: Mapping[str, Any]) -> None:
    before = f" (before: {answer['previous']})" if answer["previous"] else ""
    moved = f"{answer['version']} {answer['digest']} {answer['status']}" if answer["version"] else "removed"
    print_change(f"{answer['name']}@{answer['label']} is {moved}{before}")


def _print_labels(answer: Mapping[str, Any]) -> None:
    if click.get_current_context().params["history"]:
        Table("history", "label move version previous by at", noun="moves", none="No labels.")(answer)
    else:
        Table("labels", "label version status by at")({**answer, "next_cursor": None})


label = click.Group(
    "label",
    help="Labels of versions, such as stable and canary. NAME@LABEL resolves to the version that the label points to.",
    commands=[
        Verb(
            "rollback",
            "rollback_label",
            _print_moved,
            help="Undo the last move of LABEL. Repeat the command to undo earlier moves.",
        ),
        Verb("rm", "remove_label", _print_moved, help="Remove LABEL. A rollback restores it."),
        Verb(
            "list",
            "list_labels",
            _print_labels,
            argument("label", "[LABEL]", required=False),
            option(
                "--history", is_flag=True, help="List the moves of labels, newest first, instead of their versions."
            ),
            option("--limit", type=click.IntRange(1, 1000), help="Maximum number of moves.  [default: 50]"),
            help="List the labels of a skill, or their moves.",
        ),
    ],
)


@label.command("set")
@click.argument("name", metavar="NAME@VERSION")
@click.argument("label", metavar="LABEL")
@target_options
@json_option
def set_(name: str, label: str, target: Target, as_json: bool) -> None:
    """Point LABEL to a version. VERSION may be another label, a range or latest: the command resolves it at once."""
    from skillery.cli.connection import with_client

    name, version = name_and_version(name, None)
    if not version:
        raise click.UsageError(f"'{name}' has no version: write NAME@VERSION, or {name}@latest")
    answer = with_client(target, lambda client: client.set_label(name, label, version))
    if as_json:
        print_json(answer)
    else:
        _print_moved(answer)
