"""The hash chain of the audit trail, on both databases: verification detects altered, removed, added and moved entries.
Refused attempts are recorded, in a bounded number.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import signal
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from sqlalchemy import Connection, exc, select, text

from skillery.audit import FIELDS, SERVER, Head, head, local_actor, record, verify
from skillery.audit.refusals import APIECE, MOST_KINDS, MOST_SINGLE, Refusals
from skillery.backends import Identity
from skillery.cli import commands
from skillery.context.request import begin, current
from skillery.database import Database, before_commit
from skillery.database.tables import audit
from skillery.errors import InvalidName, Unavailable
from skillery.formats.tokens import parse_token_name
from tests.cli.test_cli import skillery as command
from tests.conftest import Rpc, Server, manifest, skill_files
from tests.support.processes import eventually, eventually_async

ANN = Identity("ann", "person")
EVE = Identity("eve")
UNGUARDED = {
    "sqlite": [
        f"DROP TRIGGER IF EXISTS {name}" for name in ("audit_no_update", "audit_no_delete", "audit_head_no_delete")
    ],
    "postgresql": [
        "ALTER TABLE audit DISABLE TRIGGER audit_no_change",
        "ALTER TABLE audit_head DISABLE TRIGGER audit_head_no_delete",
    ],
}


def write(database: Database, count: int, actor: Any = ANN) -> None:
    for number in range(count):
        database.write_now(
            lambda connection, number=number: record(  # type: ignore[misc]
                connection, actor, "yank_version", f"a@{number}", before={"status": "published"}, after={"n": number}
            )
        )


def by_hand(database: Database, *statements: str) -> None:
    """Run statements as an attacker with full access to the database: first the triggers are removed."""
    with database.engine.begin() as connection:
        for statement in (*UNGUARDED[connection.dialect.name], *statements):
            connection.execute(text(statement))


def rows(database: Database) -> list[Any]:
    return database.read_now(lambda connection: list(connection.execute(select(audit).order_by(audit.c.seq))))


def fault(database: Database, noted: Head | None = None) -> tuple[int, str] | None:
    found = verify(database, noted).fault
    return None if found is None else (found.seq, found.reason)


# -- one transaction -----------------------------------------------------------------------------------------------


def test_a_change_that_is_taken_back_leaves_no_entry(database: Database) -> None:
    def work(connection: Connection) -> None:
        record(connection, ANN, "yank_version", "a@1")
        raise Unavailable("not now")

    with pytest.raises(Unavailable):
        database.write_now(work)
    write(database, 1)

    assert [row.seq for row in rows(database)] == [1]
    assert verify(database).fault is None


def test_a_change_that_cannot_be_recorded_is_not_made(database: Database) -> None:
    by_hand(database, "DELETE FROM audit_head")

    def work(connection: Connection) -> None:
        connection.execute(text("INSERT INTO registry (key, value) VALUES ('x', :value)"), {"value": b"x"})
        record(connection, ANN, "yank_version", "a@1")

    with pytest.raises(Unavailable, match="audit trail"):
        database.write_now(work)
    written = text("SELECT count(*) FROM registry WHERE key = 'x'")
    assert database.read_now(lambda connection: connection.scalar(written)) == 0
    assert fault(database) == (1, "the head of the trail is gone")


def test_a_record_outside_a_transaction_is_a_fault_of_ours(database: Database) -> None:
    with pytest.raises(RuntimeError):
        database.read_now(lambda connection: record(connection, ANN, "yank_version", "a@1"))


def test_work_before_the_commit_comes_after_all_else(database: Database) -> None:
    order: list[str] = []

    def work(_: Connection) -> None:
        before_commit(lambda _: order.append("last"))
        order.append("first")

    database.write_now(work)
    database.write_now(lambda _: None)
    assert order == ["first", "last"]


def test_an_entry_knows_the_request_that_it_belongs_to(database: Database) -> None:
    async def in_a_request() -> None:
        begin("req-7", "10.0.0.9")
        await database.write(lambda connection: record(connection, ANN, "yank_version", "a@1"))

    asyncio.run(in_a_request())
    assert current.get() is None
    write(database, 1, local_actor("root"))

    first, second = rows(database)
    assert (first.request_id, first.address, first.identity, first.identity_kind) == (
        "req-7",
        "10.0.0.9",
        "ann",
        "person",
    )
    assert (second.request_id, second.address, second.identity) == (None, None, "home:root")


# -- the chain -----------------------------------------------------------------------------------------------------


def test_the_hash_matches_the_documented_formula(database: Database) -> None:
    write(database, 2)
    names = "at, identity, identity_kind, address, request_id, action, subject, outcome, code, error_type, count"

    previous = "0" * 64
    for row in rows(database):
        fields = [getattr(row, name) for name in [*names.split(", "), "before_json", "after_json"]]
        array = json.dumps([row.seq, previous, *fields], ensure_ascii=False, separators=(",", ":"))
        assert row.previous == previous
        assert row.hash == hashlib.sha256(array.encode()).hexdigest()
        previous = row.hash
    assert database.read_now(head) == (2, previous)


def test_a_trail_of_hostile_texts_is_whole(database: Database) -> None:
    for hostile in ("a\0b", "\ud7ff\U0010ffff", "'; DROP TABLE audit; --", "x" * 10_000, '"\\\u2028\x7f\x1f', ""):
        after = {"text": hostile.replace("\0", "")}
        database.write_now(partial(record, actor=local_actor(hostile), action="x", subject=hostile, after=after))

    assert verify(database) == (database.read_now(head), None)
    assert len(rows(database)) == 6


CHANGED = {
    "seq": "99",
    "count": "2",
    "code": "-32002",
    "identity": "NULL",
    "at": "'2020-01-01T00:00:00.000000Z'",
    "outcome": "'refused'",
}


@pytest.mark.parametrize("column", ["seq", "previous", "hash", *FIELDS])
@pytest.mark.full(after=16)
def test_an_entry_that_is_altered_is_noticed(column: str, database: Database) -> None:
    write(database, 3)
    assert fault(database) is None

    by_hand(database, f"UPDATE audit SET {column} = {CHANGED.get(column, repr('x'))} WHERE seq = 2")

    found = fault(database)
    assert found is not None
    assert found[0] == 2
    assert verify(database).head.seq == 1


@pytest.mark.parametrize(
    ("seq", "reason"), [(1, "entry 1 is missing"), (2, "entry 2 is missing"), (3, "end is missing")]
)
def test_an_entry_that_is_removed_is_noticed(seq: int, reason: str, database: Database) -> None:
    write(database, 3)

    by_hand(database, f"DELETE FROM audit WHERE seq = {seq}")

    found = fault(database)
    assert found is not None
    assert found[0] == seq
    assert reason in found[1]


def test_a_trail_that_is_emptied_is_noticed(database: Database) -> None:
    write(database, 3)
    by_hand(database, "DELETE FROM audit")

    found = fault(database)
    assert found is not None
    assert found[0] == 1


def test_entries_that_change_places_are_noticed(database: Database) -> None:
    write(database, 4)
    by_hand(
        database,
        "UPDATE audit SET seq = 99 WHERE seq = 2",
        "UPDATE audit SET seq = 2 WHERE seq = 3",
        "UPDATE audit SET seq = 3 WHERE seq = 99",
    )

    found = fault(database)
    assert found is not None
    assert found[0] == 2


@pytest.mark.parametrize("seq", [0, -1, 3])
def test_an_entry_that_is_slipped_in_is_noticed(seq: int, database: Database) -> None:
    write(database, 2)
    columns = ", ".join(["previous", "hash", *FIELDS])
    by_hand(database, f"INSERT INTO audit (seq, {columns}) SELECT {seq}, {columns} FROM audit WHERE seq = 1")

    assert fault(database) is not None


def test_a_noted_head_detects_a_truncated_trail_with_an_adjusted_head(
    database: Database,
) -> None:
    write(database, 2)
    earlier = database.read_now(head)
    write(database, 2)
    noted = database.read_now(head)
    by_hand(
        database,
        "DELETE FROM audit WHERE seq > 3",
        "UPDATE audit_head SET seq = 3, hash = (SELECT hash FROM audit WHERE seq = 3)",
    )

    assert fault(database) is None
    assert fault(database, earlier) is None
    found = fault(database, noted)
    assert found is not None
    assert found[0] == 4
    # The same holds if other entries were written in their place.
    write(database, 2)
    assert fault(database) is None
    found = fault(database, noted)
    assert found is not None
    assert found[0] == 4


def test_verification_reads_trails_longer_than_a_page_to_the_end(database: Database) -> None:
    def hundred(connection: Connection) -> None:
        for _ in range(100):
            record(connection, ANN, "yank_version", "a@1")

    for _ in range(21):
        database.write_now(hundred)
    assert verify(database).head.seq == 2100
    by_hand(database, "UPDATE audit SET subject = 'b' WHERE seq = 2099")
    found = fault(database)
    assert found is not None
    assert found[0] == 2099


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE audit SET subject = 'x'",
        "DELETE FROM audit",
        "DELETE FROM audit WHERE seq = 1",
        "DELETE FROM audit_head",
        "TRUNCATE audit",
        "INSERT OR REPLACE INTO audit SELECT * FROM audit",
    ],
)
def test_the_databases_refuse_to_change_an_entry(statement: str, database: Database) -> None:
    if statement.split(maxsplit=1)[0] == ("TRUNCATE" if database.is_sqlite else "INSERT"):
        return  # this statement exists only in the other database
    write(database, 1)

    with pytest.raises(exc.DBAPIError, match="append-only"), database.engine.begin() as connection:
        connection.execute(text(statement))
    assert fault(database) is None


# -- many at once --------------------------------------------------------------------------------------------------


@pytest.mark.smoke
@pytest.mark.postgres
@pytest.mark.full(after=1)
def test_fifty_writers_of_two_servers_keep_a_single_chain(database: Database) -> None:
    second = Database(database.url.render_as_string(hide_password=False))
    failures: list[Exception] = []

    def work(number: int) -> None:
        try:
            write(database if number % 2 else second, 4, Identity(f"writer{number}"))
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(50)]
    for thread in threads:
        thread.start()
    # A reader sees a complete trail at any time.
    while any(thread.is_alive() for thread in threads):
        assert fault(database) is None
    for thread in threads:
        thread.join()
    second.close()

    assert failures == []
    assert verify(database) == (database.read_now(head), None)
    assert [row.seq for row in rows(database)] == list(range(1, 201))
    assert len({row.identity for row in rows(database)}) == 50


@pytest.mark.full
@pytest.mark.postgres
def test_kill_nine_in_the_middle_of_writes_leaves_a_whole_chain(
    start_server: Callable[..., Server], database_kind: str, request: pytest.FixtureRequest
) -> None:
    url = request.getfixturevalue("migrated_postgres_database")() if database_kind == "postgres" else ""
    acknowledged: list[str] = []
    for _ in range(2):
        server = start_server(env={"SKILLERY_DATABASE": url})
        workers = [threading.Thread(target=_publish, args=(Rpc(server.url), acknowledged, one)) for one in range(3)]
        for worker in workers:
            worker.start()
        enough = len(acknowledged) + 10
        eventually(partial(has_length, acknowledged, enough), of=server.process)
        server.stop(signal.SIGKILL)
        for worker in workers:
            worker.join()

    database = Database(url or f"sqlite:///{server.home / 'skillery.db'}")
    assert fault(database) is None
    recorded = {row.subject for row in rows(database) if row.action != "add_key"}
    there = database.read_now(
        lambda connection: {
            f"{name}@{version}"
            for name, version in connection.execute(
                text("SELECT s.name, v.version FROM skill_versions v JOIN skills s ON s.id = v.skill_id")
            )
        }
    )
    database.close()
    assert recorded == there
    assert {f"{name}@1.0.0" for name in acknowledged} <= recorded


def has_length(things: list[str], length: int) -> bool:
    return len(things) >= length


def _publish(rpc: Rpc, acknowledged: list[str], worker: int) -> None:
    while True:
        name = f"w{worker}.n{len(acknowledged)}x{time.monotonic_ns()}"
        try:
            rpc("create_skill", manifest=manifest(name), skill_md="# A\n", files=skill_files())
        except Exception:
            return
        acknowledged.append(name)


# -- refused attempts ----------------------------------------------------------------------------------------------


def attempts(database: Database, *noted: tuple[Identity | None, str, str, str]) -> list[Any]:
    """Return the entries after refused attempts by these identities, addresses, actions and subjects."""

    async def refuse() -> None:
        refusals = Refusals(database)
        for number, (identity, address, action, subject) in enumerate(noted):
            begin(f"req-{number}", address)
            refusals.note(identity, action, subject, code=-32002, error_type="not_allowed")
        await refusals.close()

    asyncio.run(refuse())
    assert fault(database) is None
    return rows(database)


def test_refused_attempts_are_recorded_when_the_server_stops(database: Database) -> None:
    found = attempts(database, (ANN, "10.0.0.1", "yank_version", "a@1"), (None, "10.0.0.2", "login", ""))

    assert [(row.identity, row.address, row.request_id, row.action, row.subject, row.count) for row in found] == [
        ("ann", "10.0.0.1", "req-0", "yank_version", "a@1", 1),
        (None, "10.0.0.2", "req-1", "login", "", 1),
    ]
    assert {(row.outcome, row.code, row.error_type) for row in found} == {("refused", -32002, "not_allowed")}


def test_further_refused_attempts_share_a_counted_entry(database: Database) -> None:
    known = [(ANN, "10.0.0.1", "yank_version", f"a@{number}") for number in range(1000)]
    unknown = [(None, f"2001:db8::{number:x}", "login", "") for number in range(1, 1001)]
    found = attempts(database, *known, *unknown)

    yanks = [row for row in found if row.action == "yank_version"]
    assert [row.count for row in yanks] == [1] * APIECE + [1000 - APIECE]
    assert [row.subject for row in yanks] == [f"a@{number}" for number in range(APIECE)] + [""]
    logins = [row for row in found if row.action == "login"]
    assert [(row.count, row.address) for row in logins] == [(1, "2001:db8::1"), (999, "2001:db8::/64")]


def test_a_flood_from_everywhere_is_bounded_and_none_of_it_uncounted(database: Database) -> None:
    flood = [(None, f"10.{a}.{b}.1", "login", "") for a in range(100) for b in range(100)]
    found = attempts(database, *flood, (ANN, "10.0.0.1", "yank_version", "a@1"))

    assert len(found) <= MOST_SINGLE + MOST_KINDS + 1
    assert sum(row.count for row in found) == len(flood) + 1
    assert found[-1].action == "*"


def test_no_caller_hides_the_refusals_of_another(database: Database) -> None:
    flood = [(ANN, f"10.0.0.{n % 250}", f"method_{n % 50}", "x") for n in range(1000)]
    strangers = [(None, f"10.{n // 250}.{n % 250}.1", "login", "") for n in range(1000)]
    found = attempts(database, *flood, *strangers, (EVE, "10.9.9.9", "yank_version", "a@1"))

    assert [(row.subject, row.address) for row in found if row.identity == EVE.name] == [("a@1", "10.9.9.9")]


def test_refused_attempts_wait_for_a_database_that_is_away(
    database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    nothing = verify(database).head.hash

    async def refuse() -> None:
        refusals = Refusals(database)
        by_hand(database, "DELETE FROM audit_head")
        refusals.note(ANN, "yank_version", "a@1", code=-32002, error_type="not_allowed")
        await eventually_async(lambda: "wait for the database" in caplog.text)
        refusals.note(ANN, "yank_version", "a@2", code=-32002, error_type="not_allowed")
        by_hand(database, f"INSERT INTO audit_head (id, seq, hash) VALUES (1, 0, '{nothing}')")
        await refusals.close()

    asyncio.run(refuse())
    assert [row.subject for row in rows(database)] == ["a@1", "a@2"]


# -- secrets, and the command line ---------------------------------------------------------------------------------


def skillery(home: Path, database: str, *arguments: str, stdin: str = "") -> Result:
    """Run the command line in this process, because starting a process takes a second."""
    env = {"SKILLERY_HOME": str(home), "SKILLERY_DATABASE": database}
    return CliRunner().invoke(commands, arguments, input=stdin, env=env)


@pytest.mark.full
def test_no_secret_and_no_token_is_in_the_trail(tmp_path: Path, database_kind: str, request: Any) -> None:
    url = request.getfixturevalue("migrated_postgres_database")() if database_kind == "postgres" else ""
    run = partial(skillery, tmp_path / "home", url)
    value = "the-value-itself-of-it"
    token = json.loads(run("token", "create", "--name", "bob", "--scope", "read", "--json").stdout)["token"]
    run("secret", "set", "API_KEY", "--value-from-stdin", stdin=value)
    run("secret", "set", "API_KEY", "--value-from-stdin", stdin=f"{value}2")
    run("secret", "grant", "API_KEY", "a.b")
    run("secret", "revoke", "API_KEY", "a.b")
    run("secret", "grant", "API_KEY", "a.*")
    run("secret", "rm", "API_KEY")
    run("token", "revoke", token)

    listed = [
        entry for entry in json.loads(run("audit", "list", "--json").stdout)["entries"] if entry["action"] != "add_key"
    ]
    assert [(one["action"], one["before"], one["after"] and {**one["after"], "revoked_at": 0}) for one in listed] == [
        ("revoke_token", {"name": "bob", "revoked_at": None}, {"revoked_at": 0}),
        ("remove_secret", {"has_value": True, "granted_to": ["a.*"]}, None),
        ("grant_secret", None, {"granted_to": "a.*", "revoked_at": 0}),
        ("revoke_secret", {"granted_to": "a.b"}, None),
        ("grant_secret", None, {"granted_to": "a.b", "revoked_at": 0}),
        ("set_secret", {"has_value": True}, {"has_value": True, "revoked_at": 0}),
        ("set_secret", {"has_value": False}, {"has_value": True, "revoked_at": 0}),
        (
            "create_token",
            None,
            {
                "name": "bob",
                "kind": "person",
                "scopes": ["read"],
                "namespaces": [],
                "expires_at": None,
                "revoked_at": 0,
            },
        ),
    ]
    assert {one["identity"]["name"].partition(":")[0] for one in listed} == {"home"}
    assert {(one["address"], one["request_id"]) for one in listed} == {(None, None)}

    database = Database(url or f"sqlite:///{tmp_path / 'home' / 'skillery.db'}")
    everything = "".join(str(tuple(row)) for row in rows(database))
    assert value not in everything
    assert token.rpartition("_")[2] not in everything
    _by_the_command_line(database, run)
    database.close()


def _by_the_command_line(database: Database, run: Callable[..., Result]) -> None:
    """Check `verify` and `head` on a trail of nine entries."""
    noted = run("audit", "head").stdout.strip()
    good = run("audit", "verify", "--head", noted, "--json")
    assert (good.exit_code, json.loads(good.stdout)["ok"], json.loads(good.stdout)["head"]["seq"]) == (0, True, 9)

    by_hand(database, "UPDATE audit SET identity = 'mallory' WHERE seq = 3")
    bad = run("audit", "verify")
    assert bad.exit_code == 1
    assert "entry 3 was altered" in bad.stderr
    assert run("audit", "verify", "--head", "nonsense").exit_code == 2


def test_a_whole_token_in_a_refused_revocation_is_not_stored(org: Server, new_name: str) -> None:
    from tests.audit.test_audit import Trail

    trail = Trail(org.url, new_name, Path())
    made = trail.admin("create_token", name=new_name, scopes=["read"])
    assert trail.ann.error("revoke_token", id=made["token"])["code"] == -32002

    assert trail.only(identity=f"{new_name}-ann")["subject"] == f"sky_{made['id']}"


def test_no_token_can_have_the_name_of_the_server_itself() -> None:
    with pytest.raises(InvalidName):
        parse_token_name(SERVER.name)


@pytest.mark.full
def test_the_trail_of_a_home_is_listed_for_admins_alone(tmp_path: Path) -> None:
    home = str(tmp_path / "home")
    create = ("token", "create", "--home", home, "--json", "--name")
    reader = command(*create, "reader", "--scope", "read", SKILLERY_AUTH="tokens").json["token"]
    admin = command(*create, "root", "--scope", "admin", SKILLERY_AUTH="tokens").json["token"]
    trail = ("audit", "list", "--home", home, "--json")

    for token, refused in (("", "not_authenticated"), (reader, "not_allowed")):
        asked = command(*trail, SKILLERY_AUTH="tokens", SKILLERY_TOKEN=token)
        assert (asked.code != 0, refused in asked.err + asked.out) == (True, True)
    assert command(*trail, SKILLERY_AUTH="tokens", SKILLERY_TOKEN=admin).json["entries"]
