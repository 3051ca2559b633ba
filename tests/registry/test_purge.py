"""purge_version: the bytes of a version are gone everywhere, and its number, digest and audit entry stay."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.cli.test_cli import skillery
from tests.conftest import ON_SQLITE, Rpc, Server, manifest, skill_files
from tests.support.people import Caller, Who, people_settings
from tests.support.processes import eventually

KEY = "zqleakedkeyqz7731"
LARGE = 100_000
NO_GRACE = {"SKILLERY_GC_GRACE_MINUTES": "0", "SKILLERY_GC_INTERVAL_MINUTES": "0"}
PARAMETERS = {"key": {"type": "string", "description": KEY}}
TOOL = {"name": "purged", "description": KEY, "script": "code/tool.py", "parameters": PARAMETERS}
RESOLVE_PURGED: dict[str, dict[str, Any]] = {
    "describe_skill": {},
    "read_skill_file": {"path": "SKILL.md"},
    "execute_skill": {"args": {}},
}


@pytest.fixture(scope="module")
def purging(
    database_kind: str, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """Yield a server with its own database, so that a test can search all of its bytes."""
    folder = tmp_path_factory.mktemp("purging")
    url = "" if database_kind == "sqlite" else request.getfixturevalue("migrated_postgres_database")()
    env = people_settings(folder / "plugins", SKILLERY_DATABASE=url, **NO_GRACE)
    running = Server(folder / "home", env=env)
    running.database = url
    yield running
    assert running.stop() == 0, running.log.read_text()[-4000:]


@pytest.fixture
def ada(purging: Server) -> Caller:
    return Caller(purging.url, Who("ada", "admin", "*"))


def publish(who: Rpc, name: str, version: str, key: str = "", **more: Any) -> dict[str, Any]:
    """Publish a version. `key` is part of its description, instructions, tags, tool, code and of a large file."""
    files = skill_files(f"KEY = '{key}'\ndef main(args):\n    return {{'ok': True}}\n")
    if key:
        files.append({"path": "resources/large.txt", "content": key + "x" * LARGE})
        files.append({"path": "code/tool.py", "content": f"def handler(args):\n    return '{key}'\n"})
        files.append({"path": f"resources/{key}.txt", "content": "ODD\n"})  # a finding of the plugin names this path
        files.append({"path": "tools.json", "content": json.dumps([TOOL])})
    description = f"Sums rows with {key}." if key else "Sums rows."
    made: dict[str, Any] = who(
        "create_skill",
        manifest=manifest(name, version, description=description, tags=[key] if key else [], **more),
        skill_md=f"# {name}\n\nUse {key or 'nothing'} for the call.\n",
        files=files,
    )
    return made


def where(server: Server, key: str) -> list[str]:
    """Return the files of the home, and the tables of the Postgres database, that contain `key` in any case."""
    paths = [Path(folder) / name for folder, _, names in os.walk(server.home) for name in names]
    found = [str(path) for path in paths if key in _text(_content(path))]
    if server.database:
        with psycopg.connect(server.database.replace("postgresql+psycopg", "postgresql")) as connection:
            tables = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'").fetchall()
            shown = f"%{key}%", f"%{key.encode().hex()}%"
            for (table,) in tables:
                text = psycopg.sql.SQL("SELECT count(*) FROM {0} AS t WHERE lower(t::text) LIKE %s OR t::text LIKE %s")
                count = connection.execute(text.format(psycopg.sql.Identifier(table)), shown).fetchone()
                found += [table] if count and count[0] else []
    return found


def _content(path: Path) -> bytes:
    """Return the content of a file, or nothing if the server has removed it."""
    with suppress(FileNotFoundError):
        return path.read_bytes() if path.is_file() else b""
    return b""


def _text(content: bytes) -> str:
    return content.decode("latin-1").lower()


def check_gone(server: Server, admin: Rpc) -> None:
    """Fail if KEY is anywhere in the storage, or stays in the database.

    SQLite keeps erased pages while a reader needs them, for example work in the background. Then the next sweep erases
    them.
    """

    def is_gone() -> bool:
        left = where(server, KEY)
        assert [path for path in left if not Path(path).name.startswith("skillery.db")] == []
        if left:
            admin("collect_garbage", steps=["unused_contents"])
        return not left

    eventually(is_gone)


@pytest.mark.smoke
def test_the_bytes_are_gone_and_number_digest_and_reason_stay(purging: Server, ada: Caller, new_name: str) -> None:
    name = f"{new_name}.sums"
    publish(ada, name, "1.0.0")
    leaked = publish(ada, name, "1.1.0", KEY)
    ada("set_label", name=name, label="stable", version="1.1.0")
    lock = ada("resolve_skills", skills=[name])["lock"]
    ada("execute_skill", name=name, args={})  # the cache of the server now has the files
    assert ada.http.get(f"/skills/{name}/1.1.0.zip").status_code == 200
    assert [row["name"] for row in ada("search_skills", query=KEY)["skills"]] == [name]
    ada("search_skills", query="rows of a table")
    eventually(lambda: {KEY, "rows of a table"} <= {row["words"] for row in ada("list_searches")["searches"]})
    assert where(purging, KEY)

    purged = ada("purge_version", name=name, version="1.1.0", reason="It has a password.")
    assert purged["digest"] == leaked["digest"]
    assert purged["status"] == "purged"
    assert purged["deleted_contents"] == 7
    assert purged["deleted_bytes"] > LARGE
    assert purged["kept_files"] == []
    check_gone(purging, ada)
    # The descriptions of bundled skills have the word "rows", too.
    assert [row["words"] for row in ada("list_searches")["searches"]] == ["rows of a table"]

    for spec in ("1.1.0", leaked["digest"]):
        for method, more in RESOLVE_PURGED.items():
            error = ada.error(method, name=name, version=spec, **more)
            assert (error["code"], error["data"]["type"]) == (-32003, "version_purged")
            assert error["data"]["digest"] == leaked["digest"]
            assert "It has a password." in error["message"]
    assert ada.http.get(f"/skills/{name}/1.1.0.zip").status_code == 404
    assert ada("describe_skill", name=name)["skill"]["version"] == "1.0.0"
    # Words with @ are not recorded.
    assert ada("search_skills", query=f"{KEY}@")["skills"] == []
    assert ada.error("call_tool", name=f"{KEY}-tool", args={})["data"]["type"] == "tool_not_found"
    assert "which was purged" in ada.error("describe_skill", name=name, version="stable")["message"]
    [row] = ada("list_versions", name=name, status="purged")["versions"]
    assert (row["version"], row["digest"], row["size_bytes"]) == ("1.1.0", leaked["digest"], 0)
    [problem] = ada("verify_lock", lock=lock)["problems"]
    assert (problem["name"], problem["version"], problem["problem"]) == (name, "1.1.0", "purged")
    [entry] = ada("list_audit", action="purge_version")["entries"][:1]
    assert entry["subject"] == f"{name}@1.1.0"
    advisory = {"severity": "security", "advisory": entry["after"]["advisory"]}
    note = {"note": "It has a password."}
    assert entry["after"] == {"status": "purged", "digest": leaked["digest"], **note, **advisory}
    settings = people_settings(purging.home.parent / "plugins", SKILLERY_DATABASE=purging.database)
    checked = skillery("check", "--home", str(purging.home), stdin=b"", **settings)
    assert checked.code == 0, checked.out + checked.err


@ON_SQLITE
def test_the_number_stays_taken_also_for_the_same_bytes(ada: Caller, new_name: str) -> None:
    name = f"{new_name}.sums"
    publish(ada, name, "1.0.0", KEY)
    ada("purge_version", name=name, version="1.0.0", reason="leaks")
    with pytest.raises(Exception, match=r"was purged") as refused:
        publish(ada, name, "1.0.0", KEY)
    assert refused.value.error["data"]["next_version"] == "1.0.1"  # type: ignore[attr-defined]
    assert publish(ada, name, "1.0.1")["status"] == "published"
    assert ada.error("purge_version", name=name, version="1.0.0", reason="again")["data"]["type"] == "version_purged"


def test_the_kept_answer_of_a_call_with_a_key_is_deleted(purging: Server, ada: Caller, new_name: str) -> None:
    again = Caller(purging.url, Who("ada", "admin", "*"))
    again.http.headers["idempotency-key"] = new_name
    first = publish(again, f"{new_name}.sums", "1.0.0", KEY)
    assert publish(again, f"{new_name}.sums", "1.0.0", KEY) == first
    ada("purge_version", name=f"{new_name}.sums", version="1.0.0", reason="leaks")

    check_gone(purging, ada)
    with pytest.raises(Exception, match=r"was purged"):
        publish(again, f"{new_name}.sums", "1.0.0", KEY)


@pytest.mark.parametrize("step", ["unyank_version", "submit_version", "approve_version", "yank_version"])
def test_no_step_leads_back(ada: Caller, new_name: str, step: str) -> None:
    publish(ada, f"{new_name}.a", "1.0.0")
    ada("purge_version", name=f"{new_name}.a", version="1.0.0", reason="leaks")
    more = {"reason": "x"} if step == "yank_version" else {}
    assert ada.error(step, name=f"{new_name}.a", version="1.0.0", **more)["data"]["type"] == "version_purged"


def test_contents_of_other_versions_and_blobs_stay_and_are_named(purging: Server, ada: Caller, new_name: str) -> None:
    name = f"{new_name}.sums"
    publish(ada, name, "1.0.0", KEY)
    publish(ada, name, "1.1.0", KEY)
    purged = ada("purge_version", name=name, version="1.1.0", reason="leaks")
    # SKILL.md and skill.toml differ in nothing but the number, which stands in skill.toml.
    assert purged["kept_files"] == [
        "SKILL.md",
        "code/main.py",
        "code/tool.py",
        "resources/large.txt",
        f"resources/{KEY}.txt",
        "tools.json",
    ]
    assert ada("read_skill_file", name=name, version="1.0.0", path="code/main.py")["content"].startswith("KEY")
    assert ada("purge_version", name=name, version="1.0.0", reason="leaks")["kept_files"] == []
    check_gone(purging, ada)


def test_sweep_erases_contents_that_were_in_use_at_the_purge(purging: Server, ada: Caller, new_name: str) -> None:
    name = f"{new_name}.sums"
    publish(ada, name, "1.0.0", KEY)
    code = ada("read_skill_file", name=name, version="1.0.0", path="code/main.py")["content"]
    blob = ada("create_blob", content=code, kind="text/plain", ttl=3600)
    assert ada("purge_version", name=name, version="1.0.0", reason="leaks")["kept_files"] == ["code/main.py"]
    assert where(purging, KEY)
    ada("delete_blob", blob_id=blob["blob_id"])
    ada("collect_garbage")
    check_gone(purging, ada)


@pytest.mark.full
def test_pages_that_a_reader_needs_are_erased_by_the_next_sweep(new_name: str, tmp_path: Path) -> None:
    server = Server(tmp_path / "home", env={"SKILLERY_GC_INTERVAL_MINUTES": "0"})
    try:
        publish(server.rpc, f"{new_name}.a", "1.0.0", KEY)
        with closing(sqlite3.connect(server.home / "skillery.db", isolation_level=None)) as reader:
            reader.execute("BEGIN")
            reader.execute("SELECT count(*) FROM skills").fetchone()
            server.rpc("purge_version", name=f"{new_name}.a", version="1.0.0", reason="leaks")
        server.rpc("collect_garbage", steps=["unused_contents"])
        check_gone(server, server.rpc)
    finally:
        server.stop()


def test_only_admins_purge_also_drafts_that_they_did_not_write(purging: Server, ada: Caller, new_name: str) -> None:
    author = Caller(purging.url, Who("bot", "read run publish", f"{new_name}.*", "agent"))
    reviewer = Caller(purging.url, Who("rita", "read review publish", f"{new_name}.*"))
    which = {"name": f"{new_name}.a", "version": "1.0.0"}
    assert publish(author, which["name"], "1.0.0", KEY)["status"] == "draft"
    for who in (author, reviewer):
        assert who.error("purge_version", **which, reason="x")["data"]["type"] == "not_allowed"
    ada("purge_version", **which, reason="leaks")
    check_gone(purging, ada)
    assert author.error("submit_version", **which)["data"]["type"] == "version_purged"


@pytest.mark.full
def test_the_command_asks_and_install_of_a_lock_names_the_version(
    start_server: Any, new_name: str, tmp_path: Path
) -> None:
    server = start_server()
    name = f"{new_name}.a"
    publish(server.rpc, name, "1.0.0")
    lock, target = str(tmp_path / "skillery.lock"), str(tmp_path / "skills")
    assert skillery("lock", name, "-o", lock, "--url", server.url).code == 0
    purge = ("purge", f"{name}@1.0.0", "--reason", "leaks", "--url", server.url)
    asked = skillery(*purge, stdin=b"n\n")
    assert asked.code != 0
    assert "permanently?" in asked.err
    assert server.rpc("describe_skill", name=name)["skill"]["version"] == "1.0.0"
    done = skillery(*purge, "--yes")
    assert done.code == 0, done.err
    assert "purged" in done.out
    failed = skillery("install", "--locked", target, "--file", lock, "--url", server.url)
    assert failed.code != 0
    assert f"'{name}' 1.0.0 was purged" in failed.err


@pytest.mark.full
def test_another_server_drops_its_copy_in_its_next_sweep(
    migrated_postgres_database: Any, start_server: Any, new_name: str, tmp_path: Path
) -> None:
    env = {
        "SKILLERY_DATABASE": migrated_postgres_database(),
        "SKILLERY_BACKENDS_STORAGE_DIRECTORY_PATH": str(tmp_path / "contents"),
        "SKILLERY_GC_INTERVAL_MINUTES": "0",
    }
    first, second = (start_server(home=home, env=env) for home in ("first", "second"))
    publish(first.rpc, f"{new_name}.a", "1.0.0", KEY)
    second.rpc("run_code", language="python", code="def main(args): return 1", mount_skills=[f"{new_name}.a"])
    copies = list((second.home).rglob("large.txt"))
    assert copies
    first.rpc("purge_version", name=f"{new_name}.a", version="1.0.0", reason="leaks")
    second.rpc("collect_garbage", steps=["cached_files"])
    assert not any(path.exists() for path in copies)
