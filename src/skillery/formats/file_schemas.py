"""JSON Schemas (2020-12) of the files that authors write: skill.toml, the frontmatter of SKILL.md, and tools.json.

The structs only describe. `formats.manifest`, `formats.skill_md` and `formats.tools` read the files, with more rules
and better messages. A test compares the schemas with these readers. Unknown keys are valid in each table: the readers
keep them and warn.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from skillery.formats import examples, manifest, manifest_tables, npm, paths, requirements, tools
from skillery.formats.graders import MAX_GRADERS, RunGrader
from skillery.formats.inputs import InputType
from skillery.formats.names import MAX_LENGTH, PATTERN, SECRET_NAME
from skillery.formats.semver import VERSION_PATTERN
from skillery.formats.shapes import MAX_WORD

Word = Annotated[str, Meta(min_length=1, max_length=MAX_WORD)]
Path = Annotated[str, Meta(min_length=1, max_length=paths.MAX_BYTES)]


class LimitsTable(msgspec.Struct):
    """Limits of a run. The server reduces them to its maximum."""

    memory_mb: Annotated[int, Meta(ge=1, description="Memory in MiB")] | UnsetType = UNSET
    processes: Annotated[int, Meta(ge=1)] | UnsetType = UNSET
    cpus: Annotated[float, Meta(gt=0)] | UnsetType = UNSET
    disk_mb: Annotated[int, Meta(ge=1, description="Files in MiB")] | UnsetType = UNSET
    timeout_ms: (
        Annotated[int, Meta(ge=1, le=manifest_tables.MAX_TIMEOUT_MS, description="Time in milliseconds")] | UnsetType
    ) = UNSET


class RuntimeTable(msgspec.Struct, rename={"requires_python": "requires-python"}):
    """How a run starts, and what it needs."""

    language: Literal["python"] = "python"
    entrypoint: (
        Annotated[Path, Meta(pattern=r"\.py$", description="The Python file, e.g. code/main.py")] | UnsetType
    ) = UNSET
    export: Annotated[str, Meta(description="The function that a run calls")] = "main"
    limits: LimitsTable | UnsetType = UNSET
    dependencies: (
        Annotated[
            list[Annotated[str, Meta(min_length=1, max_length=requirements.LONGEST)]],
            Meta(max_length=requirements.MOST, description="Packages with versions, e.g. pandas>=2,<3"),
        ]
        | UnsetType
    ) = UNSET
    npm: (
        Annotated[
            list[Annotated[str, Meta(min_length=1, max_length=npm.LONGEST)]],
            Meta(max_length=npm.MOST, description="Packages of npm with versions, e.g. docx@^9"),
        ]
        | UnsetType
    ) = UNSET
    requires_python: Annotated[str, Meta(description="Python versions, e.g. >=3.11")] | UnsetType = UNSET
    workspace: Annotated[bool, Meta(description="Whether a skill with permissions runs in workspaces")] = False
    strict_inputs: Annotated[bool, Meta(description="Whether undeclared arguments fail a run")] = False


class InputTable(msgspec.Struct):
    """An argument of the function. Another `type` is accepted with a warning, and takes any value."""

    type: Annotated[InputType | str, Meta(description=", ".join(manifest.INPUT_TYPES))] | UnsetType = UNSET
    description: str | UnsetType = UNSET
    enum: Annotated[list[Any], Meta(min_length=1, description="The allowed values")] | UnsetType = UNSET
    default: Any | UnsetType = UNSET
    required: bool = False


class PermissionsTable(msgspec.Struct):
    """What a run may use. A reviewer sees these entries."""

    network: (
        Annotated[
            list[Annotated[str, Meta(min_length=1, max_length=300)]],
            Meta(description="Hosts, e.g. https://api.example.com or https://*.example.com:8443"),
        ]
        | UnsetType
    ) = UNSET
    secrets: (
        Annotated[
            list[Annotated[Word, Meta(pattern=f"^{SECRET_NAME.pattern}$")]],
            Meta(description="Names of secrets, which are environment variables of a run"),
        ]
        | UnsetType
    ) = UNSET


class RequiresTable(msgspec.Struct):
    """Other skills that the code imports."""

    skills: (
        Annotated[
            dict[str, Annotated[str, Meta(max_length=manifest_tables.LONGEST_RANGE)]],
            Meta(max_length=manifest_tables.MOST_REQUIRED, description='Ranges of versions by name, e.g. "^1.2"'),
        ]
        | UnsetType
    ) = UNSET


class ExampleTable(msgspec.Struct):
    """A run with its expected result. Publishing executes it as a test."""

    name: Word | UnsetType = UNSET
    args: dict[str, Any] | UnsetType = UNSET
    blobs: (
        Annotated[dict[str, Path | list[Path]], Meta(description="Arguments that get blobs of these files")] | UnsetType
    ) = UNSET
    input_blobs: Annotated[list[Path], Meta(max_length=examples.MAX_FILES)] | UnsetType = UNSET
    expect: Annotated[Any, Meta(description="The exact output")] | UnsetType = UNSET
    expect_subset: Annotated[Any, Meta(description="Members that the output has")] | UnsetType = UNSET
    expect_error: Annotated[str, Meta(description="The type of the error")] | UnsetType = UNSET
    grade: (
        Annotated[list[RunGrader], Meta(max_length=MAX_GRADERS, description="Rules that the output passes")] | UnsetType
    ) = UNSET
    needs_permissions: bool = False


class ToolExampleTable(ExampleTable, kw_only=True):
    """A call of a tool with its expected result. Publishing executes it as a test."""

    tool: Annotated[Word, Meta(description="The name of a tool in tools.json")]


class SkillToml(msgspec.Struct):
    """The manifest of a skill."""

    name: Annotated[str, Meta(pattern=f"^{PATTERN}$", max_length=MAX_LENGTH, description="e.g. sales.leads.sync")]
    version: Annotated[str, Meta(pattern=f"^{VERSION_PATTERN}$", description="MAJOR.MINOR.PATCH")]
    description: Annotated[
        str,
        Meta(min_length=1, max_length=manifest.MAX_DESCRIPTION, description="A model reads it to choose a skill"),
    ]
    kind: Annotated[manifest.Kind, Meta(description="action: to run; instruction: to read")] | UnsetType = UNSET
    namespace: (
        Annotated[str, Meta(description="For lists; all segments of the name but the last by default")] | UnsetType
    ) = UNSET
    tags: Annotated[list[Word], Meta(max_length=manifest.MAX_TAGS)] | UnsetType = UNSET
    runtime: RuntimeTable | UnsetType = UNSET
    inputs: Annotated[dict[str, InputTable | str], Meta(description="The arguments, by name")] | UnsetType = UNSET
    permissions: PermissionsTable | UnsetType = UNSET
    requires: RequiresTable | UnsetType = UNSET
    examples: Annotated[list[ExampleTable], Meta(max_length=examples.MAX_EXAMPLES)] | UnsetType = UNSET
    tool_examples: Annotated[list[ToolExampleTable], Meta(max_length=examples.MAX_EXAMPLES)] | UnsetType = UNSET


class Frontmatter(msgspec.Struct, rename={"allowed_tools": "allowed-tools"}):
    """The frontmatter of SKILL.md."""

    name: Annotated[str, Meta(description="The title; for Agent Skills, the name of the folder")] | UnsetType = UNSET
    short_description: str | UnsetType = UNSET
    description: (
        Annotated[str, Meta(description="What the skill does and when to use it (Agent Skills)")] | UnsetType
    ) = UNSET
    tags: list[str] | UnsetType = UNSET
    license: str | UnsetType = UNSET
    compatibility: Annotated[str, Meta(description="Requirements of the environment (Agent Skills)")] | UnsetType = (
        UNSET
    )
    metadata: Annotated[dict[str, Any], Meta(description="Further values (Agent Skills)")] | UnsetType = UNSET
    allowed_tools: (
        Annotated[str | list[str], Meta(description="Tools that the skill may use (Agent Skills)")] | UnsetType
    ) = UNSET


class ParameterTable(msgspec.Struct):
    """A parameter of a tool."""

    type: tools.ParameterType
    description: Annotated[str, Meta(min_length=1)]
    enum: Annotated[list[Any], Meta(min_length=1)] | UnsetType = UNSET
    optional: bool = False


class ToolEntry(msgspec.Struct):
    """A tool by the convention Skill Tools 1.0.0."""

    name: Annotated[Word, Meta(pattern=f"^{tools.TOOL_NAME.pattern}$")]
    description: Annotated[str, Meta(min_length=1, description="Agents choose a tool by this text")]
    script: (
        Annotated[Path, Meta(description="The handler, e.g. scripts/count.py: .js, .mjs, .py or .sh")] | UnsetType
    ) = UNSET
    parameters: dict[str, ParameterTable] | UnsetType = UNSET


FILES: dict[str, Any] = {
    "skill.toml": SkillToml,
    "frontmatter": Frontmatter,
    "tools.json": list[ToolEntry],
}
"""The types of the files by the names of `skillery schema` and `/schemas/NAME.json`."""


def schema_of_file(name: str) -> dict[str, Any]:
    """Return the JSON Schema of a file: `skill.toml`, `frontmatter` or `tools.json`."""
    schema = msgspec.json.schema(FILES[name])
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": name, **schema}
