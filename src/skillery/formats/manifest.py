"""The manifest of a skill: the checked values of skill.toml."""

from __future__ import annotations

import json
import keyword
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, TypeVar, cast

import msgspec

from skillery.errors import InvalidManifest, InvalidParams
from skillery.formats import requirements
from skillery.formats.inputs import INPUT_TYPES, Input, InputType, fits
from skillery.formats.json_values import copy, join, kind_of, same, value_problems
from skillery.formats.names import is_within, namespace_of, parse_namespace, parse_skill_name, secret_name_problem
from skillery.formats.network import (
    NETWORK_FORM,
    NetworkPattern,
    host_only,
    is_open_to_anybody,
    parse_network_pattern,
)
from skillery.formats.paths import path_problem, plain_path
from skillery.formats.semver import Version
from skillery.formats.shapes import MAX_WORD, Shapes, shown
from skillery.formats.skill_toml import manifest_toml, same_manifest, toml_manifest
from skillery.formats.wording import AGAIN, MAX_SHOWN, Problem, did_you_mean, printable, quoted, raise_problems

__all__ = [
    "INPUT_TYPES",
    "Input",
    "InputType",
    "Manifest",
    "NetworkPattern",
    "Permissions",
    "Runtime",
    "manifest_toml",
    "parse_manifest",
    "read_stored_manifest",
    "same_manifest",
    "toml_manifest",
]

MAX_BYTES = 256 * 1024
"""The maximum number of bytes of a manifest as compact JSON."""
MAX_DESCRIPTION = 1024
MAX_TAGS = 32
MAX_TIMEOUT_MS = 3_600_000

Kind = Literal["action", "instruction"]
KINDS: tuple[Kind, ...] = ("action", "instruction")

