"""Statements of in-toto v1: the claims of an attestation about the digest of a bundle, and the check of a version by
its digest and the signed statements about it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, TypeVar

import msgspec

from skillery.proof.dsse import ProofError, unverified, verify

T = TypeVar("T")
STATEMENT = "https://in-toto.io/Statement/v1"
# The project owns no domain, so its own types are URNs.
URN = "urn:skillery:attestation:"
TYPES: Mapping[str, str] = {
    "author": f"{URN}author:v1",
    "publication": f"{URN}publication:v1",
    "provenance": "https://slsa.dev/provenance/v1",
    "tests": "https://in-toto.io/attestation/test-result/v0.1",
    "scan": f"{URN}scan:v1",
    "evaluation": f"{URN}evaluation:v1",
    "review": f"{URN}review:v1",
    "revocation": f"{URN}revocation:v1",
    "passed": "https://slsa.dev/verification_summary/v1",
}
"""The predicate type of each word. The words are the names of attestations in methods, commands and policies."""


class Subject(msgspec.Struct, frozen=True):
    """The bundle or key that a statement is about: a name, and digests in hex by algorithm."""

    name: str
    digest: dict[str, str]


class Statement(msgspec.Struct, frozen=True):
    """A statement: the claims (`predicate`) about bundles (`subject`)."""

    type: str = msgspec.field(name="_type")
    subject: tuple[Subject, ...]
    predicate_type: str = msgspec.field(name="predicateType")
    predicate: dict[str, Any]

    @property
    def word(self) -> str | None:
        """The word for the predicate type, or None for a type that Skillery does not know."""
        return next((word for word, type_ in TYPES.items() if type_ == self.predicate_type), None)


def make_statement(word: str, name: str, version: str, digest: str, predicate: Mapping[str, Any]) -> bytes:
    """Return the payload of an attestation. `digest` is the digest that `describe_skill` shows, `sha256:…`."""
    return encode_statement(TYPES[word], (subject_of(name, version, digest),), predicate)


def encode_statement(predicate_type: str, subjects: tuple[Subject, ...], predicate: Mapping[str, Any]) -> bytes:
    return msgspec.json.encode(Statement(STATEMENT, subjects, predicate_type, dict(predicate)))


def now() -> str:
    """Return the present time for a predicate, in seconds: 2026-11-22T09:30:00Z."""
    return datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def subject_of(name: str, version: str, digest: str) -> Subject:
    algorithm, _, value = digest.partition(":")
    return Subject(f"skillery:{name}@{version}", {algorithm: value})


def read_statement(payload: bytes) -> Statement:
    """Return the statement of a payload. Raise ProofError if it is not a statement of in-toto v1."""
    try:
        statement = msgspec.json.decode(payload, type=Statement)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        raise ProofError("does not contain a statement of in-toto") from None
    if statement.type != STATEMENT:
        raise ProofError(f"contains a statement of the type {statement.type[:80]!r}, not {STATEMENT}")
    return statement


def unverified_statement(envelope: bytes) -> Statement:
    """Return the statement of an envelope, without a check of its signatures. Raise ProofError if there is none."""
    return read_statement(unverified(envelope).payload)


def verified_statement(envelope: bytes, keys: Mapping[str, bytes]) -> Statement:
    """Return the statement of an envelope whose signatures are all valid. Raise the errors of `verify`."""
    return read_statement(verify(envelope, keys).payload)


def predicate_of(statement: Statement, predicate_type: str, kind: type[T], noun: str) -> T:
    """Return the predicate of a statement. Raise ProofError if it is not of this type and kind: "is not <noun>"."""
    if statement.predicate_type == predicate_type:
        try:
            return msgspec.convert(statement.predicate, kind)
        except msgspec.ValidationError:
            pass
    raise ProofError(f"is not {noun}")


def check_subject(statement: Statement, name: str, version: str, digest: str) -> None:
    """Raise ProofError if the statement is not about exactly this version with this digest."""
    expected = subject_of(name, version, digest)
    if statement.subject == (expected,):
        return
    stated = statement.subject[0] if len(statement.subject) == 1 else None
    if stated is not None and stated.digest == expected.digest:
        raise ProofError(f"is about {stated.name[:300]!r}, not {expected.name!r}")
    stated_digest = f"sha256:{stated.digest.get('sha256', '')[:80]}" if stated else f"{len(statement.subject)} subjects"
    raise ProofError(f"is about {stated_digest}, not {digest}")


# -- the check of a version --------------------------------------------------------------------------------------------


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
