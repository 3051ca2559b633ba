"""Pages of a skill with a past: the life of its versions, and runs that return each kind of part."""

from __future__ import annotations

import html
import re
import sqlite3
from datetime import UTC, datetime

import pytest
from sqlalchemy import Connection, insert

from skillery.backends import Identity
from skillery.database import Database
from skillery.database.tables import skill_versions, skills, use_days
from skillery.versions.version_life import read_life
from tests.conftest import Server, StartShared
from tests.publishing.test_requires import COLUMNS
from tests.support.browser import Browser
from tests.support.chromium import OpenPage, check_axe, layout_shift, overflow, problems
from tests.support.people import Caller, Who, headers_of
from tests.support.shown_runs import ShownRuns


@pytest.fixture(scope="module")
def shown_runs(org: Server) -> ShownRuns:
    return ShownRuns(org, "shownruns")


def bars_of(page: str) -> dict[str, tuple[str, list[str]]]:
    """Return the description and the kinds of spans of each row in the life of versions."""
    card = page.partition('aria-labelledby="life"')[2].partition("</section>")[0]
    bars = re.findall(r'<svg class="span"[^>]* aria-label="([^:"]+): ([^"]*)">(.*?)</svg>', card)
    return {name: (words, re.findall(r'<path class="(?!all)(\w+)"', paths)) for name, words, paths in bars}


def text_of(page: str) -> str:
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", page)).split())


@pytest.mark.full(after=1)
@pytest.mark.parametrize("below", ["", "/insight"])
def test_life_shows_versions_labels_and_failing_days(shown_runs: ShownRuns, below: str) -> None:
    browser = Browser(shown_runs.server.url, **headers_of(shown_runs.owner), accept="text/html")
    page = browser.get(f"/s/{shown_runs.name}{below}").text

    assert bars_of(page) == {
        "1.3.0": ("published on 4 days, used on 1 day, failing on 1 day", ["published", "used", "failing"]),
        "1.2.0": ("published on 20 days, used on 19 days", ["published", "used"]),
        "1.1.0": (
            "published on 15 days, yanked on 30 days, used on 10 days, failing on 5 days",
            ["published", "yanked", "used", "failing"],
        ),
        "1.0.0": ("published on 85 days, used on 36 days", ["published", "used"]),
        "stable": (bars_of(page)["stable"][0], ["label"]),
    }
    assert "1.0.0 → 1.1.0 → 1.2.0" in text_of(page)


@pytest.mark.full
def test_life_has_the_twelve_highest_published_versions(org: Server, new_name: str) -> None:
    owner = Who(f"{new_name}-ann", "read run publish", f"{new_name}.*")
    for minor in range(14):
        Caller(org.url, owner).create(f"{new_name}.quiet", f"1.{minor}.0", kind="instruction")
    Caller(org.url, owner._replace(kind="agent")).create(f"{new_name}.quiet", "2.0.0", kind="instruction")
    page = Browser(org.url, **headers_of(owner), accept="text/html").get(f"/s/{new_name}.quiet@2.0.0").text

    assert list(bars_of(page)) == [f"1.{minor}.0" for minor in range(13, 1, -1)]


@pytest.mark.parametrize("database_kind", ["sqlite"], indirect=True)
def test_life_of_a_skill_with_more_used_versions_than_parameters(database: Database) -> None:
    now = datetime.now(UTC)
    day = {"day": now.date().isoformat(), "caller": "", "client": "", "runs": 1, "completed": 1}
    day |= dict.fromkeys(("failed", "busy_ms", "loads", "reads"), 0)

    def work(connection: Connection) -> list[tuple[str, int]]:
        named = insert(skills).values(name="w.a", created_at=now, visibility="public").returning(skills.c.id)
        skill_id = connection.scalar(named)
        version = {"skill_id": skill_id, "version": "1.0.0", "precedence": b"", "digest": "sha256:0"}
        added = insert(skill_versions).values(version | COLUMNS).returning(skill_versions.c.id)
        first = connection.execute(added).scalar_one()
        connection.execute(
            insert(use_days), [day | {"skill_id": skill_id, "version_id": first + number} for number in range(1200)]
        )
        limited = connection.connection.driver_connection
        assert isinstance(limited, sqlite3.Connection)
        most = limited.setlimit(sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER, 999)
        try:
            return [(row.name, row.uses) for row in read_life(connection, Identity("bob"), skill_id or 0).versions]
        finally:
            limited.setlimit(sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER, most)

    assert database.write_now(work) == [("1.0.0", 1)]


def test_a_server_that_keeps_no_code_shows_none(configured_server: StartShared) -> None:
    server = configured_server(SKILLERY_RUNS_KEEP_CODE="false")
    run = server.rpc("run_code", language="python", code="def main(args):\n    return 'kept nowhere'\n")
    page = Browser(server.url, accept="text/html").get(f"/runs/{run['run_id']}").text

    assert "code" not in server.rpc("get_run", run_id=run["run_id"])
    assert "kept nowhere" in page
    assert 'id="code"' not in page
    assert "def main" not in page


MOST_NODES = 3000


@pytest.mark.full
@pytest.mark.asyncio(loop_scope="session")
@pytest.mark.parametrize("database_kind", ["sqlite"], scope="session")
@pytest.mark.parametrize(("width", "javascript"), [(1280, True), (390, True), (390, False)])
async def test_pages_of_a_skill_with_a_past_have_no_fault(
    shown_runs: ShownRuns, open_page: OpenPage, width: int, javascript: bool
) -> None:
    headers = headers_of(shown_runs.owner._replace(scopes="admin read run publish"))
    runs = [f"/runs/{run_id}" for run_id in (shown_runs.run_id, shown_runs.hostile_id, shown_runs.failed_id)]
    skill = f"/s/{shown_runs.name}"
    paths = [f"{run}/parts/{name}" for run in runs[:2] for name in ("weeks.csv", "map.svg", "weeks.ipynb")]
    paths += [f"{runs[1]}/parts/report.md", f"{runs[0]}/compare/{shown_runs.hostile_id}"]
    paths += [f"{skill}{below}" for below in ("/insight", "/files", "/try", "@1.2.0/diff/1.0.0")]
    page = await open_page(shown_runs.server, "/runs", width=width, javascript=javascript, extra_http_headers=headers)
    for path in ["/runs", *runs, skill, *paths, "/insight", "/insight/failures", "/admin"]:
        await page.goto(path)

        assert await overflow(page) == [], path
        assert await page.locator("*").count() <= MOST_NODES, path
        assert await page.evaluate("[window.__pwned, {}.polluted]") == [None, None], path
        assert "stolen" not in await page.title(), path
        if javascript:
            assert await layout_shift(page) == 0, path
            assert await check_axe(page) == [], path
    # Of a page in a frame, the browser reports its script, its picture and its redirect.
    expected = ("/frame/", "Refused to execute the redirect")
    assert [text for text in await problems(page) if not any(words in text for words in expected)] == []
