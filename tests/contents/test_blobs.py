"""Blobs: storing and reading, with JSON-RPC and as streams."""

from __future__ import annotations

import base64
import hashlib
import os
import re
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.conftest import Rpc, Server
from tests.support.processes import eventually

KIB = 1024
MIB = 1024 * KIB


def test_a_created_blob_is_read_back_unchanged(rpc: Rpc) -> None:
    made = rpc("create_blob", content="Discussed Q4 goals…\n", kind="text/plain")

    assert made["size_bytes"] == len("Discussed Q4 goals…\n".encode())
    assert re.fullmatch(r"blob:[A-Za-z0-9._~-]{20,}", made["blob_id"])
    assert rpc("read_blob", blob_id=made["blob_id"]) == {
        "content": "Discussed Q4 goals…\n",
        "encoding": "utf-8",
        "truncated": False,
        "kind": "text/plain",
        "size_bytes": made["size_bytes"],
        "expires_at": made["expires_at"],
    }


def test_equal_contents_are_different_blobs(rpc: Rpc) -> None:
    one, other = (rpc("create_blob", content="same", kind="text/plain") for _ in range(2))

    assert one["blob_id"] != other["blob_id"]


def test_the_samples_are_two_thousand_bytes_of_either_end(rpc: Rpc) -> None:
    text = "".join(f"{number:09}\n" for number in range(10_000))
    blob_id = rpc("create_blob", content=text, kind="text/csv")["blob_id"]

    head = rpc("read_blob", blob_id=blob_id)
    tail = rpc("read_blob", blob_id=blob_id, mode="sample_tail")
    full = rpc("read_blob", blob_id=blob_id, mode="full")

    assert (head["content"], head["truncated"]) == (text[:2000], True)
    assert (tail["content"], tail["truncated"]) == (text[-2000:], True)
    assert (full["content"], full["truncated"]) == (text, False)
    cut = rpc("read_blob", blob_id=blob_id, mode="full", max_bytes=25)
    assert (cut["content"], cut["truncated"]) == (text[:25], True)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    st.text(st.sampled_from("aé€😀\n"), max_size=40),
    st.integers(1, 60),
    st.sampled_from(["sample_head", "sample_tail", "full"]),
)
def test_a_sample_never_splits_a_character(sqlite_rpc: Rpc, text: str, max_bytes: int, mode: str) -> None:
    blob_id = sqlite_rpc("create_blob", content=text, kind="text/plain")["blob_id"]

    answer = sqlite_rpc("read_blob", blob_id=blob_id, mode=mode, max_bytes=max_bytes)

    assert answer["encoding"] == "utf-8"
    size = len(answer["content"].encode())
    assert size <= max_bytes
    assert text.endswith(answer["content"]) if mode == "sample_tail" else text.startswith(answer["content"])
    # The sample is as long as possible: one more character would exceed the limit.
    assert size == len(text.encode()) or size > max_bytes - 4
    assert answer["truncated"] == (size < len(text.encode()))


def test_binary_content_is_base64_and_decided_by_the_whole(rpc: Rpc) -> None:
    content = b"plain ascii first" * 1000 + b"\xff\xfe"
    encoded = base64.b64encode(content).decode()
    blob_id = rpc("create_blob", content=encoded, kind="application/x-thing", encoding="base64")["blob_id"]

    answer = rpc("read_blob", blob_id=blob_id, max_bytes=10)

    assert answer["encoding"] == "base64"
    assert base64.b64decode(answer["content"]) == content[:10]
    assert answer["size_bytes"] == len(content)


def test_base64_content_of_a_text_kind_is_read_as_text(rpc: Rpc) -> None:
    blob_id = rpc("create_blob", content=base64.b64encode(b"hi").decode(), kind="text/plain", encoding="base64")[
        "blob_id"
    ]

    assert rpc("read_blob", blob_id=blob_id)["content"] == "hi"


def test_an_empty_blob_is_a_blob(rpc: Rpc) -> None:
    blob_id = rpc("create_blob", content="", kind="text/plain")["blob_id"]

    assert rpc("read_blob", blob_id=blob_id)["content"] == ""
    assert rpc.http.get(f"/blobs/{blob_id}").content == b""


def test_a_full_read_over_a_mebibyte_needs_a_bound(rpc: Rpc) -> None:
    blob_id = rpc("create_blob", content="x" * (MIB + 1), kind="text/plain")["blob_id"]

    error = rpc.error("read_blob", blob_id=blob_id, mode="full")

    assert error["code"] == -32005
    assert f"/blobs/{blob_id}" in error["data"]["hint"]
    assert len(rpc("read_blob", blob_id=blob_id, mode="full", max_bytes=MIB)["content"]) == MIB


@pytest.mark.parametrize("max_bytes", [0, -1, 1.5])
def test_max_bytes_has_bounds(rpc: Rpc, max_bytes: float) -> None:
    blob_id = rpc("create_blob", content="x", kind="text/plain")["blob_id"]

    assert rpc.error("read_blob", blob_id=blob_id, max_bytes=max_bytes)["code"] == -32602


@pytest.mark.parametrize("blob_id", ["blob:nothing", "nothing", "", "blob:../../etc/passwd", "ä", "x" * 10_000])
def test_read_blob_reports_any_unknown_id_as_missing(rpc: Rpc, blob_id: str) -> None:
    error = rpc.error("read_blob", blob_id=blob_id)

    assert (error["code"], error["data"]["type"]) == (-32003, "blob_not_found")


@pytest.mark.parametrize("kind", ["", "text", "text/plain\r\nx: y", "a/b/c", "x" * 300 + "/y"])
def test_a_kind_that_is_no_mime_type_is_an_invalid_param(rpc: Rpc, kind: str) -> None:
    assert rpc.error("create_blob", content="x", kind=kind)["code"] == -32602


