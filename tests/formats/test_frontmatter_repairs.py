"""Frontmatter as people and models write it: it is always read, every repair is listed, no byte and no scalar
changes.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from skillery.formats.foreign_skill import read_foreign_skill
from skillery.formats.lenient_skill_md import ReadSkillMd, read_skill_md
from skillery.formats.repairs import MAX_LISTED, Repairs
from skillery.formats.skill_md import parse_skill_md

FUZZ_EXAMPLES = int(os.environ.get("SKILLERY_FUZZ_EXAMPLES", "150"))
BUNDLED = sorted((Path(__file__).parents[2] / "skills").glob("*/SKILL.md"))


def read(text: str | bytes) -> ReadSkillMd:
    return read_skill_md(text if isinstance(text, bytes) else text.encode())


def codes(text: str | bytes) -> list[str]:
    return [repair.code for repair in read(text).repairs]


def frontmatter(text: str | bytes) -> dict[str, object]:
    return read(text).skill_md.frontmatter


def test_valid_frontmatter_matches_the_strict_reader_without_repairs() -> None:
    text = "---\nname: pdf\ndescription: Reads PDFs.\nmetadata:\n  version: 1.10\n---\n# PDF\n"

    assert read(text).skill_md == parse_skill_md(text)
    assert read(text).repairs == ()


def test_scalars_stay_as_they_were_written() -> None:
    assert frontmatter("---\nname: yes\nversion: 1.10\nnone: null\nold: 010\n---\n") == {
        "name": "yes",
        "version": "1.10",
        "none": "null",
        "old": "010",
    }


@pytest.mark.parametrize(
    ("text", "code", "expected"),
    [
        ("# Just a page\n", "missing_frontmatter", {}),
        ("", "missing_frontmatter", {}),
        ("---\n---\nBody\n", "empty_frontmatter", {}),
        ("---\nA page that begins with a rule.\n\n---\nmore\n", "missing_frontmatter", {}),
        ("\ufeff---\nname: x\n---\n", "byte_order_mark", {"name": "x"}),
        ("---\r\nname: x\r\n---\r\n", "line_ends", {"name": "x"}),
        ("\n\n---\nname: x\n---\n", "leading_lines", {"name": "x"}),
        ("```markdown\n---\nname: x\n---\n# X\n```\n", "leading_lines", {"name": "x"}),
        ("----\nname: x\n----\n", "fence", {"name": "x"}),
        ("---\nname: x\n...\nBody\n", "fence", {"name": "x"}),
        ("---\nname: x\ndescription: y\n\n# Body\n", "unclosed_frontmatter", {"name": "x", "description": "y"}),
        ("---\ndescription: Use it: when asked\n---\n", "unquoted_value", {"description": "Use it: when asked"}),
        (
            "---\nname: x\ndescription: @me, always\n---\n",
            "unquoted_value",
            {"name": "x", "description": "@me, always"},
        ),
        ("---\nd: [WIP] does it: well\n---\n", "unquoted_value", {"d": "[WIP] does it: well"}),
        ('---\nd: "a" or "b"\n---\n', "unquoted_value", {"d": '"a" or "b"'}),
        ("---\nd: it's 100%\ne: %x\n---\n", "unquoted_value", {"d": "it's 100%", "e": "%x"}),
        ("---\nmetadata:\n\tauthor: me\n---\n", "tabs", {"metadata": {"author": "me"}}),
        ("---\nname: a\nname: b\n---\n", "duplicate_key", {"name": "b"}),
        ("---\nname: &n a\nother: *m\n---\n", "yaml_alias", {"name": "a", "other": "*m"}),
        ("---\nname: !!python/object:os.system a\n---\n", "yaml_tag", {"name": "a"}),
        ("---\nname: a\x07b\n---\n", "bad_characters", {"name": "a\ufffdb"}),
        ("---\nname: a\x00b\n---\n", "bad_characters", {"name": "a\ufffdb"}),
        (b"---\nname: caf\xe9\n---\n", "encoding", {"name": "caf\ufffd"}),
        ("---\nname: x\n---\n".encode("utf-16"), "encoding", {"name": "x"}),
        ("---\n[a, b]: c\n---\n", "odd_key", {'["a", "b"]': "c"}),
        ("---\nname: x\nnonsense here\n  - : ]\n---\n", "broken_yaml", None),
        ("---\nname: x\ntools: {a\n  b: [\n---\n", "read_as_text", {"name": "x", "tools": "{a b: ["}),
        ("---\n- a\n- b\n---\n", "unreadable_line", {}),
    ],
)
def test_every_repair_is_named_and_the_rest_is_read(
    text: str | bytes, code: str, expected: dict[str, object] | None
) -> None:
    assert code in codes(text)
    if expected is not None:
        assert frontmatter(text) == expected


def test_broken_key_leaves_other_keys_intact() -> None:
    text = "---\nname: good\ntools: {a: [b\nversion: 1.10\nmetadata:\n  author: me\n---\nBody\n"

    assert frontmatter(text) == {"name": "good", "tools": "{a: [b", "version": "1.10", "metadata": {"author": "me"}}
    assert read(text).skill_md.body == "Body\n"


def test_a_repair_says_where_it_was_needed() -> None:
    repair = next(one for one in read("---\nname: x\ndescription: a: b\n---\n").repairs if one.code == "unquoted_value")

    assert (repair.file, repair.line) == ("SKILL.md", 3)
    assert "description" in repair.message


@pytest.mark.parametrize("nested", ["[" * 6000, "{a: " * 2000, "x: " + "[" * 6000, "- " * 3000, "? " * 3000])
def test_nested_yaml_of_six_kilobytes_does_no_harm(nested: str) -> None:
    found = read(f"---\nname: good\ndeep: {nested}\n---\nBody\n")

    assert found.skill_md.frontmatter["name"] == "good"
    assert found.repairs


def test_blanks_by_the_thousand_take_no_longer_than_anything_else() -> None:
    """With an algorithm of quadratic time, these texts would block the whole server for minutes."""
    blanks = " " * 60_000
    found = read(f"---\nname: x: {blanks}y{blanks[:3000]}\r\n---\n#{blanks}Title{blanks}.{blanks}\n")
    assert found.skill_md.frontmatter == {"name": f"x: {blanks}y"}

    page = read(f"# One{blanks[:16_000]}.## #\n").skill_md
    foreign = read_foreign_skill(page, "x", frozenset(), Repairs())
    assert foreign.description == f"One{blanks[:16_000]}."[:1023].rstrip() + "…"


def test_a_page_that_is_wrong_everywhere_does_not_flood_the_report() -> None:
    found = read("---\n" + "".join(f"k{number}: a: b\n" for number in range(500)) + "---\n")

    assert len(found.repairs) == MAX_LISTED + 1
    assert found.repairs[-1].code == "more"
    assert len(found.skill_md.frontmatter) == 500


SOURCES = st.sampled_from(
    [path.read_bytes() for path in BUNDLED]
    + [b"---\nname: pdf\ndescription: Reads: all of it\nmetadata:\n  version: 1.10\n  tags: [a, b]\n---\n# X\n"]
)
SCRAPS = st.sampled_from(
    [
        b"---",
        b"\n",
        b"\r\n",
        b": ",
        b"[",
        b"{",
        b"'",
        b'"',
        b"\t",
        b"- ",
        b"&a ",
        b"*a",
        b"!x ",
        b"|\n",
        b"\x00",
        b"\xff",
    ]
)


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    data = draw(SOURCES)
    for _ in range(draw(st.integers(1, 6))):
        at = draw(st.integers(0, min(len(data), 400)))
        cut = draw(st.integers(0, 12))
        data = data[:at] + draw(st.one_of(SCRAPS, st.binary(max_size=6))) + data[at + cut :]
    return data


@settings(max_examples=FUZZ_EXAMPLES, deadline=None)
@given(
    st.one_of(
        mutated(), st.binary(max_size=300), st.text(max_size=300).map(lambda text: text.encode("utf-8", "replace"))
    )
)
@example(b"---\n\xef\xbb\xbf---\n")
@example(b"---\n'a': \xc2\x85b\n---")
def test_reader_accepts_any_frontmatter_and_reports_repairs(data: bytes) -> None:
    found = read_skill_md(data)

    assert is_plain(found.skill_md.frontmatter)
    try:
        strict = parse_skill_md(data.decode())
    except Exception:
        assert found.repairs, "frontmatter that the strict reader refuses needs a repair"
    else:
        assert not strict.frontmatter or found.skill_md.frontmatter == strict.frontmatter
    assert all(repair.message and repair.code for repair in found.repairs)


def is_plain(value: object) -> bool:
    if isinstance(value, dict):
        return all(isinstance(key, str) and is_plain(each) for key, each in value.items())
    return all(is_plain(each) for each in value) if isinstance(value, list) else isinstance(value, str)
