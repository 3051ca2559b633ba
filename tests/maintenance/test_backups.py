"""skillery backup, restore and check: a registry in one file, and the check for missing data."""

from __future__ import annotations

import hashlib
import io
import json
import sqlite3
import stat
import subprocess
import tarfile
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from sqlalchemy import Connection, insert, select, text

from skillery.audit import local_actor, verify
from skillery.backends import Identity, Place, Storage
from skillery.builtin.directory_storage import DirectorySettings, skillery_storage
from skillery.database import Database
from skillery.database.migrate import current
from skillery.database.tables import audit, idempotency_keys, objects, runs, servers, uploads
from skillery.errors import StartupError
from skillery.formats.bundle import digest_of_entries
from skillery.identity.idempotency import Claim, claim, keep, note_run
from skillery.maintenance.backup_archives import Archive
from skillery.maintenance.backups import back_up
from skillery.maintenance.integrity import check
from skillery.maintenance.restores import restore
from skillery.runs.ended_runs import note_seen
from tests.conftest import Rpc, Server, clean_environment, manifest, skill_files
from tests.support.prefork import prefork

ME = local_actor("me")
LARGE = "large " * 20_000
OTHER = {"sqlite": "postgres", "postgres": "sqlite"}


def skillery(*args: str | Path, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    done = prefork().run([*map(str, args)], clean_environment(env), b"")
    return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())


def fill(rpc: Rpc) -> str:
    """Publish skills with large and small files, make a run and blobs. Return the id of a large blob."""
    for version in ("1.0.0", "1.1.0-rc.1"):
        files = [*skill_files(), {"path": "resources/large.txt", "content": LARGE + version}]
        rpc("create_skill", manifest=manifest("team.kept", version), skill_md="# Kept\n", files=files)
    rpc("create_skill", manifest=manifest("team.yanked"), skill_md="# Y\n", files=skill_files())
    rpc("yank_version", name="team.yanked", version="1.0.0", reason="leaks")
    rpc("set_label", name="team.kept", label="stable", version="1.0.0")
    rpc("waive_finding", name="team.other", rule="secret", reason="a sample")
    rpc.error("revoke_token", id="none")
    assert rpc("execute_skill", name="team.kept", args={"a": 1})["status"] == "completed"
    blob_id: str = rpc("create_blob", content=LARGE, kind="text/plain")["blob_id"]
    return blob_id


def seen(rpc: Rpc, blob_id: str) -> list[Any]:
    return [
        rpc("list_skills", detail="summary", limit=1000),
        rpc("describe_skill", name="team.kept", detail="full"),
        rpc("describe_skill", name="team.yanked", version="1.0.0", detail="full"),
        rpc("read_skill_file", name="team.kept", path="resources/large.txt"),
        rpc("search_skills", query="kep"),
        rpc("list_labels", name="team.kept"),
        rpc("list_waivers"),
        rpc("list_runs"),
        rpc("list_audit", subject="team.kept"),
        rpc.http.get(f"/blobs/{blob_id}").text,
    ]


@pytest.fixture
def new_url(new_postgres_database: Callable[[], str]) -> Callable[[str], str]:
    return lambda kind: new_postgres_database() if kind == "postgres" else ""


