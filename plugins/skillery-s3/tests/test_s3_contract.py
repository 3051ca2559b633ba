"""The contract of storages, on a real object store."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from s3_here import open_here
from skillery.backends import SignsDownloads, Storage
from skillery.testing import StorageContract
from tests.support.weed import Weed

pytest_plugins = ["s3_fixtures"]
pytestmark = pytest.mark.usefixtures("keys")


class TestS3(StorageContract):
    @pytest.fixture
    def storage(self, weed: Weed, tmp_path: Path) -> Storage:
        return open_here(weed.endpoint, tmp_path)

    def test_a_signed_address_is_valid_for_the_requested_seconds(self, storage: Storage) -> None:
        assert isinstance(storage, SignsDownloads)
        address = storage.sign("0" * 64, 60, {})

        assert address is not None
        assert parse_qs(urlsplit(address).query)["X-Amz-Expires"] == ["60"]


class TestS3WithoutPrefixOrChecksum(StorageContract):
    """A bucket for this storage only, of a service that does not support checksums."""

    @pytest.fixture
    def storage(self, weed: Weed, tmp_path: Path) -> Storage:
        return open_here(weed.endpoint, tmp_path, checksum="off", prefix="plain/" + tmp_path.name)
