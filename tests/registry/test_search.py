"""search_skills: results, their order and their snippets, equal on both databases."""

from __future__ import annotations

import itertools
import os
import re
import tomllib
import unicodedata
from importlib.resources import files
from typing import Any, NamedTuple

import msgspec
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from sqlalchemy import Connection, text

from skillery.backends import Identity
from skillery.builtin.open_authenticator import LOCAL
from skillery.database import Database, migrate
from skillery.errors import InvalidParams
from skillery.formats.foreign_skill import registry_name
from skillery.formats.search_fields import search_fields, snippet_of
from skillery.formats.texts import normalized
from skillery.formats.words import Term, find_words, parse_query, stem_of, words_of
from skillery.skills.search import find_skills
from skillery.skills.search_index import add_rows, indexed
from skillery.versions.new_versions import rebuild_derived_rows
from tests.cli.test_cli import skillery
from tests.conftest import Rpc, Server, manifest
from tests.support.forms import rounds
from tests.support.growth import check_growth, spent_here
from tests.support.people import Caller, Who

_numbers = itertools.count()


def publish(rpc: Rpc, name: str, version: str = "1.0.0", *, body: str | None = None, **more: Any) -> None:
    """Publish a skill. Without `body`, the name is the text, so that no two skills are copies."""
    given = {"kind": "instruction", "description": "-", **more}
    body = f"Text of {name}." if body is None else body
    rpc("create_skill", manifest=manifest(name, version, **given), skill_md=f"---\nauthor: Zzyzx\n---\n{body}\n")


@pytest.fixture
def new_word() -> str:
    """Return a word that no other test uses."""
    return f"zq{next(_numbers)}q"


def search(rpc: Rpc, query: str, **more: Any) -> list[dict[str, Any]]:
    skills: list[dict[str, Any]] = rpc("search_skills", query=query, **more)["skills"]
    return skills


def names(rpc: Rpc, query: str, **more: Any) -> list[str]:
    return [skill["name"] for skill in search(rpc, query, **more)]


# -- ranking ---------------------------------------------------------------------------------------------------------


def test_rank_prefers_name_then_description_then_tags_then_text(rpc: Rpc, new_name: str, new_word: str) -> None:
    # The order of the names is not the expected order.
    publish(rpc, f"{new_name}.a", body=f"Some {new_word} here. " + f"{new_word} " * 500)
    publish(rpc, f"{new_name}.b", tags=["x", f"{new_word}-y"])
    publish(rpc, f"{new_name}.c", description=f"About {new_word}, {new_word} and {new_word}.")
    publish(rpc, f"{new_name}.d-{new_word}")
    publish(rpc, f"{new_name}.e", body="Nothing.")
    publish(rpc, f"{new_name}.{new_word}")

    found = search(rpc, new_word)
    ranked = [skill["name"].removeprefix(f"{new_name}.") for skill in found]
    assert ranked == [new_word, f"d-{new_word}", "c", "b", "a"]
    scores = [skill["score"] for skill in found]
    assert scores == sorted(scores, reverse=True)
    assert 0 < scores[-1] < scores[0] <= 1


def test_search_row_adds_score_snippet_and_copies_to_a_list_row(rpc: Rpc, new_name: str, new_word: str) -> None:
    publish(rpc, f"{new_name}.a", description=f"Counts {new_word} leads.", tags=["Sales"])

    (row,) = search(rpc, new_word)
    assert row.pop("snippet") == f"Counts «{new_word}» leads."
    assert 0 < row.pop("score") <= 1
    assert row.pop("copies") == 1
    assert [row] == rpc("list_skills", namespace=new_name, detail="summary")["skills"]


def test_most_words_must_be_there_and_the_last_may_be_unfinished(rpc: Rpc, new_name: str, new_word: str) -> None:
    name = f"{new_name}.{new_word}"
    publish(rpc, name, description="Profiles tables.", tags=["CSV"], body="Rows and columns.")
    publish(rpc, f"{new_name}.other", description=f"Knows {new_word}.", body="Rows.")

    for query in (
        f"{new_word} profile table csv row column",
        f"{new_word} zzxcolumn",
        f"COLUMNS profiling {new_word}",
        f"how do I profile a {new_word}",
        f"{new_word} nothing",
        f"{new_word[:-1]}",
        f"{new_name}.{new_word}",
        f"{new_name}_{new_word}/csv",
    ):
        assert names(rpc, query)[0] == name, query
    for query in (f"{new_word}x", f"{new_word[1:]}", "zzyzx"):
        assert name not in names(rpc, query), query


def test_search_matches_word_forms_typos_and_vague_questions(rpc: Rpc, new_name: str) -> None:
    publish(rpc, f"{new_name}.zebraforms", description="Deploys zebras and summarises their stripes.", tags=["colour"])
    publish(rpc, f"{new_name}.zoo", description="Feeds giraffes with a front-end.", body="The meerkat is a mongoose.")

    for query in (
        "zebra stripe deployment", "deploying zebras", "summarizing zebra stripes", "zebraform color",  # forms
        "zerba stirpes", "zebrafroms", "deplyo zebrs",  # typos
        "how do I get my zebras deployed before the weekend",
        "zebra forms",
    ):  # fmt: skip
        assert names(rpc, query, namespace=new_name)[:1] == [f"{new_name}.zebraforms"], query
    for query in ("girafe frontend", "mongooses", "meerk"):
        assert names(rpc, query, namespace=new_name) == [f"{new_name}.zoo"], query


