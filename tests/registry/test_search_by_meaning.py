"""Searches by meaning, with a ranker of letter triples: which results are added, and what happens if it fails."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, delete, select

from skillery.backends import KINDS, Identity, Ranker
from skillery.builtin.directory_storage import DirectoryStorage
from skillery.builtin.open_authenticator import LOCAL
from skillery.database import Database
from skillery.database.leases import claim, release
from skillery.database.registry import Registry
from skillery.database.tables import event_readers, search_vectors
from skillery.errors import Unavailable
from skillery.formats.semver import Version
from skillery.identity.quotas import Quotas
from skillery.identity.tokens import insert_token
from skillery.maintenance.purges import find_purgeable, purge
from skillery.maintenance.search_vectors import INDEXER, SearchVectors
from skillery.plugins.backends import Watch, Watched
from skillery.plugins.calls import Failures
from skillery.registry.searches import Searches
from skillery.skills import search_fusion
from skillery.skills.search import Search, SearchSkills, find_skills, search_skills
from skillery.skills.search_fusion import MOST_BY_MEANING, MOST_FAILURES, Meanings, Nearest, fused
from skillery.skills.search_order import Group, Ranked
from skillery.skills.search_results import FoundSkillPage
from skillery.testing import RankerContract
from skillery.versions.lifecycle_steps import step_one
from skillery.versions.new_versions import insert_version
from skillery.versions.revocations import Revocation
from skillery.webhooks import queue
from tests.conftest import ON_SQLITE, Server
from tests.support.bundles import make_bundle
from tests.support.letter_triples import LetterTriples, vector_of
from tests.support.processes import eventually

KEY = b"k" * 32
READER = Identity("reader", "person", frozenset({"read"}), ())
GIRAFFES = "Looks after giraffes and their calves."
QUERY = "giraffology"
"""No word of GIRAFFES and no misspelt one, but it shares letters with giraffes."""
HARMLESS_SCAN = re.compile(
    r"SCAN (CONSTANT ROW|anon_\d+|near|found|candidates|ranked|json_each VIRTUAL TABLE INDEX 1:"
    r"|search_index VIRTUAL TABLE INDEX 0:M1|main\.search_index_config)"
)
"""The scans of results of subqueries, of parameters, of a full-text match and of its settings. The plan shows any other
table by its name or alias.
"""


class TestLetterTriples(RankerContract):
    @pytest.fixture
    def ranker(self) -> Ranker:
        ranker: Ranker = KINDS["ranker"].completed(LetterTriples())
        return ranker


class Registered:
    """A registry with a ranker, and the parts of one server that search."""

    def __init__(self, database: Database, folder: Path) -> None:
        self.database = database
        self.ranker = LetterTriples()
        self.failures = Failures()
        self.registry = Registry(database, DirectoryStorage(folder), KEY)
        self.vectors = SearchVectors(database, "server", self.wait(60))

    def wait(self, seconds: float) -> Any:
        """Let searches wait `seconds` for each answer of the ranker. Return the ranker with this limit."""
        watched: Any = Watched(self.ranker, KINDS["ranker"], Watch("triples", self.failures, seconds))
        self.search = Search(self.registry, Meanings(watched), Searches())
        return watched

    def publish(
        self, name: str, description: str, *, version: str = "1.0.0", visibility: Any = "public", **more: Any
    ) -> None:
        stated = {"name": name, "version": version, "description": description, "kind": "instruction", **more}
        bundle = make_bundle(stated, f"Text of {name}.", [])
        add = partial(insert_version, bundle=bundle, identity=LOCAL, inline=inline_of(bundle), quotas=Quotas())
        self.database.write_now(partial(add, landing=lambda _: "published", visibility=visibility))

    async def refresh(self) -> None:
        await self.vectors.index()
        await self.vectors.pass_on()

    async def page(self, query: str, identity: Identity = LOCAL, **more: Any) -> FoundSkillPage:
        return await search_skills(self.search, identity, SearchSkills(query=query, **more))

    async def names(self, query: str, identity: Identity = LOCAL, **more: Any) -> list[str]:
        return [skill.name for skill in (await self.page(query, identity, **more)).skills]


def inline_of(bundle: Any) -> dict[str, bytes]:
    return {file.sha256: file.content for file in bundle.files}


@pytest.fixture
async def registered(database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Registered:
    monkeypatch.setattr(search_fusion, "SECONDS", 60)
    registered = Registered(database, tmp_path / "contents")
    await registered.vectors.start()
    await registered.vectors.close()
    return registered


# -- results -----------------------------------------------------------------------------------------------------------


async def test_search_adds_skills_that_only_the_ranker_finds(registered: Registered) -> None:
    registered.publish("zoo.keeper", GIRAFFES)
    registered.publish("money.taxes", "Fills in the tax return.")
    assert await registered.names(QUERY) == []
    await registered.refresh()

    page = await registered.page(QUERY, limit=1, counts=True)
    assert [(skill.name, skill.found_by, skill.copies) for skill in page.skills] == [("zoo.keeper", "meaning", 1)]
    assert page.total == 2
    assert page.ranking != "words"
    assert 0 < (page.skills[0].score or 0) <= 1


async def test_search_puts_skills_of_both_orders_first(registered: Registered) -> None:
    registered.publish("zoo.a-keeper", "Feeds zebras, also at weekends and in winter, with hay and apples.")
    registered.publish("zoo.b-keeper", "Feeding zebras in Africa.")
    registered.publish("zoo.giraffes", "Feeding the fish.")
    await registered.refresh()

    page = await registered.page("feeding zebras in Africa")
    assert page.skills[0].name == "zoo.b-keeper"
    assert page.skills[0].score == 1
    scores = [float(skill.score or 0) for skill in page.skills]
    assert scores == sorted(scores, reverse=True)


async def test_search_pages_keep_the_order_of_the_first_page(registered: Registered) -> None:
    for number in range(8):
        registered.publish(f"zoo.keeper{number}", f"{GIRAFFES} Number {number} of {8 - number}.")
    registered.publish("zoo.giraffology", "Reads about long necks.")
    await registered.refresh()
    whole = await registered.names(QUERY, limit=100)
    assert len(whole) == 9
    assert whole[0] == "zoo.giraffology"

    registered.ranker.state = "fails"
    page, paged = await registered.page(QUERY, limit=2), []
    assert page.ranking == "words"
    registered.ranker.state = ""
    page = await registered.page(QUERY, limit=2)
    registered.ranker.state = "fails"
    while True:
        paged += [skill.name for skill in page.skills]
        if page.next_cursor is None:
            break
        page = await registered.page(QUERY, limit=2, cursor=page.next_cursor)
        assert page.ranking != "words"
    assert paged == whole


async def test_search_filters_skills_that_the_ranker_finds(registered: Registered) -> None:
    registered.publish("zoo.keeper", GIRAFFES, tags=["zoo"])
    registered.publish("safari.guide", GIRAFFES + " Drives, too.", tags=["tour"])
    await registered.refresh()

    assert sorted(await registered.names(QUERY)) == ["safari.guide", "zoo.keeper"]
    assert await registered.names(QUERY, namespace="safari") == ["safari.guide"]
    assert await registered.names(QUERY, tags=["zoo"]) == ["zoo.keeper"]
    assert await registered.names(QUERY, kind="action") == []
    assert await registered.names(QUERY, sort="name") == ["safari.guide", "zoo.keeper"]


async def test_hidden_skills_do_not_fill_the_results_of_the_ranker(registered: Registered) -> None:
    for number in range(10):
        registered.publish(f"secret.s{number}", f"giraffology {number}", visibility="private")
    registered.publish("zoo.keeper", GIRAFFES)
    await registered.refresh()
    # The ranker also holds skills that were removed a moment ago.
    nearest = int.from_bytes(vector_of(QUERY), "big")
    registered.ranker.held |= dict.fromkeys(range(10_000, 11_000), nearest)

    assert await registered.names(QUERY, READER) == ["zoo.keeper"]
    assert registered.ranker.asked == [50, 200, 800, 3200]


async def test_near_copies_are_shown_once(registered: Registered) -> None:
    for namespace in ("first", "second", "third"):
        registered.publish(f"{namespace}.keeper", GIRAFFES)
    await registered.refresh()

    page = await registered.page(QUERY)
    assert [(skill.name, skill.copies) for skill in page.skills] == [("first.keeper", 3)]


@pytest.mark.parametrize("database_kind", ["sqlite"], indirect=True)
async def test_no_statement_of_a_search_scans_a_table(registered: Registered) -> None:
    for namespace in ("first", "second"):
        registered.publish(f"{namespace}.keeper", GIRAFFES)
    await registered.refresh()
    near = Nearest([*registered.ranker.held])

    def plans(connection: Connection) -> list[str]:
        statements: list[str] = []
        raw: Any = connection.connection.driver_connection
        raw.set_trace_callback(statements.append)
        options: dict[str, Any] = {"kind": "", "tags": (), "namespace": "", "limit": 20, "cursor": "", "nearest": near}
        found = find_skills(connection, LOCAL, KEY, query="giraffes calves", **options)
        raw.set_trace_callback(None)
        assert found.skills[0].copies == 2
        reads = [sql for sql in statements if sql.startswith(("SELECT", "WITH"))]
        assert len(reads) >= 5
        return [row[3] for sql in reads for row in raw.execute(f"EXPLAIN QUERY PLAN {sql}")]

    plan = registered.database.read_now(plans)
    assert {line for line in plan if line.startswith("SCAN") and not HARMLESS_SCAN.fullmatch(line)} == set()


def test_fused_ranks_add_both_orders_and_keep_the_nearest() -> None:
    def group(number: int, points: int) -> Group:
        return Group((Ranked(number, f"s{number:03}", points, number, None),), points)

    groups = [group(1, 90), group(2, 80), group(3, 70), *(group(number, 0) for number in range(10, 40))]
    near = [30, 3, *range(10, 30), *range(31, 40)]

    order = [each.members[0].skill_id for each in fused(groups, near)]
    assert order[:4] == [3, 1, 30, 2]
    assert sum(number >= 10 for number in order) == MOST_BY_MEANING
    assert order[4:] == list(range(10, 29))


# -- vectors -----------------------------------------------------------------------------------------------------------


async def test_vectors_follow_the_latest_version(registered: Registered) -> None:
    registered.publish("zoo.keeper", "Feeds the fish.")
    await registered.refresh()
    registered.publish("zoo.keeper", GIRAFFES, version="1.1.0", tags=["neck"])
    await registered.refresh()

    assert registered.ranker.read == ["keeper\nFeeds the fish.", f"keeper\n{GIRAFFES}\nneck"]
    assert await registered.names(QUERY) == ["zoo.keeper"]

    def yank(connection: Connection) -> None:
        for version in ("1.1.0", "1.0.0"):
            step_one(connection, LOCAL, "zoo.keeper", Version.parse(version), "yank", note="wrong")

    registered.database.write_now(yank)
    await registered.refresh()
    assert registered.ranker.held == {}
    assert await registered.names(QUERY) == []


async def test_only_changes_of_versions_start_a_look_at_all_skills(registered: Registered) -> None:
    registered.publish("zoo.keeper", "Feeds the fish.")
    await registered.refresh()
    # Only a look at all skills notices that the vector is gone.
    registered.database.write_now(lambda connection: connection.execute(delete(search_vectors)))
    add_token = partial(insert_token, actor=LOCAL, name="bob", scopes=["read"])
    registered.database.write_now(add_token)
    await registered.refresh()
    assert len(registered.ranker.read) == 1

    registered.publish("zoo.cook", GIRAFFES)
    await registered.refresh()
    assert len(registered.ranker.read) == 3


async def test_vectors_are_computed_once_for_several_servers(registered: Registered, tmp_path: Path) -> None:
    registered.publish("zoo.keeper", GIRAFFES)
    other = Registered(registered.database, tmp_path / "other")
    await registered.refresh()
    await other.refresh()
    await registered.refresh()

    assert (len(registered.ranker.read), len(other.ranker.read)) == (1, 0)
    assert other.ranker.held == registered.ranker.held


async def test_vectors_of_another_revision_are_computed_again(registered: Registered, tmp_path: Path) -> None:
    registered.publish("zoo.keeper", GIRAFFES)
    await registered.refresh()
    other = Registered(registered.database, tmp_path / "other")
    other.ranker.revision = "triples-2"
    other.vectors = SearchVectors(registered.database, "other", KINDS["ranker"].completed(other.ranker))
    await other.vectors.pass_on()
    assert other.ranker.held == {}

    await other.refresh()
    assert len(other.ranker.held) == 1
    assert other.ranker.read == [f"keeper\n{GIRAFFES}"]


async def test_vectors_wait_for_the_server_with_the_lease(registered: Registered) -> None:
    registered.publish("zoo.keeper", GIRAFFES)
    claimed = partial(claim, table=event_readers, row_id=INDEXER, server="other")
    lease = await registered.database.write(claimed)
    assert lease is not None
    await registered.refresh()
    assert registered.ranker.read == []

    await registered.database.write(partial(release, lease=lease))
    await registered.refresh()
    assert registered.ranker.read == [f"keeper\n{GIRAFFES}"]


async def test_a_ranker_that_lost_its_vectors_gets_all_again(registered: Registered) -> None:
    registered.publish("zoo.keeper", GIRAFFES)
    registered.publish("zoo.cook", "Feeds the fish.")
    await registered.refresh()
    held, registered.ranker.state = registered.ranker.held, "forgot"

    with pytest.raises(Unavailable):
        await registered.vectors.pass_on()
    await registered.vectors.pass_on()
    assert len(held) == 2
    assert registered.ranker.held == held


async def test_a_purged_version_leaves_no_vector(registered: Registered) -> None:
    registered.publish("zoo.keeper", GIRAFFES)
    await registered.refresh()
    version = Version.parse("1.0.0")
    find = partial(find_purgeable, identity=LOCAL, name="zoo.keeper", version=version)
    revocation = Revocation(registered.database.read_now(find), "purge", "key", {})
    work = partial(purge, identity=LOCAL, name="zoo.keeper", version=version, revocation=revocation, searches=())
    registered.database.write_now(work)

    vectors = partial(Connection.scalars, statement=select(search_vectors.c.vector))
    assert registered.database.read_now(lambda connection: list(vectors(connection))) == [None]
    await registered.refresh()
    assert registered.ranker.held == {}


async def test_the_outbox_does_not_keep_events_for_vectors(registered: Registered) -> None:
    position = registered.database.read_now(lambda connection: connection.scalar(select(event_readers.c.position)))

    assert position is not None
    assert position > registered.database.read_now(queue.head_of) + 2**60


# -- failures ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", ["fails", "hangs", "errs"])
async def test_search_uses_words_while_the_ranker_fails(registered: Registered, state: str) -> None:
    registered.publish("zoo.keeper", GIRAFFES)
    await registered.refresh()
    registered.ranker.state = state
    if state == "hangs":
        registered.wait(0.15)

    for _ in range(MOST_FAILURES + 3):
        page = await registered.page("giraffes")
        assert ([skill.name for skill in page.skills], page.ranking) == (["zoo.keeper"], "words")
    assert len(registered.ranker.asked) == MOST_FAILURES
    assert sum(registered.failures.counts.values()) == (MOST_FAILURES if state == "hangs" else 0)


async def test_a_pause_of_the_ranker_ends(registered: Registered, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search_fusion, "PAUSE_SECONDS", 0)
    registered.publish("zoo.keeper", GIRAFFES)
    await registered.refresh()
    registered.ranker.state = "fails"
    for _ in range(MOST_FAILURES):
        await registered.page(QUERY)

    registered.ranker.state = ""
    assert await registered.names(QUERY) == ["zoo.keeper"]


async def test_the_ranker_gets_no_query_without_words(registered: Registered) -> None:
    registered.publish("zoo.keeper", GIRAFFES)
    await registered.refresh()

    assert await registered.names("?!") == []
    assert registered.ranker.asked == []


# -- servers -----------------------------------------------------------------------------------------------------------


@ON_SQLITE
@pytest.mark.full
def test_a_server_searches_with_the_ranker_of_a_plugin(
    tmp_path: Path,
    database_kind: str,
    request: pytest.FixtureRequest,
    start_server: Callable[..., Server],
) -> None:
    plugins = tmp_path / "plugins"
    plugins.mkdir()
    shutil.copy(Path(__file__).parents[1] / "support/letter_triples.py", plugins / "triples.py")
    url = request.getfixturevalue("migrated_postgres_database")() if database_kind == "postgres" else ""
    (tmp_path / "home").mkdir()
    state = tmp_path / "home/triples"
    state.write_text("works")
    env = {"SKILLERY_PLUGINS_FOLDER": str(plugins), "SKILLERY_RANKER": "triples", "SKILLERY_DATABASE": url}
    server = start_server(env=env)
    about = {"name": "zoo.keeper", "version": "1.0.0", "description": GIRAFFES, "kind": "instruction"}
    server.rpc("create_skill", manifest=about, skill_md="Text.\n")

    def found() -> list[str]:
        skills = server.rpc("search_skills", query=QUERY)["skills"]
        return [skill["found_by"] for skill in skills if skill["name"] == "zoo.keeper"]

    assert eventually(found) == ["meaning"]
    state.write_text("hangs")
    answer = server.rpc("search_skills", query="giraffes")
    assert (answer["skills"][0]["name"], answer["ranking"]) == ("zoo.keeper", "words")
