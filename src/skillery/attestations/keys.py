"""Keys of identities, which sign their own statements, and the revocation of keys."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta
from sqlalchemy import Connection, func, select, update

from skillery import audit
from skillery.attestations.attestations import end_attestations
from skillery.attestations.evidence import WITH_VERSIONS, passed_about
from skillery.attestations.signing import insert_key
from skillery.backends import Identity
from skillery.database import in_utc
from skillery.database.registry import Registry, locking_skills
from skillery.database.tables import attestations, signing_keys, skill_versions, skills
from skillery.errors import AttestationKey, Conflict, InvalidCursor, InvalidParams, NotAllowed, NotFound
from skillery.formats.texts import parse_sentence
from skillery.formats.timestamps import parse_timestamp
from skillery.identity import access
from skillery.method import Cursor, Method, PageLimit, Params, Sentence, about
from skillery.proof.dsse import (
    CHALLENGE,
    ErrorsAbout,
    algorithm_of,
    check_signature,
    from_base64,
    keyid_of,
    to_base64,
)
from skillery.registry.cursors import NextCursor, fitting_items, make_cursor, read_cursor

CHALLENGE_SECONDS = 600
MOST_KEYS = 100
"""The number of keys of an identity, with revoked ones. Each client that verifies a version reads all keys."""

# -- list_keys ---------------------------------------------------------------------------------------------------------


class ListedKey(msgspec.Struct, frozen=True):
    """A public key. `holder` is `server` for keys of the registry, and `identity` for the key of the identity `by`."""

    keyid: str
    algorithm: str
    holder: Literal["server", "identity"]
    by: str
    kind: Literal["person", "agent"]
    public: Annotated[str, Meta(description="The public key in DER, in base64")]
    added_at: datetime
    retired_at: datetime | None
    revoked_at: datetime | None
    revoked_since: Annotated[datetime | None, Meta(description="The time of the theft, for readers")]
    reason: str | None


class KeyPage(msgspec.Struct, frozen=True):
    """A page of keys, oldest first."""

    keys: Sequence[ListedKey]
    next_cursor: NextCursor


class ListKeys(Params, frozen=True, kw_only=True):
    """List the public keys of the registry and of identities."""

    by: Annotated[str, about("Only the keys of this identity")] = ""
    limit: PageLimit = 50
    cursor: Cursor = ""


async def list_keys(registry: Registry, _: Identity, params: ListKeys) -> KeyPage:
    return await registry.read_page(partial(read_keys, key=registry.cursor_key, params=params))


def read_keys(connection: Connection, key: bytes, params: ListKeys) -> KeyPage:
    """Return a page of keys. `key` signs the cursors. Raise InvalidCursor if the cursor belongs to another listing."""
    bound_to = ("list_keys", params.by)
    where = [signing_keys.c.added_by == params.by] if params.by else []
    if params.cursor:
        where.append(signing_keys.c.id > int(read_cursor(key, bound_to, params.cursor, 1)[0]))
    oldest_first = select(signing_keys).where(*where).order_by(signing_keys.c.id).limit(params.limit + 1)
    rows = connection.execute(oldest_first).all()
    page = fitting_items([_listed(row) for row in rows[: params.limit]])
    next_cursor = make_cursor(key, bound_to, (str(rows[len(page) - 1].id),)) if len(rows) > len(page) else None
    return KeyPage(page, next_cursor)


def _listed(row: Any) -> ListedKey:
    return ListedKey(
        row.keyid,
        row.algorithm,
        row.holder,
        row.added_by,
        row.added_by_kind,
        to_base64(row.public_der),
        in_utc(row.added_at),
        in_utc(row.retired_at),
        in_utc(row.revoked_at),
        in_utc(row.revoked_since),
        row.reason,
    )


# -- add_key -----------------------------------------------------------------------------------------------------------


class AddedKey(msgspec.Struct, frozen=True):
    """A registered key, or the challenge that the caller signs with the private key to register it."""

    keyid: str
    added: bool
    challenge: str | None


class AddKey(Params, frozen=True, kw_only=True):
    """Register a public key of a publisher or reviewer. The first call returns a challenge, the second one has its
    signature.
    """

    public: Annotated[Annotated[str, Meta(max_length=4096)], about("Public key in DER (Ed25519 or P-256), in base64")]
    challenge: Annotated[str, about("Challenge of the first call")] = ""
    signature: Annotated[Annotated[str, Meta(max_length=4096)], about("Signature of `challenge`, in base64")] = ""


async def add_key(registry: Registry, identity: Identity, params: AddKey) -> AddedKey:
    _require_signer(identity)
    with ErrorsAbout("'public'", partial(InvalidParams, param="public")):
        public_der = from_base64(params.public)
        algorithm_of(public_der)
    keyid = keyid_of(public_der)
    bound_to = ("add_key", identity.name, keyid)
    if not params.signature:
        # A cursor is a value with a signature of the server: challenges need no table.
        challenge = make_cursor(registry.cursor_key, bound_to, (str(int(time.time())),))
        return AddedKey(keyid, added=False, challenge=CHALLENGE + challenge)
    try:
        [made_at] = read_cursor(registry.cursor_key, bound_to, params.challenge.removeprefix(CHALLENGE), 1)
    except InvalidCursor:
        made_at = "0"
    if time.time() - int(made_at) > CHALLENGE_SECONDS:
        raise AttestationKey(
            f"'challenge' is not for this key, or older than {CHALLENGE_SECONDS // 60} minutes",
            hint="Repeat the call without 'signature': it returns a new challenge.",
            param="challenge",
        )
    with ErrorsAbout("'signature'", partial(AttestationKey, param="signature")):
        check_signature(public_der, from_base64(params.signature), params.challenge.encode())
    await registry.write(partial(register, identity=identity, public_der=public_der, keyid=keyid))
    return AddedKey(keyid, added=True, challenge=None)


def _require_signer(identity: Identity) -> None:
    """Raise NotAllowed if the identity may sign nothing: it has neither the scope `publish` nor `review`."""
    if not access.allows(identity, "review"):
        access.require(identity, "publish")


def register(connection: Connection, identity: Identity, public_der: bytes, keyid: str) -> None:
    """Register a key of the identity. Raise Conflict if another identity has the key, if it was revoked or retired, or
    if the identity has MOST_KEYS keys.
    """
    row = connection.execute(select(signing_keys).where(signing_keys.c.keyid == keyid)).one_or_none()
    if row is None:
        of_identity = signing_keys.c.added_by == identity.name, signing_keys.c.holder == "identity"
        if (connection.scalar(select(func.count()).where(*of_identity)) or 0) >= MOST_KEYS:
            raise Conflict(f"'{identity.name}' has {MOST_KEYS} keys, which is the limit", hint="Use one of them.")
        insert_key(connection, identity, public_der, "identity")
        audit.record(connection, identity, "add_key", keyid, after={"holder": "identity"})
    elif row.added_by != identity.name or row.holder != "identity" or row.revoked_at or row.retired_at:
        raise Conflict(f"the key {keyid} is taken or revoked", hint="Make another one with skillery key new.")


# -- revoke_key --------------------------------------------------------------------------------------------------------


class RevokedKey(msgspec.Struct, frozen=True):
    keyid: str
    revoked_at: datetime


class RevokeKey(Params, frozen=True, kw_only=True):
    """Revoke a stolen or lost key of an identity: no statement that it has signed is valid any more."""

    keyid: Annotated[str, about("Keyid, sha256:…")]
    reason: Annotated[Sentence, about("Reason, for all readers")]
    since: Annotated[str, about("Time of the theft, for readers (e.g., '2026-11-22T09:30:00Z')")] = ""


async def revoke_key(registry: Registry, identity: Identity, params: RevokeKey) -> RevokedKey:
    _require_signer(identity)
    since = parse_timestamp(params.since, "since", datetime.now(UTC)) if params.since else None
    reason = parse_sentence(params.reason, "reason")
    revoked = await registry.write(partial(revoke, identity=identity, keyid=params.keyid, since=since, reason=reason))
    # In a later transaction: a judgement that has seen the valid key is stored then. A repeated call ends the rest.
    await registry.write(partial(_end_passed, identity=identity, keyid=params.keyid, reason=reason))
    return revoked


def revoke(connection: Connection, identity: Identity, keyid: str, since: datetime | None, reason: str) -> RevokedKey:
    """Revoke a key of an identity. Raise NotFound, or NotAllowed for a key of another identity or of the registry."""
    of_key = signing_keys.c.keyid == keyid
    row = connection.execute(select(signing_keys).where(of_key).with_for_update()).one_or_none()
    if row is None:
        raise NotFound(f"there is no key '{keyid[:100]}'", hint="Compare it with the list of all keys.")
    if row.holder != "identity":
        raise NotAllowed(f"{keyid} is a key of the registry", hint="Use skillery key revoke in its home.")
    if row.added_by != identity.name and not access.is_admin(identity):
        raise NotAllowed(f"{keyid} belongs to '{row.added_by}'", hint="Ask this identity, or an admin.")
    if row.revoked_at is not None:
        return RevokedKey(keyid, in_utc(row.revoked_at))
    now = datetime.now(UTC)
    values = {"revoked_at": now, "revoked_since": since, "reason": reason}
    connection.execute(update(signing_keys).where(of_key).values(values))
    audit.record(connection, identity, "revoke_key", keyid, after={"by": row.added_by, "reason": reason})
    return RevokedKey(keyid, now)


def _end_passed(connection: Connection, identity: Identity, keyid: str, reason: str) -> None:
    """End each `passed` that is about a statement of the key. Such a version waits until it meets its policy again."""
    signed = (
        select(attestations.c.version_id, attestations.c.sha256, skills.c.name, skill_versions.c.version, skills.c.id)
        .select_from(WITH_VERSIONS)
        .where(signing_keys.c.keyid == keyid, attestations.c.ended_at.is_(None))
    )
    of_key = skills.c.id.in_(select(signed.subquery().c.id))
    # The lock makes a judgement of these versions wait, or this function see it.
    connection.execute(locking_skills(of_key))
    now, reason = datetime.now(UTC), f"the key {keyid} was revoked: {reason}"
    for row in connection.execute(signed).all():
        passed = passed_about(connection, row.version_id, {row.sha256})
        end_attestations(connection, identity, passed, reason, now)
        for attestation in passed:
            after = {"name": row.name, "version": row.version, "reason": reason}
            audit.record(connection, identity, "end_attestation", attestation, after=after)


METHODS = (
    Method(list_keys, "read", audits=""),
    Method(add_key, "read", audits="public"),
    Method(revoke_key, "read", audits="keyid"),
)
