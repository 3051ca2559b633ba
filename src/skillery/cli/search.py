"""`skillery search`: the method search_skills."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import click

from skillery.cli.options import Target, json_option, target_options
from skillery.cli.output import clean, print_json, print_rows, print_warnings


@click.command()
@click.argument("words", metavar="WORD...", nargs=-1, required=True)
@click.option("--kind", type=click.Choice(["action", "instruction"]), help="Only skills of this kind.")
@click.option(
    "--tag", "tags", multiple=True, metavar="TAG", help="Only skills with this tag; if repeated, skills with all tags."
)
@click.option("--namespace", help="Only skills in this namespace and the namespaces below it.")
@click.option("--limit", type=click.IntRange(1, 100), help="Maximum number of skills.  [default: 20]")
@click.option("--cursor", help="Continue after the page that returned this next_cursor.")
@target_options
@json_option
def search(
    words: Sequence[str],
    kind: str | None,
    tags: Sequence[str],
    namespace: str | None,
    limit: int | None,
    cursor: str | None,
    target: Target,
    as_json: bool,
) -> None:
    """Search skills, best match first.

    The search covers names, tags, descriptions and SKILL.md. A skill matches if it contains most of the words. Word
    forms and typos do not matter, and the last word may be incomplete. Matches are marked with « and ».
    """
    from skillery.cli.connection import with_client

    params: dict[str, Any] = {
        "query": " ".join(words),
        "kind": kind,
        "tags": list(tags),
        "namespace": namespace,
        "limit": limit,
        "cursor": cursor,
    }
    answer = with_client(target, lambda client: client.search_skills(**params))
    if as_json:
        print_json(answer)
        return
    rows = [[skill["name"], skill["version"], skill["kind"], _snippet(skill)] for skill in answer["skills"]]
    print_rows(("name", "version", "kind", "snippet"), rows, none="No skill found.")
    print_warnings(answer["skills"])
    for warning in answer.get("warnings", ()):
        click.echo(clean(warning), err=True)
    if answer["next_cursor"]:
        click.echo(f"More skills: --cursor {clean(answer['next_cursor'])}", err=True)


def _snippet(skill: Mapping[str, Any]) -> str:
    copies = skill.get("copies", 1)
    return str(skill["snippet"]) + (f" ({copies} copies)" if copies > 1 else "")
