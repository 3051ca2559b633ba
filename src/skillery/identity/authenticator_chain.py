"""Several authenticators: the first one that recognizes the credentials decides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from skillery.backends import (
    Authenticator,
    Credentials,
    DescribesResource,
    Identity,
    KeepsTokens,
    LimitsFailures,
    RecognizesCredentials,
    Resource,
    RevokesIdentities,
    UsesService,
)
from skillery.errors import StartupError


def responsible(authenticators: Mapping[str, Authenticator], credentials: Credentials) -> str:
    """Return the name of the authenticator that decides about the credentials."""
    for name, one in authenticators.items():
        if not isinstance(one, RecognizesCredentials) or one.recognizes(credentials):
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
        return any(isinstance(one, KeepsTokens) for one in authenticator.by_name.values())
    return isinstance(authenticator, KeepsTokens)


class AuthenticatorChain:
    """An Authenticator of other authenticators, in the order of the setting `auth`.

    An authenticator without `recognizes` is the last one, and gets the credentials that no other one recognizes. If all
    have `recognizes` and none recognizes the credentials, the first one refuses them with its own message.
    """

    def __init__(self, authenticators: Mapping[str, Authenticator]) -> None:
        """`authenticators` are in the stated order, by name.

        Raise StartupError if `open` is one of them, or if an authenticator without `recognizes` is not the last.
        """
        if "open" in authenticators:
            raise StartupError("auth 'open' accepts every caller: it cannot be combined with other authenticators")
        *before, _ = authenticators.items()
        for name, one in before:
            if not isinstance(one, RecognizesCredentials):
                raise StartupError(
                    f"auth '{name}' takes all credentials, so '{name}' must be the last in the setting 'auth'"
                )
        self.by_name = dict(authenticators)
        self.loopback_only = any(authenticator.loopback_only for authenticator in authenticators.values())

    async def authenticate(self, credentials: Credentials) -> Identity:
        return await self._responsible(credentials).authenticate(credentials)

    def _responsible(self, credentials: Credentials) -> Authenticator:
        return self.by_name[responsible(self.by_name, credentials)]

    def forget(self) -> None:
        for one in self.by_name.values():
            if isinstance(one, KeepsTokens):
                one.forget()

    def note_failure(self, address: str) -> float | None:
        """Count a failed login with the first authenticator that limits them."""
        limits = (one for one in self.by_name.values() if isinstance(one, LimitsFailures))
        return next((limit.note_failure(address) for limit in limits), None)

    def first_token(self) -> str | None:
        keepers = (one for one in self.by_name.values() if isinstance(one, KeepsTokens))
        return next((token for keeper in keepers if (token := keeper.first_token())), None)

    def resource(self) -> Resource | None:
        """Return the description of the first authenticator that has one, with the issuers and scopes of all.

        `cli_client_id` is a client at the first issuer, so it is the one of the first description.
        """
        resources = [
            resource
            for one in self.by_name.values()
            if isinstance(one, DescribesResource) and (resource := one.resource()) is not None
        ]
        if not resources:
            return None
        issuers = dict.fromkeys(issuer for resource in resources for issuer in resource.authorization_servers)
        scopes = dict.fromkeys(scope for resource in resources for scope in resource.scopes)
        return Resource(resources[0].address, tuple(issuers), tuple(scopes), resources[0].cli_client_id)

    async def start(self) -> None:
        for one in self.by_name.values():
            if isinstance(one, UsesService):
                await one.start()

    async def close(self) -> None:
        for one in self.by_name.values():
            if isinstance(one, UsesService):
                await one.close()
