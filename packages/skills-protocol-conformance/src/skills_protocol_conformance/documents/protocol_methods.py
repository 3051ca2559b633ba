"""Statements of "Skills Protocol — Full Specification (v0.1)": methods, sandbox and checklist."""

from __future__ import annotations

from skills_protocol_conformance.checks import describing, envelope, listing, running, sandbox, storing
from skills_protocol_conformance.checks.answers import equals, has, one_of, refuses
from skills_protocol_conformance.checks.envelope import offers
from skills_protocol_conformance.documents.protocol import INVALID
from skills_protocol_conformance.statement import EXAMPLE, MAY, MUST, SHOULD, Row

ROW = '"name": …, "version": …, "description": …, "namespace": …, "kind": "action"'

LIST: list[Row] = [
    (140, MUST, '"namespace": "salesforce", // optional, string', listing.lists_all_without_a_namespace),
    (141, MUST, '"namespace": "salesforce"', listing.unknown_namespace_is_empty),
    (142, EXAMPLE, '"cursor": null // optional, opaque pagination token', listing.null_cursor_is_the_start),
    (143, MUST, ROW, has(listing.row, "name", "a text")),
    (144, MUST, ROW, has(listing.row, "version", "a text")),
    (145, MUST, ROW, has(listing.row, "description", "a text")),
    (146, MUST, ROW, has(listing.row, "namespace", "a text")),
    (147, MUST, ROW, one_of(listing.row, "kind", "action", "instruction")),
    (148, MUST, ROW, listing.rows_are_complete),
    (149, EXAMPLE, '"next_cursor": null', has(listing.last_page, "next_cursor", "a string or null")),
    (150, MUST, "Results MUST be sorted deterministically", listing.is_sorted_deterministically),
    (151, EXAMPLE, "sorted deterministically (e.g. (namespace, name, version DESC))", listing.is_sorted_by_name),
    (
        152,
        MUST,
        "Implementations MUST NOT perform semantic search here; this is a pure listing call",
        listing.searches_nothing,
    ),
    (153, MUST, "Enumerate available skills", listing.pages_have_every_skill_once),
]
DESCRIBE: list[Row] = [
    (160, MUST, '"version": "0.1.0", // optional, latest if omitted', describing.version_is_described),
    (161, MUST, '"manifest": { /* parsed skill.toml */ }', has(describing.summary, "manifest", "an object")),
    (
        162,
        MUST,
        '"skill_md_frontmatter": { /* parsed YAML frontmatter */ }',
        has(describing.summary, "skill_md_frontmatter", "an object"),
    ),
    (166, MUST, '"skill_md_frontmatter": { /* parsed YAML frontmatter */ }', describing.frontmatter_keeps_types),
    (163, MUST, '"manifest" | "summary" | "full"', has(describing.manifest_only, "manifest", "an object")),
    (164, MUST, '"manifest" | "summary" | "full"', describing.full_has_the_manifest),
    (
        165,
        MAY,
        'If detail = "full", runtimes MAY include the full SKILL.md content inline',
        describing.full_may_have_the_body,
    ),
]
READ: list[Row] = [
    (170, MUST, "Read any file in a skill's directory", describing.file_is_read("notes", "resources/deep/more.md")),
    (171, MUST, '"path": "SKILL.md"', describing.skill_md_is_read),
    (172, MUST, '"content": "# Salesforce Lead Sync…"', has(describing.skill_md, "content", "a string")),
    (
        173,
        MUST,
        "Runtimes MUST restrict path to the skill's directory and reject paths that attempt to escape",
        describing.escapes_are_refused,
    ),
    (
        174,
        MUST,
        "Read any file in a skill's directory",
        refuses("read_skill_file", "of a missing file", name="PROBE", path="no.md"),
    ),
]
EXECUTE: list[Row] = [
    (180, MUST, '"version": "0.1.0", // optional, latest if omitted', running.version_is_executed),
    (181, MUST, '"args": … // JSON-serializable args', running.takes_args(running.executed)),
    (182, MUST, '"input_blobs": … // optional blob ids to mount', running.skill_reads_input_blobs),
    (183, MUST, '"timeout_ms": 300000 // optional', running.timeout_leaves_time),
    (184, MUST, '"output": { "updated_count": 742 …', has(running.executed, "output", "an object")),
    (185, MUST, '"output_blobs": [ "blob:sync-log-42" …', running.written_blob_is_an_output_blob),
    (
        186,
        MUST,
        '"logs_preview": "Connected to Salesforce...',
        running.logs_have(running.executed, "stdout of the probe"),
    ),
    (187, MUST, '"status": "failed", "run_id": "run_9f2a"', has(running.failed_skill, "run_id", "a text")),
    (188, MUST, '"summary": "Exception while syncing leads."', has(running.failed_skill, "summary", "a text")),
    (189, MUST, '"error": { "type": "RuntimeError" …', has(running.failed_skill, "error.type", "a text")),
    (190, EXAMPLE, '"logs_preview": "Starting sync...', running.logs_have(running.failed_skill, "the probe begins")),
    (
        191,
        MUST,
        "output MUST be kept small (e.g. < 4KB serialized). Larger data MUST be written to blobs",
        running.large_output_is_small,
    ),
    (192, SHOULD, "logs_preview SHOULD be truncated (e.g. < 2KB)", running.logs_are_cut),
    (
        193,
        MUST,
        "Runtimes MUST terminate sandbox execution if timeout_ms … are exceeded",
        running.skill_timeout_ends_the_run,
    ),
    (194, MUST, "terminate sandbox execution if … internal resource limits are exceeded", None),
]
CODE: list[Row] = [
    (200, MUST, "Run LLM-written code in a sandbox", running.coded),
    (201, MUST, '"entrypoint": "main", // optional, default "main"', running.entrypoint_is_called),
    (202, MUST, '"args": { "sheet_blob": …', running.takes_args(running.coded)),
    (203, MUST, '"mount_skills": [ // skill ids to mount', running.mounted_skill_is_imported),
    (204, MUST, '"limits": { "timeout_ms": 300000 // optional', running.code_timeout_ends_the_run),
    (205, MUST, "Response: Same structure as execute_skill", has(running.coded, "run_id", "a text")),
    (206, MUST, "Response: Same structure as execute_skill", has(running.coded, "summary", "a text")),
    (207, MUST, "Response: Same structure as execute_skill", running.logs_have(running.coded, "a line on stdout")),
    (208, MUST, "Create a fresh sandbox for each run_code call", sandbox.is_fresh),
    (209, MUST, "Mount requested skills and blobs", running.several_skills_are_mounted),
    (210, MUST, "Expose a small runtime helper library inside the sandbox", sandbox.runtime_package_is_complete),
]
BLOBS: list[Row] = [
    (220, MUST, "Store arbitrary content as a blob and return its ID.", storing.content_is_kept),
    (
        221,
        MUST,
        '"kind": "text/plain" // or "application/json", etc.',
        storing.kind_is_kept("text/plain", "application/json"),
    ),
    (222, MUST, '"size_bytes": 200000', storing.size_is_in_bytes),
    (223, EXAMPLE, '"size_bytes": 200000', storing.large_content_is_stored),
    (224, MUST, "Retrieve a small view of a blob.", storing.head_is_the_beginning),
    (225, MUST, '"max_bytes": 2000', storing.max_bytes_counts_bytes),
    (226, MUST, '"truncated": true', storing.part_is_truncated),
    (227, MUST, '"truncated": true', storing.complete_blob_is_not_truncated),
    (228, MUST, '"kind": "text/plain"', has(storing.read, "kind", "a text")),
    (229, SHOULD, "Retrieve a small view of a blob.", storing.no_character_is_split),
    (230, SHOULD, "Support sample_head and sample_tail", storing.tail_is_the_end),
    (231, SHOULD, 'Treat "full" as best-effort', storing.full_is_everything),
    (232, MAY, "MAY reject it for very large blobs", None),
    (233, MUST, "Store arbitrary content as a blob and return its ID.", storing.two_blobs_can_be_read),
    (234, MUST, INVALID, refuses("read_blob", "of an unknown blob", blob_id="blob:conformance-nothing-here")),
]
GUIDE: list[Row] = [
    (
        240,
        MUST,
        "Return the SKILL.md content of the canonical Skills Protocol Guide skill.",
        has(describing.guide_content, "content", "a text"),
    ),
    (241, EXAMPLE, '"content": "# Skills Protocol Overview', describing.guide_has("# Skills Protocol Overview")),
    (
        242,
        MUST,
        "This method MUST return the content of the canonical skills.protocol.guide skill's SKILL.md file.",
        describing.guide_is_its_skill_md,
    ),
]
CREATE: list[Row] = [
    (250, MUST, "Register a new skill programmatically", storing.is_described_at_once),
    (251, MUST, '"files": [ { "path": "code/main.py", "content": …', storing.files_are_stored),
    (252, MUST, '"name": …, "version": "0.1.0"', storing.create_skill_returns_name_and_version),
    (253, MUST, "Validate that path values stay within the skill root", storing.escapes_are_refused),
    (254, MUST, "Either persist the skill immediately or return a protocol-level error", storing.is_listed_at_once),
    (255, MUST, "Either persist the skill immediately or return a protocol-level error", storing.published_skill_runs),
    (
        256,
        MUST,
        "Either persist the skill immediately or return a protocol-level error",
        storing.invalid_manifest_is_an_error,
    ),
]
CANONICAL: list[Row] = [
    (260, MUST, "Every Skills Runtime MUST include this canonical instruction skill", describing.guide_is_listed),
    (261, MUST, 'name = "skills.protocol.guide"', equals(describing.guide, "manifest.name", "skills.protocol.guide")),
    (262, MUST, 'kind = "instruction"', equals(describing.guide, "manifest.kind", "instruction")),
    (263, MUST, 'namespace = "skills.protocol"', equals(listing.guide_row, "namespace", "skills.protocol")),
    (264, MUST, 'kind = "instruction"', equals(listing.guide_row, "kind", "instruction")),
    (273, EXAMPLE, 'version = "0.1.0"', describing.guide_has_its_first_version),
    (265, EXAMPLE, 'tags = ["guide", "bootstrap"]', equals(describing.guide, "manifest.tags", ["guide", "bootstrap"])),
    (
        266,
        EXAMPLE,
        'description = "Intro to the Skills Protocol for LLMs."',
        has(describing.guide, "manifest.description", "a text"),
    ),
    (
        267,
        EXAMPLE,
        "name: Skills Protocol Guide",
        equals(describing.guide, "skill_md_frontmatter.name", "Skills Protocol Guide"),
    ),
    (
        268,
        EXAMPLE,
        "short_description: How to use the Skills Protocol tools.",
        has(describing.guide, "skill_md_frontmatter.short_description", "a text"),
    ),
    (
        269,
        MUST,
        "Available tools: 1. `list_skills` … 8. `load_skills_protocol_guide`",
        describing.guide_names_every_tool,
    ),
    (270, EXAMPLE, "## Recommended Workflow", describing.guide_has("## Recommended Workflow")),
    (271, EXAMPLE, "## Best Practices", describing.guide_has("## Best Practices")),
    (272, MUST, "canonical instruction skill", running.guide_does_not_run),
]
SANDBOX: list[Row] = [
    (280, MUST, "Separate process or container", sandbox.own_process),
    (281, MUST, "Non-root user", sandbox.is_not_root),
    (282, MUST, "Enforce CPU, memory, and wall-clock time limits — wall clock", running.skill_timeout_ends_the_run),
    (283, MUST, "Enforce CPU, memory, and wall-clock time limits — CPU", running.code_timeout_ends_the_run),
    (284, MUST, "Enforce CPU, memory, and wall-clock time limits — memory", None),
    (285, MUST, "Mount the skill directory as /skills/<name>/ (read-only)", sandbox.skills_are_in_their_folder),
    (286, MUST, "Mount the skill directory as /skills/<name>/ (read-only)", sandbox.skills_are_read_only),
    (287, MUST, "Create /workspace/ as a writable directory", sandbox.workspace_is_writable),
    (
        288,
        MUST,
        "Make blobs available: Either mount as /blobs/<blob_id> files, and/or Expose via helper functions",
        sandbox.blobs_are_available,
    ),
    (289, MUST, "Inject only secrets listed in permissions.secrets for the executing skill", sandbox.has_no_secrets),
    (290, SHOULD, "Optionally restrict outbound network to permissions.network", None),
    (
        291,
        MUST,
        "Import the skill's runtime.entrypoint module and call export(args)",
        running.entrypoint_and_export_are_used,
    ),
    (292, MUST, "Save code as a temporary module, import it, and call entrypoint(args)", running.entrypoint_is_called),
    (293, MUST, "Capture return value as output (small JSON)", running.output_under_4_kb_is_inline),
    (
        294,
        MUST,
        "Capture stdout/stderr to build logs_preview — stderr",
        running.logs_have(running.coded, "a line on stderr"),
    ),
    (
        295,
        MUST,
        "Any blobs created via runtime helper functions become output_blobs",
        running.written_blob_is_an_output_blob,
    ),
    (296, MUST, "Destroy sandbox and all temporary files in /workspace/", sandbox.workspace_is_destroyed),
    (305, MUST, "Runtimes MUST provide a runtime package with at least", sandbox.runtime_package_is_complete),
    (306, MUST, "Append to logs that feed into logs_preview", running.logs("info")),
    (297, MUST, "def read_text(blob_id: str) -> str", running.code_reads_input_blobs),
    (298, MUST, "def write_text(content: str) -> str", running.code_writes("write_text", "'Grüße'", "Grüße")),
    (299, MUST, "def write_json(obj) -> str", running.code_writes("write_json", "{'a': [1, None]}", {"a": [1, None]})),
    (302, MUST, "Call back to create_blob under the hood (or equivalent internal API)", None),
    (303, MUST, "For each execute_skill and run_code call … Create a sandbox", sandbox.skill_runs_are_fresh),
    (304, MUST, "(and the target skill for execute_skill): Mount the skill directory", sandbox.own_folder_is_mounted),
    (300, MUST, "def info(msg: str)", running.logs("info")),
    (301, MUST, "def error(msg: str)", running.logs("error")),
]
CHECKLIST: list[Row] = [
    (320, EXAMPLE, "LLM: upload CSV → create_blob … LLM: execute_skill", running.skill_reads_input_blobs),
    (310, EXAMPLE, "JSON-RPC 2.0 over HTTP at /rpc", envelope.answers_json_rpc),
    (311, EXAMPLE, "Skills stored as directories with skill.toml + SKILL.md", None),
    (312, EXAMPLE, "Blobs stored as files in a blob directory, named by random ids", None),
    (313, SHOULD, "SHOULD: create_skill", offers("create_skill")),
    (314, MUST, 'Python-only skills (runtime.language = "python")', running.executed),
    (315, SHOULD, "No network by default; allowlist from permissions.network if implemented", sandbox.has_no_network),
    (316, SHOULD, "No secrets by default; inject only those named in permissions.secrets", sandbox.has_no_secrets),
    (317, MUST, "Non-root execution", sandbox.is_not_root),
    (318, MUST, "Include skills.protocol.guide", describing.guide_is_listed),
    (321, EXAMPLE, "New process with restricted environment, or Container with resource limits", sandbox.own_process),
    (322, MUST, "Use the filesystem layout described in section 7", sandbox.skills_are_in_their_folder),
    (323, MUST, "you MUST call the `load_skills_protocol_guide` tool before using any other", None),
    (324, SHOULD, "Always use blobs for data larger than a few KB", None),
    (325, SHOULD, "Use deterministic skill discovery (no semantic search in `list_skills`)", listing.searches_nothing),
    (319, SHOULD, "When connecting an LLM …, include this snippet in the system prompt", None),
]

SECTIONS = {
    "list_skills": LIST,
    "describe_skill": DESCRIBE,
    "read_skill_file": READ,
    "execute_skill": EXECUTE,
    "run_code": CODE,
    "Blobs": BLOBS,
    "Bootstrap Instruction Tool": GUIDE,
    "create_skill": CREATE,
    "Canonical Instruction Skill": CANONICAL,
    "Sandbox Execution Model": SANDBOX,
    "Implementation Checklist": CHECKLIST,
}
