"""The manifest of a skill: the checked values of skill.toml."""

from __future__ import annotations

import json
import keyword
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeVar, cast

import msgspec

from skillery.errors import InvalidManifest, InvalidParams
from skillery.formats import requirements
from skillery.formats.inputs import INPUT_TYPES, Input, InputType
from skillery.formats.json_values import copy, join, kind_of, value_problems
from skillery.formats.manifest_tables import Permissions, Runtime, TableReader, is_for_scripts
from skillery.formats.names import is_within, namespace_of, parse_namespace, parse_skill_name, similar_name
from skillery.formats.network import (
    NetworkPattern,
)
from skillery.formats.semver import Version
from skillery.formats.shapes import shown
from skillery.formats.skill_toml import manifest_toml, same_manifest, toml_manifest
from skillery.formats.wording import AGAIN, MAX_SHOWN, Problem, quoted, raise_problems

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

Kind = Literal["action", "instruction"]
KINDS: tuple[Kind, ...] = ("action", "instruction")

_KEYS = ("name", "version", "description", "kind", "namespace", "tags", "runtime", "inputs", "permissions", "requires")
_LATER_KEYS = ("tests", "examples", "tool_examples")
"""Keys that this module accepts and does not check. `skillery.formats.examples` checks the examples, with the
bundle's files.
"""
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
_HINT = "A manifest is a table with at least a name, a version and a description."
_CORRECT = f"Correct the manifest{AGAIN}"
_DEPENDENCY_HINT = 'A dependency is a name with versions, such as "pandas>=2,<3" or "httpx[http2]".'


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
    requires: dict[str, str] = {}
    """Ranges of versions by the name of the required skill."""

    @property
    def called(self) -> Runtime | None:
        """The runtime if it has an entrypoint, else None."""
        return self.runtime if self.runtime is not None and self.runtime.entrypoint else None


def parse_manifest(raw: Mapping[str, object], *, has_tools: bool = False) -> Manifest:
    """Return the checked manifest of JSON values (the content of skill.toml).

    `has_tools` means that the bundle has a tool with a script, so it can be an action skill without `[runtime]`. Raise
    InvalidManifest, with a list of the problems, if the manifest is invalid.
    """
    return _reader(raw, has_tools).manifest()


def parse_partly(raw: Mapping[str, object], *, has_tools: bool = False) -> Manifest | None:
    """Return a Manifest for values that `parse_manifest` refuses, so that the entrypoint and the examples can be
    checked too.

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
        paths = {key: join(path, key) for key in value}
        return {
            key: _without(member, refused, paths[key]) for key, member in value.items() if paths[key] not in refused
        }
    if isinstance(value, list | tuple):
        places_in = [(f"{path}[{number}]", item) for number, item in enumerate(value)]
        return [_without(item, refused, item_path) for item_path, item in places_in if item_path not in refused]
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
    InvalidManifest if the manifest does not have the form of this release. `requires` of a version from before required
    skills is left out if it has another form: it meant nothing.
    """
    if "requires" in raw:
        (tables := TableReader(raw)).requires()
        raw = {key: value for key, value in raw.items() if key != "requires"} if tables.problems else raw
    return msgspec.structs.replace(_Reader(raw, has_tools).manifest(), raw={})


_T = TypeVar("_T")


class _Reader(TableReader):
    """Reads one manifest, and collects its problems and warnings."""

    def __init__(self, raw: dict[str, Any], has_tools: bool, refused: Sequence[Problem] = ()) -> None:
        """`refused` are the problems of values that `raw` no longer contains."""
        super().__init__(raw)
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
            requires=self.requires(),
        )
        if len(manifest.tags) > MAX_TAGS:
            self.problem("tags", f"has {len(manifest.tags)} entries, at most {MAX_TAGS} are allowed")
        refused_paths = {problem.path for problem in self.refused}
        self.problems = [*self.refused, *(problem for problem in self.problems if problem.path not in refused_paths)]
        return manifest

    # -- top level -----------------------------------------------------------------------------------------------

    def parsed(self, key: str, parse: Callable[[str], _T]) -> _T:
        """Return `parse` of the text at `key`, or the text itself if it is not valid."""
        text = self.text(self.raw, key, key, required=True)
        try:
            return parse(text or "")
        except InvalidParams as error:
            if text is not None:
                message = f"{key}: {error.message.rstrip('.')}. {error.hint or ''}".rstrip(". ")
                similar = similar_name(text) if key == "name" else ""
                self.problems.append(Problem(message, key, toml=f'name = "{similar}"' if similar else None))
            return cast(_T, text)  # only `partly` returns it: `manifest` raises for a manifest with problems

    def description(self) -> str:
        """Return the description, or "" if there is none. Problem: blank, too long, or control characters."""
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
        """Return the kind: the stated one, or `action` if there is a runtime or a tool with a script, else
        `instruction`.
        """
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
        """Return the stated namespace, or the namespace of the skill's name."""
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
        """Warn if a segment of the name cannot be written in an import statement."""
        for segment in name.replace("-", "_").split("."):
            if keyword.iskeyword(segment) or segment[0].isdecimal():
                reason = "is a Python keyword" if keyword.iskeyword(segment) else "starts with a digit"
                self.warnings.append(
                    f"the segment {quoted(segment)} of the name {reason}: 'from skills.… import' cannot name it, "
                    "importlib.import_module can"
                )
