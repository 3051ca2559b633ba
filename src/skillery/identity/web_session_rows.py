"""The rows of sessions: start, find and end them. A session is the login of one browser."""

from __future__ import annotations

import secrets
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import NamedTuple

import msgspec
from sqlalchemy import ColumnElement, Connection, bindparam, delete, exists, func, insert, or_, select, update

from skillery import audit
from skillery.backends import Identity, LoggedIn, Scope
from skillery.database import Statement, in_utc, take_turns
from skillery.database.tables import tokens, web_sessions
from skillery.errors import NotAllowed
from skillery.formats.tokens import id_of
from skillery.identity.authenticator_chain import verify_token

IDLE = timedelta(hours=12)
"""Time without a request after which a session ends."""
LONGEST = timedelta(days=7)
SEEN_EVERY = timedelta(minutes=1)
MOST_OF_IDENTITY = 100
"""Limit of the sessions of one identity. A new session ends the session that was not used for the longest time."""
SECRET_BYTES = 32
_FIND = Statement(
    select(
        web_sessions.c.identity,
        web_sessions.c.authenticator,
        web_sessions.c.identity_json,
        web_sessions.c.made_at,
        web_sessions.c.seen_at,
        web_sessions.c.ends_at,
        tokens.c.kind,
        tokens.c.scopes_json,
        tokens.c.namespaces_json,
        tokens.c.expires_at,
        tokens.c.revoked_at,
    )
    .select_from(web_sessions.outerjoin(tokens, tokens.c.id == web_sessions.c.token_id))
    .where(web_sessions.c.hash == bindparam("hash"))
)
_identity = msgspec.json.Decoder(Identity)
_scopes = msgspec.json.Decoder(frozenset[Scope])
_namespaces = msgspec.json.Decoder(tuple[str, ...])


class WebSession(msgspec.Struct, frozen=True):
    """The login of one browser."""

    hash: bytes
    identity: Identity
    authenticator: str
    """The authenticator that has signed the browser in."""
    made_at: datetime
    """Time of the login. Each login starts a new session."""
    ends_at: datetime
    """The earlier of the latest end of the session and the end of its token."""


class SeenSession(NamedTuple):
    """A session of a user, as the page of sessions shows it to this user."""

    hash: bytes
    authenticator: str
    made_at: datetime
    seen_at: datetime
    """Time of the last request, with a precision of SEEN_EVERY."""


class SignedIn(NamedTuple):
    """A new session, and the secret that only the cookie of the browser has."""

    secret: str
    session: WebSession


def hash_of(secret: str) -> bytes:
    """Return the SHA-256 of the secret of a session. One round is enough, because a secret has 256 random bits."""
    return sha256(secret.encode()).digest()


def sign_in_with_token(connection: Connection, token: str, authenticator: str, replaced: bytes | None) -> SignedIn:
    """Start a session with the rights of a token of the registry. The token is not stored.

    `replaced` is the hash of the browser's earlier session, which ends. Raise NotAuthenticated if the token is not
    valid, NotAllowed if the token belongs to a CI job.
    """
    token_id = id_of(token) or ""
    verified = verify_token(connection, token, token_id)
    if verified.identity.provenance is not None:
        # A session has no provenance, so it could do what a job must not do, such as managing trust rules.
        raise NotAllowed("this is the token of a CI job, which only publishes", hint="Sign in with your own token.")
    signed_in = _new(verified.identity, authenticator, verified.expires_at)
    _start(connection, signed_in, replaced, {"token_id": token_id}, token_id)
    return signed_in


def sign_in(connection: Connection, login: LoggedIn, authenticator: str, replaced: bytes | None) -> SignedIn:
    """Start a session for a user whom an authenticator has logged in. The session with the hash `replaced` ends."""
    signed_in = _new(login.identity, authenticator, login.expires_at)
    rights = msgspec.json.encode(login.identity).decode()
    _start(connection, signed_in, replaced, {"subject": login.subject[:255], "identity_json": rights}, login.subject)
    return signed_in


def _new(identity: Identity, authenticator: str, expires_at: datetime | None) -> SignedIn:
    """Return a new session and its secret, for an identity whose login ends at `expires_at`."""
    secret, now = secrets.token_urlsafe(SECRET_BYTES), datetime.now(UTC)
    ends_at = min(now + LONGEST, expires_at or now + LONGEST)
    return SignedIn(secret, WebSession(hash_of(secret), identity, authenticator, now, ends_at))


