"""Locks of version 2: exact versions of skills, the keys of their registry, and a signed statement about each version.

A lock is a JSON text. Its proofs are in a second text with one envelope a line, so that git merges both by line.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import msgspec

from skillery.proof.dsse import ErrorsAbout, ProofError, keyid_of, unverified, verify
from skillery.proof.seals import check_seal
from skillery.proof.statements import check_subject, unverified_statement, verified_statement

LOCK_VERSION = 2


class LockedSkill(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """An exact version in a lock. `proof` is the SHA-256 of an envelope, and `signer` the signer that it names. A
    version that was never signed has neither.
    """

    name: str
    version: str
    digest: str
    signer: str = ""
    proof: str = ""
    requires: tuple[str, ...] = ()


class LockedSeal(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The last seal of the registry when the lock was made. Its envelope is one of the proofs."""

    seq: int
    sha256: str
    at: str


class Lock(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A lock of skills. `keys` are the public keys in DER that prove its versions, by keyid."""

    lock_version: int
    keys: dict[str, bytes]
    seal: LockedSeal | None = None
    skills: tuple[LockedSkill, ...]

    @property
    def unsigned(self) -> list[str]:
        """The names of the skills without a proof."""
        return [skill.name for skill in self.skills if not skill.proof]


class Proof(NamedTuple):
    """The envelope of a `passed`, which proves a version, and the signer that it names."""

    envelope: bytes
    signer: str


def encode_lock(lock: Lock) -> bytes:
    """Return the text of a lock. Equal locks have equal texts."""
    return msgspec.json.format(msgspec.json.encode(lock), indent=2) + b"\n"


def encode_proofs(envelopes: Iterable[bytes]) -> bytes:
    """Return the text of the proofs of a lock: one envelope a line, sorted by hash."""
    return b"".join(b"%s\n" % envelope for envelope in sorted(envelopes, key=digest_of_envelope))


def digest_of_envelope(envelope: bytes) -> str:
    return f"sha256:{hashlib.sha256(envelope).hexdigest()}"


def read_lock(text: bytes) -> Lock:
    """Return the lock of a text. Raise ProofError unless the text is exactly as `encode_lock` writes it."""
    try:
        lock = msgspec.json.decode(text, type=Lock)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise ProofError(f"is not a Skillery lock file: {error}") from None
    if lock.lock_version != LOCK_VERSION:
        raise ProofError(f"has lock_version {lock.lock_version}; this release reads 1 and {LOCK_VERSION}")
    if encode_lock(lock) != text:
        raise ProofError("is not as skillery lock has written it: write it again")
    for keyid, public_der in lock.keys.items():
        if keyid_of(public_der) != keyid:
            raise ProofError(f"names the key {keyid}, which is another key")
    return lock


def choose_proof(
    envelopes: Sequence[bytes], keys: Mapping[str, bytes], name: str, version: str, digest: str
) -> Proof | None:
    """Return the newest proof of a version, or None if there is none. `envelopes` are all statements about the version,
    oldest first. Raise ProofError if the newest proof is not valid, or if there is none and a statement of the registry
    is not valid: a version with a changed proof is not unsigned.
    """
    for envelope in reversed(envelopes):
        statement = unverified_statement(envelope)
        if says_passed(statement.word, statement.predicate):
            return Proof(envelope, _check_proof(envelope, keys, name, version, digest))
    for envelope in envelopes:
        if unverified_statement(envelope).word == "passed" or keys.keys() & set(unverified(envelope).keyids):
            verify(envelope, keys)
    return None


def check_lock(lock: Lock, proofs: bytes, keys: Mapping[str, bytes] | None = None) -> None:
    """Check the proofs of a lock, without a server. Raise ProofError for the first problem.

    Each proof is signed with one of the `keys`, by default those of the lock, is about the locked digest, and names the
    locked signer. No proof is missing, and none is left over.
    """
    keys = lock.keys if keys is None else keys
    envelopes = {digest_of_envelope(line): line for line in proofs.split(b"\n") if line}
    if proofs and not proofs.endswith(b"\n"):
        raise ProofError("is not valid: the file of its proofs is cut off")
    for skill in lock.skills:
        envelope = envelopes.pop(skill.proof, None)
        if envelope is not None:
            with ErrorsAbout(f"is not valid: the proof of {skill.name}@{skill.version}"):
                signer = _check_proof(envelope, keys, skill.name, skill.version, skill.digest)
            if signer != skill.signer:
                raise ProofError(f"is not valid: {skill.name} is signed by '{signer}', the lock says '{skill.signer}'")
        elif skill.proof or skill.signer:
            raise ProofError(
                f"is not valid: the proof of {skill.name}@{skill.version} is not in the file of its proofs"
            )
    if lock.seal is not None:
        _check_seal(lock.seal, envelopes.pop(lock.seal.sha256, b""), keys)
    if envelopes:
        raise ProofError("is not valid: the file of its proofs has an envelope that no locked skill names")


def says_passed(word: str | None, predicate: Mapping[str, Any]) -> bool:
    """Return whether a statement says that a version has passed its policy."""
    return word == "passed" and predicate.get("verificationResult") == "PASSED"


def check_age(lock: Lock, most: timedelta) -> None:
    """Raise ProofError if the seal of the lock is older than `most`, or if the lock has no seal. Call `check_lock`
    before.
    """
    if lock.seal is None:
        raise ProofError("has no seal, so its age is unknown")
    if age_of(lock.seal) > most:
        raise ProofError(f"has a seal of {lock.seal.at}, which is too old: lock the skills again")


def age_of(seal: LockedSeal) -> timedelta:
    """Return the time since a seal. Raise ProofError if it has no time."""
    try:
        return datetime.now(UTC) - datetime.fromisoformat(seal.at)
    except (ValueError, TypeError):
        raise ProofError("has a seal without a time") from None


def _check_proof(envelope: bytes, keys: Mapping[str, bytes], name: str, version: str, digest: str) -> str:
    """Return the signer that a statement names. Raise ProofError if it does not prove the version."""
    statement = verified_statement(envelope, keys)
    if not says_passed(statement.word, statement.predicate):
        raise ProofError("does not say that the version has passed its policy: lock the skills again")
    stated = [subject.digest.get("sha256", "")[:80] for subject in statement.subject]
    if len(stated) == 1 and f"sha256:{stated[0]}" != digest:
        raise ProofError(f"is about the digest sha256:{stated[0]}, the lock says {digest}")
    check_subject(statement, name, version, digest)
    return str(statement.predicate.get("signer") or "")


def _check_seal(seal: LockedSeal, envelope: bytes, keys: Mapping[str, bytes]) -> None:
    if not envelope:
        raise ProofError("is not valid: its seal is not in the file of its proofs")
    with ErrorsAbout("is not valid: its seal"):
        sealed = check_seal(envelope, keys).seal
    if (sealed.seq, sealed.at) != (seal.seq, seal.at):
        raise ProofError("is not valid: its seal has another number or time")
