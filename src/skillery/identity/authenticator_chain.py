"""Authenticators: the first one that recognizes the credentials decides. One of them knows the registry's tokens."""

from __future__ import annotations

import hmac
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial

import msgspec
from sqlalchemy import Connection, bindparam, or_, select, update

from skillery.backends import (
    Authenticator,
    Credentials,
    Identity,
    KeepsTokens,
    Provenance,
    Resource,
    RevokesIdentities,
    Scope,
    VerifiedToken,
)
from skillery.backends.values import has_default
from skillery.database import Database, Statement, in_utc
from skillery.database.tables import tokens
from skillery.errors import NotAuthenticated, StartupError, TooManyFailedLogins
from skillery.formats.tokens import id_of
from skillery.identity.tokens import digest_of, first_token


def responsible(authenticators: Mapping[str, Authenticator], credentials: Credentials) -> str:
    """Return the name of the authenticator that accepts or refuses the credentials."""
    for name, authenticator in authenticators.items():
        if authenticator.recognizes(credentials):
            return name
    return next(iter(authenticators))


def by_name(authenticator: Authenticator, names: Sequence[str]) -> Mapping[str, Authenticator]:
    """Return the authenticators of a server by name. `names` are the names of the setting `auth`."""
    return authenticator.by_name if isinstance(authenticator, AuthenticatorChain) else {names[0]: authenticator}


def revokers(authenticators: Mapping[str, Authenticator]) -> list[RevokesIdentities]:
    """Return the authenticators that keep a list of revoked identities."""
    return [authenticator for authenticator in authenticators.values() if isinstance(authenticator, RevokesIdentities)]


def keeps_tokens(authenticator: Authenticator) -> bool:
    """Return whether an authenticator, or one of a chain, accepts tokens of the registry."""
    if isinstance(authenticator, AuthenticatorChain):
        return any(isinstance(member, KeepsTokens) for member in authenticator.by_name.values())
    return isinstance(authenticator, KeepsTokens)


class AuthenticatorChain(Authenticator):
    """An Authenticator of other authenticators, in the order of the setting `auth`.

    An authenticator without `recognizes` is the last one, and gets the credentials that no other one recognizes. If no
    authenticator recognizes the credentials, the first one refuses them with its own message, and the hint names what
    each of them accepts.
    """

    def __init__(self, authenticators: Mapping[str, Authenticator]) -> None:
        """`authenticators` are in the order of the setting `auth`, by name.

        Raise StartupError if `open` is one of them, or if an authenticator without `recognizes` is not the last.
        """
        if "open" in authenticators:
            raise StartupError("auth 'open' accepts every caller: it cannot be combined with other authenticators")
        *all_but_last, _ = authenticators.items()
        for name, authenticator in all_but_last:
            if has_default(authenticator, Authenticator.recognizes):
                raise StartupError(
                    f"auth '{name}' takes all credentials, so '{name}' must be the last in the setting 'auth'"
                )
        self.by_name = dict(authenticators)
        self._hints: list[str | None] = []
        """The hint of each authenticator for requests without credentials."""
        self.loopback_only = any(authenticator.loopback_only for authenticator in authenticators.values())

    async def authenticate(self, credentials: Credentials) -> Identity:
        authenticator = self.by_name[responsible(self.by_name, credentials)]
        try:
            return await authenticator.authenticate(credentials)
        except TooManyFailedLogins:
            raise
        except NotAuthenticated as error:
            if authenticator.recognizes(credentials):
                raise
            hints = dict.fromkeys([error.hint, *self._hints])
            raise NotAuthenticated(error.message, hint=" Or: ".join(filter(None, hints))) from None

    def forget(self) -> None:
        for authenticator in self.by_name.values():
            if isinstance(authenticator, KeepsTokens):
                authenticator.forget()

    def note_failure(self, address: str) -> float | None:
        """Count a failed login with the first authenticator that limits them."""
        for authenticator in self.by_name.values():
            if not has_default(authenticator, Authenticator.note_failure):
                return authenticator.note_failure(address)
        return None

    def first_token(self) -> str | None:
        keepers = (authenticator for authenticator in self.by_name.values() if isinstance(authenticator, KeepsTokens))
        return next((token for keeper in keepers if (token := keeper.first_token())), None)

    def resource(self) -> Resource | None:
        """Return the description of the first authenticator that has one, with the issuers and scopes of all
        authenticators.

        `cli_client_id` is a client at the first issuer, so it comes from the first description.
        """
        answers = [authenticator.resource() for authenticator in self.by_name.values()]
        resources = [resource for resource in answers if resource is not None]
        if not resources:
            return None
        issuers = dict.fromkeys(issuer for resource in resources for issuer in resource.authorization_servers)
        scopes = dict.fromkeys(scope for resource in resources for scope in resource.scopes)
        return Resource(resources[0].address, tuple(issuers), tuple(scopes), resources[0].cli_client_id)

    async def start(self) -> None:
        for authenticator in self.by_name.values():
            await authenticator.start()
            try:
                await authenticator.authenticate(Credentials({}, "127.0.0.1"))
            except Exception as error:  # noqa: BLE001 - also of a plugin that fails, which is counted
                self._hints.append(getattr(error, "hint", None))

    async def close(self) -> None:
        for authenticator in self.by_name.values():
            await authenticator.close()


# -- Verification of the registry's tokens, and the record of their last use -------------------------------------------


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
    """Implements `skillery.backends.Tokens` for one database."""

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
        created = self._database.write_now(first_token)
        return created.token if created else None


def verify_token(connection: Connection, token: str, token_id: str) -> VerifiedToken:
    """Return the identity of a token. Raise NotAuthenticated if the token is unknown, expired or revoked."""
    # The id finds the row. The hash of the whole token decides, compared in constant time.
    rows = _FIND.rows(connection, token_id=token_id)
    stored = bytes(rows[0][0]) if rows else _NOBODY
    if not hmac.compare_digest(stored, digest_of(token)) or not rows:
        raise NotAuthenticated("this token is unknown")
    _, name, kind, scopes, namespaces, expires_at, revoked_at, provenance = rows[0]
    if revoked_at is not None:
        raise _ended("revoked", name, "this token was revoked")
    until = in_utc(expires_at)
    if until is not None and until <= datetime.now(UTC):
        raise _ended("expired", name, "this token has expired")
    known_scopes: frozenset[Scope] = frozenset(_strings.decode(scopes))  # type: ignore[arg-type]  # checked when it was made
    job = _provenance.decode(provenance) if provenance else None
    return VerifiedToken(token_id, Identity(name, kind, known_scopes, _strings.decode(namespaces), job), until)


def _ended(how: str, name: str, message: str) -> NotAuthenticated:
    error = NotAuthenticated(message)
    error.token = f"{how} token {name}"
    return error


def note_use(connection: Connection, token_id: str) -> None:
    """Record the current time as the last use of a token, unless a use was recorded within the last minute."""
    now = datetime.now(UTC)
    is_due = or_(tokens.c.last_used_at.is_(None), tokens.c.last_used_at < now - USED_EVERY)
    connection.execute(update(tokens).where(tokens.c.id == token_id, is_due).values(last_used_at=now))
