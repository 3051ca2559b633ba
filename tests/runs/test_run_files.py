"""Input files in the workspace of a run: `files` of execute_skill, run_code and call_tool."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skillery.client.blobs import is_plain, places_below
from skillery.runs.mounts import changes_what_runs
from tests.cli.test_cli import skillery
from tests.conftest import Rpc, Server
from tests.support.mcp_client import Mcp
from tests.support.people import Caller, Who

SHOW = """
import os, pathlib
def main(args):
    found = {str(path): path.read_text() for path in sorted(pathlib.Path().rglob("*")) if path.is_file()}
    pathlib.Path("in/a.txt").write_text("changed")
    os.makedirs("out", exist_ok=True)
    os.rename("in/a.txt", "out/a.txt")
    return found
"""
HANDLER = SHOW.replace("main", "handler")
TOOL = [{"name": "show", "description": "Shows.", "script": "scripts/show.py", "parameters": {}}]
FOUND = {"b.txt": "two", "in/a.txt": "one"}


def blob(rpc: Rpc, content: str) -> str:
    made: dict[str, Any] = rpc("create_blob", content=content, kind="text/plain")
    return str(made["blob_id"])


def two_files(rpc: Rpc) -> list[dict[str, Any]]:
    return [{"path": "in/a.txt", "blob_id": blob(rpc, "one")}, {"path": "b.txt", "blob_id": blob(rpc, "two")}]


def publish(rpc: Rpc, name: str, **more: Any) -> str:
    files = [
        {"path": "scripts/show.py", "content": f"{HANDLER}\nif __name__ == '__main__':\n    print(handler({{}}))"},
        {"path": "tools.json", "content": json.dumps(TOOL)},
    ]
    manifest = {"name": name, "version": "1.0.0", "description": "What it does.", **more}
    rpc("create_skill", manifest=manifest, skill_md=f"# {name}\n", files=files)
    return name


def test_every_kind_of_run_finds_its_input_files(server: Server, new_name: str) -> None:
    rpc, name = server.rpc, publish(server.rpc, new_name)
    files = two_files(rpc)
    ran = rpc("run_code", language="python", code=SHOW, files=files)
    script = rpc("execute_skill", name=name, script="scripts/show.py", files=files)
    tool = rpc("call_tool", name=f"{name}/show", files=files)
    assert (ran["output"], tool["result"]) == (FOUND, FOUND)
    assert script["output"]["stdout"] == f"{FOUND}\n"
    for answer in (ran, script, tool):
        [left] = answer["files"]
        assert (left["path"], rpc("read_blob", blob_id=left["blob_id"])["content"]) == ("a.txt", "changed")
    assert rpc("read_blob", blob_id=files[0]["blob_id"])["content"] == "one"


def test_an_entrypoint_finds_its_files_and_input_blobs_stay(rpc: Rpc, new_name: str) -> None:
    code = "import pathlib\ndef main(args): return [pathlib.Path(one).read_text() for one in args['paths']]"
    files = [{"path": "code/main.py", "content": code}]
    runtime = {"language": "python", "entrypoint": "code/main.py"}
    manifest = {"name": new_name, "version": "1.0.0", "description": "What it does.", "runtime": runtime}
    rpc("create_skill", manifest=manifest, skill_md="# It\n", files=files)
    one = blob(rpc, "one")
    given_files = [{"path": "a/b", "blob_id": one}, {"path": "c", "blob_id": one, "executable": True}]
    args = {"paths": ["a/b", "/workspace/c", f"/blobs/{one}"]}
    answer = rpc("execute_skill", name=new_name, args=args, files=given_files, input_blobs=[one])
    assert answer["output"] == ["one"] * 3


@pytest.mark.parametrize(
    ("paths", "kind", "words"),
    [
        (["../a"], "invalid_path", "contains a '.' or '..' segment"),
        (["/etc/a"], "invalid_path", "is absolute"),
        (["a\\b"], "invalid_path", "contains a backslash"),
        (["a", "A"], "invalid_path", "are the same path if case"),
        (["a", "a/b"], "invalid_path", "is a file and also the folder"),
        (["out"], "invalid_path", "is the folder whose files a run keeps"),
        (["x/" * 8 + "y"], "invalid_path", "has 9 segments"),
        ([f"{number}" for number in range(1001)], "invalid_params", "1001 files, at most 1000"),
    ],
)
def test_paths_keep_the_rules_of_bundles(sqlite_rpc: Rpc, paths: list[str], kind: str, words: str) -> None:
    files = [{"path": path, "blob_id": "blob:x"} for path in paths]
    error = sqlite_rpc.error("run_code", language="python", code="def main(args): 1", files=files)
    assert (error["code"], error["data"]["type"]) == (-32602, kind)
    assert words in error["message"]


def test_run_code_rejects_missing_and_foreign_blobs_alike(org: Server) -> None:
    owner, other = Caller(org.url, Who("owner", "read run")), Caller(org.url, Who("other", "read run"))
    for blob_id in (blob(owner, "mine"), "blob:none"):
        files = [{"path": "a", "blob_id": blob_id}]
        error = other.error("run_code", language="python", code="def main(args): 1", files=files)
        assert (error["code"], error["data"]["type"], error["data"]["blob_id"]) == (-32003, "blob_not_found", blob_id)


@pytest.mark.full
def test_files_that_do_not_fit_are_refused_before_anything_runs(sqlite_server: Server) -> None:
    rpc = sqlite_server.rpc
    large = rpc.http.post("/blobs", content=bytes(3 << 20), headers={"content-type": "application/x"}).json()["blob_id"]
    call = {"language": "python", "code": "def main(args): return 1", "limits": {"disk_mb": 2}}
    error = rpc.error("run_code", **call, files=[{"path": "large", "blob_id": large}])
    assert (error["code"], error["data"]["type"]) == (-32005, "input_files_too_large")
    assert (error["data"]["size_bytes"], error["data"]["limit"]) == (3 << 20, 2 << 20)
    small = [{"path": f"{number}", "blob_id": blob(rpc, "x")} for number in range(512)]
    assert rpc("run_code", **call, files=small)["output"] == 1
    error = rpc.error("run_code", **call, files=[*small, {"path": "one-more", "blob_id": small[0]["blob_id"]}])
    assert error["data"]["type"] == "input_files_too_large"


def test_skill_with_permissions_rejects_input_files_that_change_its_code(sqlite_rpc: Rpc, new_name: str) -> None:
    name = publish(sqlite_rpc, new_name, permissions={"network": ["https://example.com"]})
    one = blob(sqlite_rpc, "one")
    for path in ("json.py", ".curlrc", "in/.git/config", "node_modules/a/index.js"):
        error = sqlite_rpc.error("call_tool", name=f"{name}/show", files=[{"path": path, "blob_id": one}])
        assert (error["code"], error["data"]["type"]) == (-32602, "invalid_path")
    allowed = [{"path": "in/a.txt", "blob_id": one}]
    assert sqlite_rpc("call_tool", name=f"{name}/show", files=allowed)["result"] == {"in/a.txt": "one"}


@given(st.text(min_size=1, max_size=20))
def test_code_files_are_recognised_regardless_of_case(name: str) -> None:
    assert changes_what_runs(f"{name}.Py")
    assert changes_what_runs(f"a/.{name}")
    assert changes_what_runs("A/NODE_MODULES/" + name)


@given(st.lists(st.text(alphabet="ab./\\\n-", max_size=12), max_size=8))
def test_no_path_of_a_run_leads_out_of_the_folder(paths: list[str]) -> None:
    folder = Path("/given/folder")
    plain = [path for path in paths if is_plain(path)]
    places = places_below(folder, plain)
    assert len(set(places)) == len(plain)
    assert all(place.is_relative_to(folder) and ".." not in place.parts for place in places)
    for path in set(paths) - set(plain):
        with pytest.raises(ValueError, match="leads outside the folder"):
            places_below(folder, [path])


@pytest.mark.full
def test_the_command_line_brings_files_and_writes_files(sqlite_server: Server, new_name: str, tmp_path: Path) -> None:
    name, at = publish(sqlite_server.rpc, new_name), ("--url", sqlite_server.url)
    (tmp_path / "a.txt").write_text("one")
    (tmp_path / "bb:c.txt").write_text("two")
    (tmp_path / "code.py").write_text(SHOW)
    given_files = ("--file", f"{tmp_path}/a.txt:in/a.txt", "--file", f"{tmp_path}/bb:c.txt")
    commands = {
        "script": ("run", name, "--script", "scripts/show.py"),
        "code": ("code", f"{tmp_path}/code.py"),
        "tool": ("tool", "call", f"{name}/show"),
    }
    for kind, command in commands.items():
        ended = skillery(*command, *given_files, "--out", f"{tmp_path}/{kind}", *at)
        assert (ended.code, ended.err if kind != "tool" else "") == (0, "")
        assert "bb:c.txt" in ended.out
        assert (tmp_path / kind / "a.txt").read_text() == "changed"
    uploaded = blob(sqlite_server.rpc, "one")
    ended = skillery(*commands["script"], "--file", f"{uploaded}:in/a.txt", *at)
    assert (ended.code, "in/a.txt" in ended.out) == (0, True)
    for text, words in (("none.txt", "does not exist"), (str(tmp_path), "is a folder"), ("blob:x", "blob:ID:PATH")):
        refused = skillery(*commands["script"], "--file", text, *at)
        assert (refused.code, words in refused.err) == (2, True), refused.err


def test_mcp_takes_files(sqlite_rpc: Rpc, new_name: str) -> None:
    name, files = publish(sqlite_rpc, new_name), two_files(sqlite_rpc)
    ran = Mcp(sqlite_rpc).tool("run_code", language="python", code=SHOW, files=files)["structuredContent"]
    assert (ran["output"], [file["path"] for file in ran["files"]]) == (FOUND, ["a.txt"])
    mcp = Mcp(sqlite_rpc, tools=name)
    called = mcp("tools/call", name="show", arguments={}, _meta={"skillery/files": files})["structuredContent"]
    assert (called["result"], [file["path"] for file in called["files"]]) == (FOUND, ["a.txt"])
    wrong = mcp("tools/call", name="show", arguments={}, _meta={"skillery/files": [{"path": "../a"}]})
    assert wrong["structuredContent"]["error"]["code"] == -32602
