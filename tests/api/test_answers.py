"""Responses use a bounded amount of the server's memory. Clients that do not read are disconnected."""

from __future__ import annotations

import base64
import json
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from skillery.app.routes import create_app
from skillery.authoring.packages import open_temporary_home
from skillery.git.requests import pkt
from skillery.settings.load import Settings
from tests.conftest import Rpc, Server, manifest
from tests.support.mcp_client import LEGACY, MODERN, Mcp
from tests.support.processes import eventually
from tests.support.raw_http import steadily

BUSY, TOO_LARGE = -32006, -32005
MIB = 1024 * 1024
PATIENCE_SECONDS = 300
StartServer = Callable[..., Server]


def publish(rpc: Rpc, name: str, content: str = "", skill_md: str = "# x\n", **more: Any) -> None:
    files = [{"path": "large.txt", "content": content}] if content else []
    rpc("create_skill", manifest=manifest(name, kind="instruction", **more), skill_md=skill_md, files=files)


def call(method: str, **params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}


def batch(rpc: Rpc, *calls: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = rpc.raw(json.dumps(calls)).json()
    return found


def ask(server: Server, head: str, body: bytes = b"", kind: str = "application/json") -> socket.socket:
    """Send a request and return its connection, without reading the response."""
    where = urlsplit(server.url)
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.connect((where.hostname, where.port))
    lines = [f"{head} HTTP/1.1", f"Host: {where.netloc}", f"Content-Type: {kind}"]
    lines += ["Accept: application/json, text/event-stream", f"Content-Length: {len(body)}"]
    connection.sendall("\r\n".join([*lines, "", ""]).encode() + body)
    return connection


def sockets_of(server: Server) -> int:
    found = 0
    for descriptor in Path(f"/proc/{server.process.pid}/fd").iterdir():
        with suppress(FileNotFoundError):
            found += str(descriptor.readlink()).startswith("socket:")
    return found


def until_closed(server: Server, connections: list[socket.socket], before: int, *, reads: bool = False) -> None:
    """Wait until the server has closed the connections. Their responses do not fit into the kernel's buffers."""

    def are_closed() -> bool:
        for connection in connections if reads else ():
            connection.recv(100)
        return sockets_of(server) <= before

    eventually(are_closed)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Yield a server with 8 MiB for responses, at most 2 MiB each, that disconnects clients after one second without
    reading.
    """
    env = {"SKILLERY_ANSWERS_MB": "8", "SKILLERY_ANSWER_MAX_MB": "2", "SKILLERY_ANSWER_SECONDS": "1"}
    server = Server(tmp_path_factory.mktemp("small") / "home", env=env)
    publish(server.rpc, "sized.fits", "x" * (MIB + MIB // 2))
    publish(server.rpc, "sized.large", "x" * 3 * MIB, skill_md="# x\n" + "y" * 3 * MIB)
    publish(server.rpc, "sized.grows", "\x01" * MIB)
    yield server
    assert server.stop() == 0


# -- the budget --------------------------------------------------------------------------------------------------------


@pytest.mark.full
def test_batch_calls_past_the_answer_budget_are_busy_and_others_succeed(start_server: StartServer) -> None:
    server = start_server(env={"SKILLERY_ANSWERS_MB": "64"})
    publish(server.rpc, "big.one", "x" * 12 * MIB)
    read = call("read_skill_file", name="big.one", path="large.txt")

    answers = batch(server.rpc, *[read] * 40, call("list_skills"))

    assert [len(one["result"]["content"]) for one in answers[:5]] == [12 * MIB] * 5
    assert {one["error"]["code"] for one in answers[5:40]} == {BUSY}
    assert all(one["error"]["data"]["retry_after_ms"] > 0 for one in answers[5:40])
    assert "answers_mb" in answers[5]["error"]["message"]
    assert answers[40]["result"]["skills"]
    assert len(server.rpc("read_skill_file", name="big.one", path="large.txt")["content"]) == 12 * MIB


@pytest.mark.parametrize(
    ("method", "params", "remedy"),
    [
        ("read_skill_file", {"name": "sized.large", "path": "large.txt"}, "GET /skills/"),
        ("read_skill_file", {"name": "sized.grows", "path": "large.txt"}, "GET /skills/"),
        ("describe_skill", {"name": "sized.large", "detail": "full"}, "summary"),
    ],
)
def test_a_result_that_is_too_large_names_the_remedy(
    small: Server, method: str, params: dict[str, Any], remedy: str
) -> None:
    answers = batch(small.rpc, call(method, **params), call("list_skills"))

    error = answers[0]["error"]
    assert (error["code"], error["data"]["type"]) == (TOO_LARGE, "answer_too_large")
    assert remedy in error["data"]["hint"]
    assert answers[1]["result"]["skills"]


@pytest.mark.full
def test_a_blob_is_read_as_far_as_answers_go(start_server: StartServer) -> None:
    rpc = start_server(env={"SKILLERY_ANSWER_MAX_MB": "1"}).rpc
    blob_id = rpc("create_blob", content="\x01" * MIB, kind="text/plain")["blob_id"]

    error = rpc.error("read_blob", blob_id=blob_id, mode="full")

    assert error["data"]["type"] == "answer_too_large"
    assert "GET /blobs/" in error["data"]["hint"]
    assert len(rpc("read_blob", blob_id=blob_id, max_bytes=1000)["content"]) == 1000


@pytest.mark.parametrize("content", ["é" * 200_000, 'quotes "\\"\n' * 50_000, "\x01\x02" * 100_000, "😀" * 100_000])
@pytest.mark.full(after=2)
def test_a_large_text_is_read_as_it_was_written(sqlite_rpc: Rpc, new_name: str, content: str) -> None:
    name = f"{new_name}.text"
    publish(sqlite_rpc, name, content, skill_md=f"# {content}\n")

    read = sqlite_rpc("read_skill_file", name=name, path="large.txt")
    described = sqlite_rpc("describe_skill", name=name, detail="full")["skill"]

    assert read == {"content": content, "encoding": "utf-8"}
    assert described["skill_md"] == f"# {content}\n"
    for era in (MODERN, LEGACY):
        mcp = Mcp(sqlite_rpc, era)
        answered = mcp.tool("read_skill_file", name=name, path="large.txt")
        assert answered["structuredContent"] == read
        assert json.loads(answered["content"][0]["text"]) == read
        uri = f"skill://{name.replace('.', '/')}/large.txt"
        assert mcp("resources/read", uri=uri)["contents"][0]["text"] == content


@pytest.mark.full
async def test_requests_release_all_their_bytes(tmp_path: Path) -> None:
    """Answered, refused and failed requests of each protocol count their bytes, and leave both budgets empty."""
    created = call(
        "create_skill", manifest=manifest("kept.bytes", kind="instruction"), skill_md="# x\n" + "y" * MIB, files=[]
    )
    bodies: list[tuple[str, Any]] = [
        ("/rpc", created),
        ("/rpc", call("describe_skill", name="kept.bytes")),
        ("/rpc", call("describe_skill", name="kept.absent")),
        ("/rpc", [call("list_skills"), call("describe_skill", name="kept.bytes"), call("unknown")]),
        ("/mcp", call("tools/call", name="describe_skill", arguments={"name": "kept.bytes"})),
        ("/mcp", call("tools/call", name="describe_skill", arguments={"name": "kept.absent"})),
        ("/mcp", {"jsonrpc": "2.0"}),
    ]
    addresses = ("/", "/s/kept.bytes", "/skills/kept.bytes.zip", "/skills/kept.bytes/1.0.0/SKILL.md", "/nothing")
    async with open_temporary_home(Settings(home=tmp_path), []) as (core, edge):
        totals = (edge.bodies.tally, edge.answers.tally)
        app: Any = create_app(core, edge)
        accepted = {"accept": "application/json, text/event-stream"}
        async with httpx.AsyncClient(
            transport=httpx.ASGITransport(app), base_url="http://127.0.0.1", headers=accepted
        ) as client:
            statuses = [(await client.post(path, json=body)).status_code for path, body in bodies]
            statuses += [(await client.get(path)).status_code for path in addresses]
            sizes = [len((await client.get(path)).content) for path in addresses[1:4]]
            assert [tally.total for tally in totals] == [0, 0]

    assert statuses[:4] == [200] * 4
    assert {200, 404} <= set(statuses)
    assert max(sizes) > MIB


def test_changes_succeed_while_the_answer_budget_is_exhausted(small: Server) -> None:
    read = [call("read_skill_file", name="sized.fits", path="large.txt")] * 8
    with closing(ask(small, "POST /rpc", json.dumps(read).encode())):
        full = small.rpc.send("read_skill_file", {"name": "sized.fits", "path": "large.txt"})
        made = small.rpc("create_blob", content="x", kind="text/plain")

    assert "result" in full or full["error"]["code"] == BUSY
    assert made["size_bytes"] == 1


# -- clients that do not read ------------------------------------------------------------------------------------------


@pytest.mark.full
def test_unread_answers_are_cut_off_and_release_their_memory(start_server: StartServer) -> None:
    server = start_server(env={"SKILLERY_ANSWERS_MB": "64", "SKILLERY_ANSWER_SECONDS": "1"})
    publish(server.rpc, "big.one", "x" * 12 * MIB)
    read = [call("read_skill_file", name="big.one", path="large.txt")] * 5
    before = sockets_of(server)

    unread = [ask(server, "POST /rpc", json.dumps(read).encode()) for _ in range(4)]
    for connection in unread:
        connection.settimeout(PATIENCE_SECONDS)
        assert connection.recv(1)
    until_closed(server, unread, before)

    def are_answered() -> bool:
        with suppress(httpx.TransportError):  # on a loaded machine, this client may read too slowly as well
            return all("result" in one for one in batch(server.rpc, *read))
        return False

    # The server releases the memory shortly after the connection is closed.
    eventually(are_answered)


@pytest.fixture(scope="module")
def impatient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Yield a server that disconnects clients after one second without reading."""
    server = Server(tmp_path_factory.mktemp("impatient") / "home", env={"SKILLERY_ANSWER_SECONDS": "1"})
    publish(server.rpc, "unread.one", base64.b64encode(os.urandom(11 * MIB)).decode())
    yield server
    assert server.stop() == 0


@pytest.mark.parametrize("kind", ["blob", "file", "archive", "rpc", "mcp", "index", "git"])
@pytest.mark.parametrize("reads", [False, True])
@pytest.mark.full(after=1)
def test_every_kind_of_answer_ends_if_the_client_reads_too_little(impatient: Server, kind: str, reads: bool) -> None:
    asked = {"name": "unread.one", "path": "large.txt"}
    body, content_type = b"", "application/json"
    match kind:
        case "git":
            refs = impatient.rpc.http.get("/git/unread.git/info/refs?service=git-upload-pack").text
            commit = next(line for line in refs.splitlines() if " HEAD" in line).split()[0][-40:]
            head, content_type = "POST /git/unread.git/git-upload-pack", "application/x-git-upload-pack-request"
            body = pkt(f"want {commit} side-band-64k\n") + b"0000" + pkt("done\n")
        case "blob":
            blob_id = impatient.rpc.http.post("/blobs", content=os.urandom(24 * MIB)).json()["blob_id"]
            head = f"GET /blobs/{blob_id}"
        case "file":
            head = "GET /skills/unread.one/1.0.0/large.txt"
        case "archive":
            head = "GET /skills/unread.one/1.0.0.tar.gz"
        case "index":
            head = "GET /.well-known/skills/unread-one/large.txt"
        case "rpc":
            head, body = "POST /rpc", json.dumps(call("read_skill_file", **asked)).encode()
        case _:
            tool = call("tools/call", name="read_skill_file", arguments=asked)
            head, body = "POST /mcp", json.dumps(tool).encode()
    before = sockets_of(impatient)

    with closing(ask(impatient, head, body, content_type)) as connection:
        connection.settimeout(PATIENCE_SECONDS)
        assert connection.recv(1)
        until_closed(impatient, [connection], before, reads=reads)

    assert impatient.rpc.http.get("/healthz").status_code == 200
    assert "Traceback" not in impatient.log.read_text()


def test_slow_readers_get_all_of_a_large_answer(impatient: Server) -> None:
    def read(wait: Callable[[float], None]) -> None:
        with impatient.rpc.http.stream("GET", "/skills/unread.one/1.0.0/large.txt") as response:
            size = 0
            for number, piece in enumerate(response.iter_bytes(1024 * 1024)):
                size += len(piece)
                wait(0.1 if number < 8 else 0)
        assert size == int(response.headers["content-length"]) > 14 * MIB

    steadily(read)


# -- pages -------------------------------------------------------------------------------------------------------------


@pytest.mark.full
def test_a_page_of_large_items_is_short_and_goes_on(rpc: Rpc, new_name: str) -> None:
    inputs = {f"p{number}": {"type": "string", "description": "d" * 900} for number in range(200)}
    names = [f"{new_name}.s{number:02}" for number in range(25)]
    for name in names:
        publish(rpc, name, inputs=inputs)
    ways: dict[str, dict[str, str]] = {"list_skills": {"detail": "summary"}, "search_skills": {"query": "does"}}
    for method, params in ways.items():
        found: list[str] = []
        sizes: list[int] = []
        cursor: str | None = ""
        while cursor is not None:
            page = rpc(method, namespace=new_name, limit=100, cursor=cursor, **params)
            sizes.append(len(json.dumps(page)))
            found += [skill["name"] for skill in page["skills"]]
            cursor = page["next_cursor"]

        assert found == names
        assert len(sizes) == 3
        assert max(sizes) < 3 * MIB