def test_words_without_a_subject_find_nothing(rpc: Rpc, new_name: str, new_word: str) -> None:
    publish(rpc, f"{new_name}.subject", description=f"Prices of {new_word}.")
    publish(
        rpc, f"{new_name}.other", description="Texts.", body="So much for everyone: over every hill, without anybody."
    )

    query = f"how much over the price can everyone, without every reason, ask for {new_word}"
    assert names(rpc, query, namespace=new_name) == [f"{new_name}.subject"]


def test_typo_correction_skips_known_words_short_words_and_numbers(rpc: Rpc, new_name: str) -> None:
    publish(rpc, f"{new_name}.one", description="Quokkas of 20244 in zix.")
    publish(rpc, f"{new_name}.two", description="Quokkat of 20245 in zax.")

    assert names(rpc, "quokkat") == [f"{new_name}.two"]
    for query in ("20246", "zox"):
        assert names(rpc, query, namespace=new_name) == [], query


def test_search_groups_identical_skills_and_counts_them(rpc: Rpc, new_name: str, new_word: str) -> None:
    for name in ("a.copied", "b.copied", "c.copied-2"):
        publish(rpc, f"{new_name}.{name}", description=f"About {new_word}.", body="Same.")
    publish(rpc, f"{new_name}.d.copied", description=f"About {new_word}.", body="Another.")

    assert [(one["name"], one["copies"]) for one in search(rpc, f"{new_word} copied", namespace=new_name)] == [
        (f"{new_name}.a.copied", 3),
        (f"{new_name}.d.copied", 1),
    ]
    assert [(one["name"], one["copies"]) for one in search(rpc, new_word, namespace=f"{new_name}.b")] == [
        (f"{new_name}.b.copied", 1)
    ]
    first = rpc("search_skills", query=new_word, limit=1)
    rest = rpc("search_skills", query=new_word, limit=9, cursor=first["next_cursor"])
    assert [one["name"] for one in rest["skills"]] == [f"{new_name}.d.copied"]


def test_search_shows_the_original_of_look_alikes(rpc: Rpc, new_name: str, new_word: str) -> None:
    said = f"Draws {new_word} charts from tables of sales figures"
    publish(rpc, f"{new_name}.a.draw-charts", description=said)
    publish(rpc, f"{new_name}.b.draw_charts-2", description=f"{said} quickly")
    publish(rpc, f"{new_name}.c.charts", description=said)
    publish(rpc, f"{new_name}.d.draw-charts", description=f"Paints {new_word} walls, doors and windows of houses")

    found = search(rpc, new_word, namespace=new_name)
    shown = [(skill["name"].removeprefix(f"{new_name}."), skill["copies"]) for skill in found]
    assert sorted(shown) == [("a.draw-charts", 2), ("c.charts", 1), ("d.draw-charts", 1)]
    pages = rpc("search_skills", query=new_word, namespace=new_name, counts=True, sort="name", limit=1)
    assert (pages["total"], pages["skills"][0]["name"]) == (3, f"{new_name}.a.draw-charts")


def test_look_alikes_show_the_official_and_not_the_deprecated_skill(rpc: Rpc, new_name: str, new_word: str) -> None:
    for name in "abc":
        publish(rpc, f"{new_name}.{name}.chart", description=f"Draws {new_word} charts")

    def shown() -> list[tuple[str, int]]:
        return [(skill["name"], skill["copies"]) for skill in search(rpc, new_word)]

    assert shown() == [(f"{new_name}.a.chart", 3)]
    rpc("deprecate_skill", name=f"{new_name}.a.chart", message="old")
    assert shown() == [(f"{new_name}.b.chart", 3)]
    rpc("set_label", name=f"{new_name}.c.chart", label="official", version="1.0.0")
    assert shown() == [(f"{new_name}.c.chart", 3)]


def test_look_alikes_show_the_import_of_the_smallest_source(database: Database) -> None:
    migrate.upgrade(database)

    def fill(connection: Connection) -> None:
        for number, (name, source) in enumerate((("own.chart", ""), ("much.chart", "s/much"), ("few.chart", "s/few"))):
            add_skill(connection, number + 1, name, "Draws charts of sales")
            for path in ("chart", "other")[: len(source) - 4]:
                alias = {"namespace": name[:-6], "source": source, "path": path, "stated": path, "source_digest": ""}
                named = name if path == "chart" else "x.other"
                more = {"name": named, "owns": True, "version": "1.0.0", "identity": "me", "imported_at": NOW}
                insert(connection, "import_aliases", alias | more)

    database.write_now(fill)
    asked: dict[str, Any] = {"kind": "", "tags": [], "namespace": "", "limit": 9, "cursor": ""}
    page = database.read_now(lambda connection: find_skills(connection, LOCAL, b"k" * 32, query="charts", **asked))
    assert [(skill.name, skill.copies) for skill in page.skills] == [("few.chart", 3)]


