"""Required skills: the choice of their versions, and the list of the versions that require a version."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from itertools import islice, product
from pathlib import Path

from sqlalchemy import Connection, insert

from bench.report import Report, format_ms, median
from skillery.backends import Identity
from skillery.database import Database, migrate
from skillery.database.tables import skill_versions, skills, version_closure, version_requires
from skillery.formats.semver import Version
from skillery.formats.version_spec import Exact
from skillery.registry.required_choice import choose
from skillery.versions.dependents import read_dependents

ROUNDS = 9
CLOSURE, LAYER = 20, 3
"""The number of required skills, and of those that stand on one level."""
SKILLS, VERSIONS = 500, 20
REQUIRED = 100
"""The number of versions that each version requires, for the list of dependents."""
FIRST = Version.parse("1.0.0")
READER = Identity("reader", "person", frozenset({"read"}), ("bench.*",))
_BATCH = 10_000


def measure(report: Report, folder: Path, small: bool) -> None:
    required = REQUIRED // 10 if small else REQUIRED
    database = Database(f"sqlite:///{folder / 'required.db'}")
    try:
        migrate.upgrade(database)
        database.write_now(partial(_insert, required=required))
        ranges = [(f"bench.s{number}", "^1") for number in range(LAYER)]
        choice = partial(choose, identity=READER, name="bench.top", requires=ranges)
        assert len(database.read_now(choice)) == CLOSURE
        impact = partial(
            read_dependents, identity=READER, key=b"k" * 32, name="bench.s0", spec=Exact(FIRST), limit=50, cursor=""
        )
        assert len(database.read_now(impact).dependents) == 50
        figures = [_processor_ms(partial(database.read_now, work)) for work in (choice, impact)]
    finally:
        database.close()
    report.heading("Required skills")
    report.text(
        f"Processor times on SQLite with {SKILLS * VERSIONS:,} versions, medians of {ROUNDS}. Versions that "
        "require another one are listed in pages of 50."
    )
    rows = [
        (f"choice of {CLOSURE} required skills", "100 ms"),
        (f"a page of dependents, from {SKILLS * VERSIONS * required:,} rows of `version_closure`", "5 ms"),
    ]
    report.table(
        ["figure", "measured", "goal"],
        [[subject, f"{format_ms(taken)} ms", goal] for (subject, goal), taken in zip(rows, figures, strict=True)],
    )


def _processor_ms(work: Callable[[], object]) -> float:
    """Return the median processor time of a call in milliseconds. The first call only warms up."""
    figures = []
    for _ in range(ROUNDS + 1):
        started = time.process_time()
        work()
        figures.append((time.process_time() - started) * 1000)
    return median(figures[1:])


def _insert(connection: Connection, required: int) -> None:
    """Insert the versions. Each skill of the closure requires those of the next level, and every version requires the
    first `required` ones.
    """
    now = datetime.now(UTC)
    texts = dict.fromkeys(("manifest_json", "frontmatter_json", "names_json", "summary_json"), "{}")
    row = {"is_release": True, "status": "published", "kind": "instruction", "namespace": "bench", "size_bytes": 1}
    row |= {"warnings_json": "[]", "publisher": "ann", "publisher_kind": "person", "created_at": now, **texts}
    numbers = range(SKILLS)
    named = [{"id": each + 1, "name": f"bench.s{each}", "created_at": now, "visibility": "public"} for each in numbers]
    connection.execute(insert(skills), named)
    versions, ranges = [], []
    for minor, number in product(range(VERSIONS), numbers):
        version_id, version = minor * SKILLS + number + 1, Version.parse(f"1.{minor}.0")
        own = {"id": version_id, "skill_id": number + 1, "version": str(version), "precedence": version.precedence}
        versions.append(row | own | {"digest": f"sha256:{version_id}"})
        start = (number // LAYER + 1) * LAYER
        below = range(start, min(start + LAYER, CLOSURE)) if number < CLOSURE else ()
        ranges += [{"version_id": version_id, "name": f"bench.s{each}", "spec": "^1"} for each in below]
    connection.execute(insert(skill_versions), versions)
    connection.execute(insert(version_requires), ranges)
    closure = (
        {"version_id": version["id"], "depends_on_id": each, "depth": 1}
        for version in versions
        for each in range(1, required + 1)
    )
    while batch := list(islice(closure, _BATCH)):
        connection.execute(insert(version_closure), batch)
