"""Lifetimes of blobs and the sweep: what is deleted, what is kept, and that no data is lost, on both databases."""

from __future__ import annotations

import os
import random
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest
from sqlalchemy import Connection, delete, insert, select

from skillery.backends import Identity
from skillery.builtin.directory_storage import DirectoryStorage
from skillery.contents.blobs import Blobs
from skillery.contents.deletions import drop_files
from skillery.contents.store import Uploading, forget_uploads, record
from skillery.database import Database
from skillery.database.tables import blobs, objects
from skillery.errors import Busy, ContentMissing, Unavailable
from skillery.identity.quotas import UNLIMITED
from skillery.maintenance.garbage import Collector, Sweep, SweepStep, Swept
from skillery.maintenance.garbage_steps import expired_blobs
from skillery.settings.groups import BlobLifetimes
from tests.cli.test_cli import skillery
from tests.conftest import Rpc, Server, manifest, skill_files
from tests.support.forms import rounds
from tests.support.people import Caller, Who, people_settings

LARGE = 100_000
BUNDLED = 1
"""Number of large files in the bundled skills."""
NO_GRACE = {"SKILLERY_GC_GRACE_MINUTES": "0", "SKILLERY_GC_INTERVAL_MINUTES": "0"}


@pytest.fixture(scope="module")
def swept(
    database_kind: str, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """Yield a server that sweeps only on request and without a grace period."""
    folder = tmp_path_factory.mktemp("swept")
    url = "" if database_kind == "sqlite" else request.getfixturevalue("migrated_postgres_database")()
    env = people_settings(folder / "plugins", SKILLERY_DATABASE=url, **NO_GRACE)
    running = Server(folder / "home", env=env)
    running.database = url
    yield running
    assert running.stop() == 0, running.log.read_text()[-4000:]


@pytest.fixture
def ada(swept: Server) -> Caller:
    return Caller(swept.url, Who("ada", "admin", "*"))


def stored(home: Path) -> set[str]:
    """Return the digests of the files in the storage."""
    return {path.name for path in (home / "contents").glob("??/*")}


def put(rpc: Rpc, content: bytes | str, ttl: int | None = None) -> str:
    response = rpc.http.post("/blobs" if ttl is None else f"/blobs?ttl={ttl}", content=content)
    assert response.status_code == 201, response.text
    blob_id: str = response.json()["blob_id"]
    return blob_id


def sweep(rpc: Rpc, **params: Any) -> Any:
    return rpc("collect_garbage", **params)["removed"]


# -- lifetimes -----------------------------------------------------------------------------------------------------


def test_a_blob_is_kept_for_a_month_unless_ttl_says_otherwise(rpc: Rpc) -> None:
    plain = rpc("create_blob", content="x", kind="text/plain")
    brief = rpc("create_blob", content="x", kind="text/plain", ttl=3600)
    streamed = rpc.http.post("/blobs?ttl=3600", content=b"x").json()
    written = rpc(
        "run_code",
        language="python",
        code="from runtime import blobs\n\ndef main(args):\n    return blobs.write_text('x')\n",
    )["output"]

    def left(expires_at: str) -> timedelta:
        return datetime.fromisoformat(expires_at) - datetime.now(UTC)

    assert timedelta(days=29) < left(plain["expires_at"]) <= timedelta(days=30)
    assert timedelta(minutes=50) < left(brief["expires_at"]) <= timedelta(hours=1)
    assert timedelta(minutes=50) < left(streamed["expires_at"]) <= timedelta(hours=1)
    assert timedelta(days=29) < left(rpc("read_blob", blob_id=written)["expires_at"]) <= timedelta(days=30)


@pytest.mark.parametrize("ttl", [0, -1, 315_360_001, "1h", 1.5])
def test_a_ttl_is_seconds_within_bounds(sqlite_rpc: Rpc, ttl: Any) -> None:
    error = sqlite_rpc.error("create_blob", content="x", kind="text/plain", ttl=ttl)
    refused = sqlite_rpc.http.post(f"/blobs?ttl={ttl}", content=b"x")

    assert (error["code"], error["data"]["param"]) == (-32602, "ttl")
    assert (refused.status_code, refused.json()["error"]["data"]["param"]) == (400, "ttl")
    assert sqlite_rpc.http.post("/blobs?tll=1", content=b"x").status_code == 400


def test_ttl_is_not_shown_to_models(sqlite_rpc: Rpc) -> None:
    assert "ttl" not in sqlite_rpc.http.get("/tools?format=jsonschema").text


def test_every_endpoint_treats_expired_blobs_as_missing_before_a_sweep(rpc: Rpc, new_name: str) -> None:
    name = f"{new_name}.reader"
    inputs = {"data": {"type": "blob"}}
    rpc("create_skill", manifest=manifest(name, inputs=inputs), skill_md="# A\n", files=skill_files())
    blob_id = put(rpc, b"x", ttl=1)
    pause = threading.Event()
    while rpc.http.get(f"/blobs/{blob_id}").status_code == 200:
        pause.wait(0.1)

    code = "def main(args):\n    return 1\n"
    errors = [
        rpc.error("read_blob", blob_id=blob_id),
        rpc.error("delete_blob", blob_id=blob_id),
        rpc.error("run_code", language="python", code=code, input_blobs=[blob_id]),
        rpc.error("execute_skill", name=name, args={"data": blob_id}),
        rpc.http.get(f"/blobs/{blob_id}").json()["error"],
    ]

    assert {(error["code"], error["data"]["type"]) for error in errors} == {(-32003, "blob_not_found")}


def test_a_blob_is_deleted_only_by_its_owner(swept: Server) -> None:
    owner, other = Caller(swept.url, Who("owner")), Caller(swept.url, Who("other"))
    blob_id = put(owner, b"12345")

    assert other.error("delete_blob", blob_id=blob_id)["code"] == -32003
    assert owner("delete_blob", blob_id=blob_id) == {"blob_id": blob_id, "size_bytes": 5}
    assert owner.error("read_blob", blob_id=blob_id)["code"] == -32003
    assert owner.error("delete_blob", blob_id=blob_id)["code"] == -32003


# -- deleted content -----------------------------------------------------------------------------------------------


def test_contents_go_with_the_last_that_has_them(swept: Server, ada: Caller, new_name: str) -> None:
    sweep(ada)
    text = f"{new_name} {'x' * LARGE}"
    name = f"{new_name}.holder"
    before = stored(swept.home)
    one, two = put(ada, text), put(ada, text)
    lonely = put(ada, text + "y")
    files = [*skill_files(), {"path": "resources/data.txt", "content": text}]
    ada("create_skill", manifest=manifest(name), skill_md="# A\n", files=files)
    assert len(stored(swept.home) - before) == 2

    for blob_id in (one, lonely):
        ada("delete_blob", blob_id=blob_id)
    would = sweep(ada, dry_run=True)
    assert len(stored(swept.home) - before) == 2
    removed = sweep(ada)

    assert would == removed
    assert removed["expired_blobs"] == {"count": 2, "bytes": 2 * len(text) + 1}
    assert removed["unused_contents"] == {"count": 1, "bytes": len(text) + 1}
    assert ada("read_blob", blob_id=two, mode="full")["content"] == text
    ada("delete_blob", blob_id=two)
    assert sweep(ada)["unused_contents"]["count"] == 0
    assert ada("read_skill_file", name=name, path="resources/data.txt")["content"] == text
    assert len(stored(swept.home) - before) == 1
    assert {one["count"] for one in sweep(ada).values()} == {0}


def test_small_contents_go_too(ada: Caller) -> None:
    sweep(ada)
    blob_id = put(ada, os.urandom(1000))
    ada("delete_blob", blob_id=blob_id)

    assert sweep(ada)["unused_contents"] == {"count": 1, "bytes": 1000}


def test_sweep_deletes_unreferenced_contents_and_keeps_other_files(swept: Server, ada: Caller) -> None:
    sweep(ada)
    folder = swept.home / "contents" / "ab"
    folder.mkdir(exist_ok=True)
    (folder / ("ab" + "0" * 62)).write_bytes(b"left over")
    (folder / "README").write_bytes(b"somebody's")

    assert sweep(ada)["leftover_files"] == {"count": 1, "bytes": 9}
    assert [path.name for path in folder.iterdir() if path.name == "README" or path.name.startswith("ab0")] == [
        "README"
    ]


def test_cached_files_go_when_no_run_has_used_them_for_long(swept: Server, ada: Caller, new_name: str) -> None:
    sweep(ada)
    name = f"{new_name}.cached"
    ada.create(name)
    blob_id = put(ada, f"small {new_name}")
    assert ada("execute_skill", name=name, input_blobs=[blob_id])["status"] == "completed"
    (cache,) = (swept.home / "cache").iterdir()
    bundle = cache / "bundles" / ada("describe_skill", name=name)["skill"]["digest"].replace(":", "-")
    assert bundle.is_dir()
    assert sweep(ada)["cached_files"]["count"] == 0
    week = datetime.now(UTC).timestamp() - 8 * 86_400
    os.utime(bundle, (week, week))

    assert sweep(ada, dry_run=True)["cached_files"]["count"] == 1
    assert sweep(ada)["cached_files"]["count"] == 1
    assert not bundle.exists()
    assert ada("execute_skill", name=name)["status"] == "completed"
    assert bundle.is_dir()
    copies = set((cache / "blobs").iterdir())
    ada("delete_blob", blob_id=blob_id)
    assert sweep(ada)["cached_files"]["count"] == 1
    assert len(copies - set((cache / "blobs").iterdir())) == 1


@pytest.mark.full
def test_sweeps_keep_input_and_output_blobs_of_an_active_run(ada: Caller) -> None:
    """Until the run ends, its blobs have no owner but the run and no row but their own."""
    blob_id = put(ada, b"g" * LARGE)
    code = (
        "import time, pathlib\nfrom runtime import blobs\n\ndef main(args):\n"
        "    kept = [blobs.write_text(f'{n} ' * 40_000) for n in range(5)]\n"
        "    time.sleep(1.5)\n"
        "    whole = [blobs.read_text(one) for one in kept]\n"
        f"    return [len(blobs.read_bytes('{blob_id}')), [len(one) for one in whole]]\n"
    )
    with ThreadPoolExecutor(1) as threads:
        running = threads.submit(ada, "run_code", language="python", code=code, input_blobs=[blob_id])
        while not running.done():
            sweep(ada)

    run = running.result()

    assert run["output"] == [LARGE, [80_000] * 5]
    sweep(ada)
    for number, written in enumerate(run["output_blobs"]):
        assert ada.http.get(f"/blobs/{written}").text == f"{number} " * 40_000


# -- the commands --------------------------------------------------------------------------------------------------


@pytest.mark.full
def test_gc_works_with_and_without_a_running_server(tmp_path: Path, start_server: Callable[..., Server]) -> None:
    home = str(tmp_path / "home")
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "skillery.toml").write_text("[gc]\ngrace_minutes = 0\ninterval_minutes = 0\n")
    (tmp_path / "data").write_bytes(b"d" * LARGE)
    kept = skillery("blob", "put", str(tmp_path / "data"), "--home", home).out.strip()
    gone = skillery("blob", "put", "-", "--ttl", "12h", "--home", home, stdin=b"x").out.strip()
    assert skillery("blob", "rm", gone, "--home", home).out == f"deleted {gone} in the home {home}\n"
    would = skillery("gc", "--dry-run", "--home", home, "--json").json

    shown = skillery("gc", "--home", home)

    assert would["dry_run"] is True
    assert would["removed"]["expired_blobs"] == {"count": 1, "bytes": 1}
    assert "expired blobs: 1 removed, 1 bytes\n" in shown.out
    assert "unused contents: 1 removed, 1 bytes\n" in shown.out
    server = start_server()
    server.rpc("delete_blob", blob_id=kept)
    assert f"unused contents: 1 removed, {LARGE} bytes\n" in skillery("gc", "--home", home).out
    assert len(stored(server.home)) == BUNDLED
    assert "ttl" in skillery("blob", "put", "-", "--ttl", "soon", "--home", home, stdin=b"x").err


