"""`skillery search`, `list`, `describe` and `read`: find skills and read them."""

from __future__ import annotations

import base64
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import click

from skillery.cli.output import clean, is_terminal, print_warnings
from skillery.cli.skill_page import print_skill
from skillery.cli.verbs import Table, Verb, option


class _Skills(Table):
    def shown(self) -> str:
        return f"{self.columns} tags inputs tools" if _is_detailed() else self.columns


def _is_detailed() -> bool:
    return bool(click.get_current_context().params["detail"] == "summary")


def _words_of(name: str) -> Callable[[Any], str]:
    return lambda skill: ", ".join(skill.get(name) or ())


def _snippet(skill: Mapping[str, Any]) -> str:
    copies = skill.get("copies", 1)
    return str(skill["snippet"]) + (f" ({copies} copies)" if copies > 1 else "")


def _print_notes(page: Mapping[str, Any]) -> None:
    print_warnings(page["skills"])
    for warning in page.get("warnings", ()):
        click.echo(clean(warning), err=True)


def _print_content(answer: Mapping[str, Any]) -> None:
    content: str = answer["content"]
    raw = base64.b64decode(content) if answer.get("encoding") == "base64" else content.encode()
    if is_terminal():
        click.echo(clean(raw.decode("utf-8", "backslashreplace")), nl=False)
    else:
        sys.stdout.buffer.write(raw)


def _words(_ctx: click.Context, _argument: click.Parameter, words: Sequence[str]) -> str:
    return " ".join(words)


search = Verb(
    "search",
    "search_skills",
    Table("skills", "name version kind snippet", none="No skill found.", notes=_print_notes, snippet=_snippet),
    click.Argument(["query"], metavar="WORD...", nargs=-1, required=True, callback=_words),
    option("--limit", type=click.IntRange(1, 100), help="Maximum number of skills.  [default: 20]"),
    option(
        "--tag",
        "tags",
        multiple=True,
        metavar="TAG",
        help="Only skills with this tag; if repeated, skills with all tags.",
    ),
    fixed=dict.fromkeys(
        ("language", "verified", "network", "secrets", "counts", "catalogue", "status", "sort", "detail")
    ),
    help="""Search skills, best match first.

    The search covers names, tags, descriptions and SKILL.md. A skill matches if it contains most of the words. Word
    forms and typos do not matter, and the last word may be incomplete. Matches are marked with « and ».
    """,
)
list_ = Verb(
    "list",
    "list_skills",
    _Skills(
        "skills",
        "name version kind description",
        notes=_print_notes,
        tags=_words_of("tags"),
        inputs=_words_of("inputs"),
        tools=_words_of("tools"),
    ),
    option("--namespace", help="Only skills in this namespace and below it."),
    option("--detail", type=click.Choice(["names", "summary"]), default="names", show_default=True),
    fixed=dict.fromkeys(
        ("kind", "tags", "language", "verified", "network", "secrets", "counts", "catalogue", "status", "sort")
    ),
    pages="choice",
    help="List the latest version of each skill, one row each.",
)
describe = Verb(
    "describe",
    "describe_skill",
    lambda answer: print_skill(answer["skill"]),
    option("--detail", type=click.Choice(["manifest", "summary", "full"]), default="summary", show_default=True),
    help="Show what a skill does, its inputs and its state. --detail full adds all examples, the files and SKILL.md.",
)
read = Verb(
    "read",
    "read_skill_file",
    _print_content,
    help="""Write one file of a skill to stdout.

    A pipe or a file gets the unchanged bytes. On a terminal, control characters are escaped.
    """,
)
