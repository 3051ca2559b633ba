"""Insight: what is used and by whom, which skills reach what, and which searches lead nowhere."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, select

from skillery.backends import NetworkUse
from skillery.database import Database
from skillery.database.tables import reach_days, search_days, skills
from skillery.registry.searches import (
    LONGEST,
    MOST_ROWS,
    Searched,
    Searches,
    recorded_searches,
    recorded_words,
    refuse_pending,
    write_searches,
)
from skillery.registry.usage import thin_out
from skillery.registry.uses import User, count_use
from skillery.skills.reach import MOST_TARGETS, OTHERS, count_reach
from tests.cli.test_cli import skillery
from tests.conftest import Rpc, Server, manifest, skill_files
from tests.support.browser import Browser, token_of
from tests.support.people import Caller, Who, headers_of, people_settings
from tests.support.processes import await_early_day, eventually

METHODS = ("get_activity", "list_reach", "list_searches")
FAILS = "def main(args):\n    raise ValueError('no')"
TEXT = {"skill_md": "# A", "files": skill_files()}
CONNECTS = """
import urllib.request
def main(args):
    for host in ('allowed', 'other'):
        try:
            urllib.request.urlopen(f'https://{host}.example.com/')
        except OSError:
            pass
"""


def publisher_of(url: str, name: str, namespace: str) -> Caller:
    return Caller(url, Who(name, "read run publish", f"{namespace}.*"))


def admin_of(url: str) -> Caller:
    return Caller(url, Who("ada", "admin"))


def test_insight_requires_an_admin_or_a_namespace_grant(org: Server, new_name: str) -> None:
    callers = {
        "reader": Who("ron", "read run review", f"{new_name}.*"),
        "without a grant": Who("nils", "read publish"),
    }
    for method in METHODS:
        for who in callers.values():
            assert Caller(org.url, who).error(method)["data"]["type"] == "not_allowed"
        assert publisher_of(org.url, "pia", new_name)(method)
        assert admin_of(org.url)(method)


# -- get_activity ------------------------------------------------------------------------------------------------------


@pytest.mark.full
def test_activity_counts_runs_loads_and_callers_of_the_own_namespace(org: Server, new_name: str) -> None:
    await_early_day()
    mine, other = f"{new_name}a", f"{new_name}b"
    owner, stranger = publisher_of(org.url, "olga", mine), publisher_of(org.url, "sven", other)
    owner.create(f"{mine}.good")
    owner.create(f"{mine}.bad", code=FAILS)
    owner.create(f"{mine}.idle")
    stranger.create(f"{other}.theirs")
    for _ in range(2):
        owner("execute_skill", name=f"{mine}.good", args={"who": "x"})
    stranger("execute_skill", name=f"{mine}.good", args={"who": "x"})
    stranger("execute_skill", name=f"{mine}.bad")
    stranger("execute_skill", name=f"{other}.theirs", args={"who": "x"})
    reader = Caller(org.url, Who("rita"))
    reader.http.headers["user-agent"] = "agent/1"
    reader("read_skill_file", name=f"{mine}.idle", path="SKILL.md")

    expected = 4, 3, 1, 1, 3
    eventually(lambda: counts(owner("get_activity")["total"]) == expected, problem=lambda: owner("get_activity"))
    activity = owner("get_activity")
    assert counts(activity["days"][-1]) == (4, 3, 1, 1, 3)
    assert len(activity["days"]) == 30
    assert counts(activity["before"]) == (0, 0, 0, 0, 0)
    assert [(skill["name"], *counts(skill)) for skill in activity["skills"]] == [
        (f"{mine}.good", 3, 3, 0, 0, 2),
        (f"{mine}.bad", 1, 0, 1, 0, 1),
        (f"{mine}.idle", 0, 0, 0, 1, 1),
    ]
    assert activity["skills"][0]["p95_ms"] > 0
    assert activity["skills"][0]["last_day"] == today()
    assert [(row["caller"], row["runs"], row["loads"], row["skills"]) for row in activity["callers"]] == [
        ("olga", 2, 0, 1),
        ("sven", 2, 0, 2),
        ("rita", 0, 1, 1),
    ]
    assert activity["unused"] == 0
    assert [skill["name"] for skill in owner("get_activity", sort="failed", limit=1)["skills"]] == [f"{mine}.bad"]
    everything = admin_of(org.url)("get_activity", namespace=other)
    assert [skill["name"] for skill in everything["skills"]] == [f"{other}.theirs"]
    assert counts(owner("get_activity", namespace=other)["total"]) == (0, 0, 0, 0, 0)


def test_skills_without_a_use_are_listed(org: Server, new_name: str) -> None:
    owner = publisher_of(org.url, "olga", new_name)
    for name in ("used", "unused"):
        owner.create(f"{new_name}.{name}")
    owner("execute_skill", name=f"{new_name}.used", args={"who": "x"})

    answer = owner("get_activity", sort="unused", days=7)

    assert answer["unused"] == 1
    assert [skill["name"] for skill in answer["skills"]] == [f"{new_name}.unused"]


def test_unused_skills_have_the_day_of_their_last_use(org: Server, new_name: str) -> None:
    owner, name, day = publisher_of(org.url, "olga", new_name), f"{new_name}.old", datetime.now(UTC) - timedelta(40)
    owner.create(name)
    owner.create(f"{new_name}.never")

    def use(connection: Connection) -> None:
        skill_id = connection.scalar(select(skills.c.id).where(skills.c.name == name))
        count_use(connection, skill_id or 0, 0, User("olga", ""), "completed", 1.0, day)

    database = Database(org.database or f"sqlite:///{org.home / 'skillery.db'}")
    database.write_now(use)
    database.close()

    unused = owner("get_activity", sort="unused")["skills"]
    assert [(row["name"], row["last_day"]) for row in unused] == [
        (f"{new_name}.never", None),
        (name, day.date().isoformat()),
    ]
    page = Browser(org.url, **headers_of(Who("olga", "publish read", f"{new_name}.*")), accept="text/html")
    assert day.date().isoformat() in page.get("/insight/use?sort=unused").text


def test_private_skills_of_others_are_not_counted(org: Server, new_name: str) -> None:
    owner, colleague = (publisher_of(org.url, name, new_name) for name in ("olga", "cleo"))
    owner.create(f"{new_name}.hidden")
    owner("set_visibility", name=f"{new_name}.hidden", visibility="private")
    owner("execute_skill", name=f"{new_name}.hidden", args={"who": "x"})

    assert counts(owner("get_activity")["total"])[0] == 1
    answer = colleague("get_activity")
    assert counts(answer["total"]) == (0, 0, 0, 0, 0)
    assert (answer["skills"], answer["callers"], answer["unused"]) == ([], [], 0)


def counts(activity: dict[str, Any]) -> tuple[int, ...]:
    return tuple(activity[name] for name in ("runs", "completed", "failed", "loads", "callers"))


def today() -> str:
    return datetime.now(UTC).date().isoformat()


@pytest.mark.full
def test_activity_of_a_skill_has_its_versions_and_presets_select_skills(org: Server, new_name: str) -> None:
    await_early_day()
    owner, caller = publisher_of(org.url, "olga", new_name), Caller(org.url, Who("cleo"))
    for version in ("1.0.0", "1.1.0"):
        owner.create(f"{new_name}.quick", version)
    owner.create(f"{new_name}.other")
    owner.create(f"{new_name}.idle")
    for version in ("1.0.0", "1.1.0", "1.1.0"):
        caller("execute_skill", name=f"{new_name}.quick", version=version, args={"who": "x"})
    owner("execute_skill", name=f"{new_name}.other", args={"who": "x"})
    owner("deprecate_skill", name=f"{new_name}.quick", message="old")

    activity = owner("get_activity", skill=f"{new_name}.quick", days=7)

    assert counts(activity["total"]) == (3, 3, 0, 0, 1)
    versions = [(each["version"], each["runs"], each["uses_by_day"]) for each in activity["versions"]]
    assert versions == [("1.1.0", 2, [0] * 6 + [2]), ("1.0.0", 1, [0] * 6 + [1])]
    assert [skill["name"] for skill in activity["skills"]] == [f"{new_name}.quick"]
    slow, deprecated = (owner("get_activity", sort=sort)["skills"] for sort in ("slow", "deprecated"))
    assert {skill["name"] for skill in slow} == {f"{new_name}.other", f"{new_name}.quick"}
    assert slow[0]["p95_ms"] >= slow[1]["p95_ms"] > 0
    assert [skill["name"] for skill in deprecated] == [f"{new_name}.quick"]
    assert owner("get_activity")["versions"] == []
    stranger = publisher_of(org.url, "sven", f"{new_name}x")("get_activity", skill=f"{new_name}.quick")
    assert (counts(stranger["total"])[0], stranger["versions"]) == (0, [])
    assert [skill["name"] for skill in owner("list_reach", skill=f"{new_name}.idle")["skills"]] == []


@pytest.mark.full
def test_commands_show_activity_failures_reach_and_searches(tokens_sqlite: Server, new_name: str) -> None:
    token = token_of(tokens_sqlite, new_name, "read", "run", "publish", namespaces=[f"{new_name}.*"])
    owner = Rpc(tokens_sqlite.url, token)
    bad = manifest(f"{new_name}.bad", permissions={"network": ["https://x.example"]})
    owner("create_skill", manifest=bad, skill_md="# A", files=skill_files(FAILS))
    owner("execute_skill", name=f"{new_name}.bad")
    owner("search_skills", query=f"{new_name} nothing")

    def rows(*words: str) -> list[list[str]]:
        shown = skillery("insight", *words, "--url", tokens_sqlite.url, SKILLERY_TOKEN=token)
        assert shown.code == 0, shown.err
        return [line.split("\t") for line in shown.out.splitlines()]

    used = eventually(lambda: (shown := rows("activity"))[1:] and shown)
    assert used[1][:5] == [f"{new_name}.bad", "1", "0", "1", "1"]
    assert rows("activity", "--callers")[1][:5] == [new_name, "1", "0", "1", "1"]
    assert rows("failures")[1][:5] == [f"{new_name}.bad", "ValueError", "1", "1", "1.0.0"]
    owner("create_skill", manifest=manifest(f"{new_name}.top", requires={"skills": {f"{new_name}.bad": "*"}}), **TEXT)
    assert rows("reach", "--all")[1:] == [
        [f"{new_name}.bad", "host", "https://x.example", "-", "0", "0", "-"],
        [f"{new_name}.top", "skill", f"{new_name}.bad@1.0.0", "-", "-", "-", "-"],
    ]
    # One caller is not enough for publishers. Callers of other cases may search for the same words.
    assert [row for row in rows("searches") if new_name in row[0]] == []
    answer = skillery("insight", "reach", "--json", "--url", tokens_sqlite.url, SKILLERY_TOKEN=token).json
    assert answer["skills"][0]["reach"][0]["declared"] is True


# -- list_reach --------------------------------------------------------------------------------------------------------


@pytest.mark.full
def test_reach_lists_declared_and_refused_hosts_and_secrets(org: Server, new_name: str) -> None:
    await_early_day()
    owner = publisher_of(org.url, "olga", new_name)
    name, secret = f"{new_name}.fetch", f"{new_name.upper()}_KEY"
    owner.create(name, code=CONNECTS, permissions={"network": ["https://allowed.example.com"]})
    owner.create(f"{new_name}.keyed", permissions={"secrets": [secret], "network": ["https://*.example.com"]})
    owner.create(f"{new_name}.plain")
    owner("execute_skill", name=name)
    owner("execute_skill", name=f"{new_name}.keyed", args={"who": "x"})

    skills = owner("list_reach")["skills"]

    shown = {
        (skill["name"].removeprefix(f"{new_name}."), reach["target"]): reach
        for skill in skills
        for reach in skill["reach"]
    }
    assert set(shown) == {
        ("fetch", "https://allowed.example.com"),
        ("fetch", "other.example.com"),
        ("keyed", "https://*.example.com"),
        ("keyed", secret),
    }
    refused, key = shown["fetch", "other.example.com"], shown["keyed", secret]
    assert (refused["declared"], refused["granted"], refused["runs"], refused["refused"]) == (False, None, 0, 1)
    assert refused["last_day"] == today()
    declared = shown["fetch", "https://allowed.example.com"]  # the proxy cannot reach it
    assert (declared["declared"], declared["runs"] + declared["refused"]) == (True, 1)
    assert (key["kind"], key["declared"], key["granted"], key["runs"], key["refused"]) == ("secret", True, False, 0, 1)
    never = shown["keyed", "https://*.example.com"]
    assert (never["runs"], never["refused"], never["last_day"]) == (0, 0, None)

    def reaching(target: str) -> list[str]:
        return [skill["name"] for skill in owner("list_reach", target=target)["skills"]]

    assert reaching("https://allowed.example.com") == [name, f"{new_name}.keyed"]
    assert reaching(secret) == [f"{new_name}.keyed"]
    assert reaching(secret[:-1]) == []
    assert reaching("other.example.com") == [name, f"{new_name}.keyed"]
    page = owner("list_reach", limit=1)
    assert [skill["name"] for skill in page["skills"]] == [name]
    rest = owner("list_reach", limit=1, cursor=page["next_cursor"])
    assert ([skill["name"] for skill in rest["skills"]], rest["next_cursor"]) == ([f"{new_name}.keyed"], None)
    assert publisher_of(org.url, "sven", f"{new_name}x")("list_reach", namespace=new_name)["skills"] == []


def test_reach_has_required_skills_with_the_permissions_of_their_calls(org: Server, new_name: str) -> None:
    owner = publisher_of(org.url, "olga", new_name)
    mail, text, top = (f"{new_name}.{each}" for each in ("mail", "text", "top"))
    host, key = f"https://mail.{new_name}.example", f"{new_name.upper()}_KEY"
    owner.create(text)
    owner.create(mail, permissions={"network": [host], "secrets": [key]}, requires={"skills": {text: "^1"}})
    owner.create(top, requires={"skills": {mail: "^1"}})

    skills = owner("list_reach")["skills"]

    assert [(skill["name"], len(skill["reach"])) for skill in skills] == [(mail, 2), (top, 0)]
    assert [
        (each["name"], each["version"], each["range"], each["network"], each["secrets"])
        for each in skills[1]["requires"]
    ] == [(mail, "1.0.0", "^1", [host], [key]), (text, "1.0.0", "", [], [])]
    reaching = {target: owner("list_reach", target=target)["skills"] for target in (host, key, mail, text, f"{top}x")}
    assert {target: [skill["name"] for skill in found] for target, found in reaching.items()} == {
        **{target: [mail, top] for target in (host, key, text)},
        mail: [top],
        f"{top}x": [],
    }


@pytest.mark.parametrize("database_kind", ["sqlite"], indirect=True)
def test_reach_counts_required_skills_that_the_caller_may_not_see(org: Server, new_name: str) -> None:
    base, middle, top = f"{new_name}a.base", f"{new_name}a.middle", f"{new_name}b.top"
    host, key = f"https://h.{new_name}.example", f"{new_name.upper()}_KEY"
    ann, bob = publisher_of(org.url, "ann", f"{new_name}a"), publisher_of(org.url, "bob", f"{new_name}b")
    ann.create(base, permissions={"network": [host], "secrets": [key]})
    ann.create(middle, requires={"skills": {base: "*"}})
    for name in (base, middle):
        ann("set_visibility", name=name, visibility="public")
    bob.create(top, requires={"skills": {middle: "*"}})
    ann("set_visibility", name=base, visibility="private")

    [reach] = bob("list_reach")["skills"]

    assert ([each["name"] for each in reach["requires"]], reach["requires_hidden"]) == ([middle], 1)
    assert all(bob("list_reach", target=target)["skills"] == [] for target in (base, host, key))
    assert [skill["name"] for skill in bob("list_reach", target=middle)["skills"]] == [top]
    assert ann("list_reach", skill=middle)["skills"][0]["requires_hidden"] == 0
    assert [skill["name"] for skill in ann("list_reach", target=host)["skills"]] == [base, middle]
    token = {"x-who": "bob;person;read run publish;" + f"{new_name}b.*"}
    browser = Browser(org.url, accept="text/html", **token)
    assert f"{top},skill,1 hidden skill,,,,,,,," in browser.get("/insight/reach?as=csv").text.splitlines()
    for path in ("/insight/reach", f"/s/{top}/insight"):
        page = browser.get(path).text
        assert "1 hidden skill" in page
        assert base not in page


def test_refused_hosts_of_a_day_are_bounded(database: Database) -> None:
    await_early_day()
    skill, moment = 10**9 + 1, datetime.now(UTC)
    for start in range(0, 3 * MOST_TARGETS, MOST_TARGETS // 2):
        uses = [NetworkUse(f"h{start + number}.test", 443, False, "no") for number in range(MOST_TARGETS // 2)]
        database.write_now(partial(count_reach, skill_id=skill, network=uses, secrets=[], finished_at=moment))

    stored = select(reach_days.c.target, reach_days.c.refused).where(reach_days.c.skill_id == skill)
    rows = dict(database.read_now(lambda connection: connection.execute(stored).all()))
    assert len(rows) == MOST_TARGETS + 1
    assert rows[OTHERS] == 4


# -- list_searches -----------------------------------------------------------------------------------------------------


@pytest.mark.full
def test_searches_that_lead_nowhere_are_wanted(org: Server, new_name: str) -> None:
    await_early_day()
    owner = publisher_of(org.url, "olga", new_name)
    owner.create(f"{new_name}.tailor", description=f"Sew a {new_name} coat.")
    for who in ("una", "uwe", "uta"):
        caller = Caller(org.url, Who(f"{who}{new_name}"))
        caller("search_skills", query=f"absent{new_name} xq@zv")
        caller("search_skills", query=f"{new_name} Coat")
    caller("execute_skill", name=f"{new_name}.tailor", args={"who": "x"})
    Caller(org.url, Who(f"una{new_name}"))("describe_skill", name=f"{new_name}.tailor")
    Caller(org.url, Who(f"una{new_name}"))("search_skills", query=f"alone{new_name}")

    def searches(caller: Caller, **params: Any) -> dict[str, tuple[int, ...]]:
        rows = caller("list_searches", limit=1000, **params)["searches"]
        return {
            row["words"]: tuple(row[name] for name in ("times", "matched", "opened", "callers"))
            for row in rows
            if new_name in row["words"]
        }

    everything = {
        f"absent{new_name}": (3, 0, 0, 3),
        f"{new_name} coat": (3, 3, 2, 3),
        f"alone{new_name}": (1, 0, 0, 1),
    }
    admin = admin_of(org.url)
    eventually(lambda: searches(admin) == everything, problem=lambda: searches(admin))
    assert searches(admin, wanted=True) == {
        words: everything[words] for words in (f"absent{new_name}", f"alone{new_name}")
    }
    # A publisher sees no words of a single caller.
    assert searches(owner, wanted=True) == {f"absent{new_name}": (3, 0, 0, 3)}


@pytest.mark.full
def test_settings_switch_the_record_of_searches_and_callers_off(
    start_server: Callable[..., Server], tmp_path: Path
) -> None:
    settings = {"SKILLERY_INSIGHT_KEEP_SEARCHES": "false", "SKILLERY_INSIGHT_CALLERS": "false"}
    url = start_server(env=people_settings(tmp_path / "people", **settings)).url
    admin = admin_of(url)
    admin("search_skills", query="nothing like this")
    admin("execute_skill", name="text.csv.profile", args={"text": "a,b\n1,2\n"})
    reader = Caller(url, Who("rita"))
    reader.http.headers["user-agent"] = "agent/1"
    reader("read_skill_file", name="text.csv.profile", path="SKILL.md")

    activity = eventually(lambda: (answer := admin("get_activity"))["total"]["loads"] and answer)

    assert activity["total"]["callers"] == 2
    assert activity["callers"] == []
    assert admin("list_searches")["searches"] == []


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("  Fill a\tPDF form ", "fill a pdf form"),
        ("mail ann@example.com today", "mail today"),
        ("key 0123456789abcdefghij", "key"),
        ("0123456789abcdefghi", "0123456789abcdefghi"),
        ("a\x00b csv", "csv"),
        ("x " * 200, ("x " * 40).strip()),
        ("@", ""),
    ],
)
def test_private_words_of_a_search_are_not_recorded(query: str, words: str) -> None:
    assert recorded_words(query) == words
    assert len(words) <= LONGEST


def test_searches_noted_before_a_purge_are_not_recorded(database: Database) -> None:
    searches = Searches()

    def write() -> None:
        changes = partial(write_searches, counts=searches.take(), mark=searches.mark)
        searches.drop_unless(database.write_now(changes))

    searches.note("ann", "hunter2 password", ["a.b"])
    database.write_now(refuse_pending)
    write()
    searches.open("ann", "a.b")
    searches.note("bob", "csv files", ["a.b"])
    write()

    assert [words for _, words in database.read_now(lambda connection: [*recorded_searches(connection)])] == [
        "csv files"
    ]


def test_a_search_while_typing_counts_once() -> None:
    now = 0.0
    searches = Searches(clock=lambda: now)
    for query in ("c", "csv", "csv pro", "csv"):
        searches.note("ann", query, ["text.csv"])
    searches.note("bob", "csv pro", [])
    now = 60.0
    searches.note("ann", "csv profile", ["text.csv"])
    searches.open("ann", "text.other")
    searches.open("ann", "text.csv")
    searches.open("ann", "text.csv")
    searches.note("ann", "csv profile of mine", ["text.csv"])
    now = 1000.0
    searches.open("ann", "text.csv")

    assert {(key.caller, key.words): counts for key, counts in searches.take().items() if any(counts)} == {
        ("ann", "csv"): (1, 1, 0),
        ("bob", "csv pro"): (1, 0, 0),
        ("ann", "csv profile"): (1, 1, 1),
        ("ann", "csv profile of mine"): (1, 1, 0),
    }


def test_words_of_a_day_are_bounded_and_old_days_removed(database: Database) -> None:
    days = [(date(1990, 1, 1) + timedelta(days=number)).isoformat() for number in range(2)]

    def write(connection: Connection) -> int:
        for day in days:
            write_searches(
                connection, {Searched(day, f"w{number}", ""): (1, 0, 0) for number in range(MOST_ROWS)}, None
            )
        write_searches(connection, {Searched(days[0], word, ""): (1, 1, 0) for word in ("w7", "new")}, None)
        of_day = select(search_days).where(search_days.c.day == days[0], search_days.c.words.in_(["w7", "new"]))
        assert [tuple(row) for row in connection.execute(of_day)] == [(days[0], "w7", "", 2, 1, 0)]
        thin_out(connection)
        return len(connection.execute(select(search_days).where(search_days.c.day.in_(days))).all())

    assert database.write_now(write) == 0
