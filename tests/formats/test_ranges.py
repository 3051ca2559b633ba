"""npm ranges as intervals of precedence, and the other version specs."""

from __future__ import annotations

import os
from itertools import pairwise

import nodesemver
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skillery.errors import InvalidLabel, InvalidName, InvalidParams, InvalidVersionSpec
from skillery.formats.ranges import Segment, parse_range
from skillery.formats.semver import Version
from skillery.formats.version_spec import (
    Digest,
    Exact,
    Label,
    Latest,
    Range,
    parse_label,
    parse_reference,
    parse_version_spec,
)

EXAMPLES = int(os.environ.get("SKILLERY_FUZZ_EXAMPLES", "100"))


def matches(segments: tuple[Segment, ...], version: str) -> bool:
    return any(segment.contains(Version.parse(version)) for segment in segments)


def admitted(text: str, *versions: str) -> list[str]:
    return [version for version in versions if matches(parse_range(text), version)]


# -- against the reference ---------------------------------------------------------------------------------------

small = st.integers(0, 3)
tags = st.sampled_from(["0", "1", "a", "a.1", "a.b", "b", "beta.2", "c-"])
releases = st.tuples(small, small, small).map(lambda parts: ".".join(map(str, parts)))
tagged = st.tuples(releases, tags).map("-".join)
full = st.one_of(releases, tagged, tagged.map(lambda text: text + "+build.7"))
parts = st.one_of(small.map(str), st.sampled_from(["x", "X", "*"]))
partial = st.lists(parts, min_size=1, max_size=3).map(".".join)
operators = st.sampled_from(["", "=", "<", ">", "<=", ">=", "~", "~>", "^"])
spaces = st.sampled_from(["", "", " ", "  "])
prefixes = st.sampled_from(["", "", "", "v"])
comparators = st.tuples(operators, spaces, prefixes, st.one_of(full, partial)).map("".join)
hyphens = st.tuples(st.one_of(full, partial), st.one_of(full, partial)).map(" - ".join)
alternatives = st.one_of(st.lists(comparators, min_size=1, max_size=3).map(" ".join), hyphens, st.just(""))
ranges = st.lists(alternatives, min_size=1, max_size=3).map(" || ".join)
# The reference follows an older npm in three places that only show for pre-releases: the upper bound of `^1` was
# `<2.0.0` (now `<2.0.0-0`), `>=0.0.0` was a bound, and `* || 1.0.0-a` admitted 1.0.0-a. These ranges avoid them.
upper = st.tuples(st.sampled_from(["<", "<="]), full).map("".join)
lower = st.tuples(st.sampled_from([">", ">="]), full.filter(lambda text: not text.startswith("0.0.0"))).map("".join)
plain = st.one_of(
    st.tuples(lower, upper).map(" ".join), lower, upper, full,
    st.tuples(st.sampled_from("~^"), full.filter(lambda text: not text.startswith("0.0.0"))).map("".join),
)  # fmt: skip
plain_ranges = st.lists(plain, min_size=1, max_size=3).map("||".join)


@settings(max_examples=EXAMPLES)
@given(ranges, st.lists(releases, min_size=1, max_size=8))
def test_releases_match_as_in_the_reference(text: str, versions: list[str]) -> None:
    expected = nodesemver.max_satisfying(versions, text, loose=False)
    found = [Version.parse(each) for each in versions if matches(parse_range(text), each)]
    highest = max(found, key=lambda each: each.precedence, default=None)
    assert (str(highest) if highest else None) == expected


@pytest.mark.full
@settings(max_examples=EXAMPLES)
@given(plain_ranges, st.lists(full, min_size=1, max_size=8))
def test_pre_releases_match_as_in_the_reference(text: str, versions: list[str]) -> None:
    segments = parse_range(text)
    for version in versions:
        assert matches(segments, version) == nodesemver.satisfies(version, text, loose=False), version


@settings(max_examples=EXAMPLES)
@given(st.text(alphabet="0123 .xX<>=~^v|-+ab", max_size=12))
def test_the_same_texts_are_ranges_as_in_the_reference(text: str) -> None:
    try:
        nodesemver.make_range(text, loose=False)
    except ValueError:
        return  # our parser may accept more texts than the reference, but not fewer
    parse_range(text)


@settings(max_examples=EXAMPLES)
@given(ranges)
def test_segments_are_sorted_disjoint_and_not_empty(text: str) -> None:
    segments = parse_range(text)
    assert all(each.high is None or each.low < each.high for each in segments)
    assert list(segments) == sorted(segments, key=lambda each: (each.low, each.release))
    for release in (True, False):
        chosen = [each for each in segments if each.release is release]
        for earlier, later in pairwise(chosen):
            assert earlier.high is not None
            assert earlier.high < later.low


@given(st.text(max_size=300))
def test_any_text_is_a_range_or_a_clear_error(text: str) -> None:
    try:
        parse_range(text)
    except InvalidVersionSpec as error:
        (error.message + str(error.hint)).encode()


# -- differences between npm and the reference -------------------------------------------------------------------


def test_caret_upper_bound_excludes_prereleases_of_the_next_major() -> None:
    assert admitted("^1.2.3 >=2.0.0-a", "2.0.0-b", "1.9.0") == []


def test_an_alternative_that_admits_everything_admits_no_pre_release() -> None:
    assert admitted("* || 1.0.0-a", "1.0.0-a", "3.0.0") == ["3.0.0"]
    assert admitted("^1 ||", "0.1.0", "1.0.0-a") == ["0.1.0"]


