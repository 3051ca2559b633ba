"""Reads of skills by the programs of agents: counted by the server, listed by list_skill_usage and `skillery usage`."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import insert, select

from skillery.database import Database
from skillery.database.tables import read_days
from skillery.skills.skill_usage import MOST_CLIENTS, OTHER, client_of, forget_reads
from tests.cli.test_cli import skillery
from tests.conftest import Rpc, Server
from tests.support.mcp_client import PREFIX, Mcp
from tests.support.people import Caller, Who, people_settings
from tests.support.processes import await_early_day, eventually

Publish = Callable[..., dict[str, Any]]


def as_program(server: Server, agent: str) -> Rpc:
    """Return a caller whose program names itself."""
    rpc = Rpc(server.url)
    rpc.http.headers["user-agent"] = agent
    return rpc


def usage_of(rpc: Rpc, name: str) -> dict[str, Any] | None:
    found = rpc("list_skill_usage", namespace=name.rpartition(".")[0], limit=1000)["skills"]
    return next((one for one in found if one["name"] == name), None)


def counted(rpc: Rpc, name: str, loads: int, reads: int) -> dict[str, Any]:
    """Return the usage of a skill as soon as these reads are written."""

    def usage() -> dict[str, Any] | None:
        found = usage_of(rpc, name)
        return found if found is not None and (found["loads"], found["reads"]) == (loads, reads) else None

    return eventually(usage, problem=lambda: usage_of(rpc, name))


@pytest.mark.full
def test_skill_usage_counts_loads_and_reads_of_each_client(
    server: Server, rpc: Rpc, publish: Publish, new_name: str
) -> None:
    name = f"{new_name}.read"
    publish(name)
    claude, codex = as_program(server, "claude-code/2.1.330 (cli)"), as_program(server, "Codex_cli/0.1")
    claude("describe_skill", name=name, detail="full")
    claude("read_skill_file", name=name, path="SKILL.md")
    claude("read_skill_file", name=name, path="code/main.py")
    codex("read_skill_file", name=name, path="code/main.py")
    for path in ("1.0.0.zip", "1.0.0/SKILL.md", "1.0.0/code/main.py"):
        assert httpx.get(f"{server.url}/skills/{name}/{path}", headers={"user-agent": "apm"}).status_code == 200
    for agent in ("Mozilla/5.0 (X11; Linux x86_64)", "", "(no name)"):
        as_program(server, agent)("read_skill_file", name=name, path="SKILL.md")
    claude("describe_skill", name=name)  # a summary is not the skill

    found = counted(rpc, name, 4, 3)

    assert found["runs"] == 0
    assert found["clients"] == [
        {"client": "apm", "loads": 2, "reads": 1},
        {"client": "claude-code", "loads": 2, "reads": 1},
        {"client": "codex_cli", "loads": 0, "reads": 1},
    ]


@pytest.mark.full
def test_an_mcp_client_is_known_by_its_client_info(rpc: Rpc, publish: Publish, new_name: str) -> None:
    name = f"{new_name}.read"
    publish(name)
    meta = {f"{PREFIX}/clientInfo": {"name": "My Agent", "version": "1"}}
    asked = {"name": name, "path": "SKILL.md"}
    mcp = Mcp(rpc)
    mcp("tools/call", name="read_skill_file", arguments=asked, _meta=meta)
    mcp("resources/read", uri=f"skill://{name.replace('.', '/')}/code/main.py", _meta=meta)

    assert counted(rpc, name, 1, 1)["clients"] == [{"client": "my-agent", "loads": 1, "reads": 1}]


@pytest.mark.smoke
@pytest.mark.full(after=1)
def test_skills_that_are_read_and_never_run(server: Server, rpc: Rpc, publish: Publish, new_name: str) -> None:
    for name in ("read", "run", "read_and_run", "unused"):
        publish(f"{new_name}.{name}")
    agent = as_program(server, "agent/1")
    for name in ("read", "read_and_run"):
        agent("read_skill_file", name=f"{new_name}.{name}", path="SKILL.md")
    for name in ("run", "read_and_run"):
        rpc("execute_skill", name=f"{new_name}.{name}", args={"who": "x"})
    counted(rpc, f"{new_name}.read", 1, 0)
    counted(rpc, f"{new_name}.read_and_run", 1, 0)

    def names(**asked: Any) -> list[str]:
        found, cursor = [], None
        while True:
            page = rpc("list_skill_usage", namespace=new_name, limit=1, cursor=cursor, **asked)
            found += [one["name"].removeprefix(f"{new_name}.") for one in page["skills"]]
            cursor = page["next_cursor"]
            if cursor is None:
                return found

    assert names() == ["read", "read_and_run", "run"]
    assert names(never_run=True) == ["read"]
    shown = skillery("usage", "--namespace", new_name, "--never-run", "--url", server.url)
    assert shown.code == 0, shown.err
    assert f"{new_name}.read" in shown.out
    assert "agent 1" in shown.out
    assert "read_and_run" not in shown.out


@pytest.mark.full
def test_counts_of_the_last_seconds_are_written_at_the_end(start_server: Callable[..., Server], new_name: str) -> None:
    server = start_server(home="home")
    as_program(server, "agent")("read_skill_file", name="text.csv.profile", path="SKILL.md")
    assert server.stop() == 0

    found = skillery("usage", "--home", str(server.home), "--json").json["skills"]

    assert found == [
        {
            "name": "text.csv.profile",
            "loads": 1,
            "reads": 0,
            "runs": 0,
            "clients": [{"client": "agent", "loads": 1, "reads": 0}],
        }
    ]


@pytest.mark.full
def test_an_interrupted_write_of_counts_is_not_repeated(
    start_server: Callable[..., Server],
) -> None:
    server = start_server(home="home")
    with closing(sqlite3.connect(server.home / "skillery.db", timeout=0.2, isolation_level=None)) as database:
        # The write of the counts takes a second or more, so that the server ends during it. Others are quick.
        database.execute(
            "CREATE TRIGGER slow AFTER INSERT ON read_days BEGIN "
            "UPDATE read_days SET loads = loads WHERE 0 > (WITH RECURSIVE n(i) AS "
            "(SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 8000000) SELECT max(i) FROM n); END"
        )

        def is_locked() -> bool:
            try:
                database.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError:
                return True
            database.execute("ROLLBACK")
            return False

        reads = 0

        def is_writing() -> bool:
            nonlocal reads
            if len(database.execute("SELECT loads FROM read_days").fetchall()) == reads:
                # The first write, or this test has missed the last one.
                reads += 1
                as_program(server, f"agent{reads}x")("read_skill_file", name="text.csv.profile", path="SKILL.md")
            return is_locked()

        eventually(is_writing)
        assert server.stop() == 0
        assert database.execute("SELECT loads FROM read_days").fetchall() == [(1,)] * reads


@pytest.mark.full
def test_new_names_in_each_request_do_not_fill_the_database(
    server: Server, rpc: Rpc, publish: Publish, new_name: str
) -> None:
    name, calls = f"{new_name}.read", 4 * MOST_CLIENTS
    publish(name)
    for number in range(calls):
        as_program(server, f"agent{number}x")("read_skill_file", name=name, path="SKILL.md")

    found = counted(rpc, name, calls, 0)

    assert OTHER in {one["client"] for one in found["clients"]}
    assert sum(one["loads"] for one in found["clients"]) == calls


def test_days_are_kept_for_30_days(database: Database, new_name: str) -> None:
    await_early_day()
    days = [(datetime.now(UTC).date() - timedelta(days=age)).isoformat() for age in (0, 29, 30, 400)]
    rows = [{"skill_id": 10**9, "day": day, "client": new_name, "loads": 1, "reads": 0} for day in days]
    database.write_now(lambda connection: connection.execute(insert(read_days), rows))

    database.write_now(forget_reads)

    asked = select(read_days.c.day).where(read_days.c.client == new_name)
    assert set(database.read_now(lambda connection: connection.scalars(asked).all())) == set(days[:2])


@pytest.mark.full
def test_hidden_skills_are_not_listed(start_server: Callable[..., Server], tmp_path: Path) -> None:
    url = start_server(env=people_settings(tmp_path / "people")).url
    owner = Caller(url, Who("owner", "read run publish", "acme.*"))
    owner.create("acme.hidden")
    owner("set_visibility", name="acme.hidden", visibility="private")
    owner.http.headers["user-agent"] = "agent"
    owner("read_skill_file", name="acme.hidden", path="SKILL.md")

    assert counted(owner, "acme.hidden", 1, 0)
    for other in (Who("other", "read"), Who("colleague", "read", "acme.*")):
        assert usage_of(Caller(url, other), "acme.hidden") is None
    assert usage_of(Caller(url, Who("ada", "admin")), "acme.hidden")


@pytest.mark.parametrize(
    ("agent", "client"),
    [
        ("claude-code/2.1.330 (external, cli)", "claude-code"),
        ("python-httpx/0.28.1", "python-httpx"),
        ("Cursor", "cursor"),
        ("Mozilla/5.0 (Windows NT 10.0)", ""),
        ("", ""),
        ("../../x", ""),
        ("x" * 500, "x" * 64),
        ("agent\x00\n", "agent"),
    ],
)
def test_the_name_of_a_program(agent: str, client: str) -> None:
    assert client_of(agent) == client
