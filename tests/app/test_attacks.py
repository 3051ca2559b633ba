"""Hostile requests: the server refuses them with an error and keeps answering other callers."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.client import HTTPConnection
from typing import Any

import httpx
import pytest

from tests.conftest import Rpc, Server, manifest, skill_files

ANSWER_SECONDS = 5
"""Seconds in which other callers get at least one answer.

The slowest of these requests once blocked the server for more than a minute. A loaded machine slows down both the
request and the answers.
"""


@contextmanager
def everybody_else_is_answered(server: Server) -> Iterator[None]:
    """Fail if /healthz did not answer at least once in ANSWER_SECONDS while the request was open."""
    answers = 0
    ended = threading.Event()

    def ask() -> None:
        nonlocal answers
        with httpx.Client(base_url=server.url, timeout=300, limits=Rpc.limits) as client:
            while not ended.wait(0.02):
                client.get("/healthz")
                answers += 1

    asking = threading.Thread(target=ask)
    asking.start()
    began = time.monotonic()
    try:
        yield
    finally:
        wanted, answered = (time.monotonic() - began) // ANSWER_SECONDS, answers
        ended.set()
        asking.join()
    assert answered >= wanted


@pytest.mark.full
def test_a_slow_compiling_source_is_refused_and_blocks_no_caller(sqlite_server: Server, new_name: str) -> None:
    """If the interpreter is fast enough to compile the source within the limits, the skill is published."""
    line = "class A:a\n"
    code = "def main(args): pass\n" + line * (500_000 // len(line))
    with everybody_else_is_answered(sqlite_server):
        reply = sqlite_server.rpc.send(
            "create_skill", {"manifest": manifest(f"{new_name}.slow"), "skill_md": "x", "files": skill_files(code)}
        )
    error = reply.get("error", {"code": -32602, "message": "too long", "data": {"file": "code/main.py"}})
    if error["code"] == -32007:  # the source compiles in time, and its import does not end in time
        assert [row["rule"] for row in error["data"]["findings"]] == ["entrypoint_import"]
        return
    assert error["code"] == -32602
    assert error["data"]["file"] == "code/main.py"
    assert "too long" in error["message"] or "memory" in error["message"]


def test_large_sources_are_checked_like_small_sources(sqlite_rpc: Rpc, new_name: str) -> None:
    padding = "# a comment that makes it large\n" * 2_000
    good, bad = padding + "def main(args): return 1\n", padding + "def main(args) return 1\n"
    made = manifest(f"{new_name}.large")
    error = sqlite_rpc.error("create_skill", manifest=made, skill_md="x", files=skill_files(bad))
    assert (error["code"], error["data"]["file"], error["data"]["line"]) == (-32602, "code/main.py", 2_001)
    other = sqlite_rpc.error("create_skill", manifest=made, skill_md="x", files=skill_files(padding))
    assert "does not define 'main'" in other["message"]
    assert sqlite_rpc("create_skill", manifest=made, skill_md="x", files=skill_files(good))["status"] == "published"


@pytest.mark.parametrize(
    ("dependencies", "skill_toml"),
    [
        (["a", "no requirement"], "dependencies =" + '\\"' * 200_000),
        pytest.param([], "[[examples]]\n" * 500_000, marks=pytest.mark.full),
    ],
    ids=["quotes without an end", "headers by the thousand"],
)
def test_a_skill_toml_with_slow_line_lookup_blocks_no_caller(
    sqlite_server: Server, new_name: str, dependencies: list[str], skill_toml: str
) -> None:
    """With an algorithm of quadratic time, these requests would take hours."""
    made = manifest(f"{new_name}.lines")
    made["runtime"]["dependencies"] = dependencies
    files = skill_files(**{"skill.toml": skill_toml})
    with everybody_else_is_answered(sqlite_server):
        error = sqlite_server.rpc.error("create_skill", manifest=made, skill_md="x", files=files)
    assert (error["code"], error["data"]["file"]) == (-32602, "skill.toml")


@pytest.mark.full
def test_many_combining_marks_on_a_letter_block_no_caller(sqlite_server: Server, new_name: str) -> None:
    """Unicode sorts the marks. With an algorithm of quadratic time, each search took a minute."""
    body = "a" + "\u0315\u0300" * 16_000
    for number in range(6):
        made = manifest(f"{new_name}.n{number}", kind="instruction", description=f"{new_name} marks {number}")
        sqlite_server.rpc("create_skill", manifest=made, skill_md=body)
    with everybody_else_is_answered(sqlite_server):
        found = sqlite_server.rpc("search_skills", query=f"{new_name} absent marks")
        assert len(found["skills"]) == 6
        found = sqlite_server.rpc("search_skills", query=f"n1 {new_name}", limit=20)
    assert found["skills"][0]["name"] == f"{new_name}.n1"


def test_many_values_in_a_manifest_are_refused(sqlite_rpc: Rpc, new_name: str) -> None:
    made = manifest(f"{new_name}.values", kind="instruction", values=[1] * 400_000)
    error = sqlite_rpc.error("create_skill", manifest=made, skill_md="x")
    assert error["code"] == -32602
    assert error["data"]["type"] == "invalid_manifest"


def test_many_mounts_are_refused_before_any_is_looked_up(sqlite_rpc: Rpc) -> None:
    code = {"language": "python", "code": "def main(args): return 1"}
    error = sqlite_rpc.error("run_code", **code, mount_skills=["skills.protocol.guide"] * 10_000)
    assert (error["code"], error["data"]["param"]) == (-32602, "mount_skills")
    error = sqlite_rpc.error("run_code", **code, input_blobs=[f"blob:{number}" for number in range(10_000)])
    assert error["code"] == -32602


def test_a_long_name_of_a_method_parameter_or_limit_is_refused_shortly(sqlite_rpc: Rpc) -> None:
    long = "ab" * 500_000
    errors = [
        sqlite_rpc.error(long),
        sqlite_rpc.error("list_skills", **{long: 1}),
        sqlite_rpc.error("run_code", language="python", code="", limits={long: 1}),
    ]
    assert [error["code"] for error in errors] == [-32601, -32602, -32602]
    assert all(len(str(error)) < 1_000 for error in errors)


@pytest.mark.parametrize("where", [b'"name":"\xff"', b'"name":"a","\xff":1', b'"name":"a","version":"\xed\xa0\x80"'])
def test_a_body_that_is_not_utf8_is_a_parse_error(sqlite_rpc: Rpc, where: bytes) -> None:
    call = b'{"jsonrpc":"2.0","id":1,"method":"describe_skill","params":{' + where + b"}}"
    for body in (call, b"[" + call + b"]"):
        reply = sqlite_rpc.raw(body).json()
        assert (reply["error"]["code"], reply["id"]) == (-32700, None)


@pytest.mark.parametrize("wanted", ["bytes=0-{}", "bytes={}-", "bytes=-{}"])
def test_a_range_of_thousands_of_digits_is_no_fault_of_the_server(sqlite_rpc: Rpc, wanted: str) -> None:
    blob_id = sqlite_rpc("create_blob", content="hello", kind="text/plain")["blob_id"]
    response = sqlite_rpc.http.get(f"/blobs/{blob_id}", headers={"range": wanted.format("9" * 5_000)})
    assert response.status_code in {200, 206, 416}


@pytest.mark.parametrize("name", ["host", "origin", "content-type"])
def test_a_duplicate_header_does_not_hide_a_foreign_value(sqlite_server: Server, name: str) -> None:
    own = {
        "host": sqlite_server.url.removeprefix("http://"),
        "origin": sqlite_server.url,
        "content-type": "application/json",
    }
    foreign = {"host": "evil.example", "origin": "http://evil.example", "content-type": "text/plain"}
    headers = [*((key, value) for key, value in own.items() if key != name), (name, foreign[name]), (name, own[name])]
    body = b'{"jsonrpc":"2.0","id":1,"method":"list_skills"}'
    connection = HTTPConnection(own["host"])
    connection.putrequest("POST", "/rpc", skip_host=True, skip_accept_encoding=True)
    for key, value in [*headers, ("content-length", str(len(body)))]:
        connection.putheader(key, value)
    connection.endheaders(body)
    assert connection.getresponse().status in {400, 403, 415}
    connection.close()


@pytest.mark.parametrize("host", ["localhost:evil.example", "[localhost]evil.example", "[::1"])
def test_a_host_that_only_begins_like_ours_is_refused(sqlite_rpc: Rpc, host: str) -> None:
    response = sqlite_rpc.raw('{"jsonrpc":"2.0","id":1,"method":"list_skills"}', host=host)
    assert response.status_code in {400, 403}


@pytest.mark.smoke
@pytest.mark.postgres
def test_publishers_of_the_same_contents_in_another_order_all_succeed(rpc: Rpc, new_name: str) -> None:
    def publish(number: int) -> dict[str, Any]:
        contents = [f"{new_name} {number // 8} {place}" for place in range(40)]
        if number % 2:
            contents.reverse()
        files = [{"path": f"{place:02}.txt", "content": content} for place, content in enumerate(contents)]
        made = manifest(f"{new_name}.s{number}", kind="instruction")
        return rpc.send("create_skill", {"manifest": made, "skill_md": "x", "files": files})

    with ThreadPoolExecutor(16) as threads:
        replies = list(threads.map(publish, range(160)))
    assert [reply for reply in replies if "error" in reply] == []


def test_the_log_of_a_run_brings_no_terminal_controls(sqlite_rpc: Rpc) -> None:
    code = r"def main(args): print('\x1b[2J \x9b2J'); raise ValueError('\x9b2J')"
    run = sqlite_rpc("run_code", language="python", code=code)
    assert not any(control in str(run) for control in ("\x1b", "\x9b"))
    assert "\\x9b2J" in run["logs_preview"]


def test_a_head_without_an_end_is_cut_off(sqlite_server: Server) -> None:
    host, _, port = sqlite_server.url.removeprefix("http://").partition(":")
    with everybody_else_is_answered(sqlite_server), socket.create_connection((host, int(port)), 300) as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-Long: ")
        with pytest.raises(OSError, match=r"reset|[Bb]roken pipe|aborted"):
            connection.sendall(b"a" * 50_000_000)


def test_a_body_sent_with_its_head_does_not_count_as_head(sqlite_rpc: Rpc) -> None:
    for _ in range(2):
        body = '{"jsonrpc":"2.0","id":1,"method":"list_skills"}' + " " * 300_000
        assert sqlite_rpc.raw(body, **{"x-long": "a" * 20_000}).status_code == 200
