"""SemVer 2.0.0: parsing, and a key whose byte order is the order of versions."""

from __future__ import annotations

import os

import pytest
import semver
from hypothesis import given, settings
from hypothesis import strategies as st

from skillery.errors import InvalidVersion
from skillery.formats.semver import Version

EXAMPLES = int(os.environ.get("SKILLERY_FUZZ_EXAMPLES", "100"))

numbers = st.one_of(st.integers(0, 12), st.integers(0, 2**70))
words = st.from_regex(r"[0-9]*[a-zA-Z-][0-9a-zA-Z-]{0,4}", fullmatch=True)
identifiers = st.one_of(st.integers(0, 300).map(str), words)
prereleases = st.lists(identifiers, max_size=3).map(tuple)
builds = st.lists(st.from_regex(r"[0-9a-zA-Z-]{1,4}", fullmatch=True), max_size=2).map(tuple)
versions = st.builds(Version, numbers, numbers, numbers, prereleases, builds)


@pytest.mark.parametrize(
    "text",
    ["0.0.0", "1.2.3", "10.20.30", "1.0.0-0", "1.0.0-alpha.1", "1.0.0--", "1.0.0-0a.-.x", "1.0.0+001", "1.0.0-a+b.c-d"],
)
def test_a_valid_version_reads_back_as_it_was_written(text: str) -> None:
    assert str(Version.parse(text)) == text


@pytest.mark.parametrize(
    "text",
    [
        "", "1", "1.2", "1.2.3.4", "01.2.3", "1.02.3", "1.2.03", "v1.2.3", "=1.2.3", " 1.2.3", "1.2.3 ", "1.2.3\n",
        "1.2.3-", "1.2.3-01", "1.2.3-a..b", "1.2.3+", "1.2.3+a+b", "1.2.3-ä", "-1.2.3", "1.2.x", "latest", "١.2.3",
        "1.2.3\x00", "\ud800", "1.0.0-" + "a" * 251,
    ],
)  # fmt: skip
def test_invalid_versions_are_refused_with_a_hint(text: str) -> None:
    with pytest.raises(InvalidVersion) as caught:
        Version.parse(text)
    assert caught.value.hint
    (caught.value.message + caught.value.hint).encode()  # printable for every input


def test_invalid_version_hint_suggests_a_corrected_version() -> None:
    with pytest.raises(InvalidVersion) as caught:
        Version.parse("v1.02")
    assert "'1.2.0'" in str(caught.value.hint)


def test_precedence_has_the_documented_bytes() -> None:
    assert Version.parse("1.2.3").precedence.hex() == "010101020103ff"
    assert Version.parse("0.0.256-a.7").precedence.hex() == "0000020100" + "026100" + "010107" + "00"


def test_the_order_of_the_specification_is_kept() -> None:
    ordered = ["1.0.0-alpha", "1.0.0-alpha.1", "1.0.0-alpha.beta", "1.0.0-beta", "1.0.0-beta.2", "1.0.0-beta.11",
               "1.0.0-rc.1", "1.0.0", "1.0.1-0", "1.0.1"]  # fmt: skip
    keys = [Version.parse(text).precedence for text in ordered]
    assert keys == sorted(keys)


def test_build_metadata_has_no_precedence() -> None:
    assert Version.parse("1.0.0+a").precedence == Version.parse("1.0.0+b").precedence
    assert Version.parse("1.0.0+a") != Version.parse("1.0.0+b")


@settings(max_examples=EXAMPLES)
@given(versions, versions)
def test_precedence_orders_as_the_reference_does(one: Version, other: Version) -> None:
    expected = semver.Version.parse(str(one)).compare(str(other))
    actual = (one.precedence > other.precedence) - (one.precedence < other.precedence)
    assert actual == expected


@pytest.mark.full
@settings(max_examples=EXAMPLES)
@given(versions, versions)
def test_no_key_is_the_start_of_another(one: Version, other: Version) -> None:
    if one.precedence != other.precedence:
        assert not one.precedence.startswith(other.precedence)


@given(versions)
def test_parsing_undoes_printing(version: Version) -> None:
    text = str(version)
    assert Version.parse(text) == version
    assert version.is_release == (not version.prerelease)


@settings(max_examples=EXAMPLES)
@given(st.one_of(st.text(), st.from_regex(r"[v=]?[0-9x.]{0,8}[-+a-z.0-9]{0,8}", fullmatch=True)))
def test_the_same_texts_are_versions_as_for_the_reference(text: str) -> None:
    try:
        assert str(Version.parse(text)) == text
        assert semver.Version.is_valid(text)
    except InvalidVersion:
        # The reference accepts a trailing line end, and digits of other scripts.
        assert not (text.isascii() and semver.Version.is_valid(text)) or text.endswith("\n")


@given(versions)
def test_the_next_versions_are_higher_releases(version: Version) -> None:
    following = [version.next_patch(), version.next_minor(), version.next_major()]
    keys = [version.precedence, *(each.precedence for each in following)]
    assert keys == sorted(set(keys))
    assert all(each.is_release for each in following)
