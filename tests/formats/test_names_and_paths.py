"""Skill names, namespaces and the paths in a bundle."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skillery.errors import InvalidName, InvalidPath
from skillery.formats.names import import_name, is_within, namespace_of, parse_namespace, parse_skill_name
from skillery.formats.paths import check_paths, parse_path, path_problem, portability_problem, portable_paths

segments = st.from_regex(r"[a-z0-9]{1,4}([_-][a-z0-9]{1,3}){0,2}", fullmatch=True)
names = st.lists(segments, min_size=1, max_size=5).map(".".join)


@given(names)
def test_every_name_of_the_grammar_is_accepted_unchanged(name: str) -> None:
    assert parse_skill_name(name) == name
    assert parse_namespace(name) == name


@pytest.mark.parametrize(
    "text",
    [
        "",
        ".",
        "a.",
        ".a",
        "a..b",
        "A",
        "a b",
        "a--b",
        "a__b",
        "a-_b",
        "-a",
        "a-",
        "_a",
        "a.-b",
        "ä",
        "a/b",
        "a\n",
        "a\x00",
        "\ud800",
        "a" * 129,
        "١",
    ],
)
def test_invalid_skill_names_are_refused_with_a_hint(text: str) -> None:
    with pytest.raises(InvalidName) as caught:
        parse_skill_name(text)
    assert caught.value.hint
    (caught.value.message + caught.value.hint).encode()


def test_the_hint_offers_the_nearest_name() -> None:
    with pytest.raises(InvalidName) as caught:
        parse_skill_name("Sales Team.Lead__Sync")
    assert "'sales-team.lead-sync'" in str(caught.value.hint)


def test_a_name_may_have_128_characters() -> None:
    assert parse_skill_name("a" * 128)


def test_the_empty_namespace_is_above_all() -> None:
    assert parse_namespace("") == ""
    assert namespace_of("greet") == ""
    assert namespace_of("a.b.c") == "a.b"
    assert is_within("a", "")


def test_namespaces_contain_by_whole_segments() -> None:
    assert is_within("sales.leads", "sales")
    assert is_within("sales", "sales")
    assert not is_within("salesforce", "sales")
    assert not is_within("sales", "sales.leads")


def test_a_module_is_named_with_underscores() -> None:
    assert import_name("user.my-skill.a_b") == "skills.user.my_skill.a_b"


# -- paths -------------------------------------------------------------------------------------------------------

good_segments = st.text(alphabet=st.characters(codec="utf-8", categories=("L", "N", "P", "S")), min_size=1, max_size=6)
good_paths = (
    st.lists(good_segments, min_size=1, max_size=5)
    .map("/".join)
    .filter(lambda path: "\\" not in path and "//" not in path and not path.startswith("/") and not path.endswith("/"))
    .filter(lambda path: not {".", ".."} & set(path.split("/")) and path[1:2] != ":")
    .filter(lambda path: path.count("/") < 8)
)


@given(good_paths)
def test_a_plain_relative_path_is_accepted_unchanged(path: str) -> None:
    assert parse_path(path) == path


@pytest.mark.parametrize(
    "path",
    [
        "",
        "/",
        "/etc/passwd",
        "../x",
        "a/../../x",
        "a/../..",
        "a/..",
        ".",
        "a/",
        "a\\b",
        "\\\\host\\x",
        "C:/x",
        "c:x",
        "a\x00b",
        "a\nb",
        "a\x7f",
        "a\x85b",
        "\ud800",
        "/".join("abcdefghi"),
        "a" * 256,
        "ä" * 128,
    ],
)
def test_unsafe_paths_are_refused_with_a_hint(path: str) -> None:
    with pytest.raises(InvalidPath) as caught:
        parse_path(path)
    assert caught.value.hint
    caught.value.message.encode()


@pytest.mark.parametrize("path", ["./a/b", "a//b", "a/./b", "a/x/../b", "./x/../a/y/../b"])
def test_a_path_that_stays_inside_is_made_plain(path: str) -> None:
    assert parse_path(path) == "a/b"


@pytest.mark.parametrize(
    "path", ["...", "a..b", ".hidden", "a b", "ab:c/d", "/".join("abcdefgh"), "a" * 255, "日本/語.md", "~"]
)
def test_odd_but_harmless_paths_are_accepted(path: str) -> None:
    assert parse_path(path) == path


@given(st.text(max_size=300))
def test_an_accepted_path_stays_below_the_root(path: str) -> None:
    try:
        parse_path(path)
    except InvalidPath:
        return
    parts = path.split("/")
    assert all(part not in ("", ".", "..") for part in parts)
    assert len(parts) <= 8
    assert len(path.encode()) <= 255


@pytest.mark.parametrize(
    "paths",
    [
        ["a", "a"],
        ["a", "A"],
        ["straße", "STRASSE"],
        ["a", "a/b"],
        ["A/b/c", "a/b"],
        ["caf\u00e9", "cafe\u0301"],
        ["\ufb01le", "file"],
        ["a/x", "a/X"],
        ["\u212b", "\u00e5"],
        ["x/y/z", "x"],
    ],
)
def test_paths_that_would_collide_are_refused(paths: list[str]) -> None:
    for order in (paths, paths[::-1]):
        with pytest.raises(InvalidPath) as caught:
            check_paths(order)
        assert caught.value.data["problems"]


def test_paths_side_by_side_are_fine() -> None:
    check_paths(
        ["skill.toml", "SKILL.md", "code/main.py", "code/util.py", "Code.md", "code.md.txt", "a", "ab", "a-b/c"]
    )


@given(good_paths)
def test_case_and_normal_form_never_make_two_paths(path: str) -> None:
    forms = (unicodedata.normalize(form, path) for form in ("NFC", "NFD", "NFKC", "NFKD"))
    for other in (path, path.casefold(), *forms):
        with pytest.raises(InvalidPath):
            check_paths([path, other])


def test_a_path_far_too_long_is_not_looked_through() -> None:
    assert path_problem("a\n" * 1000) == "has 2000 bytes, at most 255 are allowed"


@pytest.mark.parametrize(
    "path", ["a<b", "ab:c", "docs/what?.md", "a*/b", "a|b", "a./b", "a ", "aux.md", "x/CON", "com1.tar.gz", "nul .txt"]
)
def test_windows_cannot_store_some_valid_paths(path: str) -> None:
    assert path_problem(path) is None
    assert portability_problem(path)


@pytest.mark.parametrize("path", ["a/b.md", "console.md", "auxiliary/x", "com10", "a b", "日本/語.md"])
def test_windows_can_store_ordinary_paths(path: str) -> None:
    assert portability_problem(path) is None


ANY_PATHS = ["a/b.txt", "A/B.txt", "a", "a/b.txt/c", "con.csv", "x:y", "z. ", "../up", "/top", "", "..", "back\\slash"]


def test_portable_paths_change_names_that_windows_refuses() -> None:
    made = list(portable_paths(ANY_PATHS))

    assert made == [
        "a/b.txt",
        "2 A/B.txt",
        "3 a",
        "4 a/b.txt/c",
        "_con.csv",
        "x_y",
        "z",
        "up",
        "top",
        "_",
        "2 _",
        "back_slash",
    ]


def test_equal_portable_paths_are_numbered() -> None:
    made = list(portable_paths(["a?", "a*"] * 5_000))

    assert made[:3] == ["a_", "2 a_", "3 a_"]
    assert len(set(made)) == 10_000


@pytest.mark.full
@given(st.lists(st.text(max_size=12) | st.sampled_from(ANY_PATHS), max_size=12))
def test_portable_paths_can_be_stored_together(paths: list[str]) -> None:
    made = list(portable_paths(paths))

    check_paths(made)
    assert [portability_problem(path) for path in made] == [None] * len(paths)
    assert not any(path.startswith("/") or {"..", "."} & set(path.split("/")) for path in made)
