"""Deleting a file of the storage: which uploads wait, and what happens if the server is killed, on both databases."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest
from sqlalchemy import func, insert, select

from skillery.builtin.directory_storage import DirectoryStorage
from skillery.contents import deletions as steps
from skillery.contents import store
from skillery.contents.deletions import drop_files, finish_abandoned_deletions, finish_own_deletions
from skillery.contents.store import Uploading
from skillery.database import Database
from skillery.database.tables import deletions
from skillery.errors import Busy, Unavailable
from tests.conftest import Rpc, Server
from tests.maintenance.test_garbage import LARGE, NO_GRACE, SHA256, bring, in_storage, put, stored, sweep
from tests.support.processes import eventually

HELD_STORAGE = """
import time
from skillery import hookimpl
from skillery.backends import Offer
from skillery.builtin.directory_storage import DirectoryStorage

class Held(DirectoryStorage):
    def __init__(self, home):
        super().__init__(home / "contents")
        self.home = home

    def delete(self, digest):
        while (self.home / "hold").exists():
            (self.home / "held").touch()
            time.sleep(0.01)
        super().delete(digest)

@hookimpl
def skillery_storage():
    return Offer("held", lambda settings, place: Held(place.home))
"""


@pytest.fixture
def held_storage(database_kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, str]:
    """Return the settings of a server whose storage deletes no file while the file `hold` exists in the home."""
    folder = tmp_path / "plugins"
    folder.mkdir()
    (folder / "held.py").write_text(HELD_STORAGE)
    url = "" if database_kind == "sqlite" else request.getfixturevalue("migrated_postgres_database")()
    chosen = {"SKILLERY_PLUGINS_FOLDER": str(folder), "SKILLERY_STORAGE": "held", "SKILLERY_DATABASE": url}
    return chosen | NO_GRACE


def start_sweep(server: Server, threads: ThreadPoolExecutor) -> None:
    """Start a sweep that stops before it deletes the first file."""

    def collect() -> None:
        try:
            Rpc(server.url)("collect_garbage")
        except httpx.HTTPError:
            return

    (server.home / "hold").touch()
    threads.submit(collect)
    eventually((server.home / "held").exists)


@pytest.mark.full
def test_a_slow_deletion_blocks_only_uploads_of_that_content(
    start_server: Callable[..., Server], held_storage: dict[str, str]
) -> None:
    server = start_server(env=held_storage)
    content, other = b"a" * LARGE, b"b" * LARGE
    server.rpc("delete_blob", blob_id=put(server.rpc, content))
    with ThreadPoolExecutor(2) as threads:
        start_sweep(server, threads)
        kept = put(server.rpc, other)  # is refused as busy if it waits for the deletion, which is held
        refused = server.rpc.http.post("/blobs", content=content).json()["error"]
        waiting = threads.submit(put, Rpc(server.url), content)
        (server.home / "hold").unlink()
        blob_id = waiting.result()

    assert (refused["code"], refused["data"]["type"]) == (-32006, "busy")
    assert refused["data"]["retry_after_ms"] > 0
    assert "is being deleted" in refused["message"]
    assert server.rpc.http.get(f"/blobs/{blob_id}").content == content
    assert server.rpc.http.get(f"/blobs/{kept}").content == other


@pytest.mark.full
@pytest.mark.postgres
def test_server_finishes_interrupted_deletions_at_restart(
    start_server: Callable[..., Server], held_storage: dict[str, str]
) -> None:
    server = start_server(env=held_storage)
    before = stored(server.home)
    contents = [letter * LARGE for letter in (b"a", b"b", b"c")]
    for content in contents:
        server.rpc("delete_blob", blob_id=put(server.rpc, content))
    with ThreadPoolExecutor(1) as threads:
        start_sweep(server, threads)
        server.stop(signal.SIGKILL)
    assert len(stored(server.home) - before) == len(contents)
    (server.home / "hold").unlink()

    server = start_server(env=held_storage)

    assert stored(server.home) == before
    blob_id = put(server.rpc, contents[0])
    assert server.rpc.http.get(f"/blobs/{blob_id}").content == contents[0]
    assert {one["count"] for one in sweep(server.rpc).values()} == {0}


# -- one deletion ------------------------------------------------------------------------------------------------


@pytest.fixture
def storage(tmp_path: Path) -> DirectoryStorage:
    return DirectoryStorage(tmp_path / "contents")


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "WAIT_SECONDS", 0.2)


def leave_tombstone(database: Database, take_over_at: datetime, server: str = "dead") -> None:
    row = {"sha256": SHA256, "server": server, "holder": "dead", "take_over_at": take_over_at}
    database.write_now(lambda connection: connection.execute(insert(deletions).values(row)))


def tombstones(database: Database) -> int:
    return database.read_now(
        lambda connection: connection.execute(select(func.count()).select_from(deletions)).scalar_one()
    )


@pytest.mark.usefixtures("impatient")
def test_deletion_of_a_dead_server_is_taken_over_after_a_delay(database: Database, storage: DirectoryStorage) -> None:
    bring(storage, SHA256)
    leave_tombstone(database, datetime.now(UTC) + timedelta(minutes=1))

    with pytest.raises(Busy, match=f"sha256:{SHA256} is being deleted"):
        Uploading(database, storage, [SHA256])
    assert not drop_files(database, storage, [SHA256])
    finish_abandoned_deletions(database, storage)
    assert in_storage(storage, SHA256)

    database.write_now(lambda connection: connection.execute(deletions.delete()))
    leave_tombstone(database, datetime.now(UTC) - timedelta(minutes=1))
    upload = Uploading(database, storage, [SHA256])
    assert not in_storage(storage, SHA256)
    assert tombstones(database) == 0
    upload.give_up()


def test_a_server_finishes_its_own_deletions_and_no_others(database: Database, storage: DirectoryStorage) -> None:
    bring(storage, SHA256)
    database.server = "one"
    leave_tombstone(database, datetime.now(UTC) + timedelta(minutes=1), server="other")

    finish_own_deletions(database, storage)
    assert in_storage(storage, SHA256)
    database.server = "other"
    finish_own_deletions(database, storage)
    assert not in_storage(storage, SHA256)
    assert tombstones(database) == 0


@pytest.mark.usefixtures("impatient")
def test_a_deletion_that_the_storage_refuses_is_tried_again_later(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Away(DirectoryStorage):
        is_away = True

        def delete(self, digest: str) -> None:
            if self.is_away:
                raise Unavailable("the storage is away")
            super().delete(digest)

    storage = Away(tmp_path / "contents")
    bring(storage, SHA256)
    with pytest.raises(Unavailable, match="away"):
        drop_files(database, storage, [SHA256])
    # The storage may still execute the deletion, so uploads of this content are refused until then.
    with pytest.raises(Busy):
        Uploading(database, storage, [SHA256])

    storage.is_away = False
    later = datetime.now(UTC) + steps.RETRY_AFTER
    monkeypatch.setattr(steps, "_now", lambda connection: later)
    finish_abandoned_deletions(database, storage)

    assert not in_storage(storage, SHA256)
    assert tombstones(database) == 0


def test_a_deletion_leaves_the_content_of_an_upload(database: Database, storage: DirectoryStorage) -> None:
    upload = Uploading(database, storage, [SHA256])
    bring(storage, SHA256)

    assert drop_files(database, storage, [SHA256]) == set()

    assert in_storage(storage, SHA256)
    upload.give_up()
    assert drop_files(database, storage, [SHA256]) == {SHA256}


def test_late_holder_deletes_nothing_after_a_takeover(
    database: Database, storage: DirectoryStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    bring(storage, SHA256)
    claimed = database.write_now(lambda connection: steps.claim(connection, "slow", [SHA256]))
    later = datetime.now(UTC) + steps.TAKE_OVER_AFTER
    with monkeypatch.context() as patched:
        patched.setattr(steps, "_now", lambda connection: later)
        finish_abandoned_deletions(database, storage)
    upload = Uploading(database, storage, [SHA256])
    bring(storage, SHA256)

    late = claimed._replace(begun=claimed.begun - steps.BEGIN_WITHIN_SECONDS - 1)
    assert steps.carry_out(database, storage, late) == set()

    assert in_storage(storage, SHA256)
    upload.give_up()


@pytest.mark.smoke
@pytest.mark.postgres
def test_settled_uploads_keep_their_file_despite_racing_deletions(
    database: Database, storage: DirectoryStorage
) -> None:
    """The storage is slow, so that uploads meet deletions at every step."""
    slow, over = _Slow(storage), threading.Event()

    def deleting() -> None:
        while not over.is_set():
            drop_files(database, slow, [SHA256])

    with ThreadPoolExecutor(2) as threads:
        running = [threads.submit(deleting) for _ in range(2)]
        try:
            for _ in range(25):
                upload = Uploading(database, slow, [SHA256])
                bring(storage, SHA256)
                assert in_storage(storage, SHA256)
                database.write_now(upload.settle)
        finally:
            over.set()
        for one in running:
            one.result()
    assert tombstones(database) == 0


class _Slow(DirectoryStorage):
    def __init__(self, storage: DirectoryStorage) -> None:
        super().__init__(storage.folder)

    def delete(self, digest: str) -> None:
        time.sleep(0.002)
        super().delete(digest)
        time.sleep(0.002)
