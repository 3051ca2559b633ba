"""Migrations on both databases: upgrade, downgrade, and equality with the tables. Errors of a start with an unusable
database.
"""

from __future__ import annotations

import re
import sqlite3
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, exc, inspect, select, text

from skillery.backends import Identity
from skillery.database import Database, migrate, migration_plan, parse_database_url, select_row
from skillery.database.tables import index_names, metadata, skill_versions, skills
from skillery.errors import StartupError
from skillery.identity.quotas import Quotas
from skillery.skills.insight import GetActivity, read_activity
from skillery.skills.reach import ListReach, read_reach
from skillery.versions.new_versions import insert_version
from skillery.versions.versions import count_waiting_reviews
from tests.support.bundles import make_bundle
from tests.support.processes import eventually

READER = Identity("ann", "person", frozenset({"read", "review", "publish"}), ("team.*", "other.one"))


@pytest.fixture
def new_url(database_kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> str:
    if database_kind == "sqlite":
        return f"sqlite:///{tmp_path / 'x.db'}"
    url: str = request.getfixturevalue("new_postgres_database")()
    return url


def tables_of(database: Database) -> set[str]:
    names = set(inspect(database.engine).get_table_names()) - {"alembic_version"}
    return {name for name in names if migrate.is_in_tables(name)}


@pytest.mark.smoke
def test_migrations_create_exactly_the_declared_tables(new_url: str) -> None:
    database = Database(new_url)
    migrate.upgrade(database)

    assert migrate.differences(database) == []
    assert tables_of(database) == set(metadata.tables)
    assert migrate.current(database) == migrate.head()
    database.close()


def test_head_and_revisions_match_alembic() -> None:
    script = ScriptDirectory.from_config(migrate.alembic_config())

    assert migrate.head() == script.get_current_head()
    assert migrate.revisions() == [one.revision for one in reversed(list(script.walk_revisions()))]


@pytest.mark.full
def test_down_and_up_again(new_url: str) -> None:
    database = Database(new_url)
    migrate.upgrade(database)
    migrate.downgrade(database, "base")

    assert tables_of(database) == set()
    migrate.upgrade(database)
    assert migrate.differences(database) == []
    database.close()


class _SkillRow(NamedTuple):
    name: str
    version_id: int
    digest: str
    note: str = ""


def test_select_row_takes_each_field_from_the_first_table() -> None:
    statement = select_row(_SkillRow, skills, skill_versions, version_id=skill_versions.c.id)

    assert str(statement).partition(" \n")[0] == (
        "SELECT skills.name AS name, skill_versions.id AS version_id, skill_versions.digest AS digest"
    )


def test_select_row_refuses_fields_without_a_column() -> None:
    with pytest.raises(TypeError, match="no table has the field version_id of _SkillRow"):
        select_row(_SkillRow, skills, skill_versions)
    with pytest.raises(TypeError, match="_SkillRow has no field labels"):
        select_row(_SkillRow, skills, version_id=skill_versions.c.id, labels=skills.c.name)


def test_an_upgrade_twice_changes_nothing(new_url: str) -> None:
    database = Database(new_url)
    migrate.upgrade(database)
    migrate.upgrade(database)

    assert migrate.differences(database) == []
    database.close()


NOTE = "INSERT INTO registry (key, value) VALUES ('note', 'x')"


async def test_a_write_that_fails_leaves_nothing_and_the_next_write_works(new_url: str) -> None:
    database = Database(new_url)
    migrate.upgrade(database)

    def half(connection: Connection) -> None:
        connection.execute(text(NOTE))
        raise LookupError

    def count(connection: Connection) -> int:
        return int(connection.scalar(text("SELECT count(*) FROM registry WHERE key = 'note'")) or 0)

    with pytest.raises(LookupError):
        await database.write(half)
    assert await database.read(count) == 0
    await database.write_statement(lambda connection: connection.execute(text(NOTE)))
    for write in (database.write, database.write_statement):
        with pytest.raises(exc.IntegrityError):
            await write(lambda connection: connection.execute(text(NOTE)))
    assert await database.read(count) == await database.write(count) == 1
    database.close()


def test_a_newer_database_is_used_if_the_next_release_shares_it(new_url: str) -> None:
    database = Database(new_url)
    migrate.upgrade(database)

    for oldest in (None, "9998"):
        set_revision(database, "9999", oldest)
        with pytest.raises(StartupError, match=r"9999.*newer Skillery"):
            migrate.upgrade(database)
    set_revision(database, "9999", migrate.head())
    migrate.upgrade(database)
    assert migrate.current(database) == "9999"
    database.close()


def set_revision(database: Database, revision: str, oldest: str | None) -> None:
    """Change what the database says about its revision, as a newer release does."""
    with database.engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = :revision"), {"revision": revision})
        connection.execute(text("DELETE FROM registry WHERE key = :key"), {"key": migrate.OLDEST})
        if oldest is not None:
            values = {"key": migrate.OLDEST, "value": oldest.encode()}
            connection.execute(text("INSERT INTO registry (key, value) VALUES (:key, :value)"), values)


# -- Upgrades while servers of the previous release work ---------------------------------------------------------------


REMOVES = re.compile(
    r"\bDROP (TABLE|COLUMN|CONSTRAINT)|\bRENAME\b|\bSET NOT NULL|\bALTER COLUMN \w+ TYPE|^(UPDATE|DELETE)"
)
REQUIRES = re.compile(r"\bADD (CONSTRAINT|COLUMN(?!.*\bDEFAULT\b).*\bNOT NULL)|^CREATE UNIQUE INDEX")


def test_migrations_since_the_previous_release_only_expand(new_postgres_database: Callable[[], str]) -> None:
    """A contracting migration removes what the previous release no longer uses, and names it in CONTRACTS."""
    database = Database(new_postgres_database())
    steps = migration_plan.plan(database, migrate.PREVIOUS)
    database.close()

    assert [step.revision for step in steps] == [row for row in migrate.revisions() if row > migrate.PREVIOUS]
    for step in steps:
        statements = [statement.sql for statement in step.statements]
        allowed = getattr(migration_of(step.revision), "CONTRACTS", ())
        narrowing = [sql for sql in statements if REMOVES.search(sql) or REQUIRES.search(sql)]
        assert [sql for sql in narrowing if not any(name in sql for name in allowed)] == [], step.revision


def migration_of(revision: str) -> object:
    return ScriptDirectory.from_config(migrate.alembic_config()).get_revision(revision).module


@pytest.mark.full
def test_a_plan_has_statements_and_locks_and_changes_nothing(new_url: str) -> None:
    database = Database(new_url)
    migrate.upgrade(database, "0049")
    tables = {*inspect(database.engine).get_table_names()}
    steps = {step.revision: step for step in migration_plan.plan(database, "0049")}

    assert migrate.current(database) == "0049"
    assert {*inspect(database.engine).get_table_names()} == tables
    if not database.is_sqlite:
        assert migration_plan.SCRATCH not in inspect(database.engine).get_schema_names()
    script, results = steps["0050"].statements
    assert script.sql.startswith("ALTER TABLE runs ADD COLUMN script")
    assert script.locks == ({} if database.is_sqlite else {"runs": "ACCESS EXCLUSIVE"})
    assert "example_results" not in results.locks
    database.close()


def test_a_migration_waits_for_a_reader_without_stopping_others(new_postgres_database: Callable[[], str]) -> None:
    database = Database(new_postgres_database())
    migrate.upgrade(database, "0049")
    with database.engine.connect() as reader:
        reader.execute(text("SELECT count(*) FROM runs"))  # the transaction stays open
        upgrade = threading.Thread(target=migrate.upgrade, args=(database,))
        upgrade.start()
        waiting = text("SELECT 1 FROM pg_locks WHERE relation = 'runs'::regclass AND NOT granted")
        with database.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as other:
            # The migration gives way at least twice, and a reader who comes later does not wait for the first one.
            for _ in range(2):
                eventually(lambda: other.execute(waiting).first())
                eventually(lambda: not other.execute(waiting).first())
                other.execute(text("SET lock_timeout = '100s'"))
                other.execute(text("SELECT count(*) FROM runs"))
        assert migrate.current(database) == "0049"
    upgrade.join()

    assert migrate.current(database) == migrate.head()
    database.close()


def test_a_file_that_is_no_database_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    path.write_bytes(b"this is a letter, not a database" * 100)
    database = Database(f"sqlite:///{path}")

    with pytest.raises(StartupError, match=r"x\.db is damaged"):
        migrate.upgrade(database)
    database.close()
    assert path.read_bytes().startswith(b"this is a letter")


@pytest.mark.parametrize("url", ["nonsense", "mysql://x/y", "sqlite://", "sqlite:///:memory:", ""])
def test_an_unsupported_database_url_is_refused_with_a_remedy(url: str) -> None:
    with pytest.raises(StartupError, match=r"postgresql://"):
        parse_database_url(url)


def test_a_password_is_never_shown() -> None:
    with pytest.raises(StartupError) as caught:
        parse_database_url("mysql://me:geheim@host/y")

    assert "geheim" not in str(caught.value)


def count_for_plans(connection: Connection) -> None:
    """Let SQLite plan its statements for 100,000 skills."""
    connection.exec_driver_sql("ANALYZE")
    for index, count in (
        ("skills.sqlite_autoindex_skills_1", "100000 1"),
        ("skill_versions.ix_skill_versions_size", "100000 1 1"),
        ("catalogue.ix_catalogue_facets", "100000 50000 25000 16667 11112 5556 2778 2778 2778 2778 1250 50 1 1 1"),
        ("catalogue.ix_catalogue_names", "100000 334 1 1 1 1 1 1 1 1 1 1 1 1 1"),
    ):
        connection.exec_driver_sql("INSERT INTO sqlite_stat1 VALUES (?, ?, ?)", (*index.split("."), count))
    connection.exec_driver_sql("ANALYZE sqlite_schema")
    connection.commit()


@pytest.mark.parametrize("identity", [Identity("ada", "person", frozenset({"admin"})), READER], ids=["admin", "reader"])
@pytest.mark.parametrize(
    "read",
    [
        lambda connection, identity: count_waiting_reviews(connection, identity, 100),
        lambda connection, identity: read_activity(connection, identity, GetActivity(), True),
        lambda connection, identity: read_reach(connection, identity, b"key", ListReach()),
    ],
    ids=["waiting reviews", "activity", "reach"],
)
def test_no_page_reads_all_skills_or_versions(
    tmp_path: Path, read: Callable[[Connection, Identity], object], identity: Identity
) -> None:
    database = Database(f"sqlite:///{tmp_path / 'x.db'}")
    migrate.upgrade(database)
    database.read_now(count_for_plans)
    plans: list[str] = []

    def read_and_explain(connection: Connection) -> None:
        driver = connection.connection.driver_connection
        assert isinstance(driver, sqlite3.Connection)
        statements: list[str] = []
        driver.set_trace_callback(statements.append)
        read(connection, identity)
        driver.set_trace_callback(None)
        plans.extend(
            " ".join(row[3] for row in driver.execute(f"EXPLAIN QUERY PLAN {statement}"))
            for statement in statements
            if statement.startswith("SELECT")
        )

    database.read_now(read_and_explain)
    database.close()

    assert plans
    assert [
        plan for plan in plans if re.search(r"SCAN (skills|skill_versions|catalogue)\b|FILTER ON skill_v", plan)
    ] == []
    assert [plan for plan in plans if plan.startswith("SEARCH catalogue") and "FOR ORDER BY" in plan] == []


def test_the_listing_and_resolving_use_their_indexes(tmp_path: Path) -> None:
    database = Database(f"sqlite:///{tmp_path / 'x.db'}")
    migrate.upgrade(database)
    database.close()
    connection = sqlite3.connect(tmp_path / "x.db")

    def plan(sql: str) -> str:
        return " ".join(row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {sql}"))

    listing = plan(
        "SELECT name FROM skills WHERE latest_version_id IS NOT NULL AND (namespace, name) > ('a', 'b') "
        "ORDER BY namespace, name LIMIT 51"
    )
    resolving = plan(
        "SELECT id FROM skill_versions WHERE skill_id = 1 AND status IN ('published', 'deprecated') "
        "AND is_release IS 1 AND precedence >= x'01' ORDER BY precedence DESC LIMIT 1"
    )

    assert "ix_skills_listing" in listing
    assert "SORT" not in listing.upper().replace("SORTER", "")
    assert "ix_skill_versions_resolve" in resolving
    assert "TEMP B-TREE" not in resolving
    connection.close()


def test_two_writers_on_postgres_take_turns_to_migrate(new_postgres_database: Callable[[], str]) -> None:
    url = new_postgres_database()
    databases = [Database(url) for _ in range(4)]
    failures: list[Exception] = []

    def work(database: Database) -> None:
        try:
            migrate.upgrade(database)
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(database,)) for database in databases]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert failures == []
    assert migrate.differences(databases[0]) == []
    for database in databases:
        database.close()


