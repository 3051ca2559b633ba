"""The contract of an Authenticator: subclass AuthenticatorContract and provide its fixtures."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime

import pytest

from skillery.backends import (
    ALL_SCOPES,
    Authenticator,
    Credentials,
    LoginReturn,
    LoginStart,
    LogsInBrowsers,
)
from skillery.backends.values import has_default
from skillery.errors import NotAuthenticated
from skillery.testing.contracts import Contract


class AuthenticatorContract(Contract):
    """The contract: valid credentials give an identity, and all others raise NotAuthenticated."""

    @pytest.fixture
    def authenticator(self) -> Authenticator:
        raise NotImplementedError("provide the fixture `authenticator`")

    @pytest.fixture
    def good(self) -> Credentials:
        raise NotImplementedError("provide the fixture `good`: credentials that are accepted")

    @pytest.fixture
    def bad(self) -> list[Credentials]:
        """Return credentials that are refused, or an empty list if the backend accepts all callers."""
        return []

    async def test_good_credentials_are_an_identity(self, authenticator: Authenticator, good: Credentials) -> None:
        """Valid credentials give an Identity with a name, a known kind and known scopes."""
        identity = await authenticator.authenticate(good)

        assert identity.name
        assert identity.kind in {"person", "agent"}
        assert identity.scopes <= ALL_SCOPES

    async def test_the_same_credentials_are_the_same_identity(
        self, authenticator: Authenticator, good: Credentials
    ) -> None:
        """The same credentials give the same identity each time."""
        assert await authenticator.authenticate(good) == await authenticator.authenticate(good)

    async def test_bad_credentials_are_not_authenticated(
        self, authenticator: Authenticator, bad: list[Credentials]
    ) -> None:
        """Credentials that are not valid raise NotAuthenticated, and no other exception."""
        for credentials in bad:
            with pytest.raises(NotAuthenticated):
                await authenticator.authenticate(credentials)

    async def test_it_recognizes_its_own_credentials(self, authenticator: Authenticator, good: Credentials) -> None:
        """An authenticator that can be combined with others leaves requests without credentials to them."""
        if not has_default(authenticator, Authenticator.recognizes):
            assert authenticator.recognizes(good)
            assert not authenticator.recognizes(Credentials({}, good.address))

    async def test_authenticators_without_login_serve_loopback_only(self, authenticator: Authenticator) -> None:
        """A backend that accepts callers without credentials has `loopback_only = True`."""
        try:
            await authenticator.authenticate(Credentials({}, "203.0.113.9"))
        except NotAuthenticated:
            return
        assert authenticator.loopback_only


Visit = Callable[[LoginStart], Awaitable[Mapping[str, str]]]


class BrowserLoginContract(Contract):
    """The contract of an Authenticator whose users log in with a browser: only the browser that has begun a login
    finishes it.
    """

    callback = "https://skills.example.org/login/example/callback"

    @pytest.fixture
    def login(self) -> LogsInBrowsers:
        raise NotImplementedError("provide the fixture `login`: an authenticator with a login for browsers")

    @pytest.fixture
    def visit(self) -> Visit:
        raise NotImplementedError("provide the fixture `visit`: log a user in, and return the query of the callback")

    def answer(self, query: Mapping[str, str], start: LoginStart) -> LoginReturn:
        return LoginReturn(query, start.kept, self.callback, "203.0.113.9")

    async def test_a_login_has_a_title_and_an_address(self, login: LogsInBrowsers) -> None:
        """`login_title` returns a text. `begin_login` returns an http(s) address, and at most 1,500 bytes in `kept`."""
        start = await login.begin_login(self.callback)

        assert login.login_title()
        assert start.address.startswith(("https://", "http://"))
        assert sum(len(name) + len(value) for name, value in start.kept.items()) <= 1500

    async def test_a_user_logs_in(self, login: LogsInBrowsers, visit: Visit) -> None:
        """`finish_login` returns identity, subject and end of a login, and `check_login` accepts the identity."""
        start = await login.begin_login(self.callback)
        user = await login.finish_login(self.answer(await visit(start), start))

        assert user.identity.name
        assert user.identity.scopes <= ALL_SCOPES
        assert 1 <= len(user.subject) <= 255
        assert user.expires_at is None or user.expires_at > datetime.now(UTC)
        await login.check_login(user.identity)

    async def test_an_answer_does_not_finish_another_login(self, login: LogsInBrowsers, visit: Visit) -> None:
        """`finish_login` refuses the answer to another login: an attacker could sign a user in as the attacker."""
        mine, other = await login.begin_login(self.callback), await login.begin_login(self.callback)
        query = await visit(other)

        with pytest.raises(NotAuthenticated):
            await login.finish_login(self.answer(query, mine))

    async def test_an_empty_answer_does_not_finish_a_login(self, login: LogsInBrowsers) -> None:
        """`finish_login` raises NotAuthenticated for an answer without parameters."""
        start = await login.begin_login(self.callback)

        with pytest.raises(NotAuthenticated):
            await login.finish_login(self.answer({}, start))

    async def test_an_answer_finishes_a_login_once(self, login: LogsInBrowsers, visit: Visit) -> None:
        """`finish_login` raises NotAuthenticated if the same answer comes again."""
        start = await login.begin_login(self.callback)
        answer = self.answer(await visit(start), start)
        await login.finish_login(answer)

        with pytest.raises(NotAuthenticated):
            await login.finish_login(answer)
