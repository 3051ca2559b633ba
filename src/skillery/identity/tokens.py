"""Tokens of the registry: create, list, revoke and verify them."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Literal, get_args

import msgspec
from sqlalchemy import Connection, bindparam, exists, insert, or_, select, text, update

from skillery import audit
from skillery.audit import Actor
from skillery.backends import Identity, Scope, VerifiedToken
from skillery.database import Database, Statement, in_utc
from skillery.database.tables import tokens
from skillery.errors import Conflict, InvalidParams, NotAuthenticated, TokenNotFound
from skillery.formats.tokens import id_of, new_token, parse_grants, parse_lifetime, parse_token_name
from skillery.formats.wording import did_you_mean, quoted

SCOPES: tuple[Scope, ...] = get_args(Scope)
Kind = Literal["person", "agent"]
Status = Literal["live", "expired", "revoked"]
BOOTSTRAP = "admin"
"""The name of the token that the first start of a server creates."""
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
    ).where(tokens.c.id == bindparam("token_id"))
)
_strings = msgspec.json.Decoder(tuple[str, ...])
_NOBODY = bytes(32)


class Token(msgspec.Struct, frozen=True):
    """A token without its secret, as `list_tokens` returns it."""

    id: str
    name: str
    kind: Kind
    scopes: tuple[str, ...]
    namespaces: tuple[str, ...]
    status: Status
    created_at: datetime
    created_by: str
    expires_at: datetime | None
    revoked_at: datetime | None
    last_used_at: datetime | None
    """Updated at most once a minute."""


class Tokens(msgspec.Struct, frozen=True):
    """Every token that was ever created, oldest first."""

    tokens: list[Token]


class CreatedToken(msgspec.Struct, frozen=True):
    """Result of `create_token`. No other method returns `token`."""

    token: str
    id: str
    name: str
    kind: Kind
    scopes: tuple[str, ...]
    namespaces: tuple[str, ...]
    created_at: datetime
    created_by: str
    expires_at: datetime | None


class RegistryTokens:
    """The `skillery.backends.Tokens` of one database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def verify(self, token: str) -> VerifiedToken:
        token_id = id_of(token)
        if token_id is None:
            raise NotAuthenticated("this is no token of a Skillery server")
        return await self._database.read(partial(verify_token, token=token, token_id=token_id))

    async def note_use(self, token_id: str) -> None:
        await self._database.write(partial(note_use, token_id=token_id))

    def first_token(self) -> str | None:
        made = self._database.write_now(first_token)
        return made.token if made else None


def digest_of(token: str) -> bytes:
    """Return the hash that is stored for a token. One round of hashing is enough, because a token has 256 random
    bits.
    """
    return hashlib.sha256(token.encode()).digest()


def parse_scopes(words: Iterable[str]) -> tuple[Scope, ...]:
    """Return the scopes in the order of SCOPES, without duplicates.

    Raise InvalidParams if a scope is unknown, or if there is no scope.
    """
    given = set(words)
    for word in sorted(given - set(SCOPES)):
        raise InvalidParams(
            f"there is no scope {quoted(word)}{did_you_mean(word, SCOPES)}",
            hint=f"The scopes are {', '.join(SCOPES)}.",
            param="scopes",
        )
    if not given:
        raise InvalidParams("a token needs a scope", hint=f"The scopes are {', '.join(SCOPES)}.", param="scopes")
    return tuple(scope for scope in SCOPES if scope in given)


def create_token(
    connection: Connection,
    actor: Actor,
    *,
    name: str,
    scopes: Sequence[str],
    namespaces: Sequence[str] = (),
    kind: Kind = "person",
    expires: str = "",
    created_by: str | None = None,
) -> CreatedToken:
    """Create a token. Tokens with the same name are one identity, which keeps its runs and blobs when a token ends.

    `created_by` is the name of the actor by default. Raise InvalidName if the name is invalid. Raise InvalidParams if
    scopes, namespaces or `expires` are invalid. Raise Conflict if a valid token with this name has the other `kind`
    (person or agent).
    """
    lifetime = parse_lifetime(expires)
    now = datetime.now(UTC)
    made = new_token()
    created = CreatedToken(
        token=made.text,
        id=made.id,
        name=parse_token_name(name),
        kind=kind,
        scopes=parse_scopes(scopes),
        namespaces=parse_grants(namespaces),
        created_at=now,
        created_by=actor.name if created_by is None else created_by,
        expires_at=now + lifetime if lifetime else None,
    )
    _one_at_a_time(connection)
    _check_kind(connection, created)
    _insert(connection, created)
    after = {key: getattr(created, key) for key in ("name", "kind", "scopes", "namespaces", "expires_at")}
    audit.record(connection, actor, "create_token", created.id, after=after)
    return created


def first_token(connection: Connection) -> CreatedToken | None:
    """Create an admin token if no token was ever created, else return None.

    If several servers start at the same time, only one of them creates the token.
    """
    _one_at_a_time(connection)
    if connection.scalar(select(exists().select_from(tokens))):
        return None
    server, how = audit.SERVER, "first start"
    return create_token(connection, server, name=BOOTSTRAP, scopes=["admin"], namespaces=["*"], created_by=how)