@pytest.mark.smoke
@pytest.mark.full(after=1)
@pytest.mark.long
def test_a_backup_of_a_serving_registry_restores_into_either_database(
    database_kind: str, new_url: Callable[[str], str], start_server: Callable[..., Server], tmp_path: Path
) -> None:
    env = {"SKILLERY_DATABASE": new_url(database_kind)}
    server = start_server(env=env)
    blob_id = fill(server.rpc)
    before = seen(server.rpc, blob_id)
    file = tmp_path / "backup.tar"
    head = skillery("audit", "head", "--home", server.home, env=env).stdout.strip()

    made = skillery("backup", file, "--home", server.home, "--json", env=env)

    assert made.returncode == 0, made.stderr
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert json.loads(made.stdout)["contents"] >= 3
    server.stop()
    for kind in (database_kind, OTHER[database_kind]):
        other = {"SKILLERY_DATABASE": new_url(kind)}
        home = tmp_path / f"restored-{kind}"
        restored = skillery("restore", file, "--home", home, env=other)
        assert restored.returncode == 0, restored.stderr
        assert skillery("check", "--deep", "--home", home, env=other).returncode == 0
        assert skillery("audit", "verify", "--head", head, "--home", home, env=other).returncode == 0
        again = start_server(home=home.name, env=other)
        assert seen(again.rpc, blob_id) == before
        # New rows get new ids.
        fill_more = again.rpc("create_skill", manifest=manifest("team.new"), skill_md="# N\n", files=skill_files())
        assert fill_more["status"] == "published"
        assert again.rpc("execute_skill", name="team.new")["status"] == "completed"
        # The search index follows the next version of a restored skill.
        again.rpc("create_skill", manifest=manifest("team.kept", "2.0.0"), skill_md="# Quince\n", files=skill_files())
        assert [row["name"] for row in again.rpc("search_skills", query="quince")["skills"]] == ["team.kept"]
        assert skillery("audit", "verify", "--head", head, "--home", home, env=other).returncode == 0
        assert skillery("restore", file, "--home", tmp_path / "third", env=other).returncode == (
            4 if kind == "postgres" else 0
        )
        again.stop()
        if kind == "sqlite":
            _remove(tmp_path / "third")


def _remove(home: Path) -> None:
    import shutil

    shutil.rmtree(home)


@pytest.mark.full
def test_backup_during_writes_is_consistent(
    database_kind: str, new_url: Callable[[str], str], start_server: Callable[..., Server], tmp_path: Path
) -> None:
    env = {"SKILLERY_DATABASE": new_url(database_kind)}
    server = start_server(env=env)
    stop = threading.Event()

    def publish() -> None:
        rpc, number = Rpc(server.url), 0
        while not stop.is_set():
            number += 1
            files = [*skill_files(), {"path": "resources/large.txt", "content": f"{number}{LARGE}"}]
            rpc("create_skill", manifest=manifest("busy", f"1.0.{number}"), skill_md="# B\n", files=files)

    writer = threading.Thread(target=publish)
    writer.start()
    try:
        made = [skillery("backup", tmp_path / f"{n}.tar", "--home", server.home, env=env) for n in range(2)]
        checked = skillery("check", "--deep", "--home", server.home, env=env)
    finally:
        stop.set()
        writer.join()
    assert [one.returncode for one in made] == [0, 0], [one.stderr for one in made]
    assert checked.returncode == 0, checked.stdout
    restored = skillery("restore", tmp_path / "1.tar", "--home", tmp_path / "other")
    assert restored.returncode == 0, restored.stderr
    found = skillery("check", "--deep", "--home", tmp_path / "other")
    assert found.returncode == 0, found.stdout


# -- without a server ----------------------------------------------------------------------------------------------


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    made: Storage = skillery_storage().open(DirectorySettings(), Place(tmp_path / "home"))
    return made


def put(storage: Storage, content: bytes) -> str:
    digest = hashlib.sha256(content).hexdigest()
    upload = storage.begin()
    upload.write(content)
    upload.commit(digest)
    return digest


def add_content(database: Database, storage: Storage, content: bytes) -> str:
    digest = put(storage, content)
    sql = text("INSERT INTO objects (sha256, size_bytes) VALUES (:digest, :size)")
    database.write_now(lambda connection: connection.execute(sql, {"digest": digest, "size": len(content)}))
    return digest


@pytest.fixture
def archive(database: Database, storage: Storage, tmp_path: Path) -> Path:
    add_content(database, storage, b"content")
    path = tmp_path / "backup.tar"
    back_up(database, storage, path, "1")
    return path


def empty(tmp_path: Path, name: str = "empty") -> Database:
    return Database(f"sqlite:///{tmp_path / name}.db")


def rewritten(path: Path, change: Callable[[str, bytes], bytes | None]) -> None:
    """Rewrite the archive with changed members and unchanged checksums."""
    made = io.BytesIO()
    with tarfile.open(path) as old, tarfile.open(fileobj=made, mode="w") as new:
        for member in old:
            stream = old.extractfile(member)
            assert stream is not None
            data = change(member.name, stream.read())
            if data is not None:
                member.size = len(data)
                new.addfile(member, io.BytesIO(data))
    path.write_bytes(made.getvalue())


