"""Exported SKILL.md: a conforming file stays unchanged, any other file is converted into a conforming one."""

from __future__ import annotations

import re

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from skillery.formats.agent_skill import FIELDS, MAX_DESCRIPTION, agent_skill, cut, is_agent_skill_name
from skillery.formats.names import index_name, parse_skill_name
from skillery.formats.skill_md import MAX_FRONTMATTER_BYTES, parse_skill_md

NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
CONFORMING = [
    b"---\nname: greet\ndescription: Greets.\n---\n# Greet\n",
    b"---\nname: greet\ndescription: Greets.\n---",
    b"---\r\nname: greet\r\ndescription: Greets.\r\n---\r\n# Greet\r\n",
    b"---\n# a comment\ndescription: >\n  Greets\n  somebody.\nname: 'greet'\nlicense: MIT\n---\n",
    b'---\nname: greet\ndescription: x\nmetadata:\n  by: a\n  version: "1.0"\nallowed-tools: Read Bash(x:*)\n---\n',
    b"---\nname: greet\ndescription: x\ncompatibility: git\nallowed-tools:\n  - Read\n---\n\xff not text",
    b"---\nname: greet\ndescription: a --- b\n---\nc --- d\n---\n",
    b"---\nname: greet\ndescription: " + b"x" * 1024 + b"\n---\n",
]
OTHERS = [
    b"",
    b"# Greet\n",
    b"\xef\xbb\xbf---\nname: greet\ndescription: x\n---\n",
    b"--- \nname: greet\ndescription: x\n---\n",
    b"---\nname: greet\ndescription: x\n",
    b"---\nname: greet\ndescription: use when: this\n---\n",
    b"---\nname: greet\ndescription: \xff\n---\n",
    b"---\n---\n",
    b"---\nname: Greet\ndescription: x\n---\n",
    b"---\nname: other\ndescription: x\n---\n",
    b"---\nname: greet\n---\n",
    b"---\nname: greet\ndescription: ' '\n---\n",
    b"---\nname: greet\ndescription: [x]\n---\n",
    b"---\nname: greet\ndescription: 12\n---\n",
    b"---\nname: greet\ndescription: 0o17\n---\n",
    b"---\nname: greet\ndescription: x\nmetadata: {version: 1.10}\n---\n",
    b"---\nname: greet\ndescription: " + b"x" * 1025 + b"\n---\n",
    b"---\nname: greet\ndescription: x\nversion: v1\n---\n",
    b"---\nname: greet\ndescription: x\nlicense: [MIT]\n---\n",
    b"---\nname: greet\ndescription: x\ncompatibility: ''\n---\n",
    b"---\nname: greet\ndescription: x\ncompatibility: " + b"x" * 501 + b"\n---\n",
    b"---\nname: greet\ndescription: x\nmetadata: a\n---\n",
    b"---\nname: greet\ndescription: x\nmetadata: {a: {b: c}}\n---\n",
    b"---\nname: greet\ndescription: x\nallowed-tools: {a: b}\n---\n",
]


@pytest.mark.parametrize("stored", CONFORMING)
def test_conforming_skill_md_is_exported_unchanged(stored: bytes) -> None:
    found = agent_skill(stored, name="greet", description="other")
    assert (found.content, found.is_generated) == (stored, False)


@pytest.mark.parametrize("stored", OTHERS)
def test_nonconforming_skill_md_is_converted(stored: bytes) -> None:
    found = agent_skill(stored, name="greet", description="of the manifest")
    assert found.is_generated
    check(found.content, "greet")


def test_conversion_moves_nonconforming_frontmatter_to_metadata() -> None:
    stored = (
        b"\xef\xbb\xbf---\r\nname: Greet them\r\ndescription: Greets --- all.\r\nversion: 1.10\r\ntags: [a, b]\r\n"
        b"license: MIT\r\nmetadata: {version: 2.0, deep: {x: y}}\r\ndisable: true\r\n---\r\n# Greet\r\n---\r\n"
    )
    made = agent_skill(stored, name="team-greet", description="of the manifest")
    assert made.frontmatter == {
        "name": "team-greet",
        "description": "Greets --- all.",
        "license": "MIT",
        "metadata": {
            "version": "2.0",
            "deep": '{"x":"y"}',
            "name": "Greet them",
            "version-2": "1.10",
            "tags": '["a","b"]',
            "disable": "true",
        },
    }
    assert made.content == (
        b'---\nname: team-greet\ndescription: "Greets \\x2d\\x2d\\x2d all."\nlicense: MIT\nmetadata:\n'
        b'  version: "2.0"\n  deep: "{\\"x\\":\\"y\\"}"\n  name: Greet them\n  version-2: "1.10"\n'
        b'  tags: "[\\"a\\",\\"b\\"]"\n  disable: "true"\n---\n# Greet\r\n---\r\n'
    )


def test_the_description_comes_from_the_manifest_where_there_is_none() -> None:
    made = agent_skill(b"# Greet\n", name="greet", description="Greets somebody.")
    assert made.content == b"---\nname: greet\ndescription: Greets somebody.\n---\n# Greet\n"
    assert agent_skill(b"", name="greet", description=" ").description == "The skill greet."


