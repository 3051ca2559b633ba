"""The contract of secrets, on a real server."""

from __future__ import annotations

import pytest

from openbao_here import READ_ONLY, Engine, Open
from skillery.backends import Secrets
from skillery.testing import SecretsContract
from skillery.testing.contracts import Put

pytest_plugins = ["openbao_fixtures"]


class TestOpenBao(SecretsContract):
    @pytest.fixture
    def secrets(self, open_here: Open) -> Secrets:
        return open_here()


class TestOpenBaoThatIsSetElsewhere(SecretsContract):
    """The server may only read. Values are set with the programs of OpenBao."""

    @pytest.fixture
    def secrets(self, engine: Engine, open_here: Open) -> Secrets:
        return open_here(read_only=True, token_file=engine.token_file(engine.token(READ_ONLY)))

    @pytest.fixture
    def put(self, engine: Engine) -> Put:
        return engine.put
