"""`/insight`: for admins, and for publishers about their namespaces. The skills around a skill, on its page."""

from __future__ import annotations

import html
import re

import pytest

from tests.conftest import Rpc, Server, publisher
from tests.registry.test_insight import CONNECTS, FAILS
from tests.support.browser import Browser
from tests.support.chromium import OpenPage, faults
from tests.support.people import Caller, Who
from tests.support.processes import await_early_day, eventually

FAILS_IF = "def main(args):\n    if args['fails']:\n        raise ValueError('no')\n"
HTML = {"accept": "text/html"}
PAGES = (
    "/insight",
    "/insight/use",
    "/insight/use?by=caller",
    "/insight/use?sort=unused",
    "/insight/reach",
    "/insight/reach?by=host",
    "/insight/searches",
)


def browser_of(server: Server, who: Who) -> Browser:
    return Browser(server.url, **HTML, **{"x-who": f"{who.name};{who.kind};{who.scopes};{who.grants}"})


def text_of(page: str) -> str:
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", page)).split())


@pytest.mark.full
def test_pages_of_insight_show_the_own_namespace_and_hide_from_others(org: Server, new_name: str) -> None:
    mine, other = f"{new_name}a", f"{new_name}b"
    owner, stranger = (Caller(org.url, Who(f"w-{name}", "read run publish", f"{name}.*")) for name in (mine, other))
    owner.create(f"{mine}.fetch", code=CONNECTS, permissions={"network": ["https://allowed.example.com"]})
    owner.create(f"{mine}.bad", code=FAILS)
    stranger.create(f"{other}.theirs")
    owner("execute_skill", name=f"{mine}.fetch")
    owner("execute_skill", name=f"{mine}.bad")
    stranger("execute_skill", name=f"{other}.theirs", args={"who": "x"})
    publishers = browser_of(org, Who(f"w-{mine}", "read run publish", f"{mine}.*"))
    admin, reader = browser_of(org, Who("ada", "admin")), browser_of(org, Who("ron", "read run"))

    for path in PAGES:
        assert reader.get(path).status_code == 404
        assert other not in publishers.get(path).text
        assert 'href="/insight" aria-current="page"' in admin.get(path).text
    assert reader.get(f"/s/{mine}.bad/insight").status_code == 404
    assert publishers.get(f"/s/{other}.theirs/insight").status_code == 404
    assert 'href="/insight"' not in reader.get("/").text
    overview = text_of(publishers.get("/insight").text)
    assert "Uses 2" in overview
    assert "Runs that failed 50.0 %" in overview
    assert 'aria-label="95th percentile by day, in milliseconds"' in publishers.get("/insight").text
    assert f"{mine}.bad" in overview
    assert "ValueError : no" in overview
    assert f"w-{mine} 2 2 0 50 %" in text_of(publishers.get("/insight/use?by=caller").text)
    assert f"{mine}.bad 1 0 1 100 %" in text_of(publishers.get("/insight/use?sort=failed").text)
    assert "No deprecated skill was used" in publishers.get("/insight/use?sort=deprecated").text
    of_skill = text_of(publishers.get(f"/s/{mine}.fetch/insight?days=7").text)
    assert "1.0.0 1 0 1 0 %" in of_skill
    assert "https://allowed.example.com" in of_skill
    assert "What fails" not in of_skill
    assert "ValueError : no" in text_of(publishers.get(f"/s/{mine}.bad/insight").text)
    assert f'href="/s/{mine}.bad@1.0.0/insight"' in publishers.get(f"/s/{mine}.bad").text
    assert "/insight" not in reader.get(f"/s/{mine}.bad").text.partition("<main")[2]
    reach = publishers.get("/insight/reach")
    assert f"{mine}.fetch : 1 run did not get other.example.com , which its permissions do not name" in text_of(
        reach.text
    )
    assert f"{mine}.bad" not in reach.text
    by_host = text_of(publishers.get("/insight/reach?by=host").text)
    assert f"other.example.com {mine}.fetch 0 1" in by_host
    assert f"allowed.example.com {mine}.fetch" in by_host
    assert "No skill may reach nowhere.example.com" in text_of(
        publishers.get("/insight/reach?target=nowhere.example.com").text
    )
    assert f"{other}.theirs" in admin.get(f"/insight?ns={other}&days=7").text
    wrong = admin.get("/insight?ns=No+Namespace&sort=odd&days=x")
    assert wrong.status_code == 200
    assert 'role="alert"' in wrong.text