def test_at_least_zero_is_no_bound() -> None:
    assert admitted(">=0.0.0 <=0.0.0-b", "0.0.0-a", "0.0.0-c") == ["0.0.0-a"]
    assert admitted("0.0.0 >=0.0.0-a", "0.0.0-b", "0.0.0") == ["0.0.0"]


# -- examples ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", [">2 <1", "<0.0.0-0", ">*", "<x", "1.2.3 1.2.4"])
def test_a_range_that_nothing_can_match_has_no_segments_for_any_version(text: str) -> None:
    assert admitted(text, "0.0.0", "1.2.3", "1.2.4", "2.0.0-a", "9.9.9") == []


def test_a_contradiction_gives_no_segments() -> None:
    assert parse_range(">2 <1") == ()


def test_range_without_a_prerelease_tag_has_a_single_segment() -> None:
    for text in ("^1.2", "~1.2.3", "1.x", ">=1 <2", "1 - 2", "*", "<3", ">1.2.3", "1.0.0", "^1 || >=1.5 <3"):
        assert len(parse_range(text)) == 1, text


@pytest.mark.parametrize(
    "text",
    ["1.2.3.4", "01.2.3", "==1.2.3", ">", "^", "1.2.3-", "1.2.3-01", "a", "1,2", ">=1 < 2 and", "1 -2-3.", "1||a",
     "\ud800", "1" * 300, "||".join(["1"] * 33)],
)  # fmt: skip
def test_invalid_ranges_are_refused_with_a_hint(text: str) -> None:
    with pytest.raises(InvalidVersionSpec) as caught:
        parse_range(text)
    assert caught.value.hint


# -- version specs -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", [None, "", "latest", " latest "])
def test_nothing_and_latest_mean_the_latest(text: str | None) -> None:
    assert parse_version_spec(text) == Latest()


@pytest.mark.parametrize("text", ["newest", "stable", "v", "x-ray", "vx1y", "a.b_c-d", "sha256", "s" * 64, "latest-1"])
def test_a_word_that_is_nothing_else_is_a_label(text: str) -> None:
    assert parse_version_spec(text) == Label(parse_label(text))


@pytest.mark.parametrize(
    ("text", "why"),
    [("latest", "computed"), ("x", "a version or a range"),
     ("X", "a version or a range"), ("v1", "a version or a range"),
     ("1.x", "a version or a range"), ("x.x", "a version or a range"), ("vv1.2", "a version or a range"),
     ("1.0.0", "a version or a range"), ("v1.0.0-rc.1", "a version or a range"), ("*", "a version or a range"),
     ("sha256:" + "a" * 64, "a digest"), ("", "blank"), (" ", "blank"), ("s" * 65, "65 characters"),
     ("Stable", "other characters"), (" stable", "other characters"), ("st\0ble", "other characters"),
     ("stäble", "other characters"),
     ("stable\n", "other characters")],
)  # fmt: skip
def test_invalid_or_ambiguous_labels_are_refused(text: str, why: str) -> None:
    with pytest.raises(InvalidLabel, match=why):
        parse_label(text)


@given(st.one_of(st.text(max_size=80), st.from_regex(r"[a-z][a-z0-9._-]{0,8}", fullmatch=True)))
def test_label_specs_are_exactly_the_valid_labels(text: str) -> None:
    try:
        label = parse_label(text)
    except InvalidParams:
        label = None
    try:
        spec = parse_version_spec(text)
    except InvalidParams:
        assert label is None
        return
    if isinstance(spec, Label):
        assert parse_label(text.strip()) == spec.label
    if label is not None:
        assert spec == Label(label)


def test_each_kind_of_spec_is_distinguished() -> None:
    digest = "sha256:" + "ab" * 32
    assert parse_version_spec("1.2.3-a+b") == Exact(Version(1, 2, 3, ("a",), ("b",)))
    assert parse_version_spec("1.2") == Range("1.2", parse_range("1.2"))
    assert parse_version_spec(digest) == Digest(digest)
    assert parse_version_spec(digest.upper().replace("SHA", "sha")) == Digest(digest)


@pytest.mark.parametrize(
    "text",
    [
        "Newest",
        "stable!",
        "-stable",
        "s" * 65,
        "v1.2.3.4",
        "v01",
        "x.y",
        "stable || 1",
        "sha256:",
        "sha256:" + "g" * 64,
        "sha512:" + "a" * 64,
        "1.2.3.4",
        "\x00",
    ],
)
def test_invalid_version_specs_are_refused_with_a_hint(text: str) -> None:
    with pytest.raises(InvalidVersionSpec) as caught:
        parse_version_spec(text)
    assert caught.value.hint
    assert caught.value.type == "invalid_version_spec"


def test_a_reference_is_a_name_with_or_without_a_spec() -> None:
    assert parse_reference("sales.leads") == ("sales.leads", Latest())
    assert parse_reference("sales.leads@") == ("sales.leads", Latest())
    assert parse_reference("a@1.2.3") == ("a", Exact(Version(1, 2, 3)))
    assert parse_reference("a@^1 || ^2") == ("a", Range("^1 || ^2", parse_range("^1 || ^2")))


def test_invalid_reference_error_names_the_broken_half() -> None:
    with pytest.raises(InvalidName):
        parse_reference("A@1.0.0")
    with pytest.raises(InvalidVersionSpec):
        parse_reference("a@b@c")


@given(st.one_of(st.none(), st.text(max_size=80)))
def test_any_text_is_a_spec_or_a_clear_error(text: str | None) -> None:
    try:
        parse_version_spec(text)
    except InvalidParams as error:
        (error.message + str(error.hint)).encode()
