"""The rows that are derived from versions: after an upgrade, they are those of a new publication."""

from __future__ import annotations

import ast
import itertools
import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from sqlalchemy import Connection, delete, insert, select

from skillery.app.bundled import bundled_folders
from skillery.backends import Identity
from skillery.database import Database, migrate
from skillery.database.migrate import REBUILD
from skillery.database.tables import (
    catalogue,
    catalogue_hosts,
    catalogue_tags,
    index_names,
    registry,
    search_postings,
    search_spellings,
    search_words,
    skill_versions,
    skills,
    tools,
)
from skillery.formats.bundle import Bundle, BundleFile
from skillery.identity.quotas import Quotas
from skillery.publishing.folders import read_skill_folder
from skillery.versions.new_versions import insert_version, rebuild_derived_rows
from tests.conftest import Server
from tests.support.bundles import make_bundle
from tests.support.forms import rounds
from tests.support.templates import sqlite_template

ME = Identity("me", scopes=frozenset({"admin"}))
REBUILT = (catalogue_hosts, catalogue_tags, catalogue, search_postings, search_words, search_spellings, tools)
DERIVED = (*REBUILT, index_names)
BUNDLED = [read_skill_folder(folder) for folder in bundled_folders()]
VERSIONS = Path(__file__).parents[2] / "migrations/versions"


def publish(database: Database, bundle: Bundle, status: str = "published") -> None:
    inline = {file.sha256: file.content for file in bundle.files if len(file.content) <= 64 * 1024}
    add = partial(insert_version, bundle=bundle, identity=ME, inline=inline, quotas=Quotas(), landing=lambda _: status)
    database.write_now(add)


def derived(database: Database) -> dict[str, list[Any]]:
    """Return the derived rows of all versions by table, and the derived columns of skills and versions."""

    def read(connection: Connection) -> dict[str, list[Any]]:
        rows: dict[str, list[Any]] = {
            table.name: sorted(map(str, connection.execute(select(table)))) for table in DERIVED
        }
        of_skills = select(skills.c.id, skills.c.latest_version_id, skills.c.namespace).order_by(skills.c.id)
        of_versions = select(skill_versions.c.id, skill_versions.c.summary_json).order_by(skill_versions.c.id)
        rows["skills"] = list(connection.execute(of_skills))
        rows["versions"] = list(connection.execute(of_versions))
        return rows

    return database.read_now(read)


def rebuild_all(database: Database) -> None:
    """Remove the derived rows, and compute them as after an upgrade."""

    def remove(connection: Connection) -> None:
        for table in REBUILT:
            connection.execute(delete(table))
        connection.execute(insert(registry).values(key=REBUILD, value=b""))

    database.write_now(remove)
    assert derived(database)["catalogue"] == []
    rebuild_derived_rows(database)


# -- the two paths to derived rows -------------------------------------------------------------------------------------


def instruction(name: str, version: str, texts: Sequence[str], hosts: Sequence[str], files: Sequence[str]) -> Bundle:
    """Return a skill. `texts` are its description, its body and its tags."""
    description, body, *tags = texts
    contents = {
        "run.sh": b"echo\n",
        "main.py": b"def main(args):\n    return {}\n",
        "tools.json": json.dumps([{"name": "count", "description": description, "parameters": {}}]).encode(),
        "note.txt": body.encode(),
    }
    manifest = {
        "name": name,
        "version": version,
        "description": description,
        "kind": "instruction",
        "tags": tags,
        "permissions": {"network": list(hosts), "secrets": ["KEY"] * len(files[:1])},
    }
    return make_bundle(manifest, f"# {body}\n", [BundleFile(path, contents[path]) for path in files])


WORDS = st.lists(st.sampled_from(["Reads", "tables", "naïve", "Straße", "e-mail", "x" * 60, "データ"]), min_size=1)
TEXTS = st.tuples(WORDS.map(" ".join), WORDS.map(" ".join) | st.just("word " * 14_000))
TAGS = st.lists(st.sampled_from(["red", "Green", "x" * 64, "été"]), unique_by=str.casefold, max_size=3)
HOSTS = st.lists(st.sampled_from(["https://a.example", "https://*.b.example", "https://c.example:8443"]), unique=True)
FILES = st.lists(st.sampled_from(["run.sh", "main.py", "tools.json", "note.txt"]), unique=True)
STATUSES = st.lists(st.sampled_from(["published", "published", "draft", "in_review"]), min_size=1, max_size=3)
SKILLS = st.tuples(TEXTS, TAGS, HOSTS, FILES, STATUSES)
AT_ONCE = 20
"""Skills of each database. A rebuild takes as long as the publication of all skills in the database."""
_numbers = itertools.count()


