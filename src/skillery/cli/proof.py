"""`skillery verify`: check a version with the keys of its registry."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote

import click

from skillery.cli.failures import CHECK_FAILED, CheckFailed
from skillery.cli.options import Target, json_option, name_and_version, target_options
from skillery.cli.output import clean, print_json, print_rows

if TYPE_CHECKING:
    from skillery.client import AsyncClient
    from skillery.proof.checks import CheckedStatement
    from skillery.proof.keychains import Keychain

KEYS_ADDRESS = "/.well-known/skillery/keys"


class _Evidence(NamedTuple):
    """What a server has sent about a version, before any check."""

    name: str
    version: str
    digest: str
    files: bytes
    envelopes: Sequence[bytes]
    chain: bytes


@click.command()
@click.argument("name", metavar="NAME[@VERSION]")
@click.option(
    "--keys",
    "keys_file",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help=f"Trust only keys that follow those in FILE, an earlier answer of {KEYS_ADDRESS}.",
)
@target_options
@json_option
def verify(name: str, keys_file: Path | None, target: Target, as_json: bool) -> None:
    """Check the digest of a version, and the signed statements about it.

    Each line names a statement, its signer and its key. The exit code is 1 if the files do not have the digest, if a
    signature is not valid, or if the registry has not signed that the version was published. Without --keys, the keys
    come from the server itself: keep them in a file to notice another signer.
    """
    from skillery.cli.connection import with_client
    from skillery.proof.checks import check_files, check_statements
    from skillery.proof.dsse import ProofError

    skill, spec = name_and_version(name, None)
    evidence = with_client(target, lambda client: _evidence(client, skill, spec))
    subject = f"{evidence.name}@{evidence.version}"
    pinned = _keychain(keys_file.read_bytes(), str(keys_file)).present if keys_file is not None else ()
    keychain = _keychain(evidence.chain, "the registry", pinned)
    try:
        check_files(evidence.files, evidence.digest)
    except ProofError as error:
        raise CheckFailed(f"{subject} {error}") from None
    about = evidence.name, evidence.version, evidence.digest
    statements = check_statements(evidence.envelopes, keychain.trusted, *about)
    problem = _problem(subject, statements)
    if as_json:
        print_json({"name": evidence.name, "version": evidence.version, "digest": evidence.digest, "ok": not problem,
                    "problem": problem, "keys": keychain.present, "statements": statements})  # fmt: skip
    else:
        _print(statements)
        click.echo(clean(problem or f"{subject} {evidence.digest} is verified"), err=bool(problem))
        if keys_file is None:
            click.echo(clean(f"The registry says that its key is {', '.join(keychain.present)}"), err=True)
    if problem:
        raise click.exceptions.Exit(CHECK_FAILED)


def _print(statements: Sequence[CheckedStatement]) -> None:
    rows = [
        (
            "FAILED" if statement.problem else "ok",
            statement.predicate,
            _signer(statement.stated),
            ", ".join(statement.keyids),
            statement.problem or "",
        )
        for statement in statements
    ]
    print_rows(["", "statement", "by", "key", "problem"], rows, none="No statements.")


def _signer(predicate: dict[str, Any]) -> str:
    """Return the identity that a statement names."""
    return str(predicate.get("publisher") or predicate.get("reviewer") or predicate.get("author") or "-")


def _problem(subject: str, statements: Sequence[CheckedStatement]) -> str | None:
    """Return the first problem of the statements together, or None."""
    for statement in statements:
        if statement.problem:
            return f"{subject}: the statement '{statement.predicate}' {statement.problem}"
    if not any(statement.predicate == "publication" for statement in statements):
        return f"{subject} has no signed publication: the registry had no key when it was published"
    return None


def _keychain(content: bytes, source: str, pinned: Sequence[str] = ()) -> Keychain:
    """Return the keys of a chain. Raise CheckFailed if the chain is not valid, or does not follow the pinned keys."""
    import msgspec

    from skillery.proof.dsse import ProofError
    from skillery.proof.keychains import follow

    try:
        statements = msgspec.json.decode(content, type=dict[str, list[msgspec.Raw]])["statements"]
    except (msgspec.MsgspecError, KeyError, ValueError, RecursionError):
        raise CheckFailed(f"{source} has no keys: they are the answer of {KEYS_ADDRESS}") from None
    if not statements:
        raise CheckFailed(f"{source} has no keys: the registry signs nothing (setting signing.key)")
    try:
        return follow([bytes(statement) for statement in statements], pinned)
    except ProofError as error:
        raise CheckFailed(f"{source} {error}") from None


async def _evidence(client: AsyncClient, name: str, spec: str | None) -> _Evidence:
    described = (await client.describe_skill(name, version=spec))["skill"]
    version, digest = described["version"], described["digest"]
    address = f"/skills/{quote(name, safe='')}/{quote(version, safe='')}"
    return _Evidence(
        name,
        version,
        digest,
        await _read(client, f"{address}.files"),
        (await _read(client, f"{address}.intoto.jsonl")).splitlines(),
        await _read(client, KEYS_ADDRESS),
    )


async def _read(client: AsyncClient, address: str) -> bytes:
    from skillery.client.wire import without_error

    async with client.stream("GET", address) as response:
        content = await response.aread()
        without_error(response)
        return content
