from pathlib import Path

import pytest
from skillery.backends import Place
from skillery.testing import StorageContract

from __MODULE__ import __CLASS__Storage, skillery_storage


class Test__CLASS__(StorageContract):
    @pytest.fixture
    def storage(self, tmp_path: Path) -> __CLASS__Storage:
        return __CLASS__Storage(tmp_path / "contents")


def test_the_offer_opens_with_its_settings(tmp_path: Path) -> None:
    offer = skillery_storage()
    storage = offer.open(offer.settings(folder=str(tmp_path / "contents")), Place(tmp_path))

    storage.check()
    assert (tmp_path / "contents").is_dir()