@pytest.fixture
def new_database(
    database_kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[Callable[[], Database]]:
    """Yield a function that returns a new migrated database."""
    with ExitStack() as stack:

        def make() -> Database:
            path = tmp_path / f"{next(_numbers)}.db"
            if database_kind == "sqlite":
                shutil.copyfile(sqlite_template(), path)
            postgres = database_kind == "postgres" and request.getfixturevalue("migrated_postgres_database")()
            database = Database(postgres or f"sqlite:///{path}")
            stack.callback(database.close)
            return database

        yield make


@pytest.mark.full
@settings(
    max_examples=rounds(1, long=10),
    deadline=None,
    # A smaller example of so many skills proves nothing.
    phases=[Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.large_base_example, HealthCheck.too_slow],
)
@given(generated=st.lists(SKILLS, min_size=AT_ONCE, max_size=AT_ONCE))
def test_rebuilt_rows_of_generated_skills_are_those_of_publication(
    new_database: Callable[[], Database],
    generated: list[tuple[tuple[str, str], list[str], list[str], list[str], list[str]]],
) -> None:
    database = new_database()
    for texts, tags, hosts, files, statuses in generated:
        name = f"gen.s{next(_numbers)}"
        # The first version of a skill has another path to its derived rows than the following ones.
        for number, status in enumerate(statuses, 1):
            publish(database, instruction(name, f"{number}.0.0", (*texts, *tags), hosts, files), status)
    published = derived(database)

    rebuild_all(database)

    assert derived(database) == published


@pytest.mark.full(after=1)
def test_rebuilt_rows_of_bundled_skills_are_those_of_publication(database: Database) -> None:
    for skill in BUNDLED:
        publish(database, make_bundle(skill.manifest, skill.skill_md, skill.files))
    published = derived(database)

    rebuild_all(database)

    assert derived(database) == published
    assert len(published["catalogue"]) == len({skill.manifest["name"] for skill in BUNDLED})


# -- upgrades ----------------------------------------------------------------------------------------------------------


def test_migrations_contain_their_own_sql() -> None:
    for path in VERSIONS.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            modules += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not [module for module in modules if module.split(".")[0] == "skillery"], path.name


def source_of(revision: str) -> str:
    """Return the source of a migration."""
    [path] = VERSIONS.glob(f"{revision}_*.py")
    return path.read_text("utf-8")


@pytest.mark.full
def test_an_upgrade_from_each_revision_derives_the_rows_of_publication(database: Database) -> None:
    for skill in BUNDLED:
        publish(database, make_bundle(skill.manifest, skill.skill_md, skill.files))
    publish(database, instruction("a.tools", "1.0.0", ("Counts.", "Text", "T"), ["https://a.example"], ["tools.json"]))
    published = derived(database)

    # An upgrade from before the last migration with REBUILD always rebuilds, so a few of these revisions are enough.
    # From each later one, an upgrade rebuilds only if one of the remaining migrations asks for it.
    revisions = migrate.revisions()[:-1]
    last = max(number for number, revision in enumerate(revisions) if "REBUILD" in source_of(revision))
    starts = {*revisions[::8], *(revisions[last - 1 :] if database.is_sqlite else ())}
    for revision in sorted(starts, reverse=True):
        migrate.downgrade(database, revision)
        migrate.upgrade(database)
        rebuild_derived_rows(database)
        assert derived(database) == published, revision


@pytest.mark.full
@pytest.mark.postgres
def test_a_server_upgrades_a_database_of_the_first_revision(
    database: Database, start_server: Callable[..., Server]
) -> None:
    url = database.url.render_as_string(hide_password=False)
    database.close()
    server = start_server(env={"SKILLERY_DATABASE": url})
    before = answers(server)
    server.stop()
    migrate.downgrade(Database(url), migrate.revisions()[0])

    server = start_server(env={"SKILLERY_DATABASE": url})

    assert answers(server) == before
    assert len(before["list"]["skills"]) == before["list"]["total"] > 3


def answers(server: Server) -> dict[str, Any]:
    """Return the answers of a server about its bundled skills, without their check results, which a downgrade drops."""
    listed = server.rpc("list_skills", counts=True, catalogue=True, detail="summary", sort="newest")
    names = [skill["name"] for skill in listed["skills"]]
    described = {name: server.rpc("describe_skill", name=name, detail="full")["skill"] for name in names}
    checks = ("verified", "examples", "findings", "permissions_diff")
    for skill in [*described.values(), *(skill["catalogue"] for skill in listed["skills"])]:
        for member in checks:
            skill.pop(member, None)
    del listed["facets"]["verified"]
    searched = {query: server.rpc("search_skills", query=query) for query in ("csv", "redact", "schema contact")}
    return {"list": listed, "described": described, "searched": searched}
