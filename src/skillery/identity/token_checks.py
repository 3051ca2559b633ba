"""Verification of the registry's tokens, and the record of their last use."""

from __future__ import annotations

import hmac
from datetime import UTC, datetime, timedelta
from functools import partial

import msgspec
from sqlalchemy import Connection, bindparam, or_, select, update

from skillery.backends import Identity, Provenance, Scope, VerifiedToken
from skillery.database import Database, Statement, in_utc
from skillery.database.tables import tokens
from skillery.errors import NotAuthenticated
from skillery.formats.tokens import id_of
from skillery.identity.tokens import digest_of, first_token

USED_EVERY = timedelta(minutes=1)
_FIND = Statement(
    select(
        tokens.c.hash,
        tokens.c.name,
        tokens.c.kind,
        tokens.c.scopes_json,
        tokens.c.namespaces_json,
        tokens.c.expires_at,
        tokens.c.revoked_at,
        tokens.c.provenance_json,
    ).where(tokens.c.id == bindparam("token_id"))
)
_strings = msgspec.json.Decoder(tuple[str, ...])
_provenance = msgspec.json.Decoder(Provenance)
_NOBODY = bytes(32)


class RegistryTokens:
    """The `skillery.backends.Tokens` of one database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def verify(self, token: str) -> VerifiedToken:
        token_id = id_of(token)
        if token_id is None:
            raise NotAuthenticated("this is not a token of a Skillery server")
        return await self._database.read(partial(verify_token, token=token, token_id=token_id))

    async def note_use(self, token_id: str) -> None:
        await self._database.write(partial(note_use, token_id=token_id))

    def first_token(self) -> str | None:
        made = self._database.write_now(first_token)
        return made.token if made else None


def verify_token(connection: Connection, token: str, token_id: str) -> VerifiedToken:
    """Return the identity of a token. Raise NotAuthenticated if the token is unknown, expired or revoked."""
    # The id finds the row. The hash of the whole token decides, compared in constant time.
    rows = _FIND.rows(connection, token_id=token_id)
    stored = bytes(rows[0][0]) if rows else _NOBODY
    if not hmac.compare_digest(stored, digest_of(token)) or not rows:
        raise NotAuthenticated("this token is unknown")
    _, name, kind, scopes, namespaces, expires_at, revoked_at, provenance = rows[0]
    if revoked_at is not None:
        raise NotAuthenticated("this token was revoked")
    until = in_utc(expires_at)
    if until is not None and until <= datetime.now(UTC):
        raise NotAuthenticated("this token has expired")
    known: frozenset[Scope] = frozenset(_strings.decode(scopes))  # type: ignore[arg-type]  # checked when it was made
    job = _provenance.decode(provenance) if provenance else None
    return VerifiedToken(token_id, Identity(name, kind, known, _strings.decode(namespaces), job), until)


def note_use(connection: Connection, token_id: str) -> None:
    """Record the current time as the last use of a token, unless a use was recorded within the last minute."""
    now = datetime.now(UTC)
    is_due = or_(tokens.c.last_used_at.is_(None), tokens.c.last_used_at < now - USED_EVERY)
    connection.execute(update(tokens).where(tokens.c.id == token_id, is_due).values(last_used_at=now))
