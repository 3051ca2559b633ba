"""`skillery check --deep` verifies keys, attestations, seals and sealed runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from sqlalchemy import Engine, Executable, Table, create_engine, delete, insert, select, text, update

from skillery.backends import Place, Storage
from skillery.builtin.directory_storage import DirectorySettings, skillery_storage
from skillery.database import Database
from skillery.database.tables import advisories, attestations, key_statements, runs, seals, signing_keys
from skillery.maintenance.integrity import check
from skillery.proof import STATED_BY
from skillery.proof.dsse import SigningKey
from tests.cli.test_cli import skillery
from tests.conftest import Rpc, Server, publisher
from tests.proof.test_keys import register, signed
from tests.proof.test_seals import OFTEN, statement_of
from tests.support.processes import eventually

TABLES = (signing_keys, key_statements, attestations, advisories, seals, runs)
# No signature, seal or entry of the audit trail covers these columns.
FREE = {
    "signing_keys": {"id", "added_by_kind", "added_at", "revoked_since", "reason", "retired_at", "revoked_at"},
    "attestations": {"id", "attestation", "created_at", "ended_at", "ended_by", "ended_reason"},
    "runs": {"version_id", "skill_id", "client", "queued", "progress_json", "followed_until", "cancel_requested_at",
             "cancel_requested_by"},
    "advisories": {"version_id", "reason", "fixed", "at"},
}  # fmt: skip


class Sealed(NamedTuple):
    """A stopped registry with sealed rows, and the engine of a program that owns its database."""

    database: Database
    owner: Engine
    storage: Storage
    home: Path
    url: str

    def faults(self) -> list[str]:
        damages = check(self.database, self.storage, deep=True, dead_servers=frozenset())
        return [damage.message for damage in damages]

    def execute(self, statement: Executable) -> None:
        """Execute a statement without triggers and foreign keys."""
        with self.owner.begin() as connection:
            if self.owner.dialect.name == "postgresql":
                connection.execute(text("SET LOCAL session_replication_role = replica"))
            connection.execute(statement)

    @contextmanager
    def changed(self, table: Table, row: Mapping[str, Any], **values: Any) -> Iterator[list[str]]:
        """Context manager: change columns of a row, and yield the faults. Then restore the row."""
        [key] = table.primary_key
        self.execute(update(table).where(key == row[key.name]).values(values))
        yield self.faults()
        self.execute(update(table).where(key == values.get(key.name, row[key.name])).values(row))


ENUMS = (
    ("server", "identity"),
    ("person", "agent"),
    ("security", "malicious"),
    ("yank", "purge"),
    ("completed", "failed"),
)
OTHERS = {word: other for pair in ENUMS for word, other in (pair, pair[::-1])}


def flipped(value: Any) -> Any:
    """Return another value, of texts and bytes one that differs in one byte."""
    match value:
        case str() if value in OTHERS:
            return OTHERS[value]
        case str():
            at = len(value) // 2
            return value[:at] + ("B" if value[at : at + 1] == "A" else "A") + value[at + 1 :]
        case bytes():
            return bytes([value[0] ^ 1]) + value[1:] if value else b"\0" * 32
        case datetime():
            return value + timedelta(microseconds=1)
        case bool():
            return not value
    return value + 1000


def fill(rpc: Rpc, name: str) -> None:
    """Publish, sign, run and withdraw, and wait until all rows are sealed."""
    created = publisher(rpc)(name)
    key = SigningKey.new()
    register(rpc, key)
    about = {"name": name, "version": "1.0.0"}
    own = rpc("add_attestation", **about, envelope=signed(key, "author", created, author="local"))
    rpc("end_attestation", id=own["id"], reason="It names another author.")
    run_ids = [rpc("execute_skill", name=name, args={"a": number})["run_id"] for number in range(3)]
    publisher(rpc)(name, "1.1.0")
    rpc("yank_version", name=name, version="1.1.0", reason="leaks", severity="security")
    # The seal of the last statement covers all changes before it. A yank alone waits for the next seal.
    rpc("add_attestation", **about, envelope=signed(key, "author", created, author="local", at="later"))
    for run_id in run_ids:
        statement_of(rpc, run_id)
    eventually(lambda: all(row["sealed"] for row in rpc("list_attestations", **about)["attestations"]))


@pytest.fixture(scope="module")
def sealed(
    database_kind: str, migrated_postgres_database: Callable[[], str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Sealed]:
    url = migrated_postgres_database() if database_kind == "postgres" else ""
    server = Server(tmp_path_factory.mktemp("sealed") / "home", env={"SKILLERY_DATABASE": url, **OFTEN})
    fill(server.rpc, "team.sealed")
    assert server.stop() == 0
    database = Database(url or f"sqlite:///{server.home / 'skillery.db'}")
    owner = database.engine if url else create_engine(f"sqlite:///{server.home / 'skillery.db'}")
    if not url:
        with owner.begin() as connection:
            for trigger in connection.scalars(text("SELECT name FROM sqlite_master WHERE type = 'trigger'")).all():
                connection.execute(text(f"DROP TRIGGER {trigger}"))
    storage: Storage = skillery_storage().open(DirectorySettings(), Place(server.home))
    yield Sealed(database, owner, storage, server.home, url)
    owner.dispose()
    database.close()


@pytest.mark.full
def test_check_deep_names_each_changed_row(sealed: Sealed) -> None:
    assert sealed.faults() == []
    missed = []
    for table in TABLES:
        [key] = table.primary_key
        with sealed.owner.connect() as connection:
            # The check compares rows in Python, so a few show that those of Postgres have the same values.
            most = 9 if sealed.owner.dialect.name == "sqlite" else 2
            newest = connection.execute(select(table).order_by(key.desc()).limit(most)).mappings()
            rows = [dict(row) for row in newest]
        for row in rows:
            free = FREE.get(table.name, set())
            if table is attestations and row["predicate"] not in ("publication", "revocation"):
                # The envelope names the author, and not that of the other statements of the registry.
                free = free | {"made_by_kind"} | ({"made_by"} if row["predicate"] not in STATED_BY else set())
            for column in (key for key, value in row.items() if value is not None and key not in free):
                with sealed.changed(table, row, **{column: flipped(row[column])}) as faults:
                    if not faults or not all("restore the row from a backup" in fault for fault in faults):
                        missed.append((table.name, row.get("predicate", row[key.name]), column, faults))
    assert missed == []
    assert sealed.faults() == []


@pytest.mark.full
def test_check_deep_notices_removed_and_returned_rows(sealed: Sealed) -> None:
    def faults_after(*statements: Executable) -> list[str]:
        for statement in statements:
            sealed.execute(statement)
        return sealed.faults()

    with sealed.owner.connect() as connection:
        rows = {table.name: connection.execute(select(table)).mappings().all() for table in TABLES}
    for table in (attestations, seals, signing_keys, key_statements, advisories):
        row, [key] = dict(rows[table.name][0]), table.primary_key
        of_row = key == row[key.name]
        assert faults_after(delete(table).where(of_row)), table.name
        assert faults_after(insert(table).values(row)) == [], table.name
    # A program that withdraws a statement leaves an entry in the audit trail.
    ended = next(dict(row) for row in rows["attestations"] if row["ended_at"] is not None)
    with sealed.changed(attestations, ended, ended_at=None) as faults:
        assert faults == [
            f"the statement {ended['attestation']} was withdrawn, and counts again: restore the row from a backup"
        ]
    last = dict(rows["attestations"][-1])
    with sealed.changed(attestations, last, envelope=flipped(last["envelope"])):
        home, url = ("--home", str(sealed.home)), sealed.url
        checked = skillery("check", "--deep", *home, SKILLERY_DATABASE=url)
        assert checked.code == 1
        assert f"the statement {last['attestation']}" in checked.out
        assert skillery("check", *home, SKILLERY_DATABASE=url).code == 0
