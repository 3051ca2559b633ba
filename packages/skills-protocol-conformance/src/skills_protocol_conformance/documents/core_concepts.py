"""Statements of "Core Concepts"."""

from __future__ import annotations

from skills_protocol_conformance.checks import describing, envelope, listing, running, sandbox, storing
from skills_protocol_conformance.checks.answers import absent, equals, has, one_of
from skills_protocol_conformance.statement import EXAMPLE, MAY, MUST, SHOULD, Row

SKILL: list[Row] = [
    (1, MUST, "A Skill is a versioned bundle", running.version_is_executed),
    (2, MUST, "skill.toml — machine-readable manifest", describing.skill_toml_is_read),
    (3, MUST, "SKILL.md — instructions & examples for the LLM", describing.skill_md_is_read),
    (4, MAY, "code/ — optional executable implementation", describing.bare_skill_is_valid),
    (5, MAY, "resources/ — optional supporting files", describing.file_is_read("notes", "resources/deep/more.md")),
    (6, MUST, "Skills that have a runtime and can be executed.", equals(listing.row, "kind", "action")),
    (7, MUST, "They include executable code and can perform actions", running.executed),
    (8, MUST, "Skills that only provide context", equals(listing.instruction_row, "kind", "instruction")),
    (9, MUST, "They have no runtime", describing.instruction_has_no_runtime),
    (10, MUST, "They … cannot be executed", running.instruction_skill_does_not_run),
    (
        11,
        EXAMPLE,
        "resources/ schema.json # Supporting files",
        describing.file_is_read("probe", "resources/schema.json"),
    ),
]
BLOB: list[Row] = [
    (20, MUST, "A Blob is an opaque handle (blob:<id>)", storing.has_a_blob_id),
    (21, MUST, "Blobs live in the runtime's storage and can be mounted into sandboxes.", sandbox.blobs_are_available),
    (22, MUST, "large data (text, binary, JSON)", storing.kind_is_kept("application/json")),
    (23, SHOULD, "Large documents … should be represented as blobs rather than inline JSON.", None),
    (24, MUST, "Large data doesn't pass through the LLM context", None),
    (31, MUST, "Skills operate on blobs without serialization overhead", None),
    (25, MUST, "Blobs can be read partially or sampled", storing.head_is_the_beginning),
    (26, MUST, "Supports binary data — Images, PDFs, and other non-text formats", None),
    (27, EXAMPLE, '"content": "Large CSV data...", "kind": "text/csv"', storing.kind_is_kept("text/csv")),
    (28, MUST, "Returns: blob:abc123", has(storing.created, "blob_id", "a text")),
    (29, EXAMPLE, '"mode": "sample_head", "max_bytes": 2000', storing.default_is_2000_bytes),
    (30, MUST, "Returns truncated preview", storing.part_is_truncated),
]
RUN: list[Row] = [
    (40, MUST, "A Run is a single ephemeral sandbox execution", sandbox.is_fresh),
    (41, MUST, "A Run … with a stable identifier", running.run_ids_differ),
    (42, MUST, "Run a skill's entrypoint with provided arguments", running.takes_args(running.executed)),
    (43, MUST, "Run LLM-written code that can import skills", running.mounted_skill_is_imported),
    (44, MUST, "run_id: Stable identifier for the run", has(running.coded, "run_id", "a text")),
    (45, MUST, 'status: Either "completed" or "failed"', one_of(running.coded, "status", "completed", "failed")),
    (46, MUST, 'status: Either "completed" or "failed"', one_of(running.failed_code, "status", "failed")),
    (47, MUST, "summary: Short human-readable description of the result", has(running.coded, "summary", "a text")),
    (48, MUST, "output: Small JSON output (must be < 4KB).", running.large_output_is_small),
    (49, MUST, "output: object", has(running.coded, "output", "an object")),
    (50, MUST, "output_blobs: List of blob IDs created during execution", running.written_blob_is_an_output_blob),
    (51, MUST, "output_blobs: array", has(running.skill_writes_a_blob, "output_blobs", "an array of strings")),
    (52, MUST, "logs_preview: string", has(running.executed, "logs_preview", "a string")),
    (53, SHOULD, "Truncated execution logs (typically < 2KB)", running.logs_are_cut),
    (54, MUST, 'error: Error details if status is "failed"', has(running.failed_skill, "error", "an object")),
    (55, MUST, 'error: Error details if status is "failed"', absent(running.executed, "error")),
    (56, EXAMPLE, '"output": { "updated_count": 742, "failed_count": 5 }', running.output_under_4_kb_is_inline),
]
RUNTIME: list[Row] = [
    (60, MUST, "Stores Skills and Blobs", storing.content_is_kept),
    (61, MUST, "Manages skill versions", describing.version_is_described),
    (62, MUST, "Handles blob lifecycle", None),
    (63, MUST, "Creates sandboxed environments", sandbox.writes_only_in_workspace),
    (64, MUST, "Enforces resource limits", running.code_timeout_ends_the_run),
    (65, MUST, "Manages permissions", sandbox.has_no_secrets),
    (66, MUST, "Exposes JSON-RPC 2.0 endpoint", envelope.answers_json_rpc),
    (67, MUST, "Provides LLM tool surface", envelope.single_endpoint),
    (68, MUST, "Handles authentication", None),
    (69, MUST, "Skill Registry — Discover and retrieve skill metadata", listing.rows_are_complete),
    (70, MUST, "Execution Engine — Run skills in isolated sandboxes", running.executed),
    (71, MUST, "Blob Storage — Efficient handling of large data", storing.large_content_is_stored),
    (72, SHOULD, "Permission System — Control network access and secrets", sandbox.has_no_network),
    (
        73,
        MUST,
        "Resource Limits — Enforce CPU, memory, and timeout constraints — timeout",
        running.skill_timeout_ends_the_run,
    ),
    (74, MUST, "Resource Limits — Enforce CPU, memory, and timeout constraints — memory", None),
    (75, MUST, "LLM Agent (Uses 8 protocol tools)", envelope.single_endpoint),
    (76, MUST, "JSON-RPC 2.0 over HTTP", envelope.success_has_a_result_only),
]

SECTIONS = {"Skill": SKILL, "Blob": BLOB, "Run": RUN, "Skills Runtime": RUNTIME}
