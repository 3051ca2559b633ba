"""`skillery lock` writes the exact versions of skills to a file. `skillery packages` downloads packages of locks."""

from __future__ import annotations

import secrets
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from skillery.cli.failures import CheckFailed
from skillery.cli.options import Target, home_options, json_option, target_options
from skillery.cli.output import as_json as as_json_text
from skillery.cli.output import clean, print_json, print_rows, print_warning

if TYPE_CHECKING:
    from skillery.client import AsyncClient
    from skillery.client.results import Locked

LOCKFILE = "skillery.lock"
LOCK_VERSION = 1
MAX_LOCKFILE_BYTES = 4 * 1024 * 1024

lockfile_option = click.option(
    "-o",
    "--file",
    "file",
    metavar="FILE",
    default=LOCKFILE,
    show_default=True,
    help="The lock file; '-' writes to stdout.",
)


class _Entry(msgspec.Struct, frozen=True):
    name: str
    version: str
    digest: str
    status: str = ""


class _Lockfile(msgspec.Struct, frozen=True):
    lock_version: int
    skills: list[_Entry]


@click.command()
@click.argument("skills", metavar="[NAME[@SPEC]...]", nargs=-1)
@click.option(
    "--check", is_flag=True, help="Write nothing: check that all locked versions are still available and unchanged."
)
@lockfile_option
@target_options
@json_option
def lock(skills: Sequence[str], check: bool, file: str, target: Target, as_json: bool) -> None:
    """Lock skills to exact versions in a file.

    The lock file contains the version and the digest of each NAME@SPEC at present. SPEC is a version, a range, a label
    or a digest. Without SPEC, the latest version is locked. The same versions produce exactly the same file. `skillery
    install --locked` installs these versions.
    """
    from skillery.cli.connection import with_client

    if check == bool(skills):
        raise click.UsageError("name the skills to lock, or pass --check to check an existing lock file")
    if check:
        _check(target, read_lockfile(Path(file)), as_json)
        return
    entries = with_client(target, lambda client: resolve_lock(client, skills))
    text = lockfile_text(entries)
    if file == "-":
        click.echo(text, nl=False)
        return
    replaced = _names_in(Path(file))
    write_atomically(Path(file), text)
    if dropped := sorted(replaced - {str(entry["name"]) for entry in entries}):
        click.echo(f"no longer in {clean(file)}: {clean(', '.join(dropped))}", err=True)
    if as_json:
        print_json({"file": file, "lock": entries})
    else:
        print_entries(entries)


def _names_in(path: Path) -> set[str]:
    """Return the names of the skills in the lock file, or nothing if there is no valid lock file."""
    try:
        return {entry["name"] for entry in read_lockfile(path)}
    except CheckFailed:
        return set()


def _check(target: Target, entries: Sequence[Locked], as_json: bool) -> None:
    """Print whether the locked versions are available and unchanged. Raise Exit or CheckFailed if not."""
    from skillery.cli.connection import with_client

    verified = with_client(target, lambda client: client.verify_lock(lock=entries))
    if as_json:
        print_json(verified)
        if not verified["ok"]:
            raise click.exceptions.Exit(1)
        return
    refuse_problems(verified)
    click.echo(f"All {len(entries)} locked versions are available and unchanged.")


async def resolve_lock(client: AsyncClient, skills: Sequence[str]) -> list[Locked]:
    """Return the lock of the given skills, sorted by name. The order of `skills` does not matter."""
    answer = await client.resolve_skills(skills=list(skills))
    return sorted(answer["lock"], key=lambda entry: str(entry["name"]))


def refuse_problems(verified: Mapping[str, Any], allowed: Collection[str] = ()) -> None:
    """Print the warnings in the result of verify_lock. Raise CheckFailed if the result contains problems.

    The problems in `allowed` are warnings.
    """
    problems = [problem for problem in verified["problems"] if problem["problem"] not in allowed]
    for warning in (
        *verified["warnings"],
        *(problem for problem in verified["problems"] if problem["problem"] in allowed),
    ):
        print_warning(warning["message"])
    if problems:
        for problem in problems:
            click.echo(f"  {clean(problem['problem'])}: {clean(problem['message'])}", err=True)
        raise CheckFailed(f"the lock file is out of date: {len(problems)} of its skills are missing or have changed")


def lockfile_text(entries: Sequence[Mapping[str, Any]]) -> str:
    return as_json_text({"lock_version": LOCK_VERSION, "skills": list(entries)}) + "\n"


def read_lockfile(path: Path) -> list[Locked]:
    """Return the skills in a lock file. Raise CheckFailed if the file cannot be read or is not a lock file."""
    try:
        if path.stat().st_size > MAX_LOCKFILE_BYTES:
            raise CheckFailed(f"'{path}' is too large for a lock file")
        lockfile = msgspec.json.decode(path.read_bytes(), type=_Lockfile)
    except OSError as error:
        raise CheckFailed(
            f"cannot read the lock file '{path}': {error.strerror}; run `skillery lock` to create it"
        ) from None
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise CheckFailed(f"'{path}' is not a Skillery lock file: {error}") from None
    if lockfile.lock_version != LOCK_VERSION:
        raise CheckFailed(f"'{path}' has lock_version {lockfile.lock_version}; this release reads only {LOCK_VERSION}")
    entries: list[Locked] = msgspec.to_builtins(lockfile.skills)
    return entries


def write_atomically(path: Path, text: str) -> None:
    """Replace a file atomically: a concurrent reader reads the old or the new text, never a part."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        temporary.write_text(text)
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise CheckFailed(f"cannot write '{path}': {error.strerror}") from None


def print_entries(entries: Sequence[Mapping[str, Any]]) -> None:
    columns = ("name", "version", "digest", "status")
    print_rows(columns, [[entry[column] for column in columns] for entry in entries], none="No skills.")


# -- `skillery packages`: files for servers without a network ----------------------------------------------------------


@click.group()
def packages() -> None:
    """Download packages for servers without a network."""


@packages.command("fetch")
@click.option(
    "--npm",
    "npm_locks",
    metavar="LOCK",
    multiple=True,
    required=True,
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="The file npm.lock of a skill; several are possible.",
)
@click.option(
    "-o",
    "--output",
    "folder",
    metavar="DIR",
    required=True,
    type=click.Path(path_type=Path, file_okay=False),
    help="The folder of the files.",
)
@home_options
def fetch(npm_locks: Sequence[Path], folder: Path, target: Target) -> None:
    """Download the packages of locks into a folder.

    The files come from the registry in the settings (packages.npm_url), have the hashes of the locks, and are for the
    system of this machine. A server without a network gets the folder as packages.npm_store.
    """
    import asyncio

    from skillery.authoring.packages import fetch_npm_files
    from skillery.formats.requirements import InvalidLock

    folder.mkdir(parents=True, exist_ok=True)
    try:
        names = asyncio.run(fetch_npm_files(target.load().settings, [path.read_bytes() for path in npm_locks], folder))
    except InvalidLock as error:
        raise CheckFailed(f"the lock {error.message}") from None
    for name in names:
        click.echo(name)