@pytest.mark.parametrize("limit", [1, 9])
@pytest.mark.full(after=2)
def test_deprecated_skills_follow_their_successors(rpc: Rpc, new_name: str, new_word: str, limit: int) -> None:
    for name in ("a", "b", "c", "d", "e", "f"):
        publish(rpc, f"{new_name}.{name}", description=f"Does {new_word} work. {name * 9}")

    def ranked() -> str:
        found, cursor = "", ""
        while True:
            page = rpc("search_skills", query=new_word, limit=limit, cursor=cursor or None)
            found += "".join(skill["name"].removeprefix(f"{new_name}.") for skill in page["skills"])
            if not (cursor := page["next_cursor"]):
                return found

    def deprecate(name: str, successor: str) -> None:
        rpc("deprecate_skill", name=f"{new_name}.{name}", message="old", successor=f"{new_name}.{successor}")

    assert ranked() == "abcdef"
    deprecate("b", "e")
    assert ranked() == "aebcdf"
    deprecate("f", "b")
    deprecate("d", "absent")
    assert ranked() == "aebfcd"
    deprecate("e", "f")
    assert ranked() == "abcdef"
    rpc("undeprecate_skill", name=f"{new_name}.e")
    assert ranked() == "aebfcd"


def test_search_for_a_whole_name_shows_no_look_alike(rpc: Rpc, new_name: str) -> None:
    for owner in ("one", "two"):
        publish(rpc, f"{new_name}{owner}.words", description="Counts the words of a long text")

    for owner in ("one", "two"):
        assert names(rpc, f"{new_name}{owner}.words")[0] == f"{new_name}{owner}.words"


def test_search_matches_words_of_all_scripts(rpc: Rpc, new_name: str, new_word: str) -> None:
    publish(rpc, f"{new_name}.a", description=f"{new_word} Größe naïve café Москва 東京都 हिन्दी ١٢٣ ﬁn ½ emoji 🎉 end")

    for word in "GRÖSSE größe grosse naive cafe\u0301 CAFÉ москв 京 東京 हिन्दी ١٢٣ fin".split():  # noqa: SIM905
        assert names(rpc, f"{new_word} {word}", namespace=new_name) == [f"{new_name}.a"], word
        assert names(rpc, word, namespace=new_name) == [f"{new_name}.a"], word


def test_chinese_and_japanese_match_by_pairs_of_characters(rpc: Rpc, new_name: str) -> None:
    publish(rpc, f"{new_name}.a", description="合并和拆分文档")
    publish(rpc, f"{new_name}.b", description="文字与档案")
    publish(rpc, f"{new_name}.c", description="データ・ベースを移行する")

    for query, expected in (
        ("拆分文档", "a"),
        ("文档", "a"),
        ("档案", "b"),
        ("移行", "c"),
        ("タベ", ""),
        ("案", "b"),
    ):
        found = names(rpc, query, namespace=new_name)
        assert found == [f"{new_name}.{name}" for name in expected], query
    assert search(rpc, "拆分文档", namespace=new_name)[0]["snippet"] == "合并和«拆分文档»"


def test_synonyms_count_half(rpc: Rpc, new_name: str, new_word: str) -> None:
    publish(rpc, f"{new_name}.a", description=f"Edits spreadsheets, {new_word}")
    publish(rpc, f"{new_name}.b", description=f"Edits xlsx, {new_word}")
    publish(rpc, f"{new_name}.c", description=f"Data protection, {new_word}")
    publish(rpc, f"{new_name}.d", description=f"Data lacks protection, {new_word}", tags=["演示文稿"])

    for query, expected in (("xlsx", "ba"), ("Excel", "ab"), ("DSGVO", "c"), ("data protection", "cd"), ("slide", "d")):
        found = names(rpc, query, namespace=new_name)
        assert found == [f"{new_name}.{name}" for name in expected], query
    first, second = search(rpc, "xlsx", namespace=new_name)
    assert first["score"] == pytest.approx(2 * second["score"], abs=0.002)


def test_synonyms_have_150_groups_with_distinct_keys() -> None:
    groups = tomllib.loads(files("skillery.formats").joinpath("synonyms.toml").read_text("utf-8"))["groups"]

    assert len({group[0] for group in groups}) == len(groups) == 150
    assert all(len(set(group)) == len(group) > 1 for group in groups)


HOSTILE = [
    '"', "'", "*", "NEAR(", ":", "-", "^", "()", "\\", "%", "_", "🎉", "…", " ", "", "\t\n", "|", "&", "!", "<->", "/*",
    "«»", "\u202e", "\u0301", "'; DROP TABLE skills; --",
]  # fmt: skip