def test_a_server_sweeps_by_itself(tmp_path: Path, database: Database) -> None:
    """The loop of a server runs here with an interval that is shorter than any setting."""
    import asyncio

    from skillery.app.background_jobs import sweep_periodically

    swept = threading.Event()

    def step(sweep: Sweep) -> Swept:
        if not swept.is_set():
            swept.set()
            raise Unavailable("once")
        done.set()
        return Swept(1, 2)

    done = threading.Event()

    async def serve() -> None:
        task = asyncio.create_task(sweep_periodically(Collector(database, [SweepStep("step", step)]), 0.0001))
        await asyncio.to_thread(done.wait, 300)
        task.cancel()

    asyncio.run(serve())
    assert done.is_set()


def test_sweep_raises_busy_while_another_sweep_runs(database: Database) -> None:
    """Only one sweep runs at a time, among the servers of one Postgres or in one process with SQLite."""
    begun, go_on = threading.Event(), threading.Event()

    def slow(_: Sweep) -> Swept:
        begun.set()
        go_on.wait(300)
        return Swept(3, 4)

    first = Collector(database, [SweepStep("slow", slow)])
    elsewhere = database if database.is_sqlite else Database(database.url.render_as_string(hide_password=False))
    second = Collector(elsewhere, [SweepStep("slow", slow), SweepStep("own", lambda _: Swept(1, 1), own=True)])
    with ThreadPoolExecutor(1) as threads:
        running = threads.submit(first.collect)
        begun.wait(300)

        with pytest.raises(Busy):
            second.collect()
        assert second.collect_own() == {"own": Swept(1, 1)}
        go_on.set()
        assert running.result() == {"slow": Swept(3, 4)}
    assert second.collect()["own"] == Swept(1, 1)
    second.close()
    assert second.collect() == {}