def test_reach_shows_required_skills_with_their_hosts_and_their_dependents(org: Server, new_name: str) -> None:
    who = Who(f"w-{new_name}", "read run publish", f"{new_name}.*")
    owner, browser = Caller(org.url, who), browser_of(org, who)
    base, mail, top = (f"{new_name}.{each}" for each in ("base", "mail", "top"))
    owner.create(base)
    owner.create(mail, permissions={"network": ["https://m.example.com"]}, requires={"skills": {base: "*"}})
    owner.create(top, requires={"skills": {mail: "^1"}})

    page = text_of(browser.get("/insight/reach").text)
    assert f"{mail} {base} 1.0.0 imports it no own permissions" in page
    assert f"{top} {mail} 1.0.0 calls it m.example.com" in page
    assert f"{top} {base} 1.0.0 through other required skills no own permissions" in page
    through = text_of(browser.get("/insight/reach?target=https://m.example.com").text)
    assert f"{top} {mail} 1.0.0 calls it" in through
    rows = browser.get("/insight/reach?as=csv").text.splitlines()
    assert f"{top},skill,{mail}@1.0.0,,,,,,,," in rows
    assert f"{top},host,https://m.example.com,,,,,,,,{mail}" in rows
    of_base = text_of(browser.get(f"/s/{base}/insight").text)
    assert (
        f"Dependents Version Requires Runs in 30 days {top} 1.0.0 1.0.0 through another skill 0 {mail} 1.0.0" in of_base
    )
    assert (
        f"Required skills a called skill keeps its own permissions Requires How What it may use {mail} 1.0.0"
        in text_of(browser.get(f"/s/{top}/insight").text)
    )


def rail(server: Server, who: Who, name: str) -> str:
    """Return the words of the facts next to the text of a skill."""
    return text_of(browser_of(server, who).get(f"/s/{name}").text.partition('<aside class="rail"')[2])


def test_the_rail_names_required_skills_that_the_reader_sees(org: Server, new_name: str) -> None:
    owner, reader = Caller(org.url, Who(f"w-{new_name}", "read run publish", f"{new_name}.*")), Who("ron")
    base, text, top = (f"{new_name}.{each}" for each in ("base", "text", "top"))
    owner.create(base, permissions={"network": ["https://m.example.com"]})
    owner.create(text, requires={"skills": {base: "^1"}}, kind="instruction")
    owner.create(top, requires={"skills": {text: "*"}}, kind="instruction")

    assert f"Depends on {base} ^1 , calls it Needed by {top} * , imports it This version" in rail(org, reader, text)
    assert f"Depends on {text} * , imports it This version" in rail(org, reader, top)
    owner("set_visibility", name=base, visibility="namespace")
    assert "Depends on" not in rail(org, reader, text)


def test_the_rail_names_dependents_that_the_reader_sees(org: Server, new_name: str) -> None:
    who, reader = Who(f"w-{new_name}", "read run publish", f"{new_name}.*"), Who("ron")
    owner = Caller(org.url, who)
    base, top, former, hidden = (f"{new_name}.{each}" for each in ("base", "top", "former", "hidden"))
    owner.create(base, kind="instruction")
    for name in (top, former, hidden):
        owner.create(name, requires={"skills": {base: ">=1"}}, kind="instruction")
    owner.create(former, "1.1.0", kind="instruction")
    owner("set_visibility", name=hidden, visibility="namespace")

    assert f"Needed by {top} >=1 , imports it This version" in rail(org, reader, base)
    assert f"Needed by {hidden} >=1 , imports it {top} >=1 , imports it" in rail(org, who, base)
    assert "Needed by" not in rail(org, reader, top)


