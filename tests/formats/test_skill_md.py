"""SKILL.md: frontmatter stays as it was written or gets types, and YAML with other features is refused cheaply."""

from __future__ import annotations

import tracemalloc

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from skillery.errors import InvalidBundle
from skillery.formats.skill_md import MAX_FRONTMATTER_BYTES, body_of, head_of, parse_skill_md, text_of


def refusal(text: str) -> InvalidBundle:
    with pytest.raises(InvalidBundle) as caught:
        parse_skill_md(text)
    assert caught.value.data["file"] == "SKILL.md"
    assert caught.value.hint
    return caught.value


def test_scalars_stay_as_they_were_written() -> None:
    values = "name: Guide\nversion: 1.10\nold: 010\non: yes\nnone: null\nempty:\ndate: 2024-01-01\n'q': \"a\\tb\"\n"
    text = f"---\n{values}---\n"
    assert parse_skill_md(text).frontmatter == {
        "name": "Guide",
        "version": "1.10",
        "old": "010",
        "on": "yes",
        "none": "null",
        "empty": "",
        "date": "2024-01-01",
        "q": "a\tb",
    }


def test_lists_tables_and_blocks_are_kept() -> None:
    text = "---\ntags: [crm, 1]\nmeta:\n  a:\n    - b\n    - {c: d}\ntext: >\n  one\n  two\n---\nBody\n"
    parsed = parse_skill_md(text)
    assert parsed.frontmatter == {"tags": ["crm", "1"], "meta": {"a": ["b", {"c": "d"}]}, "text": "one two\n"}
    assert parsed.body == "Body\n"


@pytest.mark.parametrize("text", ["", "# Title\n", "text\n---\na: b\n---\n", "----\na: b\n----\n", " ---\na: b\n"])
def test_without_frontmatter_all_is_body(text: str) -> None:
    parsed = parse_skill_md(text)
    assert (parsed.frontmatter, parsed.body) == ({}, text)


@pytest.mark.parametrize("text", ["---\n---\nx", "---\n\n---\nx", "---\n# only a comment\n---\nx", "--- \n---\t\nx"])
def test_empty_frontmatter_is_an_empty_object(text: str) -> None:
    parsed = parse_skill_md(text)
    assert (parsed.frontmatter, parsed.body) == ({}, "x")


def test_crlf_and_a_byte_order_mark_make_no_difference() -> None:
    parsed = parse_skill_md("\ufeff---\r\nname: x\r\nnext: y\r\n---\r\nBody\r\n")
    assert parsed.frontmatter == {"name": "x", "next": "y"}
    assert parsed.body == "Body\r\n"


@pytest.mark.parametrize(
    ("text", "line", "word"),
    [
        ("---\nname: x\n", 1, "without an end"),
        ("---\nname: x\nb: [1\n---\n", None, "broken"),
        ("---\na: b: c\n---\n", 2, "broken"),
        ("---\na: 1\n\tb: 2\n---\n", 3, "broken"),
        ("---\na: 1\nb: *x\n---\n", 3, "no anchor"),
        ("---\na: &x [*x]\n---\n", 2, "no anchor"),
        ("---\na: &x [[[[1]]]]\nb: [[[[*x]]]]\n---\n", 3, "deeper than 8"),
        ("---\na: !!python/object:os.system x\n---\n", 2, "tag"),
        ("---\n!!map\na: 1\n---\n", 2, "tag"),
        ("---\na: ! 1\n---\n", 2, "tag"),
        ("---\na: 1\nb: 2\na: 3\n---\n", 4, "twice"),
        ("---\nx:\n  a: 1\n  a: 2\n---\n", 4, "twice"),
        ("---\n- a\n---\n", 2, "not a mapping"),
        ("---\njust text\n---\n", 2, "not a mapping"),
        ("---\n'': \n? [a]\n: b\n---\n", 3, "not text"),
        ("---\na: 1\n...\nb: 2\n---\n", None, ""),
        ('---\na: "\\ud800"\n---\n', 2, "surrogate"),
        ('---\na: "\\0"\n---\n', 2, "NUL"),
        ('---\na: "\\UFFFFFFFF"\n---\n', None, "no character"),
        ("---\na: 1\nb: \x07\n---\n", 3, "does not allow"),
        ("---\na: " + "[" * 9 + "]" * 9 + "\n---\n", 2, "deeper than 8"),
        ("body \x00", None, "NUL"),
        ("body \ud800", None, "surrogate"),
    ],
)
def test_broken_frontmatter_is_refused_with_its_line(text: str, line: int | None, word: str) -> None:
    error = refusal(text)
    assert word in error.message
    assert line is None or error.data["line"] == line


