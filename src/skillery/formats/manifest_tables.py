"""The tables of skill.toml: runtime, inputs, permissions and required skills."""

from __future__ import annotations

import keyword
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

import msgspec

from skillery.errors import InvalidParams
from skillery.formats import npm, requirements
from skillery.formats.inputs import INPUT_TYPES, Input, InputType, fits
from skillery.formats.json_values import join, kind_of, same
from skillery.formats.names import parse_skill_name, secret_name_problem
from skillery.formats.network import NETWORK_FORM, NetworkPattern, host_only, is_open_to_anybody, parse_network_pattern
from skillery.formats.paths import path_problem, plain_path
from skillery.formats.shapes import MAX_WORD, Shapes, shown
from skillery.formats.version_spec import Digest, Label, Latest, parse_version_spec
from skillery.formats.wording import did_you_mean, printable, quoted

MAX_TIMEOUT_MS = 3_600_000
MOST_REQUIRED = 64
"""The maximum number of skills that a skill requires, directly and indirectly."""
LONGEST_RANGE = 200
_RUNTIME_KEYS = (
    "language",
    "entrypoint",
    "export",
    "limits",
    "dependencies",
    "npm",
    "requires-python",
    "workspace",
    "inferred",
    "strict_inputs",
)
_LIMIT_KEYS = ("memory_mb", "processes", "cpus", "disk_mb", "timeout_ms")
_INPUT_KEYS = ("type", "description", "enum", "default", "required")
_PERMISSION_KEYS = ("network", "secrets")

_TABLE_OF = {
    **dict.fromkeys(_RUNTIME_KEYS, "runtime"),
    **dict.fromkeys(_LIMIT_KEYS, "runtime.limits"),
    **dict.fromkeys(_PERMISSION_KEYS, "permissions"),
}
"""The table of each key that is often written in another one."""


class Runtime(msgspec.Struct, frozen=True):
    """The `[runtime]` of an action skill. A run calls the function `export` of the module at `entrypoint` with the
    arguments.

    Without an entrypoint (""), the runtime states the needs of the skill's scripts and tools.
    """

    entrypoint: str = ""
    export: str = "main"
    language: Literal["python"] = "python"
    limits: dict[str, int | float] = {}
    """Limits that the skill requests: memory_mb, processes, cpus, disk_mb, timeout_ms."""
    dependencies: tuple[str, ...] = ()
    """Packages in the notation of PEP 508."""
    npm: tuple[str, ...] = ()
    """Packages of npm, as `NAME@RANGE`."""
    requires_python: str = ""
    """Python versions in the notation of PEP 440. "" means any version."""
    workspace: bool = False
    """Whether the skill runs in workspaces of its callers although it has permissions."""
    inferred: tuple[str, ...] = ()
    """The dependencies that the server inferred from the skill's imports. The author did not declare these packages."""
    strict_inputs: bool = False
    """Whether a run with undeclared arguments fails."""


class Permissions(msgspec.Struct, frozen=True):
    network: tuple[NetworkPattern, ...] = ()
    secrets: tuple[str, ...] = ()
    workspace: bool = False
    """Whether these permissions hold in workspaces too, which other code has filled."""
    calls: tuple[str, ...] = ()
    """The required skills with permissions. Their choice at publishing sets this, not the manifest."""


def is_for_scripts(runtime: Mapping[str, object]) -> bool:
    """Return whether a `[runtime]` table states only the needs of the skill's scripts.

    The table then has no entrypoint, export or language, and names dependencies or Python versions. Other tables need
    an entrypoint.
    """
    says = {"dependencies", "npm", "requires-python"} & runtime.keys()
    return bool(says) and not {"entrypoint", "export", "language"} & runtime.keys()


