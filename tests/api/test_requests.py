"""Request ids and the request log: finding a request by its id, and data that is never logged."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest

from tests.conftest import Rpc, Server, manifest, skill_files


def lines_of(server: Server) -> list[dict[str, Any]]:
    return [json.loads(line) for line in server.log.read_text().splitlines()]


@pytest.mark.parametrize("path", ["/healthz", "/tools", "/nowhere", "/blobs/blob:none", "/rpc"])
def test_every_answer_has_an_id_of_its_own(sqlite_rpc: Rpc, path: str) -> None:
    first, second = (sqlite_rpc.http.get(path).headers["x-request-id"] for _ in range(2))
    assert first != second


def test_a_well_formed_id_is_taken_and_another_is_not(sqlite_rpc: Rpc) -> None:
    asked = "0191e1c2-aaaa-7bbb-8ccc-0123456789ab"
    assert sqlite_rpc.http.get("/healthz", headers={"x-request-id": asked}).headers["x-request-id"] == asked
    for bad in (b"two words", b"x" * 129, b"a\tb", "é".encode(), b'"', b""):
        given = sqlite_rpc.http.get("/healthz", headers=[(b"x-request-id", bad)]).headers["x-request-id"]
        assert given.isascii()
        assert given.encode() != bad


@pytest.mark.full
def test_a_json_log_has_a_line_per_request_without_its_data(start_server: Callable[..., Server]) -> None:
    server = start_server(
        env={"SKILLERY_LOG_FORMAT": "json", "SKILLERY_LOG_REQUESTS": "yes", "SKILLERY_AUTH": "tokens"}
    )
    secret = "my-secret-args"
    headers = {"x-request-id": "my-request", "authorization": f"Bearer sky_{secret}"}
    assert server.rpc.http.post("/rpc", json={}, headers=headers).status_code == 401
    server.stop()

    open_server = start_server(home="open", env={"SKILLERY_LOG_FORMAT": "json", "SKILLERY_LOG_REQUESTS": "yes"})
    body = [
        {"jsonrpc": "2.0", "id": 1, "method": "list_skills", "params": {"namespace": "nowhere"}},
        {"jsonrpc": "2.0", "id": 2, "method": f"no_{secret}", "params": {}},
        {"jsonrpc": "2.0", "id": 3, "method": "describe_skill", "params": {"name": secret}},
    ]
    open_server.rpc.http.post(f"/rpc?{secret}", json=body, headers={"x-request-id": "batch-1"})
    open_server.rpc("create_skill", manifest=manifest("a.b"), skill_md="# A\n", files=skill_files())
    open_server.stop()

    refused = next(line for line in lines_of(server) if line.get("request_id") == "my-request")
    assert refused["status"] == 401
    assert refused["identity"] is None
    lines = lines_of(open_server)
    batch = next(line for line in lines if line.get("request_id") == "batch-1")
    assert batch["calls"] == [
        {"method": "list_skills", "code": 0},
        {"method": "unknown", "code": -32601},
        {"method": "describe_skill", "code": -32003},
    ]
    assert batch["identity"] == "local"
    assert batch["duration_ms"] > 0
    assert batch["address"] == "127.0.0.1"
    assert all({"time", "level", "logger", "message"} <= line.keys() for line in lines)
    assert secret not in server.log.read_text()
    assert secret not in open_server.log.read_text()


@pytest.mark.full
def test_a_fault_of_the_host_names_its_first_request_and_counts_others(start_server: Callable[..., Server]) -> None:
    server = start_server()
    with closing(sqlite3.connect(server.home / "skillery.db")) as connection:
        connection.execute("DROP TABLE blobs")
    call = {"jsonrpc": "2.0", "id": 1, "method": "create_blob", "params": {"content": "x", "kind": "text/plain"}}
    replies = [
        server.rpc.http.post("/rpc", json=call, headers={"x-request-id": f"lost-{number}"}).json()
        for number in range(1, 5)
    ]
    reply = replies[0]
    assert reply["error"]["code"] == -32603
    assert reply["error"]["data"]["request_id"] == "lost-1"
    server.stop()
    lines = [
        line for line in server.log.read_text().splitlines() if "the database does not work: no such table" in line
    ]
    assert "[lost-1]: " in lines[0]
    assert ["drivers: 3 more times in " in line for line in lines] == [False, True]
