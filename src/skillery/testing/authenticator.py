"""What every Authenticator promises: subclass AuthenticatorContract and provide its fixtures."""

from __future__ import annotations

import pytest

from skillery.backends import ALL_SCOPES, Authenticator, Credentials
from skillery.errors import NotAuthenticated


class AuthenticatorContract:
    """An identity for whoever may come in, NotAuthenticated for everybody else, and nothing else ever."""

    @pytest.fixture
    def authenticator(self) -> Authenticator:
        raise NotImplementedError("provide the fixture `authenticator`")

    @pytest.fixture
    def good(self) -> Credentials:
        raise NotImplementedError("provide the fixture `good`: credentials that are let in")

    @pytest.fixture
    def bad(self) -> list[Credentials]:
        """Credentials that are not let in; none where everybody is."""
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

    async def test_one_without_login_is_for_loopback_only(self, authenticator: Authenticator) -> None:
        try:
            await authenticator.authenticate(Credentials({}, "203.0.113.9"))
        except NotAuthenticated:
            return
        assert authenticator.loopback_only
