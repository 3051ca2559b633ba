"""tools.json: which files are Skill Tools, which rules they break, and that no content does harm."""

from __future__ import annotations

import ast
import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from skillery.errors import InvalidBundle, InvalidParams
from skillery.formats.defined_tools import handler_of, python_handler
from skillery.formats.json_values import MAX_BYTES
from skillery.formats.tools import (
    MAX_TOOLS,
    Tool,
    ToolsFile,
    name_warnings,
    parameters_of,
    parse_definition,
    read_tools,
    refuse_broken,
)

PATHS = frozenset({"skill.toml", "SKILL.md", "tools.json", "scripts/count.py", "scripts/count.js", "scripts/a.rb", "x"})
TEXT = {"type": "string", "description": "The text"}
LEAST = {"name": "count_words", "description": "Counts words"}


def read(value: object) -> ToolsFile:
    return read_tools(json.dumps(value).encode(), PATHS)


def problems(value: object) -> list[str]:
    found = read(value)
    assert found.is_skill_tools
    return [problem.message for problem in found.problems]


def of_parameter(parameter: object) -> list[str]:
    return problems([{**LEAST, "parameters": {"p": parameter}}])


# -- valid files -----------------------------------------------------------------------------------------------------


def test_a_file_with_everything_is_read_as_it_stands() -> None:
    parameters = {"text": TEXT, "how": {**TEXT, "enum": ["a", "b"], "optional": True}}
    file = read([{**LEAST, "script": "scripts/count.js", "parameters": parameters}, {**LEAST, "name": "b"}])
    assert (file.problems, file.warnings, file.is_skill_tools, file.has_scripts) == ((), (), True, True)
    first, second = file.tools
    assert (first.name, first.description, first.script) == ("count_words", "Counts words", "scripts/count.js")
    assert first.declared == parameters
    assert (first.parameters["text"].optional, first.parameters["how"].enum) == (False, ("a", "b"))
    assert (second.script, second.parameters, second.declared) == (None, {}, {})


def test_no_tools_are_valid() -> None:
    assert read([]) == ToolsFile(is_skill_tools=True)
    assert not read([LEAST]).has_scripts


def test_a_byte_order_mark_does_not_matter() -> None:
    assert len(read_tools(b"\xef\xbb\xbf" + json.dumps([LEAST]).encode(), PATHS).tools) == 1


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "not JSON (line 1)"),
        (b"{\n oops", "not JSON (line 2)"),
        (b"\xff\xfe[", "not UTF-8"),
        (b'"\xed\xa0\x80"', "not UTF-8"),
        (b"[NaN]", "a number"),
        (b"[" + b"9" * 5000 + b"]", "a number"),
        (b"[" * 100_000, "nested too deep"),
        (b'{"a":' * 100_000, "nested too deep"),
        (b"[" + b" " * MAX_BYTES + b"]", "are read"),
        (b"3", "is an integer"),
        (b"null", "is null"),
        (b'{"tools": []}', "is an object"),
        (b'{"name": "x", "version": "1.0"}', "is an object"),
        (b'["a", "b"]', "an array with values other than objects"),
        (b'[{"name": "a", "description": "b"}, 1]', "an array with values other than objects"),
    ],
)
def test_unrecognized_tools_json_is_reported_and_treated_as_an_ordinary_file(data: bytes, words: str) -> None:
    file = read_tools(data, PATHS)
    assert (file.tools, file.warnings, file.is_skill_tools) == ((), (), False)
    (problem,), (warning,) = file.problems, file.skipped
    assert words in problem.message
    assert warning == f"{problem.message}: it is treated as an ordinary file without tools"


def test_single_tool_outside_an_array_is_a_problem() -> None:
    file = read(LEAST)
    assert (file.tools, file.is_skill_tools) == ((), True)
    assert [problem.message for problem in file.problems] == [
        "tools.json is an object; it must be an array, even of one tool"
    ]


# -- the rules -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["", "Count", "1a", "_a", "count-words", "a.b", "a b", "a\n", "ä", "a" * 129, 3, None])
def test_names_are_lowercase_with_underscores(name: object) -> None:
    (message,) = problems([{**LEAST, "name": name}])
    assert message.startswith("tools.json[0].name is ")


@pytest.mark.parametrize("key", ["name", "description"])
def test_name_and_description_must_be_there(key: str) -> None:
    assert problems([{other: value for other, value in LEAST.items() if other != key}]) == [
        f"tools.json[0].{key} is missing"
    ]


@pytest.mark.parametrize("description", ["", " \n", 3, None, ["x"]])
def test_a_description_says_something(description: object) -> None:
    assert len(problems([{**LEAST, "description": description}])) == 1


