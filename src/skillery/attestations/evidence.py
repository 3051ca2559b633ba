"""The evidence about a version: its valid attestations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import NamedTuple

from sqlalchemy import Connection, exists, select

from skillery.attestations.predicates import Predicate, summary_of
from skillery.attestations.signing import SignedStatement, sha256_of
from skillery.audit import Actor
from skillery.database import in_utc
from skillery.database.tables import RESOLVABLE, attestations, signing_keys, skill_versions, skills
from skillery.formats.tokens import CI_PREFIX
from skillery.proof.dsse import unverified
from skillery.proof.statements import read_statement


class Evidence(NamedTuple):
    """A valid attestation of a version: neither withdrawn, nor signed by a person with a key that is revoked."""

    id: str
    word: str
    by: str
    kind: str
    at: datetime | None
    sha256: str
    """The SHA-256 of the envelope."""
    predicate: Predicate
    is_personal: bool
    """Whether the identity has signed it, with its own key. Else, the registry has."""

    @property
    def summary(self) -> str:
        return summary_of(self.word, self.predicate)


def read_evidence(connection: Connection, version_id: int) -> list[Evidence]:
    """Return the evidence about a version, oldest first."""
    rows = connection.execute(
        select(attestations, signing_keys.c.holder)
        .join(signing_keys, signing_keys.c.id == attestations.c.key_id)
        .where(
            attestations.c.version_id == version_id,
            attestations.c.ended_at.is_(None),
            attestations.c.envelope != "",
            (signing_keys.c.holder == "server") | signing_keys.c.revoked_at.is_(None),
        )
        .order_by(attestations.c.id)
    )
    return [
        Evidence(
            row.attestation,
            row.predicate,
            row.made_by,
            row.made_by_kind,
            in_utc(row.created_at),
            row.sha256,
            _predicate(row.envelope),
            row.holder == "identity",
        )
        for row in rows
    ]


def stated_evidence(by: Actor, predicates: Mapping[str, Predicate]) -> list[Evidence]:
    """Return predicates that the registry will sign as evidence."""
    return [
        Evidence("", word, by.name, by.kind, None, "", predicate, is_personal=False)
        for word, predicate in predicates.items()
    ]


def evidence_of(statements: Sequence[SignedStatement]) -> list[Evidence]:
    """Return statements of the registry as evidence, before they are stored."""
    return [
        Evidence("", each.word, each.by.name, each.by.kind, None, sha256_of(each.envelope), _predicate(each.envelope),
                 is_personal=False)
        for each in statements
    ]  # fmt: skip


def _predicate(envelope: str) -> Predicate:
    return read_statement(unverified(envelope.encode()).payload).predicate


def signer_of(evidence: Sequence[Evidence]) -> str:
    """Return the identity that has signed a version as its author, else the CI job that has built it, else ""."""
    for word in ("author", "provenance"):
        for each in reversed(evidence):
            if each.word == word and (word == "author" or each.by.startswith(CI_PREFIX)):
                return each.by
    return ""


def read_former_signer(connection: Connection, name: str, version_id: int | None = None) -> str:
    """Return the signer of the latest published version of a skill. For a published version, only older ones count."""
    of_skill = skill_versions.c.skill_id == select(skills.c.id).where(skills.c.name == name).scalar_subquery()
    where = [of_skill, skill_versions.c.status.in_(RESOLVABLE)]
    if version_id is not None:
        is_published = exists().where(skill_versions.c.id == version_id, skill_versions.c.status.in_(RESOLVABLE))
        where += [skill_versions.c.id != version_id, ~is_published | (skill_versions.c.id < version_id)]
    order = skill_versions.c.is_release.desc(), skill_versions.c.precedence.desc()
    latest = connection.scalar(select(skill_versions.c.id).where(*where).order_by(*order).limit(1))
    return signer_of(read_evidence(connection, latest)) if latest is not None else ""


def is_proof_ended(connection: Connection, version_id: int) -> bool:
    """Return whether a version had passed its policy, and has not since evidence was withdrawn."""
    of_version = attestations.c.version_id == version_id, attestations.c.predicate == "passed"
    ended = list(connection.scalars(select(attestations.c.ended_at).where(*of_version)))
    return bool(ended) and None not in ended


def inputs_of(passed: Predicate) -> frozenset[str]:
    """Return the SHA-256 of the envelopes that a `passed` is about."""
    return frozenset(each["digest"]["sha256"] for each in passed.get("inputAttestations", ()))
