"""Files of a run below /workspace/out: in the response, in the record, on the command line and as downloads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.test_cli import skillery
from tests.conftest import Rpc, Server
from tests.runs.test_languages import with_node
from tests.support.mcp_client import Mcp
from tests.support.processes import eventually

LEAVES = """
import os
def {function}(args):
    os.makedirs("out/deep")
    open("out/a.csv", "w").write("a,b")
    open("out/deep/b\\nü.json", "w").write("{{}}")
    return {end}
"""
SHOWN = [("a.csv", "text/csv", 3), ("deep/b\\nü.json", "application/json", 2)]


def leaves(end: str = "1", function: str = "main") -> str:
    return LEAVES.format(end=end, function=function)


def run(rpc: Rpc, code: str) -> dict[str, Any]:
    answer: dict[str, Any] = rpc("run_code", language="python", code=code, entrypoint="main")
    return answer


def named(answer: dict[str, Any]) -> list[tuple[str, str, int]]:
    return [(file["path"], file["kind"], file["size_bytes"]) for file in answer["files"]]


def test_run_files_have_names_in_the_response_and_the_record(rpc: Rpc) -> None:
    code = "from runtime import blobs\nblobs.write_text('x')\n" + leaves()

    answer = run(rpc, code)

    assert named(answer) == SHOWN
    assert [file["blob_id"] for file in answer["files"]] == answer["output_blobs"][1:]
    recorded = rpc("get_run", run_id=answer["run_id"])
    assert (recorded["files"], recorded["output_blobs"]) == (answer["files"], answer["output_blobs"])
    assert rpc("read_blob", blob_id=answer["files"][0]["blob_id"], mode="full")["content"] == "a,b"
    rpc("delete_blob", blob_id=answer["files"][0]["blob_id"])
    assert named(rpc("get_run", run_id=answer["run_id"])) == SHOWN[1:]


def test_a_run_without_files_says_nothing_of_them(rpc: Rpc) -> None:
    answer = run(rpc, "def main(args): pass")

    assert "files" not in answer
    assert "files" not in rpc("get_run", run_id=answer["run_id"])


def test_a_run_that_fails_keeps_its_files(sqlite_rpc: Rpc) -> None:
    answer = run(sqlite_rpc, leaves("1 / 0"))

    assert (answer["error"]["type"], named(answer)) == ("ZeroDivisionError", SHOWN)


def test_files_of_a_tool_are_in_its_answer(sqlite_rpc: Rpc, new_name: str) -> None:
    tool = {"name": "t", "description": "Does.", "script": "t.py", "parameters": {}}
    files = [
        {"path": "t.py", "content": leaves(function="handler")},
        {"path": "tools.json", "content": json.dumps([tool])},
    ]
    made = {"name": new_name, "version": "1.0.0", "description": "x"}
    sqlite_rpc("create_skill", manifest=made, skill_md="# A\n", files=files)

    assert named(sqlite_rpc("call_tool", name=f"{new_name}/t", args={})) == SHOWN


def test_a_download_has_the_name_of_the_file(sqlite_rpc: Rpc) -> None:
    first, second = run(sqlite_rpc, leaves())["files"]
    plain = sqlite_rpc("create_blob", content="x", kind="text/plain")

    names = [
        sqlite_rpc.http.get(f"/blobs/{blob['blob_id']}").headers["content-disposition"]
        for blob in (first, second, plain)
    ]

    prefix = "attachment; filename*=UTF-8''"
    assert names == [f"{prefix}a.csv", f"{prefix}b%5Cn%C3%BC.json", "attachment"]


def test_a_missing_out_folder_is_reported(sqlite_rpc: Rpc) -> None:
    error = run(sqlite_rpc, "def main(args): open('out/a.csv', 'w')")["error"]

    assert error["type"] == "FileNotFoundError"
    assert error["message"].endswith("os.makedirs('out', exist_ok=True))")


@with_node
def test_a_missing_out_folder_is_reported_to_code_of_pandas_and_node(sqlite_rpc: Rpc) -> None:
    of_pandas = "def main(args): raise OSError(\"Cannot save file into a non-existent directory: 'out'\")"
    of_node = "export const main = () => { throw Error(\"ENOENT: no such file or directory, open 'out/a.csv'\") }"

    messages = [
        sqlite_rpc("run_code", language=language, code=code)["error"]["message"]
        for language, code in (("python", of_pandas), ("javascript", of_node))
    ]

    assert messages[0].endswith("os.makedirs('out', exist_ok=True))")
    assert messages[1].endswith("fs.mkdirSync('out'))")


def test_the_command_line_shows_names(sqlite_server: Server, tmp_path: Any) -> None:
    file = tmp_path / "code.py"
    file.write_text("from runtime import blobs\nblobs.write_text('x')\n" + leaves())

    ran = skillery("code", str(file), "--url", sqlite_server.url)

    lines = [line.split() for line in ran.out.splitlines()]
    assert ["file:", "a.csv"] in [line[:2] for line in lines]
    assert len([line for line in lines if line[:1] == ["blob:"]]) == 1


def test_mcp_returns_only_valid_images_as_image_content(sqlite_rpc: Rpc) -> None:
    code = """
