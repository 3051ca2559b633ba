"""The evidence about a version: its valid attestations."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence, Set
from datetime import UTC, datetime, timedelta
from functools import lru_cache, partial
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Connection, Row, delete, exists, func, insert, select

from skillery import audit
from skillery.attestations.predicates import Predicate, is_built_by, summary_of, vulnerabilities_of
from skillery.attestations.signing import SignedStatement, read_chain, sha256_of
from skillery.audit import Actor
from skillery.database import in_utc, take_turns
from skillery.database.tables import (
    RESOLVABLE,
    attestations,
    recertifications,
    signing_keys,
    skill_versions,
    skills,
    use_days,
    version_steps,
)
from skillery.errors import Unavailable
from skillery.formats.tokens import CI_PREFIX
from skillery.proof import STATED_BY
from skillery.proof.dsse import ErrorsAbout, ProofError
from skillery.proof.keychains import Keychain, follow
from skillery.proof.statements import Statement, check_subject, verified_statement
from skillery.registry.visibility import WAS_PUBLISHED

log = logging.getLogger(__name__)
SIGSTORE_PREFIX = "sigstore:"
"""The start of the names of authors whose Sigstore bundle the registry has verified."""
IN_USE = timedelta(days=30)
MOST_AT_ONCE = 100
WITH_VERSIONS = (
    attestations.join(signing_keys)
    .join(skill_versions, skill_versions.c.id == attestations.c.version_id)
    .join(skills, skills.c.id == skill_versions.c.skill_id)
)
"""Attestations with their keys, versions and skills."""
_KEYS = signing_keys.alias()


class Evidence(NamedTuple):
    """A valid attestation of a version: neither withdrawn, nor signed by a person with a key that is revoked."""

    word: str
    by: str
    kind: str
    predicate: Mapping[str, Any]
    sha256: str = ""
    """The SHA-256 of the envelope, or "" before the registry signs it."""
    id: str = ""
    at: datetime | None = None
    """The time when it was stored."""
    is_personal: bool = False
    """Whether the identity has signed the attestation with its own key. If not, the registry has signed it."""

    @property
    def is_author(self) -> bool:
        """Whether the identity has signed the version itself: with its own key, or with Sigstore."""
        return self.word == "author" and self.is_personal != self.by.startswith(SIGSTORE_PREFIX)

    def is_by(self, author: str) -> bool:
        """Return whether it is of an author in a policy. `sigstore:…*` means each identity that begins like this."""
        if author.startswith(SIGSTORE_PREFIX) and author.endswith("*"):
            return self.by.startswith(author[:-1])
        return self.by == author

    @property
    def summary(self) -> str:
        return summary_of(self.word, self.predicate)

    @property
    def vulnerabilities(self) -> str:
        return vulnerabilities_of(self.predicate) if self.word == "scan" else ""


_KEY = signing_keys.c.keyid, signing_keys.c.public_der, signing_keys.c.holder, signing_keys.c.added_by
_VERSION = skills.c.name, skill_versions.c.version, skill_versions.c.status, skill_versions.c.digest.label("of_files")
SIGNED = select(attestations, *_KEY, *_VERSION).select_from(WITH_VERSIONS)
"""Attestations with their keys and versions."""


def read_evidence(connection: Connection, version_id: int, keyid: str = "") -> list[Evidence]:
    """Return the evidence about a version, oldest first. `keyid` is the key of this server, which the chain of the
    registry's keys must have: a program that writes to the database could write another chain.

    Each envelope is verified, and what it says must be in its row: only a signature makes a row evidence. Other rows
    are left out, with a warning in the log. Raise Unavailable if the chain is not valid.
    """
    rows = connection.execute(SIGNED.where(*_is_in_force(version_id)).order_by(attestations.c.id)).all()
    keys = _registry_keys(tuple(read_chain(connection)), keyid).trusted if rows else {}
    valid = []
    for row in rows:
        try:
            valid.append(check_row(row, keys))
        except ProofError as error:
            log.warning("the attestation %s of %s@%s %s", row.attestation, row.name, row.version, error)
    return valid


def read_revoked(connection: Connection, version_id: int, keyid: str) -> list[Evidence]:
    """Return the statements of the registry about a version that no key proves now, because theirs was revoked, oldest
    first. `keyid` is that of `read_evidence`.

    Only the signed chain of keys says which keys are revoked: a program that writes to the database could revoke a
    key, and let the registry sign changed facts. Withdrawn statements are left out, and those that a later statement
    replaces: of each word, or of each reviewer or author, only the last one counts. Raise ProofError if a statement
    does not have the signature of its key, or says something else than its row.
    """
    revoked = _registry_keys(tuple(read_chain(connection)), keyid).revoked
    of_registry = (
        attestations.c.version_id == version_id,
        attestations.c.envelope != "",
        signing_keys.c.holder == "server",
    )
    last: dict[tuple[str, ...], Row[Any]] = {}
    for row in connection.execute(SIGNED.where(*of_registry).order_by(attestations.c.id)) if revoked else ():
        subject = (row.predicate, row.made_by) if row.predicate in ("review", "author") else (row.predicate,)
        last.pop(subject, None)
        if row.keyid in revoked and row.ended_at is None:
            last[subject] = row
    evidence = []
    for row in last.values():
        with ErrorsAbout(f"has a statement '{row.predicate}' that", ProofError):
            evidence.append(check_row(row, {row.keyid: row.public_der}))
    return evidence


def _is_in_force(version_id: int) -> list[ColumnElement[bool]]:
    """Return the conditions that an attestation of a version is neither withdrawn, nor of a revoked personal key, nor
    of a revoked key of the registry and signed again.
    """
    later = attestations.alias()
    again = exists().where(
        later.c.version_id == version_id,
        later.c.predicate == attestations.c.predicate,
        later.c.id > attestations.c.id,
        later.c.key_id.in_(
            select(_KEYS.c.id).where(_KEYS.c.holder == "server", _KEYS.c.revoked_at.is_(None)).scalar_subquery()
        ),
    )
    return [
        attestations.c.version_id == version_id,
        attestations.c.ended_at.is_(None),
        attestations.c.envelope != "",
        signing_keys.c.revoked_at.is_(None) | ((signing_keys.c.holder == "server") & ~again),
    ]


def count_attestations(connection: Connection, version_id: int) -> int:
    """Return the number of attestations of a version in force, also of those that `read_evidence` leaves out because
    they do not verify.
    """
    joined = attestations.join(signing_keys, signing_keys.c.id == attestations.c.key_id)
    return connection.scalar(select(func.count()).select_from(joined).where(*_is_in_force(version_id))) or 0


@lru_cache(16)
def _registry_keys(chain: tuple[str, ...], keyid: str) -> Keychain:
    with ErrorsAbout("the chain of the registry's keys", partial(Unavailable, hint="An admin restores the database.")):
        return follow([envelope.encode() for envelope in chain], [keyid] if keyid else ())


def check_row(row: Row[Any], keys: Mapping[str, bytes]) -> Evidence:
    """Return a row of `SIGNED` as evidence. `keys` are those of the registry. Raise ProofError if the signature is not
    valid, or does not cover the row.
    """
    is_personal = row.holder == "identity"
    public_der = row.public_der if is_personal else keys.get(row.keyid)
    if public_der is None:
        raise ProofError("is signed with a key that the registry does not have, or has revoked")
    statement = _verified(row.envelope, row.keyid, public_der)
    check_subject(statement, row.name, row.version, row.of_files)
    predicate, word = statement.predicate, statement.word
    by = predicate.get(STATED_BY.get(word or "", ""), row.made_by)
    kind = row.made_by_kind if is_personal else predicate.get("kind", row.made_by_kind)
    if word == "provenance" and row.made_by.startswith(CI_PREFIX) and not is_built_by(predicate, row.made_by):
        raise ProofError("names a CI job that has not built the version")
    if (word, by, kind) != (row.predicate, row.made_by, row.made_by_kind) or (is_personal and by != row.added_by):
        raise ProofError("says something else than its row")
    at = in_utc(row.created_at)
    return Evidence(row.predicate, by, kind, predicate, sha256_of(row.envelope), row.attestation, at, is_personal)


@lru_cache(2048)
def _verified(envelope: str, keyid: str, public_der: bytes) -> Statement:
    return verified_statement(envelope.encode(), {keyid: bytes(public_der)})


def stated_evidence(by: Actor, predicates: Mapping[str, Predicate]) -> list[Evidence]:
    """Return predicates that the registry will sign as evidence."""
    return [Evidence(word, by.name, by.kind, predicate) for word, predicate in predicates.items()]


def evidence_of(statements: Sequence[SignedStatement]) -> list[Evidence]:
    """Return statements of the registry as evidence, before they are stored."""
    return [
        Evidence(each.word, each.by.name, each.by.kind, each.predicate, sha256_of(each.envelope)) for each in statements
    ]


def signer_of(evidence: Sequence[Evidence]) -> str:
    """Return the identity that has signed a version as its author, else the CI job that has built it, else "". A
    workflow that signs with Sigstore is named without its ref: each release has another one.
    """
    jobs = [each.by for each in evidence if each.word == "provenance" and each.by.startswith(CI_PREFIX)]
    authors = [each.by if each.is_personal else each.by.partition("@refs/")[0] for each in evidence if each.is_author]
    return (authors or jobs or [""])[-1]


def read_former_signer(connection: Connection, name: str, keyid: str, version_id: int | None = None) -> str:
    """Return the signer of the latest version of a skill that is published or was yanked later. For such a version,
    only older ones count. `keyid` is that of `read_evidence`.
    """
    # Else, a publisher could yank all signed versions, and publish unsigned ones.
    of_skill = skill_versions.c.skill_id == select(skills.c.id).where(skills.c.name == name).scalar_subquery()
    where = [of_skill, skill_versions.c.status.in_(WAS_PUBLISHED)]
    if version_id is not None:
        is_published = exists().where(skill_versions.c.id == version_id, skill_versions.c.status.in_(WAS_PUBLISHED))
        where += [skill_versions.c.id != version_id, ~is_published | (skill_versions.c.id < version_id)]
    order = skill_versions.c.is_release.desc(), skill_versions.c.precedence.desc()
    latest = connection.scalar(select(skill_versions.c.id).where(*where).order_by(*order).limit(1))
    return signer_of(read_evidence(connection, latest, keyid)) if latest is not None else ""


def was_reviewed(connection: Connection, version_id: int) -> bool:
    """Return whether a version has a statement of a review, also a withdrawn one: such a version needs another."""
    of_version = attestations.c.version_id == version_id, attestations.c.predicate == "review"
    return bool(connection.scalar(select(exists().where(*of_version))))


def is_proof_ended(connection: Connection, version_id: int) -> bool:
    """Return whether a version had passed its policy, and has not since evidence was withdrawn."""
    of_version = attestations.c.version_id == version_id, attestations.c.predicate == "passed"
    # An earlier `passed` that a revoked key has signed stays.
    newest = select(attestations.c.ended_at).where(*of_version).order_by(attestations.c.id.desc()).limit(1)
    return any(ended_at is not None for ended_at in connection.scalars(newest))


def is_approval_old(connection: Connection, version_id: int) -> bool:
    """Return whether a version waits for another approval, because the last one is old."""
    return connection.scalar(select(exists().where(recertifications.c.version_id == version_id))) is True


def end_recertification(connection: Connection, version_id: int) -> None:
    """Take a version out of the review queue after an approval."""
    connection.execute(delete(recertifications).where(recertifications.c.version_id == version_id))


def recertify(connection: Connection, days: int) -> int:
    """Put published versions into the review queue whose last approval is older than `days`, and that were run or read
    in the last IN_USE. Return their number.
    """
    take_turns(connection, "recertify", "")  # another server does the same at the same time
    now = datetime.now(UTC)
    approval = version_steps.c.version_id == skill_versions.c.id, version_steps.c.step == "approve"
    approved_at = select(func.max(version_steps.c.created_at)).where(*approval).scalar_subquery()
    of_version = use_days.c.skill_id == skill_versions.c.skill_id, use_days.c.version_id == skill_versions.c.id
    is_used = exists().where(*of_version, use_days.c.day >= (now - IN_USE).date().isoformat())
    is_waiting = exists().where(recertifications.c.version_id == skill_versions.c.id)
    due = select(skill_versions.c.id, skills.c.name, skill_versions.c.version).join(
        skills, skills.c.id == skill_versions.c.skill_id
    )
    due = due.where(skill_versions.c.status.in_(RESOLVABLE), approved_at < now - timedelta(days=days), is_used)
    rows = connection.execute(due.where(~is_waiting).order_by(skill_versions.c.id).limit(MOST_AT_ONCE)).all()
    for row in rows:
        connection.execute(insert(recertifications).values(version_id=row.id, since=now))
        audit.record(connection, audit.SERVER, "recertify", f"{row.name}@{row.version}")
    return len(rows)


def passed_about(connection: Connection, version_id: int, inputs: Set[str]) -> list[str]:
    """Return the ids of the `passed` of a version that are about one of the envelopes with the SHA-256 `inputs`."""
    return [
        each.id
        for each in read_evidence(connection, version_id)
        if each.word == "passed"
        and any(read["digest"]["sha256"] in inputs for read in each.predicate.get("inputAttestations", ()))
    ]
