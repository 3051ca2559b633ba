"""Memory that request bodies use before their requests are authorised and run."""

from __future__ import annotations

import json
import re
import select
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from tests.conftest import Rpc, Server

BUSY = -32006
CODE = "import time\ndef main(args):\n    time.sleep(args.get('s', 0))\n    return 'done'\n"
GUIDE = {"jsonrpc": "2.0", "id": 1, "method": "load_skills_protocol_guide"}


def most_memory_mb(server: Server) -> int:
    """Return the peak memory of the server process, in MiB."""
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    return int(re.findall(r"VmHWM:\s+(\d+) kB", status)[0]) // 1024


def run_code(**args: object) -> dict[str, object]:
    params = {"language": "python", "code": CODE, "args": args}
    return {"jsonrpc": "2.0", "id": 1, "method": "run_code", "params": params}


def begin(server: Server, body: bytes, sent: int) -> socket.socket:
    """Send the first `sent` bytes of a request and return its connection."""
    where = urlsplit(server.url)
    assert where.hostname
    connection = socket.create_connection((where.hostname, where.port or 80))
    head = f"POST /rpc HTTP/1.1\r\nHost: {where.netloc}\r\nContent-Type: application/json\r\n"
    connection.sendall(f"{head}Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body[:sent])
    return connection


def finish(connection: socket.socket, rest: bytes) -> bytes:
    connection.sendall(rest)
    answer = b""
    while piece := connection.recv(1 << 16):
        answer += piece
    connection.close()
    return answer


def wait_until_held(server: Server, body: bytes) -> None:
    """Wait until the server refuses further requests as busy.

    Each attempt only announces `body`, so it uses no memory itself.
    """
    for _ in range(200):
        with begin(server, body, 0) as asking:
            if select.select([asking], [], [], 0.1)[0]:
                assert str(BUSY).encode() in finish(asking, b"")
                return
    raise AssertionError("the server never refused a request as busy")


@pytest.mark.parametrize("batch", [False, True])
@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_past_the_room_for_all_is_busy_and_fits_later(
    configured_server: Callable[..., Server], batch: bool, chunked: bool
) -> None:
    server = configured_server(SKILLERY_BODIES_MB="1")
    large = json.dumps(GUIDE | {"pad": "x" * 1_500_000}).encode()
    call = GUIDE | {"pad": "x" * 300_000}
    body = json.dumps([call] if batch else call).encode()
    half = begin(server, large, 1_000_000)

    def in_pieces() -> object:
        for start in range(0, len(body), 65536):
            yield body[start : start + 65536]

    wait_until_held(server, body)
    content = in_pieces() if chunked else body
    response = server.rpc.http.post("/rpc", content=content, headers={"content-type": "application/json"})  # type: ignore[arg-type]

    assert response.status_code == 200
    error = response.json()["error"]
    assert error["code"] == BUSY
    assert error["data"]["retry_after_ms"] > 0
    assert "bodies_mb" in error["message"]
    assert b'"result"' in finish(half, large[1_000_000:])  # over the budget, but served: it was the only request
    assert "error" not in server.rpc.raw(body).text[:30]


def test_a_request_that_breaks_off_gives_its_room_back(configured_server: Callable[..., Server]) -> None:
    server = configured_server(SKILLERY_BODIES_MB="1")
    body = json.dumps(GUIDE | {"pad": "x" * 300_000}).encode()
    half = begin(server, b"x" * 2_000_000, 1_000_000)
    wait_until_held(server, body)

    half.close()

    answers = (server.rpc.raw(body).json() for _ in range(1000))
    assert any("result" in answer for answer in answers)


@pytest.mark.full
def test_many_large_bodies_at_once_take_no_more_memory_than_is_set(start_server: Callable[..., Server]) -> None:
    server = start_server(env={"SKILLERY_BODIES_MB": "32", "SKILLERY_QUEUED_MB": "16", "SKILLERY_CONCURRENT_RUNS": "2"})
    before = most_memory_mb(server)
    body = json.dumps(run_code(pad="x" * 15_000_000, s=1)).encode()

    def ask(_: int) -> dict[str, object]:
        try:
            answer: dict[str, object] = Rpc(server.url).raw(body).json()
        except httpx.TransportError:  # refused during the upload: the connection reset lost the response
            return {}
        return answer

    with ThreadPoolExecutor(40) as threads:
        answers = list(threads.map(ask, range(40)))

    codes = {answer["error"]["code"] for answer in answers if "error" in answer}  # type: ignore[index]
    assert codes == {BUSY}
    assert any("result" in answer for answer in answers)
    grown = most_memory_mb(server) - before
    assert grown < 250


@pytest.mark.full
def test_unread_indexes_hold_no_more_memory_than_is_set(start_server: Callable[..., Server]) -> None:
    server = start_server(env={"SKILLERY_ANSWERS_MB": "1"})
    files = [{"path": f"{'p' * 60}/{'q' * 120}/{'r' * 60}{number}", "content": ""} for number in range(505)]
    for number in range(70):
        listed = {"name": f"listed.s{number}", "version": "1.0.0", "description": "x"}
        server.rpc("create_skill", manifest=listed, skill_md="# x\n", files=files)
    path = "/n/listed/.well-known/skills/index.json"
    assert len(server.rpc.http.get(path).content) > 8_000_000

    where = urlsplit(server.url)
    with socket.socket() as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.connect((where.hostname, where.port))
        slow.sendall(f"GET {path} HTTP/1.1\r\nHost: {where.netloc}\r\n\r\n".encode())
        slow.recv(1)
        busy = server.rpc.http.get(path)
        assert (busy.status_code, busy.json()["error"]["code"]) == (503, BUSY)
        assert busy.headers["retry-after"]
        assert server.rpc("list_skills")["skills"]

    assert any(server.rpc.http.get(path).status_code == 200 for _ in range(1000))