def test_duplicate_tool_names_in_a_file_are_problems() -> None:
    file = read([LEAST, {**LEAST, "description": "another"}])
    assert [problem.path for problem in file.problems] == ["tools.json[1].name"]
    assert [tool.description for tool in file.tools] == ["Counts words"]


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("scripts/cuont.py", "not in the bundle (did you mean 'scripts/count.py'?)"),
        ("scripts", "not in the bundle"),
        ("../x.py", "'.' or '..' segment"),
        ("/etc/passwd", "is absolute"),
        ("scripts\\count.py", "a backslash"),
        ("", "is empty"),
        ("scripts/a.rb", "no supported language"),
        ("x", "no supported language"),
        ("SKILL.md", "no supported language"),
        (["scripts/count.py"], "is an array"),
        (None, "is null"),
    ],
)
def test_tool_script_must_be_a_bundle_file_in_a_supported_language(script: object, words: str) -> None:
    (message,) = problems([{**LEAST, "script": script}])
    assert words in message


def test_a_script_may_begin_with_a_dot() -> None:
    assert read([{**LEAST, "script": "./scripts/count.py"}]).tools[0].script == "scripts/count.py"


@pytest.mark.parametrize("value", [[], "x", 3, None, True])
def test_parameters_are_an_object_of_objects(value: object) -> None:
    assert len(problems([{**LEAST, "parameters": value}])) == 1
    assert len(of_parameter(value)) == 1


@pytest.mark.parametrize("type_", ["integer", "String", "", "null", "any", 3, None, ["string", "number"]])
def test_types_are_those_of_the_convention(type_: object) -> None:
    (message,) = of_parameter({**TEXT, "type": type_})
    assert message.startswith("tools.json[0].parameters.p.type is ")


def test_type_and_description_of_a_parameter_must_be_there() -> None:
    assert of_parameter({}) == [
        "tools.json[0].parameters.p.type is missing",
        "tools.json[0].parameters.p.description is missing",
    ]


@pytest.mark.parametrize("key", ["enum", "optional", "description"])
def test_parameter_fields_of_a_wrong_type_are_named(key: str) -> None:
    for value in (3, {"a": 1}, None):
        (message,) = of_parameter({**TEXT, key: value})
        assert message.startswith(f"tools.json[0].parameters.p.{key} is ")


def test_all_problems_are_reported_at_once() -> None:
    broken = [{"name": "A"}, {**LEAST, "script": "none.py"}, {**LEAST, "name": "c", "parameters": {"p": {"type": 1}}}]
    with pytest.raises(InvalidBundle) as caught:
        refuse_broken(read(broken))
    assert len(caught.value.data["problems"]) == 5
    assert caught.value.data["problems"][0]["path"] == "tools.json[0].name"
    assert caught.value.hint is not None
    assert "tools.json is an array" in caught.value.hint


def test_a_lenient_reader_drops_the_tools_that_break_a_rule() -> None:
    file = read([{"name": "a"}, LEAST])
    assert [tool.name for tool in file.tools] == ["count_words"]
    assert file.skipped == ("tools.json[0].description is missing; that tool is left out",)


def test_there_can_be_too_many_tools() -> None:
    file = read([{**LEAST, "name": f"t{n}"} for n in range(MAX_TOOLS + 1)])
    assert len(file.tools) == MAX_TOOLS
    assert [problem.path for problem in file.problems] == ["tools.json"]


# -- warnings --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tool", "words"),
    [
        ({**LEAST, "scripts": "x"}, "unknown key tools.json[0].scripts (did you mean 'script'?)"),
        ({**LEAST, "parameters": {"p": {**TEXT, "default": None}}}, "unknown key tools.json[0].parameters.p.default"),
        ({**LEAST, "parameters": {"p": {**TEXT, "enum": ["a", None]}}}, "contains null"),
        ({**LEAST, "parameters": {"p": {**TEXT, "enum": []}}}, "no value is allowed"),
        ({**LEAST, "parameters": {"__workDir": TEXT}}, "the server sets __workDir"),
    ],
)
def test_unusual_tool_definitions_are_warnings(tool: dict[str, Any], words: str) -> None:
    file = read([tool])
    assert (len(file.tools), file.problems) == (1, ())
    assert words in file.warnings[0]


def test_names_that_other_runtimes_refuse_are_warnings() -> None:
    assert list(name_warnings("count-words", "count-words")) == []
    assert list(name_warnings("count-words", None)) == []
    for name in ("team.count", "count_words", "a" * 65):
        (warning,) = name_warnings(name, name)
        assert "does not allow the name" in warning
    assert "frontmatter is 'Count'" in next(name_warnings("count-words", "Count"))


