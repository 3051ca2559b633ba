"""`skillery lock` writes the exact versions of skills to a file."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from skillery.cli.failures import CheckFailed
from skillery.cli.lock_files import (
    LOCKFILE,
    entries_of,
    lock_of,
    proofs_of,
    read_lockfile,
    refuse_signers,
    seal_of,
    verified_lock,
    write_atomically,
)
from skillery.cli.options import Target, json_option, target_options
from skillery.cli.output import clean, print_json, print_rows, print_warning
from skillery.cli.proof import keychain_of_file, keys_option
from skillery.formats.wording import first_names

if TYPE_CHECKING:
    from skillery.client import AsyncClient
    from skillery.client.results import Locked
    from skillery.proof.locks import Lock

lockfile_option = click.option(
    "-o",
    "--file",
    "file",
    metavar="FILE",
    default=LOCKFILE,
    show_default=True,
    help="The lock file; '-' writes to stdout.",
)


def yanked_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that decide about yanked versions of a lock."""
    command = click.option(
        "--allow-yanked", metavar="NAME", multiple=True, help="Accept this skill although it was yanked for security."
    )(command)
    return click.option("--deny-yanked", is_flag=True, help="Refuse all yanked versions.")(command)


unsigned_option = click.option(
    "--allow-unsigned",
    "unsigned",
    metavar="NAME",
    multiple=True,
    help="Accept this skill without a proof although the registry signs; repeatable.",
)


def refuse_unsigned(lock: Lock, allowed: Collection[str]) -> None:
    """Raise CheckFailed if the lock has keys, and a skill without a proof that is not in `allowed`."""
    names = [name for name in lock.unsigned if lock.keys and name not in allowed]
    if names:
        raise CheckFailed(
            f"no signed statement says that these skills have passed their policy: {first_names(names, 8)}\n"
            "If this is right, use --allow-unsigned NAME. Nothing was written"
        )


@click.command()
@click.argument("skills", metavar="[NAME[@SPEC]...]", nargs=-1)
@click.option(
    "--check", is_flag=True, help="Write nothing: check that all locked versions are still available and unchanged."
)
@click.option(
    "--allow-signer-change",
    "allowed",
    metavar="NAME",
    multiple=True,
    help="Lock this skill although its signer has changed; repeatable.",
)
@unsigned_option
@keys_option
@yanked_options
@lockfile_option
@target_options
@json_option
def lock(
    skills: Sequence[str],
    check: bool,
    allowed: Sequence[str],
    unsigned: Sequence[str],
    keys_file: Path | None,
    deny_yanked: bool,
    allow_yanked: Sequence[str],
    file: str,
    target: Target,
    as_json: bool,
) -> None:
    """Lock skills to exact versions in a file.

    The lock file contains the version, the digest and the signer of each NAME@SPEC at present, and the keys of the
    registry. FILE.proofs next to it has the signed statement about each version. SPEC is a version, a range, a label or
    a digest. Without SPEC, the latest version is locked. The first lock pins the keys of the registry and prints them.
    Later ones fail if the registry has other keys, or if a skill has another signer. Versions that wait for a review
    because evidence was withdrawn are refused. `skillery install --locked` installs these versions.
    """
    from skillery.cli.connection import with_client
    from skillery.proof.locks import encode_lock, encode_proofs

    if check == bool(skills):
        raise click.UsageError("name the skills to lock, or pass --check to check an existing lock file")
    path = Path(file)
    if check:
        _check(target, entries_of(verified_lock(path)), as_json, deny_yanked, allow_yanked)
        return
    former = read_lockfile(path) if file != "-" and path.exists() else None
    former_seal = seal_of(path, former)
    pinned = keychain_of_file(keys_file) if keys_file else None

    async def work(client: AsyncClient) -> tuple[list[Locked], Lock, Sequence[bytes]]:
        entries = await resolve_lock(client, skills)
        new, proofs = await lock_of(client, entries, former, pinned, former_seal=former_seal)
        await _refuse_waiting(client, new)
        return entries, new, proofs

    entries, new, proofs = with_client(target, work)
    refuse_signers(former, new, allowed)
    refuse_unsigned(new, unsigned)
    text = encode_lock(new)
    if file == "-":
        click.echo(text.decode(), nl=False)
        return
    write_atomically(proofs_of(path), encode_proofs(proofs))
    write_atomically(path, text)
    dropped = {skill.name for skill in former.skills} - {skill.name for skill in new.skills} if former else ()
    if dropped:
        click.echo(f"no longer in {clean(file)}: {clean(', '.join(sorted(dropped)))}", err=True)
    if new.keys and not (former and former.keys):
        click.echo(f"{clean(file)} trusts the keys {', '.join(sorted(new.keys))}", err=True)
    if as_json:
        print_json({"file": file, "lock": entries, "keys": sorted(new.keys)})
    else:
        print_entries(entries)