@pytest.mark.parametrize("hostile", HOSTILE)
@pytest.mark.full(after=15)
def test_a_query_is_data(rpc: Rpc, new_name: str, new_word: str, hostile: str) -> None:
    publish(rpc, f"{new_name}.a", description=f"{new_word} drop table skills other")
    punctuation = not any(character.isalnum() for character in hostile)

    if punctuation:
        assert rpc("search_skills", query=hostile) == {"skills": [], "next_cursor": None}
        for query in (hostile + new_word, new_word + hostile, f"{new_word} {hostile} other"):
            assert names(rpc, query, namespace=new_name) == [f"{new_name}.a"], query
    else:
        search(rpc, hostile)


@pytest.mark.parametrize(
    "query",
    ["NEAR(a b)", 'name : "a"', "a AND b", "a OR b", "NOT a", "-a", "{name}: a", "a*", "'a':*", "a & !b", "a:A"],
)
def test_no_word_is_an_operator(rpc: Rpc, new_name: str, new_word: str, query: str) -> None:
    publish(rpc, f"{new_name}.a", description=f"{new_word} a b")
    publish(rpc, f"{new_name}.b", description=f"{new_word} {query}")

    found = names(rpc, f"{new_word} {query}", namespace=new_name)
    assert sorted(found) == [f"{new_name}.a", f"{new_name}.b"]


def test_a_long_query_is_cut_with_a_warning(rpc: Rpc, new_name: str, new_word: str) -> None:
    publish(rpc, f"{new_name}.a", description=f"{new_word} and more")
    words = [f"w{number}" for number in range(20)]
    for query in (f"{new_word} {' '.join(words)}", f"{new_word} {'x' * 1_000_000}", " ".join([new_word, *words] * 99)):
        found = rpc("search_skills", query=query)
        assert found["warnings"][0].startswith("The query was cut after its first ")
    found = rpc("search_skills", query=f"{new_word} and more " + "the " * 3000, namespace=new_name)
    assert [one["name"] for one in found["skills"]] == [f"{new_name}.a"]
    assert "warnings" not in rpc("search_skills", query=new_word)


def test_the_first_two_results_have_compact_inputs(rpc: Rpc, new_name: str, new_word: str) -> None:
    inputs = {
        "top": {"type": "integer", "default": 5, "description": "How many"},
        "text": {"type": "string", "required": True, "description": "The text"},
        "mode": {"type": "string", "enum": ["a", "b"]},
    }
    for number in range(3):
        long = f"{new_word} " + "long " * number * 50
        made = manifest(f"{new_name}.s{number}", description=long, inputs=inputs)
        files = [{"path": "code/main.py", "content": f"def main(args): return {number}"}]
        rpc("create_skill", manifest=made, skill_md=f"# {number}\n", files=files)
    told = 'text: string, top?: integer = 5, mode?: "a"|"b"'

    whole, brief = (search(rpc, new_word, namespace=new_name, detail=detail) for detail in ("summary", "brief"))
    assert [one.get("compact_inputs") for one in whole] == [told, told, None]
    assert [one["inputs"] for one in whole] == [inputs] * 3
    assert [list(one) for one in brief] == [
        *[["name", "version", "description", "kind", "compact_inputs"]] * 2,
        ["name", "version", "description", "kind"],
    ]
    assert max(len(one["description"]) for one in brief) <= 200


def test_params_that_no_query_can_have_are_refused(rpc: Rpc) -> None:
    error = rpc.error("search_skills", query="a\0b")
    assert (error["code"], error["data"]["param"]) == (-32602, "query")
    tags: list[Any] = [["a\0"], ["a\nb"], ["x"] * 17, "x"]
    more: list[dict[str, Any]] = [{"limit": 0}, {"limit": 10.5}, {"kind": "x"}, {"namespace": "X"}]
    for wrong in [*more, *({"tags": one} for one in tags)]:
        assert rpc.error("search_skills", query="x", **wrong)["code"] == -32602
    assert rpc.error("search_skills")["code"] == -32602


def test_filters_narrow_the_search_results(rpc: Rpc, new_name: str, new_word: str) -> None:
    word = {"description": new_word}
    publish(rpc, f"{new_name}.a", tags=["Data Quality", "csv"], **word)
    publish(rpc, f"{new_name}.a.b", tags=["csv"], namespace=f"{new_name}.a", **word)
    rpc("create_skill", manifest=manifest(f"{new_name}.ab.c", **word), skill_md="# c\n",
        files=[{"path": "code/main.py", "content": "def main(args):\n    return 1\n"}])  # fmt: skip

    def found(**more: Any) -> list[str]:
        return [name.removeprefix(f"{new_name}.") for name in names(rpc, new_word, **more)]

    assert found() == ["a", "a.b", "ab.c"]
    assert found(kind="action") == ["ab.c"]
    assert found(kind="instruction") == ["a", "a.b"]
    assert found(tags=["csv"]) == ["a", "a.b"]
    assert found(tags=["CSV", " data quality "]) == ["a"]
    assert found(tags=["data"]) == []
    assert found(tags=["%"]) == []
    assert found(namespace=new_name) == ["a", "a.b", "ab.c"]
    assert found(namespace=f"{new_name}.a") == ["a.b"]
    assert found(namespace=f"{new_name}.a", kind="action") == []
    assert found(namespace=None, kind=None) == ["a", "a.b", "ab.c"]


