"""Tokens of the registry: create, read and end their rows."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, get_args

import msgspec
from sqlalchemy import ColumnElement, Connection, and_, delete, exists, insert, or_, select, text, update

from skillery import audit
from skillery.audit import Actor
from skillery.backends import Identity, Scope
from skillery.database import in_utc, is_past
from skillery.database.tables import tokens
from skillery.errors import Conflict, InvalidParams, NotAllowed, TokenNotFound
from skillery.formats.tokens import id_of, new_token, parse_grants, parse_lifetime, parse_token_name
from skillery.formats.wording import did_you_mean, quoted

SCOPES: tuple[Scope, ...] = get_args(Scope)
JUST_REVOKED = timedelta(seconds=5)
"""Longer than any server takes to learn of a revocation, and to end the calls that it has admitted before."""
Kind = Literal["person", "agent"]
Status = Literal["live", "expired", "revoked"]
Remark = Literal["never_expires", "old", "unused"]
REMARKS: dict[Remark, str] = {
    "never_expires": "without an end",
    "old": "older than a year",
    "unused": "unused for 90 days",
}
OLD = timedelta(days=365)
UNUSED = timedelta(days=90)
BOOTSTRAP = "admin"
"""The name of the token that the first start of a server creates."""
_strings = msgspec.json.Decoder(tuple[str, ...])


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
    remarks: tuple[Remark, ...] = ()
    """For live tokens: `never_expires`, `old` (created a year ago), `unused` (for 90 days)."""


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


def digest_of(token: str) -> bytes:
    """Return the SHA-256 of a token. One round of hashing is enough, because a token has 256 random bits."""
    return hashlib.sha256(token.encode()).digest()


def parse_scopes(words: Iterable[str]) -> tuple[Scope, ...]:
    """Return the scopes in the order of SCOPES, without duplicates.

    Raise InvalidParams if a scope is unknown, or if there is no scope.
    """
    values = set(words)
    for word in sorted(values - set(SCOPES)):
        raise InvalidParams(
            f"there is no scope {quoted(word)}{did_you_mean(word, SCOPES)}",
            hint=f"The scopes are {', '.join(SCOPES)}.",
            param="scopes",
        )
    if not values:
        raise InvalidParams("a token needs a scope", hint=f"The scopes are {', '.join(SCOPES)}.", param="scopes")
    return tuple(scope for scope in SCOPES if scope in values)


def insert_token(
    connection: Connection,
    actor: Actor,
    *,
    name: str,
    scopes: Sequence[str],
    namespaces: Sequence[str] = (),
    kind: Kind = "person",
    expires: str = "",
    max_days: int = 0,
    created_by: str | None = None,
) -> CreatedToken:
    """Create a token. Tokens with the same name are one identity, which keeps its runs and blobs when a token ends.

    `max_days` is the longest lifetime, and the default; 0 means no limit. `created_by` is the name of the actor by
    default. Raise InvalidName if the name is invalid. Raise InvalidParams if scopes, namespaces or `expires` are
    invalid. Raise Conflict if a valid token with this name has the other `kind` (person or agent). Raise NotAllowed if
    the tokens of the actor were just revoked.
    """
    lifetime = _lifetime(expires, max_days)
    now = datetime.now(UTC)
    secret = new_token()
    created = CreatedToken(
        token=secret.text,
        id=secret.id,
        name=parse_token_name(name),
        kind=kind,
        scopes=parse_scopes(scopes),
        namespaces=parse_grants(namespaces),
        created_at=now,
        created_by=actor.name if created_by is None else created_by,
        expires_at=now + lifetime if lifetime else None,
    )
    one_at_a_time(connection)
    _check_actor(connection, actor)
    _check_kind(connection, created)
    _insert(connection, created)
    after = {key: getattr(created, key) for key in ("name", "kind", "scopes", "namespaces", "expires_at")}
    audit.record(connection, actor, "create_token", created.id, after=after)
    return created


def _lifetime(expires: str, max_days: int) -> timedelta | None:
    """Return the lifetime of a new token. Raise InvalidParams if it is longer than `max_days`."""
    if not max_days:
        return parse_lifetime(expires)
    longest = timedelta(days=max_days)
    lifetime = parse_lifetime(expires) if expires else longest
    if lifetime is None or lifetime > longest:
        raise InvalidParams(
            f"a token of this server lives at most {max_days} days (tokens.max_days)",
            hint=f"Write {max_days}d or less, or leave 'expires' out.",
            param="expires",
        )
    return lifetime


def create_short_token(connection: Connection, identity: Identity, rule_id: str, lifetime: timedelta) -> CreatedToken:
    """Create a token of a CI job, with the scopes and grants of the identity. The caller records the audit entry.

    `rule_id` is the trust rule of the job: `revoke_tokens_of_rule` ends the token. No other token can have the name of
    a CI job (`parse_token_name`), so the kind is not compared with that of other tokens.
    """
    now, token = datetime.now(UTC), new_token()
    created = CreatedToken(
        token=token.text,
        id=token.id,
        name=identity.name,
        kind=identity.kind,
        scopes=parse_scopes(identity.scopes),
        namespaces=identity.namespaces,
        created_at=now,
        created_by=rule_id,
        expires_at=now + lifetime,
    )
    job = msgspec.json.encode(identity.provenance).decode()
    _insert(connection, created, trust_rule_id=rule_id, provenance_json=job)
    return created


def revoke_tokens_of_rule(connection: Connection, rule_id: str) -> int:
    """Revoke the live tokens that CI jobs got by a trust rule. Return their number."""
    now = datetime.now(UTC)
    is_live = (tokens.c.trust_rule_id == rule_id, tokens.c.revoked_at.is_(None), tokens.c.expires_at > now)
    return connection.execute(update(tokens).where(*is_live).values(revoked_at=now)).rowcount


def forget_short_tokens(connection: Connection, before: datetime, limit: int) -> int:
    """Delete at most `limit` tokens of CI jobs that expired before a time. Return the number of deleted tokens."""
    old = select(tokens.c.id).where(tokens.c.trust_rule_id.is_not(None), tokens.c.expires_at < before).limit(limit)
    return connection.execute(delete(tokens).where(tokens.c.id.in_(old))).rowcount


def first_token(connection: Connection) -> CreatedToken | None:
    """Create an admin token if no token was ever created, else return None.

    If several servers start at the same time, only one of them creates the token.
    """
    one_at_a_time(connection)
    if connection.scalar(select(exists().select_from(tokens))):
        return None
    server, created_by = audit.SERVER, "first start"
    return insert_token(connection, server, name=BOOTSTRAP, scopes=["admin"], namespaces=["*"], created_by=created_by)


def read_tokens(connection: Connection, name: str | None = None) -> Tokens:
    """Return all tokens, or those of a name, also revoked and expired ones, oldest first."""
    chosen = select(tokens) if name is None else select(tokens).where(tokens.c.name == name)
    rows = connection.execute(chosen.order_by(tokens.c.created_at, tokens.c.id))
    return Tokens([_token(row) for row in rows])


def remarked(tokens: Iterable[Token]) -> str:
    """Return how many tokens have each remark, such as `2 without an end, 1 unused for 90 days`, or ""."""
    counts = Counter(remark for token in tokens for remark in token.remarks)
    return ", ".join(f"{counts[remark]} {words}" for remark, words in REMARKS.items() if counts[remark])


def end_token(connection: Connection, actor: Actor, token_id: str) -> Token:
    """Revoke a token permanently and return it. `token_id` is its id or its whole text. A second call changes nothing.

    Raise TokenNotFound if there is no such token.
    """
    revoked_id = id_of(token_id) or token_id
    revocation = update(tokens).where(tokens.c.id == revoked_id, tokens.c.revoked_at.is_(None))
    is_new = connection.execute(revocation.values(revoked_at=datetime.now(UTC))).rowcount > 0
    row = connection.execute(select(tokens).where(tokens.c.id == revoked_id)).one_or_none()
    if row is None:
        raise TokenNotFound(f"there is no token with the id {quoted(revoked_id)}", hint="list_tokens returns every id.")
    revoked = _token(row)
    if is_new:
        before, after = {"name": revoked.name, "revoked_at": None}, {"revoked_at": revoked.revoked_at}
        audit.record(connection, actor, "revoke_token", revoked.id, before=before, after=after)
    return revoked


def one_at_a_time(connection: Connection) -> None:
    """Prevent other transactions from changing tokens until this transaction ends, so that the result of a check stays
    true.

    SQLite needs no lock, because it has one writer at a time.
    """
    if connection.dialect.name == "postgresql":
        connection.execute(text("LOCK TABLE tokens IN SHARE ROW EXCLUSIVE MODE"))


def _check_actor(connection: Connection, actor: Actor) -> None:
    """Raise NotAllowed if all tokens of the actor have ended, and one was revoked within JUST_REVOKED.

    A server that does not yet know the revocation still admits the actor, who would replace the token.
    """
    now = datetime.now(UTC)
    of_actor = select(tokens.c.revoked_at).where(tokens.c.name == actor.name, or_(_is_live(now), _just_revoked(now)))
    rows = connection.scalars(of_actor).all()
    if rows and None not in rows:
        raise NotAllowed(f"the tokens of {quoted(actor.name)} were just revoked", hint="Ask an admin.")


def _is_live(now: datetime) -> ColumnElement[bool]:
    return and_(tokens.c.revoked_at.is_(None), or_(tokens.c.expires_at.is_(None), tokens.c.expires_at > now))


def _just_revoked(now: datetime) -> ColumnElement[bool]:
    return tokens.c.revoked_at > now - JUST_REVOKED


def _check_kind(connection: Connection, created: CreatedToken) -> None:
    """Raise Conflict if a live token with this name has the other kind (person or agent)."""
    now = datetime.now(UTC)
    other_kinds = select(tokens.c.kind).where(
        tokens.c.name == created.name, tokens.c.kind != created.kind, _is_live(now)
    )
    other_kind = connection.scalar(other_kinds.limit(1))
    if other_kind is not None:
        raise Conflict(
            f"the name '{created.name}' belongs to {_a(other_kind)}, and this token would be {_a(created.kind)}'s",
            hint="Tokens of one name are one identity: choose another name, or revoke the other tokens first.",
            name=created.name,
        )


def _a(kind: str) -> str:
    """Return the kind with its article: "a person" or "an agent"."""
    return "an agent" if kind == "agent" else "a person"


def _insert(connection: Connection, created: CreatedToken, **more: str) -> None:
    """Add the row of a token, with the columns `more`."""
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
            **more,
        )
    )


def _token(row: Any) -> Token:
    """Return the token of a row, with its present status."""
    expires_at = in_utc(row.expires_at)
    revoked_at = in_utc(row.revoked_at)
    created_at = in_utc(row.created_at)
    status: Status = "revoked" if revoked_at else "expired" if is_past(expires_at, datetime.now(UTC)) else "live"
    last_used_at = in_utc(row.last_used_at)
    return Token(
        id=row.id,
        name=row.name,
        kind=row.kind,
        scopes=_strings.decode(row.scopes_json),
        namespaces=_strings.decode(row.namespaces_json),
        status=status,
        created_at=created_at,
        created_by=row.created_by,
        expires_at=expires_at,
        revoked_at=revoked_at,
        last_used_at=last_used_at,
        remarks=_remarks(created_at, expires_at, last_used_at) if status == "live" else (),
    )


def _remarks(created_at: datetime, expires_at: datetime | None, last_used_at: datetime | None) -> tuple[Remark, ...]:
    """Return why an admin should look at a live token."""
    now = datetime.now(UTC)
    applies: dict[Remark, bool] = {
        "never_expires": expires_at is None,
        "old": now - created_at >= OLD,
        "unused": now - (last_used_at or created_at) >= UNUSED,
    }
    return tuple(remark for remark, is_true in applies.items() if is_true)