def list_tokens(connection: Connection) -> list[Token]:
    """Return all tokens, oldest first, also revoked and expired ones."""
    rows = connection.execute(select(tokens).order_by(tokens.c.created_at, tokens.c.id))
    return [_token(row) for row in rows]


def revoke_token(connection: Connection, actor: Actor, token_id: str) -> Token:
    """Revoke a token permanently and return it. `token_id` may also be the whole token. A second call changes nothing.

    Raise TokenNotFound if there is no such token.
    """
    wanted = id_of(token_id) or token_id
    live = update(tokens).where(tokens.c.id == wanted, tokens.c.revoked_at.is_(None))
    is_new = connection.execute(live.values(revoked_at=datetime.now(UTC))).rowcount > 0
    row = connection.execute(select(tokens).where(tokens.c.id == wanted)).one_or_none()
    if row is None:
        raise TokenNotFound(f"there is no token with the id {quoted(wanted)}", hint="list_tokens returns every id.")
    revoked = _token(row)
    if is_new:
        before, after = {"name": revoked.name, "revoked_at": None}, {"revoked_at": revoked.revoked_at}
        audit.record(connection, actor, "revoke_token", revoked.id, before=before, after=after)
    return revoked


def verify_token(connection: Connection, token: str, token_id: str) -> VerifiedToken:
    """Return the identity of a token. Raise NotAuthenticated if the token is unknown, expired or revoked."""
    # The id finds the row. The hash of the whole token decides, compared in constant time.
    rows = _FIND.rows(connection, token_id=token_id)
    stored = bytes(rows[0][0]) if rows else _NOBODY
    if not hmac.compare_digest(stored, digest_of(token)) or not rows:
        raise NotAuthenticated("this token is unknown")
    _, name, kind, scopes, namespaces, expires_at, revoked_at = rows[0]
    if revoked_at is not None:
        raise NotAuthenticated("this token was revoked")
    until = in_utc(expires_at)
    if until is not None and until <= datetime.now(UTC):
        raise NotAuthenticated("this token has expired")
    known: frozenset[Scope] = frozenset(_strings.decode(scopes))  # type: ignore[arg-type]  # checked when it was made
    return VerifiedToken(token_id, Identity(name, kind, known, _strings.decode(namespaces)), until)


def note_use(connection: Connection, token_id: str) -> None:
    """Record the current time as the last use of a token, unless a use was recorded within the last minute."""
    now = datetime.now(UTC)
    is_due = or_(tokens.c.last_used_at.is_(None), tokens.c.last_used_at < now - USED_EVERY)
    connection.execute(update(tokens).where(tokens.c.id == token_id, is_due).values(last_used_at=now))


def _one_at_a_time(connection: Connection) -> None:
    """Prevent other transactions from changing tokens until this one ends, so that the result of a check stays true.

    SQLite needs no lock, because it has one writer at a time.
    """
    if connection.dialect.name == "postgresql":
        connection.execute(text("LOCK TABLE tokens IN SHARE ROW EXCLUSIVE MODE"))


def _check_kind(connection: Connection, created: CreatedToken) -> None:
    now = datetime.now(UTC)
    others = select(tokens.c.kind).where(
        tokens.c.name == created.name,
        tokens.c.kind != created.kind,
        tokens.c.revoked_at.is_(None),
        or_(tokens.c.expires_at.is_(None), tokens.c.expires_at > now),
    )
    other = connection.scalar(others.limit(1))
    if other is not None:
        raise Conflict(
            f"the name '{created.name}' belongs to {_a(other)}, and this token would be {_a(created.kind)}'s",
            hint="Tokens of one name are one identity: choose another name, or revoke the other tokens first.",
            name=created.name,
        )


def _a(kind: str) -> str:
    return "an agent" if kind == "agent" else "a person"


def _insert(connection: Connection, created: CreatedToken) -> None:
    connection.execute(
        insert(tokens).values(
            id=created.id,
            name=created.name,
            kind=created.kind,
            hash=digest_of(created.token),
            scopes_json=msgspec.json.encode(created.scopes).decode(),
            namespaces_json=msgspec.json.encode(created.namespaces).decode(),
            created_at=created.created_at,
            created_by=created.created_by,
            expires_at=created.expires_at,
        )
    )


def _token(row: Any) -> Token:
    expires_at = in_utc(row.expires_at)
    revoked_at = in_utc(row.revoked_at)
    is_over = expires_at is not None and expires_at <= datetime.now(UTC)
    created_at = in_utc(row.created_at)
    assert created_at is not None
    return Token(
        id=row.id,
        name=row.name,
        kind=row.kind,
        scopes=_strings.decode(row.scopes_json),
        namespaces=_strings.decode(row.namespaces_json),
        status="revoked" if revoked_at else "expired" if is_over else "live",
        created_at=created_at,
        created_by=row.created_by,
        expires_at=expires_at,
        revoked_at=revoked_at,
        last_used_at=in_utc(row.last_used_at),
    )