def _start(
    connection: Connection, signed_in: SignedIn, replaced: bytes | None, more: dict[str, str], subject: str
) -> None:
    """Add the row of the session with the columns `more`, end the session `replaced`, and record a login by
    `subject`.
    """
    session = signed_in.session
    if replaced is not None:
        _delete(connection, web_sessions.c.hash == replaced)
    row = {
        "hash": session.hash,
        "identity": session.identity.name,
        "authenticator": session.authenticator,
        "made_at": session.made_at,
        "seen_at": session.made_at,
        "ends_at": session.ends_at,
    }
    connection.execute(insert(web_sessions).values(row | more))
    _drop_unused(connection, session.identity.name)
    after = {"authenticator": session.authenticator, "ends_at": session.ends_at}
    audit.record(connection, session.identity, "login", subject, after=after)


def _drop_unused(connection: Connection, identity: str) -> None:
    """Delete the least recently used sessions of an identity, if it has too many."""
    take_turns(connection, "sessions", identity)
    of_identity = select(web_sessions.c.hash).where(web_sessions.c.identity == identity)
    unused = of_identity.order_by(web_sessions.c.seen_at.desc(), web_sessions.c.hash).offset(MOST_OF_IDENTITY)
    _delete(connection, web_sessions.c.hash.in_(list(connection.scalars(unused))))


def find_session(connection: Connection, hashed: bytes) -> WebSession | None:
    """Return the session, or None if it is unknown or has ended, or if its token has expired or was revoked."""
    rows = _FIND.rows(connection, hash=hashed)
    if not rows:
        return None
    name, authenticator, identity_json, made_at, seen_at, ends_at, kind, scopes, namespaces, expires_at, revoked_at = (
        rows[0]
    )
    now = datetime.now(UTC)
    end = min(in_utc(ends_at), in_utc(expires_at) or in_utc(ends_at))
    if revoked_at is not None or end <= now or in_utc(seen_at) + IDLE <= now:
        return None
    identity = (
        Identity(name, kind, _scopes.decode(scopes), _namespaces.decode(namespaces))
        if identity_json is None
        else _identity.decode(identity_json)
    )
    return WebSession(hashed, identity, authenticator, in_utc(made_at), end)


def note_seen(connection: Connection, hashed: bytes) -> None:
    """Record the present time as the last use of a session, unless a use was recorded within the last minute."""
    now = datetime.now(UTC)
    is_due = web_sessions.c.seen_at < now - SEEN_EVERY
    connection.execute(update(web_sessions).where(web_sessions.c.hash == hashed, is_due).values(seen_at=now))


def sign_out(connection: Connection, hashed: bytes) -> bool:
    """End a session. Return False if the session had already ended."""
    session = find_session(connection, hashed)
    ended = _delete(connection, web_sessions.c.hash == hashed)
    if session is None or not ended:
        return False
    audit.record(connection, session.identity, "logout", "", before={"made_at": session.made_at})
    return True


def list_sessions(connection: Connection, name: str) -> list[SeenSession]:
    """Return the sessions of an identity that have not ended, the most recently used first."""
    statement = select(
        web_sessions.c.hash, web_sessions.c.authenticator, web_sessions.c.made_at, web_sessions.c.seen_at
    ).where(web_sessions.c.identity == name, ~_has_ended())
    rows = connection.execute(statement.order_by(web_sessions.c.seen_at.desc(), web_sessions.c.hash)).all()
    return [SeenSession(row.hash, row.authenticator, in_utc(row.made_at), in_utc(row.seen_at)) for row in rows]


def end_other_sessions(connection: Connection, session: WebSession) -> int:
    """End all sessions of the identity of a session, except this session. Return the number of ended sessions."""
    other_sessions = web_sessions.c.identity == session.identity.name, web_sessions.c.hash != session.hash
    ended = _delete(connection, *other_sessions)
    if ended:
        audit.record(connection, session.identity, "logout", "", before={"other_sessions": ended})
    return ended


def end_provider_sessions(connection: Connection, name: str) -> int:
    """End the sessions of an identity that began with a login at a provider. Return the number of ended sessions."""
    return _delete(connection, web_sessions.c.identity == name, web_sessions.c.token_id.is_(None))


def count_ended(connection: Connection) -> int:
    return connection.scalar(select(func.count()).select_from(web_sessions).where(_has_ended())) or 0


def forget_ended(connection: Connection, *, limit: int) -> int:
    """Delete at most `limit` sessions that have ended. Return the number of deleted sessions."""
    rows = connection.scalars(select(web_sessions.c.hash).where(_has_ended()).limit(limit))
    return _delete(connection, web_sessions.c.hash.in_(list(rows)))


def _has_ended() -> ColumnElement[bool]:
    now = datetime.now(UTC)
    is_over = or_(tokens.c.revoked_at.is_not(None), tokens.c.expires_at <= now)
    token = select(tokens.c.id).where(tokens.c.id == web_sessions.c.token_id, is_over)
    return or_(web_sessions.c.ends_at <= now, web_sessions.c.seen_at <= now - IDLE, exists(token))


def _delete(connection: Connection, *conditions: ColumnElement[bool]) -> int:
    return connection.execute(delete(web_sessions).where(*conditions)).rowcount
