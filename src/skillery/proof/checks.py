"""The check of a version: its digest, and a signed statement about it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import msgspec

from skillery.proof.dsse import ProofError, unverified, verify
from skillery.proof.statements import check_subject, read_statement


class CheckedStatement(msgspec.Struct, frozen=True):
    """A signed statement about a version, and the problem with it, or None."""

    predicate: str
    """The word of the predicate, or its type if Skillery does not know it."""
    keyids: tuple[str, ...]
    stated: dict[str, Any]
    """The predicate. Do not trust it if there is a problem."""
    problem: str | None


def check_files(text: bytes, digest: str) -> None:
    """Raise ProofError if the text of the files of a version does not have its digest."""
    actual = f"sha256:{hashlib.sha256(text).hexdigest()}"
    if actual != digest:
        raise ProofError(f"has the digest {actual}, not {digest}")


def check_statement(
    envelope: bytes, keys: Mapping[str, bytes], name: str, version: str, digest: str
) -> CheckedStatement:
    """Check the signatures of an envelope, and that it is about exactly this version. `keys` are public keys in DER by
    keyid.
    """
    word, keyids, predicate = "?", tuple[str, ...](), dict[str, Any]()
    try:
        stated = unverified(envelope)
        keyids, statement = stated.keyids, read_statement(stated.payload)
        word, predicate = statement.word or statement.predicate_type, statement.predicate
        verify(envelope, keys)
        check_subject(statement, name, version, digest)
    except ProofError as error:
        return CheckedStatement(word, keyids, predicate, str(error))
    return CheckedStatement(word, keyids, predicate, None)