def test_the_rail_names_skills_that_the_same_callers_used(org: Server, new_name: str) -> None:
    await_early_day()
    who, reader = Who(f"w-{new_name}", "read run publish", f"{new_name}.*"), Who("ron")
    ann, bob, all_reader = (Caller(org.url, Who(f"{each}-{new_name}", grants=f"{new_name}.*")) for each in "abm")
    owner = Caller(org.url, who)
    first, pair, hidden, once = (f"{new_name}.{each}" for each in ("first", "pair", "hidden", "once"))
    for name in (first, pair, hidden, once):
        owner.create(name)
    owner("set_visibility", name=hidden, visibility="namespace")
    for caller, names in ((ann, (first, pair, hidden, once)), (bob, (first, first, pair, hidden)), (owner, (once,))):
        for name in names:
            caller("execute_skill", name=name, args={"who": "x"})
    # A caller with so many programs is one that reads all skills.
    for number in range(51):
        all_reader.http.headers["user-agent"] = f"program{number}x"
        for name in (first, once):
            all_reader("read_skill_file", name=name, path="SKILL.md")
    eventually(lambda: loads_of(owner, new_name) == {first: 51, once: 51})

    assert f"Used together with {pair} 2 times This version" in rail(org, reader, first)
    assert f"Used together with {hidden} 2 times {pair} 2 times" in rail(org, who, first)
    assert "Used together with" not in rail(org, who, once)


def loads_of(rpc: Rpc, namespace: str) -> dict[str, int]:
    skills = rpc("list_skill_usage", namespace=namespace)["skills"]
    return {skill["name"]: skill["loads"] for skill in skills if skill["loads"]}


@pytest.mark.full
def test_pages_and_csv_show_the_numbers_of_the_methods(org: Server, new_name: str) -> None:
    """Compare the facts of each page with the results of its method."""
    who = Who(f"w-{new_name}", "read run publish", f"{new_name}.*")
    owner, browser = Caller(org.url, who), browser_of(org, who)
    name, stranger = f"{new_name}.fetch", Caller(org.url, Who(f"s-{new_name}"))
    for version in ("1.0.0", "1.1.0"):
        owner.create(name, version, code=FAILS_IF, permissions={"network": ["https://allowed.example.com"]})
        for fails in (False, True, True):
            stranger("execute_skill", name=name, args={"fails": fails})
        owner("execute_skill", name=name, args={"fails": False})

    activity = eventually(lambda: (found := owner("get_activity", skill=name, days=7))["total"]["runs"] == 8 and found)
    failures = owner("list_failures", skill=name, days=7)["failures"]
    [reach] = owner("list_reach", skill=name, days=7)["skills"]
    html_of_skill = browser.get(f"/s/{name}/insight?days=7").text
    page = text_of(html_of_skill)

    total, before = activity["total"], activity["before"]
    assert (total["failed"], total["completed"], total["callers"], before["runs"]) == (4, 4, 2, 0)
    assert f"Uses {total['runs'] + total['loads']} " in page
    assert f"Callers {total['callers']} " in page
    assert f"Runs that failed {100 * total['failed'] / (total['failed'] + total['completed']):.1f} %" in page
    assert f"95th percentile {activity['p95_ms']:,.0f} ms" in page
    assert f"Runs by day {total['runs']} runs, {total['failed']} failed" in page
    assert (
        f"Runs by day from {activity['days'][0]['day']} to {activity['days'][-1]['day']}: 8, of which 4"
        in html_of_skill
    )
    assert [row["version"] for row in activity["versions"]] == ["1.1.0", "1.0.0"]
    for row in activity["versions"]:
        assert f"{row['version']} {row['runs']} {row['loads']} {row['callers']} {_share(row)} %" in page
        assert f"Uses of {row['version']} by day: {sum(row['uses_by_day'])}" in html_of_skill
    for row in activity["callers"]:
        assert f"{row['caller']} {row['runs']} {row['loads']} {_share(row)} %" in page
    assert failures[0]["runs"] == total["failed"]
    for failure in failures:
        assert f"{failure['runs']} runs of {failure['callers']} caller" in page
        assert f"{name} {failure['last_version']} since {failure['since_version']}" in page
        assert f"{failure['error_type']} : {failure['message']}" in page
    for target in reach["reach"]:
        assert target["target"] in page
    (listed,) = owner("get_activity", namespace=new_name, days=7)["skills"]
    wide = text_of(browser.get(f"/insight/use?ns={new_name}&days=7").text)
    assert f"{name} {listed['runs']} {listed['loads']} {listed['callers']} {_share(listed)} %" in wide
    columns = ("version", "runs", "loads", "callers", "failed", "busy_ms")
    assert browser.get(f"/s/{name}/insight?days=7&as=csv").text.splitlines()[1:] == [
        ",".join(str(row[column]) for column in columns) for row in activity["versions"]
    ]


