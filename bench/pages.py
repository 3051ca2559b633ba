"""list_skills, describe_skill and read_skill_file at 10 k, 100 k and 1 M versions, compared with OFFSET, on both
databases."""

from __future__ import annotations

import asyncio
import hashlib
import json
import sqlite3
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg
from sqlalchemy import Connection, text

from bench.report import Report, format_ms, median, milliseconds_of
from skillery.builtin.directory_storage import DirectoryStorage
from skillery.builtin.open_authenticator import LOCAL
from skillery.database import Database, migrate
from skillery.formats.semver import Version
from skillery.formats.version_spec import Latest, parse_version_spec
from skillery.registry.cursors import make_cursor
from skillery.skills.descriptions import read_description
from skillery.skills.files import read_inline_file
from skillery.skills.listings import read_skills
from tests.support.postgres import running_postgres

VERSIONS_OF_A_SKILL = 10
CALLS = 300
KEY = b"k" * 32
NOW = datetime(2026, 1, 1, tzinfo=UTC)
SKILL_MD = b"---\nname: Bench\n---\n\n# Bench\n\n" + b"Some words about the skill.\n" * 40
SHA256 = hashlib.sha256(SKILL_MD).hexdigest()


def measure(report: Report, folder: Path, small: bool) -> None:
    sizes = [10_000, 100_000] if small else [10_000, 100_000, 1_000_000]
    report.heading("A registry of up to a million versions")
    report.text(
        f"Medians of {CALLS} calls in milliseconds, in process, with {VERSIONS_OF_A_SKILL} versions of each skill. A "
        "page has 50 skills. First, middle and last are positions in the list. OFFSET is the same page by `LIMIT … "
        "OFFSET …`."
    )
    rows: list[list[object]] = []
    for size in sizes:
        rows.append(["SQLite", f"{size:,}", *_figures(Database(f"sqlite:///{folder / f'{size}.db'}"), folder, size)])
    with running_postgres() as url:
        for size in sizes:
            with psycopg.connect(url, autocommit=True) as connection:
                connection.execute(f"CREATE DATABASE bench_{size}".encode())
            database = Database(url.replace("/postgres?", f"/bench_{size}?"))
            rows.append(["Postgres", f"{size:,}", *_figures(database, folder, size)])
    head = ["database", "versions", "list first", "middle", "last", "OFFSET first", "middle", "last"]
    report.table([*head, "describe latest", "describe ^1.2", "read file"], rows)
    ratios = [f"{rows[at][0]} {float(str(rows[at][7])) / float(str(rows[at][4])):.0f} times" for at in _largest(rows)]
    report.text(
        "For the largest registry, the last page by cursor is faster than the last page by OFFSET: "
        f"{', '.join(ratios)}."
    )


def _largest(rows: list[list[object]]) -> list[int]:
    half = len(rows) // 2
    return [half - 1, len(rows) - 1]