# -- the latest version and visibility ---------------------------------------------------------------------------------


def test_search_uses_the_latest_version_of_a_skill(rpc: Rpc, new_name: str, new_word: str) -> None:
    old, new = f"{new_word}old", f"{new_word}new"
    publish(rpc, new_name, "1.0.0", body=old, tags=["one"])
    publish(rpc, new_name, "2.0.0", body=new, description=new)

    assert (names(rpc, old), names(rpc, new)) == ([], [new_name])
    publish(rpc, new_name, "1.5.0", body=old)
    publish(rpc, new_name, "3.0.0-rc.1", body=old)
    assert names(rpc, old) == []
    rpc("yank_version", name=new_name, version="2.0.0", reason="x")
    assert (names(rpc, old), names(rpc, new)) == ([new_name], [])
    assert search(rpc, old)[0]["version"] == "1.5.0"
    for version in ("1.5.0", "1.0.0", "3.0.0-rc.1"):
        rpc("yank_version", name=new_name, version=version, reason="x")
    assert names(rpc, new_word) == []
    rpc("unyank_version", name=new_name, version="1.0.0")
    assert names(rpc, old, tags=["one"]) == [new_name]
    rpc("deprecate_skill", name=new_name, message="x")
    assert names(rpc, old) == [new_name]


def test_search_indexes_the_start_of_a_large_skill_md_after_a_yank(rpc: Rpc, new_name: str, new_word: str) -> None:
    large = f"Begins with {new_word}first.\n" + "More and more. " * 6000 + f"Ends with {new_word}last."
    publish(rpc, new_name, "1.0.0", body=large)
    publish(rpc, new_name, "2.0.0", body="small")
    rpc("yank_version", name=new_name, version="2.0.0", reason="x")

    (row,) = search(rpc, f"{new_word}first")
    assert row["snippet"].startswith(f"Begins with «{new_word}first».")
    assert names(rpc, f"{new_word}last") == []


def test_search_neither_matches_nor_counts_invisible_skills(org: Server, new_name: str, new_word: str) -> None:
    author = Caller(org.url, Who("author", "read publish", f"{new_name}.*"))
    agent = Caller(org.url, Who("agent", "read publish", f"{new_name}.*", "agent"))
    reviewer = Caller(org.url, Who("reviewer", "read review"))
    inside = Caller(org.url, Who("inside", "read", f"{new_name}.*"))
    many = Caller(org.url, Who("many", "read", " ".join(f"other{number}.*" for number in range(20)) + f" {new_name}.*"))
    stranger = Caller(org.url, Who("stranger", "read", "elsewhere.*"))
    for number, visibility in enumerate(("public", "namespace", "private", "public")):
        publish(author, f"{new_name}.{number}-{visibility}", description=new_word)
        author("set_visibility", name=f"{new_name}.{number}-{visibility}", visibility=visibility)
    publish(agent, f"{new_name}.4-draft", description=new_word)

    def found(who: Caller, **more: Any) -> str:
        return "".join(name.removeprefix(f"{new_name}.")[0] for name in names(who, new_word, **more))

    assert found(stranger) == "03"
    assert found(inside) == found(many) == "013"
    assert found(author) == found(reviewer) == "0123"
    assert found(agent) == "013"
    agent("submit_version", name=f"{new_name}.4-draft", version="1.0.0")
    assert found(reviewer) == "0123"
    reviewer("approve_version", name=f"{new_name}.4-draft", version="1.0.0")
    assert found(stranger) == "034"
    first = stranger("search_skills", query=new_word, limit=2)
    second = stranger("search_skills", query=new_word, limit=2, cursor=first["next_cursor"])
    assert [len(first["skills"]), len(second["skills"]), second["next_cursor"]] == [2, 1, None]


# -- pages -----------------------------------------------------------------------------------------------------------


def test_pages_follow_each_other_whatever_is_published_meanwhile(rpc: Rpc, new_name: str, new_word: str) -> None:
    for number in range(5):
        publish(rpc, f"{new_name}.a{number}", description=new_word)
        publish(rpc, f"{new_name}.{new_word}-b{number}")
    whole = names(rpc, new_word)
    assert len(whole) == 10
    assert whole[0].startswith(f"{new_name}.{new_word}-b0")

    found, cursor = [], None
    for number in itertools.count():
        page = rpc("search_skills", query=new_word, limit=3, cursor=cursor)
        found += [skill["name"] for skill in page["skills"]]
        cursor = page["next_cursor"]
        publish(rpc, f"{new_name}.x{number}", body=f"{new_word} " * 50)
        if cursor is None or number > 3:
            break
    assert found[:10] == whole
    assert len(set(found)) == len(found)


