"""skillery db copy: the registry moves between SQLite and Postgres while a server answers."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import psycopg
import pytest
from sqlalchemy import text

from skillery.database import Database
from skillery.database.migrate import current
from skillery.database.read_only import find_read_only
from tests.conftest import Server, clean_environment, manifest, skill_files
from tests.maintenance.test_backups import OTHER, fill, skillery
from tests.maintenance.test_garbage import NO_GRACE
from tests.support.data_copies import Load, read_large
from tests.support.processes import eventually

READ_ONLY = "read-only"


@pytest.fixture
def new_url(new_postgres_database: Callable[[], str], tmp_path: Path) -> Callable[[str], str]:
    """Return a function that returns the URL of an empty database of a kind."""
    return lambda kind: new_postgres_database() if kind == "postgres" else f"sqlite:///{tmp_path / 'new.db'}"


@pytest.mark.full(after=1)
@pytest.mark.long
def test_a_registry_moves_to_the_other_database_while_a_server_answers(
    database_kind: str, new_url: Callable[[str], str], start_server: Callable[..., Server], tmp_path: Path
) -> None:
    env = {"SKILLERY_DATABASE": new_url("postgres") if database_kind == "postgres" else ""}
    target = new_url(OTHER[database_kind])
    server = start_server(env=env)
    blob_id = fill(server.rpc)
    head = skillery("audit", "head", "--home", server.home, env=env).stdout.strip()
    load = Load()
    with load.on(server):
        load.wait_for(3)
        copied = skillery("db", "copy", "--to", target, "--home", server.home, "--json", env=env)
        assert copied.returncode == 0, copied.stderr
        reads = load.reads
        eventually(lambda: load.reads >= reads + 3)  # reads continue
    made = json.loads(copied.stdout)
    assert made["rows"]["skill_versions"] >= 3
    assert made["read_only_seconds"] <= made["seconds"]
    assert all(failure.startswith("publish:") and READ_ONLY in failure for failure in load.failures), load.failures
    refused = server.rpc.error("create_blob", content="late", kind="text/plain")
    assert (refused["code"], refused["data"]["type"]) == (-32603, "unavailable")
    assert "Reads continue" in refused["data"]["hint"]
    server.stop()
    stale = skillery("serve", "--port", "0", "--home", server.home, env=env)
    assert stale.returncode == 4
    assert "the registry was copied to" in stale.stderr

    moved = start_server(env={"SKILLERY_DATABASE": target})
    for name in load.acknowledged:
        assert read_large(moved.rpc, name).startswith(name)
    assert moved.rpc.http.get(f"/blobs/{blob_id}").status_code == 200
    assert moved.rpc("search_skills", query="kep")["skills"]
    latest = [entry["action"] for entry in moved.rpc("list_audit", limit=2)["entries"]]
    assert latest == ["change_settings", "copy_database"]
    # New rows get new ids, and the chain of the audit trail continues.
    moved.rpc("create_skill", manifest=manifest("team.new"), skill_md="# N\n", files=skill_files())
    assert moved.rpc("execute_skill", name="team.new")["status"] == "completed"
    own = {"SKILLERY_DATABASE": target}
    assert skillery("audit", "verify", "--head", head, "--home", server.home, env=own).returncode == 0
    assert skillery("check", "--deep", "--home", server.home, env=own).returncode == 0
    assert skillery("db", "check", "--home", server.home, env=own).returncode == 0


class Source(NamedTuple):
    server: Server
    env: dict[str, str]
    url: str


class SteppedCopy:
    """A `skillery db copy` in a separate process, which waits before it prints its second line.

    The pipe of its stderr has room only for the first line. `first` is the length of the line.
    """

    def __init__(self, home: Path, env: dict[str, str], target: str, first: int) -> None:
        self._out, end = os.pipe()
        size = fcntl.fcntl(end, fcntl.F_SETPIPE_SZ, 4096)
        os.write(end, b"." * (size - first))
        command = [sys.executable, "-m", "skillery", "db", "copy", "--to", target, "--home", str(home)]
        self.process = subprocess.Popen(command, env=clean_environment(env), stderr=end, stdout=subprocess.PIPE)
        os.close(end)

    def go_on(self) -> str:
        """Let the process continue to its end. Return its output."""
        while os.read(self._out, 4096):
            pass
        os.close(self._out)
        text = self.process.communicate()[0].decode()
        assert self.process.returncode == 0
        return text

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


CONTENTS_LINE = len("0 small contents are copied; servers still write\n")


def is_read_only(url: str) -> bool:
    database = Database(url)
    try:
        return database.read_now(find_read_only) is not None
    finally:
        database.close()


@pytest.fixture
def source(database_kind: str, new_url: Callable[[str], str], start_server: Callable[..., Server]) -> Source:
    env = {"SKILLERY_DATABASE": new_url("postgres") if database_kind == "postgres" else "", **NO_GRACE}
    server = start_server(env=env)
    return Source(server, env, env["SKILLERY_DATABASE"] or f"sqlite:///{server.home / 'skillery.db'}")


@pytest.mark.full
@pytest.mark.postgres
def test_killed_copy_leaves_an_empty_target_and_writes_can_resume(
    source: Source, database_kind: str, new_url: Callable[[str], str]
) -> None:
    server, env, url = source
    target = new_url(OTHER[database_kind])
    digits = len(str(count(url, "objects"))) - 1
    copier = SteppedCopy(server.home, env, target, CONTENTS_LINE + digits)
    eventually(lambda: is_read_only(url))
    other = skillery("db", "copy", "--to", target, "--home", server.home, env=env)
    assert other.returncode == 4
    assert "another skillery db copy" in other.stderr
    copier.kill()

    assert server.rpc.error("create_blob", content="x", kind="text/plain")["code"] == -32603
    assert server.rpc("list_skills")["skills"]
    assert server.rpc.http.get("/readyz").status_code == 200
    server.stop(signal.SIGKILL)
    refused = skillery("serve", "--port", "0", "--home", server.home, env=env)
    assert refused.returncode == 4
    assert "--resume-writes" in refused.stderr
    new = Database(target)
    assert current(new) is None
    new.close()

    resumed = skillery("db", "copy", "--resume-writes", "--home", server.home, env=env)
    assert resumed.returncode == 0, resumed.stderr
    with source_server(server, env) as again:
        again.rpc("create_blob", content="x", kind="text/plain")
        copied = skillery("db", "copy", "--to", target, "--home", server.home, env=env)
        assert copied.returncode == 0, copied.stderr
        assert again.rpc.error("create_blob", content="x", kind="text/plain")["code"] == -32603
    # The registry is copied already, and the target is not empty.
    for again_to in (target, new_url("postgres")):
        assert skillery("db", "copy", "--to", again_to, "--home", server.home, env=env).returncode == 4
    # A server may use the new database, so the old one accepts writes only after a confirmation.
    kept = skillery("db", "copy", "--resume-writes", "--home", server.home, env=env)
    assert kept.returncode == 4
    assert "--new-database-is-deleted" in kept.stderr
    assert is_read_only(url)
    confirmed = ("--resume-writes", "--new-database-is-deleted")
    resumed = skillery("db", "copy", *confirmed, "--home", server.home, env=env)
    assert resumed.returncode == 0, resumed.stderr
    assert "was not read-only" not in resumed.stdout
    refused = skillery("db", "copy", "--to", target, "--home", server.home, env=env)
    assert "is not empty" in refused.stderr
    assert not is_read_only(url)


@pytest.mark.full
def test_contents_that_change_before_the_read_only_phase_are_copied_too(
    source: Source, database_kind: str, new_url: Callable[[str], str], start_server: Callable[..., Server]
) -> None:
    server, env, url = source
    target = new_url(OTHER[database_kind])
    gone = server.rpc("create_blob", content="deleted in between", kind="text/plain")["blob_id"]
    copier = SteppedCopy(server.home, env, target, 0)
    # The process prints its first line when it has copied the contents, and waits there.
    eventually(lambda: is_waiting(copier.process.pid))
    kept = server.rpc("create_blob", content="added in between", kind="text/plain")["blob_id"]
    server.rpc("delete_blob", blob_id=gone)
    server.rpc("collect_garbage")
    assert "compared by count and checksum" in copier.go_on()
    server.stop()
    moved = start_server(env={"SKILLERY_DATABASE": target})
    assert moved.rpc("read_blob", blob_id=kept)["content"] == "added in between"
    assert skillery("check", "--deep", "--home", server.home, env={"SKILLERY_DATABASE": target}).returncode == 0
    assert count(url, "objects") == count(target, "objects")


@pytest.mark.full
def test_a_row_that_the_target_changes_is_noticed(source: Source, new_postgres_database: Callable[[], str]) -> None:
    server, env, url = source
    target = new_postgres_database()
    with psycopg.connect(target, autocommit=True) as connection:
        connection.execute(CHANGES_LABELS)
    server.rpc("create_skill", manifest=manifest("team.kept"), skill_md="# K\n", files=skill_files())
    server.rpc("set_label", name="team.kept", label="stable", version="1.0.0")
    copied = skillery("db", "copy", "--to", target, "--home", server.home, env=env)
    assert copied.returncode == 4
    assert "the table 'labels'" in copied.stderr
    assert not is_read_only(url)
    server.rpc("create_blob", content="x", kind="text/plain")


CHANGES_LABELS = """
CREATE FUNCTION change() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN NEW.label := 'changed'; RETURN NEW; END $$;
CREATE FUNCTION watch() RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN
  IF EXISTS (SELECT FROM pg_event_trigger_ddl_commands() WHERE object_identity = 'public.labels'
             AND command_tag = 'CREATE TABLE') THEN
    CREATE TRIGGER change BEFORE INSERT ON labels FOR EACH ROW EXECUTE FUNCTION change();
  END IF;
END $$;
CREATE EVENT TRIGGER watch ON ddl_command_end WHEN TAG IN ('CREATE TABLE') EXECUTE FUNCTION watch();
"""


@contextmanager
def source_server(stopped: Server, env: dict[str, str]) -> Iterator[Server]:
    server = Server(stopped.home, env=env)
    try:
        yield server
    finally:
        server.stop()


def count(url: str, table: str) -> int:
    database = Database(url)
    try:
        counted = text(f"SELECT count(*) FROM {table}")
        return database.read_now(lambda connection: int(connection.execute(counted).scalar_one()))
    finally:
        database.close()


def is_waiting(pid: int) -> bool:
    """Return whether a process waits for room in a pipe."""
    return "pipe_w" in Path(f"/proc/{pid}/wchan").read_text()