def test_a_long_description_is_cut_between_words_and_kept_whole_in_metadata() -> None:
    stored = b"---\nname: greet\ndescription: " + b"word " * 300 + b"\n---\n"
    made = agent_skill(stored, name="greet", description="")
    assert made.description.endswith("word…")
    assert len(made.description) <= MAX_DESCRIPTION
    assert made.frontmatter["metadata"] == {"description": ("word " * 300).strip()}


@pytest.mark.parametrize(
    ("name", "expected"),
    [("a.b_c", "a-b-c"), ("guide", "guide"), ("a-b.c", "a-b-c"), ("a" * 64, "a" * 64)],
)
def test_an_index_name_knows_no_dots(name: str, expected: str) -> None:
    assert index_name(name) == expected


def test_a_long_index_name_is_cut_and_ends_with_a_digest() -> None:
    one, other = index_name("team." + "a" * 80), index_name("team." + "a" * 81)
    assert one != other
    assert {len(one), len(other)} == {64}
    assert one.startswith("team-aaa")
    assert is_agent_skill_name(index_name(("a" * 54 + ".b.") + "c" * 60))


segments = st.from_regex(r"[a-z0-9]{1,9}([_-][a-z0-9]{1,9}){0,3}", fullmatch=True)
skill_names = st.lists(segments, min_size=1, max_size=6).map(".".join).filter(lambda name: len(name) <= 128)
texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=60)
scalars = st.one_of(texts, st.sampled_from(["", "yes", "1.10", "null", "a: b", "- x", "---", "x" * 1500, "é" * 1100]))
values = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(scalars, inner, max_size=3)),
    max_leaves=5,
)
keys = st.one_of(st.sampled_from(FIELDS), texts, st.just("k" * 1100))
frontmatters = st.dictionaries(keys, values, max_size=6)
bodies = st.one_of(st.binary(max_size=60), st.sampled_from([b"---\na: b\n---\n", b"\r\n# x\r\n", b"\xef\xbb\xbfx"]))


@pytest.mark.full
@given(skill_names)
def test_every_skill_has_an_index_name(name: str) -> None:
    found = index_name(parse_skill_name(name))
    assert NAME.fullmatch(found)
    assert len(found) <= 64
    assert is_agent_skill_name(found)


@pytest.mark.full
@given(frontmatters, bodies, texts, st.sampled_from(["greet", "123", "null", "1e3", "no", "a-b"]))
def test_of_any_frontmatter_something_conforming_is_made(
    frontmatter: dict[str, object], body: bytes, description: str, name: str
) -> None:
    stored = b"---\n" + yaml.safe_dump(frontmatter, allow_unicode=True).encode() + b"---\n" + body
    made = agent_skill(stored, name=name, description=description)
    check(made.content, name)
    assert made.content.endswith(body)
    assert agent_skill(made.content, name=name, description="another").content == made.content


@pytest.mark.smoke
@given(st.binary(max_size=200), texts, skill_names)
def test_of_any_bytes_something_conforming_is_made(stored: bytes, description: str, name: str) -> None:
    for given_bytes in (stored, b"---\n" + stored, b"---\n" + stored + b"\n---\nbody"):
        made = agent_skill(given_bytes, name=index_name(name), description=description)
        check(made.content, index_name(name))
        assert agent_skill(made.content, name=index_name(name), description="another").is_generated is False


@given(st.text(max_size=60), st.integers(1, 40))
def test_shortened_text_is_short_in_every_count(text: str, length: int) -> None:
    short = cut(text, length)
    assert len(short.encode("utf-16-le", "surrogatepass")) // 2 <= length
    assert short == text or short.endswith("…")


def check(content: bytes, name: str) -> None:
    """Check a SKILL.md against the specification, as a typed YAML reader reads it."""
    assert not agent_skill(content, name=name, description="").is_generated
    fence, source, _ = content.split(b"---", 2)  # the reference validator splits in the same way
    assert fence == b""
    found = yaml.safe_load(source.decode())
    assert found == parse_skill_md(content.decode(errors="replace").replace("\0", "")).frontmatter
    assert set(found) <= set(FIELDS)
    assert found["name"] == name
    assert isinstance(found["description"], str)
    assert found["description"].strip()
    assert len(found["description"]) <= 1024
    assert isinstance(found.get("license", ""), str)
    assert isinstance(found.get("compatibility", ""), str)
    assert 1 <= len(found.get("compatibility", "x")) <= 500
    assert all(isinstance(part, str) for pair in found.get("metadata", {}).items() for part in pair)
    tools = found.get("allowed-tools", "")
    assert isinstance(tools, str) or all(isinstance(tool, str) for tool in tools)


@pytest.mark.full
def test_conversion_keeps_the_shortest_metadata_up_to_the_size_limit() -> None:
    lines = [f'k{place}: "{chr(92)}x01{chr(92)}x01{"x" * (place % 2)}"' for place in range(3300)]
    made = agent_skill("\n".join(["---", *lines, "---", ""]).encode(), name="a", description="b")
    room = MAX_FRONTMATTER_BYTES - len(made.content)
    assert 0 <= room < len('  k2499: "\\x01\\x01xx"\n')
    kept = made.frontmatter["metadata"]
    assert isinstance(kept, dict)
    assert "k0" in kept
    assert "k1001" not in kept
    assert yaml.safe_load(made.content.decode().split("---")[1])["metadata"] == kept
