"""`skillery search`, `list`, `describe`, `read` and `namespace`: find skills and read them."""

from __future__ import annotations

import base64
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from skillery.cli.options import Target
from skillery.cli.output import as_json, clean, is_terminal, print_fields, print_rows, print_warnings
from skillery.cli.review import print_policy
from skillery.cli.verbs import Table, Verb, changed, option, values_option

if TYPE_CHECKING:
    from skillery.client import AsyncClient

# -- The page of a skill that `skillery describe` prints: what a user needs first, then the details --------------------


FIRST = (
    "name",
    "title",
    "version",
    "description",
    "status",
    "kind",
    "namespace",
    "tags",
    "labels",
    "visibility",
    "verified",
)
"""Fields at the top of the page, in this order."""
BELOW = {
    "inputs",
    "examples",
    "usage",
    "digest",
    "lock",
    "runtime",
    "permissions",
    "provenance",
    "requires",
    "requires_hidden",
}
ELSEWHERE = {"manifest", "skill_md_frontmatter", "skill_md", "files", "warnings"}


def print_skill(answer: Mapping[str, Any]) -> None:
    """Print the results of describe_skill and explain_policy, with files and SKILL.md for `--detail full`."""
    skill: Mapping[str, Any] = answer["skill"]
    print_fields(_fields(skill))
    if "policy" in answer:
        print_policy(answer["policy"])
    for warning in skill.get("warnings") or ():
        text = warning if isinstance(warning, str) else warning.get("message", warning)
        click.echo(f"{click.style('warning:', fg='yellow')} {clean(text)}")
    if "files" in skill:
        click.echo()
        print_rows(
            ["file", "bytes", "mode", "sha256"],
            [
                (file["path"], file["size_bytes"], "x" if file["executable"] else "-", file["sha256"])
                for file in skill["files"]
            ],
        )
    if "skill_md" in skill:
        click.echo()
        _print_markdown(skill["skill_md"])


def _fields(skill: Mapping[str, Any]) -> Iterator[tuple[str, object]]:
    """Yield the label and the value of each field of a skill, in the order of the output."""
    facts = {**skill["manifest"], **{key: value for key, value in skill.items() if key not in ELSEWHERE}}
    is_full = "files" in skill
    for key in FIRST:
        if facts.get(key) not in (None, []):
            yield key, _listed(facts[key])
    yield from ((key, value) for key, value in facts.items() if key not in {*FIRST, *BELOW})
    yield from ((key, facts[key]) for key in ("runtime", "permissions") if facts.get(key))
    # Only the server states the provenance. A key of the manifest could be invented.
    if skill.get("provenance"):
        yield "provenance", "\n".join(f"{name}: {value}" for name, value in skill["provenance"].items() if value) + "\n"
    if facts.get("inputs"):
        yield "inputs", "\n".join(_inputs(facts["inputs"])) + "\n"
    if facts.get("examples"):
        yield "examples", facts["examples"] if is_full else "; ".join(map(_title, facts["examples"]))
    if facts.get("usage", {}).get("runs"):
        yield "usage", facts["usage"]
    required, hidden = list(map(_required, skill.get("requires", ()))), skill.get("requires_hidden", 0)
    if required or hidden:
        lines = [*required, *([f"{hidden} hidden skill{'s' * (hidden != 1)}"] if hidden else [])]
        yield "requires", "\n".join(lines) + "\n"
    if facts.get("lock"):
        yield from _lock(facts["lock"])
    yield "digest", facts["digest"]
    if is_full and skill.get("skill_md_frontmatter"):
        yield "frontmatter", skill["skill_md_frontmatter"]


def _listed(value: object) -> object:
    """Return a list of texts as one text, and other values unchanged."""
    return ", ".join(map(str, value)) if isinstance(value, list) else value


def _inputs(inputs: Mapping[str, Any]) -> Iterator[str]:
    """Yield one line for each input: name, type, description, and the values that are allowed."""
    rows = [(name, *_input(values if isinstance(values, Mapping) else {})) for name, values in inputs.items()]
    widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
    for name, kind, text in rows:
        yield f"{name.ljust(widths[0])}  {kind.ljust(widths[1])}  {text}".rstrip()


def _input(values: Mapping[str, Any]) -> tuple[str, str]:
    notes = ["required"] if values.get("required") else []
    notes += [f"one of {as_json(values['enum'], indent=-1)}"] if "enum" in values else []
    notes += [f"default {as_json(values['default'], indent=-1)}"] if "default" in values else []
    notes_text = f" ({'; '.join(notes)})" if notes else ""
    return str(values.get("type", "any")), _one_line(f"{values.get('description', '')}{notes_text}")


def _required(version: Mapping[str, Any]) -> str:
    """Return the line of a required version: the range, the status if it is withdrawn, and what its calls may use."""
    notes = [version["range"]] if version["range"] else []
    notes += [] if version["status"] in ("published", "deprecated") else [version["status"]]
    used = ", ".join((*version["network"], *version["secrets"]))
    notes += [f"called, may use {used}"] if used else []
    return f"{version['name']} {version['version']} ({'; '.join(notes)})".removesuffix(" ()")


