"""The catalogue: filters, orders, entries and counts of list_skills and search_skills, and the usage by day."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import Connection, insert, select

from skillery.backends import Identity
from skillery.database import Database
from skillery.database.tables import catalogue, skill_files, skill_versions, skills, use_days
from skillery.formats.licences import licence_of
from skillery.formats.media_types import LANGUAGES, language_of
from skillery.formats.semver import Version
from skillery.registry.uses import User, count_use, days_of
from skillery.skills.catalogue_counts import CountsCache
from skillery.skills.catalogue_filters import CHOICES, FLAGS, Facts, filter_of
from skillery.skills.catalogue_listings import list_catalogue
from skillery.skills.catalogue_order import outdated_skills, update_sums
from skillery.skills.search import find_skills
from skillery.versions.new_versions import point_to_latest
from tests.conftest import Rpc, Server, manifest
from tests.support.forms import rounds
from tests.support.people import Caller, Who
from tests.support.processes import await_early_day, eventually

KEY = b"k" * 32
UNTIMED = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
NOW = datetime.now(UTC)
ADMIN = Identity("ada", "person", frozenset({"admin"}))
Publish = Callable[..., dict[str, Any]]
SORTS = ("name", "newest", "used")
FACETS = ("namespace", "kind", "language", "tags", *FLAGS, *CHOICES, "status")


# -- a property: rows, totals and facets are those of a filter in Python -------------------------------------------


class Row(NamedTuple):
    """A version as the catalogue shows it, for the filter in Python."""

    version_id: int
    skill_id: int
    name: str
    namespace: str
    visibility: str
    publisher: str
    status: str
    kind: str
    language: str
    tags: frozenset[str]
    verified: bool
    network: bool
    secrets: bool
    reviewed: bool
    contains: str
    licence: str
    published_at: datetime
    runs: int

    @property
    def used(self) -> tuple[int, int, int, int]:
        """The place in the order by use: callers, uses, the older skill. Versions that are not listed have no age."""
        age = -self.skill_id if self.status in {"published", "deprecated"} else 0
        return min(self.runs, 1), self.runs, age, self.version_id


NAMESPACES = ("ops", "ops.net", "ops.net.dns", "ops-x", "text", "text.csv", "u")
PEOPLE = ("ada", "bob", "cy")
GRANTS = ((), ("ops.*",), ("text.csv.*", "u.*"), ("*",))


class Filled:
    """A database with 120 skills, and the rows of its catalogue as computed in Python."""

    def __init__(self, database: Database) -> None:
        chosen = random.Random(7)
        self.database = database
        self.rows: list[Row] = database.write_now(lambda connection: _fill(connection, chosen))
        self.owners = _owners(database)


@pytest.fixture
def filled(database: Database) -> Filled:
    return Filled(database)


def _fill(connection: Connection, chosen: random.Random) -> list[Row]:
    rows: list[Row] = []
    for skill_id in range(1, 121):
        rows += _add_skill(connection, chosen, skill_id)
    update_sums(connection, range(1, 121))
    return rows


def count(connection: Connection, skill_id: int, outcome: Any, moment: datetime, caller: str = "ann") -> None:
    count_use(connection, skill_id, 0, User(caller, "agent"), outcome, 1.0, moment)


def _add_skill(connection: Connection, chosen: random.Random, skill_id: int) -> Iterator[Row]:
    namespace = chosen.choice(NAMESPACES)
    name = f"{namespace}.s{skill_id}x"  # no two names are alike
    visibility = chosen.choice(("public", "public", "public", "namespace", "private"))
    connection.execute(insert(skills).values(id=skill_id, name=name, visibility=visibility, created_at=NOW))
    runs = chosen.choice((0, 0, 1, 3))
    for _ in range(runs):
        count(connection, skill_id, chosen.choice(("completed", "failed", "cancelled")), NOW)
    made = [_add_version(connection, chosen, skill_id, name, namespace, number) for number in range(1, 4)]
    point_to_latest(connection, skill_id)
    listed = [row for row in made if row.status in {"published", "deprecated"}]
    latest = listed[-1].version_id if listed else None
    for row in made:
        if row.version_id == latest or (row not in listed and row.status != "purged"):
            yield row._replace(visibility=visibility, runs=runs)


def _add_version(
    connection: Connection, chosen: random.Random, skill_id: int, name: str, namespace: str, number: int
) -> Row:
    status = chosen.choice(
        ("published", "published", "deprecated", "draft", "in_review", "rejected", "yanked", "purged")
    )
    kind = chosen.choice(("action", "instruction"))
    tags = chosen.sample(("red", "Green", "blue", "x" * 120), chosen.randint(0, 3))
    network, secrets = chosen.choice(([], ["a.example"])), chosen.choice(([], ["KEY", "OTHER"]))
    language = "python" if kind == "action" else chosen.choice(("markdown", "bash"))
    verified, publisher = chosen.choice((True, False)), chosen.choice(PEOPLE)
    created = NOW - timedelta(days=chosen.randint(1, 3))
    approved = chosen.choice((None, NOW.replace(microsecond=0) - timedelta(hours=chosen.randint(1, 3))))
    contains = "action" if kind == "action" else "instructions" if language == "markdown" else "scripts"
    licences = {"none": None, "MIT": "mit license", "Apache-2.0": "apache-2.0", "other": "Ours"}
    licence = chosen.choice([*licences])
    version_id, version = skill_id * 10 + number, Version.parse(f"{number}.0.0")
    stored: dict[str, Any] = {
        "description": name,
        "tags": tags,
        "permissions": {"network": network, "secrets": secrets},
        **({"runtime": {"entrypoint": "main.py"}} if kind == "action" else {}),
    }
    names = {"name": name, "version": str(version), "description": "Word.", "namespace": namespace, "kind": kind}
    summary = {**names, "tags": tags, "inputs": {}, "tools": []}
    standing: dict[str, Any] = {"approval": {"at": approved}} if approved else {}
    if status == "deprecated":
        standing["deprecated"] = {"message": "Old.", "successor": None}
    values = {
        "id": version_id, "skill_id": skill_id, "version": str(version), "precedence": version.precedence,
        "is_release": True, "status": status, "kind": kind, "namespace": namespace, "digest": f"sha256:{version_id}",
        "size_bytes": 0, "manifest_json": text(stored), "warnings_json": "[]",
        "frontmatter_json": text({"license": licences[licence]}),
        "names_json": text(names), "summary_json": text(summary), "publisher": publisher, "created_at": created,
        "checks_json": text({"verified": True}) if verified else None,
        "standing_json": text(standing) if standing else None,
        # Different texts, so that no two skills are copies.
        "skill_md_start": f"Text {name}.",
    }  # fmt: skip
    connection.execute(insert(skill_versions).values(values))
    if language == "bash":
        connection.exec_driver_sql(
            "INSERT INTO objects (sha256, size_bytes, data) VALUES ('e', 0, NULL) ON CONFLICT DO NOTHING"
        )
        file = {"path": "run.sh", "sha256": "e", "size_bytes": 0, "executable": True}
        connection.execute(insert(skill_files).values(version_id=version_id, **file))
    lower = frozenset(tag.casefold() for tag in tags)
    return Row(
        version_id, skill_id, name, namespace, "", publisher, status, kind, language, lower, verified,
        bool(network), bool(secrets), bool(approved), contains, licence, approved or created, 0,
    )  # fmt: skip


def text(value: object) -> str:
    return msgspec.json.encode(value).decode()


def sees(identity: Identity, row: Row, owners: dict[int, set[str]]) -> bool:
    if "admin" in identity.scopes:
        return True
    granted = any(grant == "*" or row.name.startswith(grant[:-1]) for grant in identity.namespaces)
    reviews = "review" in identity.scopes and (granted or not identity.namespaces)
    sees_skill = (
        row.visibility == "public"
        or reviews
        or (row.visibility == "namespace" and granted)
        or (row.visibility == "private" and identity.name in owners[row.skill_id])
    )
    is_open = row.status in {"published", "deprecated", "yanked"}
    return sees_skill and (is_open or reviews or row.publisher == identity.name)


class Asked(NamedTuple):
    namespace: str
    kind: str
    tags: tuple[str, ...]
    language: str
    status: str
    verified: bool | None
    network: bool | None
    secrets: bool | None
    reviewed: bool | None = None
    contains: str | None = None
    licence: str | None = None

    @property
    def facts(self) -> Facts:
        flags = tuple(
            (name, value) for name, value in self._asdict().items() if name in (*FLAGS, *CHOICES) and value is not None
        )
        return Facts(self.language, self.status, flags)  # type: ignore[arg-type]

    def matches(self, row: Row) -> bool:
        exact = ("kind", "language", *FLAGS, *CHOICES)
        listed = {"published", "deprecated"}
        return (
            (not self.namespace or f"{row.namespace}.".startswith(f"{self.namespace}."))
            and all(getattr(self, name) in {"", None, getattr(row, name)} for name in exact)
            and row.tags >= {tag.casefold() for tag in self.tags}
            and (row.status == self.status if self.status else row.status in listed)
        )


NO_FILTER = Asked("", "", (), "", "", None, None, None)
OPTIONAL = st.sampled_from([None, None, None, True, False])
ASKED = st.builds(
    Asked,
    st.sampled_from(["", "", "ops", "ops.net", "text", "none"]),
    st.sampled_from(["", "", "action", "instruction"]),
    st.lists(st.sampled_from(["red", "GREEN", "x" * 120, "none"]), max_size=2).map(tuple),
    st.sampled_from(["", "", *LANGUAGES]),
    st.sampled_from(["", "", "published", "deprecated", "draft", "in_review", "rejected", "yanked"]),
    OPTIONAL,
    OPTIONAL,
    OPTIONAL,
    OPTIONAL,
    st.sampled_from([None, None, "instructions", "scripts", "action"]),
    st.sampled_from([None, None, "none", "MIT", "other", "GPL-3.0"]),
)
IDENTITIES = st.builds(
    Identity,
    st.sampled_from([*PEOPLE, "zoe"]),
    st.just("person"),
    st.sampled_from([frozenset({"read"}), frozenset({"review"}), frozenset({"admin"})]),
    st.sampled_from(GRANTS),
)


@pytest.mark.smoke
@pytest.mark.full
@settings(
    max_examples=rounds(12, long=150), suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(asked=ASKED, identity=IDENTITIES, sort=st.sampled_from(SORTS), limit=st.integers(1, 40))
def test_rows_totals_and_facets_are_those_of_a_filter_in_python(
    filled: Filled, asked: Asked, identity: Identity, sort: Any, limit: int
) -> None:
    database = filled.database
    expected = [row for row in filled.rows if sees(identity, row, filled.owners) and asked.matches(row)]
    if sort == "name":
        expected.sort(key=lambda row: (row.namespace, row.name, row.version_id))
    else:
        value = "published_at" if sort == "newest" else "used"
        expected.sort(key=lambda row: (getattr(row, value), row.version_id), reverse=True)

    found, first = all_pages(database, identity, asked, sort, limit)

    assert [(one["name"], one["version"]) for one in found] == [
        (row.name, f"{row.version_id % 10}.0.0") for row in expected
    ]
    assert (first["total"], first["total_is_more"]) == (len(expected), False)
    assert {name: as_dict(first["facets"][name]) for name in FACETS} == brute_facets(expected, asked.namespace)
    for one, row in zip(found, expected, strict=True):
        entry = one["catalogue"]
        assert (entry["status"], entry["language"], entry["verified"]) == (row.status, row.language, row.verified)
        assert (entry["runs_30d"], entry["hosts"] > 0, entry["secrets"] > 0) == (row.runs, row.network, row.secrets)
        assert datetime.fromisoformat(entry["published_at"]) == row.published_at


def _owners(database: Database) -> dict[int, set[str]]:
    owners: dict[int, set[str]] = {}
    for skill_id, publisher in database.read_now(
        lambda connection: connection.execute(select(skill_versions.c.skill_id, skill_versions.c.publisher)).all()
    ):
        owners.setdefault(skill_id, set()).add(publisher)
    return owners


def all_pages(
    database: Database, identity: Identity, asked: Asked, sort: Any, limit: int
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    found: list[dict[str, Any]] = []
    first: dict[str, Any] | None = None
    cursor = ""
    while True:
        page = one_page(database, identity, asked, sort, limit, cursor, CountsCache() if first is None else None)
        first = first or page
        found += page["skills"]
        assert len(page["skills"]) == limit or page["next_cursor"] is None
        cursor = page["next_cursor"]
        if cursor is None:
            return found, first


def one_page(
    database: Database,
    identity: Identity,
    asked: Asked,
    sort: Any,
    limit: int,
    cursor: str,
    counts: CountsCache | None,
) -> dict[str, Any]:
    wanted = filter_of(asked.namespace, asked.kind, asked.tags, asked.facts)
    raw = database.read_now(
        lambda connection: list_catalogue(
            connection, identity, KEY, filters=wanted, sort=sort, detail="names", limit=limit, cursor=cursor,
            entries=True, counts=counts,
        )
    )  # fmt: skip
    page: dict[str, Any] = msgspec.json.decode(raw)
    return page


def as_dict(facet: list[dict[str, Any]]) -> dict[str | bool, int]:
    assert facet == sorted(facet, key=lambda one: (-one["count"], str(one["value"])))
    return {one["value"]: one["count"] for one in facet}


def brute_facets(rows: list[Row], namespace: str) -> dict[str, dict[str | bool, int]]:
    depth = namespace.count(".") + 2 if namespace else 1
    facets: dict[str, Counter[Any]] = {name: Counter() for name in FACETS}
    for row in rows:
        facets["namespace"][".".join(row.namespace.split(".")[:depth])] += 1
        facets["tags"].update(tag for tag in row.tags if len(tag) <= 100)
        for name in ("kind", "language", *FLAGS, *CHOICES, "status"):
            facets[name][getattr(row, name)] += 1
    return {name: dict(counter) for name, counter in facets.items()}


@pytest.mark.full
@settings(
    max_examples=rounds(12, long=60), suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(
    asked=ASKED.filter(lambda one: one.status in {"", "published", "deprecated"}),
    identity=IDENTITIES,
    sort=st.sampled_from(["best", *SORTS]),
    limit=st.integers(1, 40),
)
def test_a_search_filters_counts_and_sorts_like_the_catalogue(
    filled: Filled, asked: Asked, identity: Identity, sort: Any, limit: int
) -> None:
    database = filled.database
    expected = [row for row in filled.rows if sees(identity, row, filled.owners) and asked.matches(row)]
    params: dict[str, Any] = {
        "query": "word", "kind": asked.kind, "tags": asked.tags, "namespace": asked.namespace, "limit": limit,
        "facts": asked.facts, "sort": sort,
    }  # fmt: skip

    def page(cursor: str, **more: Any) -> Any:
        return database.read_now(
            lambda connection: find_skills(connection, identity, KEY, cursor=cursor, **params, **more)
        )

    first = page("", counts=True, entries=True)
    found, cursor = list(first.skills), first.next_cursor
    while cursor:
        further = page(cursor)
        found, cursor = [*found, *further.skills], further.next_cursor

    assert sorted(one.name for one in found) == sorted(row.name for row in expected)
    assert (first.total, first.total_is_more) == (len(expected), False)
    facets = msgspec.to_builtins(first.facets)
    assert {name: as_dict(facets[name]) for name in FACETS} == brute_facets(expected, asked.namespace)
    by_name = {row.name: row for row in expected}
    ordered = [by_name[one.name] for one in found]
    if sort in {"newest", "used"}:
        value = "published_at" if sort == "newest" else "used"
        assert ordered == sorted(expected, key=lambda row: (getattr(row, value), row.version_id), reverse=True)
    if sort == "name":
        assert ordered == sorted(expected, key=lambda row: (row.namespace, row.name))
    assert all(one.catalogue.language == by_name[one.name].language for one in first.skills)


# -- the methods -----------------------------------------------------------------------------------------------------


def test_an_entry_has_the_facts_of_a_version(rpc: Rpc, publish: Publish, new_name: str) -> None:
    publish(
        f"{new_name}.a",
        tags=["x", "Y"],
        permissions={"network": ["https://api.example.com", "https://b.example.com"], "secrets": ["KEY"]},
    )
    rpc("set_label", name=f"{new_name}.a", label="stable", version="1.0.0")

    page = rpc("list_skills", namespace=new_name, catalogue=True)

    [skill] = page["skills"]
    published_at = skill["catalogue"].pop("published_at")
    assert abs(datetime.fromisoformat(published_at) - datetime.now(UTC)) < timedelta(minutes=5)
    assert skill == {
        "name": f"{new_name}.a",
        "version": "1.0.0",
        "description": f"What {new_name}.a does.",
        "namespace": new_name,
        "kind": "action",
        "catalogue": {
            "status": "published",
            "language": "python",
            "scripts": 0,
            "tags": ["x", "Y"],
            "verified": False,
            "labels": ["stable"],
            "hosts": 2,
            "secrets": 1,
            "callers_30d": 0,
            "uses_30d": 0,
            "loads_30d": 0,
            "runs_30d": 0,
            "uses_by_day": [0] * 30,
            "failed_by_day": [0] * 30,
            "success_rate_30d": None,
            "deprecated": None,
            "looks_like": None,
            "copy_of": None,
            "source": None,
            "licence": "none",
        },
    }
    assert page.keys() == {"skills", "next_cursor"}
    [found] = rpc("search_skills", query=new_name, namespace=new_name, catalogue=True)["skills"]
    assert found["catalogue"]["labels"] == ["stable"]
    assert "catalogue" not in rpc("search_skills", query=new_name, namespace=new_name)["skills"][0]


def test_steps_of_a_version_move_its_row(rpc: Rpc, publish: Publish, new_name: str) -> None:
    name = f"{new_name}.a"
    publish(name, "1.0.0", tags=["one"])
    publish(name, "2.0.0", tags=["two"])

    def versions(**params: Any) -> list[str]:
        return [skill["version"] for skill in rpc("list_skills", namespace=new_name, **params)["skills"]]

    assert versions(sort="newest") == ["2.0.0"]
    rpc("yank_version", name=name, version="2.0.0", reason="leaks")
    assert (versions(sort="used"), versions(status="yanked"), versions(tags=["two"])) == (["1.0.0"], ["2.0.0"], [])
    rpc("unyank_version", name=name, version="2.0.0")
    assert (versions(tags=["TWO"]), versions(status="yanked")) == (["2.0.0"], [])
    rpc("deprecate_skill", name=name, message="Use another one.")
    assert (versions(status="published"), versions(status="deprecated")) == ([], ["2.0.0"])
    [skill] = rpc("list_skills", namespace=new_name, catalogue=True)["skills"]
    assert skill["catalogue"]["deprecated"] == {"message": "Use another one.", "successor": None}
    rpc("purge_version", name=name, version="2.0.0", reason="gone")
    assert versions(status="deprecated") == ["1.0.0"]


def test_the_visibility_of_a_skill_is_that_of_its_row(rpc: Rpc, publish: Publish, server: Any, new_name: str) -> None:
    publish(f"{new_name}.a")

    rpc("set_visibility", name=f"{new_name}.a", visibility="private")

    assert len(rpc("list_skills", namespace=new_name, sort="newest")["skills"]) == 1  # the caller is an admin


def test_counts_follow_every_change(rpc: Rpc, publish: Publish, new_name: str) -> None:
    def total() -> tuple[int, list[dict[str, Any]]]:
        page = rpc("list_skills", namespace=new_name, counts=True)
        return page["total"], page["facets"]["kind"]

    assert total() == (0, [])
    publish(f"{new_name}.a")
    assert total() == (1, [{"value": "action", "count": 1}])
    publish(f"{new_name}.b", kind="instruction")
    assert total() == (2, [{"value": "action", "count": 1}, {"value": "instruction", "count": 1}])
    rpc("yank_version", name=f"{new_name}.a", version="1.0.0", reason="-")
    assert total() == (1, [{"value": "instruction", "count": 1}])


def test_cursors_are_bound_to_filters_and_order(rpc: Rpc, publish: Publish, new_name: str) -> None:
    for letter in "abc":
        publish(f"{new_name}.{letter}")
    params = {"namespace": new_name, "limit": 1}
    cursor = rpc("list_skills", sort="newest", kind="action", **params)["next_cursor"]

    for other in ({}, {"sort": "newest"}, {"kind": "action"}, {"sort": "used", "kind": "action"}):
        assert rpc.error("list_skills", cursor=cursor, **params, **other)["data"]["type"] == "invalid_cursor"
    assert rpc("list_skills", cursor=cursor, sort="newest", kind="action", **params)["skills"][0]["name"][-1] == "b"
    searched = rpc("search_skills", query=new_name, sort="name", **params)["next_cursor"]
    error = rpc.error("search_skills", query=new_name, cursor=searched, **params)
    assert error["data"]["type"] == "invalid_cursor"


def test_a_page_with_counts_or_entries_continues_without_them(rpc: Rpc, publish: Publish, new_name: str) -> None:
    for letter in "abcd":
        publish(f"{new_name}.{letter}")
    params = {"namespace": new_name, "limit": 1}

    cursor = rpc("list_skills", counts=True, catalogue=True, **params)["next_cursor"]
    second = rpc("list_skills", cursor=cursor, **params)
    third = rpc("list_skills", cursor=second["next_cursor"], catalogue=True, **params)

    assert [page["skills"][0]["name"][-1] for page in (second, third)] == ["b", "c"]


def test_a_total_is_exact_to_a_thousand(database: Database) -> None:
    numbers = range(1, 1003)
    summary = text({"description": "-", "tags": []})
    alike = {
        "version": "1.0.0",
        "precedence": b"1",
        "is_release": True,
        "manifest_json": "{}",
        "frontmatter_json": "{}",
        "warnings_json": "[]",
        "status": "published",
        "kind": "action",
        "namespace": "a",
        "digest": "-",
        "size_bytes": 0,
        "names_json": summary,
        "summary_json": summary,
        "publisher": "ada",
        "created_at": NOW,
    }

    def fill(connection: Connection) -> None:
        connection.execute(insert(skills), [{"id": n, "name": f"a.s{n}", "created_at": NOW} for n in numbers])
        connection.execute(insert(skill_versions), [{**alike, "id": n, "skill_id": n} for n in numbers])
        point_to_latest(connection, 1)
        row = connection.execute(select(catalogue)).mappings().one()
        connection.execute(
            insert(catalogue), [{**row, "version_id": n, "skill_id": n, "name": f"a.s{n}"} for n in numbers[1:]]
        )

    database.write_now(fill)
    page = one_page(database, ADMIN, NO_FILTER, "name", 1, "", CountsCache())

    assert (page["total"], page["total_is_more"]) == (1000, True)
    assert page["facets"]["status"] == [{"value": "published", "count": 1002}]


def test_unknown_values_of_filters_are_refused(rpc: Rpc) -> None:
    for params in ({"language": "perl"}, {"status": "purged"}, {"sort": "best"}, {"verified": "yes"}):
        assert rpc.error("list_skills", **params)["code"] == -32602
    assert rpc.error("search_skills", query="x", status="draft")["code"] == -32602
    assert rpc.error("list_skills", tags=["x"] * 17)["data"]["param"] == "tags"


@pytest.mark.parametrize(
    ("runtime", "paths", "language"),
    [
        ({"entrypoint": "code/main.py"}, ["run.sh"], "python"),
        ({"dependencies": ["x"]}, ["a.sh", "b.SH", "c.py"], "bash"),
        (None, ["a.mjs", "b.sh"], "javascript"),
        (None, ["SKILL.md", "notes"], "markdown"),
    ],
)
def test_the_language_is_that_of_the_entrypoint_or_of_most_scripts(
    runtime: dict[str, Any] | None, paths: list[str], language: str
) -> None:
    assert language_of(runtime, paths) == language


# -- usage -----------------------------------------------------------------------------------------------------------


def test_runs_are_counted_by_day_and_added_up(database: Database) -> None:
    await_early_day()
    database.write_now(lambda connection: list(_add_skill(connection, random.Random(3), 1)))
    database.write_now(lambda connection: connection.execute(use_days.delete()))

    def count_all(connection: Connection) -> None:
        for days, outcome in ((0, "completed"), (0, "failed"), (0, "cancelled"), (29, "completed"), (30, "failed")):
            count(connection, 1, outcome, datetime.now(UTC) - timedelta(days=days), "bob" if days else "ann")

    database.write_now(count_all)
    days = database.read_now(lambda connection: days_of(connection, 1))

    assert [(one.day - days[0].day).days for one in days] == list(range(30))
    assert days[-1].day == datetime.now(UTC).date()
    assert [(one.runs, one.completed, one.failed) for one in (days[0], days[1], days[-1])] == [
        (1, 1, 0),
        (0, 0, 0),
        (3, 1, 1),
    ]
    assert database.read_now(outdated_skills) == [1]
    assert database.write_now(lambda connection: update_sums(connection, [1])) == []
    sums = select(
        *(catalogue.c[f"{name}_30d"] for name in ("callers", "uses", "runs", "completed", "failed"))
    ).distinct()
    assert database.read_now(lambda connection: connection.execute(sums).all()) == [(2, 4, 4, 2, 1)]
    [entry] = {
        (tuple(skill["catalogue"]["uses_by_day"]), tuple(skill["catalogue"]["failed_by_day"]))
        for skill in one_page(database, ADMIN, NO_FILTER, "used", 1, "", None)["skills"]
    }
    assert entry == ((1, *[0] * 28, 3), (*[0] * 29, 1))


def test_a_run_is_counted_on_its_day(rpc: Rpc, publish: Publish, server: Any, new_name: str) -> None:
    publish(f"{new_name}.a")
    rpc("execute_skill", name=f"{new_name}.a", args={})

    def usage() -> tuple[str, int, float | None]:
        [skill] = rpc("list_skills", namespace=new_name, catalogue=True)["skills"]
        return skill["version"], skill["catalogue"]["runs_30d"], skill["catalogue"]["success_rate_30d"]

    eventually(lambda: usage() == ("1.0.0", 1, 1), problem=usage)

    publish(f"{new_name}.a", "1.1.0", tags=["new"])

    # The row of a new latest version has the usage of its skill.
    assert usage() == ("1.1.0", 1, 1)


def test_skills_are_filtered_by_contents_review_and_licence(org: Server, new_name: str) -> None:
    owner = Caller(org.url, Who("olga", "read run publish", f"{new_name}.*"))
    agent = Caller(org.url, Who("bot", "read run publish", f"{new_name}.*", "agent"))
    agent.create(f"{new_name}.action")
    owner.create(f"{new_name}.plain", kind="instruction")
    script = {"path": "scripts/run.sh", "content": "echo 1\n"}
    stated = manifest(f"{new_name}.script", kind="instruction")
    skill_md = "---\nname: script\ndescription: Echo.\nlicense: mit\n---\n# Echo\n"
    owner("create_skill", manifest=stated, skill_md=skill_md, files=[script])
    agent("submit_version", name=f"{new_name}.action", version="1.0.0")
    reviewer = Caller(org.url, Who("rex", "read review"))
    reviewer("approve_version", name=f"{new_name}.action", version="1.0.0")

    def names(**filters: Any) -> list[str]:
        page = owner("list_skills", namespace=new_name, **filters)
        return [skill["name"].removeprefix(f"{new_name}.") for skill in page["skills"]]

    assert {value: names(contains=value) for value in ("action", "instructions", "scripts")} == {
        "action": ["action"],
        "instructions": ["plain"],
        "scripts": ["script"],
    }
    assert (names(reviewed=True), names(reviewed=False)) == (["action"], ["plain", "script"])
    assert (names(licence="MIT"), names(licence="none"), names(licence="other")) == (
        ["script"],
        ["action", "plain"],
        [],
    )
    facets = owner("list_skills", namespace=new_name, counts=True)["facets"]
    assert facets["licence"] == [{"value": "none", "count": 2}, {"value": "MIT", "count": 1}]
    matches = owner("search_skills", query=new_name, namespace=new_name, licence="MIT")["skills"]
    assert [match["name"] for match in matches] == [f"{new_name}.script"]


@pytest.mark.parametrize(
    ("stated", "licence"),
    [
        ("mit", "MIT"),
        ("Apache License, Version 2.0", "Apache-2.0"),
        ("mit or apache-2.0", "MIT OR Apache-2.0"),
        ("mit and", "other"),
        ("MIT WITH everything", "other"),
        ("Complete terms in LICENSE.txt", "other"),
        (" ", "none"),
        (None, "none"),
        (7, "none"),
        (" or ".join(["mit"] * 99), "other"),
    ],
)
def test_the_licence_of_a_skill_is_grouped(stated: object, licence: str) -> None:
    assert licence_of({"license": stated}) == licence
