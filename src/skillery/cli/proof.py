"""`skillery verify`: check a version with the keys of its registry. `--sign`: sign a version with the caller's key."""

from __future__ import annotations

import base64
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote

import click

from skillery.cli.failures import CHECK_FAILED, CheckFailed
from skillery.cli.options import Target, json_option, name_and_version, target_options
from skillery.cli.output import clean, print_json, print_rows
from skillery.cli.verbs import read_pages
from skillery.errors import StartupError
from skillery.proof import KEYS_ADDRESS, SIGNERS

if TYPE_CHECKING:
    from skillery.client import AsyncClient
    from skillery.proof.dsse import SigningKey
    from skillery.proof.keychains import Keychain
    from skillery.proof.statements import CheckedStatement

NAMES_SIGNER = {"publication": "publisher", **SIGNERS}
"""The field with the identity that has signed a statement or caused it."""


class _Evidence(NamedTuple):
    """The answers of a server about a version, before any check."""

    name: str
    version: str
    digest: str
    files: bytes
    envelopes: Sequence[bytes]
    chain: bytes
    keys: Sequence[dict[str, Any]]
    """The answer of `all_keys`."""


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
    from skillery.proof.dsse import ProofError
    from skillery.proof.statements import check_files, check_statement

    skill, spec = name_and_version(name, None)
    evidence = with_client(target, lambda client: _evidence(client, skill, spec))
    subject = f"{evidence.name}@{evidence.version}"
    pinned = _keychain(keys_file.read_bytes(), str(keys_file)) if keys_file is not None else None
    keychain = _keychain(evidence.chain, "the registry", pinned.present if pinned else ())
    try:
        check_files(evidence.files, evidence.digest)
    except ProofError as error:
        raise CheckFailed(f"{subject} {error}") from None
    people = {key["keyid"]: key for key in evidence.keys if key["holder"] == "identity" and not key["revoked_at"]}
    trusted = {keyid: base64.b64decode(key["public"]) for keyid, key in people.items()} | dict(keychain.trusted)
    # The server may send an earlier part of the chain, in which a stolen key is still valid.
    revoked = keychain.revoked | (pinned.revoked if pinned else frozenset())
    revoked = revoked.union(key["keyid"] for key in evidence.keys if key["revoked_at"])
    about = evidence.name, evidence.version, evidence.digest
    statements = [
        _of_signer(check_statement(envelope, trusted, *about), people, revoked) for envelope in evidence.envelopes
    ]
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


def _of_signer(statement: CheckedStatement, people: Mapping[str, Any], revoked: Collection[str]) -> CheckedStatement:
    """Return the statement with the problem that its key is revoked, or is the key of another identity."""
    import msgspec

    for keyid in statement.keyids:
        if keyid in revoked:
            return msgspec.structs.replace(statement, problem=f"is signed with the revoked key {keyid}")
        if keyid in people and (people[keyid]["by"] != _signer(statement) or statement.predicate not in SIGNERS):
            return msgspec.structs.replace(statement, problem=f"is signed with a key of '{people[keyid]['by']}'")
    return statement


def _print(statements: Sequence[CheckedStatement]) -> None:
    rows = [
        (
            "FAILED" if statement.problem else "ok",
            statement.predicate,
            _signer(statement),
            ", ".join(statement.keyids),
            statement.problem or "",
        )
        for statement in statements
    ]
    print_rows(["", "statement", "by", "key", "problem"], rows, none="No statements.")


def _signer(statement: CheckedStatement) -> str:
    """Return the identity that a statement names."""
    return str(statement.stated.get(NAMES_SIGNER.get(statement.predicate, "")) or "-")


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
    address = _address(name, version)
    return _Evidence(
        name,
        version,
        digest,
        await _read(client, f"{address}.files"),
        (await _read(client, f"{address}.intoto.jsonl")).splitlines(),
        await _read(client, KEYS_ADDRESS),
        await all_keys(client),
    )


async def all_keys(client: AsyncClient) -> list[dict[str, Any]]:
    """Return the keys of the registry and of identities, as `list_keys` returns them."""
    return (await read_pages(client.list_keys, {"limit": None, "cursor": None}, "keys"))[1]


def _address(name: str, version: str) -> str:
    return f"/skills/{quote(name, safe='')}/{quote(version, safe='')}"


async def _read(client: AsyncClient, address: str) -> bytes:
    from skillery.client.wire import without_error

    async with client.stream("GET", address) as response:
        content = await response.aread()
        without_error(response)
        return content


# -- statements of callers ---------------------------------------------------------------------------------------------


sign_option = click.option(
    "--sign",
    "sign_file",
    metavar="KEYFILE",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="Also sign the version with your own key (skillery key new, skillery key add).",
)


def read_key(path: Path) -> SigningKey:
    """Return the private key in a file. Raise StartupError if it is not usable."""
    from skillery.builtin.pem_signers import read_key_file

    key = read_key_file(path)
    if key is None:
        raise StartupError(f"there is no key file {path}: put back a copy of it, or make another key")
    return key


async def add_signed(
    client: AsyncClient, key: SigningKey, word: str, version: Mapping[str, Any], predicate: Mapping[str, Any]
) -> str:
    """Sign a statement about a version (`name`, `version`, `digest`), store it, and return its id. The statement names
    the identity for which the server has registered the key. Raise CheckFailed if the key is not registered.
    """
    from skillery.proof.dsse import seal
    from skillery.proof.statements import make_statement

    rows = await all_keys(client)
    owner = next((row["by"] for row in rows if row["keyid"] == key.keyid and row["holder"] == "identity"), None)
    if owner is None:
        raise CheckFailed(f"{key.keyid} is not registered: run skillery key add")
    signed = {SIGNERS[word]: owner, **predicate}
    payload = make_statement(word, version["name"], version["version"], version["digest"], signed)
    added = await client.add_attestation(version["name"], version["version"], seal(payload, key.sign).decode())
    return added["id"]


async def add_author(client: AsyncClient, key: SigningKey, version: Mapping[str, Any], files: Mapping[str, str]) -> str:
    """Sign a published version as its author. `files` are the SHA-256 of the author's files by path.

    Raise CheckFailed if the server has stored other files, or more than its own additions.
    """
    from skillery.proof.dsse import ProofError
    from skillery.proof.statements import check_files

    about = {"name": version["name"], "version": version["version"]}
    subject = "{name}@{version}".format_map(about)
    text = await _read(client, f"{_address(**about)}.files")
    try:
        check_files(text, version["digest"])
    except ProofError as error:
        raise CheckFailed(f"{subject} {error}") from None
    lines = [line.split(" ", 2) for line in text.decode().splitlines()]
    stored = {path: sha256 for _, sha256, path in lines if path not in ADDED or path in files}
    if stored != files:
        raise CheckFailed(f"{subject} is published with other files than the folder, so it is not signed")
    return await add_signed(client, key, "author", version, about)


ADDED = ("skill.toml", "requirements.lock", "npm.lock")
"""Files that the server writes from the manifest, or adds."""
