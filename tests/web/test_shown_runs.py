"""Pages of a skill with a past: the life of its versions, and runs that return each kind of part."""

from __future__ import annotations

import html
import re

import pytest

from tests.conftest import Server
from tests.support.browser import Browser
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
