"""Files of a workspace over HTTP, on the command line and as tools of a model."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from tests.cli.test_cli import skillery
from tests.conftest import Rpc, Server
from tests.support.mcp_client import Mcp
from tests.support.people import Caller, Who, people_settings
from tests.support.processes import eventually
from tests.workspaces.test_workspaces import create, run

LINKS = """
import os
def main(args):
    os.makedirs("empty/folder"); os.symlink("a.txt", "link")
    open("a.txt", "w").write("one"); os.utime("a.txt", (5, 5)); os.chmod("a.txt", 0o755)
    open("long" + "x" * 200, "w").write("long name")
"""


def test_a_file_is_written_and_read_over_http(server: Server) -> None:
    workspace = create(server.rpc)["id"]
    address = f"{server.url}/v1/workspaces/{workspace}"
    large = bytes(range(256)) * 8192

    made = httpx.put(f"{address}/files/in/ü%20large", content=large)
    script = httpx.put(f"{address}/files/run.sh?executable=true", content=b"#!/bin/sh\n")

    assert (made.status_code, made.json()["size_bytes"], made.json()["files"]) == (200, len(large), 1)
    found = httpx.get(f"{address}/files/in/ü%20large")
    assert (found.content, found.headers["content-length"]) == (large, str(len(large)))
    assert httpx.head(f"{address}/files/in/ü%20large").headers["etag"] == found.headers["etag"]
    look = "import os\ndef main(args): return [os.path.getsize('in/ü large'), os.access('run.sh', os.X_OK)]"
    ran = server.rpc("run_code", language="python", code=look, workspace=workspace)
    assert (ran["output"], ran["workspace"]["before"]) == ([len(large), True], script.json()["snapshot"])
    server.rpc("reset_workspace", workspace=workspace, snapshot=made.json()["snapshot"])
    assert httpx.get(f"{address}/files/run.sh").status_code == 404


def test_a_written_file_replaces_files_and_empty_folders_and_nothing_else(sqlite_server: Server) -> None:
    rpc = sqlite_server.rpc
    workspace = create(rpc)["id"]
    rpc("run_code", language="python", code=LINKS, workspace=workspace)
    address = f"{sqlite_server.url}/v1/workspaces/{workspace}/files"

    for path in ("link", "empty/folder/b"):
        assert httpx.put(f"{address}/{path}", content=b"new").status_code == 200
    for path in ("a.txt/b", "x/%2e%2e/y", "empty", "x%0ay"):
        raw = f"/v1/workspaces/{workspace}/files/{path}".encode()
        refused = httpx.put(httpx.URL(address).copy_with(raw_path=raw), content=b"new")
        assert refused.status_code == 400, (path, refused.text)

    entries = rpc("describe_workspace", workspace=workspace)["entries"]
    assert {one["path"]: one["kind"] for one in entries} == {
        "a.txt": "file",
        "empty/folder/b": "file",
        "link": "file",
        "long" + "x" * 200: "file",
    }
    assert httpx.put(f"{address}/c?mode=1", content=b"").status_code == 400
    assert httpx.put(f"{sqlite_server.url}/v1/workspaces/ws_none/files/a", content=b"").status_code == 404
    assert httpx.delete(f"{address}/c").status_code == 405


def test_all_files_are_a_tar_archive(sqlite_server: Server) -> None:
    workspace = create(sqlite_server.rpc)["id"]
    sqlite_server.rpc("run_code", language="python", code=LINKS, workspace=workspace)

    answer = httpx.get(f"{sqlite_server.url}/v1/workspaces/{workspace}/archive.tar")

    assert answer.headers["content-type"] == "application/x-tar"
    with tarfile.open(fileobj=io.BytesIO(answer.content)) as archive:
        found = {entry.name: entry for entry in archive}
        assert set(found) == {"a.txt", "empty/folder", "link", "long" + "x" * 200}
        assert (found["a.txt"].mtime, found["a.txt"].mode, found["link"].linkname) == (5, 0o755, "a.txt")
        assert found["empty/folder"].isdir()
        content = archive.extractfile("long" + "x" * 200)
        assert content is not None
        assert content.read() == b"long name"


def test_a_file_is_not_written_while_a_run_writes(sqlite_server: Server) -> None:
    rpc = sqlite_server.rpc
    workspace = create(rpc)["id"]
    begun = run(rpc, workspace, write={"a": "1"}, sleep=60, more={"background": True})
    eventually(lambda: rpc("describe_workspace", workspace=workspace)["workspace"]["run_id"])

    busy = httpx.put(f"{sqlite_server.url}/v1/workspaces/{workspace}/files/b", content=b"2")
    rpc("cancel_run", run_id=begun["run_id"])

    assert (busy.status_code, busy.json()["error"]["data"]["type"]) == (503, "workspace_busy")
    assert "retry-after" in busy.headers


def test_files_over_http_count_towards_the_quota_and_belong_to_their_identity(
    start_server: Callable[..., Server], tmp_path: Path
) -> None:
    more = {"SKILLERY_QUOTAS_WORKSPACES": "2", "SKILLERY_QUOTAS_WORKSPACES_MB": "1"}
    server = start_server(env=people_settings(tmp_path / "people", **more))
    owner, other = Caller(server.url, Who("owner")), Caller(server.url, Who("other"))
    address = f"/v1/workspaces/{create(owner)['id']}/files/a"

    assert owner.http.put(address, content=b"x" * 600_000).status_code == 200
    assert owner.http.put(address, content=b"y" * 700_000).status_code == 200
    over = owner.http.put(address, content=b"z" * 1_100_000)
    assert (over.status_code, over.json()["error"]["data"]["quota"]) == (413, "workspace_bytes")
    assert owner.http.get(address).content == b"y" * 700_000
    assert other.http.get(address).status_code == other.http.put(address, content=b"").status_code == 404
    usage = owner("get_usage")
    assert usage["workspaces"] == {"used": 1, "limit": 2}
    assert usage["workspace_bytes"] == {"used": 700_000, "limit": 1 << 20}


def test_the_command_line_keeps_files_in_workspaces(sqlite_server: Server, tmp_path: Path) -> None:
    url = ("--url", sqlite_server.url)
    given, copy = tmp_path / "orders.csv", tmp_path / "copy.csv"
    given.write_text("a,b\n")

    workspace = skillery(
        "workspace", "create", "--name", "orders", "--file", f"{given}:in/orders.csv", *url
    ).out.strip()
    put = skillery("workspace", "put", workspace, f"{given}:in/more.csv", *url)
    fork = skillery("workspace", "fork", workspace, *url).out.strip()
    assert skillery("workspace", "get", fork, "in/more.csv", "-o", str(copy), *url).code == 0
    assert copy.read_text() == "a,b\n"
    files = skillery("workspace", "files", workspace, "in", *url)
    assert [line.split("\t")[:3] for line in files.out.splitlines()] == [
        ["in/more.csv", "file", "4"],
        ["in/orders.csv", "file", "4"],
    ]
    shown = skillery("workspace", "show", workspace, *url)
    assert "name: orders" in shown.out
    assert shown.out.count("sha256:") == 3  # the current one, and two in the list
    first = shown.out.split()[-2]
    assert skillery("workspace", "reset", workspace, first, *url).out.strip() == first != put.out.strip()
    assert workspace in skillery("workspace", "list", *url).out
    assert skillery("workspace", "get", workspace, "-o", str(copy), *url).code == 0
    with tarfile.open(copy) as archive:
        assert archive.getnames() == ["in/orders.csv"]
    assert skillery("workspace", "delete", workspace, *url).out.startswith(f"deleted {workspace} ")
    gone = skillery("workspace", "get", workspace, "in/orders.csv", "-o", str(copy), *url)
    assert gone.code == skillery("workspace", "show", workspace, *url).code != 0
    assert "there is no workspace" in gone.err


@pytest.mark.parametrize("asked", ["", "create_workspace,describe_workspace"])
def test_workspaces_are_tools_of_connections_that_name_them(sqlite_rpc: Rpc, asked: str) -> None:
    mcp = Mcp(sqlite_rpc, tools=asked) if asked else Mcp(sqlite_rpc)
    tools = {tool["name"]: tool for tool in mcp("tools/list")["tools"]}

    assert [name for name in tools if "workspace" in name] == [name for name in asked.split(",") if name]
    for name in ("run_code", "execute_skill"):
        assert ("workspace" in tools[name]["inputSchema"]["properties"]) is bool(asked)
    if asked:
        workspace = mcp.tool("create_workspace")["structuredContent"]["id"]
        mcp.tool("run_code", language="python", code="def main(args): open('a', 'w')", workspace=workspace)
        described = mcp.tool("describe_workspace", workspace=workspace)["structuredContent"]
        assert [one["path"] for one in described["entries"]] == ["a"]