def forge(path: Path, change: Callable[[str, bytes], bytes | None]) -> None:
    """Rewrite the archive with changed members and their checksums: anyone can compute these."""
    rewritten(path, change)
    sums: dict[str, str] = {}

    def summed(name: str, data: bytes) -> bytes:
        if name == "sums.json":
            return json.dumps(sums).encode()
        sums[name] = hashlib.sha256(data).hexdigest()
        return data

    rewritten(path, summed)


def changed_table(table: str, change: Callable[[bytes], bytes], name: str, data: bytes) -> bytes:
    """Return the content of a member of the archive, changed if it is the one with the rows of the table."""
    return change(data) if name == f"tables/{table}.jsonl" else data


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-12_000])


def cut_within_the_last_member(path: Path) -> None:
    with tarfile.open(path) as tar:
        last = tar.getmembers()[-1]
    path.write_bytes(path.read_bytes()[: last.offset_data + last.size // 2])


def cut_in_the_middle(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flip(path: Path) -> None:
    rewritten(path, lambda name, data: data[:-1] + b"X" if name.startswith("contents/") else data)


def drop_table(path: Path) -> None:
    rewritten(path, lambda name, data: None if name == "tables/tokens.jsonl" else data)


def drop_sums(path: Path) -> None:
    rewritten(path, lambda name, data: None if name == "sums.json" else data)


def escape(path: Path) -> None:
    with tarfile.open(path, "a") as tar:
        tar.addfile(tarfile.TarInfo("../escaped"), io.BytesIO())


def be_text(path: Path) -> None:
    path.write_text("not an archive")


@pytest.mark.parametrize(
    "damage", [cut, cut_within_the_last_member, cut_in_the_middle, flip, drop_table, drop_sums, escape, be_text]
)
@pytest.mark.full(after=3)
def test_a_damaged_backup_is_refused_before_anything_is_written(
    database: Database, storage: Storage, archive: Path, tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    damage(archive)
    target = empty(tmp_path)
    fresh: Storage = skillery_storage().open(DirectorySettings(), Place(tmp_path / "fresh"))
    with pytest.raises(StartupError, match="damaged"):
        restore(target, fresh, Archive(archive), tmp_path / "key", ME)
    assert current(target) is None
    assert not [path for path in (tmp_path / "fresh").rglob("*") if path.is_file()]
    target.close()


@pytest.mark.full
def test_restore_leaves_an_empty_database_if_a_table_fails(
    database: Database, storage: Storage, tmp_path: Path, new_postgres_database: Callable[[], str]
) -> None:
    path = tmp_path / "backup.tar"
    back_up(database, storage, path, "1")

    def broken(name: str, data: bytes) -> bytes:
        if name == "tables/skill_versions.jsonl":
            return data + b"[1]\n"
        return data

    forge(path, broken)
    for target in (empty(tmp_path), Database(new_postgres_database())):
        with pytest.raises(StartupError, match="the table 'skill_versions'"):
            restore(target, storage, Archive(path), tmp_path / "key", ME)
        assert current(target) is None
        target.close()


@pytest.mark.full
@pytest.mark.parametrize("database_kind", ["sqlite"], indirect=True)  # archives of both databases have the same lines
def test_forged_rows_of_a_backup_are_refused(
    database: Database, storage: Storage, tmp_path: Path, new_postgres_database: Callable[[], str]
) -> None:
    path = tmp_path / "backup.tar"
    with database.engine.begin() as connection:
        inline = {"sha256": hashlib.sha256(b"x").hexdigest(), "size_bytes": 1, "data": b"x"}
        connection.execute(insert(objects).values(inline))
    back_up(database, storage, path, "1")
    good = path.read_bytes()
    values: tuple[Any, ...] = (
        {},
        {"bytes": 7},
        {"bytes": "?"},
        {"at": "now"},
        {"at": 1},
        [1],
        2**70,
        None,
        "a\0b",
        "x",
    )
    lines = [b"7", b"\xff", b"[" * 5000 + b"]" * 5000, *(json.dumps([value] * 3).encode() for value in values)]
    tables: dict[str, list[Callable[[bytes], bytes]]] = {
        "objects": [
            *((lambda data, line=line: data + line + b"\n") for line in lines),
            lambda data: data.replace(b'{"bytes":"eA=="}', b'{"bytes":"eQ=="}'),
            lambda data: data.replace(b",1,{", b",2,{"),
        ],
        "tokens": [lambda data: b"", lambda data: b"7\n"],
    }
    targets = [empty(tmp_path), Database(new_postgres_database())]
    wrong = {}
    changes = [(table, change) for table, several in tables.items() for change in several]
    for number, (table, change) in enumerate(changes):
        path.write_bytes(good)
        forge(path, partial(changed_table, table, change))
        target = targets[number % 2]
        try:
            restore(target, storage, Archive(path), tmp_path / "key", ME)
        except StartupError as error:
            if f"the table '{table}' has a row" not in str(error) or current(target) is not None:
                wrong[number] = str(error)
        except Exception as error:
            wrong[number] = repr(error)
        else:
            wrong[number] = "restored"
    assert wrong == {}
    for target in targets:
        target.close()


@pytest.mark.full
@pytest.mark.parametrize("forged", ["path", "digest"])
def test_a_forged_backup_or_database_reaches_no_file_outside(
    forged: str, start_server: Callable[..., Server], tmp_path: Path
) -> None:
    server = start_server()
    files = [*skill_files(), {"path": "resources/x.txt", "content": "x"}]
    made = server.rpc("create_skill", manifest=manifest("team.kept"), skill_md="# Kept\n", files=files)
    archive, outside = tmp_path / "backup.tar", tmp_path / "outside"
    assert skillery("backup", archive, "--home", server.home).returncode == 0
    server.stop()
    table, old = {"path": ("skill_files", "resources/x.txt"), "digest": ("skill_versions", made["digest"])}[forged]

    forge(archive, lambda name, data: data.replace(json.dumps(old).encode(), json.dumps(str(outside)).encode()))
    restored = skillery("restore", archive, "--home", tmp_path / "restored")
    with sqlite3.connect(server.home / "skillery.db") as connection:
        changed = connection.execute(f"UPDATE {table} SET {forged} = ? WHERE {forged} = ?", (str(outside), old))
        if forged == "path":  # with the digest that fits
            version = "SELECT id FROM skill_versions WHERE digest = ?"
            entries = f"SELECT path, sha256, executable FROM skill_files WHERE version_id = ({version})"
            digest = digest_of_entries(connection.execute(entries, (made["digest"],)))
            connection.execute("UPDATE skill_versions SET digest = ? WHERE digest = ?", (digest, made["digest"]))
    connection.close()
    checked = skillery("check", "--home", server.home, "--json")
    again = start_server(home=server.home.name)
    error = again.rpc.error("execute_skill", name="team.kept")

    assert (restored.returncode, f"'{table}'" in restored.stderr) == (4, True), restored.stderr
    assert (changed.rowcount, "skillery check" in error["data"]["hint"]) == (1, True), error
    assert [fault["kind"] for fault in json.loads(checked.stdout)["faults"]] == ["version_differs"]
    assert not outside.exists()


@pytest.mark.full
def test_restore_leaves_an_empty_database_if_the_audit_entry_fails(
    database: Database, storage: Storage, tmp_path: Path, new_postgres_database: Callable[[], str]
) -> None:
    """A restore ends with its entry in the audit trail, and this actor makes that entry fail."""
    path = tmp_path / "backup.tar"
    back_up(database, storage, path, "1")
    someone = SomeoneWithoutAKind("me")
    for target in (empty(tmp_path), Database(new_postgres_database())):
        with pytest.raises(AttributeError):
            restore(target, storage, Archive(path), tmp_path / "key", someone)  # type: ignore[arg-type]
        assert current(target) is None
        restore(target, storage, Archive(path), tmp_path / "key", ME)
        target.close()


class SomeoneWithoutAKind(NamedTuple):
    name: str


@pytest.mark.full
def test_a_restore_is_the_last_entry_of_the_audit_trail(
    database: Database, storage: Storage, tmp_path: Path, new_postgres_database: Callable[[], str]
) -> None:
    path = tmp_path / "backup.tar"
    back_up(database, storage, path, "1")
    for target in (empty(tmp_path), Database(new_postgres_database())):
        made = restore(target, storage, Archive(path), tmp_path / "key", ME)
        with target.engine.connect() as connection:
            last = connection.execute(select(audit).order_by(audit.c.seq.desc()).limit(1)).one()
        assert verify(target).fault is None
        assert (last.action, last.subject, last.identity) == ("restore", "backup.tar", "home:me")
        assert json.loads(last.after_json)["rows"] == sum(made.rows.values())
        target.close()


def test_a_registry_is_never_restored_over_another(database: Database, storage: Storage, archive: Path) -> None:
    with pytest.raises(StartupError, match="not empty"):
        restore(database, storage, Archive(archive), archive.with_name("key"), ME)


def test_a_backup_of_a_newer_release_is_refused_by_name(
    database: Database, storage: Storage, archive: Path, tmp_path: Path
) -> None:
    def newer(name: str, data: bytes) -> bytes:
        if name == "head.json":
            return json.dumps(json.loads(data) | {"revision": "9999", "release": "9.9"}).encode()
        return data

    forge(archive, newer)
    with pytest.raises(StartupError, match=r"9\.9.*9999"):
        restore(empty(tmp_path), storage, Archive(archive), tmp_path / "key", ME)


def test_a_backup_that_fails_leaves_no_file(database: Database, storage: Storage, tmp_path: Path) -> None:
    storage.delete(add_content(database, storage, b"gone"))
    with pytest.raises(StartupError, match="not in the storage"):
        back_up(database, storage, tmp_path / "backup.tar", "1")
    assert not list(tmp_path.glob("*backup*"))


def test_backup_contains_the_secret_key_only_on_request(database: Database, storage: Storage, tmp_path: Path) -> None:
    key = tmp_path / "home" / "secrets.key"
    key.write_text("the key")
    back_up(database, storage, tmp_path / "without.tar", "1")
    back_up(database, storage, tmp_path / "with.tar", "1", key)
    assert b"the key" not in (tmp_path / "without.tar").read_bytes()
    restored = tmp_path / "restored.key"
    assert restore(empty(tmp_path), storage, Archive(tmp_path / "with.tar"), restored, ME).secret_key
    assert restored.read_text() == "the key"
    assert stat.S_IMODE(restored.stat().st_mode) == 0o600


@pytest.mark.full
def test_restore_closes_unfinished_runs_requests_and_uploads(
    database: Database, storage: Storage, tmp_path: Path, new_postgres_database: Callable[[], str]
) -> None:
    def begin(connection: Connection) -> None:
        note_seen(connection, "here")
        values = {"id": "run_open", "method": "run_code", "status": "started", "server": "here"}
        who = {"identity": "me", "identity_kind": "person", "started_at": datetime.now(UTC)}
        connection.execute(insert(runs).values(**values, **who))
        for key in ("answered", "a run", "no run"):
            made = claim(connection, identity=Identity("me"), key=key, digest=key, server="here")
            assert isinstance(made, Claim)
            if key == "answered":
                keep(connection, made, '"answer"')
            if key == "a run":
                note_run(connection, made, "run_open")
        upload = {"id": "upload", "sha256": "0" * 64, "begun_at": datetime.now(UTC)}
        connection.execute(insert(uploads).values(**upload))

    database.write_now(begin)
    back_up(database, storage, tmp_path / "backup.tar", "1")

    for target in (empty(tmp_path), Database(new_postgres_database())):
        restore(target, storage, Archive(tmp_path / "backup.tar"), tmp_path / "key", ME)

        assert faults(target, storage) == []
        with target.engine.begin() as connection:
            kept = dict(connection.execute(select(idempotency_keys.c.key, idempotency_keys.c.result_json)).all())
            assert kept.keys() == {"answered", "a run"}
            assert kept["answered"] == '"answer"'
            assert json.loads(kept["a run"])["status"] == "failed"
            assert connection.scalar(select(runs.c.status)) == "failed"
            assert connection.execute(select(servers.c.id).union(select(uploads.c.id))).all() == []
        target.close()


# -- check ---------------------------------------------------------------------------------------------------------


def faults(
    database: Database, storage: Storage, *, deep: bool = False, dead: frozenset[str] = frozenset()
) -> list[str]:
    return [fault.kind for fault in check(database, storage, deep=deep, dead_servers=dead)]


def test_check_reports_missing_and_damaged_contents(database: Database, storage: Storage, tmp_path: Path) -> None:
    kept, gone, damaged = (add_content(database, storage, content) for content in (b"kept", b"gone", b"damaged"))
    assert faults(database, storage, deep=True) == []

    storage.delete(gone)
    path = storage.local_path(damaged)
    assert path is not None
    path.chmod(0o644)
    path.write_bytes(b"DAMAGED")

    assert faults(database, storage) == ["content_missing"]
    assert sorted(faults(database, storage, deep=True)) == ["content_damaged", "content_missing"]
    path.write_bytes(b"short")
    assert sorted(faults(database, storage)) == ["content_damaged", "content_missing"]
    assert kept


@pytest.mark.full
def test_check_finds_versions_without_files_wrong_pointers_and_open_runs(
    start_server: Callable[..., Server], new_url: Callable[[str], str], database_kind: str, tmp_path: Path
) -> None:
    url = new_url(database_kind)
    server = start_server(
        env={"SKILLERY_DATABASE": url, "SKILLERY_SANDBOX": "unsafe-subprocess", "SKILLERY_ALLOW_UNSAFE_SANDBOX": "1"}
    )
    rpc = server.rpc
    for name in ("a.files", "a.latest", "a.differs"):
        rpc("create_skill", manifest=manifest(name), skill_md=f"# {name}\n", files=skill_files())
    run_id = rpc("execute_skill", name="a.latest")["run_id"]
    database = Database(url or f"sqlite:///{server.home / 'skillery.db'}")
    version = "(SELECT v.id FROM skill_versions v JOIN skills s ON s.id = v.skill_id WHERE s.name = '{}')"
    for sql in (
        f"DELETE FROM skill_files WHERE version_id = {version.format('a.files')}",
        f"DELETE FROM skill_files WHERE path = 'SKILL.md' AND version_id = {version.format('a.differs')}",
        "UPDATE skills SET latest_version_id = NULL WHERE name = 'a.latest'",
        f"UPDATE runs SET status = 'started', server = 'nobody' WHERE id = '{run_id}'",
    ):
        database.write_now(lambda connection, sql=sql: connection.execute(text(sql)))  # type: ignore[misc]
    database.close()

    found = skillery("check", "--home", server.home, "--json", env={"SKILLERY_DATABASE": url})

    assert found.returncode == 1
    report = json.loads(found.stdout)
    assert report["ok"] is False
    assert sorted((fault["kind"], fault["subject"]) for fault in report["faults"]) == [
        ("latest_wrong", "a.latest"),
        ("run_left_started", run_id),
        ("version_differs", "a.differs@1.0.0"),
        ("version_without_files", "a.files@1.0.0"),
    ]


@pytest.mark.full
def test_a_storage_that_is_another_databases_is_refused_at_start(
    start_server: Callable[..., Server], tmp_path: Path
) -> None:
    server = start_server()
    server.stop()
    contents = server.home / "contents"
    contents.rename(tmp_path / "moved")

    with pytest.raises(AssertionError, match="does not have the contents of this database"):
        start_server()
    found = skillery("check", "--home", server.home)
    assert "foreign_storage" in found.stdout

    moved = {"SKILLERY_BACKENDS_STORAGE_DIRECTORY_PATH": str(tmp_path / "moved")}
    assert start_server(env=moved).stop() == 0
    assert skillery("db", "adopt-storage", "--home", server.home).returncode == 0
    assert start_server().stop() == 0
    assert (contents / "registry").exists()