class TableReader(Shapes):
    """Reads the tables of one manifest, and collects their problems and warnings."""

    def __init__(self, raw: dict[str, Any]) -> None:
        super().__init__()
        self.raw = raw

    def place_of(self, where: str, key: str) -> str:
        table = _TABLE_OF.get(key, where)
        return f" (write it below [{table}])" if table != where else ""

    def runtime(self) -> Runtime | None:
        table = self.table(self.raw, "runtime", "runtime")
        if table is None:
            return None
        self.unknown_keys("runtime", table, _RUNTIME_KEYS)
        language = table.get("language", "python")
        if language != "python":
            self.problem(
                "runtime.language",
                f"is {shown(language)}, but an entrypoint is Python; other languages run as tools (the key 'script' in "
                "tools.json: .js, .mjs, .sh) or as files in scripts/, without language and entrypoint",
            )
        return Runtime(
            entrypoint=self.entrypoint(table, language == "python"),
            export=self.export(table),
            limits=self.limits(table),
            dependencies=self.packages(
                table,
                requirements.DEPENDENCIES,
                requirements.LONGEST,
                requirements.MOST,
                requirements.requirement_problem,
            ),
            npm=self.packages(table, npm.NPM, npm.LONGEST, npm.MOST, npm.requirement_problem),
            requires_python=self.requires_python(table),
            workspace=self.flag(table, "workspace", "runtime.workspace"),
            inferred=self.texts(table, "inferred", "runtime.inferred"),
            strict_inputs=self.flag(table, "strict_inputs", "runtime.strict_inputs"),
        )

    def entrypoint(self, table: Mapping[str, object], is_python: bool) -> str:
        where = "runtime.entrypoint"
        text = self.text(table, "entrypoint", where, required=not is_for_scripts(table))
        if text is None:
            return ""
        text = plain_path(text)
        wrong = path_problem(text)
        if wrong:
            self.problem(where, f"is {quoted(text)}: the path {wrong}")
        elif is_python and (not text.endswith(".py") or text.endswith("/.py") or text == ".py"):
            self.problem(
                where, f"is {quoted(text)}, which is not a Python file; the path must end in '.py', e.g. 'code/main.py'"
            )
        return text

    def export(self, table: Mapping[str, object]) -> str:
        text = self.text(table, "export", "runtime.export")
        if text is None:
            return "main"
        if not text.isidentifier() or keyword.iskeyword(text):
            self.problem("runtime.export", f"is {quoted(text)}, which is not the name of a Python function")
        return text

    def packages(
        self, table: Mapping[str, object], where: str, longest: int, most: int, problem_of: Callable[[str], str | None]
    ) -> tuple[str, ...]:
        """Return the packages at `where`, the name of the table and the key. `longest` and `most` limit their
        characters and their number.
        """
        entries = self.texts(table, where.rpartition(".")[2], where, longest=longest)
        if len(entries) > most:
            self.problem(where, f"has {len(entries)} entries, at most {most} are allowed")
            return ()
        if any((problem.path or "").startswith(where) for problem in self.problems):
            return ()
        for i, text in enumerate(entries):
            wrong = problem_of(text)
            if wrong:
                self.problem(f"{where}[{i}]", f"is {quoted(text)}, which {wrong}")
        return entries

    def requires_python(self, table: Mapping[str, object]) -> str:
        text = self.text(table, "requires-python", requirements.REQUIRES_PYTHON) or ""
        wrong = requirements.python_problem(text) if len(text) <= requirements.LONGEST else "is too long"
        if wrong:
            self.problem(requirements.REQUIRES_PYTHON, f"is {quoted(printable(text, 80))}, which {wrong}")
        return text

    def flag(self, table: Mapping[str, object], key: str, where: str) -> bool:
        value = table.get(key, False)
        if not isinstance(value, bool):
            self.problem(where, f"is {shown(value)}, expected true or false")
            return False
        return value

    def limits(self, table: Mapping[str, object]) -> dict[str, int | float]:
        limits = self.table(table, "limits", "runtime.limits") or {}
        self.unknown_keys("runtime.limits", limits, _LIMIT_KEYS)
        return {key: self.limit(key, limits[key]) for key in _LIMIT_KEYS if key in limits}

    def limit(self, key: str, value: object) -> int | float:
        where = f"runtime.limits.{key}"
        allowed = (int, float) if key == "cpus" else (int,)
        if (
            isinstance(value, bool)
            or not isinstance(value, allowed)
            or not isinstance(value, int | float)
            or value <= 0
        ):
            expected = "a positive number" if key == "cpus" else "a positive integer"
            self.problem(where, f"is {shown(value)}, expected {expected}")
            return 0
        if key == "timeout_ms" and value > MAX_TIMEOUT_MS:
            self.problem(where, f"is {value}, at most {MAX_TIMEOUT_MS} (an hour) is allowed")
        return value

    def inputs(self) -> dict[str, Input]:
        table = self.table(self.raw, "inputs", "inputs") or {}
        return {name: self.input(name, value) for name, value in table.items()}

    def input(self, name: str, value: object) -> Input:
        where = join("inputs", name)
        if not name or len(name) > MAX_WORD or not name.isprintable():
            self.problem(where, f"has a name that is empty, longer than {MAX_WORD} characters or not printable")
        if not isinstance(value, Mapping):
            self.warnings.append(f'{where} is {kind_of(value)}, so any value is passed; write {{ type = "string" }}')
            return Input("any", value if isinstance(value, str) else "")
        self.unknown_keys(where, value, _INPUT_KEYS)
        type_ = self.input_type(value, where)
        declared = Input(
            type=type_,
            description=self.text(value, "description", f"{where}.description") or "",
            enum=self.enum(value, type_, where),
            default=value.get("default"),
            has_default="default" in value,
            required=self.flag(value, "required", f"{where}.required"),
        )
        self.check_default(declared, where)
        return declared

    def input_type(self, table: Mapping[str, object], where: str) -> InputType:
        value = table.get("type")
        for known in INPUT_TYPES:
            if value == known:
                return known
        is_near = did_you_mean(value, INPUT_TYPES) if isinstance(value, str) else ""
        fault = "has no type" if "type" not in table else f"has the type {shown(value)}{is_near}"
        self.warnings.append(f"{where} {fault}, so any value is passed; known types are {', '.join(INPUT_TYPES)}")
        return "any"

    def enum(self, table: Mapping[str, object], type_: InputType, where: str) -> tuple[object, ...] | None:
        if "enum" not in table:
            return None
        values = table["enum"]
        if not isinstance(values, list) or not values:
            self.problem(f"{where}.enum", f"is {shown(values)}, expected an array of at least one value")
            return None
        for i, value in enumerate(values):
            if not fits(type_, value):
                self.problem(f"{where}.enum[{i}]", f"is {kind_of(value)}, the declared type is {type_}")
        return tuple(values)

    def check_default(self, declared: Input, where: str) -> None:
        if not declared.has_default:
            return
        if not fits(declared.type, declared.default):
            self.problem(f"{where}.default", f"is {kind_of(declared.default)}, the declared type is {declared.type}")
        elif declared.enum is not None and not any(same(declared.default, each) for each in declared.enum):
            self.problem(f"{where}.default", f"is {shown(declared.default)}, which is not in enum")
        if declared.required:
            self.warnings.append(f"{where}: 'required' has no effect together with 'default'")

    def permissions(self) -> Permissions:
        table = self.table(self.raw, "permissions", "permissions") or {}
        self.unknown_keys("permissions", table, _PERMISSION_KEYS)
        network = tuple(self.network(table))
        secrets = self.texts(table, "secrets", "permissions.secrets")
        for i, secret in enumerate(secrets):
            wrong = secret_name_problem(secret)
            if wrong:
                self.problem(f"permissions.secrets[{i}]", f"is {quoted(secret)}, which {wrong}")
        runtime = self.raw.get("runtime")
        in_workspaces = isinstance(runtime, Mapping) and runtime.get("workspace") is True
        return Permissions(network, tuple(dict.fromkeys(secrets)), in_workspaces and bool(network or secrets))

    def requires(self) -> dict[str, str]:
        """Return the ranges of versions of `[requires.skills]`, by the name of the required skill."""
        table = self.table(self.raw, "requires", "requires") or {}
        self.unknown_keys("requires", table, ("skills",))
        required = self.table(table, "skills", "requires.skills") or {}
        if len(required) > MOST_REQUIRED:
            self.problem("requires.skills", f"has {len(required)} entries, at most {MOST_REQUIRED} are allowed")
            return {}
        return {name: self.required(name, spec) for name, spec in required.items()}

    def required(self, name: str, spec: object) -> str:
        where = join("requires.skills", name)
        if not isinstance(spec, str) or len(spec) > LONGEST_RANGE:
            example = f"a range of versions; write the name in quotes: {quoted(name)} = '^1.2'"
            self.problem(where, f"is {shown(spec)}, expected {example}")
            return ""
        try:
            parse_skill_name(name)
            if isinstance(parse_version_spec(spec), Label | Digest | Latest):
                self.problem(where, f"is {quoted(spec)}, expected a range of versions such as '^1.2', or a version")
        except InvalidParams as error:
            self.problem(where, f"is not valid: {error.message.rstrip('.')}")
        return spec

    def network(self, table: Mapping[str, object]) -> Iterable[NetworkPattern]:
        patterns: dict[str, NetworkPattern] = {}
        for i, text in enumerate(self.texts(table, "network", "permissions.network", longest=300)):
            pattern, where = parse_network_pattern(text), f"permissions.network[{i}]"
            if isinstance(pattern, str):
                whole = host_only(text)
                if whole:
                    pattern = f"has a path; write '{whole}' to allow the whole host"
                elif NETWORK_FORM in pattern:
                    pattern = "is not a host; write for example 'https://api.example.com' or 'https://*.example.com'"
                self.warnings.append(f"{where} is {quoted(text)}, which allows nothing: it {pattern}")
                continue
            patterns[pattern.text] = pattern
            if "://" not in text:
                self.warnings.append(f"{where} is {quoted(text)}, which means '{pattern.text}'")
            if is_open_to_anybody(pattern):
                self.warnings.append(f"{where}: strangers can register names below '{pattern.host}'; list the hosts")
        return patterns.values()


def ranges_in(manifest: Mapping[str, Any]) -> dict[str, str]:
    """Return the ranges of versions that a manifest requires, by the names of their skills. Return {} if its table
    `requires` is not valid: a version from before required skills may have a table that means nothing.
    """
    tables = TableReader(dict(manifest))
    ranges = tables.requires()
    return {} if tables.problems else ranges