def _title(example: Any) -> str:
    return _one_line(example.get("name") or "without a name") if isinstance(example, Mapping) else "without a name"


def _one_line(text: object) -> str:
    return " ".join(str(text).split())


def _lock(lock: Mapping[str, Any]) -> Iterator[tuple[str, object]]:
    for kind, part in (("", lock), ("npm ", lock.get("npm", {}))):
        if "sha256" in part:
            states = ", ".join(environment["state"] for environment in part["environments"])
            yield f"{kind}lock", f"{part['sha256']}{f' ({states})' if states else ''}"
            if part["packages"]:
                yield f"{kind}packages", packages_in(part)
        if part.get("left_out"):
            yield f"{kind}left out", ", ".join(f"{entry['name']} ({entry['detail']})" for entry in part["left_out"])


def packages_in(lock: Mapping[str, Any]) -> str:
    """Return the packages of a lock in one line."""
    return ", ".join(f"{pin['name']} {pin['version']}" for pin in lock.get("packages") or ())


def _print_markdown(text: str) -> None:
    if not is_terminal():
        click.echo(clean(text))
        return
    from rich.console import Console
    from rich.markdown import Markdown

    Console().print(Markdown(clean(text)))


class _Describe(Verb):
    """Adds the result of explain_policy to that of describe_skill, as `policy`."""

    def _answer(self, target: Target, params: dict[str, Any], *, everything: bool) -> Any:
        from skillery.cli.connection import with_client
        from skillery.client.errors import MethodNotFound, NotFound

        async def answer(client: AsyncClient) -> Any:
            described = await client.describe_skill(**params)
            skill: Mapping[str, Any] = described["skill"]
            try:
                policy = await client.explain_policy(skill["name"], version=skill["version"])
            except (MethodNotFound, NotFound):
                # Other servers of the protocol have no policies, and a development version needs nothing.
                return described
            return {**described, "policy": policy}

        return with_client(target, answer, bundled=self._bundled)


class _Skills(Table):
    """A table of skills, whose columns depend on `--detail`."""

    def shown(self) -> str:
        return f"{self.columns} tags inputs tools" if _is_detailed() else self.columns


def _is_detailed() -> bool:
    return bool(click.get_current_context().params["detail"] == "summary")


def _words_of(name: str) -> Callable[[Any], str]:
    return lambda skill: ", ".join(skill.get(name) or ())


def _snippet(skill: Mapping[str, Any]) -> str:
    copies = skill.get("copies", 1)
    notes = [f"{copies} copies"] if copies > 1 else []
    notes += ["by meaning"] if skill.get("found_by") == "meaning" else []
    return str(skill["snippet"]) + (f" ({', '.join(notes)})" if notes else "")


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


_TAGS = option(
    "--tag", "tags", multiple=True, metavar="TAG", help="Only skills with this tag; if repeated, skills with all tags."
)
_NO_FACTS = {"counts": None, "catalogue": None}
"""Params of facts that the tables do not show. All filters of the methods are options."""
search = Verb(
    "search",
    "search_skills",
    Table("skills", "name version kind snippet", none="No skill found.", notes=_print_notes, snippet=_snippet),
    click.Argument(["query"], metavar="WORD...", nargs=-1, required=True, callback=_words),
    option("--limit", type=click.IntRange(1, 100), help="Maximum number of skills.  [default: 20]"),
    _TAGS,
    fixed={**_NO_FACTS, "detail": None},
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
    _TAGS,
    fixed=_NO_FACTS,
    pages="choice",
    help="List the latest version of each skill, one row each.",
)
describe = _Describe(
    "describe",
    "describe_skill",
    print_skill,
    option("--detail", type=click.Choice(["manifest", "summary", "full"]), default="summary", show_default=True),
    help="""Show what a skill does, its inputs, its state and its policy.

    --detail full adds all examples, the files and SKILL.md.
    """,
)
read = Verb(
    "read",
    "read_skill_file",
    _print_content,
    help="""Write one file of a skill to stdout.

    A pipe or a file gets the unchanged bytes. On a terminal, control characters are escaped.
    """,
)


# -- `skillery namespace`: what publishers say about a namespace -------------------------------------------------------


def _print_namespace(answer: Mapping[str, Any]) -> None:
    pinned = ", ".join(skill["name"] for skill in answer["pinned"])
    fields = {**answer, "sources": ", ".join(answer["sources"]), "pinned": pinned}
    print_fields((name, value) for name, value in fields.items() if value)


namespace = click.Group(
    "namespace",
    help="Show and set the texts of a namespace: title, purpose, contact of its owners, pinned skills.",
    commands=[
        Verb("show", "describe_namespace", _print_namespace),
        Verb(
            "set",
            "set_namespace",
            changed("set the texts of {namespace}"),
            values_option("--pin", "pinned", "SKILL", "A skill that the page shows first; at most 6. '' removes all."),
            help="Set texts of a namespace. Options that you omit change nothing, and '' removes a text.",
        ),
    ],
)
