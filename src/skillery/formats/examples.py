"""`[[examples]]` and `[[tool_examples]]` of a skill.toml: runs that show how to use a skill and its tools. Publishing
executes them as tests.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any, Literal, cast

import msgspec

from skillery.formats.graders import MAX_GRADERS, OF_RUNS, FitsSchema, Grader, parse_grader
from skillery.formats.inputs import Input, InputType
from skillery.formats.json_values import join, kind_of
from skillery.formats.manifest import Manifest
from skillery.formats.paths import path_problem, plain_path
from skillery.formats.shapes import MAX_WORD, Shapes
from skillery.formats.tools import Tool
from skillery.formats.wording import MAX_SHOWN, Problem, did_you_mean, printable, quoted

MAX_EXAMPLES = 32
MAX_FILES = 64
"""The maximum number of files that one example passes as blobs."""

Expectation = Literal["expect", "expect_subset", "expect_error"]
EXPECTATIONS: tuple[Expectation, ...] = ("expect", "expect_subset", "expect_error")

_KEYS = ("name", "args", "blobs", "input_blobs", *EXPECTATIONS, "grade", "needs_permissions")
_HEADER = r"^[ \t]*\[\[[ \t]*(?:{0}|\"{0}\"|'{0}')[ \t]*\]\]"
_TABLES = ("examples", "tool_examples")
_TOOL_KEYS = ("tool", *_KEYS)
_FORM = '{ args = {…}, blobs = { ARGUMENT = "resources/FILE" }, expect_subset = {…} }'
_TAKES_FILE: frozenset[InputType] = frozenset({"blob", "string", "any"})
_TAKES_FILES: frozenset[InputType] = frozenset({"array", "any"})


class Example(msgspec.Struct, frozen=True):
    """One run and its expected result. Without an expectation, the run only has to complete."""

    name: str
    args: dict[str, Any]
    blobs: dict[str, str | tuple[str, ...]]
    """Arguments that get blob ids, by name. The value is the path of a bundle file, or several paths."""
    input_blobs: tuple[str, ...]
    """Paths of further bundle files that the run gets as blobs."""
    expectation: Expectation | None = None
    expected: Any = None
    needs_permissions: bool = False
    """True if the run uses the skill's network hosts or secrets. Such an example runs only when the version is
    published.
    """
    tool: Tool | None = None
    """The tool that the example calls, or None for the entrypoint."""
    graders: tuple[Grader, ...] = ()
    """The rules that the output passes, next to the expectation."""

    @property
    def files(self) -> tuple[str, ...]:
        """The paths of all files that the example passes, without duplicates."""
        paths = [path for value in self.blobs.values() for path in ([value] if isinstance(value, str) else value)]
        return tuple(dict.fromkeys([*paths, *self.input_blobs]))


_NO_TOOL = Tool("", "", None, {}, {})
"""Placeholder for a tool that does not exist. The example then has a problem."""


class Examples(msgspec.Struct, frozen=True):
    """The examples of a manifest, and their problems. `lines` has the line of each example in skill.toml, or None if
    unknown.
    """

    read: tuple[Example, ...]
    problems: tuple[Problem, ...]
    lines: tuple[int | None, ...]


def read_examples(
    manifest: Manifest, paths: frozenset[str], skill_toml: str | None, tools: Sequence[Tool] = ()
) -> Examples:
    """Return the examples of a checked manifest and their problems: first those in [[examples]], then those in
    [[tool_examples]].

    `paths` are the files of the bundle. `skill_toml` is the text of the given skill.toml, or None if the lines of the
    examples are unknown.
    """
    reader = _Reader(manifest, paths, {tool.name: tool for tool in tools})
    examples = {table: reader.examples(table) for table in _TABLES}
    lines = {table: _lines(skill_toml or "", table, len(examples[table])) for table in _TABLES}
    reader.check_names([example for table in _TABLES for example in examples[table]])
    problems = tuple(_located(problem, lines) for problem in reader.problems)
    first, tool_table = _TABLES
    return Examples(examples[first] + examples[tool_table], problems, lines[first] + lines[tool_table])


def _lines(skill_toml: str, table: str, count: int) -> tuple[int | None, ...]:
    """Return the line of each `[[table]]`, or None for each if skill.toml writes the examples in another form."""
    lines, line, position = list[int](), 1, 0
    for match in islice(re.finditer(_HEADER.format(table), skill_toml, re.MULTILINE), count + 1):
        line, position = line + skill_toml.count("\n", position, match.start()), match.start()
        lines.append(line)
    return tuple(lines) if len(lines) == count else (None,) * count


def _located(problem: Problem, lines: Mapping[str, tuple[int | None, ...]]) -> Problem:
    """Return the problem with its file, and with the line at which its example begins, if the line is known."""
    entry = re.match(r"(tool_examples|examples)\[(\d+)\]", problem.path or "")
    table_lines = lines[entry[1]] if entry else ()
    number = int(entry[2]) if entry else -1
    line = table_lines[number] if 0 <= number < len(table_lines) else None
    return msgspec.structs.replace(problem, file="skill.toml", line=line)


class _Reader(Shapes):
    """Reads the tables of examples, and collects their problems. `where` is the key path of a
    value, for its problem.
    """

    def __init__(self, manifest: Manifest, paths: frozenset[str], tools: Mapping[str, Tool]) -> None:
        super().__init__()
        self.tools = tools
        self.manifest = manifest
        self.paths = paths

    def examples(self, table: str) -> tuple[Example, ...]:
        """Return the examples of the table `examples` or `tool_examples`. An entry that is not
        valid has a placeholder.
        """
        values = self.manifest.raw.get(table, [])
        if not isinstance(values, list):
            self.problem(table, f"is {kind_of(values)}, expected tables [[{table}]], each {_FORM}")
            return ()
        if values and table == "examples" and self.manifest.called is None:
            remedy = "write [[tool_examples]] for tools" if self.tools else "remove them, or add an entrypoint"
            self.problem(table, f"cannot run without [runtime]; {remedy}")
        if len(values) > MAX_EXAMPLES:
            self.problem(table, f"has {len(values)} entries, at most {MAX_EXAMPLES} are allowed")
            return ()
        return tuple(self.example(f"{table}[{number}]", number, entry) for number, entry in enumerate(values))

    def check_names(self, examples: Sequence[Example]) -> None:
        """Add a problem for each example that has the name of an earlier one: results are found by their names."""
        seen: set[str] = set()
        counts = dict.fromkeys(_TABLES, 0)
        for example in examples:
            table = _TABLES[example.tool is not None]
            if example.name in seen:
                where = f"{table}[{counts[table]}].name"
                self.problem(where, f"is {quoted(example.name)}, and another example has this name")
            seen.add(example.name)
            counts[table] += 1

    def tool(self, values: Mapping[str, object], where: str) -> Tool | None:
        """Return the tool that an entry of [[tool_examples]] names."""
        name = self.text(values, "tool", f"{where}.tool", required=True)
        tool = self.tools.get(name or "")
        if name is not None and tool is None:
            suggestion = did_you_mean(name, self.tools) if self.tools else ": tools.json has no tools"
            self.problem(f"{where}.tool", f"is {quoted(name)}, which is not a tool of tools.json{suggestion}")
        if tool is not None and tool.script is None:
            self.problem(f"{where}.tool", f"is {quoted(tool.name)}, which has no script to run")
        return tool

    def example(self, where: str, number: int, values: object) -> Example:
        """Return one entry as an Example, with placeholders for values that are not valid. `number` counts from 0."""
        is_of_tool = where.startswith(_TABLES[1])
        keys = _TOOL_KEYS if is_of_tool else _KEYS
        if not isinstance(values, Mapping):
            self.problem(where, f"is {kind_of(values)}, expected a table {_FORM}")
            return Example(where, {}, {}, (), tool=_NO_TOOL if is_of_tool else None)
        for key in values:
            # An error and not a warning as elsewhere: a misspelt expectation would check nothing.
            if key not in keys:
                allowed_keys = ", ".join(keys)
                suggestion = did_you_mean(key, keys)
                self.problem(join(where, key), f"is not a key of an example{suggestion}; allowed are {allowed_keys}")
        args = cast(dict[str, Any], dict(self.table(values, "args", f"{where}.args") or {}))
        expectation = self.expectation(values, where)
        example = Example(
            name=self.name(values, where, number),
            args=args,
            blobs=self.blobs(values, where, args),
            input_blobs=self.input_blobs(values, where),
            expectation=expectation,
            expected=values[expectation] if expectation else None,
            needs_permissions=self.flag(values, "needs_permissions", f"{where}.needs_permissions"),
            graders=self.graders(values, where),
            tool=(self.tool(values, where) or _NO_TOOL) if is_of_tool else None,
        )
        if len(example.files) > MAX_FILES:
            self.problem(where, f"hands over {len(example.files)} files, at most {MAX_FILES} are allowed")
        permissions = self.manifest.permissions
        if example.needs_permissions and not (permissions.network or permissions.secrets):
            self.problem(f"{where}.needs_permissions", "is true, but the skill has no [permissions]; leave it out")
        return example

    def name(self, values: Mapping[str, object], where: str, number: int) -> str:
        name = self.text(values, "name", f"{where}.name")
        if name is None:
            return f"{'tool ' if where.startswith(_TABLES[1]) else ''}example {number + 1}"
        if not name.strip() or len(name) > MAX_WORD or not name.isprintable():
            self.problem(f"{where}.name", f"is blank, longer than {MAX_WORD} characters or not printable")
        return name

    def expectation(self, values: Mapping[str, object], where: str) -> Expectation | None:
        """Return the key that states the expected result, or None if the example has none."""
        given_keys = [key for key in EXPECTATIONS if key in values]
        if len(given_keys) > 1:
            self.problem(where, f"has {' and '.join(given_keys)}; an example has one expectation")
        if "expect_error" in given_keys:
            error = self.text(values, "expect_error", f"{where}.expect_error") or "Error"
            if not error.isidentifier() or len(error) > MAX_WORD:
                self.problem(
                    f"{where}.expect_error", f"is {quoted(error)}, expected an error type such as 'ValueError'"
                )
        return given_keys[0] if given_keys else None

    def graders(self, values: Mapping[str, object], where: str) -> tuple[Grader, ...]:
        tables, graders = values.get("grade", []), list[Grader]()
        if not isinstance(tables, list) or len(tables) > MAX_GRADERS:
            self.problem(f"{where}.grade", f"is {kind_of(tables)}, expected an array of at most {MAX_GRADERS} graders")
            return ()
        for number, table in enumerate(tables):
            key_path = f"{where}.grade[{number}]"
            try:
                grader = parse_grader(table)
            except ValueError as error:
                self.problem(key_path, str(error))
                continue
            if not isinstance(grader, OF_RUNS) or getattr(grader, "place", "log") not in ("answer", "log"):
                self.problem(key_path, "judges files or needs a model, which an example does not have: see evals/")
            elif isinstance(grader, FitsSchema) and grader.file is not None:
                self.file(grader.file, f"{key_path}.file")
            graders.append(grader)
        return tuple(graders)

    # -- files -----------------------------------------------------------------------------------------------------

    def blobs(
        self, values: Mapping[str, object], where: str, args: Mapping[str, object]
    ) -> dict[str, str | tuple[str, ...]]:
        """Return the paths of the files that the example passes as blobs, by argument."""
        table = self.table(values, "blobs", f"{where}.blobs") or {}
        blobs: dict[str, str | tuple[str, ...]] = {}
        for argument, value in table.items():
            key_path = join(f"{where}.blobs", argument)
            if argument in args:
                self.problem(key_path, "is also in 'args'; remove one of them")
            self.check_input(key_path, argument, isinstance(value, list))
            blobs[argument] = self.files(value, key_path) if isinstance(value, list) else self.file(value, key_path)
        return blobs

    def check_input(self, key_path: str, argument: str, is_list: bool) -> None:
        """Add a problem if `[inputs]` does not declare the argument as a blob, or as a list of blobs with `is_list`."""
        declared: Input | None = self.manifest.inputs.get(argument)
        if declared is None:
            return
        takes = _TAKES_FILES if is_list else _TAKES_FILE
        if declared.type not in takes:
            expected = "a list of files" if is_list else "a file"
            self.problem(key_path, f"is {expected}, which an input of type {declared.type} does not take")

    def input_blobs(self, values: Mapping[str, object], where: str) -> tuple[str, ...]:
        value = values.get("input_blobs", [])
        if not isinstance(value, list):
            self.problem(f"{where}.input_blobs", f"is {kind_of(value)}, expected an array of paths")
            return ()
        return self.files(value, f"{where}.input_blobs")

    def files(self, values: list[object], key_path: str) -> tuple[str, ...]:
        return tuple(self.file(value, f"{key_path}[{number}]") for number, value in enumerate(values))

    def file(self, value: object, key_path: str) -> str:
        """Return the path of a file of the bundle, or "" if the value is not a string."""
        if not isinstance(value, str):
            self.problem(key_path, f"is {kind_of(value)}, expected the path of a file in the bundle")
            return ""
        value = plain_path(value)
        problem = path_problem(value)
        if problem:
            self.problem(key_path, f"is {quoted(value)}: the path {problem}")
        elif value not in self.paths:
            suggestion = did_you_mean(printable(value), self.paths) if len(self.problems) < MAX_SHOWN else ""
            self.problem(key_path, f"is {quoted(value)}, which is not in the bundle{suggestion}")
        return value
