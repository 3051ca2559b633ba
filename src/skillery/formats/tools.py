"""The tools of skills, by the convention Skill Tools 1.0.0: their parameters, and the rules for them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Set
from typing import Any, Literal, TypeAlias, get_args

import msgspec

from skillery.errors import InvalidBundle, InvalidParams
from skillery.formats.inputs import Input, fits
from skillery.formats.json_values import Unreadable, join, kind_of, read_json, repeated, value_problems
from skillery.formats.paths import path_problem, plain_path
from skillery.formats.shapes import MAX_WORD, Shapes, shown
from skillery.formats.wording import MAX_SHOWN, Problem, did_you_mean, quoted, raise_problems

MAX_TOOL_BYTES = 64 * 1024
"""The maximum number of bytes of one tool as compact JSON: agents receive the whole tool."""
ParameterType: TypeAlias = Literal["string", "number", "boolean", "object", "array"]
PARAMETER_TYPES: tuple[ParameterType, ...] = get_args(ParameterType)
HANDLER_ENDINGS = (".js", ".mjs", ".py", ".sh")
"""The file endings of scripts in the supported languages."""
WORK_DIR = "__workDir"
"""The argument that the server gives to every handler. A value from the caller is ignored."""

TOOL_NAME = re.compile(r"[a-z][a-z0-9_]*")
_TOOL_KEYS = ("name", "description", "script", "parameters")
_PARAMETER_KEYS = ("type", "description", "enum", "optional")
_PARAMETERS_HINT = (
    '\'parameters\' is a JSON object as text, e.g. {"text": {"type": "string", "description": "The text"}}; '
    "the name is lowercase letters, digits and underscores."
)


class Parameter(msgspec.Struct, frozen=True):
    """One declared argument of a tool."""

    type: ParameterType
    description: str
    enum: tuple[object, ...] | None = None
    optional: bool = False


class Tool(msgspec.Struct, frozen=True):
    """A valid tool. `script` is a path in the bundle, or None for a tool without code. `declared` is `parameters` as
    in the file.
    """

    name: str
    description: str
    script: str | None
    parameters: dict[str, Parameter]
    declared: dict[str, Any]


def parse_definition(name: str, description: str, parameters: str, script: str) -> Tool:
    """Return a tool that a call of define_tool describes, checked by the rules of tools.json. `parameters` is JSON
    text.

    Raise InvalidParams, with a list of the broken rules, if the tool breaks a rule.
    """
    declared = read_json(parameters.encode("utf-8", "surrogatepass")) if parameters.strip() else {}
    if isinstance(declared, Unreadable):
        raise_problems(InvalidParams, [Problem(f"'parameters' {declared.why}", "parameters")], hint=_PARAMETERS_HINT)
    reader = ToolReader(frozenset({script}))
    tool = reader.tool("", {"name": name, "description": description, "script": script, "parameters": declared})
    if tool is None:
        raise_problems(InvalidParams, reader.problems, hint=_PARAMETERS_HINT)
    return tool


def parameters_of(declared: Mapping[str, Any]) -> dict[str, Parameter]:
    """Return the parameters of a stored tool. Publishing has checked them before."""
    return ToolReader(frozenset()).parameters({"parameters": declared}, "")


def inputs_of(parameters: Mapping[str, Parameter]) -> dict[str, Input]:
    """Return the inputs for checking the arguments of a call. WORK_DIR is omitted."""
    return {
        name: Input(
            type=parameter.type, description=parameter.description, enum=parameter.enum, required=not parameter.optional
        )
        for name, parameter in parameters.items()
        if name != WORK_DIR
    }


class ToolReader(Shapes):
    """Reads the tools of a bundle, and collects their problems and warnings. `paths` are the files of the bundle."""

    def __init__(self, paths: Set[str]) -> None:
        super().__init__()
        self.paths = paths
        self.names: set[str] = set()

    def tool(self, where: str, table: dict[str, Any]) -> Tool | None:
        """Return the tool, or None if the tool breaks a rule."""
        counts_before = len(self.problems), len(self.warnings)
        self.problems.extend(_value_problems(table, where))
        if len(self.problems) > counts_before[0]:
            return None
        tool = Tool(
            name=self.name(table, where),
            description=self.described(table, where) or "",
            script=self.script(table, where),
            parameters=self.parameters(table, where),
            declared=table.get("parameters", {}),
        )
        self.unknown_keys(where, table, _TOOL_KEYS)
        if len(self.problems) == counts_before[0]:
            return tool
        del self.warnings[counts_before[1] :]
        return None

    def name(self, table: Mapping[str, object], where: str) -> str:
        """Return the name of a tool, or "" if it has none. Names must be unique in the file."""
        name = self.text(table, "name", join(where, "name"), required=True)
        if name is None:
            return ""
        if not TOOL_NAME.fullmatch(name) or len(name) > MAX_WORD:
            self.problem(
                join(where, "name"),
                f"is {quoted(name)}; a tool's name is lowercase letters, digits and underscores, a letter first, at "
                f"most {MAX_WORD} characters",
            )
        elif name in self.names:
            self.problem(
                join(where, "name"), f"is {quoted(name)}, which an earlier tool has; names must be unique in a file"
            )
        self.names.add(name)
        return name

    def described(self, table: Mapping[str, object], where: str) -> str | None:
        text = self.text(table, "description", join(where, "description"), required=True)
        if text is not None and not text.strip():
            self.problem(join(where, "description"), "is blank; agents choose tools by their description")
        return text

    def script(self, table: Mapping[str, object], where: str) -> str | None:
        """Return the path of a tool's script, or None for a tool without code."""
        where = join(where, "script")
        value = self.text(table, "script", where)
        if value is None:
            return None
        path = plain_path(value)
        problem = path_problem(path)
        if problem:
            self.problem(where, f"is {quoted(value)}: the path {problem}")
        elif path not in self.paths:
            suggestion = did_you_mean(path, self.paths) if len(self.problems) < MAX_SHOWN else ""
            self.problem(where, f"is {quoted(value)}, which is not in the bundle{suggestion}")
        elif ending_of(path) not in HANDLER_ENDINGS:
            endings = ", ".join(HANDLER_ENDINGS)
            self.problem(where, f"is {quoted(value)}, whose ending belongs to no supported language: {endings}")
        return path

    def parameters(self, table: Mapping[str, object], where: str) -> dict[str, Parameter]:
        where = join(where, "parameters")
        value = table.get("parameters", {})
        if not isinstance(value, Mapping):
            self.problem(where, f"is {kind_of(value)}, expected an object of parameters by name")
            return {}
        return {name: self.parameter(name, declaration, join(where, name)) for name, declaration in value.items()}

    def parameter(self, name: str, table: object, where: str) -> Parameter:
        """Return one declared parameter. A declaration that is not an object becomes a string parameter."""
        if not isinstance(table, Mapping):
            self.problem(where, f'is {kind_of(table)}, expected an object such as {{"type": "string", …}}')
            return Parameter("string", "")
        if name == WORK_DIR:
            self.warnings.append(f"{where}: the server sets {WORK_DIR} and ignores declared or sent values")
        self.unknown_keys(where, table, _PARAMETER_KEYS)
        type_ = self.type(table, f"{where}.type")
        return Parameter(
            type=type_,
            description=self.text(table, "description", join(where, "description"), required=True) or "",
            enum=self.enum(table, type_, f"{where}.enum"),
            optional=self.flag(table, "optional", f"{where}.optional"),
        )

    def type(self, table: Mapping[str, object], where: str) -> ParameterType:
        value = self.text(table, "type", where, required=True)
        if value is not None and value not in PARAMETER_TYPES:
            instead = " ('number' stands for integers too)" if value == "integer" else ""
            types = ", ".join(PARAMETER_TYPES)
            self.problem(where, f"is {quoted(value)}, allowed are: {types}{instead}")
        return value if value in PARAMETER_TYPES else "string"

    def enum(self, table: Mapping[str, object], type_: ParameterType, where: str) -> tuple[object, ...] | None:
        """Return the allowed values of a parameter, or None if all values of its type are allowed."""
        if "enum" not in table:
            return None
        values = table["enum"]
        if not isinstance(values, list):
            self.problem(where, f"is {shown(values)}, expected an array of the allowed values")
            return None
        unfitting = [value for value in values if not fits(type_, value)]
        if unfitting:
            self.warnings.append(f"{where} contains {kind_of(unfitting[0])}, which is never a value of type {type_}")
        if not values:
            self.warnings.append(f"{where} is empty: no value is allowed")
        return tuple(values)