import os, struct, zlib
def chunk(kind, data):
    return struct.pack(">L", len(data)) + kind + data + struct.pack(">L", zlib.crc32(kind + data))
def png(width):
    head = chunk(b"IHDR", struct.pack(">2L5B", width, 1, 8, 0, 0, 0, 0))
    return b"\\x89PNG\\r\\n\\x1a\\n" + head + chunk(b"IDAT", zlib.compress(b"\\0\\0")) + chunk(b"IEND", b"")
def main(args):
    os.makedirs("out")
    files = {"a.png": b"<html>", "b.jpg": b"<html>", "c.png": png(1)[:-1], "d.png": png(9000), "e.png": b""}
    files["f.png"] = png(1)
    for name, content in files.items():
        open("out/" + name, "wb").write(content)
"""

    shown = Mcp(sqlite_rpc).tool("run_code", language="python", code=code)

    assert len(shown["structuredContent"]["files"]) == 6
    [image] = [part for part in shown["content"] if part["type"] == "image"]
    assert (image["mimeType"], len(image["data"])) == ("image/png", 92)


REPORT = """
import os, time
def main(args):
    for folder in ("out", "report"): os.makedirs(folder, exist_ok=True)
    for path in ("out/a.csv", "report/b.pdf", "report/c.txt"): open(path, "w").write(path)
    print("ready", flush=True)
    if args.get("wait"): time.sleep(60)
    return 1
"""


def test_globs_name_more_files_to_keep(server: Server, new_name: str) -> None:
    rpc = server.rpc
    made = {"name": new_name, "version": "1.0.0", "description": "Reports."}
    runtime = {"language": "python", "entrypoint": "code/main.py"}
    files = [{"path": "code/main.py", "content": REPORT}]
    rpc("create_skill", manifest={**made, "runtime": runtime}, skill_md="# R\n", files=files)

    ran = rpc("run_code", language="python", code=REPORT, outputs=["report/*.pdf"])
    executed = rpc("execute_skill", name=new_name, outputs=["**/*.txt", "**/*.csv"])

    assert [file["path"] for file in ran["files"]] == ["a.csv", "report/b.pdf"]
    assert [file["path"] for file in executed["files"]] == ["a.csv", "report/c.txt"]
    assert rpc("read_blob", blob_id=ran["files"][1]["blob_id"])["content"] == "report/b.pdf"


def test_a_run_that_was_stopped_keeps_its_files(sqlite_rpc: Rpc) -> None:
    given: dict[str, Any] = {"language": "python", "code": REPORT, "args": {"wait": True}, "outputs": ["report/*"]}
    found = ["a.csv", "report/b.pdf", "report/c.txt"]

    for timeout_ms in (3_000, 12_000, 48_000):  # on a loaded machine, the code needs time until it has written
        late = sqlite_rpc("run_code", **given, limits={"timeout_ms": timeout_ms})
        if len(late["files"]) == len(found):
            break
    begun = sqlite_rpc("run_code", **given, background=True)["run_id"]
    eventually(lambda: "ready" in sqlite_rpc("read_run_log", run_id=begun)["text"])
    sqlite_rpc("cancel_run", run_id=begun)
    cancelled = sqlite_rpc("get_run", run_id=begun, wait_ms=60_000)

    assert (late["error"]["type"], cancelled["error"]["type"]) == ("TimeoutError", "Cancelled")
    assert [file["path"] for file in late["files"]] == found
    assert [file["path"] for file in cancelled["files"]] == found


@pytest.mark.parametrize("glob", ["/etc/*", "../*", "", "a/../../b", "x" * 300])
def test_globs_keep_the_rules_of_paths(sqlite_rpc: Rpc, glob: str) -> None:
    error = sqlite_rpc.error("run_code", language="python", code=REPORT, outputs=[glob])

    assert (error["code"], error["data"]["param"]) == (-32602, "outputs")


def test_a_caller_names_no_files_of_a_skill_with_permissions(sqlite_rpc: Rpc, new_name: str) -> None:
    manifest = {
        "name": new_name,
        "version": "1.0.0",
        "description": "Uses a secret.",
        "permissions": {"secrets": ["K"]},
    }
    runtime = {"language": "python", "entrypoint": "code/main.py"}
    files = [{"path": "code/main.py", "content": REPORT}]
    sqlite_rpc("create_skill", manifest={**manifest, "runtime": runtime}, skill_md="# R\n", files=files)

    error = sqlite_rpc.error("execute_skill", name=new_name, outputs=["**"])

    assert (error["code"], error["data"]["param"]) == (-32602, "outputs")


def test_the_command_line_keeps_more_files(sqlite_server: Server, tmp_path: Path) -> None:
    code = tmp_path / "report.py"
    code.write_text(REPORT)

    kept = ("--outputs", "report/*.pdf", "--out", str(tmp_path / "got"))
    ran = skillery("code", str(code), *kept, "--url", sqlite_server.url)

    assert ran.code == 0, ran.err
    assert (tmp_path / "got" / "report" / "b.pdf").read_text() == "report/b.pdf"
    assert (tmp_path / "got" / "a.csv").read_text() == "out/a.csv"
