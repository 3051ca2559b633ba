"""A real server keeps the published contract: requests of clients that know nothing else."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.conftest import Rpc, manifest, skill_files
from tests.support.mcp_client import Mcp


@pytest.mark.parametrize(
    ("method", "params", "named"),
    [
        ("read_blob", {"blob_id": "blob:x", "mode": "head"}, "sample_head"),
        ("read_blob", {"blob_id": "blob:x", "max_bytes": 0}, "from 1 to 1048576"),
        ("list_skills", {"limit": 0}, "from 1 to 1000"),
        ("list_skills", {"limit": 50.5}, "from 1 to 1000"),
        ("list_skills", {"detail": "full"}, "summary"),
        ("execute_skill", {"name": "a.b", "timeout_ms": 0}, "an integer"),
        ("execute_skill", {"name": "a.b", "args": []}, "an object"),
        ("execute_skill", {}, "a string: Skill name"),
        ("run_code", {"language": "python"}, "Source code to execute"),
        ("run_code", {"language": "js", "code": ""}, "python"),
        ("run_code", {"language": "python", "code": "", "mount_skills": [1]}, "a string"),
        ("run_code", {"language": "python", "code": "", "limits": {"timeout_ms": -1}}, "at most 3600000"),
        ("run_code", {"language": "python", "code": "", "limits": {"memory_mb": "1"}}, "leave 'memory_mb' out"),
        ("create_blob", {"content": "", "kind": "a/b", "encoding": "hex"}, "base64"),
        ("create_skill", {"manifest": {}, "skill_md": "", "files": [{"path": "a"}]}, "Content of the file"),
        ("create_skill", {"manifest": {}, "skill_md": "", "files": [{"path": "a", "content": "", "mode": 1}]}, "path"),
    ],
)
def test_refused_params_return_a_hint_with_the_accepted_values(
    sqlite_rpc: Rpc, method: str, params: dict[str, Any], named: str
) -> None:
    error = sqlite_rpc.error(method, **params)

    assert error["code"] == -32602
    assert named in error["data"]["hint"]


def test_a_refused_value_is_shown_where_it_is_short(sqlite_rpc: Rpc) -> None:
    assert "-5000" in sqlite_rpc.error("list_skills", limit=-5000)["message"]
    assert len(sqlite_rpc.error("list_skills", limit="9" * 100_000)["message"]) < 200


WHOLE: dict[str, dict[str, Any]] = {
    "list_skills": {"limit": 2.0},
    "list_versions": {"name": "text.csv.profile", "limit": 1e2},
    "search_skills": {"query": "csv", "limit": 5.0},
    "run_code": {"language": "python", "code": "def main(args): return 1", "limits": {"timeout_ms": 30_000.0}},
    "execute_skill": {"name": "skills.protocol.guide", "timeout_ms": 30_000.0},
}


@pytest.mark.parametrize("method", WHOLE)
def test_a_float_without_a_fraction_is_an_integer(sqlite_rpc: Rpc, method: str) -> None:
    params = WHOLE[method]
    exact = msgspec.json.decode(msgspec.json.encode(params).replace(b".0", b""))

    answers = [shape(sqlite_rpc.send(method, one)) for one in (params, exact)]
    assert answers[0] == answers[1]


def shape(reply: dict[str, Any]) -> Any:
    """Return what two equal calls have in common: the error, or the members of the result."""
    return reply.get("error") or {name: value for name, value in reply["result"].items() if name in SAME}


SAME = {"skills", "versions", "next_cursor", "status", "output"}


def test_a_float_without_a_fraction_is_an_integer_over_mcp(sqlite_rpc: Rpc) -> None:
    found = Mcp(sqlite_rpc)("tools/call", name="list_skills", arguments={"limit": 1.0})["structuredContent"]

    assert len(found["skills"]) == 1


def test_values_over_the_maximum_are_reduced_to_it(sqlite_rpc: Rpc) -> None:
    blob = sqlite_rpc("create_blob", content="x" * 3000, kind="text/plain")["blob_id"]

    assert sqlite_rpc("list_skills", limit=10**9)["next_cursor"] is None
    assert len(sqlite_rpc("read_blob", blob_id=blob, max_bytes=10**9)["content"]) == 3000


def test_a_timeout_over_the_maximum_is_reduced_with_a_warning(sqlite_rpc: Rpc) -> None:
    code = "def main(args): return 1"
    ran = sqlite_rpc("run_code", language="python", code=code, limits={"timeout_ms": 10**9})

    assert ran["output"] == 1
    assert ran["warnings"] == ["'timeout_ms' is 3600000, the maximum of this server, instead of 1000000000"]
    assert "warnings" not in sqlite_rpc("run_code", language="python", code=code, limits={"timeout_ms": 3_600_000})


def test_an_empty_array_counts_as_no_params(sqlite_rpc: Rpc) -> None:
    def answer(method: str, params: str) -> dict[str, Any]:
        body = f'{{"jsonrpc": "2.0", "id": 1, "method": "{method}", "params": {params}}}'
        answer: dict[str, Any] = sqlite_rpc.http.post(
            "/rpc", content=body, headers={"content-type": "application/json"}
        ).json()
        return answer

    assert "content" in answer("load_skills_protocol_guide", "[]")["result"]
    assert "skills" in answer("list_skills", "[ ]")["result"]
    assert "'name'" in answer("describe_skill", "[]")["error"]["message"]
    assert "positional params are not supported" in answer("list_skills", "[1]")["error"]["message"]


def test_an_unknown_param_is_refused_even_where_it_is_null(sqlite_rpc: Rpc) -> None:
    error = sqlite_rpc.error("list_skills", limits=None)

    assert error["code"] == -32602
    assert "'limit'" in error["data"]["hint"]


def test_a_limit_of_null_is_a_limit_left_out(sqlite_rpc: Rpc) -> None:
    code = "def main(args):\n    return 1\n"

    assert sqlite_rpc("run_code", language="python", code=code, limits={"timeout_ms": None})["output"] == 1
    error = sqlite_rpc.error("run_code", language="python", code=code, limits={"timeout": None})
    assert "'timeout_ms'" in error["data"]["hint"]


def test_unknown_addresses_fail_with_a_hint_to_rpc(sqlite_rpc: Rpc) -> None:
    error = sqlite_rpc.http.get("/nothing").json()["error"]

    assert error["code"] == -32003
    assert "/rpc" in error["data"]["hint"]


def test_an_unknown_param_with_a_name_of_megabytes_is_refused_in_short(sqlite_rpc: Rpc) -> None:
    error = sqlite_rpc.error("list_skills", **{"limit" * 400_000: 1})

    assert error["code"] == -32602
    assert len(error["message"]) < 200


def failed_run(rpc: Rpc, code: str, **params: Any) -> str:
    """Return the error message of a run of code."""
    ran = rpc("run_code", language="python", code=f"{code}\ndef main(args):\n    return work()", **params)
    return str(ran["error"]["message"])


def test_a_blob_that_was_not_passed_names_the_param(sqlite_rpc: Rpc) -> None:
    blob = sqlite_rpc("create_blob", content="x", kind="text/plain")["blob_id"]
    code = f"from runtime import blobs\ndef work(): return blobs.read_text({blob!r})"

    assert "pass its id in input_blobs" in failed_run(sqlite_rpc, code)


def test_json_of_a_blob_has_no_nan(sqlite_rpc: Rpc) -> None:
    code = "from runtime import blobs\ndef work(): return blobs.write_json({'x': [float('nan')]})"

    assert "put None in the place of NaN" in failed_run(sqlite_rpc, code)


def test_an_import_without_skills_names_the_line_to_write(sqlite_rpc: Rpc) -> None:
    code = "from text.csv.profile import main as profile\ndef work(): return profile({})"
    message = failed_run(sqlite_rpc, code, mount_skills=["text.csv.profile"])

    assert "write from skills.text.csv.profile import" in message


def test_create_skill_answers_with_the_warnings_of_check_skill(sqlite_rpc: Rpc, new_name: str) -> None:
    bundle = {
        "manifest": manifest(new_name, colour="red"),
        "skill_md": "# A\n",
        "files": skill_files("def main(a): ..."),
    }
    checked = sqlite_rpc("check_skill", **bundle)

    assert "colour" in checked["warnings"][0]
    assert sqlite_rpc("create_skill", **bundle)["warnings"] == checked["warnings"]