def test_a_cursor_is_good_for_its_question_only(rpc: Rpc, new_name: str, new_word: str) -> None:
    for number in range(3):
        publish(rpc, f"{new_name}.a{number}", description=new_word, tags=["t"])
    cursor = rpc("search_skills", query=new_word, limit=1)["next_cursor"]
    listing = rpc("list_skills", namespace=new_name, limit=1)["next_cursor"]

    assert len(rpc("search_skills", query=f" {new_word.upper()}! ", limit=100, cursor=cursor)["skills"]) == 2
    for other in (
        {"query": f"{new_word} x"}, {"tags": ["t"]}, {"kind": "instruction"}, {"namespace": new_name},
        {"cursor": listing}, {"cursor": cursor[:-2] + "AA"}, {"cursor": "x"}, {"query": ""},
    ):  # fmt: skip
        error = rpc.error("search_skills", **{"query": new_word, "cursor": cursor, **other})
        assert (error["code"], error["data"]["type"]) == (-32602, "invalid_cursor"), other


# -- comparison with a model, on both databases ------------------------------------------------------------------------

# No other test of the same server uses these words.
VOCABULARY = ["qalpha", "qalphabet", "qbeta", "qbetas", "qgamma", "Größeq", "groesseq", "qdel-qta", "20244q", "茶屋",
              "qa", "the", "qdelqta", "qgammas"]  # fmt: skip


class Model(NamedTuple):
    name: str
    tags: list[str]
    description: str
    body: str

    @property
    def impacts(self) -> dict[str, int]:
        return search_fields(self.name, self.description, self.tags).impacts

    @property
    def texts(self) -> set[str]:
        return {*words_of(self.body), *search_fields(self.name, self.description, self.tags).further} - set(
            self.impacts
        )


class Meant(NamedTuple):
    """The meaning of one query word, implemented again in the simplest way."""

    words: dict[str, int]
    stem: str
    prefix: str
    weight: int

    def gain(self, model: Model) -> int:
        gains = [counts * model.impacts[word] for word, counts in self.words.items() if word in model.impacts]
        begun = self.prefix and any(word.startswith(self.prefix) for word in model.texts)
        return self.weight * max([*gains, 10 if self.stem in model.texts or begun else 0])


def meant(term: Term, near: list[str], models: list[Model]) -> Meant | None:
    def holders(word: str) -> int:
        return sum(word in model.impacts for model in models)

    words = {word: 10 for word in (term.word, *near) if holders(word)}
    prefix = ""
    if not words and term.is_last:
        spelt = {
            spelling: stem
            for model in models
            for spelling, stem in search_fields(model.name, model.description, model.tags).spellings.items()
            if len(term.spelt) >= 2 and spelling.startswith(term.spelt)
        }
        words = {spelt[spelling]: 8 for spelling in sorted(spelt, key=lambda one: (len(one), one))[:10]}
        prefix = "" if words or len(term.spelt) < 3 else term.spelt
    rows = sum(map(holders, words))
    found = Meant(words, term.word, prefix, 1)
    texts = sum(found._replace(words={}).gain(model) > 0 for model in models)
    assert rows + texts > 2 or not term.spelt.isalpha() or len(term.spelt) < 4, "the model does not correct typos"
    return found._replace(weight=13 - (rows + texts).bit_length()) if rows + texts else None


def ranked(models: list[Model], query: str) -> list[str]:
    terms = parse_query(query).terms
    joined = [stem_of(one.spelt + two.spelt) for one, two in itertools.pairwise(terms)]
    near = [[*joined[max(0, place - 1) : place + 1]] for place in range(len(terms))]
    looked_up = [one for term, more in zip(terms, near, strict=True) if (one := meant(term, more, models)) is not None]
    total = sum(one.weight for one in looked_up)
    points = []
    for model in models:
        weight = sum(one.weight for one in looked_up if one.gain(model))
        if weight and weight * 3 >= total:
            points.append((-weight * sum(one.gain(model) for one in looked_up), model.name.encode()))
    return [name.decode() for _, name in sorted(points)]


EXAMPLES = int(os.environ.get("SKILLERY_FUZZ_EXAMPLES", "30"))