# -- between the file and its row ----------------------------------------------------------------------------------


@pytest.fixture
def storage(tmp_path: Path) -> DirectoryStorage:
    return DirectoryStorage(tmp_path / "contents")


def in_storage(storage: DirectoryStorage, sha256: str) -> bool:
    try:
        storage.open(sha256).close()
    except ContentMissing:
        return False
    return True


SHA256 = "12" * 32


def test_storage_start_removes_abandoned_uploads_and_keeps_active_uploads(tmp_path: Path) -> None:
    storage = DirectoryStorage(tmp_path)
    upload = storage.begin()
    upload.write(b"x" * LARGE)
    (tmp_path / "incoming" / "of-a-dead-one").write_bytes(b"half")

    DirectoryStorage(tmp_path)
    upload.commit(SHA256)

    assert in_storage(storage, SHA256)
    assert list((tmp_path / "incoming").iterdir()) == []


def bring(storage: DirectoryStorage, sha256: str) -> None:
    upload = storage.begin()
    upload.write(b"x" * LARGE)
    upload.commit(sha256)


def test_a_file_with_a_pending_reference_is_not_dropped(database: Database, storage: DirectoryStorage) -> None:
    upload = Uploading(database, storage, [SHA256])
    bring(storage, SHA256)

    assert not drop_files(database, storage, [SHA256])

    def work(connection: Connection) -> None:
        upload.settle(connection)
        record(connection, [(SHA256, LARGE, None)])

    database.write_now(work)
    assert not drop_files(database, storage, [SHA256])
    assert in_storage(storage, SHA256)
    database.write_now(lambda connection: connection.execute(delete(objects)))
    assert drop_files(database, storage, [SHA256])
    assert not in_storage(storage, SHA256)