# -- hostile files ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('[{"name": "a", "description": "\\ud800"}]', "lone surrogate"),
        ('[{"name": "a", "description": "b\\u0000"}]', "NUL"),
        ('[{"name": "a", "name": "b", "description": "c"}]', "the key 'name' twice"),
        ('[{"name": "a", "description": "c", "parameters": {"p": {"type": 1, "type": 2}}}]', "the key 'type' twice"),
        ('{"name": "a", "name": "b", "description": "c"}', "the key 'name' twice"),
        ('[{"name": "a", "description": "c", "x": 1e999}]', "finite"),
        ('[{"name": "a", "description": "c", "x": 99999999999999999999}]', "64 bits"),
        (f'[{{"name": "a", "description": "c", "x": {"[" * 40}{"]" * 40}}}]', "nested deeper"),
        (f'[{{"name": "a", "description": "{"x" * 70_000}"}}]', "bytes of JSON"),
        (f'[{{"name": "a", "description": "c", "x": [{"1," * 200_000}1]}}]', "values"),
    ],
)
def test_unstorable_or_ambiguous_tools_are_refused(text: str, words: str) -> None:
    file = read_tools(text.encode(), PATHS)
    assert (file.tools, file.is_skill_tools) == ((), True)
    assert any(words in problem.message for problem in file.problems)


def test_thousands_of_problems_are_reported_in_short() -> None:
    many = [{**LEAST, "name": f"t{n}", "script": f"scripts/none{n}.py", f"k{n}": 1} for n in range(MAX_TOOLS)]
    file = read(many)
    assert (len(file.problems), len(file.skipped)) == (MAX_TOOLS, 50)
    odd = {f"k{n}": 1 for n in range(3000)}
    assert len(read([{**LEAST, **odd}]).warnings) == 50


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
KEYS = st.sampled_from(["name", "description", "script", "parameters", "type", "enum", "optional"])
NEARLY = st.lists(
    st.fixed_dictionaries(
        {},
        optional={
            "name": st.sampled_from(["a", "b", "A", "", "a-b"]) | JSON,
            "description": st.sampled_from(["does it", ""]) | JSON,
            "script": st.sampled_from(["scripts/count.py", "./scripts/count.js", "x", "../x"]) | JSON,
            "parameters": st.dictionaries(st.text(max_size=4), st.dictionaries(KEYS, JSON, max_size=4), max_size=3)
            | JSON,
            "other": JSON,
        },
    ),
    max_size=4,
)


@given(st.binary(max_size=200) | st.text().map(lambda text: text.encode("utf-8", "surrogatepass")))
def test_bytes_never_raise(data: bytes) -> None:
    assert isinstance(read_tools(data, PATHS), ToolsFile)


@pytest.mark.smoke
@given(NEARLY | JSON)
def test_read_tools_accepts_any_json_and_returns_only_valid_tools(value: object) -> None:
    file = read_tools(json.dumps(value).encode(), PATHS)
    if not file.is_skill_tools:
        assert (file.warnings, file.tools, len(file.problems)) == ((), (), 1)
        return
    assert len({tool.name for tool in file.tools}) == len(file.tools)
    assert isinstance(value, dict) or file.problems or len(file.tools) == len(value)  # type: ignore[arg-type]
    for tool in file.tools:
        again = read([{"name": tool.name, "description": tool.description, "parameters": tool.declared}])
        assert again.problems == ()
        assert parameters_of(tool.declared) == tool.parameters
        assert tool.script is None or tool.script in PATHS


@given(st.text(), st.text(), st.text() | JSON.map(json.dumps))
def test_a_definition_is_a_tool_or_is_refused(name: str, description: str, parameters: str) -> None:
    for given_name in (name, "t"):
        tool: Tool | None = None
        with suppress(InvalidParams):
            tool = parse_definition(given_name, description, parameters, "scripts/t.py")
        assert tool is None or (tool.name, tool.script) == (given_name, "scripts/t.py")


# -- code that becomes a handler ---------------------------------------------------------------------------------------

STATEMENTS = st.sampled_from(
    [
        "x = 1",
        "if x:\n    y = 'a'\n\n    z = [\n1,\n  2]",
        's = """one\n two\n  three"""',
        "s = 'a\\\n  b'",
        "s = ('a'\n'b' f'{x}'\n  'c')",
        's = """a\r\n b\r  c"""',
        's = f"""{x}\n {x + 1}\n"""',
        's = f"{x}" """\nb""" r\'\'\'\n\\\n\'\'\'',
        "def inner():\n\t'''text\n\tof it'''\n\treturn 1",
        '# a comment with """',
        "return {\n'a': x,\n}",
        "",
    ]
)


@given(st.lists(STATEMENTS, min_size=1).map("\n".join))
def test_handler_around_python_code_preserves_its_statements(code: str) -> None:
    handler = python_handler(code + "\npass")
    assert isinstance(handler, str)
    (function,) = ast.parse(handler).body
    assert isinstance(function, ast.FunctionDef)
    assert [ast.dump(one) for one in function.body] == [ast.dump(one) for one in ast.parse(code + "\npass").body]


@given(st.text())
@example("\r\x80")
def test_any_text_becomes_some_handler(code: str) -> None:
    assert python_handler(code)
    assert handler_of(code, "javascript").strip()
    assert handler_of(code, "bash").strip()
