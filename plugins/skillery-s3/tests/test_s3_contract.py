"""The contract of storages, on a real object store."""

from __future__ import annotations

from pathlib import Path

import pytest

from s3_here import open_here
from skillery.backends import Storage
from skillery.testing import StorageContract
from tests.support.weed import Weed

pytest_plugins = ["s3_fixtures"]
pytestmark = pytest.mark.usefixtures("keys")


class TestS3(StorageContract):
    @pytest.fixture
    def storage(self, weed: Weed, tmp_path: Path) -> Storage:
        return open_here(weed.endpoint, tmp_path)


class TestS3WithoutPrefixOrChecksum(StorageContract):
    """A bucket for this storage only, of a service that does not support checksums."""

    @pytest.fixture
    def storage(self, weed: Weed, tmp_path: Path) -> Storage:
        return open_here(weed.endpoint, tmp_path, checksum="off", prefix="plain/" + tmp_path.name)
