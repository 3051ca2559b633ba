import hashlib
from pathlib import Path

import pytest
from skillery.backends import Credentials, Place
from skillery.testing import AuthenticatorContract

from __MODULE__ import HEADER, __CLASS__Authenticator, skillery_authenticator

KEY = "a long random key"


class Test__CLASS__(AuthenticatorContract):
    @pytest.fixture
    def authenticator(self, tmp_path: Path) -> __CLASS__Authenticator:
        offer = skillery_authenticator()
        keys = {hashlib.sha256(KEY.encode()).hexdigest(): "ann"}
        return offer.open(offer.settings(keys=keys), Place(tmp_path))

    @pytest.fixture
    def good(self) -> Credentials:
        return Credentials({HEADER: KEY}, "127.0.0.1")

    @pytest.fixture
    def bad(self) -> list[Credentials]:
        return [Credentials({}, "127.0.0.1"), Credentials({HEADER: "wrong"}, "127.0.0.1")]

    async def test_the_key_names_its_owner(self, authenticator: __CLASS__Authenticator, good: Credentials) -> None:
        identity = await authenticator.authenticate(good)

        assert identity.name == "ann"
        assert identity.scopes == {"read", "run"}
