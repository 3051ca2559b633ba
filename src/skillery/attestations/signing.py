"""The key of the registry: its chain of statements, and the statements about versions that it signs."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from string import hexdigits
from typing import Any, Literal, NamedTuple, cast

from sqlalchemy import Connection, Row, func, insert, select, update

from skillery import audit
from skillery.audit import SERVER, Actor
from skillery.backends import Signer
from skillery.database import Change, Database, take_turns
from skillery.database.tables import attestations, key_statements, signing_keys
from skillery.errors import Busy, Conflict, SkilleryError, StartupError, Unavailable
from skillery.formats.texts import new_attestation_id
from skillery.proof.dsse import Sign, algorithm_of, keyid_of, seal
from skillery.proof.keychains import make_keys_statement
from skillery.proof.statements import TYPES, make_statement

log = logging.getLogger(__name__)
RETRY_MS = 5_000
_ADD = Change(
    insert(attestations), [column.name for column in attestations.c if not (column.nullable or column.primary_key)]
)


class SignedStatement(NamedTuple):
    """A signed statement about a version, before it has a row."""

    word: str
    predicate: Mapping[str, Any]
    envelope: str
    key_id: int
    by: Actor


class RegistryKey(NamedTuple):
    """The key with which the registry signs."""

    key_id: int
    """The id of its row. Attestations refer to it."""
    keyid: str
    """`sha256:` and the SHA-256 of the public key."""


class Signing:
    """Signs statements with the key of the registry. Without a key, nothing is signed."""

    def __init__(
        self, signer: Signer | None = None, key: RegistryKey | None = None, builder: str = "", release: str = ""
    ) -> None:
        """`builder` is the URL of the registry, `release` the release of the server."""
        self.builder = builder
        self.release = release
        self._signer = signer
        self._key = key

    @property
    def signs(self) -> bool:
        """Whether this registry signs statements."""
        return self._key is not None

    @property
    def keyid(self) -> str:
        """The key of this server, "" if it signs nothing."""
        return self._key.keyid if self._key else ""

    async def attest(
        self, by: Actor, name: str, version: str, digest: str, predicates: Mapping[str, Mapping[str, Any]]
    ) -> tuple[SignedStatement, ...]:
        """Return a signed statement for each predicate, by word. `by` is the identity that caused the statements.

        Call this function before the transaction that stores them: a signer may be a service. Raise Busy if the
        signer cannot be reached.
        """
        if self._key is None:
            return ()
        payloads = [make_statement(word, name, version, digest, predicate) for word, predicate in predicates.items()]
        return tuple(
            SignedStatement(word, predicate, envelope, self._key.key_id, by)
            for (word, predicate), envelope in zip(predicates.items(), await self.envelopes(payloads), strict=True)
        )

    async def envelopes(self, payloads: Sequence[bytes]) -> list[str]:
        """Return the payloads in signed envelopes. Raise Busy if the signer cannot be reached."""
        if self._signer is None or self._key is None:
            raise Unavailable("this server signs nothing", hint=_ASK)
        work = partial(_sealed, self._signer, self._key.keyid, payloads)
        return work() if getattr(self._signer, "is_local", False) else await asyncio.to_thread(work)


def _sealed(signer: Signer, keyid: str, payloads: Sequence[bytes]) -> list[str]:
    """Return the envelopes of payloads. Raise Busy if the signer fails, or signs with another key."""

    def sign(data: bytes) -> tuple[str, bytes]:
        used, signature = signer.sign_with(keyid, data)
        if used != keyid:
            raise Unavailable(f"the signer signs with {used}, and this registry with {keyid}", hint=_ASK)
        return used, signature

    try:
        return [seal(payload, sign).decode() for payload in payloads]
    except SkilleryError as error:
        log.warning("the signer failed: %s", error.message)
        raise Busy(f"the signer cannot be reached: {error.message}", retry_after_ms=RETRY_MS, hint=_ASK) from error
    except Exception as error:
        log.exception("the signer failed")
        raise Busy("the signer cannot be reached", retry_after_ms=RETRY_MS, hint=_ASK) from error


_ASK = "Nothing is stored. Try again later, or ask an admin to check the setting signing.key."


def insert_attestations(
    connection: Connection, version_id: int, digest: str, statements: Sequence[SignedStatement]
) -> list[str]:
    """Store signed statements about a version, and return their ids."""
    now, rows = datetime.now(UTC), []
    for statement in statements:
        rows.append({
            "attestation": new_attestation_id(),
            "version_id": version_id,
            "digest": digest,
            "predicate": statement.word,
            "predicate_type": TYPES[statement.word],
            "key_id": statement.key_id,
            "made_by": statement.by.name,
            "made_by_kind": statement.by.kind,
            "envelope": statement.envelope,
            "sha256": sha256_of(statement.envelope),
            "created_at": now,
        })  # fmt: skip
    _ADD.run_many(connection, rows)
    return [str(row["attestation"]) for row in rows]


def sha256_of(envelope: str) -> str:
    return hashlib.sha256(envelope.encode()).hexdigest()


def sealed_digest(row: Row[Any]) -> bytes:
    """Return the SHA-256 of an envelope, for a seal. A purge empties the envelope, and keeps the hash."""
    actual = sha256_of(row.envelope)
    is_hash = len(row.sha256) == len(actual) and not {*row.sha256} - {*hexdigits}
    if row.sha256 != actual and (row.envelope or not is_hash):
        log_changed(f"the statement {row.attestation}")
        return bytes.fromhex(actual)
    return bytes.fromhex(row.sha256)


def log_changed(subject: str) -> None:
    log.error("%s was changed in the database: run skillery check --deep", subject)


# -- The key of the registry, and the chain of statements about it -----------------------------------------------------


def open_signing(database: Database, signer: Signer | None, builder: str = "", release: str = "") -> Signing:
    """Return the Signing of a server. The first server of a registry begins the chain of keys.

    A server whose home has no key, although the registry has one, signs nothing: servers of one database worked without
    a common key before. Raise StartupError if the registry signs with another key than this server, or if the signer
    does not work.
    """
    if signer is None:
        return Signing()
    try:
        key = database.read_now(find_registry_key) or _begin(database, signer)
        keyids = [keyid_of(public_der) for public_der in signer.public_keys()]
    except SkilleryError as error:
        raise StartupError(f"the signer cannot be used: {error.message}") from None
    if not keyids:
        log.warning(
            "this registry signs with %s, and this home has no key: this server signs nothing until you copy "
            "signing/ed25519.pem into the home, or set signing.key",
            key.keyid,
        )
        return Signing()
    if key.keyid not in keyids:
        raise StartupError(
            f"this registry signs with {key.keyid}, and this server has {keyids[0]}: "
            "copy signing/ed25519.pem of a server that signs into the home, or change signing.key"
        )
    return Signing(signer, key, builder, release)


def find_registry_key(connection: Connection) -> RegistryKey | None:
    """Return the key with which the registry signs now, or None if it has never signed."""
    present = signing_keys.c.retired_at.is_(None), signing_keys.c.revoked_at.is_(None)
    newest = (
        select(signing_keys.c.id, signing_keys.c.keyid)
        .where(signing_keys.c.holder == "server", *present)
        .order_by(signing_keys.c.id.desc())
        .limit(1)
    )
    row = connection.execute(newest).one_or_none()
    return None if row is None else RegistryKey(row.id, row.keyid)


def _begin(database: Database, signer: Signer) -> RegistryKey:
    """Begin the chain with the key of this server, unless another server was faster. Return the registry's key."""

    def work(connection: Connection) -> RegistryKey:
        take_turns(connection, "signing", "")
        present = find_registry_key(connection)
        if present is not None:
            return present
        # A new home makes its key now. A server that was slower than another one makes none.
        keyid, _ = signer.sign(b"")
        public_der = next(der for der in signer.public_keys() if keyid_of(der) == keyid)
        change_keys(connection, SERVER, KeyChange("add_key", (signer.sign,), public_der, begins_chain=True))
        return cast(RegistryKey, find_registry_key(connection))

    return database.write_now(work)


