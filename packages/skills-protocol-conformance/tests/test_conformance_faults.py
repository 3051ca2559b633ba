"""The proof of the suite: a server that conforms fails no statement, and each seeded fault fails its statements."""

from __future__ import annotations

import pytest

from skills_protocol_conformance.connection import Connection
from skills_protocol_conformance.documents import STATEMENTS
from skills_protocol_conformance.judging import Outcome, Result, Run, statements_of
from skills_protocol_conformance.session import Session

pytest_plugins = ["stand_in"]
BY_ID = {statement.id: statement for statement in STATEMENTS}
# The statements that each fault of tests/stand_in.py fails.
MESSAGES = {
    "no_jsonrpc_member": "SP-1",
    "id_not_echoed": "SP-101",
    "id_as_string": "SP-102",
    "result_with_error": "SP-103",
    "error_with_result": "SP-104",
    "error_without_message": "SP-106",
    "parse_code": "SP-107",
    "notification_answered": "SP-109",
    "no_params_refused": "SP-110",
    "unknown_method_code": "SP-113",
    "params_code": "SP-114",
    "params_unchecked": "SP-32",
    "choices_unchecked": "SP-33 TI-24 SP-65",
    "kind_is_optional": "SP-62",
    "request_code": "SP-108",
    "http_status": "SP-111",
    "content_type": "SP-112",
    "failed_for_error": "EM-103 SP-115 SP-234",
}
METHODS = {
    "no_list_skills": "SP-20 TI-4",
    "no_describe_skill": "SP-21",
    "no_read_skill_file": "SP-22",
    "no_execute_skill": "SP-23",
    "no_run_code": "SP-24",
    "no_create_blob": "SP-25",
    "no_read_blob": "SP-26 SP-135",
    "no_load_skills_protocol_guide": "SP-27",
    "no_create_skill": "SP-313",
}
LISTS = {
    "unsorted": "SP-150",
    "insertion_order": "SP-151",
    "namespace_ignored": "SP-31",
    "semantic_search": "SP-152",
    "row_without_kind": "SP-147 SP-148",
    "row_without_version": "SP-144",
    "row_without_description": "SP-145",
    "row_without_namespace": "SP-146",
    "kind_wrong": "SP-147 TI-38",
    "guide_not_listed": "SP-260 SP-264",
    "default_limit": "SP-36",
    "limit_exceeded": "SP-37",
    "lost_row": "SP-153 SP-38",
    "repeated_row": "SP-153 SP-38",
    "cursor_ignored": "SP-38",
    "latest_is_first": "TI-39",
}
SKILLS = {
    "latest_is_first": "SP-41 SP-47",
    "version_ignored": "SP-2 SP-47",
    "default_detail": "SP-43",
    "manifest_cut": "SP-88 SP-91",
    "frontmatter_unparsed": "SP-95",
    "frontmatter_as_text": "SP-166",
    "guide_missing": "SP-242 SP-261",
    "skill_not_wrapped": "SP-161",
    "escape_served": "SP-173",
    "file_text_field": "SP-172",
    "ascii_only": "SP-171",
    "guide_wrong": "SP-242 SP-269",
    "instruction_runs": "CC-10 SP-272",
}
RUNS = {
    "export_ignored": "SP-13",
    "args_lost": "SP-202",
    "entrypoint_ignored": "SP-201",
    "run_id_repeated": "EM-81",
    "logs_lost": "SP-207",
    "default_entrypoint": "SP-57",
    "run_without_logs_preview": "EM-87",
    "run_without_summary": "SP-206",
    "run_without_run_id": "SP-205",
    "error_on_success": "EM-88",
}
OUTPUTS = {
    "log_not_cut": "SP-192",
    "output_as_text": "EM-85",
    "large_output_inline": "SP-191",
    "status_other": "SP-122 EM-80",
    "output_blobs_extra": "EM-86",
}
FAILURES = {
    "error_type_wrong": "SP-120",
    "error_message_empty": "EM-106",
    "error_for_failed_run": "SP-119 SP-126",
    "completed_for_failed_run": "SP-119 SP-126",
    "timeout_ignored": "SP-193",
    "error_without_message": "SP-106",
    "latest_is_first": "SP-50",
    "version_ignored": "SP-180",
}
SANDBOXES = {
    "workspace_left": "SP-296",
    "sandbox_reused": "SP-208 SP-303",
    "secrets_leaked": "SP-289",
    "root": "SP-281",
    "system_writable": "EM-129",
    "network": "SP-315",
}
MOUNTS = {
    "skills_writable": "SP-286",
    "mount_missing": "SP-203",
    "skill_folder_missing": "SP-304",
}
BLOBS_OF_RUNS = {
    "inputs_lost": "SP-182",
    "output_blobs_lost": "SP-295",
    "no_read_text": "SP-210 SP-297",
    "no_write_text": "SP-210 SP-298",
    "no_write_json": "SP-210 SP-299",
    "json_as_repr": "SP-299",
    "log_error_lost": "SP-301",
}
BLOBS = {
    "blob_id_form": "SP-9",
    "blob_kind_lost": "SP-221",
    "blob_without_kind": "SP-228",
    "size_in_characters": "SP-222",
    "size_as_text": "TI-117",
    "default_mode": "SP-67",
    "default_max_bytes": "SP-67",
    "max_bytes_ignored": "SP-68",
    "tail_is_head": "SP-230",
    "split_character": "SP-229",
    "never_truncated": "SP-226",
    "always_truncated": "SP-227",
}
PUBLISHING = {
    "manifest_unchecked": "SP-256",
    "create_escape_accepted": "SP-253",
    "files_lost": "SP-251",
    "not_persisted": "SP-250 SP-254",
    "version_changed": "SP-252",
    "tools_unchecked": "ST-29 ST-31",
}
TOOLS = {
    "defined_tool_wrong": "ST-76",
    "tool_not_removed": "ST-77",
    "standard_tool_removed": "ST-78",
    "persistent_without_tools": "ST-85",
    "tool_lost": "ST-9",
    "tool_without_parameters": "ST-25",
    "no_work_dir": "ST-41",
    "required_unchecked": "ST-28",
    "stub_empty": "ST-24",
    "tool_error_raised": "ST-47",
    "tool_result_as_text": "ST-44",
}
GROUPS = {
    "messages": MESSAGES,
    "methods": METHODS,
    "lists": LISTS,
    "skills": SKILLS,
    "runs": RUNS,
    "outputs": OUTPUTS,
    "failures": FAILURES,
    "sandboxes": SANDBOXES,
    "mounts": MOUNTS,
    "blobs_of_runs": BLOBS_OF_RUNS,
    "blobs": BLOBS,
    "publishing": PUBLISHING,
    "tools": TOOLS,
}


