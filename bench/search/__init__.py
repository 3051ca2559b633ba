"""search_skills: the quality of the results, and the speed at 10 k and 100 k skills, on both databases."""

from __future__ import annotations

import random
import sqlite3
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from itertools import accumulate, islice
from pathlib import Path
from string import ascii_lowercase
from typing import Any

import psycopg

from bench.pages import KEY, NOW
from bench.report import Report, format_ms, median, milliseconds, percentile
from bench.search import quality
from skillery.backends import Identity
from skillery.builtin.open_authenticator import LOCAL
from skillery.database import Database, migrate
from skillery.formats.search_fields import stored_pieces
from skillery.formats.semver import Version
from skillery.skills.search import find_skills
from skillery.skills.search_index import indexed
from tests.support.postgres import running_postgres

CALLS = 30
BATCH = 5_000
WORDS_OF_A_TEXT = 300
VOCABULARY = 20_000
_choose = random.Random(1)
# Words by their rank: the first is in nearly every text, the last in few.
WORDS = ["".join(_choose.choices(ascii_lowercase, k=_choose.randint(4, 9))) for _ in range(VOCABULARY)]
LONG = [word for word in WORDS if len(word) >= 8]
QUERIES = {
    "a rare word": WORDS[15_000],
    "two words": f"{WORDS[30]} {WORDS[300]}",
    "three words, the last unfinished": f"{WORDS[10]} {WORDS[60]} {WORDS[200][:3]}",
    "a word in some skills": WORDS[60],
    "a word in nearly all skills": WORDS[0],
    "four words in nearly all skills": " ".join(WORDS[:4]),
    "eight words": " ".join(WORDS[rank] for rank in (2, 9, 40, 150, 600, 2_000, 7_000, 15_000)),
    "two typos": " ".join(word[:2] + word[3] + word[2] + word[4:] for word in (LONG[20], LONG[400])),
}
READER = Identity("reader", "person", frozenset({"read"}), ("team00001.*",))


def measure(report: Report, folder: Path, small: bool) -> None:
    quality.measure(report, folder)
    sizes = [10_000] if small else [10_000, 100_000]
    report.heading("Search")
    report.text(
        f"Medians of {CALLS} calls in milliseconds (in brackets the 95th percentile), in process. Each SKILL.md has "
        f"{WORDS_OF_A_TEXT} words of a vocabulary of {VOCABULARY:,}, in which the frequency of a word falls with its "
        "rank. A page has 20 skills. The last column is the first query by an identity that may not see all skills."
    )
    rows: list[list[object]] = []
    for size in sizes:
        rows.append(["SQLite", f"{size:,}", *_figures(Database(f"sqlite:///{folder / f'{size}.db'}"), size)])
    with running_postgres() as url:
        for size in sizes:
            with psycopg.connect(url, autocommit=True) as connection:
                connection.execute(f"CREATE DATABASE search_{size}".encode())
            rows.append(
                ["Postgres", f"{size:,}", *_figures(Database(url.replace("/postgres?", f"/search_{size}?")), size)]
            )
    report.table(["database", "skills", *QUERIES, "restricted view"], rows)


def _figures(database: Database, skills: int) -> list[str]:
    migrate.upgrade(database)
    started = time.perf_counter()
    _fill(database, skills)
    print(f"{database.engine.dialect.name} {skills}: filled in {time.perf_counter() - started:.0f} s", flush=True)

    def timed(query: str, identity: Identity) -> str:
        asked: dict[str, Any] = {"query": query, "kind": "", "tags": (), "namespace": "", "limit": 20, "cursor": ""}
        taken = milliseconds(
            lambda: database.read_now(lambda connection: find_skills(connection, identity, KEY, **asked)), CALLS
        )
        return f"{format_ms(median(taken))} ({format_ms(percentile(taken, 95))})"

    figures = [*(timed(query, LOCAL) for query in QUERIES.values()), timed(next(iter(QUERIES.values())), READER)]
    database.close()
    return figures


# -- filling ------------------------------------------------------------------------------------------------------