def insert_key(connection: Connection, by: Actor, public_der: bytes, holder: Literal["server", "identity"]) -> int:
    """Store a public key in DER, and return the id of its row. Raise ProofError if it is not a key that can sign."""
    values = {
        "keyid": keyid_of(public_der),
        "public_der": public_der,
        "algorithm": algorithm_of(public_der),
        "holder": holder,
        "added_by": by.name,
        "added_by_kind": by.kind,
        "added_at": datetime.now(UTC),
    }
    return int(connection.execute(insert(signing_keys).values(values).returning(signing_keys.c.id)).scalar_one())


def read_chain(connection: Connection) -> list[str]:
    """Return the statements about the keys of the registry since the last loss of a key, oldest first."""
    rows = connection.execute(select(key_statements).order_by(key_statements.c.seq)).all()
    begin = max((at for at, row in enumerate(rows) if row.previous is None), default=0)
    return [row.envelope for row in rows[begin:]]


class KeyChange(NamedTuple):
    """A change of the registry's keys: the first key, a rotation, a loss or a theft. All present keys and the `added`
    one (in DER) sign the statement about it.
    """

    action: str
    signers: tuple[Sign, ...]
    added: bytes | None = None
    retired: tuple[str, ...] = ()
    revoked: tuple[str, ...] = ()
    since: datetime | None = None
    reason: str = ""
    begins_chain: bool = False
    """Whether no key before can sign. After the loss of a key, clients then notice another signer."""


def change_keys(connection: Connection, actor: Actor, change: KeyChange) -> None:
    """Store a change of the registry's keys, with a signed statement in its chain.

    Raise Conflict if a key to revoke still signs, or was revoked before.
    """
    take_turns(connection, "signing", "")
    chain = [] if change.begins_chain else read_chain(connection)
    previous = sha256_of(chain[-1]) if chain else None
    added = {keyid_of(change.added): change.added} if change.added else {}
    payload = make_keys_statement(added, previous, change.retired, change.revoked)
    envelope = seal(payload, *change.signers).decode()
    now = datetime.now(UTC)
    keyid = signing_keys.c.keyid
    connection.execute(update(signing_keys).where(keyid.in_(change.retired)).values(retired_at=now))
    former = signing_keys.c.retired_at.is_not(None), signing_keys.c.revoked_at.is_(None)
    values = {"revoked_at": now, "revoked_since": change.since, "reason": change.reason}
    revoke = update(signing_keys).where(keyid.in_(change.revoked), signing_keys.c.holder == "server", *former)
    if connection.execute(revoke.values(values)).rowcount < len(change.revoked):
        raise Conflict(f"{', '.join(change.revoked)} still signs, or is revoked", hint="Run skillery key rotate first.")
    if change.added is not None:
        insert_key(connection, actor, change.added, "server")
    last = connection.scalar(select(func.max(key_statements.c.seq))) or 0
    link = {"seq": last + 1, "envelope": envelope, "sha256": sha256_of(envelope), "previous": previous}
    connection.execute(insert(key_statements).values(link))
    keys = {"added": list(added), "retired": change.retired, "revoked": change.revoked}
    subject = next(iter((*added, *change.revoked)))
    audit.record(connection, actor, change.action, subject, after={**keys, "reason": change.reason})