@pytest.mark.parametrize(
    "source",
    [
        "a0: &a0 [x,x]\n" + "".join(f"a{i + 1}: &a{i + 1} [*a{i},*a{i}]\n" for i in range(50)),
        "a0: &a0 x\n" + "".join(f"a{i + 1}: &a{i + 1} [{','.join([f'*a{i}'] * 40)}]\n" for i in range(6)),
        f"a: &a {'x' * 40_000}\nb: [{','.join(['*a'] * 2000)}]\n",
        "a: " + "[" * 60_000,
        "a: " + "{a: " * 15_000,
        "- " * 30_000,
        "? " * 30_000,
        "a: '" + "x" * 70_000 + "'",
    ],
)
def test_bombs_are_refused_before_anything_is_built(source: str) -> None:
    refusal(f"---\n{source}\n---\n")


def test_aliases_repeat_the_value_of_their_anchor() -> None:
    parsed = parse_skill_md("---\na: &x [1, b]\nc: *x\nd: {e: *x}\nf: &y g\n*y : h\n---\n")
    assert parsed.frontmatter == {"a": ["1", "b"], "c": ["1", "b"], "d": {"e": ["1", "b"]}, "f": "g", "g": "h"}


def test_scalars_have_the_types_of_yaml() -> None:
    text = "n: 1\nf: -1.5\nb: true\nc: FALSE\nnothing: ~\nempty:\nquoted: 'true'\nlist: [1, x]\n"
    assert parse_skill_md(f"---\n{text}---\n").typed == {
        "n": 1,
        "f": -1.5,
        "b": True,
        "c": False,
        "nothing": None,
        "empty": None,
        "quoted": "true",
        "list": [1, "x"],
    }


def test_versions_names_dates_and_other_notations_stay_text() -> None:
    values = {
        "version": "1",
        "name": "true",
        "tags": "7",
        "a": "1.10",
        "b": "007",
        "c": "+1",
        "d": "1e3",
        "e": "0x1f",
        "f": "2024-01-01",
        "g": "1234567890123456",
        "h": "yes",
        "i": ".inf",
        "j": "-0",
    }
    text = "".join(f"{key}: {value}\n" for key, value in values.items())
    assert parse_skill_md(f"---\n{text}metadata:\n  version: 2.0\n---\n").typed == {
        **values,
        "metadata": {"version": "2.0"},
    }


def test_frontmatter_has_a_size() -> None:
    assert str(MAX_FRONTMATTER_BYTES) in refusal("---\na: " + "x" * MAX_FRONTMATTER_BYTES + "\n---\n").message


def test_a_name_that_is_no_text_is_a_warning() -> None:
    assert len(parse_skill_md("---\nname: [a]\n---\n").warnings) == 1
    assert parse_skill_md("---\nname: a\n---\n").warnings == ()


@given(st.one_of(st.text(), st.text(alphabet="ab:-[]{}#&*!|>'\"%@`?,\n \t\\", max_size=40)))
def test_any_text_parses_or_gives_a_clear_error(text: str) -> None:
    for candidate in (text, f"---\n{text}\n---\nbody"):
        try:
            parse_skill_md(candidate)
        except InvalidBundle as error:
            error.message.encode()


