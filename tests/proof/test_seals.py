"""Seals and run statements: made by servers, verified by clients without a server."""

from __future__ import annotations

import asyncio
import hashlib
import json
import signal
import sqlite3
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from msgspec import Raw
from sqlalchemy import Connection, func, insert, select, update

from skillery import __version__
from skillery.attestations.seals import IDLE, MOST_RUNS, Sealer, make_draft, needs_seal, read_seals, store_seal
from skillery.attestations.signing import open_signing
from skillery.backends import KINDS, Identity
from skillery.database import Database
from skillery.database.tables import runs, seal_spans, seals, servers
from skillery.errors import NotFound
from skillery.proof.dsse import ProofError, SigningKey, seal, unverified
from skillery.proof.seals import (
    CheckedRun,
    Covered,
    Position,
    RunPredicate,
    Seal,
    check_run,
    follow_seals,
    make_run_statement,
    make_seal,
    read_seal,
)
from skillery.proof.statements import read_statement
from skillery.runs.ended_runs import close_of_dead, note_seen
from skillery.runs.statements import make_predicate
from skillery.settings.versions import Seals
from tests.cli.test_cli import skillery
from tests.conftest import Rpc, Server, manifest, publisher, skill_files
from tests.proof.test_attestations import ADDRESS, keys_of
from tests.proof.test_keys import SIGNER
from tests.support.fault_proxy import Fault, FaultProxy
from tests.support.people import Caller, Who, people_settings
from tests.support.processes import eventually, eventually_async

Start = Callable[..., Server]
SEALS = "/.well-known/skillery/seals"
NOT_FOUND, CONFLICT, BUSY = -32003, -32004, -32006
NOWHERE = "http://127.0.0.1:1"
OFTEN = {"SKILLERY_SEALS_SECONDS": "0.2"}


class Local:
    """A signer with a key in memory."""

    def __init__(self, key: SigningKey) -> None:
        self._key = key

    def public_keys(self) -> list[bytes]:
        return [self._key.public_der]

    def sign(self, data: bytes) -> tuple[str, bytes]:
        return self._key.sign(data)


@pytest.fixture(scope="session")
def sealing(database_kind: str, shared_server: Start) -> Rpc:
    """Return a client of a server that seals often."""
    return shared_server("sealing", database_kind, **OFTEN).rpc


def statement_of(rpc: Rpc, run_id: str, **params: Any) -> bytes:
    """Return the statement about a run, as soon as a seal covers the run."""
    answer = eventually(lambda: rpc.send("get_run_statement", {"run_id": run_id, **params}).get("result"))
    envelope: str = answer["envelope"]
    return envelope.encode()


def sealed(rpc: Rpc, run_id: str, **params: Any) -> CheckedRun:
    return check_run(statement_of(rpc, run_id, **params), keys_of(rpc))


def envelopes_of(rpc: Rpc, after: int = 0) -> list[bytes]:
    response = rpc.http.get(SEALS, params={"after": after})
    return [bytes(envelope) for envelope in msgspec.json.decode(response.content, type=dict[str, list[Raw]])["seals"]]


