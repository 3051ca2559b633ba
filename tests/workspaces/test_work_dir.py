"""`--work-dir`: a local folder as the working directory of tool calls, by command line and by MCP over stdio."""

from __future__ import annotations

import asyncio
import fcntl
import io
import json
import os
import signal
import subprocess
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from skillery.cli.connection import client_of
from skillery.cli.mcp_bridge import McpBridge
from skillery.cli.work_dir import WorkDir
from skillery.client import ConnectionFailed
from tests.api.test_mcp import stdio
from tests.cli.test_cli import Ended, skillery
from tests.conftest import Rpc, Server, clean_environment
from tests.runs.test_skill_tools import bundle, tool
from tests.support.mcp_client import MODERN
from tests.support.prefork import FORKED
from tests.support.processes import eventually, eventually_async

EDIT = """
import os, pathlib, time
def handler(args):
    os.chdir(args["__workDir"])
    before = {str(path): path.read_text() for path in sorted(pathlib.Path().rglob("*")) if path.is_file()}
    for path, text in args.get("write", {}).items():
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        pathlib.Path(path).write_text(text)
    for path in args.get("remove", []): os.unlink(path)
    for path in args.get("executable", []): os.chmod(path, 0o755)
    for path, target in args.get("link", {}).items(): os.symlink(target, path)
    for path in args.get("pipe", []): os.mkfifo(path)
    if args.get("wait"):
        print("waiting", flush=True)
        while not os.path.exists("/nothing"): time.sleep(0.05)
    if args.get("fail"): raise ValueError("no luck")
    return before
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "project"
    (made / "src").mkdir(parents=True)
    (made / "a.txt").write_text("a")
    (made / "src/b.txt").write_text("b")
    (made / "src/b.txt").chmod(0o640)
    return made


def offer(rpc: Rpc, name: str, **more: Any) -> str:
    """Publish a skill with the tool `edit`, and return the name."""
    params = bundle(name, [tool("edit", "scripts/edit.py")], edit__py=EDIT)
    params["manifest"].update(more)
    rpc("create_skill", **params)
    return name


def call(server: Server, skill: str, folder: Path, **args: Any) -> Ended:
    given = ("--args-json", json.dumps(args), "--work-dir", str(folder), "--url", server.url, "--json")
    return skillery("tool", "call", f"{skill}/edit", *given)


def contents(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def reasons(report: dict[str, Any], key: str) -> dict[str, str]:
    return {one["path"]: one["reason"] for one in report[key]}


def workspaces(server: Server, folder: Path) -> list[dict[str, Any]]:
    listed: list[dict[str, Any]] = server.rpc("list_workspaces", limit=1000)["workspaces"]
    return [one for one in listed if one["name"].startswith(f"--work-dir {folder.name} ")]


@pytest.mark.smoke
def test_a_tool_changes_creates_and_deletes_files_of_the_folder(
    sqlite_server: Server, new_name: str, folder: Path
) -> None:
    skill = offer(sqlite_server.rpc, new_name)
    write = {"src/b.txt": "B", "new/deep/c.txt": "c"}

    ended = call(sqlite_server, skill, folder, write=write, remove=["a.txt"], executable=["new/deep/c.txt"])

    assert ended.code == 0, ended.err
    assert ended.json["result"] == {"a.txt": "a", "src/b.txt": "b"}
    report = ended.json["work_dir"]
    assert sorted(report["changed"]) == ["new/deep/c.txt", "src/b.txt"]
    assert (report["deleted"], report["not_changed"], report["left_out"]) == (["a.txt"], [], [])
    assert contents(folder) == write
    assert (folder / "src/b.txt").stat().st_mode & 0o777 == 0o640
    assert os.access(folder / "new/deep/c.txt", os.X_OK)
    assert names(folder) == ["new", "src"]


def test_a_second_call_sends_only_changed_files_and_forgets_deleted_ones(
    sqlite_server: Server, new_name: str, folder: Path
) -> None:
    folder = folder.rename(folder.with_name(new_name))
    skill = offer(sqlite_server.rpc, new_name)
    assert call(sqlite_server, skill, folder, write={"made": "m"}).code == 0
    [workspace] = workspaces(sqlite_server, folder)

    def runs() -> list[str]:
        return [run["method"] for run in sqlite_server.rpc("list_runs", limit=3)["runs"]]

    assert call(sqlite_server, skill, folder).json["result"] == {"a.txt": "a", "made": "m", "src/b.txt": "b"}
    assert runs() == ["call_tool", "call_tool", "run_code"]  # the second call has sent nothing
    (folder / "a.txt").unlink()
    (folder / "src/b.txt").unlink()
    (folder / "src").rmdir()
    (folder / "src").write_text("a file now")
    assert call(sqlite_server, skill, folder).json["result"] == {"made": "m", "src": "a file now"}
    assert [one["id"] for one in workspaces(sqlite_server, folder)] == [workspace["id"]]


def test_hidden_large_and_special_files_are_left_out_by_name(
    sqlite_server: Server, new_name: str, folder: Path, tmp_path: Path
) -> None:
    skill = offer(sqlite_server.rpc, new_name)
    for path in (".git/config", "src/.env", "node_modules/x/y.js", "src/__pycache__/b.pyc"):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text("secret")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/c.txt").write_text("secret")
    (folder / "link").symlink_to("../outside")
    (folder / "file-link").symlink_to("../outside/c.txt")
    os.mkfifo(folder / "pipe")
    (folder / os.fsdecode(b"odd-\xff")).write_text("x")
    with (folder / "large").open("wb") as large:
        large.truncate(65 << 20)

    ended = call(sqlite_server, skill, folder, write={"large": "small", "link/c.txt": "escaped", "pipe": "x"})

    assert ended.code == 1
    assert ended.json["result"] == {"a.txt": "a", "src/b.txt": "b"}
    report = ended.json["work_dir"]
    left_out = {".git", "src/.env", "node_modules", "src/__pycache__", "link", "file-link", "pipe", "odd-?", "large"}
    assert set(reasons(report, "left_out")) == left_out
    assert set(reasons(report, "not_changed")) == {"large", "link/c.txt", "pipe"}
    assert (report["changed"], report["deleted"]) == ([], [])
    assert (folder / "large").stat().st_size == 65 << 20
    assert (tmp_path / "outside/c.txt").read_text() == "secret"
    printed = skillery("tool", "call", f"{skill}/edit", "--work-dir", str(folder), "--url", sqlite_server.url)
    assert "left out: .git: begins with a dot" in printed.err
    assert "left out: large: has more than 64 MiB" in printed.err


def test_tool_cannot_write_hidden_ignored_or_linked_files(sqlite_server: Server, new_name: str, folder: Path) -> None:
    skill = offer(sqlite_server.rpc, new_name)
    before = contents(folder)

    ended = call(
        sqlite_server,
        skill,
        folder,
        write={".git/hooks/post-checkout": "evil", "src/.envrc": "evil", "src/node_modules/x.js": "evil"},
        remove=["a.txt"],
        link={"out": "/etc/passwd", "a.txt": "/etc/passwd"},
        pipe=["pipe"],
    )

    assert ended.code == 1
    refused = reasons(ended.json["work_dir"], "not_changed")
    assert set(refused) == {".git/hooks/post-checkout", "src/.envrc", "src/node_modules/x.js", "out", "a.txt"}
    assert refused["out"] == refused["a.txt"] == "is a link"
    assert contents(folder) == before
    assert names(folder) == ["a.txt", "src"]


async def test_files_that_changed_during_the_call_are_reported_and_kept(
    sqlite_server: Server, new_name: str, folder: Path, tmp_path: Path
) -> None:
    skill = offer(sqlite_server.rpc, new_name)
    for name in ("c.txt", "d.txt", "e.txt", "f.txt"):
        (folder / name).write_text(name)
    write = {"a.txt": "tool", "c.txt": "same", "new.txt": "tool", "src/b.txt": "tool", "into/x.txt": "tool"}
    (tmp_path / "elsewhere").mkdir()

    async with client_of(sqlite_server.url, None) as client, WorkDir(folder).mapped(client) as mapped:
        args = {"write": write, "remove": ["d.txt", "e.txt"], "executable": ["f.txt"]}
        answer = await client.call_tool("edit", skill=skill, args=args, workspace=mapped.workspace)
        (folder / "a.txt").write_text("user")
        (folder / "c.txt").write_text("same")  # both made the same change
        (folder / "d.txt").write_text("user")
        (folder / "e.txt").unlink()
        (folder / "new.txt").write_text("user")
        (folder / "src/b.txt").unlink()
        (folder / "into").symlink_to(tmp_path / "elsewhere")
        await mapped.bring_back(answer.get("workspace"))

    changed_here = dict.fromkeys(("a.txt", "d.txt", "src/b.txt"), "changed here during the call")
    refused = reasons(mapped.report, "not_changed")
    assert refused.pop("into/x.txt").startswith("cannot be changed: ")
    assert refused == {**changed_here, "new.txt": "exists here and was not sent"}
    assert (mapped.report["changed"], mapped.report["deleted"]) == (["f.txt"], [])
    assert contents(folder) == {"a.txt": "user", "c.txt": "same", "d.txt": "user", "new.txt": "user", "f.txt": "f.txt"}
    assert os.access(folder / "f.txt", os.X_OK)
    assert not any((tmp_path / "elsewhere").iterdir())


def test_nothing_comes_back_from_a_failed_call(sqlite_server: Server, new_name: str, folder: Path) -> None:
    skill = offer(sqlite_server.rpc, new_name)
    before = contents(folder)

    failed = call(sqlite_server, skill, folder, write={"a.txt": "half", "x": "half"}, fail=True)

    assert (failed.code, failed.json["is_error"], contents(folder)) == (1, True, before)
    assert failed.json["work_dir"]["changed"] == []
    assert call(sqlite_server, skill, folder).json["result"] == before  # the next call starts with the folder


def test_files_that_a_workspace_cannot_hold_are_not_deleted(sqlite_server: Server, new_name: str, folder: Path) -> None:
    skill = offer(sqlite_server.rpc, new_name)

    ended = call(sqlite_server, skill, folder, remove=["a.txt"], pipe=["a.txt"], write={"src/b.txt": "B"})

    assert ended.code == 1
    assert "a workspace cannot contain" in reasons(ended.json["work_dir"], "not_changed")["a.txt"]
    assert contents(folder) == {"a.txt": "a", "src/b.txt": "B"}


@pytest.mark.parametrize("accepts", [False, True])
def test_a_tool_with_permissions_needs_runtime_workspace(
    sqlite_server: Server, new_name: str, folder: Path, accepts: bool
) -> None:
    runtime = {"language": "python", "entrypoint": "scripts/edit.py", "export": "handler", "workspace": accepts}
    permissions = {"network": ["https://example.com"]}
    skill = offer(sqlite_server.rpc, new_name, permissions=permissions, runtime=runtime)

    ended = call(sqlite_server, skill, folder, write={"a.txt": "A"})

    assert (folder / "a.txt").read_text() == ("A" if accepts else "a")
    if not accepts:
        assert (ended.code, ended.json["error"]["data"]["type"]) == (3, "workspace_not_accepted")


def test_wrong_folders_are_refused(sqlite_server: Server, new_name: str, folder: Path) -> None:
    skill = offer(sqlite_server.rpc, new_name)
    where = ("tool", "call", f"{skill}/edit", "--url", sqlite_server.url, "--work-dir")
    assert skillery(*where, str(folder / "none")).code == 2
    assert skillery(*where, str(folder), "--workspace", "ws_x").code == 2
    descriptor = os.open(folder, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    busy = skillery(*where, str(folder))
    os.close(descriptor)
    assert (busy.code, "another command uses" in busy.err) == (4, True)
    for number in range(5):
        with (folder / f"large-{number}").open("wb") as large:
            large.truncate(60 << 20)
    full = skillery(*where, str(folder))
    assert (full.code, "choose a smaller folder" in full.err) == (4, True)


# -- interrupted -----------------------------------------------------------------------------------------------------


def waiting(server: Server, skill: str, folder: Path, *command: str) -> tuple[subprocess.Popen[bytes], str]:
    """Start a call whose tool changes files and then waits. Return its process and the id of its run."""
    args = json.dumps({"write": {"a.txt": "half", "x": "half"}, "wait": True})
    line = [FORKED, "tool", "call", f"{skill}/edit", "--args-json", args, "--work-dir", str(folder)]
    process = subprocess.Popen([*line, "--url", server.url], stderr=subprocess.PIPE, env=clean_environment())
    return process, eventually(lambda: started_run(server, skill), of=process)


def started_run(server: Server, skill: str) -> str:
    runs = server.rpc("list_runs", skill=skill, status="started")["runs"]
    return runs[0]["run_id"] if runs else ""


def test_ctrl_c_changes_nothing_in_the_folder(sqlite_server: Server, new_name: str, folder: Path) -> None:
    before = contents(folder)
    process, run = waiting(sqlite_server, offer(sqlite_server.rpc, new_name), folder)

    process.send_signal(signal.SIGINT)
    process.communicate()

    assert (process.returncode, contents(folder), names(folder)) == (130, before, ["a.txt", "src"])
    assert sqlite_server.rpc("get_run", run_id=run)["error"]["type"] == "Cancelled"


@pytest.mark.full
def test_a_server_that_dies_changes_nothing_in_the_folder(
    start_server: Callable[..., Server], new_name: str, folder: Path
) -> None:
    before, server = contents(folder), start_server()
    process, _ = waiting(server, offer(server.rpc, new_name), folder)

    server.stop(signal.SIGKILL)
    process.communicate()

    assert (process.returncode, contents(folder), names(folder)) == (4, before, ["a.txt", "src"])


async def test_a_server_that_dies_while_files_come_back_changes_nothing(
    start_server: Callable[..., Server], new_name: str, folder: Path
) -> None:
    before, server = contents(folder), start_server()
    skill = offer(server.rpc, new_name)

    async with client_of(server.url, None) as client, WorkDir(folder).mapped(client) as mapped:
        args = {"write": {"a.txt": "half", "x": "half"}}
        answer = await client.call_tool("edit", skill=skill, args=args, workspace=mapped.workspace)
        server.stop(signal.SIGKILL)
        with pytest.raises(ConnectionFailed):
            await mapped.bring_back(answer.get("workspace"))

    assert (contents(folder), names(folder)) == (before, ["a.txt", "src"])


# -- MCP -------------------------------------------------------------------------------------------------------------


@pytest.mark.full
@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_tools_of_an_mcp_client_work_in_the_folder(
    sqlite_server: Server, new_name: str, folder: Path, mode: Any
) -> None:
    from mcp.client import Client

    skill = offer(sqlite_server.rpc, new_name)
    (folder / ".env").write_text("KEY=1")
    flags = ("--url", sqlite_server.url, "--tools", skill, "--work-dir", str(folder))

    async with Client(stdio(*flags), mode=mode) as client:
        listed = await client.call_tool("list_skills", {})
        edited = await client.call_tool("edit", {"write": {"a.txt": "A"}, "remove": ["src/b.txt"]})
        failed = await client.call_tool("edit", {"write": {"a.txt": "half"}, "fail": True})

    assert len(listed.content) == 1
    assert json.loads(edited.content[0].text) == {"a.txt": "a", "src/b.txt": "b"}  # type: ignore[union-attr]
    said = edited.content[1].text  # type: ignore[union-attr]
    assert f"changed in {folder}: a.txt" in said
    assert f"deleted in {folder}: src/b.txt" in said
    assert "left out: .env: begins with a dot" in said
    assert edited.structured_content is not None
    assert edited.structured_content["work_dir"]["changed"] == ["a.txt"]
    assert failed.is_error is True
    assert contents(folder) == {".env": "KEY=1", "a.txt": "A"}


async def test_a_cancelled_call_of_an_mcp_client_changes_nothing(
    sqlite_server: Server, new_name: str, folder: Path
) -> None:
    """The second call is answered only after the first one has released the folder. No call becomes a task."""
    skill, before, said = offer(sqlite_server.rpc, new_name), contents(folder), io.BytesIO()
    capabilities: dict[str, Any] = {"extensions": {"io.modelcontextprotocol/tasks": {}}}
    prefix = "io.modelcontextprotocol"
    meta = {f"{prefix}/protocolVersion": MODERN, f"{prefix}/clientCapabilities": capabilities}

    def line(number: int, method: str, **params: Any) -> bytes:
        message = {"jsonrpc": "2.0", "id": number, "method": method, "params": {**params, "_meta": meta}}
        return json.dumps(message).encode() + b"\n"

    lines, writer = os.pipe()
    with os.fdopen(lines, "rb") as source:
        async with client_of(sqlite_server.url, None) as client:
            bridge = McpBridge(lambda: nullcontext(client), [skill], source, said, work_dir=folder)
            running = asyncio.create_task(bridge.run())
            arguments = {"write": {"a.txt": "half"}, "wait": True}
            os.write(writer, line(1, "tools/call", name="edit", arguments=arguments))
            await eventually_async(lambda: started_run(sqlite_server, skill))
            os.write(writer, b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}\n')
            os.write(writer, line(2, "tools/call", name="edit", arguments={"write": {"new": "n"}}))
            os.close(writer)
            await running

    [answer] = map(json.loads, said.getvalue().splitlines())
    assert (answer["id"], answer["result"]["structuredContent"]["result"]) == (2, before)
    assert contents(folder) == {**before, "new": "n"}