@pytest.fixture(scope="module")
def modelled(server: Server) -> list[Model]:
    """Publish skills with every word of the vocabulary in every field. Return their models."""
    models = []
    for number in range(42):
        words = [VOCABULARY[(number * step + number // 14) % len(VOCABULARY)] for step in (1, 5, 9, 11)]
        plain = words[0].lower() if words[0].isascii() else "x"
        body = f"{words[3]} and {words[1]}, nq{number}n"
        model = Model(f"model.{plain}.s{number}", [words[1]], f"Of {words[2]}.", body)
        publish(server.rpc, model.name, tags=model.tags, description=model.description, body=model.body)
        models.append(model)
    return models


@pytest.mark.full
@settings(max_examples=EXAMPLES, deadline=None)
@given(
    words=st.lists(st.sampled_from([*VOCABULARY, "nq4"]), min_size=1, max_size=4),
    end=st.sampled_from(["", " ", "!", "*", " qal", " qalp", " qbe", " groess"]),
)
def test_search_matches_and_ranks_like_the_model_on_both_databases(
    server: Server, modelled: list[Model], words: list[str], end: str
) -> None:
    query = " ".join(words) + end
    assert names(server.rpc, query, namespace="model", limit=100) == ranked(modelled, query)


MANY = 1400
"""Number of skills, more than a search reads."""


@pytest.mark.full
def test_frequent_words_rank_the_matches_of_rare_words(database: Database) -> None:
    migrate.upgrade(database)
    database.write_now(_fill_many)

    def found(query: str, identity: Identity = LOCAL) -> list[str]:
        listed: list[str] = []
        asked: dict[str, Any] = {"query": query, "kind": "", "tags": [], "namespace": "", "limit": 100, "cursor": ""}
        while len(listed) < MANY:
            page = database.read_now(lambda connection: find_skills(connection, identity, b"k" * 32, **asked))
            listed += [skill.name for skill in page.skills]
            asked["cursor"] = page.next_cursor
            if not asked["cursor"]:
                break
        return listed

    # Each skill has "common", every second one "even", and one has "unique". The name of one skill is "common".
    everything = found("common")
    assert (len(everything), everything[:2]) == (500, ["common", "s0001"])
    assert found("common unique") == ["s0777"]
    assert found("common even")[:3] == ["s0013.even", "s0002", "s0004"]
    assert found("comon evenn")[:3] == ["s0013.even", "s0002", "s0004"]
    hidden = Identity("reader", "person", frozenset({"read"}), ("s0013.*",))
    assert found("common even", hidden) == ["s0013.even"]


def _fill_many(connection: Connection) -> None:
    for number in range(1, MANY + 1):
        name = {7: "common", 13: "s0013.even"}.get(number, f"s{number:04}")
        is_even = number % 2 == 0 or number == 13
        add_skill(connection, number, name, f"Has common{' even' * is_even}{' unique' * (number == 777)} words.")


def add_skill(connection: Connection, number: int, name: str, description: str) -> None:
    summary = msgspec.json.encode({"name": name, "version": "1.0.0", "description": description, "tags": []}).decode()
    visibility = "namespace"
    skill = {"id": number, "name": name, "namespace": name.rpartition(".")[0], "visibility": visibility}
    insert(connection, "skills", skill | {"created_at": NOW})
    version = VERSION | {"id": number, "skill_id": number, "version": "1.0.0", "summary_json": summary}
    insert(connection, "skill_versions", version)
    connection.execute(text(f"UPDATE skills SET latest_version_id = id WHERE id = {number}"))
    add_rows(connection, number, number, name, visibility, indexed(name, description, [], str(number), []))


# -- words and snippets ----------------------------------------------------------------------------------------------


@settings(max_examples=rounds(30, long=100))
@given(st.text(max_size=200))
def test_words_hold_nothing_that_an_index_could_take_for_something_else(text: str) -> None:
    for word in words_of(text):
        assert word
        assert len(word) <= 64
        assert all(one.isalnum() or unicodedata.category(one)[0] == "M" for one in word), word
        assert word == word.lower() or not word.isascii()


@given(st.text(max_size=200))
def test_query_terms_match_the_words_of_the_same_text(text: str) -> None:
    try:
        terms = parse_query(text).terms
    except InvalidParams:
        return
    there = words_of(text)
    assert all(any(term.matches(word) for word in there) for term in terms)


MARKED = st.text(
    alphabet=st.sampled_from("a eёЁ\u0435\u0308한ᄒ\u1161\u11a8中กำ\u0301\u0300\u0315\u0323"), max_size=700
)
LONG_RUN = re.compile("[\u0300\u0301\u0308\u0315\u0323\u1161\u11a8]{64}")


@given(st.one_of(MARKED, st.text(max_size=700)))
def test_a_text_without_endless_marks_has_the_normal_form_of_unicode(text: str) -> None:
    assume(not LONG_RUN.search(text))
    assert normalized("NFC", text) == unicodedata.normalize("NFC", text)
    assert normalized("NFKD", text) == unicodedata.normalize("NFKD", text)


@pytest.mark.full
def test_endless_marks_take_no_longer_than_anything_else() -> None:
    """If sorting Unicode marks took quadratic time, this text would block the whole server for an hour."""
    marks = "a" + "\u0315\u0300" * 500_000
    assert len(words_of(marks)) == 1
    assert snippet_of([marks], parse_query("a").terms)
    assert registry_name(marks) == "a"


@given(st.lists(st.text(max_size=400), max_size=2), st.text(max_size=30))
def test_a_snippet_is_short_and_plain(texts: list[str], query: str) -> None:
    try:
        terms = parse_query(query).terms
    except InvalidParams:
        return
    snippet = snippet_of(texts, terms)
    assert len(snippet) <= 200 + 4 + 2 * snippet.count("«")
    assert snippet.isprintable()
    assert snippet.count("«") == snippet.count("»")
    for marked in snippet.split("«")[1:]:
        (found, *_) = find_words(unicodedata.normalize("NFC", marked.partition("»")[0]))
        assert any(term.matches(found.word) for term in terms)


def test_a_snippet_shows_the_part_with_most_of_the_words() -> None:
    text = "alpha " + "x " * 300 + "alpha beta gamma " + "y " * 300
    snippet = snippet_of(["nothing", text], parse_query("beta alpha").terms)

    assert "«alpha» «beta» gamma" in snippet
    assert snippet.startswith("… x ")
    assert snippet.endswith(" …")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("<script>alert(1)</script> word", "<script>alert(1)</script> «word»"),
        ("«word» \u202eword\x1b[31m\n\n\tword", "‹«word»› «word»[31m «word»"),
        ("**word** [word](http://x)", "«word» «word»"),
        ("## A\n\n> word\n\n```py\nword_a = 2 * 3\n```\n- [x] `word`\n---\n| a | word |\n|---|---|", None),
    ],
)
def test_snippet_has_no_marks_of_markdown_or_matches(text: str, shown: str) -> None:
    shown = shown or "A «word» «word»_a = 2 * 3 «word» a | «word»"
    assert snippet_of([text], parse_query("word").terms) == shown


@pytest.mark.full
def test_hostile_markdown_costs_a_snippet_linear_time() -> None:
    terms = parse_query("word").terms
    check_growth(lambda text: spent_here(lambda: snippet_of([f"{text}\n![{text}](", "word"], terms)))


# -- the migration and the command -----------------------------------------------------------------------------------


NOW = "2026-01-01 00:00:00+00:00"
VERSION = {
    "precedence": b"1", "is_release": True, "status": "published", "kind": "action", "namespace": "", "digest": "",
    "size_bytes": 0, "manifest_json": "{}", "frontmatter_json": "{}", "warnings_json": "[]", "names_json": "{}",
    "publisher": "", "created_at": NOW,
}  # fmt: skip


def insert(connection: Connection, table: str, row: dict[str, Any]) -> None:
    """Insert a row as the previous release did."""
    marks = ", ".join(f":{column}" for column in row)
    connection.execute(text(f"INSERT INTO {table} ({', '.join(row)}) VALUES ({marks})"), row)


@pytest.fixture
def before(database: Database) -> Database:
    migrate.downgrade(database, "0006")
    return database


def test_migration_indexes_existing_skills(before: Database, new_word: str) -> None:
    summary = f'{{"name":"a.b","version":"1.0.0","description":"{new_word}","kind":"action","tags":["T"]}}'
    with before.engine.begin() as connection:
        for number in range(1, 4):
            skill = {"id": number, "name": f"s{number}", "latest_version_id": number if number < 3 else None}
            insert(connection, "skills", skill | {"created_at": NOW})
            version = {"id": number, "skill_id": number, "version": "1.0.0", "summary_json": summary}
            insert(connection, "skill_versions", VERSION | version)
        insert(connection, "objects", {"sha256": "x", "size_bytes": 14, "data": b"---\n---\nfoobar"})
        file = {"version_id": 1, "path": "SKILL.md", "sha256": "x", "size_bytes": 14, "executable": False}
        insert(connection, "skill_files", file)
    migrate.upgrade(before)
    rebuild_derived_rows(before)

    def found(query: str) -> int:
        asked: Any = {"kind": "", "tags": ["t"], "namespace": "", "limit": 10, "cursor": ""}
        with before.engine.connect() as connection:
            return len(find_skills(connection, LOCAL, b"k" * 32, query=query, **asked).skills)

    assert [found(new_word), found("foob"), found("nothing")] == [2, 1, 0]


@pytest.mark.full
def test_search_by_the_command_line(sqlite_server: Server, sqlite_rpc: Rpc, new_name: str, new_word: str) -> None:
    publish(sqlite_rpc, f"{new_name}.a", description=f"Counts {new_word}.", tags=["t"])
    publish(sqlite_rpc, f"{new_name}.b", description=f"Counts {new_word}.")

    def command(*words: str) -> Any:
        return skillery("search", *words, "--namespace", new_name, "--url", sqlite_server.url)

    publish(sqlite_rpc, f"{new_name}.c", description=f"Counts {new_word}.", body="Same.")
    publish(sqlite_rpc, f"{new_name}.d", description=f"Counts {new_word}.", body="Same.")

    assert command(new_word, "count").out.splitlines() == [
        *(f"{new_name}.{name}\t1.0.0\tinstruction\t«Counts» «{new_word}»." for name in "ab"),
        f"{new_name}.c\t1.0.0\tinstruction\t«Counts» «{new_word}». (2 copies)",
    ]
    assert [one["name"] for one in command(new_word, "--tag", "t", "--json").json["skills"]] == [f"{new_name}.a"]
    done = command(new_word, "--limit", "1", "--kind", "instruction")
    cursor = done.err.split("--cursor ")[1].strip()
    rest = command(new_word, "--limit", "1", "--kind", "instruction", "--cursor", cursor)
    assert rest.out.startswith(f"{new_name}.b")
    done = command("…")
    assert (done.code, done.out) == (0, "")
    assert "No skill found" in done.err
