"""Statements of callers about versions: envelopes that they have signed, and Sigstore bundles of authors.

The registry states in its own words which identity has signed a bundle of Sigstore: a plugin has verified it, and no
client needs the trusted root of Sigstore.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any, NamedTuple

import msgspec
from sqlalchemy import Connection, select

from skillery import audit
from skillery.attestations.attestations import (
    MOST_OF_SIGNER,
    AddAttestation,
    AddedAttestation,
    EndAttestation,
    EndedId,
    check_publisher,
    end,
    store_signed,
)
from skillery.attestations.evidence import SIGSTORE_PREFIX
from skillery.attestations.signing import SignedStatement, insert_attestations
from skillery.backends import Identity, SigstoreIdentity
from skillery.database.registry import lock_skill_row
from skillery.database.tables import attestations
from skillery.errors import Conflict, InvalidParams
from skillery.formats.names import parse_skill_name
from skillery.formats.semver import Version
from skillery.formats.texts import parse_id, parse_sentence
from skillery.formats.version_spec import Exact
from skillery.identity import access
from skillery.method import Method
from skillery.proof.statements import now
from skillery.publishing.passing import Passing
from skillery.registry.resolution import resolve
from skillery.registry.version_rows import VersionRow

MEDIA_TYPE = "application/vnd.dev.sigstore.bundle"
"""The start of the media type of a Sigstore bundle, before its version."""
MOST_BYTES = 64 * 1024
MOST_NAME = 255
"""The length of an identity in the table of statements."""


class _Author(NamedTuple):
    """The signer of a Sigstore bundle, as the author of a version."""

    name: str
    kind: str


async def add_attestation(passing: Passing, identity: Identity, params: AddAttestation) -> AddedAttestation:
    """Store a statement of the caller, and publish the version if it passes now."""
    name, version = parse_skill_name(params.name), Version.parse(params.version)
    bundle = _bundle_in(params.envelope)
    if bundle is not None:
        added = await _add_bundle(passing, identity, name, version, bundle)
    else:
        work = partial(store_signed, identity=identity, name=name, version=version, envelope=params.envelope)
        added = await passing.database.write(work)
    await passing.publish_if_passed(identity, name, version)
    return added


async def end_attestation(passing: Passing, identity: Identity, params: EndAttestation) -> EndedId:
    """Withdraw an attestation. Its version passes again if it meets its policy without the attestation."""
    reason = parse_sentence(params.reason, "reason")
    work = partial(end, identity=identity, attestation=parse_id(params.id), reason=reason)
    withdrawal = await passing.database.write(work)
    if withdrawal.reopened is not None:
        await passing.publish_if_passed(identity, *withdrawal.reopened)
    return withdrawal.ended


# -- Sigstore ----------------------------------------------------------------------------------------------------------


def _bundle_in(text: str) -> dict[str, Any] | None:
    """Return the Sigstore bundle in a text, or None if it is something else: `store_signed` says what is wrong."""
    try:
        bundle = msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
    return bundle if str(bundle.get("mediaType", "")).startswith(MEDIA_TYPE) else None


async def _add_bundle(
    passing: Passing, identity: Identity, name: str, version: Version, bundle: dict[str, Any]
) -> AddedAttestation:
    """Verify a Sigstore bundle of the publisher, and store a statement of the registry about its signer.

    Raise InvalidParams if no plugin verifies bundles or the bundle is not valid, NotAllowed if the identity has not
    published the version, Busy if the signer of the registry cannot be reached, and the errors of `resolve`.
    """
    if passing.sigstore is None:
        hint = "An admin installs skillery-sigstore."
        raise InvalidParams("this server cannot verify Sigstore bundles", hint=hint, param="envelope")
    # The decoded bundle is verified and stored: a text of the caller can repeat a key with another value.
    text = msgspec.json.encode(bundle).decode()
    if len(text) > MOST_BYTES:
        raise InvalidParams(f"the Sigstore bundle has more than {MOST_BYTES} bytes", param="envelope")
    row = await passing.database.read(partial(_own_version, identity=identity, name=name, version=version))
    author = _author_of(await asyncio.to_thread(passing.sigstore.verify, text, row.digest.removeprefix("sha256:")))
    predicate = {"author": author.name, "kind": author.kind, "bundle": bundle, "at": now()}
    statements = await passing.signing.attest(author, row.name, row.version, row.digest, {"author": predicate})
    if not statements:
        raise InvalidParams("this server signs nothing, so it states no author", param="envelope")
    work = partial(_store, identity=identity, name=name, version=version, statement=statements[0])
    return await passing.database.write(work)


def _author_of(signer: SigstoreIdentity) -> _Author:
    """Return the author for a signer. Mail addresses are those of people."""
    name = f"{SIGSTORE_PREFIX}{signer.issuer}|{signer.subject}"
    if len(name) > MOST_NAME or not name.isprintable():
        raise InvalidParams(f"the identity of the Sigstore bundle cannot be stored: {name[:80]!r}…", param="envelope")
    return _Author(name, "agent" if "://" in signer.subject else "person")


def _own_version(connection: Connection, identity: Identity, name: str, version: Version) -> VersionRow:
    access.require_namespace(identity, "publish", name)
    row = resolve(connection, identity, name, Exact(version), manages=True)
    check_publisher(identity, row)
    return row


def _store(
    connection: Connection, identity: Identity, name: str, version: Version, statement: SignedStatement
) -> AddedAttestation:
    """Store the statement about the author, or return the stored one of this author."""
    lock_skill_row(connection, name)
    row = _own_version(connection, identity, name, version)
    authors = select(attestations.c.attestation, attestations.c.made_by, attestations.c.ended_at).where(
        attestations.c.version_id == row.version_id,
        attestations.c.predicate == statement.word,
        attestations.c.made_by.startswith(SIGSTORE_PREFIX, autoescape=True),
    )
    stored = connection.execute(authors).all()
    present = [each.attestation for each in stored if (each.made_by, each.ended_at) == (statement.by.name, None)]
    if not present:
        if len(stored) >= MOST_OF_SIGNER:
            raise Conflict(f"{len(stored)} Sigstore bundles are stored for this version", hint="Publish a new version.")
        present = insert_attestations(connection, row.version_id, row.digest, [statement])
        after = {"id": present[0], "predicate": statement.word, "author": statement.by.name}
        audit.record(connection, identity, "add_attestation", f"{row.name}@{row.version}", after=after)
    return AddedAttestation(present[0], statement.word, statement.by.name)


METHODS = (
    Method(add_attestation, "read", audits="name"),
    Method(end_attestation, "read", audits="id"),
)