def ending_of(path: str) -> str:
    """Return the ending of a path, for example `.py` for `scripts/a.py`, or "" if the file name has no ending."""
    stem, dot, ending = path.rpartition("/")[2].rpartition(".")
    return f".{ending}" if dot and stem else ""


def _value_problems(table: dict[str, Any], where: str) -> Iterator[Problem]:
    """Yield the problems of JSON values that prevent the tool from being stored or sent. They are checked before the
    rules of tools.
    """
    problems = list(value_problems(table, where, nullable=True))
    subject = where or "the tool"
    problems += [
        Problem(f"{subject} has the key {quoted(duplicate.key)} twice in one object", path=subject)
        for duplicate in repeated(table)
    ]
    yield from problems[:MAX_SHOWN]
    if problems:
        return
    size = len(msgspec.json.encode(table))
    if size > MAX_TOOL_BYTES:
        yield Problem(
            f"{subject} has {size} bytes of JSON, at most {MAX_TOOL_BYTES} are allowed for a tool", path=subject
        )


# -- tools.json: the tools of a bundle, by the convention Skill Tools 1.0.0 --------------------------------------------
# The file name is older than the convention, and thousands of files with this name have another purpose. The content
# decides. `[]`, an array of objects, or an object with `name` and `description` counts as Skill Tools and must follow
# the rules. Any other content is an ordinary file.


