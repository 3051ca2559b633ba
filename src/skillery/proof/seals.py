"""Seals: signed statements that cover all finished runs, attestations and audit entries up to a time, in one chain.

A run statement has the record of a run, its place in the tree of a seal, and the seal. So the key of the registry is
enough to verify it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence, Set
from typing import Any, NamedTuple

import msgspec

from skillery.proof.dsse import ErrorsAbout, ProofError, unverified, verify
from skillery.proof.merkle import check_leaf, leaf_hash
from skillery.proof.statements import (
    URN,
    Subject,
    encode_statement,
    predicate_of,
    read_statement,
    subject_of,
    unverified_statement,
)

SEAL_TYPE, RUN_TYPE = f"{URN}seal:v1", f"{URN}run:v1"
RUN_LEAF_1 = (
    "run_id",
    "parent_run_id",
    "method",
    "tool",
    "status",
    "error_type",
    "identity",
    "identity_kind",
    "started_at",
    "begun_at",
    "finished_at",
    "duration_ms",
    "mounts",
    "code",
    "secrets",
    "allowed",
    "network",
    "sandbox",
    "release",
    "limits",
    "used",
    "degraded",
    "environment",
    "workspace",
    "args",
    "inputs",
    "output",
    "files",
    "log",
    "rest",
)
"""The members of a record, in their order. `rest` is a salted digest of the columns that a statement does not show."""


class Position(msgspec.Struct, frozen=True):
    """The last entry of a chain."""

    seq: int
    hash: str


class Covered(msgspec.Struct, frozen=True):
    """The number of leaves of a tree, and its root in hex."""

    count: int
    root: str


class Seal(msgspec.Struct, frozen=True, omit_defaults=True):
    """The predicate of a seal."""

    seq: int
    previous: str | None
    """The SHA-256 of the envelope before, or None for the first seal."""
    at: str
    audit: Position
    """The last entry of the audit trail."""
    attestations: Covered
    """The new attestations. A leaf is the SHA-256 of an envelope."""
    runs: Covered
    keys: str
    """The SHA-256 of the last statement about the keys of the registry."""
    advisories: Position | None = None


class Link(NamedTuple):
    """A seal of a chain, and the SHA-256 of its envelope."""

    seal: Seal
    sha256: str


def make_seal(seal: Seal) -> bytes:
    """Return the payload of a seal."""
    subject = Subject(f"skillery:seal:{seal.seq}", {"sha256": seal.runs.root})
    return encode_statement(SEAL_TYPE, (subject,), msgspec.to_builtins(seal))


def read_seal(envelope: bytes) -> Seal:
    """Return the predicate of a seal, without a check of its signature. Raise ProofError for other envelopes."""
    return predicate_of(unverified_statement(envelope), SEAL_TYPE, Seal, "a seal")


def check_seal(envelope: bytes, keys: Mapping[str, bytes]) -> Link:
    """Return a seal whose signatures are valid. `keys` are public keys in DER by keyid. Raise ProofError otherwise."""
    verify(envelope, keys)
    return _link(envelope)


def _link(envelope: bytes) -> Link:
    return Link(read_seal(envelope), hashlib.sha256(envelope).hexdigest())


def follow_seals(
    envelopes: Sequence[bytes], keys: Mapping[str, bytes], last: Link | None = None, revoked: Set[str] = frozenset()
) -> list[Link]:
    """Return the verified seals of a chain, which begins with the first seal or continues behind `last`.

    Seals that `revoked` keys have signed prove nothing alone: the caller checks that a later seal, which has their
    hash, is valid. Raise ProofError if another seal is not valid, or if a seal does not follow the one before.
    """
    links: list[Link] = []
    for envelope in envelopes:
        number = last.seal.seq + 1 if last else 1
        with ErrorsAbout(f"has a seal {number} that"):
            is_later_proved = not revoked.isdisjoint(unverified(envelope).keyids)
            link = _link(envelope) if is_later_proved else check_seal(envelope, keys)
        seal, before = link.seal, last.seal if last else None
        if seal.seq != number or seal.previous != (last.sha256 if last else None):
            raise ProofError(f"has a seal {seal.seq} that does not follow seal {number - 1}: history was rewritten")
        if before is not None and (
            seal.at < before.at
            or not continues(before.audit, seal.audit)
            or not continues(before.advisories, seal.advisories)
        ):
            raise ProofError(f"has a seal {seal.seq} that does not continue seal {before.seq}: history was rewritten")
        links.append(link)
        last = link
    return links


def continues(before: Position | None, position: Position | None) -> bool:
    """Return whether a position is after the one before, or the same."""
    return before is None or (position is not None and (position.seq > before.seq or position == before))


def check_heads(seals: Sequence[Seal], chain: Sequence[bytes]) -> None:
    """Raise ProofError unless each seal, oldest first, names a statement of the chain about the keys of the registry,
    which is not before that of the last seal. Otherwise, a revoked key would be valid again without its revocation.
    """
    numbers = {hashlib.sha256(statement).hexdigest(): number for number, statement in enumerate(chain, 1)}
    last = 1
    for seal in seals:
        number = numbers.get(seal.keys, 0)
        if number < last:
            raise ProofError(f"does not have the statement about keys of seal {seal.seq}: a change of keys was removed")
        last = number


# -- statements about runs ---------------------------------------------------------------------------------------------


class Place(msgspec.Struct, frozen=True):
    """The place of a run in the tree of a seal: the leaf `index` of `size`, and the hashes up to the root in hex."""

    index: int
    size: int
    hashes: tuple[str, ...]


class DisclosedArgs(msgspec.Struct, frozen=True):
    """The args of a run as JSON text, and the salt of their digest."""

    salt: str
    value: str


class RunPredicate(msgspec.Struct, frozen=True, omit_defaults=True):
    """The predicate of a run statement."""

    record: str
    """JSON text with the members RUN_LEAF_1. It is hashed as it stands, and never encoded again."""
    leaf: str
    """The SHA-256 of a zero byte and the record."""
    proof: Place
    seal: str
    """The envelope of the seal as text."""
    args: DisclosedArgs | None = None
    """Absent unless the caller discloses the args."""


class CheckedRun(NamedTuple):
    """A verified run statement."""

    record: dict[str, Any]
    seal: Seal
    keyids: tuple[str, ...]
    args: str | None
    """The disclosed args as JSON text."""


def subjects_of(record: Mapping[str, Any], leaf: str) -> tuple[Subject, ...]:
    """Return the subjects of a run statement: all mounted versions and the code. If there are none, the run itself."""
    mounts = [subject_of(*mount) for mount in record["mounts"] or ()]
    code = [Subject("skillery:code", {"sha256": record["code"]})] if record["code"] else []
    return (*mounts, *code) or (Subject(f"skillery:run:{record['run_id']}", {"sha256": leaf}),)


def args_digest(salt: str, args: bytes) -> str:
    """Return the digest of the args of a run. Without the salt, short args could be guessed."""
    return hashlib.sha256(salt.encode() + args).hexdigest()


def make_run_statement(predicate: RunPredicate) -> bytes:
    """Return the payload of a run statement."""
    record = msgspec.json.decode(predicate.record)
    return encode_statement(RUN_TYPE, subjects_of(record, predicate.leaf), msgspec.to_builtins(predicate))


def check_run(envelope: bytes, keys: Mapping[str, bytes]) -> CheckedRun:
    """Check that a seal covers the record of a run, and that the registry has signed both. `keys` are public keys in
    DER by keyid. Raise ProofError otherwise.
    """
    opened = verify(envelope, keys)
    statement = read_statement(opened.payload)
    predicate = predicate_of(statement, RUN_TYPE, RunPredicate, "a statement about a run")
    try:
        record = msgspec.json.decode(predicate.record, type=dict[str, Any])
        hashes = [bytes.fromhex(text) for text in predicate.proof.hashes]
        is_complete = tuple(record) == RUN_LEAF_1
        subjects = subjects_of(record, predicate.leaf) if is_complete else ()
    except (msgspec.MsgspecError, ValueError, TypeError, AttributeError, RecursionError):
        raise ProofError("has a record that is not one of a run") from None
    if not is_complete:
        raise ProofError("has a record with other members than RUN_LEAF_1")
    leaf = leaf_hash(predicate.record.encode())
    if leaf.hex() != predicate.leaf:
        raise ProofError("has a record that is not the one of its leaf")
    with ErrorsAbout("has a seal that"):
        seal = check_seal(predicate.seal.encode(), keys).seal
    if predicate.proof.size != seal.runs.count:
        raise ProofError("is not a leaf of the sealed tree")
    try:
        root = bytes.fromhex(seal.runs.root)
    except ValueError:
        raise ProofError("has a seal with a root that is not a hash") from None
    check_leaf(leaf, predicate.proof.index, predicate.proof.size, hashes, root)
    if statement.subject != subjects:
        raise ProofError("has other subjects than its record")
    if predicate.args is not None and args_digest(predicate.args.salt, predicate.args.value.encode()) != record["args"]:
        raise ProofError("discloses args that are not those of the run")
    return CheckedRun(record, seal, opened.keyids, predicate.args.value if predicate.args else None)
