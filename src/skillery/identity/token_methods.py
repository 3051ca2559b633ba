"""create_token, list_tokens and rotate_token."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Literal, NamedTuple

import msgspec
from sqlalchemy import Connection, update

from skillery import audit
from skillery.audit import Actor
from skillery.backends import Identity
from skillery.database.registry import Registry
from skillery.database.tables import tokens
from skillery.errors import Conflict, TokenNotFound
from skillery.formats.timestamps import parse_duration
from skillery.formats.wording import quoted
from skillery.identity.tokens import CreatedToken, Token, Tokens, insert_token, one_at_a_time, read_tokens
from skillery.method import Given, Method, Params, about


class TokenRules(NamedTuple):
    """The parts of the server that the methods for tokens use."""

    registry: Registry
    max_days: int
    """The setting `tokens.max_days`; 0 means no limit."""


# -- create_token ------------------------------------------------------------------------------------------------------


class CreateToken(Params, frozen=True, kw_only=True):
    """Create a token. Only this answer contains it."""

    name: Annotated[str, about("Name of the identity; tokens with one name are one identity")]
    scopes: Annotated[
        list[str], about("Scopes of the token: read, run, publish, review, metrics, audit, accounts, admin")
    ]
    namespaces: Annotated[
        list[str], about("Namespace grants: names to publish or review ('sales.*'; '*' for all)")
    ] = []
    kind: Annotated[
        Literal["person", "agent"], about("Whether the token belongs to a person or an agent", default="person")
    ] = "person"
    expires: Annotated[Given, about("Lifetime of the token (e.g., '90d'); omit for no end")] = ""


async def create_token(rules: TokenRules, identity: Identity, params: CreateToken) -> CreatedToken:
    work = partial(
        insert_token,
        actor=identity,
        name=params.name,
        scopes=params.scopes,
        namespaces=params.namespaces,
        kind=params.kind,
        expires=params.expires,
        max_days=rules.max_days,
    )
    return await rules.registry.write(work)


# -- list_tokens -------------------------------------------------------------------------------------------------------


class ListTokens(Params, frozen=True, kw_only=True):
    """List all tokens, without their secrets."""


async def list_tokens(registry: Registry, _: Identity, __: ListTokens) -> Tokens:
    return await registry.read(read_tokens)


# -- rotate_token ------------------------------------------------------------------------------------------------------


class RotateToken(Params, frozen=True, kw_only=True):
    """Replace the live tokens of an identity by a new one with the same rights. Only this answer contains it."""

    name: Annotated[str, about("Name of the identity")]
    overlap: Annotated[Given, about("How long the old tokens stay valid (e.g., '24h')", default="24h")] = "24h"
    expires: Annotated[Given, about("Lifetime of the new token (e.g., '90d'); omit for that of the newest one")] = ""


class RotatedToken(CreatedToken, frozen=True):
    """Result of `rotate_token`. No other method returns `token`."""

    replaced: tuple[str, ...] = ()
    """Ids of the old tokens."""
    replaced_until: datetime | None = None
    """The time at which the last old token ends."""


async def rotate_token(rules: TokenRules, identity: Identity, params: RotateToken) -> RotatedToken:
    work = partial(
        replace_tokens,
        actor=identity,
        name=params.name,
        overlap=params.overlap,
        expires=params.expires,
        max_days=rules.max_days,
    )
    return await rules.registry.write(work)


def replace_tokens(
    connection: Connection, actor: Actor, *, name: str, overlap: str = "24h", expires: str = "", max_days: int = 0
) -> RotatedToken:
    """Create a token with the rights of the live tokens of `name`, and end those after `overlap`.

    Raise TokenNotFound if there is no live token with this name, and Conflict if their rights differ: the new token
    would have more rights than one of them. Raise the errors of `insert_token`.
    """
    ends_at = datetime.now(UTC) + parse_duration(overlap, "overlap")
    one_at_a_time(connection)
    live = [token for token in read_tokens(connection, name).tokens if token.status == "live"]
    if not live:
        raise TokenNotFound(f"there is no live token of {quoted(name)}", hint="list_tokens returns every token.")
    newest = live[-1]
    if any((token.scopes, token.namespaces) != (newest.scopes, newest.namespaces) for token in live):
        raise Conflict(
            f"the {len(live)} live tokens of {quoted(name)} have different rights",
            hint="Create a token with the rights that are needed, and revoke the others: list_tokens shows them.",
            name=name,
        )
    created = insert_token(
        connection,
        actor,
        name=name,
        scopes=newest.scopes,
        namespaces=newest.namespaces,
        kind=newest.kind,
        expires=expires or _lifetime_of(newest, max_days),
        max_days=max_days,
    )
    ends = {token.id: min(ends_at, token.expires_at or ends_at) for token in live}
    for token_id, at in ends.items():
        connection.execute(update(tokens).where(tokens.c.id == token_id).values(expires_at=at))
    before = {"expires_at": {token.id: token.expires_at for token in live}}
    audit.record(connection, actor, "rotate_token", name, before=before, after={"id": created.id, "expires_at": ends})
    fields = msgspec.structs.asdict(created)
    return RotatedToken(**fields, replaced=tuple(ends), replaced_until=max(ends.values()))


def _lifetime_of(token: Token, max_days: int) -> str:
    """Return the lifetime of a token as text, at most `max_days` if this is not 0. "" means the default."""
    if token.expires_at is None:
        return ""
    seconds = round((token.expires_at - token.created_at).total_seconds())
    return f"{min(seconds, max_days * 86_400) if max_days else seconds}s"


METHODS = (
    Method(create_token, "admin", audits="name"),
    Method(list_tokens, "admin", audits=""),
    Method(rotate_token, "admin", audits="name"),
)