def test_give_up_deletes_the_content_unless_another_upload_has_it(
    database: Database, storage: DirectoryStorage
) -> None:
    one, other = (Uploading(database, storage, [SHA256]) for _ in range(2))
    bring(storage, SHA256)

    one.give_up()
    assert in_storage(storage, SHA256)
    other.give_up()
    assert not in_storage(storage, SHA256)


def test_an_upload_that_was_forgotten_notices_and_stores_nothing(database: Database, storage: DirectoryStorage) -> None:
    upload = Uploading(database, storage, [SHA256])
    bring(storage, SHA256)
    later = datetime.now(UTC) + timedelta(minutes=1)
    assert database.write_now(lambda connection: forget_uploads(connection, later)) == 1
    assert drop_files(database, storage, [SHA256])

    with pytest.raises(Unavailable, match="too long"):
        database.write_now(upload.settle)


def test_a_content_that_is_swept_during_a_reference_is_stored_again(
    migrated_postgres_database: Callable[[], str], tmp_path: Path
) -> None:
    """Only Postgres has concurrent writers."""
    url = migrated_postgres_database()
    database = Database(url)
    tries: list[int] = []
    database.write_now(lambda connection: record(connection, [(SHA256, 1, b"x")]))

    def refer(connection: Any) -> None:
        record(connection, [(SHA256, 1, b"x")])
        connection.execute(select(objects.c.sha256))  # statements are sent together, at the latest before a read
        if not tries:
            with psycopg.connect(url, autocommit=True) as sweeper:
                sweeper.execute("DELETE FROM objects")
        tries.append(1)
        values = {"id": "blob:x", "kind": "a/b", "size_bytes": 1, "sha256": SHA256, "is_text": True, "owner": "ada"}
        connection.execute(insert(blobs).values(**values, created_at=datetime.now(UTC)))

    database.write_now(refer)

    assert len(tries) == 2
    assert database.read_now(lambda connection: connection.scalar(select(objects.c.data))) == b"x"
    database.close()


# -- under stress --------------------------------------------------------------------------------------------------


