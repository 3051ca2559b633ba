"""Read the keys and statements of a registry, and sign versions with the caller's key (`--sign`)."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import click

from skillery.cli.failures import CheckFailed
from skillery.errors import StartupError
from skillery.proof import KEYS_ADDRESS, SIGNERS

if TYPE_CHECKING:
    from skillery.client import AsyncClient
    from skillery.proof.dsse import SigningKey
    from skillery.proof.keychains import Keychain
    from skillery.proof.seals import Seal

MOST_BYTES = 16 * 1024 * 1024
"""The maximum size of an answer. A server could send an endless one."""
MOST_PAGES = 1000
"""The maximum number of pages of keys."""

keys_option = click.option(
    "--keys",
    "keys_file",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help=f"Trust only keys that follow those in FILE, an earlier answer of {KEYS_ADDRESS}.",
)


def keychain_of_file(path: Path) -> Keychain:
    """Return the keys in a file. Raise CheckFailed if the file is not an answer of KEYS_ADDRESS."""
    if path.stat().st_size > MOST_BYTES:
        raise CheckFailed(f"{path} is too large for an answer of {KEYS_ADDRESS}")
    return keychain_of(path.read_bytes(), str(path))


def keychain_of(content: bytes, source: str, pinned: Collection[str] = (), seals: Sequence[Seal] = ()) -> Keychain:
    """Return the keys of a chain. Raise CheckFailed if the chain is not valid, does not follow the pinned keys, or does
    not have the statements that the seals name, oldest first.
    """
    from skillery.proof.dsse import ErrorsAbout
    from skillery.proof.keychains import follow
    from skillery.proof.seals import check_heads

    statements = statements_of_keys(content, source)
    if not statements:
        raise CheckFailed(f"{source} has no keys: the registry signs nothing (setting signing.key)")
    with ErrorsAbout(source, CheckFailed):
        keychain = follow(statements, pinned)
        check_heads(seals, statements)
    return keychain


async def read_keychain(
    client: AsyncClient,
    pinned: Keychain | None = None,
    known: Collection[str] = (),
    seals: Sequence[Seal] = (),
    *,
    may_be_empty: bool = False,
) -> Keychain:
    """Return the keys of the registry, which must follow those of `pinned`, or else the `known` ones. If none are
    pinned or known, a registry that signs nothing `may_be_empty`. Raise the errors of `keychain_of`.

    Keys that `pinned` has revoked stay revoked: the server may send an earlier part of the chain.
    """
    from skillery.proof.keychains import Keychain

    chain, source = await read_answer(client, KEYS_ADDRESS), "the registry"
    known = pinned.present if pinned else known
    if may_be_empty and not known and not statements_of_keys(chain, source):
        return Keychain({}, (), frozenset(), {})
    keychain = keychain_of(chain, source, known, seals)
    revoked = keychain.revoked | (pinned.revoked if pinned else frozenset())
    trusted = {keyid: public_der for keyid, public_der in keychain.trusted.items() if keyid not in revoked}
    return keychain._replace(trusted=trusted, revoked=revoked)


SIGN_AGAIN = "an admin runs skillery attest --existing"
"""The remedy for statements of a revoked key of the registry."""


@contextmanager
def naming_revoked(revoked: Collection[str], remedy: str = SIGN_AGAIN) -> Iterator[None]:
    """Context manager: if the unknown key of a ProofError is one of the `revoked` keys, say so, and add the remedy."""
    from skillery.proof.dsse import ProofError

    try:
        yield
    except ProofError as error:
        problem = str(error)
        for keyid in revoked:
            problem = problem.replace(f"the unknown key {keyid}", f"the revoked key {keyid}: {remedy}")
        raise ProofError(problem) from None


def statements_of_keys(content: bytes, source: str) -> list[bytes]:
    """Return the statements of a chain, none if the registry signs nothing. Raise CheckFailed for other contents."""
    import msgspec

    try:
        statements = msgspec.json.decode(content, type=dict[str, list[msgspec.Raw]])["statements"]
    except (msgspec.MsgspecError, KeyError, ValueError, RecursionError):
        raise CheckFailed(f"{source} has no keys: they are the answer of {KEYS_ADDRESS}") from None
    return [bytes(statement) for statement in statements]


async def find_keys(client: AsyncClient, keyids: Collection[str]) -> dict[str, dict[str, Any]]:
    """Return the keys with these keyids, as `list_keys` returns them. Unknown keyids have none."""
    rows: dict[str, dict[str, Any]] = {}
    cursor = None
    for _ in range(MOST_PAGES):
        page = await client.list_keys(limit=1000, cursor=cursor)
        rows |= {row["keyid"]: dict(row) for row in page["keys"] if row["keyid"] in keyids}
        cursor = page["next_cursor"]
        if cursor is None:
            return rows
    raise CheckFailed(f"the list of keys has more than {MOST_PAGES} pages")


def address_of(name: str, version: str) -> str:
    """Return the address of a version, which begins those of its text of files and its statements."""
    return f"/skills/{quote(name, safe='')}/{quote(version, safe='')}"


async def read_answer(client: AsyncClient, address: str) -> bytes:
    """Return the content at an address. Raise CheckFailed if it is larger than MOST_BYTES."""
    from skillery.client.wire import without_error

    content = bytearray()
    async with client.stream("GET", address) as response:
        if response.is_error:
            await response.aread()
        without_error(response)
        async for piece in response.aiter_bytes():
            content += piece
            if len(content) > MOST_BYTES:
                raise CheckFailed(f"the answer of {address} has more than {MOST_BYTES} bytes")
    return bytes(content)


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


async def find_owner(client: AsyncClient, key: SigningKey) -> str:
    """Return the identity that owns a key. Raise CheckFailed if the key cannot sign. Call this function before the
    change that the statement is about.
    """
    row = (await find_keys(client, [key.keyid])).get(key.keyid)
    if row is None or row["holder"] != "identity":
        raise CheckFailed(f"{key.keyid} is not registered: run skillery key add")
    if row["revoked_at"] or row["retired_at"]:
        raise CheckFailed(f"{key.keyid} is revoked: make another key with skillery key new")
    return str(row["by"])


async def add_signed(
    client: AsyncClient, key: SigningKey, word: str, version: Mapping[str, Any], predicate: Mapping[str, Any]
) -> str:
    """Sign a statement about a version (`name`, `version`, `digest`), store it, and return its id. The statement names
    the identity for which the server has registered the key. Raise CheckFailed if the key is not registered.
    """
    from skillery.proof.dsse import seal
    from skillery.proof.statements import make_statement

    signed = {SIGNERS[word]: await find_owner(client, key), **predicate}
    payload = make_statement(word, version["name"], version["version"], version["digest"], signed)
    added = await client.add_attestation(version["name"], version["version"], seal(payload, key.sign).decode())
    return added["id"]


async def add_author(client: AsyncClient, key: SigningKey, version: Mapping[str, Any], files: Mapping[str, str]) -> str:
    """Sign a published version as its author. `files` are the SHA-256 of the author's files by path.

    Raise CheckFailed if the server has stored other files, or more than its own additions.
    """
    from skillery.proof.dsse import ErrorsAbout
    from skillery.proof.statements import check_files

    about = {"name": version["name"], "version": version["version"]}
    subject = "{name}@{version}".format_map(about)
    text = await read_answer(client, f"{address_of(**about)}.files")
    with ErrorsAbout(subject, CheckFailed):
        check_files(text, version["digest"])
    lines = [line.split(" ", 2) for line in text.decode().splitlines()]
    stored = {path: sha256 for _, sha256, path in lines if path not in ADDED or path in files}
    if stored != files:
        raise CheckFailed(f"{subject} is published with other files than the folder, so it is not signed")
    return await add_signed(client, key, "author", version, about)


ADDED = ("skill.toml", "requirements.lock", "npm.lock")
"""Files that the server writes from the manifest, or adds."""
