"""Checks of signed rows, for `skillery check --deep`: keys, attestations, seals, and the runs that seals cover."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from sqlalchemy import Connection, Row, exists, select

from skillery import audit
from skillery.attestations.evidence import SIGNED, check_row
from skillery.attestations.run_leaves import SPAN, head_of_advisories, read_leaves, split_leaves
from skillery.attestations.signing import sha256_of
from skillery.database import in_utc
from skillery.database.tables import attestations, key_statements, runs, seal_spans, seals, signing_keys
from skillery.database.tables import audit as entries
from skillery.formats.timestamps import instant_text
from skillery.proof.dsse import ProofError, algorithm_of, keyid_of
from skillery.proof.keychains import Keychain, follow
from skillery.proof.merkle import leaf_hash, root_of
from skillery.proof.seals import Covered, Link, Position, check_seal, continues, follow_seals
from skillery.proof.statements import TYPES

AT_ONCE = 100
RESTORE = "restore the row from a backup"
Fault = tuple[str, str, str]
"""The kind of a fault, its subject, and a sentence."""


def check_proofs(connection: Connection) -> Iterator[Fault]:
    """Yield a fault for each row that a signature, a seal or the audit trail contradicts."""
    chains, faults = _follow_chains(connection)
    yield from faults
    known = {keyid: public_der for chain in chains for keyid, public_der in chain.known.items()}
    yield from _keys(connection, chains, known)
    yield from _attestations(connection, known)
    yield from _seals(connection, known)
    yield from _unsealed_runs(connection)


def _fault(kind: str, subject: str, problem: object) -> Fault:
    return kind, subject, f"{subject} {problem}: {RESTORE}"


# -- keys --------------------------------------------------------------------------------------------------------------


def _follow_chains(connection: Connection) -> tuple[list[Keychain], list[Fault]]:
    """Return the keys of all chains of statements, oldest first. The loss of a key begins another chain."""
    parts: list[list[Row[Any]]] = []
    faults, last = [], 0
    for row in connection.execute(select(key_statements).order_by(key_statements.c.seq)):
        if row.previous is None or not parts:
            parts.append([])
        parts[-1].append(row)
        before = parts[-1][-2].sha256 if len(parts[-1]) > 1 else None
        if (row.seq, row.sha256, row.previous) != (last + 1, sha256_of(row.envelope), before):
            faults.append(
                _fault("key_statement_damaged", f"the statement {row.seq} about keys", "differs from its row")
            )
        last = row.seq
    chains = []
    for rows in parts:
        try:
            chains.append(follow([row.envelope.encode() for row in rows]))
        except ProofError as error:
            subject = f"the chain of keys from statement {rows[0].seq}"
            faults.append(_fault("key_statement_damaged", subject, error))
    return chains, faults


def _keys(connection: Connection, chains: Sequence[Keychain], known: Mapping[str, bytes]) -> Iterator[Fault]:
    present, revoked = set(chains[-1].present if chains else ()), {keyid for chain in chains for keyid in chain.revoked}
    done = select(entries.c.subject, entries.c.identity, entries.c.action).where(entries.c.outcome == "done")
    changes = connection.execute(done.where(entries.c.action.in_(("add_key", "revoke_key")))).all()
    added = {row.subject: row.identity for row in changes if row.action == "add_key"}
    revoked |= {row.subject for row in changes if row.action == "revoke_key"}
    rows = connection.execute(select(signing_keys).order_by(signing_keys.c.id)).all()
    for row in rows:
        try:
            facts = keyid_of(row.public_der), algorithm_of(row.public_der)
        except ProofError as error:
            yield _fault("key_damaged", f"the key {row.keyid}", error)
            continue
        is_server = row.holder == "server"
        is_present = is_server and row.retired_at is None and row.revoked_at is None
        is_stated = is_server == (row.keyid in known) and is_present == (row.keyid in present)
        is_of_signer = added.get(row.keyid, row.added_by) == row.added_by
        is_revoked = (row.revoked_at is not None) == (row.keyid in revoked)
        if facts != (row.keyid, row.algorithm) or not (is_stated and is_of_signer and is_revoked):
            yield _fault("key_damaged", f"the key {row.keyid}", "differs from the statements about keys or the audit")
    for keyid in known.keys() - {row.keyid for row in rows}:
        yield _fault("key_damaged", f"the key {keyid}", "is in the chain of keys, and has no row")


# -- attestations ------------------------------------------------------------------------------------------------------


def _attestations(connection: Connection, known: Mapping[str, bytes]) -> Iterator[Fault]:
    for row in connection.execute(SIGNED.order_by(attestations.c.id).execution_options(yield_per=AT_ONCE)):
        try:
            _check_attestation(row, known)
        except ProofError as error:
            subject = f"the statement {row.attestation} ('{row.predicate}' of {row.name}@{row.version})"
            yield _fault("attestation_damaged", subject, error)
    lost = select(attestations.c.attestation).where(
        attestations.c.id.not_in(SIGNED.with_only_columns(attestations.c.id))
    )
    for attestation in connection.scalars(lost):
        yield _fault("attestation_damaged", f"the statement {attestation}", "has no key or no version")
    withdrawn = select(entries.c.subject).where(entries.c.action == "end_attestation", entries.c.outcome == "done")
    returned = attestations.c.ended_at.is_(None), attestations.c.attestation.in_(withdrawn)
    for attestation in connection.scalars(select(attestations.c.attestation).where(*returned)):
        yield _fault("attestation_damaged", f"the statement {attestation}", "was withdrawn, and counts again")


def _check_attestation(row: Row[Any], known: Mapping[str, bytes]) -> None:
    """Raise ProofError if a row of `SIGNED` differs from its envelope. A purge empties the envelope."""
    if row.digest != row.of_files:
        raise ProofError(f"is about {row.digest}, and the version has {row.of_files}")
    if row.predicate_type != TYPES.get(row.predicate):
        raise ProofError(f"has the type {row.predicate_type}")
    if row.status == "purged" and not row.envelope:
        return
    if sha256_of(row.envelope) != row.sha256:
        raise ProofError("differs from its SHA-256")
    check_row(row, known)


# -- seals, and what they cover ----------------------------------------------------------------------------------------


def _seals(connection: Connection, known: Mapping[str, bytes]) -> Iterator[Fault]:
    last: Link | None = None
    at, is_damaged = -1, False
    while page := connection.execute(select(seals).where(seals.c.seq > at).order_by(seals.c.seq).limit(AT_ONCE)).all():
        covered = _covered(connection, page[0].seq, page[-1].seq)
        for row in page:
            subject, envelope = f"seal {row.seq}", row.envelope.encode()
            try:
                # Behind a damaged seal, the chain begins again.
                last = check_seal(envelope, known) if is_damaged else follow_seals([envelope], known, last)[0]
                _check_seal(row, last, covered.get(row.seq, Covered(0, _root([]))))
                is_damaged = False
            except ProofError as error:
                is_damaged = True
                yield _fault("seal_damaged", subject, error)
            if row.batch is not None and row.run_leaves:
                leaves = {*split_leaves(row.run_leaves)}
                for run_id, leaf in read_leaves(connection, row.batch):
                    if leaf not in leaves:
                        yield _fault("run_damaged", f"the run {run_id}", f"is not the one that {subject} covers")
        at = page[-1].seq
    if last is not None:
        stated, head = last.seal.advisories, head_of_advisories(connection)
        # Each change of an advisory has an entry in the audit trail.
        is_later = last.seal.audit.seq != audit.head(connection).seq
        if head != stated and not (is_later and continues(stated, head)):
            number = (stated or head or Position(0, "")).seq
            yield _fault("advisory_damaged", f"the advisory with the number {number}", "is not the sealed one")


def _covered(connection: Connection, first: int, last: int) -> dict[int, Covered]:
    """Return the attestations of the seals `first` to `last`, as these seals should cover them."""
    of_seals = select(attestations.c.seal_seq, attestations.c.sha256).where(
        attestations.c.seal_seq.between(first, last)
    )
    rows = connection.execute(of_seals.order_by(attestations.c.seal_seq, attestations.c.id)).all()
    groups = {seq: [row.sha256 for row in group] for seq, group in groupby(rows, key=lambda row: row.seal_seq)}
    return {seq: Covered(len(group), _root(group)) for seq, group in groups.items()}


def _root(digests: Sequence[str]) -> str:
    try:
        return root_of([leaf_hash(bytes.fromhex(digest)) for digest in digests]).hex()
    except ValueError:  # a changed row, which has its own fault
        return ""


def _check_seal(row: Row[Any], link: Link, covered: Covered) -> None:
    """Raise ProofError if a seal differs from its row, or from the rows that it covers."""
    seal, at = link.seal, instant_text(in_utc(row.at))
    if (seal.seq, seal.previous, seal.at, link.sha256) != (row.seq, row.previous, at, row.sha256):
        raise ProofError("differs from its row")
    if covered != seal.attestations:
        raise ProofError(f"covers {seal.attestations.count} statements, which are not the {covered.count} of its rows")
    leaves = split_leaves(row.run_leaves)
    # seals.keep_days empties the leaves.
    if leaves and seal.runs != Covered(len(leaves), root_of(leaves).hex()):
        raise ProofError("has other hashes of runs than its row")


def _unsealed_runs(connection: Connection) -> Iterator[Fault]:
    """Yield a fault for each ended run in a batch that has no seal, and that no server will seal."""
    in_span = seal_spans.c.id == runs.c.seal_batch // SPAN
    lost = ~exists().where(seals.c.batch == runs.c.seal_batch), ~exists().where(in_span), runs.c.status != "started"
    for run_id in connection.scalars(select(runs.c.id).where(runs.c.seal_batch.is_not(None), *lost)):
        yield _fault("run_damaged", f"the run {run_id}", "is in no seal")
