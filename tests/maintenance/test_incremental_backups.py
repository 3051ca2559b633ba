"""skillery backup without a file: incremental backups, their retention, and backup verify."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import insert, update

from skillery.backends import KINDS, Place
from skillery.builtin.directory_storage import DirectorySettings, skillery_storage
from skillery.database import Database
from skillery.database.tables import namespaces
from skillery.errors import StartupError
from skillery.maintenance.backup_archives import FORMAT, ArchiveHead
from skillery.maintenance.backup_stores import BackupStore, Document, StoredBackup, StoredSource, kept_of
from skillery.maintenance.incremental_backups import add_backup
from skillery.maintenance.rows import decode_row
from skillery.settings.groups import Backups
from tests.conftest import ON_SQLITE, Rpc, Server, clean_environment, manifest, skill_files
from tests.maintenance.test_backups import LARGE, OTHER, add_content, fill, put, seen, skillery
from tests.support.data_copies import SECOND
from tests.support.processes import eventually

Start = Callable[..., Server]
NAMESPACE = {
    "text": "",
    "contact": "",
    "pinned_json": "[]",
    "identity": "me",
    "set_at": datetime(2026, 1, 2, tzinfo=UTC),
}
LONG_AGO = timedelta(days=30)


@pytest.fixture
def new_url(new_postgres_database: Callable[[], str]) -> Callable[[str], str]:
    return lambda kind: new_postgres_database() if kind == "postgres" else ""


@pytest.fixture
def env(tmp_path: Path, database_kind: str, new_url: Callable[[str], str]) -> dict[str, str]:
    return {
        "SKILLERY_DATABASE": new_url(database_kind),
        "SKILLERY_BACKUPS_STORAGE": "directory",
        "SKILLERY_BACKENDS_BACKUP_DIRECTORY_PATH": str(tmp_path / "store"),
    }


def backed_up(home: Path, env: dict[str, str]) -> Any:
    ended = skillery("backup", "--home", home, "--json", env=env)
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)


def verified(home: Path, env: dict[str, str], *arguments: str) -> Any:
    """Return the kinds of the faults that `backup verify` finds."""
    ended = skillery("backup", "verify", *arguments, "--home", home, "--json", env=env)
    assert ended.returncode in {0, 1}, ended.stderr
    return [fault["kind"] for fault in json.loads(ended.stdout)["faults"]]


def listed(home: Path, env: dict[str, str]) -> list[str]:
    ended = skillery("backup", "list", "--home", home, "--json", env=env)
    return [backup["id"] for backup in json.loads(ended.stdout)["backups"]]


def publish(rpc: Rpc, version: str) -> None:
    files = [*skill_files(), {"path": "resources/large.txt", "content": LARGE + version}]
    rpc("create_skill", manifest=manifest("team.kept", version), skill_md=f"# {version}\n", files=files)


@pytest.mark.full
def test_the_second_backup_stores_only_new_contents(
    database_kind: str, new_url: Callable[[str], str], env: dict[str, str], start_server: Start, tmp_path: Path
) -> None:
    env |= {"SKILLERY_BACKUPS_KEEP_DAILY": "0", "SKILLERY_BACKUPS_KEEP_WEEKLY": "0"}
    server = start_server(env=env)
    blob_id = fill(server.rpc)
    first = backed_up(server.home, env)
    publish(server.rpc, "3.0.0")
    before = seen(server.rpc, blob_id)

    second, third = backed_up(server.home, env), backed_up(server.home, env)

    assert first["new_contents"] == first["contents"]
    # SKILL.md, skill.toml and the large file; the code is that of the version before.
    assert (second["new_contents"], second["contents"]) == (3, first["contents"] + 3)
    assert second["new_bytes"] < first["new_bytes"] / 2 + len(LARGE)
    assert third["new_contents"] == 0
    assert verified(server.home, env) == []
    server.stop()
    # A backup of SQLite restores into both databases.
    kinds = (OTHER[database_kind], *([database_kind] if database_kind == "sqlite" else []))
    for major, kind in enumerate(kinds, 4):
        other = {**env, "SKILLERY_DATABASE": new_url(kind)}
        home = tmp_path / f"restored-{kind}"
        assert skillery("restore", "--backup", third["id"], "--home", home, env=other).returncode == 0
        assert skillery("check", "--deep", "--home", home, env=other).returncode == 0
        restored = start_server(home=home.name, env=other)
        assert seen(restored.rpc, blob_id) == before
        publish(restored.rpc, f"{major}.0.0")
        # The restored registry continues the series.
        assert backed_up(home, other)["new_contents"] == 3
        restored.stop()


@pytest.mark.full
def test_a_killed_backup_is_not_listed_and_its_contents_are_reused(
    env: dict[str, str], start_server: Start, tmp_path: Path
) -> None:
    (tmp_path / "plugins").mkdir()
    (tmp_path / "plugins" / "second.py").write_text(SECOND)
    more = {"SKILLERY_PLUGINS_FOLDER": str(tmp_path / "plugins"), "SECOND_FOLDER": str(tmp_path)}
    del env["SKILLERY_BACKENDS_BACKUP_DIRECTORY_PATH"]
    env |= {**more, "SKILLERY_BACKUPS_STORAGE": "second"}
    server = start_server(env=env)
    fill(server.rpc)
    command = [sys.executable, "-m", "skillery", "backup", "--home", str(server.home)]
    process = subprocess.Popen(command, env=clean_environment({**env, "SECOND_STALLS_AFTER": "10"}))
    eventually((tmp_path / "stalled").exists, of=process)
    eventually(lambda: len(list((tmp_path / "second").glob("[0-9a-f][0-9a-f]/*"))) > 5, of=process)
    process.send_signal(signal.SIGKILL)
    process.wait()

    assert listed(server.home, env) == []
    again = backed_up(server.home, env)
    assert 0 < again["new_contents"] < again["contents"]
    assert listed(server.home, env) == [again["id"]]
    assert verified(server.home, env) == []


@ON_SQLITE
@pytest.mark.full
def test_verify_finds_damage_and_the_next_backup_repairs_missing_contents(
    env: dict[str, str], start_server: Start, tmp_path: Path
) -> None:
    server = start_server(env=env)
    fill(server.rpc)
    made = backed_up(server.home, env)
    [large, *_] = sorted((tmp_path / "store").glob("[0-9a-f][0-9a-f]/*"), key=lambda path: -path.stat().st_size)
    content = large.read_bytes()

    large.unlink()
    assert verified(server.home, env, "--quick") == ["content_missing"]
    assert backed_up(server.home, env)["new_contents"] == 1
    assert verified(server.home, env) == []
    large.chmod(0o644)
    large.write_bytes(content[:-1] + b"?")
    assert verified(server.home, env) == ["content_damaged"]
    assert verified(server.home, env, "--quick") == []
    damaged = skillery("restore", "--home", tmp_path / "restored", env={**env, "SKILLERY_DATABASE": ""})
    assert (damaged.returncode, "was changed" in damaged.stderr) == (4, True)
    assert made["id"] not in listed(server.home, env)  # of each day, the newest is kept
    [name] = (path.name for path in (tmp_path / "store" / "names").iterdir())
    document = tmp_path / "store" / name[-64:-62] / name[-64:]
    document.chmod(0o644)
    document.write_bytes(b"{}")
    [broken] = json.loads(skillery("backup", "list", "--home", server.home, "--json", env=env).stdout)["backups"]
    assert "was changed" in broken["damage"]
    assert "damaged" in skillery("backup", "list", "--home", server.home, env=env).stdout
    archive = tmp_path / "backup.tar"
    assert skillery("backup", archive, "--home", server.home, env=env).returncode == 0
    assert verified(server.home, env, str(archive)) == []


@ON_SQLITE
@pytest.mark.full
def test_the_age_of_the_last_backup_is_a_metric(env: dict[str, str], start_server: Start, tmp_path: Path) -> None:
    def age(server: Server) -> float | None:
        text = server.rpc.http.get("/metrics").text
        match = re.search(r"^skillery_backup_age_seconds (\S+)$", text, re.MULTILINE)
        return float(match[1]) if match else None

    server = start_server(env=env)
    server.rpc.error("revoke_token", id="none")
    # The time since the first entry of the audit trail: there was no backup.
    assert 0 <= (age(server) or -1) < 3600
    backed_up(server.home, env)
    assert server.rpc("list_audit", action="backup")["entries"][0]["outcome"] == "done"
    server.stop()
    again = start_server(env={**env, "SKILLERY_BACKUPS_STORAGE": ""})
    assert 0 <= (age(again) or -1) < 3600


@ON_SQLITE
@pytest.mark.full
def test_another_registry_cannot_use_a_backup_store(env: dict[str, str], start_server: Start, tmp_path: Path) -> None:
    server, other = start_server(env=env), start_server(home="other")
    backed_up(server.home, env)
    live = {**env, "SKILLERY_BACKENDS_BACKUP_DIRECTORY_PATH": str(server.home / "contents")}

    for home, settings in ((other.home, {**env, "SKILLERY_DATABASE": ""}), (server.home, live)):
        refused = skillery("backup", "--home", home, env=settings)
        assert (refused.returncode, "of another registry" in refused.stderr) == (4, True)
    unknown = skillery("backup", "--home", server.home, env={**env, "SKILLERY_BACKUPS_STORAGE": "tape"})
    assert "setting 'backups.storage' is 'tape', which no plugin offers" in unknown.stderr
    unset = skillery("backup", "--home", other.home)
    assert (unset.returncode, "set backups.storage" in unset.stderr) == (4, True)


# -- without a server ------------------------------------------------------------------------------------------------


@pytest.fixture
def store(tmp_path: Path) -> BackupStore:
    storage = skillery_storage().open(DirectorySettings(), Place(tmp_path / "backups"))
    return BackupStore(KINDS["storage"].completed(storage), "directory")


def backup_at(text: str) -> StoredBackup:
    at = datetime.fromisoformat(text).replace(tzinfo=UTC)
    return StoredBackup(text, text, at, "")


def test_the_newest_backups_of_days_and_weeks_are_kept() -> None:
    # The first is a Monday.
    times = ["2026-11-30T03", "2026-11-29T23", "2026-11-29T03", "2026-11-28T03", "2026-11-21T03", "2026-11-10T03"]
    backups = [backup_at(f"{time}:00") for time in times]

    def kept(daily: int, weekly: int) -> list[str]:
        chosen = kept_of(backups, Backups("directory", daily, weekly))
        return [time for time, backup in zip(times, backups, strict=True) if backup in chosen]

    assert kept(0, 0) == times
    assert kept(1, 0) == times[:1]
    assert kept(3, 0) == [times[0], times[1], times[3]]
    assert kept(0, 3) == [times[0], times[1], times[4]]
    assert kept(2, 9) == [times[0], times[1], times[4], times[5]]


@pytest.mark.full
def test_removed_backups_take_only_contents_that_no_other_has(
    database: Database, store: BackupStore, tmp_path: Path
) -> None:
    storage = skillery_storage().open(DirectorySettings(), Place(tmp_path / "home"))
    shared, gone = (add_content(database, storage, content) for content in (b"shared", b"gone"))
    keep = Backups("directory", keep_daily=1, keep_weekly=0)
    first = add_backup(database, storage, store, keep, "1", None)
    left_over = put(store.storage, b"of a killed backup")
    names = tmp_path / "backups" / "contents" / "names"
    [name] = names.iterdir()
    moved = name.rename(names / f"{int(name.name[:4]) - 1}{name.name[4:]}")
    for path in (tmp_path / "backups" / "contents").glob("[0-9a-f][0-9a-f]/*"):
        past = (datetime.now(UTC) - LONG_AGO).timestamp()
        os.utime(path, (past, past))
    young = put(store.storage, b"of a backup that is being made")
    database.write_now(lambda connection: connection.exec_driver_sql(f"DELETE FROM objects WHERE sha256 = '{gone}'"))

    (tmp_path / "key").write_text("the key")

    second = add_backup(database, storage, store, keep, "1", tmp_path / "key")

    assert not moved.exists()
    assert (second.removed, second.new_contents) == ([f"{int(first.id[:4]) - 1}{first.id[4:]}"], 0)
    assert StoredSource(store, store.find(second.id)).secret_key() == b"the key"
    present = store.sizes(datetime.now(UTC) + timedelta(hours=1))
    assert {shared: True, gone: False, left_over: False, young: True} == {
        digest: digest in present for digest in (shared, gone, left_over, young)
    }


@pytest.mark.full
def test_a_changed_row_renews_a_single_part(database: Database, store: BackupStore, tmp_path: Path) -> None:
    storage = skillery_storage().open(DirectorySettings(), Place(tmp_path / "home"))
    words = [{"namespace": f"n{number:05}", "title": "t" * 200} | NAMESPACE for number in range(5000)]
    database.write_now(lambda connection: connection.execute(insert(namespaces), words))
    of_middle = update(namespaces).where(namespaces.c.namespace == "n01000")

    def table() -> tuple[set[str], list[list[Any]]]:
        added = add_backup(database, storage, store, Backups("directory", 0, 0), "1", None)
        source = StoredSource(store, store.find(added.id))
        [lines] = [stream.read().splitlines() for name, stream in source.tables() if name == "namespaces"]
        return set(source.document.tables["namespaces"].parts), [decode_row(line) for line in lines[1:]]

    first, rows = table()
    assert table() == (first, rows)
    database.write_now(lambda connection: connection.execute(of_middle.values(title="changed")))
    second, changed_rows = table()

    assert len(first) > 3
    assert len(second - first) == len(first - second) == 1
    before, after = dict(enumerate(map(tuple, rows))), dict(enumerate(map(tuple, changed_rows)))
    assert [after[number][:2] for number in after if after[number] != before[number]] == [("n01000", "changed")]
    assert rows[0][-1] == NAMESPACE["set_at"]


@pytest.mark.full
def test_a_damaged_backup_stops_neither_backups_nor_removals(
    database: Database, store: BackupStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    storage = skillery_storage().open(DirectorySettings(), Place(tmp_path / "home"))
    names = tmp_path / "backups" / "contents" / "names"

    def made(years: int) -> StoredBackup:
        """Add a backup, and make it older."""
        add_backup(database, storage, store, Backups("directory", 2, 0), "1", None)
        newest = names / store.list()[0].name
        newest.rename(names / f"{int(newest.name[:4]) - years}{newest.name[4:]}")
        return next(backup for backup in store.list() if backup.digest == newest.name[-64:])

    first, second = made(2), made(1)
    path = names.parent / second.digest[:2] / second.digest
    path.chmod(0o644)
    path.write_bytes(b"{}")

    third = made(0)

    assert store.list() == [third, second]
    assert first.digest in store.sizes(datetime.now(UTC) + timedelta(hours=1))
    assert f"the backup {second.id} is damaged" in caplog.text
    assert store.base()[0] == third


def test_a_backup_fails_if_its_base_was_removed_during_it(store: BackupStore) -> None:
    def document(year: int) -> Document:
        return Document(ArchiveHead(FORMAT, "1", "0001", datetime(year, 1, 1, tzinfo=UTC)), {}, 0, 0)

    base = store.complete(document(2025), None)
    store.storage.remove_name(base.name)

    with pytest.raises(StartupError, match="repeat the backup"):
        store.complete(document(2026), base)
    assert store.list() == []
