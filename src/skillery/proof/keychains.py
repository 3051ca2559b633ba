"""The chain of statements about the keys of a registry, which a client follows from a key that it knows."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import msgspec

from skillery.proof import KEYS_ADDRESS
from skillery.proof.dsse import ErrorsAbout, ProofError, verify
from skillery.proof.statements import URN, Subject, encode_statement, now, predicate_of, unverified_statement

KEYS_TYPE = f"{URN}keys:v1"


class KeysPredicate(msgspec.Struct, frozen=True):
    """A change of the keys of a registry."""

    added: dict[str, bytes]
    """New public keys in DER by keyid. The JSON has them in base64."""
    retired: tuple[str, ...]
    """Keys that sign nothing from now on. What they have signed stays valid."""
    revoked: tuple[str, ...]
    """Stolen keys. Nothing that they have signed is valid."""
    previous: str | None
    """The SHA-256 of the envelope before, or None for the first one of a chain."""
    at: str


class Keychain(NamedTuple):
    """The keys of a registry, after all statements of its chain."""

    trusted: Mapping[str, bytes]
    """Present and retired public keys by keyid."""
    present: tuple[str, ...]
    """The keys that sign now."""
    revoked: frozenset[str]
    known: Mapping[str, bytes]
    """All keys of the chain by keyid, also the revoked ones."""
    since: str = ""
    """The time of the first statement."""


def make_keys_statement(
    added: Mapping[str, bytes], previous: str | None, retired: Sequence[str] = (), revoked: Sequence[str] = ()
) -> bytes:
    """Return the payload of a statement about keys. The keys before and the added keys sign it."""
    predicate = KeysPredicate(dict(added), tuple(retired), tuple(revoked), previous, now())
    subjects = [
        Subject("skillery:key", {"sha256": keyid.removeprefix("sha256:")}) for keyid in (*added, *retired, *revoked)
    ]
    return encode_statement(KEYS_TYPE, tuple(subjects), msgspec.to_builtins(predicate))


def follow(statements: Sequence[bytes], pinned: Collection[str] = ()) -> Keychain:
    """Return the keys of a registry after the statements of its chain, oldest first.

    Each statement must be signed by all present keys before it, and by the keys that it adds. If there are `pinned`
    keyids, the chain must have one of them that was not revoked. Otherwise, raise ProofError.
    """
    trusted: dict[str, bytes] = {}
    known: dict[str, bytes] = {}
    present: tuple[str, ...] = ()
    revoked: frozenset[str] = frozenset()
    since = ""
    previous = None
    for number, envelope in enumerate(statements, 1):
        with ErrorsAbout(f"has a statement {number} that"):
            statement = unverified_statement(envelope)
            change = predicate_of(statement, KEYS_TYPE, KeysPredicate, "a statement about keys")
            # Each added key must sign, so `verify` also compares it with its keyid.
            added = change.added
            signers = verify(envelope, {**trusted, **added}).keyids
        if change.previous != previous:
            raise ProofError(f"has a statement {number} that does not follow the one before")
        ends_here = previous is not None and not present  # then no key can sign for the keys before
        if ends_here or not {*present, *added} <= set(signers) or revoked & set(signers):
            raise ProofError(f"has a statement {number} that the keys before and the new keys have not all signed")
        revoked |= set(change.revoked)
        since = since or change.at
        known |= added
        trusted = {keyid: der for keyid, der in known.items() if keyid not in revoked}
        present = tuple(keyid for keyid in (*present, *added) if keyid in trusted and keyid not in change.retired)
        previous = hashlib.sha256(envelope).hexdigest()
    if not present:
        raise ProofError("has no key that signs")
    if pinned and not trusted.keys() & set(pinned):
        if stolen := ", ".join(revoked & set(pinned)):
            raise ProofError(
                f"has revoked {stolen}, and signs with {', '.join(present)}: if its admin confirms this key, save "
                f"{KEYS_ADDRESS} as keys.json, and repeat the command with --keys keys.json"
            )
        raise ProofError(
            f"signs with {', '.join(present)}, and has never signed with {', '.join(pinned)}: its signer has changed"
        )
    return Keychain(trusted, present, revoked, known, since)