async def _refuse_waiting(client: AsyncClient, new: Lock) -> None:
    """Raise CheckFailed for published versions whose `passed` has ended."""
    lines = []
    for skill in new.skills:
        if not new.keys or skill.proof:
            continue
        explained = await client.explain_policy(skill.name, version=skill.version)
        if explained["waiting"] and explained["status"] != "in_review":
            missing = [need["missing"] for need in explained["needs"] if need["missing"]]
            reason = ", ".join(missing) or "another review"
            subject = f"{skill.name}@{skill.version}"
            lines.append(f"{subject} has not passed the policy {explained['policy']}; missing: {reason}")
            lines += [f"  {need['hint']}" for need in explained["needs"] if need["hint"]]
    if lines:
        raise CheckFailed("\n".join([*lines, "Lock another version, or ask a reviewer. Nothing was written"]))


def _check(
    target: Target, entries: Sequence[Locked], as_json: bool, deny_yanked: bool, allow_yanked: Sequence[str]
) -> None:
    """Print whether the locked versions are available and unchanged. Raise Exit or CheckFailed if not."""
    from skillery.cli.connection import with_client

    verified = with_client(target, lambda client: client.verify_lock(lock=entries))
    if as_json:
        print_json(verified)
        if not all(_is_accepted(problem, deny_yanked, allow_yanked) for problem in verified["problems"]):
            raise click.exceptions.Exit(1)
        return
    refuse_problems(verified, deny_yanked=deny_yanked, allow_yanked=allow_yanked)
    click.echo(f"All {len(entries)} locked versions are available and unchanged.")


async def resolve_lock(client: AsyncClient, skills: Sequence[str], *, required: bool = True) -> list[Locked]:
    """Return the lock of the given skills and, with `required`, of those that they require, sorted by name. The order
    of `skills` does not matter.
    """
    # A server of an earlier release does not have the param.
    options: Any = {} if required else {"required": False}
    answer = await client.resolve_skills(skills=list(skills), **options)
    if hidden := answer.get("requires_hidden"):
        skills_left_out = "1 required skill is" if hidden == 1 else f"{hidden} required skills are"
        print_warning(f"{skills_left_out} not in the lock, because you may not see {'it' if hidden == 1 else 'them'}")
    return sorted(answer["lock"], key=lambda entry: str(entry["name"]))


def _is_accepted(problem: Mapping[str, Any], deny_yanked: bool, allow_yanked: Collection[str]) -> bool:
    """Return whether a problem is only a warning: a broken version, or a version yanked for security whose skill the
    user accepts.
    """
    if problem["problem"] != "yanked" or deny_yanked:
        return False
    # A server of an earlier release has no severities.
    severity = problem.get("severity") or "broken"
    return severity == "broken" or (severity == "security" and problem["name"] in allow_yanked)


def refuse_problems(
    verified: Mapping[str, Any], *, deny_yanked: bool = False, allow_yanked: Collection[str] = ()
) -> None:
    """Print the warnings in the result of verify_lock. Raise CheckFailed if the result contains problems.

    A broken version is a warning without `deny_yanked`. `allow_yanked` names skills whose versions were yanked for
    security, and are accepted.
    """
    accepted = [problem for problem in verified["problems"] if _is_accepted(problem, deny_yanked, allow_yanked)]
    problems = [problem for problem in verified["problems"] if problem not in accepted]
    for warning in (*verified["warnings"], *accepted):
        print_warning(warning["message"])
    if problems:
        for problem in problems:
            click.echo(f"  {clean(problem['problem'])}: {clean(problem['message'])}", err=True)
        raise CheckFailed(
            f"the lock file is out of date: {len(problems)} of its skills are missing, changed or revoked"
        )


def print_entries(entries: Sequence[Mapping[str, Any]]) -> None:
    columns = ("name", "version", "digest", "status")
    print_rows(columns, [[entry[column] for column in columns] for entry in entries], none="No skills.")