def _rows(skills: int) -> Iterator[dict[str, list[tuple[Any, ...]]]]:
    # Word frequencies follow Zipf's law.
    summed = list(accumulate(1 / rank for rank in range(1, VOCABULARY + 1)))
    key = Version.parse("1.0.0").precedence
    spelt: set[str] = set()
    for number in range(1, skills + 1):
        words = _choose.choices(WORDS, cum_weights=summed, k=WORDS_OF_A_TEXT)
        name, namespace = f"team{number // 100:05}.skill{number}", f"team{number // 100:05}"
        summary = (
            f'{{"name":"{name}","version":"1.0.0","description":"{" ".join(words[:12])}","namespace":"{namespace}",'
            f'"kind":"action","tags":["{words[12]}","{words[13]}"],"inputs":{{}},"tools":[]}}'
        )
        body = " ".join(words)
        sha256 = f"{number:064x}"
        found = indexed(name, " ".join(words[:12]), words[12:14], body, ())
        yield {
            "skills": [(number, name, namespace, number, NOW, "public")],
            "skill_versions": [(
                number, number, "1.0.0", key, True, "published", "action", namespace, "", 0, "{}", "{}", "[]", "{}",
                summary, "bench", NOW,
            )],
            "objects": [(sha256, len(body), body.encode())],
            "skill_files": [(number, "SKILL.md", sha256, len(body), False)],
            "search_words": [(number, number, found.copy_key, found.words)],
            "search_postings": [(number, word, loss, name, "public") for word, loss in found.losses.items()],
            "search_spellings": [
                (piece, word, stem)
                for word, stem in found.spellings.items()
                if word not in spelt
                for piece in stored_pieces(word)
            ],
        }  # fmt: skip
        spelt |= found.spellings.keys()


COLUMNS = {
    "skills": "id, name, namespace, latest_version_id, created_at, visibility",
    "skill_versions": "id, skill_id, version, precedence, is_release, status, kind, namespace, digest, size_bytes, "
    "manifest_json, frontmatter_json, warnings_json, names_json, summary_json, publisher, created_at",
    "objects": "sha256, size_bytes, data",
    "skill_files": "version_id, path, sha256, size_bytes, executable",
    "search_words": "skill_id, version_id, copy_key, words",
    "search_postings": "skill_id, word, loss, name, visibility",
    "search_spellings": "piece, word, stem",
}


def _fill(database: Database, skills: int) -> None:
    add = adder(database)
    rows = _rows(skills)
    while batch := list(islice(rows, BATCH)):
        for table, columns in COLUMNS.items():
            add(table, columns, [row for one in batch for row in one[table]])
    add("", "", [])


def adder(database: Database) -> Callable[[str, str, list[tuple[Any, ...]]], None]:
    """Return `add(table, columns, rows)`, which adds rows fast. `add("", "", [])` ends the filling."""
    return _sqlite(database) if database.is_sqlite else _postgres(database)


def _sqlite(database: Database) -> Callable[[str, str, list[tuple[Any, ...]]], None]:
    connection = sqlite3.connect(str(database.url.database), isolation_level=None)
    connection.execute("PRAGMA synchronous = OFF")

    def add(table: str, columns: str, rows: list[tuple[Any, ...]]) -> None:
        if not table:
            connection.execute("ANALYZE")
            connection.close()
            return
        marks = ", ".join("?" * len(columns.split(",")))
        connection.execute("BEGIN")
        plain = ([_stored(cell) for cell in row] for row in rows)
        connection.executemany(f"INSERT INTO {table} ({columns}) VALUES ({marks})", plain)
        connection.execute("COMMIT")

    return add


def _stored(cell: Any) -> Any:
    """Return a time as SQLAlchemy stores it."""
    return cell.replace(tzinfo=None).isoformat(" ", "microseconds") if isinstance(cell, datetime) else cell


def _postgres(database: Database) -> Callable[[str, str, list[tuple[Any, ...]]], None]:
    url = database.url.set(drivername="postgresql").render_as_string(hide_password=False)
    connection = psycopg.connect(url, autocommit=True)

    def add(table: str, columns: str, rows: list[tuple[Any, ...]]) -> None:
        if not table:
            connection.execute("VACUUM ANALYZE")
            connection.close()
            return
        with connection.cursor().copy(f"COPY {table} ({columns}) FROM STDIN".encode()) as copy:
            for row in rows:
                copy.write_row(row)

    return add