@pytest.mark.full
@pytest.mark.postgres
def test_sweeps_lose_no_content_of_racing_publishers_and_uploads(
    swept: Server, database_kind: str, new_name: str, start_server: Callable[..., Server], tmp_path: Path
) -> None:
    """On Postgres, two servers share one storage and both sweep."""
    servers = [swept]
    if database_kind == "postgres":
        shared = {"SKILLERY_BACKENDS_STORAGE_DIRECTORY_PATH": str(swept.home / "contents")}
        env = people_settings(tmp_path / "plugins", SKILLERY_DATABASE=swept.database, **NO_GRACE, **shared)
        servers.append(start_server(env=env))
    contents = [f"{new_name}-{letter}" * (1 if letter in "ab" else LARGE // 10) for letter in "abcde"]
    kept: list[tuple[str, str]] = []
    versions: list[str] = []
    over = threading.Event()

    def upload(number: int) -> None:
        chance = random.Random(number)
        caller = Caller(servers[number % len(servers)].url, Who("racer", "read run publish", "*"))
        for _ in range(40):
            content = chance.choice(contents)
            blob_id = put(caller, content)
            if chance.random() < 0.9:
                caller("delete_blob", blob_id=blob_id)
            else:
                kept.append((blob_id, content))

    def publish(number: int) -> None:
        caller = Caller(servers[number % len(servers)].url, Who("racer", "read run publish", "*"))
        for turn in range(4):
            name = f"{new_name}.p{number}n{turn}"
            files = skill_files(**{f"resources/{at}.txt": f"{content}{turn}" for at, content in enumerate(contents)})
            caller("create_skill", manifest=manifest(name), skill_md="# A\n", files=files)
            versions.append(name)

    def collect(server: Server) -> int:
        caller, count = Caller(server.url, Who("sweeper", "admin")), 0
        while not over.is_set():
            reply = caller.send("collect_garbage", {})
            count += reply["result"]["removed"]["unused_contents"]["count"] if "result" in reply else 0
        return count

    with ThreadPoolExecutor(8) as threads:
        sweeping = [threads.submit(collect, server) for server in servers]
        working = [threads.submit(upload, number) for number in range(4)]
        working += [threads.submit(publish, number) for number in range(2)]
        try:
            for one in working:
                one.result()
        finally:
            over.set()
        assert sum(one.result() for one in sweeping) > 0

    reader = Caller(swept.url, Who("racer", "read"))
    for blob_id, content in kept:
        assert reader.http.get(f"/blobs/{blob_id}").text == content
    for name in versions:
        turn = name.rpartition("n")[2]
        for at, content in enumerate(contents):
            assert reader("read_skill_file", name=name, path=f"resources/{at}.txt")["content"] == f"{content}{turn}"


@pytest.mark.full
@pytest.mark.postgres
def test_kill_nine_in_the_middle_of_sweeps_leaves_nothing_broken(
    start_server: Callable[..., Server], database_kind: str, request: pytest.FixtureRequest
) -> None:
    url = "" if database_kind == "sqlite" else request.getfixturevalue("migrated_postgres_database")()
    env = {"SKILLERY_DATABASE": url, **NO_GRACE}
    chance = random.Random(11)
    kept: dict[str, bytes] = {}
    for _ in range(rounds(1, long=2)):
        server = start_server(env=env)
        for number in range(60):
            content = os.urandom(LARGE)
            blob_id = put(server.rpc, content)
            if number % 6:
                server.rpc("delete_blob", blob_id=blob_id)
            else:
                kept[blob_id] = content
        sweeping = threading.Thread(target=_sweep_until_gone, args=(server.url,))
        sweeping.start()
        threading.Event().wait(chance.uniform(0.002, 0.05))
        server.stop(signal.SIGKILL)
        sweeping.join()

    last = start_server(env=env)
    sweep(last.rpc)

    for blob_id, content in kept.items():
        assert last.rpc.http.get(f"/blobs/{blob_id}").content == content
    assert len(stored(last.home)) == len(kept) + BUNDLED
    assert {one["count"] for one in sweep(last.rpc).values()} == {0}


def _sweep_until_gone(url: str) -> None:
    try:
        Rpc(url).send("collect_garbage", {})
    except httpx.HTTPError:
        return


def test_a_blob_without_a_lifetime_stays(database: Database, storage: DirectoryStorage) -> None:
    import asyncio

    kept = Blobs(database, storage, BlobLifetimes(0, 0), UNLIMITED)
    made = asyncio.run(kept.create_blob(Identity("ada"), b"x", "a/b"))
    swept = expired_blobs(database, timedelta(), Sweep(dry_run=False, stopped=lambda: False))

    assert (made.expires_at, swept) == (None, Swept())
    assert asyncio.run(kept.find_blob(Identity("ada"), made.blob_id)).expires_at is None