_KEYS = ("name", "version", "description", "kind", "namespace", "tags", "runtime", "inputs", "permissions")
_LATER_KEYS = ("tests", "examples", "tool_examples")
"""Keys that this module accepts and does not check. `skillery.formats.examples` checks the examples, with the
bundle's files.
"""
_RUNTIME_KEYS = (
    "language",
    "entrypoint",
    "export",
    "limits",
    "dependencies",
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

_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
_HINT = "A manifest is a table with at least a name, a version and a description."
_CORRECT = f"Correct the manifest{AGAIN}"
_DEPENDENCY_HINT = 'A dependency is a name with versions, such as "pandas>=2,<3" or "httpx[http2]".'


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


class Manifest(msgspec.Struct, frozen=True):
    """A checked manifest. `kind` and `namespace` have defaults applied. `raw` has its JSON values, or is empty for a
    stored manifest.
    """

    name: str
    version: Version
    description: str
    kind: Kind
    namespace: str
    tags: tuple[str, ...]
    runtime: Runtime | None
    inputs: dict[str, Input]
    permissions: Permissions
    warnings: tuple[str, ...]
    raw: dict[str, Any]

    @property
    def called(self) -> Runtime | None:
        """The runtime if it has an entrypoint, else None."""
        return self.runtime if self.runtime is not None and self.runtime.entrypoint else None


def parse_manifest(raw: Mapping[str, object], *, has_tools: bool = False) -> Manifest:
    """Return the checked manifest of JSON values (the content of skill.toml).

    `has_tools`: the bundle has a tool with a script, so it can be an action skill without `[runtime]`. Raise
    InvalidManifest, with a list of the problems, if the manifest is invalid.
    """
    return _reader(raw, has_tools).manifest()


def parse_partly(raw: Mapping[str, object], *, has_tools: bool = False) -> Manifest | None:
    """Return a manifest that `parse_manifest` refuses, so that its entrypoint and examples can be checked too.

    In place of an invalid value, the manifest has a placeholder or the invalid value. Return None if nothing can be
    read.
    """
    try:
        return _reader(raw, has_tools).partly()
    except InvalidManifest:
        return None


def misspelt_keys(raw: Mapping[str, object]) -> list[Problem]:
    """Return a problem for each unknown key that is similar to a known one, or that belongs to another table."""
    try:
        reader = _reader(raw, has_tools=True)
    except InvalidManifest:
        return []  # the check of the manifest reports why
    reader.partly()
    reader.unknown_keys("", reader.raw, _KEYS + _LATER_KEYS)
    return reader.misspelt


def _reader(raw: Mapping[str, object], has_tools: bool) -> _Reader:
    """Return the reader of a manifest without the values that no manifest may contain (`value_problems`).

    Raise InvalidManifest if the manifest is not an object, is too large, or has too many such values.
    """
    if not isinstance(raw, Mapping):
        raise_problems(InvalidManifest, [Problem(f"The manifest is {kind_of(raw)}, not an object")], hint=_HINT)
    problems = [problem for _, problem in zip(range(MAX_SHOWN), value_problems(raw), strict=False)]
    if len(problems) == MAX_SHOWN or any(not problem.path for problem in problems):
        raise_problems(InvalidManifest, problems, hint=_HINT)
    refused = frozenset(problem.path for problem in problems if problem.path)
    copied = cast(dict[str, Any], _without(raw, refused) if refused else copy(raw))
    size = len(json.dumps(copied, separators=(",", ":"), ensure_ascii=False).encode())
    if size > MAX_BYTES:
        problem = Problem(f"The manifest has {size} bytes of JSON, at most {MAX_BYTES} are allowed")
        raise_problems(InvalidManifest, [problem], hint="Move documentation and data into files of the skill.")
    return _Reader(copied, has_tools, problems)


def _without(value: object, refused: frozenset[str], path: str = "") -> object:
    """Return a copy without the values at the refused paths, which include everything that is nested too deep."""
    if isinstance(value, Mapping):
        places = {key: join(path, key) for key in value}
        return {key: _without(each, refused, places[key]) for key, each in value.items() if places[key] not in refused}
    if isinstance(value, list | tuple):
        places_in = [(f"{path}[{number}]", each) for number, each in enumerate(value)]
        return [_without(each, refused, place) for place, each in places_in if place not in refused]
    return value


def with_inferred(manifest: Manifest, packages: Sequence[str]) -> Manifest:
    """Return the manifest with `packages` added as dependencies, and marked as inferred in `raw` and in the runtime."""
    if not packages:
        return manifest
    runtime = manifest.runtime or Runtime()
    dependencies = (*runtime.dependencies, *(package for package in packages if package not in runtime.dependencies))
    table = cast(dict[str, Any], manifest.raw.get("runtime") or {})
    raw_runtime = {**table, "dependencies": list(dependencies), "inferred": list(packages)}
    return msgspec.structs.replace(
        manifest,
        runtime=msgspec.structs.replace(runtime, dependencies=dependencies, inferred=tuple(packages)),
        raw={**manifest.raw, "runtime": raw_runtime},
    )


def read_stored_manifest(raw: dict[str, Any], *, has_tools: bool) -> Manifest:
    """Return a stored manifest that `parse_manifest` accepted before.

    The size and each JSON value are not checked again. `raw` of the result is empty, to save memory. Raise
    InvalidManifest if the manifest does not have the form of this release.
    """
    return msgspec.structs.replace(_Reader(raw, has_tools).manifest(), raw={})


def is_for_scripts(runtime: Mapping[str, object]) -> bool:
    """Return whether a `[runtime]` table states only the needs of the skill's scripts.

    The table then has no entrypoint, export or language, and names dependencies or Python versions. Other tables need
    an entrypoint.
    """
    says = {"dependencies", "requires-python"} & runtime.keys()
    return bool(says) and not {"entrypoint", "export", "language"} & runtime.keys()


_T = TypeVar("_T")


class _Reader(Shapes):
    """Reads one manifest, and collects its problems and warnings."""

    def __init__(self, raw: dict[str, Any], has_tools: bool, refused: Sequence[Problem] = ()) -> None:
        """`refused` are the problems of values that `raw` no longer contains."""
        super().__init__()
        self.raw = raw
        self.has_tools = has_tools
        self.refused = refused

    def manifest(self) -> Manifest:
        manifest = self.partly()
        if self.problems:
            alone = all((problem.path or "").startswith(requirements.DEPENDENCIES) for problem in self.problems)
            raise_problems(InvalidManifest, self.problems, hint=_DEPENDENCY_HINT if alone else _CORRECT)
        self.unknown_keys("", self.raw, _KEYS + _LATER_KEYS)
        self.import_warnings(manifest.name)
        return msgspec.structs.replace(manifest, warnings=tuple(self.warnings[:MAX_SHOWN]))

    def partly(self) -> Manifest:
        """Return the manifest. In place of an invalid value, it has a placeholder or the invalid value."""
        name = self.parsed("name", parse_skill_name)
        kind, runtime = self.kind(), self.runtime()
        if kind == "instruction" and runtime is not None:
            runtime = msgspec.structs.replace(runtime, entrypoint="")
        manifest = Manifest(
            name=name,
            version=self.parsed("version", Version.parse),
            description=self.description(),
            kind=kind,
            namespace=self.namespace(name),
            tags=self.texts(self.raw, "tags", "tags"),
            runtime=runtime,
            inputs=self.inputs(),
            permissions=self.permissions(),
            warnings=(),
            raw=self.raw,
        )
        if len(manifest.tags) > MAX_TAGS:
            self.problem("tags", f"has {len(manifest.tags)} entries, at most {MAX_TAGS} are allowed")
        known = {problem.path for problem in self.refused}
        self.problems = [*self.refused, *(problem for problem in self.problems if problem.path not in known)]
        return manifest

    # -- top level -----------------------------------------------------------------------------------------------

    def parsed(self, key: str, parse: Callable[[str], _T]) -> _T:
        text = self.text(self.raw, key, key, required=True)
        try:
            return parse(text or "")
        except InvalidParams as error:
            if text is not None:
                self.problems.append(
                    Problem(f"{key}: {error.message.rstrip('.')}. {error.hint or ''}".rstrip(". "), key)
                )
            return cast(_T, text)  # only `partly` returns it: `manifest` raises for a manifest with problems

    def description(self) -> str:
        text = self.text(self.raw, "description", "description", required=True)
        if text is None:
            return ""
        if not text.strip():
            self.problem("description", "is blank; describe the skill in one sentence")
        if _CONTROL.search(text):
            self.problem("description", "contains a control character")
        if len(text) > MAX_DESCRIPTION:
            self.problem("description", f"has {len(text)} characters, at most {MAX_DESCRIPTION} are allowed")
        return text

    def kind(self) -> Kind:
        table = self.raw.get("runtime")
        has_runtime = "runtime" in self.raw and not (isinstance(table, Mapping) and is_for_scripts(table))
        value = self.raw.get("kind", "action" if has_runtime or self.has_tools else "instruction")
        if value not in KINDS:
            self.problem("kind", f"is {shown(value)}, allowed are 'action' and 'instruction'")
        if value == "action" and not (has_runtime or self.has_tools):
            self.problem(
                "kind",
                "is 'action', which needs a [runtime] with an entrypoint, or a tool with a script in "
                "tools.json; or make it 'instruction'",
                '[runtime]\nentrypoint = "code/main.py"',
            )
        if value == "instruction" and has_runtime:
            self.warnings.append(
                "kind is 'instruction', so the skill cannot be executed and its entrypoint is ignored; write "
                "kind = 'action' to execute it"
            )
        return cast(Kind, value)

    def namespace(self, name: str) -> str:
        value = self.text(self.raw, "namespace", "namespace")
        if value is None:
            return namespace_of(name) if isinstance(name, str) else ""
        try:
            parse_namespace(value)
        except InvalidParams as error:
            self.problem("namespace", f"is not a namespace: {error.message.rstrip('.')}")
            return value
        if isinstance(name, str) and not is_within(name, value):
            self.warnings.append(
                f"namespace is {quoted(value)}, which is not a dotted prefix of the name {quoted(name)}: the skill is "
                "listed there, and rights follow the name"
            )
        return value

    def import_warnings(self, name: str) -> None:
        for segment in name.replace("-", "_").split("."):
            if keyword.iskeyword(segment) or segment[0].isdecimal():
                why = "is a Python keyword" if keyword.iskeyword(segment) else "starts with a digit"
                self.warnings.append(
                    f"the segment {quoted(segment)} of the name {why}: 'from skills.… import' cannot name it, "
                    "importlib.import_module can"
                )

    def place_of(self, where: str, key: str) -> str:
        table = _TABLE_OF.get(key, where)
        return f" (write it below [{table}])" if table != where else ""

    # -- tables --------------------------------------------------------------------------------------------------

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
            dependencies=self.dependencies(table),
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

    def dependencies(self, table: Mapping[str, object]) -> tuple[str, ...]:
        entries = self.texts(table, "dependencies", requirements.DEPENDENCIES, longest=requirements.LONGEST)
        if len(entries) > requirements.MOST:
            more = f"has {len(entries)} entries, at most {requirements.MOST} are allowed"
            self.problem(requirements.DEPENDENCIES, more)
            return ()
        if self.problems and any(
            (problem.path or "").startswith(requirements.DEPENDENCIES) for problem in self.problems
        ):
            return ()
        for i, text in enumerate(entries):
            wrong = requirements.requirement_problem(text)
            if wrong:
                self.problem(f"{requirements.DEPENDENCIES}[{i}]", f"is {quoted(text)}, which {wrong}")
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
