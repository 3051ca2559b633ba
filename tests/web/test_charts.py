"""Charts of tables: the kind that fits, the chosen kind, sums, and hostile tables."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest
from playwright.async_api import expect

from tests.conftest import Server
from tests.support.browser import Browser
from tests.support.chromium import OpenPage, check_axe, layout_shift, overflow, problems
from tests.web.test_notebooks import WRITES
from tests.web.test_run_parts import HTML, run_code, text_of

TABLES = {
    "weeks.csv": "week,north,south,year\n" + "".join(f"2026-W{n},{n * 100},{n * 50},2026\n" for n in range(36, 48)),
    "days.csv": "day,amount\n" + "".join(f"2026-09-{n:02},{n % 7}\n" for n in range(1, 31)),
    "cities.csv": "city,channel,amount\n" + "Bern,web,10\nOslo,shop,5\nBern,shop,30\nOslo,web,\n",
    "points.csv": "width,height\n" + "".join(f"{n}.5,{n * n}\n" for n in range(20)),
    "numbers.csv": "id,amount\n" + "".join(f"{n},{n * n}\n" for n in range(20)),
    "loss.csv": "city,plus,minus\nBern,5,-3\nOslo,7,-2\n",
    "one.csv": "city,amount\nBern,5\n",
    "words.csv": "city,land\nBern,CH\nOslo,NO\n",
}


def chart_words(page: str) -> str | None:
    match = re.search(r'<svg class="chart" [^>]* aria-label="([^"]*)">', page)
    return match[1] if match else None


@pytest.mark.full
def test_chart_of_a_table_fits_its_columns(sqlite_server: Server) -> None:
    run = run_code(sqlite_server, WRITES, **TABLES)
    browser = Browser(sqlite_server.url, **HTML)

    def words(path: str) -> str | None:
        return chart_words(browser.get(f"/runs/{run['run_id']}/parts/{path}").text)

    assert words("weeks.csv") == (
        "Stacked columns of north and south by week: 12 values, lowest 2026-W36 with 5,400, highest 2026-W47 with 7,050"
    )
    assert words("days.csv") == "Line of amount by day: 30 values, lowest 2026-09-07 with 0, highest 2026-09-06 with 6"
    assert words("cities.csv") == (
        "Columns of sum of amount by city: 2 values, lowest Oslo with 5, highest Bern with 40"
    )
    assert words("points.csv") == "Points of height by width: 20 points"
    assert words("numbers.csv") == "Histogram of rows by amount: 8 values, lowest 200 with 1, highest 0 with 8"
    assert words("loss.csv") == "Columns of plus and minus by city: 2 values, lowest Bern with 2, highest Oslo with 5"
    assert words("one.csv") is None
    assert words("words.csv") is None

    at = "cities.csv?chart=columns&x=channel"
    assert words(f"{at}&agg=mean") == (
        "Columns of mean of amount by channel: 2 values, lowest web with 10, highest shop with 17.5"
    )
    assert words(f"{at}&agg=count") == ("Columns of rows by channel: 2 values, lowest web with 2, highest web with 2")
    assert words("weeks.csv?chart=line&y=south").startswith("Line of south by week")  # type: ignore[union-attr]
    assert words("weeks.csv?chart=points&x=north&y=south") == "Points of south by north: 12 points"
    assert words("cities.csv?where=bern&x=channel").startswith("Columns of amount by channel: 2")  # type: ignore[union-attr]
    assert words("weeks.csv?chart=none") is None
    for query in ("chart=²&x=none&y=week&agg=all", "chart=points&y=city", "chart=histogram&x=%00", "where=none"):
        assert browser.get(f"/runs/{run['run_id']}/parts/cities.csv?{query}").status_code == 200


def test_run_page_shows_a_chart_above_six_rows(sqlite_server: Server) -> None:
    run = run_code(sqlite_server, WRITES, **{"weeks.csv": TABLES["weeks.csv"]})
    page = Browser(sqlite_server.url, **HTML).get(f"/runs/{run['run_id']}").text

    assert page.count('<svg class="chart"') == 2  # the second one is for phones
    assert "<title>2026-W36, north: 3,600</title>" in page
    assert page.count("<title>2026-W36, north") == 1
    assert "6 of 12 rows" in text_of(page)


RUNS = "<script>window.__pwned=1</script>\u202e"
HOSTILE: dict[str, Any] = {
    "names.csv": f'"{RUNS}","</title>{RUNS}"\n' + f'"{RUNS}\'""><b>",5\nOslo,7\n' * 3,
    "large.csv": "city,amount\na,1e300\nb,-1e300\nc,1e14\nd,100000000000000.02\ne,1e-300\nf,inf\ng,nan\n",
    "small.csv": "a,b\n1e-300,2e-300\n2e-300,1e-300\n3e-320,1\n",
    "equal.csv": "a,b\n" + "7,7\n" * 9,
    "many.csv": "city,a,b,c\n" + "".join(f"city {n},{n},{n},{-n}\n" for n in range(4999)),
    "empty.csv": "a,b\n,\n,\n1,\n2,\n",
}


@pytest.mark.full
@pytest.mark.asyncio(loop_scope="session")
async def test_charts_of_hostile_tables_have_no_effect(sqlite_server: Server, open_page: OpenPage) -> None:
    run = await asyncio.to_thread(lambda: run_code(sqlite_server, WRITES, **HOSTILE))
    at = f"/runs/{run['run_id']}"
    page = await open_page(sqlite_server, at)
    pages = [f"{at}/parts/{name}?chart={kind}" for name in HOSTILE for kind in ("", "line", "points", "histogram")]
    for path in [at, *pages]:
        await page.goto(path)
        assert "so this is its start as text" not in await page.locator("main").inner_text(), path
        assert await page.evaluate("window.__pwned") is None
        if "chart" not in path or path.endswith("="):
            for width in (390, 1280):  # the narrow window has a chart of its own
                await page.set_viewport_size({"width": width, "height": 800})
                await page.emulate_media(color_scheme="dark" if width == 390 else "light")
                await page.goto(path)
                assert await layout_shift(page) == 0, path
                assert await overflow(page) == [], path
                assert await check_axe(page) == [], path
    assert await problems(page) == []


@pytest.mark.full
@pytest.mark.asyncio(loop_scope="session")
async def test_chart_is_chosen_by_keyboard_without_javascript(sqlite_server: Server, open_page: OpenPage) -> None:
    run = await asyncio.to_thread(lambda: run_code(sqlite_server, WRITES, **TABLES))
    page = await open_page(sqlite_server, f"/runs/{run['run_id']}/parts/cities.csv?sort=-amount", javascript=False)
    await page.get_by_label("by", exact=True).select_option("channel")
    await page.get_by_label("as", exact=True).select_option("mean")
    await page.get_by_label("Rows with").press("Enter")
    await page.get_by_text("Mean of amount by channel").wait_for()

    await expect(page.locator("th[aria-sort=descending]")).to_have_count(1)
    await page.get_by_label("Chart", exact=True).select_option("none")
    await page.get_by_role("button", name="Show").click()
    await page.locator("svg.chart").wait_for(state="detached")
    await page.get_by_label("Chart", exact=True).select_option("columns")
    await page.get_by_role("button", name="Show").click()
    await page.locator("svg.chart").first.wait_for()


@pytest.mark.full
@pytest.mark.asyncio(loop_scope="session")
@pytest.mark.parametrize(("width", "javascript"), [(1280, True), (390, False)])
async def test_chart_of_a_part_is_chosen_on_the_page_of_the_run(
    sqlite_server: Server, open_page: OpenPage, width: int, javascript: bool
) -> None:
    tables = {name: TABLES[name] for name in ("cities.csv", "weeks.csv")}
    run = await asyncio.to_thread(lambda: run_code(sqlite_server, WRITES, **tables))
    at = f"/runs/{run['run_id']}"
    page = await open_page(sqlite_server, at, width=width, javascript=javascript)
    card = page.get_by_role("region", name="weeks.csv", exact=True)
    other = page.get_by_role("region", name="cities.csv", exact=True)
    assert await check_axe(page) == [] if javascript else True
    assert await overflow(page) == []

    async def draw(kind: str) -> None:
        await card.get_by_label("Chart", exact=True).select_option(kind)
        async with page.expect_response(lambda response: f"chart={kind}" in response.url):
            await card.get_by_role("button", name="Draw").click()

    await card.get_by_label("of", exact=True).select_option("south")
    await draw("line")
    await expect(card.get_by_text("South by week")).to_be_visible()
    await expect(other.get_by_text("Sum of amount by city")).to_be_visible()
    assert page.url.endswith(at) is javascript  # the script replaces only the card
    await expect(card.get_by_label("of", exact=True)).to_have_value("south")
    await draw("none")
    await expect(card.locator("svg.chart")).to_have_count(0)
    await expect(card.locator("tbody tr")).to_have_count(12)
    await draw("columns")
    await expect(card.locator("svg.chart")).to_have_count(2)
    assert await check_axe(page) == [] if javascript else True
    assert await problems(page) == []
