"""Attestations of versions: lists, statements that callers have signed, and withdrawals."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
from msgspec import Meta
from sqlalchemy import ColumnElement, Connection, exists, func, select, update

from skillery import audit
from skillery.attestations.evidence import WITH_VERSIONS, passed_about
from skillery.attestations.origins import OriginStatements, read_origin
from skillery.attestations.predicates import OwnAuthor, OwnEvaluation, OwnReview, summary_of_envelope
from skillery.attestations.signing import SignedStatement, insert_attestations, sha256_of
from skillery.audit import Actor
from skillery.backends import Identity, Scope
from skillery.database import in_utc
from skillery.database.registry import Registry, lock_skill_row
from skillery.database.tables import attestations, signing_keys, skill_versions, skills, version_steps
from skillery.errors import AttestationKey, AttestationSubject, Conflict, InvalidParams, NotAllowed, NotFound
from skillery.formats.semver import Version
from skillery.formats.version_spec import Exact, VersionSpec, parse_named
from skillery.identity import access
from skillery.method import Cursor, ExactVersion, Method, PageLimit, Params, Sentence, SkillName, about
from skillery.proof import SIGNERS
from skillery.proof.dsse import ErrorsAbout, compact, unverified, verify
from skillery.proof.statements import check_subject, read_statement
from skillery.registry.cursors import NextCursor, fitting_items, make_cursor, read_cursor
from skillery.registry.resolution import resolve
from skillery.registry.version_rows import VersionRow


def read_envelopes(
    connection: Connection, identity: Identity, *, name: str, spec: VersionSpec, predicate: str
) -> tuple[VersionRow, list[str]]:
    """Return a version, and the envelopes of its attestations that were not withdrawn, oldest first. `predicate` is a
    word of `TYPES`, or "" for all. Raise the errors of `resolve`.
    """
    row = resolve(connection, identity, name, spec, manages=True)
    present = *_of_version(row, predicate), attestations.c.ended_at.is_(None)
    return row, list(connection.scalars(select(attestations.c.envelope).where(*present).order_by(attestations.c.id)))


def _of_version(row: VersionRow, predicate: str) -> Iterator[ColumnElement[bool]]:
    """Yield the conditions for the attestations of a version. `predicate` is the only word, or "" for all words."""
    yield attestations.c.version_id == row.version_id
    if predicate:
        yield attestations.c.predicate == predicate


# -- list_attestations -------------------------------------------------------------------------------------------------


class EndedAttestation(msgspec.Struct, frozen=True):
    """The withdrawal of an attestation."""

    at: datetime
    by: str
    reason: str


class ListedAttestation(msgspec.Struct, frozen=True):
    """A signed statement about a version. `sealed` is the number of its seal. `summary` is "" for a purged version."""

    id: str
    predicate: str
    by: str
    kind: Literal["person", "agent"]
    keyid: str
    at: datetime
    sealed: int | None
    ended: EndedAttestation | None
    summary: str


class AttestationPage(msgspec.Struct, frozen=True):
    """A page of the attestations of a version, oldest first. The first page of a mirrored version has its `origin`."""

    name: str
    version: str
    digest: str
    attestations: Sequence[ListedAttestation]
    next_cursor: NextCursor
    origin: OriginStatements | None


class ListAttestations(Params, frozen=True, kw_only=True):
    """List the signed statements about a version: who published, built, checked and reviewed it."""

    name: SkillName
    version: Annotated[str, about("Version spec (omit for latest)")] = ""
    predicate: Annotated[
        Literal[
            "author", "publication", "provenance", "tests", "scan", "evaluation", "review", "passed", "revocation", ""
        ],
        about("Only statements of this kind"),
    ] = ""
    limit: PageLimit = 50
    cursor: Cursor = ""


async def list_attestations(registry: Registry, identity: Identity, params: ListAttestations) -> AttestationPage:
    work = partial(read_attestations, identity=identity, key=registry.cursor_key, params=params)
    return await registry.read_page(work)


def read_attestations(
    connection: Connection, identity: Identity, key: bytes, params: ListAttestations
) -> AttestationPage:
    """Return a page of the attestations of a version. Raise the errors of `resolve`, and InvalidCursor."""
    row = resolve(connection, identity, *parse_named(params.name, params.version), manages=True)
    bound_to, where = ("list_attestations", row.digest, params.predicate), [*_of_version(row, params.predicate)]
    if params.cursor:
        where.append(attestations.c.id > int(read_cursor(key, bound_to, params.cursor, 1)[0]))
    oldest_first = (
        select(attestations, signing_keys.c.keyid)
        .join(signing_keys, signing_keys.c.id == attestations.c.key_id)
        .where(*where)
        .order_by(attestations.c.id)
        .limit(params.limit + 1)
    )
    rows = connection.execute(oldest_first).all()
    page = fitting_items([_listed(stored) for stored in rows[: params.limit]])
    next_cursor = make_cursor(key, bound_to, (str(rows[len(page) - 1].id),)) if len(rows) > len(page) else None
    origin = None if params.cursor else read_origin(connection, row.version_id, params.predicate)
    return AttestationPage(row.name, row.version, row.digest, page, next_cursor, origin)


def _listed(row: Any) -> ListedAttestation:
    ended = EndedAttestation(in_utc(row.ended_at), row.ended_by, row.ended_reason) if row.ended_at else None
    return ListedAttestation(
        row.attestation,
        row.predicate,
        row.made_by,
        row.made_by_kind,
        row.keyid,
        in_utc(row.created_at),
        row.seal_seq,
        ended,
        summary_of_envelope(row.predicate, row.envelope) if row.envelope else "",
    )


# -- add_attestation ---------------------------------------------------------------------------------------------------


class AddedAttestation(msgspec.Struct, frozen=True):
    """A stored statement. `verified_as` is the identity whose key has signed it."""

    id: str
    predicate: str
    verified_as: str


class AddAttestation(Params, frozen=True, kw_only=True):
    """Store a statement about a version that the caller has signed: `author`, `review` or `evaluation`. A Sigstore
    bundle of the version's `.files` is stored as `author`.
    """

    name: SkillName
    version: ExactVersion
    envelope: Annotated[Annotated[str, Meta(max_length=262_144)], about("Envelope of DSSE or Sigstore bundle, as JSON")]


SCOPES: Mapping[str, Scope] = {"author": "publish", "review": "review", "evaluation": "publish"}
"""The scope for each kind of statement that callers sign."""
_KINDS = {"author": OwnAuthor, "review": OwnReview, "evaluation": OwnEvaluation}
MOST_BYTES = 16 * 1024
"""The size of a statement that callers sign."""
MOST_OF_SIGNER = 20
"""The number of statements that an identity signs about a version, with those that it has withdrawn."""


def store_signed(
    connection: Connection, identity: Identity, name: str, version: Version, envelope: str
) -> AddedAttestation:
    """Store a statement that the identity has signed. If it is stored already, return it.

    Raise InvalidParams, AttestationSubject or AttestationKey if the statement is not valid, NotAllowed without the
    right to sign its word, Conflict above MOST_OF_SIGNER, and the errors of `resolve`.
    """
    with _refusing(InvalidParams):
        envelope = compact(envelope.encode()).decode()  # `.intoto.jsonl` has one line for each
        stated = unverified(envelope.encode())
        statement = read_statement(stated.payload)
    word = statement.word or ""
    if word not in SIGNERS:
        raise InvalidParams(
            f"'envelope' has a statement of the type {statement.predicate_type[:80]!r}, which callers do not sign",
            hint=f"Callers sign {', '.join(SIGNERS)}.",
            param="envelope",
        )
    if len(stated.payload) > MOST_BYTES:
        raise InvalidParams(f"'envelope' has a statement of more than {MOST_BYTES} bytes", param="envelope")
    try:
        predicate: OwnAuthor | OwnReview | OwnEvaluation = msgspec.convert(statement.predicate, _KINDS[word])
    except msgspec.ValidationError as error:
        raise InvalidParams(f"'envelope' has another predicate than '{word}': {error}", param="envelope") from None
    access.require_namespace(identity, SCOPES[word], name)
    # The lock makes a purge of the version wait, or this function see it.
    lock_skill_row(connection, name)
    row = resolve(connection, identity, name, Exact(version), manages=True)
    _check_signer(connection, identity, row, word)
    key = _key_of(connection, identity, stated.keyids)
    with _refusing(AttestationKey):
        verify(envelope.encode(), {key.keyid: key.public_der})
    with _refusing(AttestationSubject):
        check_subject(statement, row.name, row.version, row.digest)
    if predicate.signer != identity.name:
        raise AttestationKey(f"'envelope' names another signer than '{identity.name}'", param="envelope")
    of_version = attestations.c.version_id == row.version_id
    same = of_version, attestations.c.sha256 == sha256_of(envelope), attestations.c.ended_at.is_(None)
    present = connection.scalar(select(attestations.c.attestation).where(*same))
    if present is None:
        _check_number(connection, identity, row.version_id)
        signed = SignedStatement(word, statement.predicate, envelope, key.id, identity)
        [present] = insert_attestations(connection, row.version_id, row.digest, [signed])
        after = {"id": present, "predicate": word, "keyid": key.keyid}
        audit.record(connection, identity, "add_attestation", f"{row.name}@{row.version}", after=after)
    return AddedAttestation(present, word, identity.name)


def _refusing(kind: type[InvalidParams]) -> ErrorsAbout:
    return ErrorsAbout("'envelope'", partial(kind, param="envelope"))


def _check_signer(connection: Connection, identity: Identity, row: VersionRow, word: str) -> None:
    """Raise NotAllowed if the identity is not the publisher and signs as the author, or if it signs a review without a
    decision, and is the publisher or an agent. `access.ApprovalRules` say whether they may decide.
    """
    if word == "author":
        check_publisher(identity, row)
    if word != "review":
        return
    is_publisher = identity.name == row.publisher
    own = version_steps.c.version_id == row.version_id, version_steps.c.identity == identity.name
    decided = select(exists().where(*own, version_steps.c.step.in_(("approve", "reject"))))
    if (is_publisher or identity.kind != "person") and not connection.scalar(decided):
        raise NotAllowed(
            f"'{identity.name}' has not approved or rejected '{row.name}' {row.version}",
            hint="Publishers and agents sign reviews only of their decisions. Another person may sign a review.",
        )


def check_publisher(identity: Identity, row: VersionRow) -> None:
    """Raise NotAllowed if the identity has not published the version."""
    if identity.name != row.publisher:
        raise NotAllowed(f"'{row.publisher}' has published '{row.name}' {row.version}: only this author signs it")


def _check_number(connection: Connection, identity: Identity, version_id: int) -> None:
    """Raise Conflict if the identity has already signed MOST_OF_SIGNER statements about the version."""
    own = signing_keys.c.holder == "identity", signing_keys.c.added_by == identity.name
    signed = select(func.count()).select_from(attestations).join(signing_keys).where(*own)
    if (connection.scalar(signed.where(attestations.c.version_id == version_id)) or 0) >= MOST_OF_SIGNER:
        raise Conflict(
            f"'{identity.name}' has signed {MOST_OF_SIGNER} statements about this version, which is the limit",
            hint="Sign a new version.",
        )


def _key_of(connection: Connection, identity: Identity, keyids: Sequence[str]) -> Any:
    """Return the row of the key that has signed. Raise AttestationKey if it is not a valid key of the identity, or if
    several keys have signed.
    """
    row = connection.execute(select(signing_keys).where(signing_keys.c.keyid == keyids[0])).one_or_none()
    if row is None or row.holder != "identity" or row.added_by != identity.name or len(keyids) > 1:
        problem = "not a registered key of the caller"
    elif row.revoked_at or row.retired_at:
        problem = "revoked" if row.revoked_at else "retired, because the identity was revoked"
    else:
        return row
    raise AttestationKey(
        f"{', '.join(keyids)[:300]} is {problem}",
        hint="Register your key with skillery key add, and sign with it alone.",
        param="envelope",
    )


# -- end_attestation ---------------------------------------------------------------------------------------------------


class EndedId(msgspec.Struct, frozen=True):
    id: str
    ended_at: datetime


class EndAttestation(Params, frozen=True, kw_only=True):
    """Withdraw a signed statement: clients get it no longer. Its row stays."""

    id: Annotated[str, about("The attestation's id")]
    reason: Annotated[Sentence, about("Reason, for all readers of the version")]


class Withdrawal(NamedTuple):
    """A withdrawn attestation. `reopened` is its version, if its `passed` has ended too, else None."""

    ended: EndedId
    reopened: tuple[str, Version] | None = None


def end(connection: Connection, identity: Identity, attestation: str, reason: str) -> Withdrawal:
    """Withdraw an attestation, and the `passed` based on it. Raise NotFound if the identity does not see it, and
    NotAllowed unless the identity has signed it, and still has the scope for it, or is an admin. A repeated withdrawal
    changes nothing.
    """
    of_id = attestations.c.attestation == attestation
    stored = connection.execute(
        select(attestations, signing_keys.c.holder, skills.c.name, skill_versions.c.version)
        .select_from(WITH_VERSIONS)
        .where(of_id)
    ).one_or_none()
    try:
        if stored is not None:
            resolve(connection, identity, stored.name, Exact(Version.parse(stored.version)), manages=True)
    except NotFound:
        stored = None
    if stored is None:
        hint = "Compare it with the list of the version's attestations."
        raise NotFound(f"there is no attestation '{attestation}'", hint=hint)
    is_personal = stored.holder == "identity"
    if not (is_personal and stored.made_by == identity.name) and not access.is_admin(identity):
        raise NotAllowed(f"'{attestation}' is not signed by '{identity.name}'", hint="Ask its signer, or an admin.")
    if is_personal:
        access.require(identity, SCOPES[stored.predicate])
    # The lock makes a judgement of the version wait, or see this withdrawal.
    lock_skill_row(connection, stored.name)
    ended_at = connection.scalar(select(attestations.c.ended_at).where(of_id))
    if ended_at is not None:
        return Withdrawal(EndedId(attestation, in_utc(ended_at)))
    passed = passed_about(connection, stored.version_id, {stored.sha256})
    now = datetime.now(UTC)
    end_attestations(connection, identity, [attestation], reason, now)
    end_attestations(connection, identity, passed, f"{attestation} was withdrawn: {reason}", now)
    after = {"name": stored.name, "version": stored.version, "reason": reason, **({"passed": passed} if passed else {})}
    audit.record(connection, identity, "end_attestation", attestation, after=after)
    reopened = (stored.name, Version.parse(stored.version)) if passed else None
    return Withdrawal(EndedId(attestation, now), reopened)


def end_attestations(connection: Connection, by: Actor, ids: Sequence[str], reason: str, now: datetime) -> None:
    values = {"ended_at": now, "ended_by": by.name, "ended_reason": reason}
    connection.execute(update(attestations).where(attestations.c.attestation.in_(ids)).values(values))


METHODS = (Method(list_attestations, "read", audits=""),)