def _share(row: dict[str, int]) -> int:
    return round(100 * row["failed"] / (row["failed"] + row["completed"]))


def test_rows_of_insight_are_downloaded_as_csv(org: Server, new_name: str) -> None:
    owner = Who(f"w-{new_name}", "read run publish", f"{new_name}.*")
    permissions = {"network": ["https://a.example.com"], "secrets": ["UNSET_KEY"]}
    Caller(org.url, owner).create(f"{new_name}.idle", permissions=permissions)
    browser = browser_of(org, owner)

    skills = browser.get("/insight/use?sort=unused&as=csv")

    assert skills.headers["content-type"] == "text/csv; charset=utf-8"
    assert skills.headers["content-disposition"] == 'attachment; filename="use.csv"'
    assert skills.text.splitlines() == [
        "skill,runs,loads,callers,failed,p95_ms,busy_ms,last_day",
        f"{new_name}.idle,0,0,0,0,,0,",
    ]
    assert browser.get("/insight/reach?as=csv").text.splitlines()[1:] == [
        f"{new_name}.idle,host,https://a.example.com,True,,0,0,0,0,,",
        f"{new_name}.idle,secret,UNSET_KEY,True,False,0,0,0,0,,",
    ]
    assert browser.get("/insight/reach?by=host&as=csv").text.splitlines() == [
        "kind,target,skills,runs,refused,last_day",
        f"host,https://a.example.com,{new_name}.idle,0,0,",
        f"secret,UNSET_KEY,{new_name}.idle,0,0,",
    ]
    assert '<span class="dot off">no value</span>' in browser.get("/insight/reach?by=host").text
    assert browser.get("/insight/use?by=caller&as=csv").text.splitlines()[0].startswith("caller,skills,runs")
    of_skill = browser.get(f"/s/{new_name}.idle/insight?as=csv")
    assert of_skill.headers["content-disposition"] == f'attachment; filename="{new_name}.idle.csv"'
    assert of_skill.text.splitlines() == ["version,runs,loads,callers,failed,busy_ms"]
    assert browser.get("/insight/searches?as=csv").text.splitlines()[0].startswith("words")


@pytest.mark.full
@pytest.mark.asyncio(loop_scope="session")
async def test_insight_is_accessible_and_fits(sqlite_server: Server, open_page: OpenPage, new_name: str) -> None:
    publish = publisher(sqlite_server.rpc)
    hosts = [f"https://a{number}.example.com" for number in range(15)]
    publish(f"{new_name}.fetch", code=CONNECTS, permissions={"network": hosts, "secrets": ["A_KEY"]})
    publish(f"{new_name}.bad", code=FAILS)
    for name in ("fetch", "bad"):
        sqlite_server.rpc("execute_skill", name=f"{new_name}.{name}")
    sqlite_server.rpc("search_skills", query=f"nothing{new_name}")
    page = await open_page(sqlite_server, "/insight")
    for path in (*PAGES, f"/s/{new_name}.fetch/insight", f"/s/{new_name}.bad/insight"):
        await page.goto(path)
        assert await faults(page) == []
