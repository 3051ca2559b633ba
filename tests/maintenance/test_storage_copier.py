"""The copier of a storage, with other copiers, deletions and damaged contents at the same time."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import BinaryIO

import pytest
from sqlalchemy import Connection, delete, insert, update

from skillery.audit import local_actor
from skillery.backends import KINDS, Storage
from skillery.builtin.directory_storage import MARK, DirectoryStorage
from skillery.contents.deletions import claim
from skillery.contents.storage_copies import StorageCopy, find_copy, is_marked, mark_storage
from skillery.database import Database
from skillery.database.tables import deletions, objects
from skillery.errors import StartupError
from skillery.maintenance.storage_copying import Copier, Progress, begin
from skillery.testing.storage import put

NAMES = ("first", "second")


class Setup:
    """A database with a source and a target."""

    def __init__(self, database: Database, folder: Path, source: DirectoryStorage | None = None) -> None:
        self.database = database
        self.source = source or DirectoryStorage(folder / "first")
        self.target = DirectoryStorage(folder / "second")
        mark_storage(database, self.source, "first")

    def store(self, content: bytes) -> str:
        digest = put(self.source, content)
        row = {"sha256": digest, "size_bytes": len(content)}
        self.database.write_now(lambda connection: connection.execute(insert(objects).values(row)))
        return digest

    def begin(self) -> StorageCopy:
        return begin(self.database, self.source, self.target, NAMES, local_actor("tester"))

    def copier(self, tell: Callable[[Progress], None] = lambda _: None) -> Copier:
        return Copier(self.database, self.source, self.target, tell)


class Unmarked:
    """A storage of a plugin that does not support marks."""

    def __init__(self, storage: DirectoryStorage) -> None:
        self.begin, self.open, self.local_path = storage.begin, storage.open, storage.local_path
        self.delete, self.check = storage.delete, storage.check


def unmarked(storage: DirectoryStorage) -> Storage:
    storage_of_plugin: Storage = KINDS["storage"].completed(Unmarked(storage))
    return storage_of_plugin


def test_a_storage_without_marks_is_refused(database: Database, tmp_path: Path) -> None:
    # After the copy, no server would notice that it still uses the previous storage.
    setup = Setup(database, tmp_path)
    actor = local_actor("tester")
    for source, target, name in (
        (unmarked(setup.source), setup.target, "first"),
        (setup.source, unmarked(setup.target), "second"),
    ):
        with pytest.raises(StartupError, match=f"the storage '{name}' has no marks"):
            begin(database, source, target, NAMES, actor)
    assert database.read_now(find_copy) is None


def test_an_empty_mark_is_no_mark_of_the_database(database: Database, tmp_path: Path) -> None:
    (tmp_path / "first").mkdir()
    mark = tmp_path / "first" / MARK
    mark.write_text("")
    with pytest.raises(StartupError, match="the mark of the storage 'first' is empty"):
        Setup(database, tmp_path)
    mark.unlink()
    setup = Setup(database, tmp_path)
    assert database.read_now(lambda connection: is_marked(connection, setup.source))

    mark.write_text("")
    with pytest.raises(StartupError, match="does not have the contents of this database"):
        mark_storage(database, setup.source, "first")
    assert not database.read_now(lambda connection: is_marked(connection, setup.source))


def test_a_copy_that_another_copier_has_completed_stays_complete(database: Database, tmp_path: Path) -> None:
    setup = Setup(database, tmp_path)
    setup.store(b"content")

    def complete(_: Progress) -> None:
        other = setup.copier()
        other.complete(other.copy(setup.begin()), verify=False)

    setup.copier(complete).copy(setup.begin())

    found = database.read_now(find_copy)
    assert found is not None
    assert found.state == "copied"


def test_a_copy_reports_its_rate_and_the_remaining_time(database: Database, tmp_path: Path) -> None:
    setup = Setup(database, tmp_path)
    for number in range(40):
        setup.store(bytes([number]) * 1_000)
    told: list[Progress] = []
    copier = setup.copier(told.append)
    copier.complete(copier.copy(setup.begin()), verify=True)

    for step in ("copying", "verifying"):
        of_step = [one for one in told if one.step == step]
        assert [one.contents for one in of_step] == sorted(one.contents for one in of_step)
        assert (of_step[-1].contents, of_step[-1].bytes) == (40, 40_000)
        assert {(one.all_contents, one.all_bytes) for one in of_step} == {(40, 40_000)}
        assert of_step[-1].rate == pytest.approx(40_000 / of_step[-1].seconds)
        assert of_step[-1].remaining_seconds == 0
        half = next(one for one in of_step if 0 < one.bytes < 40_000)
        assert half.remaining_seconds == pytest.approx((40_000 - half.bytes) / half.rate)


class Hooked(DirectoryStorage):
    """A source that deletes a content as a server does, after a copier has opened it. The server then dies."""

    target: DirectoryStorage
    database: Database

    def open(self, digest: str) -> BinaryIO:
        stream = super().open(digest)
        self.database.write_now(lambda connection: self._delete(connection, digest))
        self.delete(digest)
        self.target.delete(digest)
        return stream

    def _delete(self, connection: Connection, digest: str) -> None:
        connection.execute(delete(objects).where(objects.c.sha256 == digest))
        assert claim(connection, "server", [digest]).digests
        connection.execute(update(deletions).values(take_over_at=datetime.now(UTC) - timedelta(seconds=1)))


def test_content_deleted_during_its_copy_is_deleted_in_the_target(database: Database, tmp_path: Path) -> None:
    source = Hooked(tmp_path / "first")
    setup = Setup(database, tmp_path, source)
    source.database, source.target = database, setup.target
    digest = setup.store(b"deleted during the copy")

    setup.copier().copy(setup.begin())

    for storage in (source, setup.target):
        assert not storage.path_of(digest).exists()
