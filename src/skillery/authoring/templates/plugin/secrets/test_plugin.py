from pathlib import Path

import pytest
from skillery.backends import Place
from skillery.testing import SecretsContract

from __MODULE__ import __CLASS__Secrets, skillery_secrets


class Test__CLASS__(SecretsContract):
    @pytest.fixture
    def secrets(self, tmp_path: Path) -> __CLASS__Secrets:
        return __CLASS__Secrets(tmp_path / "secrets")


def test_only_the_owner_can_read_the_values(tmp_path: Path) -> None:
    offer = skillery_secrets()
    backend = offer.open(offer.settings(folder=str(tmp_path / "secrets")), Place(tmp_path))
    backend.set("API_KEY", "value")

    assert (tmp_path / "secrets").stat().st_mode & 0o077 == 0
    assert (tmp_path / "secrets" / "API_KEY").stat().st_mode & 0o077 == 0
