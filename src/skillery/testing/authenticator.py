"""The contract of an Authenticator: subclass AuthenticatorContract and provide its fixtures."""

from __future__ import annotations

import pytest

from skillery.backends import ALL_SCOPES, Authenticator, Credentials, RecognizesCredentials
from skillery.errors import NotAuthenticated


class AuthenticatorContract:
    """The contract: valid credentials give an identity, and all others raise NotAuthenticated."""

    @pytest.fixture
    def authenticator(self) -> Authenticator:
        raise NotImplementedError("provide the fixture `authenticator`")

    @pytest.fixture
    def good(self) -> Credentials:
        raise NotImplementedError("provide the fixture `good`: credentials that are accepted")

    @pytest.fixture
    def bad(self) -> list[Credentials]:
        """Return credentials that are refused; an empty list if the backend accepts all callers."""
        return []

    async def test_good_credentials_are_an_identity(self, authenticator: Authenticator, good: Credentials) -> None:
        identity = await authenticator.authenticate(good)

        assert identity.name
        assert identity.kind in {"person", "agent"}
        assert identity.scopes <= ALL_SCOPES

    async def test_the_same_credentials_are_the_same_identity(
        self, authenticator: Authenticator, good: Credentials
    ) -> None:
        assert await authenticator.authenticate(good) == await authenticator.authenticate(good)

    async def test_bad_credentials_are_not_authenticated(
        self, authenticator: Authenticator, bad: list[Credentials]
    ) -> None:
        for credentials in bad:
            with pytest.raises(NotAuthenticated):
                await authenticator.authenticate(credentials)

    async def test_it_recognizes_its_own_credentials(self, authenticator: Authenticator, good: Credentials) -> None:
        """An authenticator that can be combined with others leaves requests without credentials to them."""
        if isinstance(authenticator, RecognizesCredentials):
            assert authenticator.recognizes(good)
            assert not authenticator.recognizes(Credentials({}, good.address))

    async def test_one_without_login_is_for_loopback_only(self, authenticator: Authenticator) -> None:
        try:
            await authenticator.authenticate(Credentials({}, "203.0.113.9"))
        except NotAuthenticated:
            return
        assert authenticator.loopback_only