def test_content_that_is_no_base64_is_an_invalid_param(rpc: Rpc) -> None:
    assert rpc.error("create_blob", content="*", kind="text/plain", encoding="base64")["code"] == -32602


# -- streams ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, 64 * KIB, 64 * KIB + 1, 3 * MIB + 17])
def test_a_stream_goes_in_and_out(rpc: Rpc, size: int) -> None:
    content = os.urandom(size)

    response = rpc.http.post("/blobs", content=content, headers={"content-type": "image/png"})

    assert response.status_code == 201
    blob_id = response.json()["blob_id"]
    assert response.json()["size_bytes"] == size
    out = rpc.http.get(f"/blobs/{blob_id}")
    assert out.content == content
    assert out.headers["content-type"] == "image/png"
    assert out.headers["x-content-type-options"] == "nosniff"
    assert out.headers["content-disposition"] == "attachment"


def test_a_stream_without_a_kind_is_octets(rpc: Rpc) -> None:
    request = rpc.http.build_request("POST", "/blobs", content=b"x")
    request.headers.pop("content-type", None)
    blob_id = rpc.http.send(request).json()["blob_id"]

    assert rpc("read_blob", blob_id=blob_id)["kind"] == "application/octet-stream"


@pytest.mark.parametrize(
    ("header", "start", "stop"),
    [
        ("bytes=0-9", 0, 10),
        ("bytes=5-", 5, 100_000),
        ("bytes=-7", 99_993, 100_000),
        ("bytes=99999-200000", 99_999, 100_000),
        ("bytes=0-99999", 0, 100_000),
        ("bytes=-200000", 0, 100_000),
    ],
)
def test_a_range_is_answered_with_206(rpc: Rpc, header: str, start: int, stop: int) -> None:
    content = os.urandom(100_000)
    blob_id = rpc.http.post("/blobs", content=content).json()["blob_id"]

    response = rpc.http.get(f"/blobs/{blob_id}", headers={"range": header})

    assert response.status_code == 206
    assert response.content == content[start:stop]
    assert response.headers["content-range"] == f"bytes {start}-{stop - 1}/100000"


@pytest.mark.parametrize("header", ["bytes=100000-", "bytes=200000-300000", "bytes=-0"])
def test_a_range_outside_is_416(rpc: Rpc, header: str) -> None:
    blob_id = rpc.http.post("/blobs", content=b"x" * 100_000).json()["blob_id"]

    response = rpc.http.get(f"/blobs/{blob_id}", headers={"range": header})

    assert response.status_code == 416
    assert response.headers["content-range"] == "bytes */100000"


@pytest.mark.parametrize("header", ["lines=0-1", "bytes=", "bytes=-", "bytes=0-1,3-4", "bytes=9-3", "nonsense"])
def test_a_range_that_is_none_is_ignored(rpc: Rpc, header: str) -> None:
    blob_id = rpc.http.post("/blobs", content=b"hello").json()["blob_id"]

    response = rpc.http.get(f"/blobs/{blob_id}", headers={"range": header})

    assert (response.status_code, response.content) == (200, b"hello")


def test_head_answers_without_a_body(rpc: Rpc) -> None:
    blob_id = rpc.http.post("/blobs", content=b"hello").json()["blob_id"]

    response = rpc.http.head(f"/blobs/{blob_id}")

    assert (response.status_code, response.headers["content-length"], response.content) == (200, "5", b"")


def test_the_endpoints_of_blobs_return_json_errors(rpc: Rpc) -> None:
    missing = rpc.http.get("/blobs/blob:nothing")
    wrong = rpc.http.post("/blobs", content=b"x", headers={"content-type": "nonsense"})

    assert (missing.status_code, missing.json()["error"]["code"]) == (404, -32003)
    assert (wrong.status_code, wrong.json()["error"]["code"]) == (400, -32602)
    assert rpc.http.delete("/blobs/blob:nothing").status_code == 405


def rss_peak_mib(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) / KIB for line in lines if line.startswith("VmHWM"))


LARGE_MIB = 320


@pytest.mark.full
@pytest.mark.long
def test_a_large_blob_goes_through_at_constant_memory(start_server: Callable[..., Server]) -> None:
    server = start_server()
    piece = os.urandom(MIB)

    def pieces() -> Iterator[bytes]:
        for _ in range(LARGE_MIB):
            yield piece

    blob_id = server.rpc.http.post("/blobs", content=pieces()).json()["blob_id"]
    sent, digest, size = hashlib.sha256(), hashlib.sha256(), 0
    for _ in range(LARGE_MIB):
        sent.update(piece)
    with server.rpc.http.stream("GET", f"/blobs/{blob_id}") as response:
        for chunk in response.iter_bytes():
            size += len(chunk)
            digest.update(chunk)

    assert size == LARGE_MIB * MIB
    assert digest.hexdigest() == sent.hexdigest()
    assert rss_peak_mib(server.process.pid) < 200 < LARGE_MIB


def contents_of(home: Path) -> set[Path]:
    return {path for path in (home / "contents").rglob("*") if path.is_file()}


@pytest.mark.full
def test_an_upload_that_breaks_off_leaves_nothing(start_server: Callable[..., Server]) -> None:
    server = start_server()
    host, port = server.url.removeprefix("http://").split(":")
    before = contents_of(server.home)
    with socket.create_connection((host, int(port))) as client:
        head = f"POST /blobs HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Length: 9000000\r\n\r\n"
        client.sendall(head.encode() + b"x" * 4_000_000)
        eventually(lambda: contents_of(server.home) != before)

    eventually(lambda: contents_of(server.home) == before)
    assert server.rpc("create_blob", content="x", kind="text/plain")["size_bytes"] == 1