def check(url: str, ids: set[str], suffix: str | None = None) -> list[Outcome]:
    """Return the outcomes of these statements."""
    connection = Connection(url, None, 120)
    try:
        return Run(Session(connection, suffix)).outcomes([BY_ID[name] for name in sorted(ids)])
    finally:
        connection.close()


def not_with(result: Result, outcomes: list[Outcome]) -> dict[str, str]:
    """Return the other outcomes by statement, with their verdicts."""
    return {o.statement.id: f"{o.result}: {o.verdict} {o.answer}" for o in outcomes if o.result is not result}


@pytest.mark.parametrize("group", GROUPS)
def test_each_seeded_fault_is_reported(group: str, stand_in: str) -> None:
    suffix = group if group == "publishing" else None
    missed = {}
    for fault, ids in GROUPS[group].items():
        if wrong := not_with(Result.FAILED, check(f"{stand_in}/{fault}", set(ids.split()), suffix and suffix + fault)):
            missed[fault] = wrong
    concerned = {name for ids in GROUPS[group].values() for name in ids.split()}

    assert missed == {}
    assert not_with(Result.PASSED, check(stand_in, concerned, suffix)) == {}


@pytest.mark.full
def test_a_conforming_server_fails_no_statement(stand_in: str) -> None:
    statements = statements_of("skill-tools")
    outcomes = check(stand_in, {statement.id for statement in statements}, "whole")

    assert {o.statement.id: o.verdict for o in outcomes if o.result is Result.FAILED} == {}
    assert {o.statement.id for o in outcomes if o.result is Result.SKIPPED} == NOT_OFFERED


@pytest.mark.full
def test_further_fields_do_not_matter(stand_in: str) -> None:
    statements = statements_of("create-skill")
    outcomes = check(f"{stand_in}/extra_fields", {statement.id for statement in statements}, "more")

    assert {o.statement.id: o.verdict for o in outcomes if o.result is Result.FAILED} == {}


NOT_OFFERED = {"SP-165", "ST-48", "ST-51", "ST-60", "ST-61", "ST-62"}


def test_every_statement_fails_somewhere(stand_in: str) -> None:
    """A statement without a seeded fault fails on a server with empty results, or on one without methods."""
    proven = {BY_ID[name].check for ids in GROUPS.values() for row in ids.values() for name in row.split()}
    left = {statement.id for statement in STATEMENTS if statement.check not in {None, *proven}}
    for fault in ("empty_results", "no_method"):
        left -= {o.statement.id for o in check(f"{stand_in}/{fault}", left, "broken") if o.result is Result.FAILED}

    assert {name: BY_ID[name].title for name in left} == {}


def test_at_least_ninety_faults_are_seeded() -> None:
    assert len({fault for faults in GROUPS.values() for fault in faults}) >= 90


def test_statements_are_numbered_and_quoted() -> None:
    testable = [statement for statement in STATEMENTS if statement.check is not None]

    assert len(testable) >= 200
    assert len(BY_ID) == len(STATEMENTS)
    assert [s.id for s in STATEMENTS if len(s.quotation.split()) > 20 or not s.title] == []
