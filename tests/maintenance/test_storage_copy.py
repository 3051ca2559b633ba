"""skillery storage copy: all contents move to another storage while servers store and read."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import RpcError, Server
from tests.support.data_copies import LARGE, Load, Registry, publish, read_large

AT_THE_BEGINNING = "a copy of the storage began|'second' of this server has other settings than the copy"


@pytest.fixture
def registry(tmp_path: Path, database_kind: str, request: pytest.FixtureRequest) -> Registry:
    made = request.getfixturevalue("migrated_postgres_database")() if database_kind == "postgres" else ""
    return Registry(tmp_path, made)


@pytest.fixture
def sqlite_registry(tmp_path: Path) -> Registry:
    """Return a registry for tests that do not depend on the database."""
    return Registry(tmp_path, "")


@pytest.mark.full
def test_all_contents_move_while_a_server_stores_and_reads(
    registry: Registry, start_server: Callable[..., Server]
) -> None:
    server = start_server(env=registry.with_storage("directory"))
    for number in range(20):
        publish(server.rpc, f"before.s{number}")
    load = Load()
    with load.on(server):
        load.wait_for(5)
        copier = registry.stalled_copy("second", "directory")
        load.wait_for(5)
        copier.kill()  # in the middle
        copier.wait()
        assert registry.state()["copy"]["state"] == "copying"
        copied = registry.skillery("storage", "copy", "--to", "second", "--verify", "--json")
        assert copied.returncode == 0, copied.stderr
        assert json.loads(copied.stdout)["copy"]["state"] == "copied"
        load.wait_for(5)
    # Only the uploads that met the beginning of the copy may have failed, with the request to try again.
    assert len(load.failures) <= 2, load.failures
    assert all(re.search(AT_THE_BEGINNING, failure) for failure in load.failures), load.failures
    server.stop(signal.SIGKILL)

    server = start_server(env=registry.with_storage("second"))
    with load.on(server):
        load.wait_for(5)
        finished = registry.skillery("storage", "finish", storage="second")
        assert finished.returncode == 0, finished.stderr
        load.wait_for(5)
    contents = registry.folder / "contents"
    contents.rename(registry.folder / "away")
    for name in load.acknowledged:
        assert read_large(server.rpc, name).startswith(name)
    assert read_large(server.rpc, "before.s0")
    verified = registry.skillery("storage", "verify", storage="second")
    assert verified.returncode == 0, verified.stdout
    checked = registry.skillery("check", "--deep", storage="second")
    assert checked.returncode == 0, checked.stdout
    assert registry.state()["copy"] is None
    audited = json.loads(registry.skillery("audit", "list", "--subject", "second", "--json", storage="second").stdout)
    assert [one["action"] for one in audited["entries"]] == ["finish_storage_copy", "copy_storage"]


@pytest.mark.full
def test_a_server_with_another_second_storage_than_the_copy_stores_nothing(
    registry: Registry, start_server: Callable[..., Server]
) -> None:
    elsewhere = registry.folder / "elsewhere"
    elsewhere.mkdir()
    server = start_server(env=registry.with_storage("directory") | {"SECOND_FOLDER": str(elsewhere)})
    publish(server.rpc, "move.one")
    assert registry.skillery("storage", "copy", "--to", "second").returncode == 0
    with pytest.raises(RpcError, match="'second' of this server has other settings than the copy") as raised:
        publish(server.rpc, "move.two")
    assert raised.value.error["data"]["type"] == "unavailable"
    assert "[backends.storage.second]" in raised.value.error["data"]["hint"]
    with pytest.raises(RpcError, match="'second' of this server has other settings than the copy"):
        publish(server.rpc, "move.two")  # the failed upload has left a deletion that waits
    assert read_large(server.rpc, "move.one")
    server.stop()
    # The same holds for the previous storage of a server that uses the target already.
    away = {"SKILLERY_BACKENDS_STORAGE_DIRECTORY_PATH": str(elsewhere / "contents")}
    server = start_server(env=registry.with_storage("second") | away)
    with pytest.raises(RpcError, match="'directory' of this server has other settings than the copy"):
        publish(server.rpc, "move.three")
    server.stop()
    # With the right settings, the deletions that wait are carried out at the start.
    server = start_server(env=registry.with_storage("second"))
    publish(server.rpc, "move.two")
    assert read_large(server.rpc, "move.two")
    assert not stored(registry, "elsewhere/second")
    assert not stored(registry, "elsewhere/contents")


@pytest.mark.full
def test_a_copy_that_continues_to_another_target_is_refused(
    sqlite_registry: Registry, start_server: Callable[..., Server]
) -> None:
    server = start_server(env=sqlite_registry.with_storage("directory"))
    for number in range(25):
        publish(server.rpc, f"before.s{number}")
    sqlite_registry.stalled_copy("second", "directory").kill()
    elsewhere = sqlite_registry.folder / "elsewhere"
    elsewhere.mkdir()
    sqlite_registry.env["SECOND_FOLDER"] = str(elsewhere)
    refused = sqlite_registry.skillery("storage", "copy", "--to", "second")
    assert refused.returncode == 4
    assert "is not the target of the current copy: check [backends.storage.second]" in refused.stderr
    assert not stored(sqlite_registry, "elsewhere/second")
    sqlite_registry.env["SECOND_FOLDER"] = str(sqlite_registry.folder)
    assert sqlite_registry.skillery("storage", "copy", "--to", "second").returncode == 0


@pytest.mark.full
def test_serve_refuses_a_changed_storage_and_prints_the_copy_command(
    sqlite_registry: Registry, start_server: Callable[..., Server]
) -> None:
    start_server(env=sqlite_registry.with_storage("directory")).stop()
    other = start_server(home="other", env={**sqlite_registry.with_storage("second"), "SKILLERY_DATABASE": ""})
    other.stop()  # the storage now has the mark of another registry
    refused = sqlite_registry.skillery("serve", "--port", "0", storage="second")
    assert refused.returncode == 4
    assert "skillery storage copy --to second" in refused.stderr
    copied = sqlite_registry.skillery("storage", "copy", "--to", "second")
    assert copied.returncode == 4
    assert "another registry" in copied.stderr


@pytest.mark.full
def test_the_target_serves_only_when_the_copy_is_complete(
    sqlite_registry: Registry, start_server: Callable[..., Server]
) -> None:
    server = start_server(env=sqlite_registry.with_storage("directory"))
    for number in range(25):
        publish(server.rpc, f"before.s{number}")
    sqlite_registry.stalled_copy("second", "directory").kill()
    server.stop()
    refused = sqlite_registry.skillery("serve", "--port", "0", storage="second")
    assert refused.returncode == 4
    assert "skillery storage copy --to second continues it" in refused.stderr
    unfinished = sqlite_registry.skillery("storage", "finish", storage="second")
    assert unfinished.returncode == 4
    assert "not complete" in unfinished.stderr
    early = sqlite_registry.skillery("storage", "finish")
    assert early.returncode == 4
    assert "--abandon" in early.stderr
    assert sqlite_registry.skillery("storage", "finish", "--abandon").returncode == 0
    server = start_server(env=sqlite_registry.with_storage("directory"))
    publish(server.rpc, "after.one")
    assert read_large(server.rpc, "after.one")
    # The target was used by this registry, so a second copy may use it again.
    assert sqlite_registry.skillery("storage", "copy", "--to", "second").returncode == 0


@pytest.mark.full
@pytest.mark.postgres
def test_servers_on_the_old_storage_refuse_writes_after_storage_finish(
    registry: Registry, start_server: Callable[..., Server]
) -> None:
    old = start_server(env=registry.with_storage("directory"))
    publish(old.rpc, "move.one")
    assert registry.skillery("storage", "copy", "--to", "second").returncode == 0
    if registry.env["SKILLERY_DATABASE"]:
        new = start_server(home="other", env=registry.with_storage("second"))
        publish(new.rpc, "move.new")
        assert read_large(old.rpc, "move.new").startswith("move.new")
        publish(old.rpc, "move.old")
        assert read_large(new.rpc, "move.old").startswith("move.old")
    assert registry.skillery("storage", "finish", storage="second").returncode == 0
    with pytest.raises(RpcError, match="restart this server"):
        publish(old.rpc, "move.late")
    assert read_large(old.rpc, "move.one")
    old.stop()
    refused = registry.skillery("serve", "--port", "0")
    assert refused.returncode == 4
    assert "skillery storage copy" in refused.stderr
    # The way back is a copy too: the previous storage gets what was stored since then.
    server = start_server(env=registry.with_storage("second"))
    publish(server.rpc, "move.two")
    assert registry.skillery("storage", "copy", "--to", "directory", storage="second").returncode == 0
    server.stop()
    server = start_server(env=registry.with_storage("directory"))
    assert registry.skillery("storage", "finish").returncode == 0
    assert read_large(server.rpc, "move.two")


def test_write_fails_if_the_second_storage_fails_and_deletions_reach_both(
    sqlite_registry: Registry, start_server: Callable[..., Server]
) -> None:
    server = start_server(env=sqlite_registry.with_storage("directory") | {"SKILLERY_GC_GRACE_MINUTES": "0"})
    publish(server.rpc, "kept.one")
    assert sqlite_registry.skillery("storage", "copy", "--to", "second").returncode == 0
    (sqlite_registry.folder / "fails").touch()
    with pytest.raises(RpcError, match="the storage 'second' of the copy") as raised:
        publish(server.rpc, "kept.two")
    assert raised.value.error["code"] == -32603
    assert raised.value.error["data"]["type"] == "unavailable"
    (sqlite_registry.folder / "fails").unlink()
    publish(server.rpc, "kept.two")
    blob = server.rpc("create_blob", content=f"gone {LARGE}", kind="text/plain")["blob_id"]
    assert stored(sqlite_registry, "contents") == stored(sqlite_registry, "second")
    before = len(stored(sqlite_registry, "second"))
    server.rpc("delete_blob", blob_id=blob)
    server.rpc("collect_garbage")
    assert stored(sqlite_registry, "contents") == stored(sqlite_registry, "second")
    assert len(stored(sqlite_registry, "second")) == before - 1


@pytest.mark.full
def test_storage_copy_repairs_the_target_and_names_damaged_source_contents(
    sqlite_registry: Registry, start_server: Callable[..., Server]
) -> None:
    server = start_server(env=sqlite_registry.with_storage("directory"))
    for number in range(3):
        publish(server.rpc, f"kept.s{number}")
    assert sqlite_registry.skillery("storage", "copy", "--to", "second").returncode == 0
    first, second, third, *_ = sorted(stored(sqlite_registry, "second"))
    (sqlite_registry.folder / "second" / first[:2] / first).unlink()
    flip(sqlite_registry.folder / "second" / second[:2] / second)
    found = sqlite_registry.skillery("storage", "verify", "--storage", "second", "--json")
    assert found.returncode == 1
    assert [fault["kind"] for fault in json.loads(found.stdout)["faults"]] == ["content_missing", "content_damaged"]
    assert sqlite_registry.skillery("storage", "copy", "--to", "second", "--verify").returncode == 0
    assert sqlite_registry.skillery("storage", "verify", "--storage", "second").returncode == 0

    (sqlite_registry.folder / "second" / third[:2] / third).unlink()
    flip(sqlite_registry.folder / "contents" / third[:2] / third)
    copied = sqlite_registry.skillery("storage", "copy", "--to", "second")
    assert copied.returncode == 1
    assert third in copied.stdout


@pytest.mark.full
def test_a_copy_needs_another_storage_that_a_plugin_offers(
    sqlite_registry: Registry, start_server: Callable[..., Server]
) -> None:
    nothing = sqlite_registry.skillery("storage", "finish")
    assert nothing.returncode == 4
    start_server(env=sqlite_registry.with_storage("directory"))
    for name, message in (("directory", "already"), ("s4", "no plugin offers")):
        refused = sqlite_registry.skillery("storage", "copy", "--to", name)
        assert refused.returncode == 4
        assert message in refused.stderr
    assert "no copy is under way" in sqlite_registry.skillery("storage", "status").stdout
    assert "no copy of the storage" in sqlite_registry.skillery("storage", "finish").stderr


def stored(registry: Registry, folder: str) -> set[str]:
    return {path.name for path in (registry.folder / folder).glob("[0-9a-f][0-9a-f]/*")}


def flip(path: Path) -> None:
    """Change the first byte of a content, and keep its size."""
    data = path.read_bytes()
    path.chmod(0o644)
    path.write_bytes(b"X" + data[1:])
