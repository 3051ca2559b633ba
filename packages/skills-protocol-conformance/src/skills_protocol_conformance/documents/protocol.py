"""Statements of "Skills Protocol — Full Specification (v0.1)": concepts, tool schemas, artifacts and conventions."""

from __future__ import annotations

from skills_protocol_conformance.checks import describing, envelope, listing, running, sandbox, storing
from skills_protocol_conformance.checks.answers import equals, has, one_of, optional, refuses, without, wrong
from skills_protocol_conformance.checks.envelope import offers
from skills_protocol_conformance.samples import SECRET
from skills_protocol_conformance.statement import EXAMPLE, MAY, MUST, SHOULD, Row

JSON_RPC = "The Skills Protocol uses JSON-RPC 2.0 over HTTP."
INVALID = "Protocol-level errors (JSON-RPC error): Invalid parameters"
REQUIRED_NAME = '"required": ["name"]'

CONCEPTS: list[Row] = [
    (1, MUST, "The protocol is JSON-RPC 2.0 over HTTP.", envelope.answers_json_rpc),
    (2, MUST, "A Skill is a versioned bundle", describing.version_is_described),
    (
        3,
        MUST,
        "skill.toml — machine-readable manifest (id, runtime, permissions, metadata)",
        describing.skill_toml_is_read,
    ),
    (4, MUST, "SKILL.md — instructions & examples for the LLM", describing.skill_md_is_read),
    (5, MAY, "code/ — optional executable implementation", describing.file_is_read("probe", "code/main.py")),
    (6, MAY, "resources/ — optional supporting files", describing.file_is_read("probe", "resources/schema.json")),
    (7, MUST, "Action skills — have a runtime and can be executed", running.executed),
    (8, MUST, "Instruction skills — only provide context (no runtime)", describing.instruction_has_no_runtime),
    (9, MUST, "A Blob is an opaque handle (blob:<id>)", storing.has_a_blob_id),
    (
        10,
        MUST,
        "Blobs live in the runtime's storage and can be mounted into sandboxes.",
        running.code_reads_input_blobs,
    ),
    (11, SHOULD, "Large documents, logs, CSVs, etc. should be represented as blobs", None),
    (12, MUST, "A Run is a single ephemeral sandbox execution", sandbox.is_fresh),
    (13, MUST, "via execute_skill — run a skill's entrypoint", running.entrypoint_and_export_are_used),
    (14, MUST, "via run_code — run LLM-written code that can import skills", running.mounted_skill_is_imported),
    (15, MUST, "run_id — stable identifier", has(running.executed, "run_id", "a text")),
    (16, MUST, 'status — "completed" or "failed"', one_of(running.executed, "status", "completed", "failed")),
    (17, MUST, "summary — short human-readable description", has(running.executed, "summary", "a text")),
    (
        18,
        MAY,
        "Optional output, output_blobs, logs_preview, and error",
        optional(running.executed, "output", "an object"),
    ),
]
TOOLS: list[Row] = [
    (20, MUST, "list_skills — enumerate available skills", offers("list_skills")),
    (21, MUST, "describe_skill — retrieve skill manifest and documentation", offers("describe_skill")),
    (22, MUST, "read_skill_file — read any file in a skill's directory", offers("read_skill_file")),
    (23, MUST, "execute_skill — run a skill's entrypoint", offers("execute_skill")),
    (24, MUST, "run_code — execute LLM-written code with mounted skills", offers("run_code")),
    (25, MUST, "create_blob — store large content", offers("create_blob")),
    (26, MUST, "read_blob — retrieve blob previews", offers("read_blob")),
    (27, MUST, "load_skills_protocol_guide — bootstrap instruction tool", offers("load_skills_protocol_guide")),
    (28, MUST, "These are the only LLM tools.", None),
    (29, MUST, "Skills do not appear as native tools to the LLM.", None),
    (30, SHOULD, "Runtimes SHOULD expose these in a format compatible with their LLM integration", None),
]
SCHEMAS: list[Row] = [
    (31, MUST, "Optional namespace to filter skills (e.g., 'salesforce')", listing.filters_by_namespace),
    (32, MUST, '"namespace": {"type": "string"', wrong("list_skills", "namespace", ["a"])),
    (33, MUST, '"enum": ["names", "summary"]', wrong("list_skills", "detail", "everything")),
    (34, MUST, '"detail": … "default": "names"', listing.default_detail_is_names),
    (35, MUST, '"limit": {"type": "integer"', wrong("list_skills", "limit", "ten")),
    (36, MUST, '"limit": … "default": 50', listing.default_limit_is_50),
    (37, MUST, "Maximum number of results", listing.limit_is_kept),
    (38, MUST, "Pagination cursor from previous response", listing.cursor_leads_on),
    (39, MUST, '"cursor": {"type": "string"', wrong("list_skills", "cursor", {"page": 2})),
    (40, MUST, f"describe_skill: {REQUIRED_NAME}", without("describe_skill", "name")),
    (41, MUST, "describe_skill: Skill version (omit for latest)", describing.latest_is_described),
    (
        42,
        MUST,
        '"enum": ["manifest", "summary", "full"]',
        wrong("describe_skill", "detail", "everything", name="PROBE"),
    ),
    (43, MUST, '"detail": … "default": "summary"', describing.default_detail_is_summary),
    (44, MUST, 'describe_skill: "name": {"type": "string"', wrong("describe_skill", "name", 5)),
    (
        45,
        MUST,
        'read_skill_file: "required": ["name", "path"] — name',
        without("read_skill_file", "name", path="SKILL.md"),
    ),
    (
        46,
        MUST,
        'read_skill_file: "required": ["name", "path"] — path',
        without("read_skill_file", "path", name="PROBE"),
    ),
    (47, MUST, "read_skill_file: Skill version (omit for latest)", describing.version_of_file_is_read),
    (48, MUST, 'read_skill_file: "path": {"type": "string"', wrong("read_skill_file", "path", ["a"], name="PROBE")),
    (49, MUST, f"execute_skill: {REQUIRED_NAME}", without("execute_skill", "name", args={})),
    (50, MUST, "execute_skill: Skill version (omit for latest)", running.latest_is_executed),
    (51, MUST, 'execute_skill: "args": {"type": "object"', wrong("execute_skill", "args", "text", name="PROBE")),
    (52, MUST, '"input_blobs": {"type": "array"', wrong("execute_skill", "input_blobs", "blob:x", name="PROBE")),
    (53, MUST, '"timeout_ms": {"type": "integer"', wrong("execute_skill", "timeout_ms", "soon", name="PROBE")),
    (
        54,
        MUST,
        'run_code: "required": ["language", "code"] — language',
        without("run_code", "language", code=running.CODE),
    ),
    (55, MUST, 'run_code: "required": ["language", "code"] — code', without("run_code", "code", language="python")),
    (56, MUST, "Programming language (MVP: python only)", wrong("run_code", "language", "cobol", code=running.CODE)),
    (57, MUST, '"entrypoint": … "default": "main"', running.default_entrypoint_is_main),
    (
        58,
        MUST,
        'run_code: "args": {"type": "object"',
        wrong("run_code", "args", 7, language="python", code=running.CODE),
    ),
    (
        59,
        MUST,
        '"mount_skills": {"type": "array"',
        wrong("run_code", "mount_skills", "a.b", language="python", code=running.CODE),
    ),
    (60, MUST, '"limits": {"type": "object"', wrong("run_code", "limits", 500, language="python", code=running.CODE)),
    (
        61,
        MUST,
        'create_blob: "required": ["content", "kind"] — content',
        without("create_blob", "content", kind="text/plain"),
    ),
    (62, MUST, 'create_blob: "required": ["content", "kind"] — kind', without("create_blob", "kind", content="text")),
    (
        63,
        MUST,
        'create_blob: "content": {"type": "string"',
        wrong("create_blob", "content", {"a": 1}, kind="text/plain"),
    ),
    (64, MUST, '"required": ["blob_id"]', without("read_blob", "blob_id")),
    (
        65,
        MUST,
        '"enum": ["sample_head", "sample_tail", "full"]',
        wrong("read_blob", "mode", "middle", blob_id="blob:x"),
    ),
    (66, MUST, '"mode": … "default": "sample_head"', storing.default_is_sample_head),
    (67, MUST, '"max_bytes": … "default": 2000', storing.default_is_2000_bytes),
    (68, MUST, "Maximum bytes to return", storing.max_bytes_is_kept),
    (69, MUST, '"max_bytes": {"type": "integer"', wrong("read_blob", "max_bytes", "many", blob_id="blob:x")),
    (70, MUST, 'load_skills_protocol_guide: "properties": {}', has(describing.guide_content, "content", "a text")),
]
CLIENT: list[Row] = [
    (71, EXAMPLE, '"id": str(self.request_id)', envelope.echoes_a_string_id),
    (72, EXAMPLE, 'guide["content"]', has(describing.guide_content, "content", "a text")),
    (73, EXAMPLE, "len(skills['skills'])", has(listing.page, "skills", "an array")),
    (
        74,
        EXAMPLE,
        "skill_info['skill']['manifest']['description']",
        has(describing.described, "manifest.description", "a text"),
    ),
    (75, EXAMPLE, 'docs["content"]', has(describing.skill_md, "content", "a text")),
    (76, EXAMPLE, "blob['blob_id']", has(storing.created, "blob_id", "a text")),
    (
        77,
        EXAMPLE,
        'if result["status"] == "completed": … result[\'output\']',
        has(running.executed, "output", "an object"),
    ),
    (78, EXAMPLE, "result['error']['message']", has(running.failed_skill, "error.message", "a text")),
    (79, EXAMPLE, 'mount_skills=["salesforce.leads.sync", "gdrive.sheets.read"]', running.several_skills_are_mounted),
]
ARTIFACTS: list[Row] = [
    (80, MUST, "<skill_root>/ skill.toml SKILL.md", describing.skill_toml_is_read),
    (81, MAY, "code/ # optional, resources/ # optional", describing.bare_skill_is_valid),
    (82, MUST, "name = … # globally unique skill id", has(describing.described, "manifest.name", "a text")),
    (83, MUST, 'version = "0.1.0"', has(describing.described, "manifest.version", "a text")),
    (84, MUST, "description = …", has(describing.described, "manifest.description", "a text")),
    (85, MUST, 'kind = "action" # "action" | "instruction"', equals(describing.described, "manifest.kind", "action")),
    (
        86,
        MAY,
        'namespace = "salesforce" # for grouping / filtering',
        has(describing.described, "manifest.namespace", "a text"),
    ),
    (
        87,
        MAY,
        'tags = ["crm", "leads", "sync"]',
        equals(describing.described, "manifest.tags", ["conformance", "probe"]),
    ),
    (88, MUST, 'language = "python"', equals(describing.described, "manifest.runtime.language", "python")),
    (
        89,
        MUST,
        'entrypoint = "code/main.py" # module path',
        equals(describing.described, "manifest.runtime.entrypoint", "code/main.py"),
    ),
    (90, MUST, 'export = "main" # function name', equals(describing.described, "manifest.runtime.export", "main")),
    (91, MUST, "Minimal schema for v0.1", describing.manifest_is_the_published_one),
    (
        92,
        MUST,
        'Instruction skills can omit [runtime] or set kind = "instruction"',
        describing.instruction_has_no_runtime,
    ),
    (
        93,
        SHOULD,
        "runtimes MAY ignore inputs and permissions but SHOULD parse them — inputs",
        equals(describing.declared, "manifest.inputs.sheet_blob.type", "blob"),
    ),
    (
        94,
        SHOULD,
        "runtimes MAY ignore inputs and permissions but SHOULD parse them — permissions",
        equals(describing.declared, "manifest.permissions.secrets", [SECRET]),
    ),
    (95, MUST, "SKILL.md is markdown with YAML frontmatter at the top", describing.frontmatter_is_parsed),
    (96, SHOULD, "The body should briefly describe: What the skill does", None),
]
CONVENTIONS: list[Row] = [
    (100, MUST, JSON_RPC, envelope.answers_json_rpc),
    (101, MUST, JSON_RPC, envelope.echoes_a_string_id),
    (102, MUST, JSON_RPC, envelope.echoes_a_number_id),
    (103, MUST, JSON_RPC, envelope.success_has_a_result_only),
    (104, MUST, JSON_RPC, envelope.error_has_no_result),
    (105, MUST, JSON_RPC, envelope.error_echoes_id),
    (106, MUST, JSON_RPC, envelope.error_has_code_and_message),
    (107, MUST, JSON_RPC, envelope.broken_json_is_a_parse_error),
    (108, MUST, JSON_RPC, envelope.no_request_is_an_invalid_request),
    (109, MUST, JSON_RPC, envelope.notification_has_no_answer),
    (110, MUST, JSON_RPC, envelope.params_may_be_omitted),
    (111, SHOULD, JSON_RPC, envelope.answers_with_http_200),
    (112, SHOULD, JSON_RPC, envelope.answers_as_json),
    (113, MUST, "Protocol-level errors (JSON-RPC error): Invalid method name", envelope.unknown_method_is_an_error),
    (114, MUST, INVALID, envelope.invalid_params_have_their_code),
    (115, MUST, INVALID, refuses("describe_skill", "of an unknown skill", name="conformance.nothing.here")),
    (116, MUST, INVALID, refuses("describe_skill", "of an unknown version", name="PROBE", version="77.0.0")),
    (117, MUST, "Protocol-level errors: Authorization failures", None),
    (118, MUST, "Internal server errors unrelated to sandbox execution", None),
    (119, MUST, "Run-level failures: Exceptions thrown by skill code", running.failed_skill),
    (
        120,
        MUST,
        "Validation errors in skill code",
        running.error_says(running.failed_skill, "ValueError", "the probe refuses"),
    ),
    (121, MUST, "Timeouts or resource limits in the sandbox", running.skill_timeout_ends_the_run),
    (122, EXAMPLE, '"result": { "status": "completed"', equals(running.coded, "status", "completed")),
    (
        123,
        EXAMPLE,
        '"error": { "message": "Traceback...", "type": "RuntimeError" }',
        has(running.failed_code, "error.type", "a text"),
    ),
    (124, EXAMPLE, '"error": { "code": -32602, "message": "Invalid params" }', envelope.invalid_params_have_their_code),
    *(
        (125 + number, MUST, 'Use result.status = "failed" for sandbox / skill execution errors', check)
        for number, check in enumerate(map(running.fault_is_a_failed_run, running.FAULTS))
    ),
    (135, MUST, "All methods are invoked … at a single HTTP endpoint (e.g. /rpc).", envelope.single_endpoint),
]
SECTIONS = {
    "Core Concepts": CONCEPTS,
    "LLM Tool-Call Interface": TOOLS,
    "Tool Schemas": SCHEMAS,
    "Python Client Example": CLIENT,
    "Skill Artifacts": ARTIFACTS,
    "JSON-RPC Conventions": CONVENTIONS,
}
