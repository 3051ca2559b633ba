"""The built-in backends keep the contracts that plugins have to keep."""

from __future__ import annotations

from pathlib import Path

import pytest

from skillery.backends import Credentials
from skillery.builtin.directory_storage import DirectoryStorage
from skillery.builtin.open_authenticator import OpenAuthenticator
from skillery.testing import AuthenticatorContract, StorageContract
from skillery.testing.storage import digest_of, put


class TestDirectoryStorage(StorageContract):
    @pytest.fixture
    def storage(self, tmp_path: Path) -> DirectoryStorage:
        return DirectoryStorage(tmp_path / "contents")

    def test_a_start_sweeps_what_a_dead_server_left(self, tmp_path: Path) -> None:
        first = DirectoryStorage(tmp_path / "contents")
        first.begin().write(b"half")
        kept = put(first, b"whole")

        second = DirectoryStorage(tmp_path / "contents")

        assert list((tmp_path / "contents" / "incoming").iterdir()) == []
        assert second.local_path(kept) is not None

    def test_a_stored_file_is_read_only(self, storage: DirectoryStorage) -> None:
        path = storage.local_path(put(storage, b"x"))

        assert path is not None
        assert path.stat().st_mode & 0o777 == 0o444
        assert path.name == digest_of(b"x")


class TestOpenAuthenticator(AuthenticatorContract):
    @pytest.fixture
    def authenticator(self) -> OpenAuthenticator:
        return OpenAuthenticator()

    @pytest.fixture
    def good(self) -> Credentials:
        return Credentials({}, "127.0.0.1")