plain_text = st.text(
    alphabet=st.characters(min_codepoint=32, max_codepoint=0x2FFF, exclude_characters="\x85\u2028\u2029")
)
plain = st.recursive(
    plain_text,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text("abc", min_size=1), inner, max_size=3)
    ),
    max_leaves=6,
)


@pytest.mark.full
@given(st.dictionaries(st.text("abcdef", min_size=1, max_size=5), plain, max_size=4))
def test_frontmatter_from_a_yaml_writer_round_trips(value: dict[str, object]) -> None:
    written = yaml.safe_dump(value, allow_unicode=True)
    try:
        parsed = parse_skill_md(f"---\n{written}---\n")
    except InvalidBundle as error:
        assert "deeper" in error.message or "\n---" in written  # noqa: PT017 - nothing else may be wrong with it
    else:
        assert parsed.frontmatter == value


@pytest.mark.full
def test_body_of_many_short_lines_is_parsed_in_bounded_memory() -> None:
    body = "a\n" * (4 << 20)
    text = f"---\nname: x\n---\n{body}"
    tracemalloc.start()
    parsed = parse_skill_md(text)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (parsed.frontmatter, parsed.body) == ({"name": "x"}, body)
    assert body_of(text) == body
    assert body_of(body) == body
    assert most < 8 * len(text)  # a list of the lines takes thirty times the size of the text


def test_frontmatter_with_a_distant_end_is_reported_as_too_long() -> None:
    with pytest.raises(InvalidBundle, match="more than 65536 bytes"):
        parse_skill_md("---\n" + "a: b\n" * 400_000 + "---\n")


@given(st.text(alphabet="-a:\n \r\x0b\x85", max_size=60), st.integers(0, 60))
def test_where_the_head_ends_cuts_no_line(text: str, most: int) -> None:
    lines, rest = head_of(text, most)
    assert "".join(lines) + rest == text
    assert all(line.endswith("\n") for line in lines[:-1])
    assert all(line.count("\n") <= 1 for line in lines)
    assert not rest or sum(map(len, lines)) >= most


@pytest.mark.parametrize("end", ["\r", "\u2028", "\x85", "\x0b", "a"])
def test_only_a_line_feed_ends_a_line_and_the_head_is_bounded(end: str) -> None:
    body = end * (3 << 20)
    text = f"---\nname: x\n---\n{body}"
    lines, rest = head_of(text)
    assert len(lines) == 4
    assert len(rest) > 1 << 20
    assert "".join(lines) + rest == text
    parsed = parse_skill_md(text)
    assert (parsed.frontmatter, parsed.body, body_of(text)) == ({"name": "x"}, body, body)


@pytest.mark.parametrize("data", [b"\xed\xa0\x80" * 100_000, b"a\xe2\x82" * 50_000, b"\xff\xfe" + b"\x00\xd8" * 90_001])
def test_invalid_bytes_are_replaced_as_if_decoded_at_once(data: bytes) -> None:
    encoding = "utf-16" if data.startswith(b"\xff\xfe") else "utf-8"
    assert text_of(data) == data.decode(encoding, "replace")
    assert text_of(data[:-1]) == data[:-1].decode(encoding, "replace")


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**15) + 1, 10**15 - 1)
    | st.decimals(-9, 9, places=1).map(float)
    | plain_text,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text("abcdef", min_size=1, max_size=5), inner, max_size=3)
    ),
    max_leaves=6,
)


@pytest.mark.full
@given(st.dictionaries(st.text("abcdef", min_size=1, max_size=5), json_values, max_size=4))
def test_values_that_a_yaml_writer_writes_keep_their_types(value: dict[str, object]) -> None:
    try:
        parsed = parse_skill_md(f"---\n{yaml.safe_dump(value, allow_unicode=True)}---\n")
    except InvalidBundle as error:
        assert "deeper" in error.message  # noqa: PT017 - nothing else may be wrong with it
    else:
        assert parsed.typed == value
