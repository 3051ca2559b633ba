"""Reads of skills by the programs of agents: counted by the server, listed by list_skill_usage and `skillery usage`."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import Connection, select

from skillery.database import Database
from skillery.database.tables import use_days
from skillery.registry.usage import thin_out
from skillery.registry.uses import MOST_COUNTS, MOST_USERS, OTHER, User, Uses, client_of, count_use
from tests.cli.test_cli import skillery
from tests.conftest import Rpc, Server, manifest
from tests.importing.test_importing import sent
from tests.support.archives import skill_md, zipped
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
    skills = rpc("list_skill_usage", namespace=name.rpartition(".")[0], limit=1000)["skills"]
    return next((skill for skill in skills if skill["name"] == name), None)


def counted(rpc: Rpc, name: str, loads: int, reads: int) -> dict[str, Any]:
    """Return the usage of a skill as soon as these reads are written."""

    def usage() -> dict[str, Any] | None:
        skill = usage_of(rpc, name)
        return skill if skill is not None and (skill["loads"], skill["reads"]) == (loads, reads) else None

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

    usage = counted(rpc, name, 4, 3)

    assert usage["runs"] == 0
    assert usage["clients"] == [
        {"client": "apm", "loads": 2, "reads": 1},
        {"client": "claude-code", "loads": 2, "reads": 1},
        {"client": "codex_cli", "loads": 0, "reads": 1},
    ]


@pytest.mark.full
def test_an_mcp_client_is_known_by_its_client_info(rpc: Rpc, publish: Publish, new_name: str) -> None:
    name = f"{new_name}.read"
    publish(name)
    meta = {f"{PREFIX}/clientInfo": {"name": "My Agent", "version": "1"}}
    arguments = {"name": name, "path": "SKILL.md"}
    mcp = Mcp(rpc)
    mcp("tools/call", name="read_skill_file", arguments=arguments, _meta=meta)
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

    def names(**params: Any) -> list[str]:
        names, cursor = [], None
        while True:
            page = rpc("list_skill_usage", namespace=new_name, limit=1, cursor=cursor, **params)
            names += [skill["name"].removeprefix(f"{new_name}.") for skill in page["skills"]]
            cursor = page["next_cursor"]
            if cursor is None:
                return names

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

    skills = skillery("usage", "--home", str(server.home), "--json").json["skills"]

    assert skills == [
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
            "CREATE TRIGGER slow AFTER INSERT ON use_days BEGIN "
            "UPDATE use_days SET loads = loads WHERE 0 > (WITH RECURSIVE n(i) AS "
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
            if len(database.execute("SELECT loads FROM use_days").fetchall()) == reads:
                # The first write, or this test has missed the last one.
                reads += 1
                as_program(server, f"agent{reads}x")("read_skill_file", name="text.csv.profile", path="SKILL.md")
            return is_locked()

        eventually(is_writing)
        assert server.stop() == 0
        assert database.execute("SELECT loads FROM use_days").fetchall() == [(1,)] * reads


@pytest.mark.full
def test_new_names_in_each_request_do_not_fill_the_database(
    server: Server, rpc: Rpc, publish: Publish, new_name: str
) -> None:
    name, calls = f"{new_name}.read", MOST_USERS + 20
    publish(name)
    for number in range(calls):
        as_program(server, f"agent{number}x")("read_skill_file", name=name, path="SKILL.md")

    usage = counted(rpc, name, calls, 0)

    assert OTHER in {client["client"] for client in usage["clients"]}
    assert sum(client["loads"] for client in usage["clients"]) == calls


@pytest.mark.parametrize("skills", [1, MOST_COUNTS // MOST_USERS])
def test_callers_count_by_name_despite_many_programs(skills: int) -> None:
    uses = Uses()
    for skill in range(skills):
        for number in range(MOST_USERS):
            uses.user_of(f"text.s{skill}", "mallory", f"agent{number}x")

    assert uses.user_of("text.s0", "mallory", "another") == User("mallory", OTHER)
    assert uses.user_of("text.s0", "ann", "claude-code") == User("ann", OTHER)


def test_old_days_have_a_row_for_each_version(database: Database, new_name: str) -> None:
    await_early_day()
    today, skill = datetime.now(UTC), 10**9

    def count(connection: Connection) -> None:
        for age in (0, 34, 35, 399, 400):
            for caller in ("ann", "bob"):
                moment = today - timedelta(days=age)
                count_use(connection, skill, 7, User(caller, new_name), "completed", 20.0, moment)

    database.write_now(count)

    columns = use_days.c.day, use_days.c.caller, use_days.c.client, use_days.c.runs, use_days.c.busy_ms
    kept = select(*columns).where(use_days.c.skill_id == skill)
    for _ in range(2):  # the second call changes nothing
        database.write_now(thin_out)
        rows = database.read_now(lambda connection: connection.execute(kept).all())
        detailed = [(day_before(age), caller, new_name, 1, 20) for age in (34, 0) for caller in ("ann", "bob")]
        assert sorted(rows) == sorted([*detailed, *((day_before(age), "", "", 2, 40) for age in (35, 399))])


def day_before(age: int) -> str:
    return (datetime.now(UTC).date() - timedelta(days=age)).isoformat()


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


# -- the order of the catalogue by use ---------------------------------------------------------------------------------


def order_of(rpc: Rpc, namespace: str) -> list[str]:
    page = rpc("list_skills", namespace=namespace, sort="used")
    return [skill["name"].removeprefix(f"{namespace}.") for skill in page["skills"]]


def await_order(rpc: Rpc, namespace: str, names: list[str]) -> None:
    eventually(lambda: order_of(rpc, namespace) == names, problem=lambda: order_of(rpc, namespace))


@pytest.mark.full
def test_uses_on_two_servers_change_the_order_of_the_catalogue(
    start_server: Callable[..., Server], migrated_postgres_database: Callable[[], str], tmp_path: Path
) -> None:
    env = people_settings(
        tmp_path / "people",
        SKILLERY_DATABASE=migrated_postgres_database(),
        SKILLERY_BACKENDS_STORAGE_DIRECTORY_PATH=str(tmp_path / "contents"),
    )
    urls = [start_server(home=home, env=env).url for home in ("one", "two")]
    owner = Caller(urls[0], Who("owner", "read run publish", "*"))
    for name in ("unused", "looped", "loaded", "run"):
        owner.create(f"order.{name}")
    assert order_of(owner, "order") == ["unused", "looped", "loaded", "run"]

    def as_agent(name: str, url: str) -> Caller:
        caller = Caller(url, Who(name))
        caller.http.headers["user-agent"] = "agent/1"
        return caller

    # Ten runs by two callers, three loads by three, and a loop of a single caller.
    for number in range(10):
        as_agent(f"runner{number % 2}", urls[number % 2])("execute_skill", name="order.run", args={"who": "x"})
    for number in range(3):
        reader = as_agent(f"reader{number}", urls[number % 2])
        reader("read_skill_file", name="order.loaded", path="SKILL.md")
    for number in range(12):
        as_agent("loop", urls[number % 2])("execute_skill", name="order.looped", args={"who": "x"})

    order = ["loaded", "run", "looped", "unused"]
    for url in urls:
        zoe = Caller(url, Who("zoe"))
        await_order(zoe, "order", order)
        page = zoe.http.get("/?ns=order", headers={"accept": "text/html"}).text
        assert re.findall(r'<h2><a href="/s/order\.(\w+)"', page) == order

    def sums() -> dict[str, tuple[int, int, int]]:
        skills = owner("list_skills", namespace="order", catalogue=True)["skills"]
        entries = {skill["name"]: skill["catalogue"] for skill in skills}
        return {
            name: tuple(entry[f"{key}_30d"] for key in ("callers", "uses", "loads")) for name, entry in entries.items()
        }

    expected = {
        "order.loaded": (3, 3, 3),
        "order.run": (2, 10, 0),
        "order.looped": (1, 12, 0),
        "order.unused": (0, 0, 0),
    }
    eventually(lambda: sums() == expected, problem=sums)
    assert {run["status"] for run in owner("list_runs")["runs"]} <= {"completed"}


@pytest.mark.full
def test_a_look_alike_never_ranks_above_its_original(start_server: Callable[..., Server], tmp_path: Path) -> None:
    url = start_server(env=people_settings(tmp_path / "people")).url
    owner, other = (Caller(url, Who(name, "read run publish", "*")) for name in ("owner", "other"))
    other.http.headers["user-agent"] = "agent/1"
    words = "Profile a CSV file: delimiter, column types and distinct values."
    owner.create("tables.csv.profile", kind="instruction", description=words)
    owner.create("tables.csv.profile.own", kind="instruction", description=words)  # the same publisher
    spellings = (
        "tables.csv-profile",
        "tables.csv_profile",
        "tables.csv.profi1e",
        "tables.csv.profile2",
        "tables.csvprofile",
    )
    for name in spellings:
        other.create(name, kind="instruction", description=f"Another text for {name}.")
    other.create("zz.copied", kind="instruction", description=f"  {words}\n")
    copies = {*spellings, "zz.copied"}
    for name in copies:
        other("read_skill_file", name=name, path="SKILL.md")

    def entries() -> dict[str, Any]:
        page = owner("list_skills", sort="used", catalogue=True, limit=100)["skills"]
        return {skill["name"]: skill["catalogue"] for skill in page}

    eventually(lambda: all(entries()[name]["loads_30d"] == 1 for name in copies), problem=entries)
    shown = entries()
    assert {name for name, entry in shown.items() if entry["looks_like"]} == copies
    assert {shown[name]["looks_like"] for name in copies} == {"tables.csv.profile"}
    described = {name: owner("describe_skill", name=name)["skill"].get("looks_like") for name in shown}
    assert described == {name: entry["looks_like"] for name, entry in shown.items()}
    names = list(shown)
    assert names.index("tables.csv.profile") < min(names.index(name) for name in copies)

    # A use of the original lifts them all. A copy of a skill that is private now names nothing.
    other("read_skill_file", name="tables.csv.profile", path="SKILL.md")
    eventually(
        lambda: list(entries())[:7] == ["tables.csv.profile", *(n for n in entries() if n in copies)], problem=entries
    )
    owner("set_visibility", name="tables.csv.profile", visibility="private")
    assert not any(entry["looks_like"] for entry in entries().values())


@pytest.mark.full
def test_a_deprecated_skill_ranks_below_its_successor(
    rpc: Rpc, server: Server, publish: Publish, new_name: str
) -> None:
    for name in ("old", "new", "third"):
        publish(f"{new_name}.{name}", description=f"Text of {name}.")
    rpc("execute_skill", name=f"{new_name}.old", args={"who": "x"})
    await_order(rpc, new_name, ["old", "new", "third"])

    rpc("deprecate_skill", name=f"{new_name}.old", message="Old.", successor=f"{new_name}.new")
    assert order_of(rpc, new_name) == ["new", "old", "third"]

    for caller in ("new", "third"):
        rpc("execute_skill", name=f"{new_name}.{caller}", args={"who": "x"})
    rpc("execute_skill", name=f"{new_name}.third", args={"who": "x"})
    await_order(rpc, new_name, ["third", "new", "old"])


@pytest.mark.full
@pytest.mark.parametrize("database_kind", ["postgres"], indirect=True)
def test_publishers_of_skills_that_rank_below_each_other_do_not_deadlock(
    server: Server, rpc: Rpc, publish: Publish, new_name: str
) -> None:
    ring = [f"{new_name}.{number}" for number in range(6)]
    for name in ring:
        publish(name, description=f"Text of {name}.")

    def change(number: int) -> None:
        name, successor = ring[number], ring[number - 1]
        for _ in range(20):
            rpc("deprecate_skill", name=name, message="Old.", successor=successor)
            rpc("undeprecate_skill", name=name)

    with ThreadPoolExecutor(len(ring)) as publishers:
        assert list(publishers.map(change, range(len(ring)))) == [None] * len(ring)
    assert "deadlock" not in server.log.read_text()


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


def test_a_look_alike_is_a_warning_before_and_after_its_publication(org: Server, new_name: str) -> None:
    owner, other = (Caller(org.url, Who(name, "read run publish", f"{new_name}.*")) for name in ("olga", "omar"))
    agent = Caller(org.url, Who("bot", "read run publish", f"{new_name}.*", "agent"))
    words = f"Profile a table of {new_name}."
    owner.create(f"{new_name}.table.profile", kind="instruction", description=words)

    def warnings(caller: Caller, method: str, name: str, description: str) -> list[str]:
        stated = manifest(name, kind="instruction", description=description)
        answer = caller(method, manifest=stated, skill_md=f"# {name}\n", files=[])
        return [warning for warning in answer["warnings"] if "looks like" in warning]

    expected = [
        f"looks like '{new_name}.table.profile', an older skill of another publisher: "
        "name or description are nearly the same"
    ]
    checked = other(
        "check_skill",
        manifest=manifest(f"{new_name}.copied", kind="instruction", description=words),
        skill_md="# Copied\n",
        files=[],
    )
    assert [finding["rule"] for finding in checked["findings"]] == ["look_alike"]
    assert checked["ok"]
    assert warnings(agent, "create_skill", f"{new_name}.table-profi1e", "Another text.") == expected
    assert warnings(owner, "create_skill", f"{new_name}.table.profile2", words) == []
    assert warnings(other, "create_skill", f"{new_name}.else", "Another text.") == []
    reviewer = Caller(org.url, Who("rex", "read review"))
    waiting = reviewer("describe_skill", name=f"{new_name}.table-profi1e", version="1.0.0")["skill"]
    assert [finding["rule"] for finding in waiting["findings"]] == ["look_alike"]
    # A new version of the original is no copy of a later skill with its words.
    other.create(f"{new_name}.later", kind="instruction", description=words)
    owner.create(f"{new_name}.table.profile", "1.1.0", kind="instruction", description=words)
    latest = owner("describe_skill", name=f"{new_name}.table.profile")["skill"]
    assert latest["version"] == "1.1.0"
    assert "findings" not in latest


def test_a_stated_source_of_another_namespace_hides_no_look_alike(org: Server, new_name: str) -> None:
    words = f"Profile a table of {new_name}."

    def imported(namespace: str, by: str, folder: str) -> str:
        caller = Caller(org.url, Who(by, "read run publish", f"{namespace}.*"))
        tree = zipped({f"{folder}/SKILL.md": skill_md(folder, words)})
        [skill] = sent(caller, tree, namespace=namespace, source=f"github.com/{new_name}/skills")["skills"]
        page = caller("list_skills", namespace=namespace, catalogue=True)["skills"]
        looks_like = {entry["name"]: entry["catalogue"]["looks_like"] for entry in page}
        return looks_like[skill["name"]] or ""

    original = f"{new_name}.table"
    assert imported(new_name, "olga", "table") == ""
    assert imported(new_name, "omar", "same-team") == ""
    assert imported(f"{new_name}z", "omar", "copied") == original
    assert imported(f"{new_name}.two", "otto", "sibling") == original
