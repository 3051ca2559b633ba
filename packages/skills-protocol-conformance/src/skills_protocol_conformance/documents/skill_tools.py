"""Statements of "Skill Tools Specification"."""

from __future__ import annotations

from skills_protocol_conformance.checks import tools
from skills_protocol_conformance.statement import EXAMPLE, MAY, MUST, SHOULD, Row

LAYOUT: list[Row] = [
    (1, MUST, "The skill directory name MUST follow the Agent Skills naming rules", tools.skill_name_is_kept),
    (2, MUST, "The directory name MUST match the `name` field in `SKILL.md` frontmatter.", tools.skill_name_is_kept),
    (3, MUST, "`SKILL.md` uses YAML frontmatter for metadata and markdown for the body", tools.skill_name_is_kept),
    (4, MUST, "`tools.json` MUST be at the root of the skill directory.", tools.tools_json_is_read),
    (5, SHOULD, "Handler scripts SHOULD live in a `scripts/` subdirectory.", tools.handler_is_read),
    (6, SHOULD, "Handler scripts SHOULD live in a `scripts/` subdirectory.", tools.script_elsewhere_works),
    (7, MUST, "The runtime uses the extension to determine how to execute the handler.", tools.counts_words),
    (8, MAY, "A skill MAY declare zero tools (instruction-only)", tools.zero_tools_are_valid),
    (9, MAY, "A skill MAY declare … multiple tools.", tools.tools_are_registered),
    (
        10,
        MUST,
        "Skills without a `tools.json` are valid instruction-only skills.",
        tools.skill_without_manifest_is_valid,
    ),
]
MANIFEST: list[Row] = [
    (
        20,
        MUST,
        "`name`: Must match `^[a-z][a-z0-9_]*$`.",
        tools.invalid("a wrong name", [{"name": "Bad-Name", "description": "Bad."}]),
    ),
    (21, MUST, "`name`: Tool name.", tools.tool_has("name")),
    (22, MUST, "`description`: Shown to the agent in the tools list.", tools.tool_has("description")),
    (23, MUST, "`script`: Relative path from the skill directory to the handler script.", tools.script_elsewhere_works),
    (
        24,
        SHOULD,
        "If omitted, the runtime SHOULD provide a stub that tells the agent to load the skill",
        tools.stub_names_the_skill,
    ),
    (25, MUST, "`parameters`: Parameter definitions.", tools.tool_has("parameters")),
    (26, MUST, "Defaults to `{}` (no parameters).", tools.parameters_default_to_none),
    (27, MUST, "`optional`: If `true`, the parameter is not required.", tools.optional_is_not_required),
    (28, MUST, 'Parameters without `"optional": true` are treated as required.', tools.other_is_required),
    (29, MUST, "The manifest MUST be valid JSON.", tools.invalid("broken json", "[{")),
    (
        30,
        MUST,
        "The manifest MUST be an array",
        tools.invalid("an object", {"name": "a", "description": "A.", "script": "scripts/a.py"}),
    ),
    (
        31,
        MUST,
        "Each tool MUST have a `name`",
        tools.invalid("a missing name", [{"description": "A.", "script": "scripts/a.py"}]),
    ),
    (
        32,
        MUST,
        "Each tool MUST have a … `description`.",
        tools.invalid("a missing description", [{"name": "a", "script": "scripts/a.py"}]),
    ),
    (
        33,
        MUST,
        "Tool names MUST be unique within a single manifest.",
        tools.invalid("a name twice", [{"name": "a", "description": "A."}] * 2),
    ),
    (34, SHOULD, "Tool names SHOULD be unique across all skills loaded by an agent.", None),
    (35, SHOULD, "the runtime SHOULD use the tool from the last-loaded skill", None),
]
HANDLER: list[Row] = [
    (40, MUST, "Receive a single JSON object containing all tool parameters", tools.gets_all_parameters),
    (41, MUST, "plus `__workDir` (the agent's working directory, injected by the runtime)", tools.gets_its_work_dir),
    (42, MUST, "Return a JSON-serializable value — string", tools.returns("give_text", "a text")),
    (43, MUST, "Return a JSON-serializable value — object", tools.counts_words),
    (44, MUST, "Return a JSON-serializable value — array", tools.returns("give_list", [1, 2, 3])),
    (45, MUST, "Return a JSON-serializable value — number", tools.returns("give_number", 42)),
    (46, MUST, "Return a JSON-serializable value — boolean", tools.returns("give_truth", True)),
    (47, SHOULD, 'the runtime SHOULD catch the error and return `{ "error": "<message>" }`', tools.error_is_returned),
    (
        48,
        MAY,
        "JavaScript handlers … export a default async function.",
        tools.language("in_javascript", {"in": "javascript"}),
    ),
    (49, MUST, "Python handlers are modules that define a `handler` function.", tools.counts_words),
    (
        50,
        MUST,
        "the runtime passes the args JSON as stdin or as a command-line argument, and reads the result from stdout",
        tools.main_block_works,
    ),
    (51, MAY, "Runtimes MAY support additional languages.", tools.language("in_shell", {"in": "shell"})),
    (52, SHOULD, "Minimize external dependencies.", None),
    (53, SHOULD, "No global state. Each invocation should be independent.", tools.calls_are_independent),
    (54, SHOULD, "File operations should stay within `__workDir`.", None),
    (55, SHOULD, "Return meaningful results.", None),
    (56, SHOULD, "Handlers that need API keys or other secrets SHOULD read them from environment variables.", None),
    (57, MUST, "Secrets MUST NOT be stored in the skill directory", None),
    (58, SHOULD, "The skill's `SKILL.md` SHOULD document which environment variables are required", None),
    (59, EXAMPLE, 'return {"count": len(words)}', tools.counts_words),
]
DISCOVERY: list[Row] = [
    (
        70,
        SHOULD,
        "Runtimes SHOULD discover Skill Tools by scanning skill directories for `tools.json` files.",
        tools.tools_are_registered,
    ),
    (
        71,
        MUST,
        "Validate that `name` and `description` are present. Skip the tool with a warning if not.",
        tools.invalid("no name or description", [{}]),
    ),
    (72, MUST, "If `script` is specified, resolve it relative to the skill directory", tools.handler_is_read),
    (73, MUST, "If `script` is not specified, create a stub handler.", tools.stub_names_the_skill),
    (
        74,
        MUST,
        "Register the tool on the agent with its name, description, parameters, and handler.",
        tools.tool_has("parameters"),
    ),
    (75, MAY, "Runtimes MAY support multiple skill directory locations.", None),
    (76, MAY, "Runtimes MAY support dynamic tool creation", tools.defined_tool_works),
    (77, MAY, "`remove_tool`: A meta-tool that removes a previously defined tool", tools.defined_tool_works),
    (83, MAY, "Convert the tool name to a skill name: underscores to hyphens", tools.persistent_tool_is_a_skill),
    (84, MAY, "Write `SKILL.md` with auto-generated frontmatter and body.", tools.persistent_tool_is_a_skill),
    (85, MAY, "Write `tools.json` with the tool declaration.", tools.persistent_tool_is_a_skill),
    (86, MAY, "Write the handler script (e.g., `scripts/<tool_name>.js`)", tools.persistent_tool_is_a_skill),
    (78, SHOULD, "Runtimes SHOULD protect standard/built-in tools from removal.", tools.standard_tools_are_protected),
    (
        79,
        MUST,
        "`tools.json` is an additive file. Skills without it are valid instruction-only skills.",
        tools.skill_without_manifest_is_valid,
    ),
    (80, SHOULD, "Only load skills from trusted sources.", None),
    (81, SHOULD, "Run handlers in isolated environments where possible", None),
    (87, SHOULD, "Consider prompting the user before executing tools", None),
    (88, SHOULD, "Handlers should only have access to the resources they need.", None),
    (82, SHOULD, "Record tool invocations and results for auditing.", None),
]

SECTIONS = {
    "4. Directory Layout": LAYOUT,
    "5. Tool Manifest": MANIFEST,
    "6. Handler Contract": HANDLER,
    "7-11. Discovery, Creation, Security": DISCOVERY,
}
