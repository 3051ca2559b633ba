"""The catalogue: pages with filters and orders, and counts, at 10 k and 100 k skills, on both databases."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from itertools import accumulate, islice
from pathlib import Path
from typing import Any

import msgspec
import psycopg

from bench.pages import KEY, NOW
from bench.report import Report, format_ms, median, milliseconds, percentile
from bench.search import adder
from skillery.backends import Identity
from skillery.builtin.open_authenticator import LOCAL
from skillery.database import Database, migrate
from skillery.formats.semver import Version
from skillery.skills.catalogue_counts import CountsCache
from skillery.skills.catalogue_filters import CatalogueFilter, Facts, filter_of
from skillery.skills.catalogue_listings import list_catalogue
from tests.support.postgres import running_postgres

CALLS = 30
BATCH = 5_000
TAGS = 2_000
NAMESPACES = 300
_choose = random.Random(2)
_SUMMED = list(accumulate(1 / rank for rank in range(1, TAGS + 1)))
READER = Identity("reader", "person", frozenset({"read"}), ("team00001.*", "team00007.*"))
FILTERS = {
    "no filter": CatalogueFilter(),
    "kind and no network": filter_of("", "action", [], Facts(flags=(("network", False),))),
    "a frequent tag": filter_of("", "", ["tag1"], Facts()),
    "a rare tag": filter_of("", "", ["tag1999"], Facts()),
    "verified, one of a thousand": filter_of("", "", [], Facts(flags=(("verified", True),))),
    "a namespace": filter_of("team00001", "", [], Facts()),
    "nothing matches": filter_of("", "", [], Facts(language="javascript", status="deprecated")),
}


def measure(report: Report, folder: Path, small: bool) -> None:
    sizes = [10_000] if small else [10_000, 100_000]
    report.heading("Catalogue")
    report.text(
        f"Medians of {CALLS} calls in milliseconds (in brackets the 95th percentile), in process. A page has 20 skills "
        "with entries, newest first. The second table has the counts alone, without the memory of recent counts."
    )
    pages: list[list[object]] = []
    counts: list[list[object]] = []
    for size in sizes:
        _measure(Database(f"sqlite:///{folder / f'catalogue-{size}.db'}"), "SQLite", size, pages, counts)
    with running_postgres() as url:
        for size in sizes:
            with psycopg.connect(url, autocommit=True) as connection:
                connection.execute(f"CREATE DATABASE catalogue_{size}".encode())
            database = Database(url.replace("/postgres?", f"/catalogue_{size}?"))
            _measure(database, "Postgres", size, pages, counts)
    report.table(["database", "skills", "view", *FILTERS], pages)
    report.table(["database", "skills", "view", *FILTERS], counts)


def _measure(database: Database, name: str, size: int, pages: list[list[object]], counts: list[list[object]]) -> None:
    migrate.upgrade(database)
    started = time.perf_counter()
    fill(database, size)
    print(f"{name} {size}: filled in {time.perf_counter() - started:.0f} s", flush=True)
    for view, identity in (("all", LOCAL), ("restricted", READER)):
        page = [_timed(database, identity, asked, with_counts=False) for asked in FILTERS.values()]
        pages.append([name, f"{size:,}", view, *page])
        counted = [_timed(database, identity, asked, with_counts=True) for asked in FILTERS.values()]
        counts.append([name, f"{size:,}", view, *counted])
        print(name, view, page, counted, sep="\n", flush=True)
    database.close()


def _timed(database: Database, identity: Identity, asked: CatalogueFilter, *, with_counts: bool) -> str:
    def call() -> None:
        database.read_now(
            lambda connection: list_catalogue(
                connection, identity, KEY, filters=asked, sort="name" if with_counts else "newest", detail="names",
                limit=1 if with_counts else 20, cursor="", entries=not with_counts,
                counts=CountsCache() if with_counts else None,
            )
        )  # fmt: skip

    call()
    taken = milliseconds(call, CALLS)
    return f"{format_ms(median(taken))} ({format_ms(percentile(taken, 95))})"


# -- filling ------------------------------------------------------------------------------------------------------


def _rows(skills: int) -> Iterator[dict[str, list[tuple[Any, ...]]]]:
    key = Version.parse("1.0.0").precedence
    for number in range(1, skills + 1):
        namespace = f"team{number % NAMESPACES:05}"
        name = f"{namespace}.skill{number}"
        tags = sorted({f"tag{tag}" for tag in _choose.choices(range(TAGS), cum_weights=_SUMMED, k=3)})
        kind, verified = _choose.choice(("action", "instruction")), number % 1000 == 0
        visibility = "public" if number % 10 else _choose.choice(("namespace", "private"))
        status = "deprecated" if number % 50 == 0 else "published"
        language = "python" if kind == "action" else _choose.choice(("markdown", "bash"))
        permissions = {"network": ["https://a.example"] * (number % 3 == 0), "secrets": ["KEY"] * (number % 7 == 0)}
        manifest = msgspec.json.encode({"tags": tags, "permissions": permissions, "inputs": {"text": "x" * 400}})
        row = {"name": name, "version": "1.0.0", "description": "d" * 120, "namespace": namespace, "kind": kind}
        names = msgspec.json.encode(row)
        published = NOW + timedelta(seconds=_choose.randint(0, 10_000_000))
        runs = int(_choose.paretovariate(0.5)) - 1 if number % 4 == 0 else 0
        yield {
            "skills": [(number, name, namespace, number, NOW, visibility)],
            "skill_versions": [(
                number, number, "1.0.0", key, True, status, kind, namespace, "", 0, manifest.decode(), "{}", "[]",
                names.decode(), names.decode(), "bench", NOW,
            )],
            "catalogue": [(
                number, number, name, namespace, visibility, "bench", status, kind, language, verified,
                bool(permissions["network"]), bool(permissions["secrets"]), published, min(runs, 10**9),
                0, 0, min(runs, 10**9),
            )],
            "catalogue_tags": [(number, tag) for tag in tags],
        }  # fmt: skip


COLUMNS = {
    "skills": "id, name, namespace, latest_version_id, created_at, visibility",
    "skill_versions": "id, skill_id, version, precedence, is_release, status, kind, namespace, digest, size_bytes, "
    "manifest_json, frontmatter_json, warnings_json, names_json, summary_json, publisher, created_at",
    "catalogue": "version_id, skill_id, name, namespace, visibility, publisher, status, kind, language, verified, "
    "network, secrets, published_at, runs_30d, completed_30d, failed_30d, used_rank",
    "catalogue_tags": "version_id, tag",
}


def fill(database: Database, skills: int) -> None:
    add: Callable[[str, str, list[tuple[Any, ...]]], None] = adder(database)
    rows = _rows(skills)
    while batch := list(islice(rows, BATCH)):
        for table, columns in COLUMNS.items():
            add(table, columns, [row for one in batch for row in one[table]])
    add("", "", [])
