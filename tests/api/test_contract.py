"""A real server keeps the published contract: requests of clients that know nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conftest import Rpc


@pytest.mark.parametrize(
    ("method", "params", "named"),
    [
        ("read_blob", {"blob_id": "blob:x", "mode": "head"}, "sample_head"),
        ("read_blob", {"blob_id": "blob:x", "max_bytes": 0}, "from 1 to 1048576"),
        ("list_skills", {"limit": 1001}, "from 1 to 1000"),
        ("list_skills", {"detail": "full"}, "summary"),
        ("execute_skill", {"name": "a.b", "timeout_ms": 3_600_001}, "from 1 to 3600000"),
        ("execute_skill", {"name": "a.b", "args": []}, "an object"),
        ("execute_skill", {}, "a string: Skill name"),
        ("run_code", {"language": "python"}, "Source code to execute"),
        ("run_code", {"language": "js", "code": ""}, "python"),
        ("run_code", {"language": "python", "code": "", "mount_skills": [1]}, "a string"),
        ("run_code", {"language": "python", "code": "", "limits": {"timeout_ms": 3_600_001}}, "at most 3600000"),
        ("run_code", {"language": "python", "code": "", "limits": {"memory_mb": "1"}}, "leave 'memory_mb' out"),
        ("create_blob", {"content": "", "kind": "a/b", "encoding": "hex"}, "base64"),
        ("create_skill", {"manifest": {}, "skill_md": "", "files": [{"path": "a"}]}, "Content of the file"),
        ("create_skill", {"manifest": {}, "skill_md": "", "files": [{"path": "a", "content": "", "mode": 1}]}, "path"),
    ],
)
def test_every_refused_param_comes_with_a_hint_that_says_what_it_takes(
    sqlite_rpc: Rpc, method: str, params: dict[str, Any], named: str
) -> None:
    error = sqlite_rpc.error(method, **params)

    assert error["code"] == -32602
    assert named in error["data"]["hint"]


def test_a_refused_value_is_shown_where_it_is_short(sqlite_rpc: Rpc) -> None:
    assert "5000" in sqlite_rpc.error("list_skills", limit=5000)["message"]
    assert len(sqlite_rpc.error("list_skills", limit="9" * 100_000)["message"]) < 200


def test_an_unknown_param_is_refused_even_where_it_is_null(sqlite_rpc: Rpc) -> None:
    error = sqlite_rpc.error("list_skills", limits=None)

    assert error["code"] == -32602
    assert "'limit'" in error["data"]["hint"]


def test_a_limit_of_null_is_a_limit_left_out(sqlite_rpc: Rpc) -> None:
    code = "def main(args):\n    return 1\n"

    assert sqlite_rpc("run_code", language="python", code=code, limits={"timeout_ms": None})["output"] == 1
    error = sqlite_rpc.error("run_code", language="python", code=code, limits={"timeout": None})
    assert "'timeout_ms'" in error["data"]["hint"]


def test_an_address_that_is_not_there_is_not_found(sqlite_rpc: Rpc) -> None:
    error = sqlite_rpc.http.get("/nothing").json()["error"]

    assert error["code"] == -32003
    assert "/rpc" in error["data"]["hint"]


def test_an_unknown_param_with_a_name_of_megabytes_is_refused_in_short(sqlite_rpc: Rpc) -> None:
    error = sqlite_rpc.error("list_skills", **{"limit" * 400_000: 1})

    assert error["code"] == -32602
    assert len(error["message"]) < 200
