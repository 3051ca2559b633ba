"""Search quality: for how many realistic queries a useful skill is the first result, or among the first five, on both
databases. On SQLite also with the ranker `semantic`, if its model is installed."""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import time
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

import msgspec
import psycopg
from sqlalchemy import Connection, insert, update

from bench.pages import KEY, NOW
from bench.report import Report, format_ms, median, percentile
from bench.search.corpus import Query, Skill, anchors, bundled, corpus, task_queries
from skillery.backends import KINDS, Storage
from skillery.builtin.open_authenticator import LOCAL
from skillery.database import Database, migrate
from skillery.database.registry import Registry
from skillery.database.tables import objects, skill_files, skill_versions, skills
from skillery.formats.semver import Version
from skillery.maintenance.search_vectors import SearchVectors
from skillery.registry.searches import Searches
from skillery.skills.search import Search, SearchSkills, find_skills, search_skills
from skillery.skills.search_fusion import Meanings
from skillery.skills.search_index import index_latest
from skillery_semantic import Semantic
from tests.support.postgres import running_postgres

FIRST = 5
MODEL = Path(__file__).parents[2] / ".tools" / "semantic"
QUERIES = (*anchors().queries, *task_queries())
_NUMBER = re.compile(r"-\d+$")


def measure(report: Report, folder: Path) -> None:
    """Write one row for each kind of query and both databases."""
    report.heading("Search: quality")
    report.text(
        f"{len(QUERIES)} queries over {len(corpus()):,} generated skills and {len(bundled())} bundled ones: how many "
        f"have a useful skill as their first result / among the first {FIRST} results."
    )
    sqlite = Database(f"sqlite:///{folder / 'quality.db'}")
    ranks = {"SQLite": _ranks(sqlite)}
    taken: list[float] = []
    if (MODEL / ".installed").exists():
        ranks["SQLite, ranker semantic"] = asyncio.run(_ranks_by_meaning(sqlite, folder, taken))
    sqlite.close()
    with running_postgres() as url:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(b"CREATE DATABASE quality")
        postgres = Database(url.replace("/postgres?", "/quality?"))
        ranks["Postgres"] = _ranks(postgres)
        postgres.close()
    kinds = dict.fromkeys(query.kind for query in QUERIES)
    report.table(["database", *kinds], [[name, *_shares(kinds, places)] for name, places in ranks.items()])
    for name, places in ranks.items():
        missed = [f"`{query.text}`" for query, place in zip(QUERIES, places, strict=True) if place > FIRST]
        report.text(f"Missed ({name}): {', '.join(missed)}")
    if taken:
        times = f"{format_ms(median(taken))} (95th percentile {format_ms(percentile(taken, 95))})"
        report.text(f"A search with the ranker takes {times} ms.")


def _shares(kinds: Iterable[str], ranks: Sequence[int]) -> list[str]:
    shares = []
    for kind in kinds:
        places = [rank for query, rank in zip(QUERIES, ranks, strict=True) if query.kind == kind]
        first, among = (sum(rank <= most for rank in places) for most in (1, FIRST))
        shares.append(f"{first} / {among} of {len(places)}")
    return shares


def _ranks(database: Database) -> list[int]:
    """Return the rank of the first useful result of each query. A rank above FIRST means that there is none."""
    migrate.upgrade(database)
    database.write_now(partial(fill, wanted=[*corpus(), *bundled()]))
    return [rank_of(query, first_names(database, query.text)) for query in QUERIES]


async def _ranks_by_meaning(database: Database, folder: Path, taken: list[float]) -> list[int]:
    """Return the ranks with the ranker `semantic`. Add the milliseconds of each search to `taken`."""
    # The helper of the ranker gets its model from the folder of the tests.
    os.environ["PYTHONPATH"] = os.pathsep.join([str(MODEL), os.environ.get("PYTHONPATH", "")])
    ranker = KINDS["ranker"].completed(Semantic(folder))
    await ranker.start()
    vectors = SearchVectors(database, "bench", ranker)
    await vectors.start()
    await vectors.close()
    await vectors.index()
    await vectors.pass_on()
    search = Search(Registry(database, cast(Storage, None), KEY), Meanings(ranker), Searches())
    ranks = []
    for query in QUERIES:
        began_at = time.perf_counter()
        page = await search_skills(search, LOCAL, SearchSkills(query=query.text, limit=FIRST))
        taken.append((time.perf_counter() - began_at) * 1000)
        ranks.append(rank_of(query, [skill.name for skill in page.skills]))
    await ranker.close()
    return ranks


def first_names(database: Database, query: str) -> list[str]:
    """Return the names of the first results."""
    params: dict[str, Any] = {"query": query, "kind": "", "tags": (), "namespace": "", "limit": FIRST, "cursor": ""}
    found = database.read_now(lambda connection: find_skills(connection, LOCAL, KEY, **params))
    return [skill.name for skill in found.skills]


def rank_of(query: Query, names: list[str]) -> int:
    """Return the rank of the first meant skill, or of a copy or variant of one, among the names."""
    for rank, name in enumerate(names, 1):
        if {name, _NUMBER.sub("", name.rpartition(".")[2])} & set(query.means):
            return rank
    return FIRST + 1


def fill(connection: Connection, wanted: list[Skill]) -> None:
    """Insert the skills as published versions, and index them."""
    key = Version.parse("1.0.0").precedence
    for number, skill in enumerate(wanted, 1):
        namespace = skill.name.rpartition(".")[0]
        summary = {"name": skill.name, "version": "1.0.0", "description": skill.description, "namespace": namespace,
                   "kind": "instruction", "tags": skill.tags, "inputs": {}, "tools": []}  # fmt: skip
        text = msgspec.json.encode(summary).decode()
        body = skill.body.encode()
        sha256 = hashlib.sha256(b"%d" % number + body).hexdigest()
        row = {"id": number, "name": skill.name, "namespace": namespace, "created_at": NOW, "visibility": "public"}
        connection.execute(insert(skills).values(row))
        version = {"id": number, "skill_id": number, "version": "1.0.0", "precedence": key, "is_release": True,
                   "status": "published", "kind": "instruction", "namespace": namespace, "digest": "", "size_bytes": 0,
                   "manifest_json": "{}", "frontmatter_json": "{}", "warnings_json": "[]", "names_json": "{}",
                   "summary_json": text, "publisher": "bench", "created_at": NOW}  # fmt: skip
        connection.execute(insert(skill_versions).values(version))
        connection.execute(insert(objects).values(sha256=sha256, size_bytes=len(body), data=body))
        file = {
            "version_id": number,
            "path": "SKILL.md",
            "sha256": sha256,
            "size_bytes": len(body),
            "executable": False,
        }
        connection.execute(insert(skill_files).values(file))
        connection.execute(update(skills).where(skills.c.id == number).values(latest_version_id=number))
        index_latest(connection, number, number)