def _figures(database: Database, folder: Path, versions: int) -> list[str]:
    migrate.upgrade(database)
    skills = versions // VERSIONS_OF_A_SKILL
    _fill(database, skills)
    storage = DirectoryStorage(folder / "contents")
    middle = _name(skills // 2)

    def timed(work: Callable[[Connection], object]) -> str:
        return format_ms(median(asyncio.run(milliseconds_of(lambda: database.read(work), CALLS))))

    places = [0, skills // 2, skills - 51]
    figures = [
        *(timed(_keyset(place)) for place in places),
        *(timed(_offset(place)) for place in places),
        timed(lambda one: read_description(one, LOCAL, storage, name=middle, spec=Latest(), detail="summary")),
        timed(
            lambda one: read_description(
                one, LOCAL, storage, name=middle, spec=parse_version_spec("^1.2"), detail="summary"
            )
        ),
        timed(lambda one: read_inline_file(one, LOCAL, name=middle, spec=Latest(), path="SKILL.md")),
    ]
    database.close()
    return figures


def _keyset(place: int) -> Callable[[Connection], object]:
    after = (_namespace(place - 1), _name(place - 1)) if place else None
    cursor = make_cursor(KEY, ("list_skills", "", "names"), after) if after else ""
    return lambda connection: read_skills(connection, LOCAL, KEY, namespace="", detail="names", limit=50, cursor=cursor)


def _offset(place: int) -> Callable[[Connection], object]:
    statement = text(
        "SELECT s.namespace, s.name, v.names_json FROM skills s JOIN skill_versions v ON v.id = s.latest_version_id "
        "WHERE s.latest_version_id IS NOT NULL ORDER BY s.namespace, s.name LIMIT 51 OFFSET :place"
    )
    return lambda connection: connection.execute(statement, {"place": place}).fetchall()


# -- filling ------------------------------------------------------------------------------------------------------


def _namespace(number: int) -> str:
    return f"team{number // 100:05}"


def _name(number: int) -> str:
    return f"{_namespace(number)}.skill{number:07}"


def _skills(count: int) -> Iterator[tuple[Any, ...]]:
    for number in range(count):
        yield number + 1, _name(number), _namespace(number), (number + 1) * VERSIONS_OF_A_SKILL, NOW


def _versions(count: int) -> Iterator[tuple[Any, ...]]:
    texts = [f"1.{minor}.0" for minor in range(VERSIONS_OF_A_SKILL)]
    keys = [Version.parse(one).precedence for one in texts]
    for number in range(count):
        name, namespace = _name(number), _namespace(number)
        for place, version in enumerate(texts):
            names = {"name": name, "version": version, "description": "What it does.", "namespace": namespace}
            listed = json.dumps(names | {"kind": "action"})
            manifest = json.dumps(names | {"runtime": {"language": "python", "entrypoint": "code/main.py"}})
            version_id = number * VERSIONS_OF_A_SKILL + place + 1
            yield (
                version_id, number + 1, version, keys[place], True, "published", "action", namespace,
                f"sha256:{version_id:064x}", len(SKILL_MD), manifest, '{"name":"Bench"}', "[]", listed, listed,
                "bench", NOW,
            )  # fmt: skip


def _files(count: int) -> Iterator[tuple[Any, ...]]:
    for version_id in range(1, count * VERSIONS_OF_A_SKILL + 1):
        yield version_id, "SKILL.md", SHA256, len(SKILL_MD), False


TABLES: dict[str, tuple[str, Callable[[int], Iterator[tuple[Any, ...]]]]] = {
    "skills": ("id, name, namespace, latest_version_id, created_at", _skills),
    "skill_versions": (
        "id, skill_id, version, precedence, is_release, status, kind, namespace, digest, size_bytes, manifest_json, "
        "frontmatter_json, warnings_json, names_json, summary_json, publisher, created_at",
        _versions,
    ),
    "objects": ("sha256, size_bytes, data", lambda _: iter([(SHA256, len(SKILL_MD), SKILL_MD)])),
    "skill_files": ("version_id, path, sha256, size_bytes, executable", _files),
}


def _fill(database: Database, skills: int) -> None:
    url = database.url.set(drivername="postgresql").render_as_string(hide_password=False)
    if database.is_sqlite:
        with sqlite3.connect(str(database.url.database)) as lite:
            lite.execute("PRAGMA synchronous = OFF")
            for table, (columns, rows) in TABLES.items():
                marks = ", ".join("?" * len(columns.split(",")))
                values = ([str(cell) if isinstance(cell, datetime) else cell for cell in row] for row in rows(skills))
                lite.executemany(f"INSERT INTO {table} ({columns}) VALUES ({marks})", values)
        lite.execute("ANALYZE")
        lite.close()
        return
    with psycopg.connect(url) as connection:
        for table, (columns, rows) in TABLES.items():
            with connection.cursor().copy(f"COPY {table} ({columns}) FROM STDIN".encode()) as copy:
                for row in rows(skills):
                    copy.write_row(row)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("VACUUM ANALYZE")
