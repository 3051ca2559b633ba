"""Statements of "LLM Tool Interface"."""

from __future__ import annotations

from skills_protocol_conformance.checks import describing, envelope, listing, running, storing
from skills_protocol_conformance.checks.answers import equals, has, one_of, optional, without, wrong
from skills_protocol_conformance.checks.envelope import offers
from skills_protocol_conformance.session import METHODS
from skills_protocol_conformance.statement import EXAMPLE, MUST, SHOULD, Row

OVERVIEW: list[Row] = [
    (1, MUST, "The Skills Protocol exposes exactly 8 tools to LLM agents.", None),
    (2, MUST, "Skills are not exposed as native LLM tools.", None),
    (3, MUST, "let agents discover, inspect, and execute any skill", envelope.single_endpoint),
    *((4 + number, MUST, f"{method} — …", offers(method)) for number, method in enumerate(METHODS)),
]
LIST: list[Row] = [
    (20, MUST, "Enumerate available skills", listing.pages_have_every_skill_once),
    (21, MUST, "optionally filtering by namespace", listing.filters_by_namespace),
    (22, MUST, "Results are deterministically sorted.", listing.is_sorted_deterministically),
    (23, MUST, "namespace: string", wrong("list_skills", "namespace", {"a": 1})),
    (24, MUST, 'Level of detail: "names" or "summary"', wrong("list_skills", "detail", "full")),
    (25, MUST, 'detail: (default: "names")', listing.default_detail_is_names),
    (26, MUST, 'Level of detail: "names" or "summary"', listing.summary_has_the_same_skills),
    (27, MUST, "limit: Maximum number of results", listing.limit_is_kept),
    (28, MUST, "limit: (default: 50)", listing.default_limit_is_50),
    (29, MUST, "limit: integer", wrong("list_skills", "limit", [5])),
    (30, MUST, "Pagination cursor from previous response", listing.cursor_leads_on),
    (31, MUST, "Returns an array of skills with basic metadata", has(listing.page, "skills", "an array")),
    *(
        (32 + number, MUST, f"Response: {name} — …", listing.summary_has(name))
        for number, name in enumerate(listing.BASIC)
    ),
    (37, MUST, 'kind — "action" or "instruction"', one_of(listing.instruction_row, "kind", "action", "instruction")),
    (38, MUST, 'kind — "action" or "instruction"', equals(listing.row, "kind", "action")),
    (39, MUST, "version — Skill version", listing.has_name_and_version),
    (40, EXAMPLE, '"next_cursor": null', equals(listing.last_page, "next_cursor", None)),
    (41, EXAMPLE, "Pagination cursor from previous response", has(listing.first_page, "next_cursor", "a text")),
]
DESCRIBE: list[Row] = [
    (50, MUST, "Retrieve a skill's manifest", has(describing.described, "manifest", "an object")),
    (51, MUST, "Retrieve … documentation frontmatter.", describing.frontmatter_is_parsed),
    (52, MUST, "name: required", without("describe_skill", "name", detail="summary")),
    (53, MUST, "name: Skill name (e.g., 'salesforce.leads.sync')", describing.manifest_is_the_published_one),
    (54, MUST, "Skill version (omit for latest)", describing.latest_is_described),
    (55, MUST, "version: string", wrong("describe_skill", "version", {"a": 1}, name="PROBE")),
    (
        56,
        MUST,
        'Detail level: "manifest", "summary", or "full"',
        has(describing.manifest_only, "manifest.name", "a text"),
    ),
    (57, MUST, 'Detail level: "manifest", "summary", or "full"', describing.full_has_the_manifest),
    (58, MUST, 'Detail level: (default: "summary")', describing.default_detail_is_summary),
    (
        59,
        MUST,
        'Detail level: "manifest", "summary", or "full"',
        wrong("describe_skill", "detail", "names", name="PROBE"),
    ),
]
READ: list[Row] = [
    (60, MUST, "Read any file in a skill's directory (e.g., SKILL.md", describing.skill_md_is_read),
    (61, MUST, "extra docs, schemas", describing.file_is_read("probe", "resources/schema.json")),
    (62, MUST, "name: required", without("read_skill_file", "name", path="SKILL.md")),
    (63, MUST, "path: required", without("read_skill_file", "path", name="PROBE")),
    (64, MUST, "path: string", wrong("read_skill_file", "path", 5, name="PROBE")),
    (65, MUST, "Skill version (omit for latest)", describing.version_of_file_is_read),
    (66, MUST, "Path to file within skill directory", describing.escapes_are_refused),
]
EXECUTE: list[Row] = [
    (70, MUST, "Run a skill's entrypoint in an ephemeral sandbox.", running.executed),
    (71, MUST, "name: required", without("execute_skill", "name", args={})),
    (72, MUST, "args: JSON-serializable arguments to pass to the skill", running.takes_args(running.executed)),
    (73, MUST, "Skill version (omit for latest)", running.latest_is_executed),
    (74, MUST, "Blob IDs to mount in the sandbox", running.skill_reads_input_blobs),
    (75, MUST, "Execution timeout in milliseconds", running.skill_timeout_ends_the_run),
    (76, MUST, 'status: "completed" or "failed"', one_of(running.failed_skill, "status", "completed", "failed")),
    (77, MUST, "run_id: Stable identifier for this run", has(running.executed, "run_id", "a text")),
    (78, MUST, "summary: Human-readable result description", has(running.executed, "summary", "a text")),
    (79, MUST, "output: Small JSON output (max 4KB)", running.large_output_is_small),
    (80, MUST, "output_blobs: Blob IDs created during execution", running.written_blob_is_an_output_blob),
    (81, MUST, "output_blobs: array", optional(running.executed, "output_blobs", "an array of strings")),
    (82, SHOULD, "logs_preview: Truncated execution logs (max 2KB)", running.logs_are_cut),
]
CODE: list[Row] = [
    (90, MUST, "Execute LLM-written code in a sandbox with specified skills and blobs mounted.", running.coded),
    (91, MUST, "language: required", without("run_code", "language", code=running.CODE)),
    (
        92,
        MUST,
        'Programming language (MVP: "python" only)',
        wrong("run_code", "language", "fortran", code=running.CODE),
    ),
    (93, MUST, "code: required", without("run_code", "code", language="python")),
    (94, MUST, 'Function name to call (default: "main")', running.default_entrypoint_is_main),
    (95, MUST, "Function name to call", running.entrypoint_is_called),
    (96, MUST, "Arguments to pass to entrypoint function", running.takes_args(running.coded)),
    (97, MUST, "Skill names to mount in sandbox", running.mounted_skill_is_imported),
    (98, MUST, "Blob IDs to mount in sandbox", running.code_reads_input_blobs),
    (99, MUST, "Execution limits (e.g., timeout_ms)", running.code_timeout_ends_the_run),
]
BLOBS: list[Row] = [
    (110, MUST, "Store large content as a blob and return its ID.", storing.large_content_is_stored),
    (111, MUST, "content: required", without("create_blob", "content", kind="text/csv")),
    (112, MUST, "kind: required", without("create_blob", "kind", content="a,b")),
    (
        113,
        MUST,
        "kind: MIME type (e.g., 'text/plain', 'application/json')",
        storing.kind_is_kept("text/plain", "application/json"),
    ),
    (114, MUST, "kind: string", wrong("create_blob", "kind", 5, content="a,b")),
    (115, EXAMPLE, '"kind": "text/csv"', storing.kind_is_kept("text/csv")),
    (116, MUST, '"blob_id": "blob:transcript-abc123"', storing.has_a_blob_id),
    (117, MUST, '"size_bytes": 200000', has(storing.created, "size_bytes", "an integer")),
    (118, MUST, '"size_bytes": 200000', storing.size_is_in_bytes),
    (119, MUST, "Retrieve a preview of blob content.", storing.content_is_kept),
    (120, MUST, "blob_id: required", without("read_blob", "blob_id", mode="full")),
    (121, MUST, 'Sampling mode: "sample_head"', storing.head_is_the_beginning),
    (122, MUST, 'Sampling mode: "sample_tail"', storing.tail_is_the_end),
    (123, MUST, 'Sampling mode: "full"', storing.full_is_everything),
    (124, MUST, 'Sampling mode: (default: "sample_head")', storing.default_is_sample_head),
    (125, MUST, "Sampling mode", wrong("read_blob", "mode", "sample_middle", blob_id="blob:x")),
    (126, MUST, "Maximum bytes to return", storing.max_bytes_is_kept),
    (127, MUST, "Maximum bytes to return (default: 2000)", storing.default_is_2000_bytes),
    (128, MUST, '"content": "Discussed Q4 goals..."', has(storing.read, "content", "a string")),
    (129, MUST, '"truncated": true', has(storing.read, "truncated", "a boolean")),
    (130, MUST, '"kind": "text/plain"', equals(storing.read, "kind", "text/plain")),
]
GUIDE: list[Row] = [
    (140, MUST, "Load the canonical Skills Protocol Guide", has(describing.guide_content, "content", "a text")),
    (141, MUST, "None. This method takes no parameters.", envelope.params_may_be_omitted),
    (142, EXAMPLE, '"content": "# Skills Protocol Overview', describing.guide_has("# Skills Protocol Overview")),
    (
        143,
        MUST,
        "This method returns the SKILL.md content of the canonical skills.protocol.guide skill",
        describing.guide_is_its_skill_md,
    ),
    (144, MUST, "which provides instructions on the protocol workflow", describing.guide_names_every_tool),
]

SECTIONS = {
    "Overview": OVERVIEW,
    "list_skills": LIST,
    "describe_skill": DESCRIBE,
    "read_skill_file": READ,
    "execute_skill": EXECUTE,
    "run_code": CODE,
    "Blob tools": BLOBS,
    "Bootstrap tool": GUIDE,
}