@pytest.mark.full
def test_the_migration_assigns_index_names_in_publication_order(new_url: str) -> None:
    database = Database(new_url)
    migrate.upgrade(database)
    me = Identity("me", scopes=frozenset({"admin"}))

    def add(connection: Connection, name: str, status: str) -> None:
        made = {"name": name, "version": "1.0.0", "description": "x", "kind": "instruction"}
        bundle = make_bundle(made, "# x\n", [])
        inline = {one.sha256: one.content for one in bundle.files}
        insert_version(connection, bundle, me, inline, quotas=Quotas(), landing=lambda _: status)

    long = "y." + "z" * 80
    for name, status in (("x.b", "draft"), ("x_b", "published"), ("x-b", "published"), (long, "published")):
        database.write_now(partial(add, name=name, status=status))
    names = select(index_names.c.index_name, skills.c.name).join(skills, skills.c.id == index_names.c.skill_id)
    before = database.read_now(lambda connection: connection.execute(names.order_by(index_names.c.id)).all())
    script = ScriptDirectory.from_config(migrate.alembic_config())
    migrate.downgrade(database, str(script.get_revision("0014").down_revision))
    migrate.upgrade(database)

    after = database.read_now(lambda connection: connection.execute(names.order_by(index_names.c.id)).all())
    assert after == before
    assert [row.name for row in after] == ["x_b", "x-b", long]
    assert [len(row.index_name) for row in after] == [3, 3, 64]
    database.close()