def digest_of(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def test_a_statement_has_the_evidence_of_a_run(sealing: Rpc, new_name: str) -> None:
    created = publisher(sealing)(new_name)
    run = sealing("execute_skill", name=new_name, args={"a": 1})
    checked = sealed(sealing, run["run_id"])

    record = checked.record
    assert record["mounts"] == [[new_name, "1.0.0", created["digest"]]]
    assert record["run_id"] == run["run_id"]
    assert record["output"] == digest_of('{"got":{"a":1}}')
    assert (record["status"], record["identity"], record["error_type"]) == ("completed", "local", None)
    assert checked.args is None
    assert json.loads(str(sealed(sealing, run["run_id"], disclose="args").args)) == {"a": 1}


def test_a_seal_has_the_number_of_the_last_advisory(sealing: Rpc, new_name: str) -> None:
    publisher(sealing)(new_name)
    sealing("yank_version", name=new_name, version="1.0.0", reason="leaks")
    feed = sealing.http.get("/advisories.json").json()

    def last() -> Seal:
        return follow_seals(envelopes_of(sealing), keys_of(sealing))[-1].seal

    eventually(lambda: (position := last().advisories) is not None and position.seq >= feed["seq"])


def test_attestations_name_their_seal(sealing: Rpc, new_name: str) -> None:
    publisher(sealing)(new_name)

    def listed() -> list[dict[str, Any]]:
        return list(sealing("list_attestations", name=new_name)["attestations"])

    rows = eventually(lambda: all(row["sealed"] for row in listed()) and listed())
    links = {link.seal.seq: link.seal for link in follow_seals(envelopes_of(sealing), keys_of(sealing))}
    covered = sum(links[number].attestations.count for number in {row["sealed"] for row in rows})
    assert covered >= len(rows)


def test_all_seals_are_in_a_chain(sealing: Rpc, new_name: str) -> None:
    publisher(sealing)(new_name)
    statement_of(sealing, sealing("execute_skill", name=new_name, args={})["run_id"])
    links = follow_seals(envelopes_of(sealing), keys_of(sealing))

    assert [link.seal.seq for link in links] == [*range(1, len(links) + 1)]
    assert follow_seals(envelopes_of(sealing, after=1), keys_of(sealing), links[0])[: len(links) - 1] == links[1:]
    assert sum(link.seal.attestations.count for link in links) > 0
    listed = sealing("list_seals", after=len(links) - 1)["seals"]
    assert listed[0]["sha256"] == links[-1].sha256


def test_the_endpoint_of_a_run_sends_its_statement(sealing: Rpc, new_name: str) -> None:
    publisher(sealing)(new_name)
    run_id = sealing("execute_skill", name=new_name, args={"a": 1})["run_id"]
    statement_of(sealing, run_id)
    address = f"/v1/runs/{run_id}.intoto.json"

    assert check_run(sealing.http.get(address).content, keys_of(sealing)).record["run_id"] == run_id
    assert check_run(sealing.http.get(address, params={"disclose": "args"}).content, keys_of(sealing)).args
    assert sealing.http.get(address, params={"disclose": "log"}).status_code == 400
    assert sealing.http.get("/v1/runs/none.intoto.json").status_code == 404
    assert sealing.http.get(f"/v1/runs/{run_id}.txt").status_code == 404


def test_a_statement_has_inputs_files_and_code_by_digest(sealing: Rpc) -> None:
    code = (
        "def main(args):\n"
        "    import pathlib, sys\n"
        "    pathlib.Path('out').mkdir()\n"
        "    pathlib.Path('out/report.txt').write_text('report')\n"
        "    print('done')\n"
        "    raise ValueError('secret text')\n"
    )
    blob = sealing("create_blob", content="input", kind="text/plain")["blob_id"]
    run = sealing(
        "run_code", language="python", code=code, input_blobs=[blob], files=[{"path": "in.txt", "blob_id": blob}]
    )
    envelope = statement_of(sealing, run["run_id"])
    record = check_run(envelope, keys_of(sealing)).record

    assert record["inputs"] == [digest_of("input")] * 2
    assert record["files"] == [["report.txt", digest_of("report")]]
    assert (record["mounts"], record["code"]) == ([], digest_of(code))
    assert (record["output"], record["error_type"]) == (None, "ValueError")
    assert record["log"] == digest_of(run["logs_preview"])
    assert b"secret text" not in msgspec.json.decode(envelope, type=dict[str, Any])["payload"].encode()
    [subject] = read_statement(unverified(envelope).payload).subject
    assert (subject.name, subject.digest) == ("skillery:code", {"sha256": digest_of(code)})


@pytest.mark.full
def test_a_statement_has_secrets_hosts_and_the_calling_run(
    shared_server: Start, database_kind: str, new_name: str
) -> None:
    server = shared_server("sealing", database_kind, **OFTEN)
    rpc, secret, home = server.rpc, new_name.upper(), ("--home", str(server.home))
    skillery("secret", "set", secret, "--value-from-stdin", *home, stdin=b"pass", SKILLERY_DATABASE=server.database)
    skillery("secret", "grant", secret, new_name, *home, SKILLERY_DATABASE=server.database)
    code = (
        "import urllib.request\n"
        "def main(args):\n"
        "    try:\n"
        "        urllib.request.urlopen('http://other.invalid/')\n"
        "    except OSError:\n"
        "        return 'refused'\n"
    )
    made = manifest(new_name, permissions={"network": ["https://mail.invalid"], "secrets": [secret]})
    rpc("create_skill", manifest=made, skill_md="# A\n", files=skill_files(code))
    calling = f"from skills.{new_name} import main as call\n\ndef main(args):\n    return call({{}})\n"
    run = rpc("run_code", language="python", code=calling, mount_skills=[new_name])
    assert run["output"] == "refused"
    [called] = rpc("list_runs", skill=new_name)["runs"]

    outer, record = (sealed(rpc, run_id).record for run_id in (run["run_id"], called["run_id"]))
    assert (record["secrets"], record["allowed"]) == ([secret], ["https://mail.invalid"])
    assert [(use["host"], use["port"], use["allowed"]) for use in record["network"]] == [("other.invalid", 80, False)]
    assert (outer["secrets"], outer["allowed"], outer["network"]) == ([], [], [])
    assert (record["parent_run_id"], outer["parent_run_id"]) == (run["run_id"], None)
    assert {(each["sandbox"], each["release"]) for each in (record, outer)} == {("linux", __version__)}


def test_other_callers_have_no_statement_about_a_run(org: Server, new_name: str) -> None:
    alice, bob = (Caller(org.url, Who(f"{name}-{new_name}")) for name in ("alice", "bob"))
    run_id = alice("run_code", language="python", code="def main(args): return 1")["run_id"]

    assert bob.error("get_run_statement", run_id=run_id)["code"] == NOT_FOUND

    def early() -> Any:
        """Return the error for a run that has just ended. A seal may cover it at once: each minute, one is made."""
        run_id = alice("run_code", language="python", code="def main(args): return 1")["run_id"]
        return alice.send("get_run_statement", {"run_id": run_id}).get("error")

    error = eventually(early)
    assert (error["code"], error["data"]["retry_after_ms"]) == (BUSY, 60_000)
    assert httpx.get(f"{org.url}{SEALS}").status_code == 401


@pytest.mark.full
def test_a_changed_record_of_a_run_has_no_statement(start_server: Start) -> None:
    server = start_server(env=OFTEN | {"SKILLERY_SEALS_PUBLIC": "true", "SKILLERY_AUTH": "open"})
    run_id = server.rpc("run_code", language="python", code="def main(args): return 1")["run_id"]
    statement_of(server.rpc, run_id)
    for column, value in (
        ("status", "failed"),
        ("output_json", "2"),
        ("args_json", "[]"),
        ("finished_at", "2020-01-01"),
    ):
        with sqlite3.connect(server.home / "skillery.db") as connection:
            [[before]] = connection.execute(f"SELECT {column} FROM runs WHERE id = ?", (run_id,))
            connection.execute(f"UPDATE runs SET {column} = ? WHERE id = ?", (value, run_id))
        error = server.rpc.error("get_run_statement", run_id=run_id)
        assert (error["code"], "was changed after seal" in error["message"]) == (CONFLICT, True), (column, error)
        with sqlite3.connect(server.home / "skillery.db") as connection:
            connection.execute(f"UPDATE runs SET {column} = ? WHERE id = ?", (before, run_id))
    statement_of(server.rpc, run_id)


@pytest.mark.full
def test_without_a_key_there_are_no_seals(start_server: Start) -> None:
    rpc = start_server(env=OFTEN | {"SKILLERY_SIGNING_KEY": "off"}).rpc
    run_id = rpc("run_code", language="python", code="def main(args): return 1")["run_id"]
    error = rpc.error("get_run_statement", run_id=run_id)

    assert (error["code"], "signs nothing" in error["message"]) == (NOT_FOUND, True)
    assert envelopes_of(rpc) == []


@pytest.mark.full
def test_public_seals_need_no_token(start_server: Start, tmp_path: Path) -> None:
    variables = people_settings(tmp_path) | OFTEN | {"SKILLERY_SEALS_PUBLIC": "true"}
    url = start_server(env=variables).url
    eventually(lambda: httpx.get(f"{url}{SEALS}").json()["seals"])

    assert skillery("witness", url, "--state", str(tmp_path / "state.json")).code == 0
    body = {"jsonrpc": "2.0", "id": 1, "method": "list_seals", "params": {}}
    assert httpx.post(f"{url}/rpc", json=body).status_code == 401


@pytest.mark.full
def test_a_rewritten_database_does_not_replace_the_seal_in_a_file(
    database_kind: str, migrated_postgres_database: Callable[[], str], start_server: Start, tmp_path: Path
) -> None:
    file = tmp_path / "share" / "seal.json"
    file.parent.mkdir()
    env = {**OFTEN, "SKILLERY_SEALS_FILE": str(file)}
    urls = [migrated_postgres_database() if database_kind == "postgres" else "" for _ in range(2)]
    server = start_server(env={**env, "SKILLERY_DATABASE": urls[0]})
    eventually(file.exists)
    kept = file.read_bytes()
    verify = ("audit", "verify", "--seals", str(file), "--home")

    assert kept.strip() in envelopes_of(server.rpc)
    assert skillery(*verify, str(server.home), SKILLERY_DATABASE=urls[0]).code == 0
    other = start_server(home="other", env={**env, "SKILLERY_DATABASE": urls[1]})
    eventually(lambda: "its history was rewritten" in other.log.read_text())
    assert skillery(*verify, str(other.home), SKILLERY_DATABASE=urls[1]).code == 1
    assert file.read_bytes() == kept
    assert list(file.parent.iterdir()) == [file]


# -- seals of one process ----------------------------------------------------------------------------------------------


class Sealing:
    """A database whose seals a Sealer of this process makes."""

    def __init__(self, database: Database) -> None:
        self.key = SigningKey.new()
        self.database = database
        self.signing = open_signing(database, KINDS["signer"].completed(Local(self.key)))

    def sealer(self, seconds: float, keep_days: int = 400) -> Sealer:
        return Sealer(self.database, self.signing, "here", Seals(seconds=seconds, keep_days=keep_days))

    def links(self) -> list[Seal]:
        pages = self.database.read_now(partial(read_seals, after=0, limit=1000))
        keys = {self.key.keyid: self.key.public_der}
        return [link.seal for link in follow_seals([page.envelope.encode() for page in pages], keys)]

    def add_runs(self, batch: int | None, count: int) -> None:
        """Record ended runs of the batch."""
        row = {"method": "run_code", "status": "completed", "server": "here", "seal_batch": batch}
        more = {"identity": "ann", "identity_kind": "person", "started_at": datetime.now(UTC)}
        rows = [{"id": f"run_{batch}_{number:05}", **row, **more} for number in range(count)]
        self.database.write_now(lambda connection: connection.execute(insert(runs), rows))

    def store(self, age: timedelta, batch: int | None = None) -> None:
        """Store a seal that is as old as `age`."""
        draft = self.database.read_now(partial(make_draft, batch=batch))
        at = (datetime.now(UTC) - age).isoformat(timespec="microseconds").replace("+00:00", "Z")
        draft = draft._replace(seal=msgspec.structs.replace(draft.seal, at=at))
        envelope = seal(make_seal(draft.seal), self.key.sign).decode()
        assert self.database.write_now(partial(store_seal, draft=draft, envelope=envelope)) == "stored"

    def statement(self, run_id: str) -> RunPredicate:
        ann = Identity("ann", "person", frozenset({"read"}), ())
        work = partial(make_predicate, identity=ann, run_id=run_id, with_args=False, is_signing=True, retry_ms=1)
        return self.database.read_now(work)[1]


@pytest.mark.full
def test_five_thousand_runs_are_sealed_at_once(database: Database) -> None:
    sealing = Sealing(database)

    async def scenario() -> int:
        sealer = sealing.sealer(seconds=3600)
        await sealer.start()
        with sealer.batch(MOST_RUNS) as batch:
            sealing.add_runs(batch, MOST_RUNS)
        with sealer.batch() as later:
            assert later != batch
        await eventually_async(sealing.links)
        await sealer.close()
        return int(batch or 0)

    batch = asyncio.run(scenario())
    assert [link.runs.count for link in sealing.links()] == [MOST_RUNS]
    predicate = sealing.statement(f"run_{batch}_00042")
    assert (predicate.proof.size, len(predicate.proof.hashes)) == (MOST_RUNS, 13)
    envelope = seal(make_run_statement(predicate), sealing.key.sign)
    check_run(envelope, {sealing.key.keyid: sealing.key.public_der})


def test_an_idle_registry_makes_no_seal_within_an_hour(database: Database) -> None:
    sealing = Sealing(database)
    sealing.store(IDLE - timedelta(minutes=9))
    assert not database.read_now(needs_seal)


def test_an_idle_registry_makes_a_seal_after_an_hour(database: Database) -> None:
    sealing = Sealing(database)
    sealing.store(IDLE)

    async def scenario() -> None:
        sealer = sealing.sealer(seconds=0.1)
        await sealer.start()
        await eventually_async(lambda: len(sealing.links()) > 1)
        await sealer.close()

    asyncio.run(scenario())
    assert len(sealing.links()) == 2
    assert not database.read_now(needs_seal)


@pytest.mark.full
def test_old_seals_lose_their_leaves(database: Database) -> None:
    sealing = Sealing(database)
    for batch, age in ((1, timedelta(days=3)), (2, timedelta(days=1))):
        sealing.add_runs(batch, 2)
        sealing.store(age, batch)
    before = sealing.statement("run_1_00001")

    async def scenario() -> None:
        sealer = sealing.sealer(seconds=0.1, keep_days=2)
        await sealer.start()
        await eventually_async(lambda: database.read_now(count_emptied))
        await sealer.close()

    def count_emptied(connection: Connection) -> int | None:
        return connection.scalar(select(func.count()).where(seals.c.batch == 1, seals.c.run_leaves == b""))

    asyncio.run(scenario())
    with pytest.raises(NotFound, match="hashes in the seal of run_1_00001 are deleted"):
        sealing.statement("run_1_00001")
    check_run(seal(make_run_statement(before), sealing.key.sign), {sealing.key.keyid: sealing.key.public_der})
    assert sealing.statement("run_2_00001").proof.size == 2


# -- failures ----------------------------------------------------------------------------------------------------------


STUCK = SIGNER.replace(
    "        [public] =",
    "        if (self._sealed.parent / 'stuck').exists():\n"
    "            (self._sealed.parent / 'signs').touch()\n"
    "            threading.Event().wait()\n"
    "        [public] =",
).replace("import hashlib", "import hashlib\nimport threading", 1)


@pytest.fixture
def start_remote(start_server: Start, tmp_path: Path) -> Callable[[], Server]:
    """Return a function that starts a server with a signer that the files `sealed` and `stuck` in the home control."""
    (tmp_path / "plugins").mkdir()
    (tmp_path / "plugins" / "remote.py").write_text(STUCK)
    variables = {"SKILLERY_PLUGINS_FOLDER": str(tmp_path / "plugins"), "SKILLERY_SIGNING_KEY": "remote"}
    return lambda: start_server(env=OFTEN | variables)


@pytest.mark.full
def test_seals_wait_for_the_signer_and_catch_up(start_remote: Callable[[], Server]) -> None:
    server = start_remote()
    eventually(lambda: envelopes_of(server.rpc))
    (server.home / "sealed").touch()
    run_ids = [server.rpc("run_code", language="python", code="def main(args): return 1")["run_id"] for _ in range(2)]
    eventually(lambda: "runs wait for their seal" in server.log.read_text())
    error = server.rpc.error("get_run_statement", run_id=run_ids[0])
    assert (error["code"], error["data"]["type"]) == (BUSY, "busy")
    (server.home / "sealed").unlink()

    for run_id in run_ids:
        assert sealed(server.rpc, run_id).record["run_id"] == run_id
    follow_seals(envelopes_of(server.rpc), keys_of(server.rpc))


@pytest.mark.full
def test_kill_nine_in_a_seal_leaves_no_gap(start_remote: Callable[[], Server]) -> None:
    server = start_remote()
    eventually(lambda: envelopes_of(server.rpc))
    (server.home / "stuck").touch()
    run_id = server.rpc("run_code", language="python", code="def main(args): return 1")["run_id"]
    eventually((server.home / "signs").exists)
    server.stop(signal.SIGKILL)
    (server.home / "stuck").unlink()
    server = start_remote()

    assert sealed(server.rpc, run_id).record["run_id"] == run_id
    links = follow_seals(envelopes_of(server.rpc), keys_of(server.rpc))
    assert sum(link.seal.runs.count for link in links) == 1


def test_runs_of_a_dead_server_are_sealed_by_another(database: Database) -> None:
    key = SigningKey.new()
    signing = open_signing(database, KINDS["signer"].completed(Local(key)))

    def leave(connection: Connection, batch: int | None) -> None:
        note_seen(connection, "dead")
        connection.execute(update(servers).values(seen_at=datetime.now(UTC) - timedelta(hours=1)))
        for run_id, status, number in (("run_1", "completed", batch), ("run_2", "started", None)):
            values = {"id": run_id, "method": "run_code", "status": status, "server": "dead", "seal_batch": number}
            more = {"identity": "a", "identity_kind": "person", "started_at": datetime.now(UTC)}
            connection.execute(insert(runs).values(**values, **more))

    def open_spans() -> list[str]:
        return database.read_now(lambda connection: list(connection.scalars(select(seal_spans.c.server))))

    async def scenario() -> list[Seal]:
        dead = Sealer(database, signing, "dead", Seals(seconds=3600))  # it never makes a seal
        await dead.start()
        with dead.batch() as batch:
            database.write_now(partial(leave, batch=batch))
        database.write_now(partial(note_seen, server="here"))
        here = Sealer(database, signing, "here", Seals(seconds=0.1))
        await here.start()
        with here.batch() as batch:
            assert database.write_now(partial(close_of_dead, batch=batch)) == 1

        def sealed_runs() -> list[Seal] | None:
            pages = database.read_now(partial(read_seals, after=0, limit=100))
            links = follow_seals([page.envelope.encode() for page in pages], {key.keyid: key.public_der})
            chain = [link.seal for link in links if link.seal.runs.count]
            return chain if len(chain) == 2 else None

        covered = await eventually_async(sealed_runs)
        await eventually_async(lambda: open_spans() == ["here"])
        await here.close()
        return list(covered)

    assert [seal.runs.count for seal in asyncio.run(scenario())] == [1, 1]
    assert open_spans() == []


@pytest.mark.full
def test_changed_rows_stop_neither_seals_nor_the_server(start_server: Start, new_name: str) -> None:
    """A program that writes to the database changes an unsealed statement and an unsealed run."""
    server = start_server(env={"SKILLERY_SEALS_SECONDS": "3600"})
    publisher(server.rpc)(new_name)
    run_ids = [server.rpc("execute_skill", name=new_name, args={})["run_id"] for _ in range(2)]
    rows = server.rpc("list_attestations", name=new_name)["attestations"]
    with sqlite3.connect(server.home / "skillery.db", timeout=300) as sqlite:
        sqlite.execute("DROP TRIGGER attestations_no_update")
        sqlite.execute("UPDATE attestations SET sha256 = 'no hash' WHERE attestation = ?", (rows[0]["id"],))
        sqlite.execute("UPDATE attestations SET envelope = '{}' WHERE attestation = ?", (rows[1]["id"],))
        sqlite.execute("UPDATE runs SET evidence_json = '{' WHERE id = ?", (run_ids[0],))

    assert server.stop() == 0
    log = server.log.read_text()
    for subject in (f"the statement {rows[0]['id']}", f"the statement {rows[1]['id']}", f"the run {run_ids[0]}"):
        assert f"{subject} was changed in the database" in log
    server = start_server(env=OFTEN)
    assert sealed(server.rpc, run_ids[1]).record["run_id"] == run_ids[1]
    error = server.rpc.error("get_run_statement", run_id=run_ids[0])
    assert (error["code"], "was changed" in error["message"]) == (CONFLICT, True)
    listed = {row["id"]: row["summary"] for row in server.rpc("list_attestations", name=new_name)["attestations"]}
    assert listed[rows[1]["id"]] == "the envelope is damaged"
    with sqlite3.connect(server.home / "skillery.db", timeout=300) as sqlite:
        sqlite.execute("DROP TRIGGER seals_no_update")
        sqlite.execute("UPDATE seals SET envelope = '{}' WHERE seq = (SELECT MAX(seq) FROM seals)")
        before = sqlite.execute("SELECT MAX(seq) FROM seals").fetchall()[0][0]
    publisher(server.rpc)(new_name, "1.1.0")
    eventually(lambda: len(envelopes_of(server.rpc)) > before)
    assert server.stop() == 0


# -- commands ----------------------------------------------------------------------------------------------------------


def test_verify_checks_statements_without_a_server(sealing: Rpc, new_name: str, tmp_path: Path) -> None:
    publisher(sealing)(new_name)
    run_ids = [sealing("execute_skill", name=new_name, args={})["run_id"] for _ in range(2)]
    statement_of(sealing, run_ids[-1])
    file, keys = tmp_path / "runs.jsonl", tmp_path / "keys.json"
    keys.write_bytes(sealing.http.get(ADDRESS).content)
    assert skillery("runs", "statement", *run_ids, "--out", str(file), "--url", sealing.url).code == 0
    verified = skillery("verify", str(file), "--keys", str(keys), "--url", NOWHERE)

    assert verified.code == 0, verified.err
    assert [line.split()[:4] for line in verified.out.splitlines()] == [
        ["ok", run_id, "completed", "local"] for run_id in run_ids
    ]
    listed = skillery("runs", "statements", "--skill", new_name, "--url", sealing.url)
    assert {check_run(line.encode(), keys_of(sealing)).record["run_id"] for line in listed.out.splitlines()} == {
        *run_ids
    }
    file.write_text(file.read_text().replace('"sig":"', '"sig":"A', 1))
    damaged = skillery("verify", str(file), "--keys", str(keys), "--json")
    assert damaged.code == 1
    assert [bool(run["problem"]) for run in json.loads(damaged.out)["runs"]] == [True, False]


def test_any_changed_byte_of_a_statement_is_refused(sealing: Rpc, new_name: str) -> None:
    publisher(sealing)(new_name)
    envelope = statement_of(sealing, sealing("execute_skill", name=new_name, args={})["run_id"])
    keys = keys_of(sealing)

    for at in range(0, len(envelope), 7):
        with pytest.raises(ProofError):
            check_run(envelope[:at] + bytes([envelope[at] ^ 1]) + envelope[at + 1 :], keys)


@pytest.mark.full
def test_a_witness_notices_a_rewritten_history(start_server: Start, new_name: str, tmp_path: Path) -> None:
    server = start_server(env=OFTEN)
    publisher(server.rpc)(new_name)
    statement_of(server.rpc, server.rpc("execute_skill", name=new_name, args={})["run_id"])
    state = tmp_path / "state.json"
    first = skillery("witness", server.url, "--state", str(state))
    assert (first.code, first.out[:3]) == (0, "ok:"), first.err
    server.stop()
    verified = skillery("audit", "verify", "--seals", str(state), "--home", str(server.home))
    assert verified.code == 0, verified.err
    with sqlite3.connect(server.home / "skillery.db") as connection:
        for trigger in ("seals_no_delete", "audit_no_delete"):
            connection.execute(f"DROP TRIGGER {trigger}")
        connection.execute("DELETE FROM seals")
        connection.execute("DELETE FROM audit WHERE seq > 1")
        connection.execute("UPDATE audit_head SET (seq, hash) = (SELECT seq, hash FROM audit WHERE seq = 1)")
    rewritten = start_server(env=OFTEN)
    eventually(lambda: envelopes_of(rewritten.rpc))
    later = skillery("witness", rewritten.url, "--state", str(state))

    assert (later.code, later.out) == (1, "")
    assert "is not the one that this witness saw: history was rewritten" in later.err
    rewritten.stop()
    verified = skillery("audit", "verify", "--seals", str(state), "--home", str(server.home))
    assert verified.code == 1
    assert "the head noted" in verified.err


@pytest.mark.parametrize(
    ("change", "is_valid"),
    [
        ({"audit": Position(8, "b")}, True),
        ({"advisories": Position(4, "d")}, True),
        ({}, True),
        ({"audit": Position(7, "b")}, False),
        ({"audit": Position(6, "b")}, False),
        ({"advisories": Position(3, "d")}, False),
        ({"advisories": Position(2, "d")}, False),
        ({"advisories": None}, False),
        ({"at": "2026-11-28T08:00:00Z"}, False),
    ],
)
def test_a_seal_continues_the_previous_seal(change: dict[str, Any], is_valid: bool) -> None:
    key, none = SigningKey.new(), Covered(0, "")
    at, audit, advisory = "2026-11-28T09:00:00Z", Position(7, "a"), Position(3, "c")
    first = Seal(1, None, at, audit, none, none, "", advisory)
    envelopes = [seal(make_seal(first), key.sign)]
    previous = hashlib.sha256(envelopes[0]).hexdigest()
    second = msgspec.structs.replace(first, seq=2, previous=previous, **change)
    envelopes.append(seal(make_seal(second), key.sign))
    if is_valid:
        assert len(follow_seals(envelopes, {key.keyid: key.public_der})) == 2
    else:
        with pytest.raises(ProofError, match="does not continue seal 1: history was rewritten"):
            follow_seals(envelopes, {key.keyid: key.public_der})


@pytest.mark.full
def test_a_witness_notices_a_server_without_new_seals(sealing: Rpc, tmp_path: Path) -> None:
    state = ("--state", str(tmp_path / "state.json"))
    eventually(lambda: envelopes_of(sealing))
    assert skillery("witness", sealing.url, *state).code == 0
    eventually(lambda: "has made no seal since seal" in skillery("witness", sealing.url, *state, "--max-age", "1s").err)
    assert skillery("witness", sealing.url, *state, "--max-age", "soon").code != 0


@pytest.mark.full
def test_a_removed_revocation_of_a_key_is_noticed(start_server: Start, new_name: str, tmp_path: Path) -> None:
    server = start_server(env=OFTEN)
    home = ("--home", str(server.home))
    state, lock = tmp_path / "state.json", tmp_path / "skillery.lock"
    [old] = keys_of(server.rpc)
    server.stop()
    assert skillery("key", "rotate", *home).code == 0
    server = start_server(env=OFTEN)
    before = server.rpc.http.get(ADDRESS).content
    assert skillery("witness", server.url, "--state", str(state)).code == 0
    server.stop()
    assert skillery("key", "revoke", old, "--reason", "stolen", *home).code == 0
    server = start_server(env=OFTEN)
    publisher(server.rpc)(new_name)
    statements = msgspec.json.decode(server.rpc.http.get(ADDRESS).content, type=dict[str, list[Raw]])["statements"]
    head = hashlib.sha256(bytes(statements[-1])).hexdigest()
    eventually(lambda: read_seal(envelopes_of(server.rpc)[-1]).keys == head)
    mirror = FaultProxy(server.url)
    for words in (
        ("witness", mirror.url, "--state", str(state)),
        ("lock", new_name, "-o", str(lock), "--url", mirror.url),
        ("verify", str(lock), "--url", mirror.url),
    ):
        ended = skillery(*words)
        assert ended.code == 0, (words, ended.err)
        mirror.faults = [Fault(f"GET {ADDRESS}", times=9, status=200, body=before)]
        ended = skillery(*words)
        assert (ended.code, "change" in ended.err) == (1, True), (words, ended.err)
        mirror.faults = []
    state.unlink()
    mirror.faults = [Fault(f"GET {ADDRESS}", times=9, status=200, body=before)]
    ended = skillery("witness", mirror.url, "--state", str(state))
    assert (ended.code, "a change of keys was removed" in ended.err) == (1, True), ended.err
    # A new witness starts on such a registry: a seal of the new key follows those of the stolen key. Alone, they could
    # come from the thief.
    mirror.faults = []
    stolen = [envelope for envelope in envelopes_of(server.rpc) if old in unverified(envelope).keyids]
    ended = skillery("witness", mirror.url, "--state", str(state))
    assert (ended.code, ended.out[:3]) == (0, "ok:"), ended.err
    state.unlink()
    page, nothing = (msgspec.json.encode({"seals": [*map(Raw, seals)]}) for seals in (stolen, []))
    mirror.faults = [
        Fault(f"GET {SEALS}", times=1, status=200, body=page),
        Fault(f"GET {SEALS}", times=9, status=200, body=nothing),
    ]
    ended = skillery("witness", mirror.url, "--state", str(state))
    assert (ended.code, "is signed with the revoked key" in ended.err, state.exists()) == (1, True, False), ended.err
    mirror.close()


@pytest.mark.full
def test_a_witness_follows_the_seals_of_a_key_that_was_revoked_later(
    start_server: Start, new_name: str, tmp_path: Path
) -> None:
    server = start_server(env=OFTEN)
    home = ("--home", str(server.home))
    states = [tmp_path / "known.json", tmp_path / "new.json"]
    [old] = keys_of(server.rpc)
    eventually(lambda: envelopes_of(server.rpc))
    assert skillery("witness", server.url, "--state", str(states[0])).code == 0
    seen = read_seal(envelopes_of(server.rpc)[-1]).seq
    publisher(server.rpc)(new_name)  # a seal that no witness sees before the theft
    eventually(lambda: envelopes_of(server.rpc, after=seen))
    server.stop()
    assert skillery("key", "rotate", *home).code == 0
    assert skillery("key", "revoke", old, "--reason", "stolen", *home).code == 0
    server = start_server(env=OFTEN)
    mirror = FaultProxy(server.url)
    newest = eventually(lambda: [each for each in envelopes_of(server.rpc) if unverified(each).keyids != (old,)])

    for state in states:
        ended = skillery("witness", server.url, "--state", str(state))
        assert ended.code == 0, ended.err
    of_thief = [each for each in envelopes_of(server.rpc) if each not in newest and unverified(each).keyids == (old,)]
    answer = b'{"seals":[' + b",".join(of_thief) + b"]}"
    mirror.faults = [Fault(f"GET {SEALS}", times=1, status=200, body=answer)]
    mirror.faults.append(Fault(f"GET {SEALS}", times=9, status=200, body=b'{"seals":[]}'))
    ended = skillery("witness", mirror.url, "--state", str(tmp_path / "other.json"))
    assert (ended.code, f"signed with the revoked key {old}" in ended.err) == (1, True), ended.err
    mirror.close()
