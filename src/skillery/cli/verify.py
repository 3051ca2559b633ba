"""`skillery verify`: check versions, lock files and installed skills with the keys of their registry."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from skillery.cli.failures import CHECK_FAILED, CheckFailed
from skillery.cli.install import read_installed
from skillery.cli.lock_files import GENERATED, content_of, entries_of, seal_of, verified_lock, with_name
from skillery.cli.locks import refuse_problems
from skillery.cli.options import Target, json_option, name_and_version, target_options
from skillery.cli.output import clean, print_json, print_rows, print_warning
from skillery.cli.proof import (
    SIGN_AGAIN,
    address_of,
    find_keys,
    keychain_of_file,
    keys_option,
    read_answer,
    read_keychain,
)
from skillery.cli.seals import check_runs, is_runs_file
from skillery.proof import SIGNERS, STATED_BY

if TYPE_CHECKING:
    from skillery.client import AsyncClient
    from skillery.proof.keychains import Keychain
    from skillery.proof.statements import CheckedStatement


class _Answers(NamedTuple):
    """The answers of a server about a version, before any check."""

    name: str
    version: str
    digest: str
    files: bytes
    envelopes: Sequence[bytes]
    keys: Mapping[str, dict[str, Any]]
    """The keys that have signed, as `list_keys` returns them."""


class _Verified(NamedTuple):
    """A version after the checks of its digest and statements, and the first problem, or None."""

    keys: Sequence[str]
    """The present keys of the registry."""
    statements: Sequence[CheckedStatement]
    replaced: Sequence[CheckedStatement]
    """The statements of a revoked key that the registry has signed again with another key."""
    problem: str | None


@click.command()
@click.argument("subject", metavar="NAME[@VERSION]|DIR|FILE")
@click.option("--full", is_flag=True, help="Also check all statements about each skill of the lock file.")
@click.option("--offline", is_flag=True, help="Make no request: check only what the lock file or folder has.")
@keys_option
@target_options
@json_option
def verify(subject: str, full: bool, offline: bool, keys_file: Path | None, target: Target, as_json: bool) -> None:
    """Check a version, a lock file, or the installed skills of a folder.

    For a version, check the digest and all signed statements. Each line names a statement, its signer and its key. For
    a lock file, check the proof of each skill with the keys in the lock, and ask the registry for revoked keys and
    yanked versions. For a file with statements about runs (skillery runs statement), check each line; with --keys, no
    server is needed. For a folder that skillery install has written, compare the files with those that the registry
    has signed.

    The exit code is 1 if a check fails, and the message names the first failure. Without --keys, the keys of a version
    come from the server itself: keep them in a file to notice another signer.
    """
    path = Path(subject)
    pinned = keychain_of_file(keys_file) if keys_file is not None else None
    if path.is_file() and is_runs_file(path):
        _verify_runs(path, pinned, target, as_json)
    elif path.is_file():
        _verify_lock(path, full, offline, pinned, target, as_json)
    elif path.is_dir():
        _verify_folder(path, offline, pinned, target, as_json)
    elif offline:
        raise click.UsageError("--offline needs a lock file")
    else:
        _verify_version(*name_and_version(subject, None), pinned, target, as_json)


def _verify_version(name: str, spec: str | None, pinned: Keychain | None, target: Target, as_json: bool) -> None:
    from skillery.cli.connection import with_client

    async def ask(client: AsyncClient) -> tuple[_Answers, _Verified]:
        answers = await _read_answers(client, name, spec)
        return answers, await _checked(client, answers, await read_keychain(client, pinned))

    answers, verified = with_client(target, ask)
    subject = f"{answers.name}@{answers.version}"
    if as_json:
        print_json({"name": answers.name, "version": answers.version, "digest": answers.digest,
                    "ok": not verified.problem, "problem": verified.problem, "keys": verified.keys,
                    "statements": verified.statements})  # fmt: skip
    else:
        _print(verified)
        message = verified.problem or f"{subject} {answers.digest} is verified"
        click.echo(clean(message), err=bool(verified.problem))
        revocations = [row for row in verified.statements if row.predicate == "revocation" and not row.problem]
        if revocations and revocations[-1].stated.get("action") != "unyank":
            print_warning(f"{subject} was revoked: " + "{advisory}, {severity}".format_map(revocations[-1].stated))
        if pinned is None:
            click.echo(clean(f"The registry says that its key is {', '.join(verified.keys)}"), err=True)
    if verified.problem:
        raise click.exceptions.Exit(CHECK_FAILED)


def _verify_runs(path: Path, pinned: Keychain | None, target: Target, as_json: bool) -> None:
    """Check statements about runs. Without pinned keys, the keys come from the server."""
    from skillery.cli.connection import with_client

    if pinned is None:
        pinned = with_client(target, read_keychain)
    check_runs(path, pinned.trusted, as_json)


async def _read_answers(client: AsyncClient, name: str, spec: str | None) -> _Answers:
    described = (await client.describe_skill(name, version=spec))["skill"]
    version, digest = described["version"], described["digest"]
    address = address_of(name, version)
    files = await read_answer(client, f"{address}.files")
    envelopes = (await read_answer(client, f"{address}.intoto.jsonl")).splitlines()
    keys = await find_keys(client, {keyid for envelope in envelopes for keyid in _keyids(envelope)})
    return _Answers(name, version, digest, files, envelopes, keys)


def _keyids(envelope: bytes) -> Sequence[str]:
    from skillery.proof.dsse import ProofError, unverified

    try:
        return unverified(envelope).keyids
    except ProofError:  # `check_statement` names the problem
        return ()


async def _checked(client: AsyncClient, answers: _Answers, keychain: Keychain, digest: str | None = None) -> _Verified:
    """Check the digest of a version, which must be `digest` unless that is None, and its statements.

    If the version has not passed its policy, ask the registry why. Raise CheckFailed if the files do not have the
    digest.
    """
    from skillery.proof.dsse import ErrorsAbout
    from skillery.proof.locks import says_passed
    from skillery.proof.statements import check_files, check_statement

    subject = f"{answers.name}@{answers.version}"
    with ErrorsAbout(subject, CheckFailed):
        check_files(answers.files, digest or answers.digest)
    valid = {keyid: row for keyid, row in answers.keys.items() if not row["revoked_at"]}
    people = {keyid: row for keyid, row in valid.items() if row["holder"] == "identity"}
    trusted = {keyid: base64.b64decode(row["public"]) for keyid, row in people.items()} | dict(keychain.trusted)
    revoked = keychain.revoked.union(answers.keys.keys() - valid.keys())
    about = answers.name, answers.version, digest or answers.digest
    statements = [
        _of_signer(check_statement(envelope, trusted, *about), people, revoked) for envelope in answers.envelopes
    ]
    valid_words = {each.predicate for each in statements if not each.problem and each.keyids[0] in keychain.trusted}
    if "publication" in valid_words:
        # The registry has signed the version again. If it then has no valid `passed`, this is the problem.
        valid_words.add("passed")
    replaced = [
        each for each in statements if each.predicate in valid_words and keychain.revoked.issuperset(each.keyids)
    ]
    rest = [statement for statement in statements if statement not in replaced]
    problem = _problem(subject, rest, keychain.revoked)
    if problem is None and not any(says_passed(statement.predicate, statement.stated) for statement in rest):
        problem = await _missing(client, answers)
    return _Verified(keychain.present, statements, replaced, problem)


async def _missing(client: AsyncClient, answers: _Answers) -> str:
    """Return the first need of its policy that a version does not meet, and the remedy."""
    explained = await client.explain_policy(answers.name, version=answers.version)
    subject = f"{answers.name}@{answers.version} has not passed its policy"
    for need in explained["needs"]:
        if need["missing"]:
            return f"{subject} {explained['policy']}; missing: {need['missing']}\n{need['hint']}"
    return f"{subject}: it waits for a review or was yanked"


def _of_signer(statement: CheckedStatement, people: Mapping[str, Any], revoked: Collection[str]) -> CheckedStatement:
    """Return the statement. Its problem is set if its key is revoked, or is the key of another identity."""
    import msgspec

    for keyid in statement.keyids:
        if keyid in revoked:
            return msgspec.structs.replace(statement, problem=f"is signed with the revoked key {keyid}")
        if keyid in people and (people[keyid]["by"] != _signer(statement) or statement.predicate not in SIGNERS):
            return msgspec.structs.replace(statement, problem=f"is signed with a key of '{people[keyid]['by']}'")
    return statement


def _print(verified: _Verified) -> None:
    rows = [
        (
            "revoked" if statement in verified.replaced else "FAILED" if statement.problem else "ok",
            statement.predicate,
            _signer(statement),
            ", ".join(statement.keyids),
            statement.problem or "",
        )
        for statement in verified.statements
    ]
    print_rows(["", "statement", "by", "key", "problem"], rows, none="No statements.")


def _signer(statement: CheckedStatement) -> str:
    """Return the identity that a statement names."""
    return str(statement.stated.get(STATED_BY.get(statement.predicate, "")) or "-")


def _problem(subject: str, statements: Sequence[CheckedStatement], revoked: Collection[str]) -> str | None:
    """Return the first problem of the statements together, or None."""
    for statement in statements:
        if statement.problem:
            remedy = "" if set(statement.keyids).isdisjoint(revoked) else f": {SIGN_AGAIN}"
            return f"{subject}: the statement '{statement.predicate}' {statement.problem}{remedy}"
    if not any(statement.predicate == "publication" for statement in statements):
        return f"{subject} has no signed publication: the registry had no key when it was published"
    return None


# -- lock files and folders --------------------------------------------------------------------------------------------


def _verify_lock(path: Path, full: bool, offline: bool, pinned: Keychain | None, target: Target, as_json: bool) -> None:
    from skillery.cli.connection import with_client

    if offline and full:
        raise click.UsageError("--full reads the statements from the registry, and --offline makes no request")
    lock = verified_lock(path, pinned if offline else None)
    if lock.unsigned:
        raise CheckFailed(f"'{path}' has no proof of {lock.unsigned[0]}: run skillery lock")
    entries = entries_of(lock)

    async def ask(client: AsyncClient) -> Sequence[str]:
        # The chain leads from the keys of the file or lock to newer ones, and to revocations.
        seal = seal_of(path, lock)
        keychain = await read_keychain(client, pinned, tuple(lock.keys), [seal] if seal else [])
        verified_lock(path, keychain)
        refuse_problems(await client.verify_lock(lock=entries), deny_yanked=True)
        for entry in entries if full else ():
            answers = await _read_answers(client, entry["name"], entry["version"])
            _refuse(await _checked(client, answers, keychain, entry["digest"]))
        return keychain.present

    keys = sorted(lock.keys) if offline else with_client(target, ask)
    facts = {"file": str(path), "skills": lock.skills}
    _print_verified(f"{path}: {_number(entries)} verified", facts, keys, as_json)


def _verify_folder(folder: Path, offline: bool, pinned: Keychain | None, target: Target, as_json: bool) -> None:
    from skillery.cli.connection import with_client

    if offline:
        raise click.UsageError("--offline needs the lock file: the signed statements of a folder are in the registry")
    installed = read_installed(folder)
    if not installed:
        raise CheckFailed(f"'{folder}' has no skills of skillery install. To verify a skill, write {folder}@latest")

    async def ask(client: AsyncClient) -> Sequence[str]:
        keychain = await read_keychain(client, pinned)
        for skill, marks in installed:
            answers = await _read_answers(client, skill.name, skill.version)
            _refuse(await _checked(client, answers, keychain, skill.digest))
            await _compare(client, answers, folder / skill.name, marks)
        return keychain.present

    keys = with_client(target, ask)
    skills = [{"name": skill.name, "version": skill.version, "digest": skill.digest} for skill, _ in installed]
    facts = {"folder": str(folder), "skills": skills}
    _print_verified(f"{folder}: {_number(skills)} verified", facts, keys, as_json)


def _number(skills: Sequence[object]) -> str:
    return "1 skill is" if len(skills) == 1 else f"{len(skills)} skills are"


async def _compare(client: AsyncClient, answers: _Answers, folder: Path, marks: Mapping[str, str]) -> None:
    """Raise CheckFailed if the files of an installed skill are not those of its version. SKILL.md has the name of its
    folder.
    """
    lines = [line.split(" ", 2) for line in answers.files.decode().splitlines()]
    signed = {path: "x" * (mode == "100755") + sha256 for mode, sha256, path in lines}
    if signed.get("SKILL.md") != marks.get("SKILL.md"):
        answer = await client.read_skill_file(name=answers.name, version=answers.version, path="SKILL.md")
        content = content_of(answer)
        if hashlib.sha256(content).hexdigest() == signed.get("SKILL.md"):
            signed["SKILL.md"] = hashlib.sha256(with_name(content, answers.name)).hexdigest()
    different = sorted(path for path in signed.keys() | marks.keys() if signed.get(path) != marks.get(path))
    if different:
        files = ", ".join(different[:8])
        has_generated = any(GENERATED in path.split("/") for path in different)
        remedy = (
            f"\nPython may run files in {GENERATED} in place of their sources: remove these folders" * has_generated
        )
        raise CheckFailed(f"{folder} has other files than {answers.name}@{answers.version}: {files}{remedy}")


def _refuse(verified: _Verified) -> None:
    """Raise CheckFailed if the version has a problem."""
    if verified.problem:
        raise CheckFailed(verified.problem)


def _print_verified(message: str, facts: Mapping[str, Any], keys: Sequence[str], as_json: bool) -> None:
    if as_json:
        print_json({**facts, "ok": True, "keys": keys})
    else:
        click.echo(clean(message))