@pytest.mark.full(after=1)
def test_the_migration_keeps_runs_and_reads_by_day(new_url: str) -> None:
    database = Database(new_url)
    migrate.upgrade(database)
    migrate.downgrade(database, "0044")

    def count(connection: Connection) -> None:
        connection.execute(text("INSERT INTO usage_days VALUES (7, '2026-11-01', 5, 3, 2)"))
        for client, loads in (("agent", 4), ("other", 1)):
            values = {"client": client, "loads": loads}
            connection.execute(text("INSERT INTO read_days VALUES (7, '2026-11-01', :client, :loads, 6)"), values)

    database.write_now(count)
    migrate.upgrade(database)

    columns = "client, runs, completed, failed, loads, reads"
    kept = text(f"SELECT {columns} FROM use_days WHERE version_id = 0 AND caller = '' ORDER BY client")
    rows = database.read_now(lambda connection: connection.execute(kept).all())
    assert [tuple(row) for row in rows] == [("", 5, 3, 2, 0, 0), ("agent", 0, 0, 0, 4, 6), ("other", 0, 0, 0, 1, 6)]
    migrate.downgrade(database, "0044")
    former = text("SELECT runs, completed, failed FROM usage_days")
    assert database.read_now(lambda connection: connection.execute(former).all()) == [(5, 3, 2)]
    database.close()
