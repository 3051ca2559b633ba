"""Several authenticators: the first one that recognizes the credentials decides."""

from __future__ import annotations

from collections.abc import Mapping

from skillery.backends import Authenticator, Credentials, Identity, KeepsTokens, RecognizesCredentials
from skillery.errors import StartupError


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
                    f"auth '{name}' does not say which credentials are its own, so it must be the last in the setting "
                    "'auth'"
                )
        self._authenticators = tuple(authenticators.values())
        self.loopback_only = any(one.loopback_only for one in self._authenticators)

    async def authenticate(self, credentials: Credentials) -> Identity:
        return await self._responsible(credentials).authenticate(credentials)

    def _responsible(self, credentials: Credentials) -> Authenticator:
        for one in self._authenticators:
            if not isinstance(one, RecognizesCredentials) or one.recognizes(credentials):
                return one
        return self._authenticators[0]

    def forget(self) -> None:
        for one in self._authenticators:
            if isinstance(one, KeepsTokens):
                one.forget()

    def first_token(self) -> str | None:
        keepers = (one for one in self._authenticators if isinstance(one, KeepsTokens))
        return next((token for one in keepers if (token := one.first_token())), None)