FILE = "tools.json"
MAX_TOOLS = 1_000
MAX_AGENT_SKILLS_NAME = 64

_AGENT_SKILLS_NAME = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")
HINT = (
    f"{FILE} is an array of tools by Skill Tools 1.0.0, e.g. "
    '[{"name": "count_words", "description": "Counts words.", "script": "scripts/count_words.py", "parameters": '
    '{"text": {"type": "string", "description": "The text"}}}]; a file with another purpose needs another name.'
)


class ToolsFile(msgspec.Struct, frozen=True):
    """A parsed tools.json: its tools and problems, or the reason why the file is an ordinary file."""

    tools: tuple[Tool, ...] = ()
    """The valid tools."""
    problems: tuple[Problem, ...] = ()
    """The broken rules. A strict caller refuses the file (`refuse_broken`). A lenient caller omits the tools that
    break a rule, and lists the problems as warnings (`skipped`).
    """
    warnings: tuple[str, ...] = ()
    is_skill_tools: bool = False
    """False for a file that is not a list of tools. `problems` then has the reason."""

    @property
    def has_scripts(self) -> bool:
        """Whether a tool has a script. If so, the skill is an action skill by default."""
        return any(tool.script is not None for tool in self.tools)

    @property
    def skipped(self) -> tuple[str, ...]:
        """The problems as warnings about omitted tools, or about an ordinary file with this name."""
        if not self.is_skill_tools:
            return tuple(
                f"{problem.message}: it is treated as an ordinary file without tools" for problem in self.problems
            )
        return tuple(f"{problem.message}; that tool is left out" for problem in self.problems[:MAX_SHOWN])


NO_TOOLS = ToolsFile()
"""The result for a bundle without tools.json."""


def read_tools(data: bytes, paths: Set[str]) -> ToolsFile:
    """Return the tools of a bundle. `data` is the content of tools.json, `paths` are the files of the bundle.

    No content raises an error: problems are part of the result.
    """
    value = read_json(data)
    if isinstance(value, Unreadable):
        return _no_tools(value.why, value.line)
    if isinstance(value, list) and all(isinstance(each, dict) for each in value):
        return _tools_file(ToolReader(paths), [(f"{FILE}[{i}]", tool) for i, tool in enumerate(value)])
    if isinstance(value, dict) and "name" in value and "description" in value:
        reader = ToolReader(paths)
        reader.problem(FILE, "is an object; it must be an array, even of one tool")
        return msgspec.structs.replace(_tools_file(reader, [(FILE, value)]), tools=())
    description = "an array with values other than objects" if isinstance(value, list) else kind_of(value)
    return _no_tools(f"is {description}, not an array of tools", 1)


def _no_tools(why: str, line: int | None) -> ToolsFile:
    return ToolsFile(problems=(Problem(f"{FILE} {why}", path=FILE, file=FILE, line=line),))


def _tools_file(reader: ToolReader, values: list[tuple[str, dict[str, Any]]]) -> ToolsFile:
    """Return the tools of the values, given as (key path, table), with the problems that the reader has found."""
    if len(values) > MAX_TOOLS:
        reader.problem(FILE, f"has {len(values)} tools, at most {MAX_TOOLS} are allowed")
    tools = [reader.tool(where, table) for where, table in values[:MAX_TOOLS]]
    return ToolsFile(
        tools=tuple(tool for tool in tools if tool),
        problems=tuple(reader.problems),
        warnings=tuple(reader.warnings[:MAX_SHOWN]),
        is_skill_tools=True,
    )


def refuse_broken(file: ToolsFile) -> None:
    """Raise InvalidBundle, with a list of the broken rules, if the file breaks a rule."""
    if file.problems:
        raise_problems(InvalidBundle, file.problems, hint=HINT)


def name_warnings(name: str, stated: object) -> Iterator[str]:
    """Yield warnings about the name of a skill that has tools: other runtimes may refuse it, or SKILL.md has another
    name.

    `stated` is the `name` in the frontmatter of SKILL.md, or None.
    """
    if len(name) > MAX_AGENT_SKILLS_NAME or not _AGENT_SKILLS_NAME.fullmatch(name):
        yield (
            f"Skill Tools does not allow the name {quoted(name, 140)}: it must be lowercase letters, digits and single "
            f"hyphens, at most {MAX_AGENT_SKILLS_NAME} characters; other runtimes may refuse it"
        )
    if isinstance(stated, str) and stated != name:
        yield f"SKILL.md: the name in the frontmatter is {quoted(stated)}, the skill's is {quoted(name, 140)}"
