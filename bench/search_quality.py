"""Search quality: for how many of 40 realistic queries a useful skill is among the first five results, on both
databases."""

from __future__ import annotations

import hashlib
import re
from collections import defaultdict
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import psycopg
from sqlalchemy import Connection, insert, update

from bench.pages import KEY, NOW
from bench.report import Report
from bench.search_corpus import Query, Skill, anchors, corpus
from skillery.builtin.open_authenticator import LOCAL
from skillery.database import Database, migrate
from skillery.database.tables import objects, skill_files, skill_versions, skills
from skillery.formats.semver import Version
from skillery.skills.search import find_skills
from skillery.skills.search_index import index_latest
from tests.support.postgres import running_postgres

FIRST = 5
_NUMBER = re.compile(r"-\d+$")


def measure(report: Report, folder: Path) -> None:
    """Write one row for each kind of query and both databases."""
    report.heading("Search: quality")
    report.text(
        f"{len(anchors().queries)} queries over {len(corpus()):,} generated skills: how many have a useful skill "
        f"among the first {FIRST} results."
    )
    found = {"SQLite": _missed(Database(f"sqlite:///{folder / 'quality.db'}"))}
    with running_postgres() as url:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(b"CREATE DATABASE quality")
        found["Postgres"] = _missed(Database(url.replace("/postgres?", "/quality?")))
    counts: dict[str, int] = defaultdict(int)
    for query in anchors().queries:
        counts[query.kind] += 1
    rows = [[name, *(_share(missed, counts))] for name, missed in found.items()]
    report.table(["database", *counts, "all"], rows)
    for query in {query.text: query for missed in found.values() for query in missed}.values():
        report.text(f"Missed: `{query.text}`")


def _share(missed: list[Query], counts: dict[str, int]) -> list[str]:
    parts = [f"{count - sum(one.kind == kind for one in missed)}/{count}" for kind, count in counts.items()]
    count = sum(counts.values())
    return [*parts, f"{100 * (count - len(missed)) / count:.0f} %"]


def _missed(database: Database) -> list[Query]:
    migrate.upgrade(database)
    database.write_now(partial(fill, wanted=corpus()))
    missed = [query for query in anchors().queries if not is_useful(query, first_names(database, query.text))]
    database.close()
    return missed


def first_names(database: Database, query: str) -> list[str]:
    """Return the names of the first results."""
    params: dict[str, Any] = {"query": query, "kind": "", "tags": (), "namespace": "", "limit": FIRST, "cursor": ""}
    found = database.read_now(lambda connection: find_skills(connection, LOCAL, KEY, **params))
    return [skill.name for skill in found.skills]


def is_useful(query: Query, names: list[str]) -> bool:
    """Return whether a meant skill, or a copy or variant of one, is among the names."""
    return any(_NUMBER.sub("", name.rpartition(".")[2]) in query.means for name in names)


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
