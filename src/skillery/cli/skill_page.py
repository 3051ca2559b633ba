"""The page of a skill that `skillery describe` prints: what a user needs first, then the details."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import click

from skillery.cli.output import as_json, clean, is_terminal, print_fields, print_rows

FIRST = ("name", "version", "description", "status", "kind", "namespace", "tags", "labels", "visibility", "verified")
"""Fields at the top of the page, in this order."""
BELOW = {"inputs", "examples", "usage", "digest", "lock", "runtime", "permissions", "provenance"}
ELSEWHERE = {"manifest", "skill_md_frontmatter", "skill_md", "files", "warnings"}


def print_skill(skill: Mapping[str, Any]) -> None:
    """Print the result of describe_skill, with its files and SKILL.md if the result has them (`--detail full`)."""
    print_fields(_fields(skill))
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
    known = {**skill["manifest"], **{key: value for key, value in skill.items() if key not in ELSEWHERE}}
    is_full = "files" in skill
    for key in FIRST:
        if known.get(key) not in (None, []):
            yield key, _listed(known[key])
    yield from ((key, value) for key, value in known.items() if key not in {*FIRST, *BELOW})
    yield from ((key, known[key]) for key in ("runtime", "permissions") if known.get(key))
    # Only the server states the provenance. A key of the manifest could be invented.
    if skill.get("provenance"):
        yield "provenance", "\n".join(f"{name}: {value}" for name, value in skill["provenance"].items() if value) + "\n"
    if known.get("inputs"):
        yield "inputs", "\n".join(_inputs(known["inputs"])) + "\n"
    if known.get("examples"):
        yield "examples", known["examples"] if is_full else "; ".join(map(_title, known["examples"]))
    if known.get("usage", {}).get("runs"):
        yield "usage", known["usage"]
    if known.get("lock"):
        yield from _lock(known["lock"])
    yield "digest", known["digest"]
    if is_full and skill.get("skill_md_frontmatter"):
        yield "frontmatter", skill["skill_md_frontmatter"]


def _listed(value: object) -> object:
    """Return a list of texts as one text, and other values unchanged."""
    return ", ".join(map(str, value)) if isinstance(value, list) else value


def _inputs(inputs: Mapping[str, Any]) -> Iterator[str]:
    """Yield one line for each input: name, type, description, and the values that are allowed."""
    rows = [(name, *_input(values if isinstance(values, Mapping) else {})) for name, values in inputs.items()]
    wide = [max(len(row[column]) for row in rows) for column in (0, 1)]
    for name, kind, text in rows:
        yield f"{name.ljust(wide[0])}  {kind.ljust(wide[1])}  {text}".rstrip()


def _input(values: Mapping[str, Any]) -> tuple[str, str]:
    notes = ["required"] if values.get("required") else []
    notes += [f"one of {as_json(values['enum'], indent=-1)}"] if "enum" in values else []
    notes += [f"default {as_json(values['default'], indent=-1)}"] if "default" in values else []
    about = f" ({'; '.join(notes)})" if notes else ""
    return str(values.get("type", "any")), _one_line(f"{values.get('description', '')}{about}")


def _title(example: Any) -> str:
    return _one_line(example.get("name") or "without a name") if isinstance(example, Mapping) else "without a name"


def _one_line(text: object) -> str:
    return " ".join(str(text).split())


def _lock(lock: Mapping[str, Any]) -> Iterator[tuple[str, object]]:
    states = ", ".join(one["state"] for one in lock["environments"])
    yield "lock", f"{lock['sha256']}{f' ({states})' if states else ''}"
    if lock["packages"]:
        yield "packages", ", ".join(f"{pin['name']} {pin['version']}" for pin in lock["packages"])


def _print_markdown(text: str) -> None:
    if not is_terminal():
        click.echo(clean(text))
        return
    from rich.console import Console
    from rich.markdown import Markdown

    Console().print(Markdown(clean(text)))
