"""The part of `skillery doctor` about system programs: it tests whether the programs that public skills use exist in
runs.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from skillery.cli.output import is_terminal, print_rows
from skillery.formats.system_programs import USUAL

if TYPE_CHECKING:
    from skillery.backends import Sandbox

HOST_PATH = "/usr/local/bin:/usr/bin:/bin"
WHICH = "import shutil\ndef main(args): return {name: shutil.which(name) for name in args['names']}"


class SeenProgram(msgspec.Struct, frozen=True):
    """A program and its Debian package. `path` is the path in a run, or None if the program does not exist in runs."""

    program: str
    package: str
    path: str | None
    note: str = ""


async def seen_programs(sandbox: Sandbox) -> list[SeenProgram]:
    """Look up the usual programs in a run. The sandbox must be started. Return [] if the run fails."""
    from skillery.backends import CodeCall, Job, Limits
    from skillery.sandboxing.python_runner.dialogue import NoHost

    names = [program for programs in USUAL.values() for program in programs]
    args = msgspec.json.encode({"names": names})
    limits = Limits(timeout_ms=20_000, memory_mb=256)
    outcome = await sandbox.run(Job("run_0", CodeCall(WHICH, "main"), args, limits=limits), NoHost())
    if outcome.result is None:
        return []
    found = msgspec.json.decode(outcome.result, type=dict[str, str | None])
    return [
        SeenProgram(program, package, found.get(program), "" if found.get(program) else hidden_link(program))
        for package, programs in USUAL.items()
        for program in programs
    ]


def hidden_link(program: str) -> str:
    """Return why a program of this computer does not exist in runs, and the remedy.

    The reason is a link that leads outside the folders that runs see. Return "" if the computer has no such link.
    """
    path = shutil.which(program, path=HOST_PATH)
    if path is None or not Path(path).is_symlink():
        return ""
    target = os.path.realpath(path)
    if target.startswith("/usr/"):
        return f"Runs cannot follow the link {path}. To fix: ln -s {target} /usr/local/bin/{program}"
    return f"Runs cannot call {program}: {path} is a link to {target}. Install {program} in /usr."


def print_programs(seen: Sequence[SeenProgram]) -> None:
    if not seen:
        return
    rows = [
        (
            package,
            ", ".join(one.program for one in seen if one.package == package and one.path),
            ", ".join(one.program for one in seen if one.package == package and not one.path),
        )
        for package in USUAL
    ]
    title = "System programs that public skills call. All of them are optional."
    columns = ["Debian package", "runs can call", "runs cannot call"]
    if not is_terminal():
        click.echo("\n" + title + "\n" + "\t".join(columns))
    print_rows(columns, rows, title=title)
    for one in seen:
        if one.note:
            click.echo(one.note, err=True)
