"""Authenticators: from the credentials of a request to an identity."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Literal, Protocol, runtime_checkable

import msgspec

from skillery.backends.values import Identity, Kind, Transaction, WithDefaults, default
from skillery.errors import NotAuthenticated


class Credentials(msgspec.Struct, frozen=True):
    """The data of a request that identify the caller: the headers by lower-case name, and the IP address."""

    headers: Mapping[str, str]
    address: str


class Resource(msgspec.Struct, frozen=True):
    """How clients get a token for this server: the protected resource metadata of RFC 9728."""

    address: str
    """The public address of this server, without a slash at the end: `https://skills.example.org`."""
    authorization_servers: tuple[str, ...]
    """The issuers whose tokens this server accepts."""
    scopes: tuple[str, ...] = ()
    """The scopes that a client requests from the issuer. Empty: clients request none."""
    cli_client_id: str = ""
    """The public client of `skillery login` at the first issuer. Empty: users name a client with --client-id."""


class ExplainedCheck(msgspec.Struct, frozen=True):
    """One check of credentials: its subject, its outcome, and the reason."""

    subject: str
    outcome: Literal["ok", "failed", "skipped"]
    detail: str


class Explanation(msgspec.Struct, frozen=True):
    """How an authenticator decides about credentials. The texts must not contain the credentials or a part of a
    signature.
    """

    checks: tuple[ExplainedCheck, ...]
    identity: Identity | None
    """None if the credentials are refused."""


@runtime_checkable
class Authenticator(Protocol, metaclass=WithDefaults):
    """Returns the identity of a caller. Methods with a default are optional."""

    loopback_only: bool
    """True: the server must listen on loopback addresses only, because this backend accepts any client that can
    connect.
    """

    async def authenticate(self, credentials: Credentials) -> Identity:
        """Return the identity of the caller. Raise NotAuthenticated if the credentials are missing or not valid."""
        ...

    @default()
    def recognizes(self, credentials: Credentials) -> bool:
        """Return whether the credentials are meant for this backend, whether they are valid or not. Do not block.

        If the result is False, the server asks the next authenticator of the setting `auth`. If it is True, this
        backend decides alone. A backend without this method takes all credentials, so it must be the last. Default:
        True.
        """
        return True

    @default()
    def note_failure(self, address: str) -> float | None:
        """Count a failed login that another part of the server noticed. Do not block.

        Return None if it is within the limit of the address, else the seconds to wait before the next attempt. Default:
        there is no limit.
        """
        return None

    @default()
    def resource(self) -> Resource | None:
        """Return how clients get a token, or None if clients cannot get a token by themselves. Do not block.

        The server publishes the result below `/.well-known/oauth-protected-resource`, and refers to it in responses
        with status 401. The server calls `resource` once, before it accepts requests. Default: None.
        """
        return None

    @default()
    async def explain(self, credentials: Credentials) -> Explanation:
        """Return the checks of the credentials in their order, for `skillery auth explain`. Raise Unavailable if a
        service is unavailable. Default: one check, with the result of `authenticate`.
        """
        try:
            identity = await self.authenticate(credentials)
        except NotAuthenticated as error:
            return Explanation((ExplainedCheck("token", "failed", error.message),), None)
        return Explanation((ExplainedCheck("token", "ok", "it is valid"),), identity)

    @default("start", "close")
    async def start(self) -> None:
        """See `UsesService`."""
        return

    @default("start", "close")
    async def close(self) -> None:
        return


@runtime_checkable
class KeepsTokens(Protocol):
    """An Authenticator that accepts tokens of the registry. An authenticator may implement this Protocol too."""

    def forget(self) -> None:
        """Drop all cached tokens, because a token was revoked."""
        ...

    def first_token(self) -> str | None:
        """Return the text of a new admin token, or None if there was ever a token or the settings do not ask for
        one. Blocking.
        """
        ...


@runtime_checkable
class RevokesIdentities(Protocol):
    """An Authenticator that keeps a list of revoked identities, for `skillery auth revoke` and `revoke_identity`.
    The methods block.

    A revoked identity is refused within a second on every server, even if its credentials are still valid.
    """

    def revoke(self, name: str, within: Transaction) -> bool:
        """Add an identity to the list. Return False if it is already there. The change is a part of `within`."""
        ...

    def restore(self, name: str, within: Transaction) -> bool:
        """Remove an identity from the list. Return False if it is not there. The change is a part of `within`."""
        ...

    def revoked(self) -> list[str]:
        """Return the names of all revoked identities, sorted."""
        ...


@runtime_checkable
class AddsRoutes(Protocol):
    """An Authenticator with endpoints of its own, for example for the provisioning of accounts."""

    def routes(self) -> list[Any]:
        """Return values of `skillery.routes.Route`, as the hook `routes` does. A server calls it once at its start."""
        ...


class LoginStart(msgspec.Struct, frozen=True):
    """The start of a login at another address."""

    address: str
    """The address that the browser opens."""
    kept: Mapping[str, str] = {}
    """Values that `finish_login` gets again, at most 1,500 bytes in all.

    The server keeps them for 10 minutes in a cookie of this browser. The cookie is signed, but not encrypted.
    """


class LoginReturn(msgspec.Struct, frozen=True):
    """The return of a browser to this server, after a login at another address."""

    query: Mapping[str, str]
    """The parameters of the request, without parameters that occur twice."""
    kept: Mapping[str, str]
    """The values of `LoginStart`. The server has checked that this browser got them within the last 10 minutes."""
    callback: str
    """The same address as in `begin_login`."""
    address: str
    """The IP address of the client."""


class LoggedIn(msgspec.Struct, frozen=True):
    """A user who has logged in with a browser."""

    identity: Identity
    subject: str
    """The id of the user at the service, at most 255 characters. The audit trail shows it."""
    expires_at: datetime | None
    """The latest end of the session. None: the server ends the session after its own longest time."""


@runtime_checkable
class LogsInBrowsers(Protocol):
    """An Authenticator whose users log in with a browser, at another address.

    The server makes the pages, the cookies and the sessions. The authenticator makes and checks the parameters of the
    other address.
    """

    def login_title(self) -> str | None:
        """Return the name of the service for a link "Sign in with …", or None to offer no login with a browser."""
        ...

    async def begin_login(self, callback: str) -> LoginStart:
        """Return the address that the browser opens. `callback` is the address of this server for its return.

        Raise Unavailable if the service is unavailable.
        """
        ...

    async def finish_login(self, answer: LoginReturn) -> LoggedIn:
        """Return the user. Raise NotAuthenticated if the login has failed, TooManyFailedLogins to slow the address
        down, and Unavailable if the service is unavailable.

        The authenticator checks that the parameters belong to `kept`.
        """
        ...

    async def check_login(self, identity: Identity) -> None:
        """Raise NotAuthenticated if the sessions of an identity are no longer valid.

        The server calls the method for each request of a session, so the method must be fast.
        """
        ...


KIND = Kind(
    "authenticator",
    Authenticator,
    (
        KeepsTokens,
        RevokesIdentities,
        LogsInBrowsers,
        AddsRoutes,
    ),
    setting="auth",
    reads=("authenticate", "begin_login", "finish_login", "check_login"),
)
