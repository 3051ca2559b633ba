"""JSON-RPC 2.0 as the contract narrows it: requests, responses and the code of each error."""

from __future__ import annotations

import json

import pytest

from tests.conftest import Rpc, Server

GUIDE = {"jsonrpc": "2.0", "id": 1, "method": "load_skills_protocol_guide"}


def one(rpc: Rpc, body: bytes | str) -> dict[str, object]:
    response = rpc.raw(body)
    assert response.status_code == 200
    reply: dict[str, object] = response.json()
    return reply


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", -32700),
        (b"{", -32700),
        (b"nonsense", -32700),
        (b'{"a": NaN}', -32700),
        (b"\xff\xfe", -32700),
        (b'{"jsonrpc": "2.0", "method": "\xff"}', -32700),
        (b"1", -32600),
        (b'"text"', -32600),
        (b"null", -32600),
        (b"[]", -32600),
        (b"{}", -32600),
        (b'{"jsonrpc": "1.0", "id": 1, "method": "list_skills"}', -32600),
        (b'{"id": 1, "method": "list_skills"}', -32600),
        (b'{"jsonrpc": "2.0", "id": 1}', -32600),
        (b'{"jsonrpc": "2.0", "id": 1, "method": 5}', -32600),
        (b'{"jsonrpc": "2.0", "id": {}, "method": "list_skills"}', -32600),
        (b'{"jsonrpc": "2.0", "id": true, "method": "list_skills"}', -32600),
        (b'{"jsonrpc": "2.0", "id": 1, "method": "list_skils"}', -32601),
        (b'{"jsonrpc": "2.0", "id": 1, "method": "list_skills", "params": [1]}', -32602),
        (b'{"jsonrpc": "2.0", "id": 1, "method": "list_skills", "params": "x"}', -32602),
        (b'{"jsonrpc": "2.0", "id": 1, "method": "list_skills", "params": {"limit": 1e400}}', -32602),
        (b"[" * 100_000, -32700),
        (b'{"jsonrpc":"2.0","id":1,"method":"run_code","params":' + b'{"args":' * 5000, -32700),
    ],
)
def test_each_invalid_call_gets_its_error_code(sqlite_rpc: Rpc, body: bytes, code: int) -> None:
    reply = one(sqlite_rpc, body)

    assert reply["jsonrpc"] == "2.0"
    assert reply["error"]["code"] == code  # type: ignore[index]
    assert "Traceback" not in json.dumps(reply)


def test_an_unknown_method_names_the_nearest(sqlite_rpc: Rpc) -> None:
    error = sqlite_rpc.error("list_skils")

    assert error["data"]["type"] == "method_not_found"
    assert "'list_skills'" in error["data"]["hint"]


def test_an_unknown_param_names_the_nearest(sqlite_rpc: Rpc) -> None:
    error = sqlite_rpc.error("list_skills", namspace="x")

    assert error["code"] == -32602
    assert "namspace" in error["message"]
    assert "'namespace'" in error["data"]["hint"]


def test_a_missing_param_is_named(sqlite_rpc: Rpc) -> None:
    error = sqlite_rpc.error("describe_skill")

    assert error["code"] == -32602
    assert "'name'" in error["message"]


def test_a_param_of_the_wrong_type_is_named(sqlite_rpc: Rpc) -> None:
    error = sqlite_rpc.error("list_skills", limit="many")

    assert error["code"] == -32602
    assert "'limit'" in error["message"]


@pytest.mark.parametrize("limit", [0, -1, 2.5])
def test_a_limit_outside_its_bounds_is_invalid(sqlite_rpc: Rpc, limit: float) -> None:
    assert sqlite_rpc.error("list_skills", limit=limit)["code"] == -32602


def test_an_explicit_null_equals_a_param_left_out(sqlite_rpc: Rpc) -> None:
    left_out = sqlite_rpc("list_skills")
    null = sqlite_rpc("list_skills", namespace=None, detail=None, limit=None, cursor=None)

    assert null == left_out
    assert sqlite_rpc.error("describe_skill", name=None)["code"] == -32602


def test_params_may_be_null_or_left_out(sqlite_rpc: Rpc) -> None:
    for body in (GUIDE, GUIDE | {"params": None}, GUIDE | {"params": {}}):
        assert "result" in one(sqlite_rpc, json.dumps(body))


@pytest.mark.parametrize("number", ["text", 5, 1.5, None, 12345678901234567890])
def test_an_id_comes_back_as_it_went(sqlite_rpc: Rpc, number: object) -> None:
    assert one(sqlite_rpc, json.dumps(GUIDE | {"id": number}))["id"] == number


def test_a_notification_gets_204_and_no_body(sqlite_rpc: Rpc) -> None:
    response = sqlite_rpc.raw('{"jsonrpc": "2.0", "method": "no_such_method"}')

    assert response.status_code == 204
    assert response.content == b""


def test_a_batch_answers_in_order_and_leaves_notifications_out(sqlite_rpc: Rpc) -> None:
    calls: list[object] = [GUIDE | {"id": 1}, {"jsonrpc": "2.0", "method": "list_skills"}, 7, GUIDE | {"id": 2}]
    reply = sqlite_rpc.raw(json.dumps(calls)).json()

    assert [answer["id"] for answer in reply] == [1, None, 2]
    assert reply[1]["error"]["code"] == -32600


def test_a_batch_of_notifications_gets_204(sqlite_rpc: Rpc) -> None:
    assert sqlite_rpc.raw('[{"jsonrpc": "2.0", "method": "list_skills"}]').status_code == 204


def test_a_batch_of_101_calls_is_refused_whole(sqlite_rpc: Rpc) -> None:
    assert len(sqlite_rpc.raw(json.dumps([GUIDE] * 100)).json()) == 100

    assert sqlite_rpc.raw(json.dumps([GUIDE] * 101)).json()["error"]["code"] == -32600


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("describe_skill", {"name": "a\ud800b"}),
        ("describe_skill", {"name": "a\0b"}),
        ("describe_skill", {"name": "skills.protocol.guide", "version": "1\0"}),
        ("read_skill_file", {"name": "skills.protocol.guide", "path": "a\0b"}),
        ("read_skill_file", {"name": "skills.protocol.guide", "path": "a\udfff"}),
        ("read_blob", {"blob_id": "blob:\0"}),
        ("read_blob", {"blob_id": "blob:\ud834"}),
        ("execute_skill", {"name": "a\0"}),
        ("list_skills", {"namespace": "a\0"}),
        ("list_skills", {"namespace": "\ud800"}),
        ("list_skills", {"cursor": "\0"}),
        ("run_code", {"language": "python", "code": "", "mount_skills": ["a\0"]}),
        ("create_blob", {"content": "x", "kind": "text/\0"}),
    ],
)
def test_a_lone_surrogate_or_a_nul_is_an_invalid_param(rpc: Rpc, method: str, params: dict[str, object]) -> None:
    body = json.dumps({"jsonrpc": "2.0", "id": 9, "method": method, "params": params})

    reply = one(rpc, body)

    assert reply["id"] == 9
    assert reply["error"]["code"] == -32602, reply  # type: ignore[index]


# -- HTTP -------------------------------------------------------------------------------------------------------------


def test_only_post_is_taken(sqlite_rpc: Rpc) -> None:
    response = sqlite_rpc.http.get("/rpc")

    assert response.status_code == 405
    assert response.headers["allow"] == "POST"
    assert response.json()["error"]["data"]["type"] == "method_not_allowed"


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "", "application/jsonp"])
def test_another_content_type_is_415(sqlite_rpc: Rpc, kind: str) -> None:
    response = sqlite_rpc.raw(json.dumps(GUIDE), **{"content-type": kind})

    assert response.status_code == 415
    assert response.json()["jsonrpc"] == "2.0"


def test_a_charset_after_the_content_type_is_accepted(sqlite_rpc: Rpc) -> None:
    assert sqlite_rpc.raw(json.dumps(GUIDE), **{"content-type": "Application/JSON; charset=utf-8"}).status_code == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example:80", "10.0.0.1", ""]
)
@pytest.mark.parametrize("path", ["/rpc", "/blobs", "/tools", "/prompt", "/blobs/blob:x"])
def test_a_foreign_host_is_403_at_every_endpoint(sqlite_rpc: Rpc, host: str, path: str) -> None:
    verb = "GET" if path in {"/tools", "/prompt", "/blobs/blob:x"} else "POST"
    response = sqlite_rpc.http.request(
        verb, path, content=json.dumps(GUIDE), headers={"host": host, "content-type": "application/json"}
    )

    assert response.status_code == 403
    assert response.json()["error"]["data"]["type"] == "host_not_allowed"


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:1234", "127.0.0.1"])
def test_a_host_of_this_server_is_fine(sqlite_rpc: Rpc, host: str) -> None:
    assert sqlite_rpc.raw(json.dumps(GUIDE), host=host).status_code == 200


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "https://127.0.0.1", "http://127.0.0.1:1"])
@pytest.mark.parametrize("path", ["/rpc", "/blobs"])
def test_a_foreign_origin_is_403(sqlite_rpc: Rpc, origin: str, path: str) -> None:
    response = sqlite_rpc.http.post(
        path, content=json.dumps(GUIDE), headers={"origin": origin, "content-type": "application/json"}
    )

    assert response.status_code == 403


def test_the_own_origin_is_fine(sqlite_server: Server) -> None:
    assert sqlite_server.rpc.raw(json.dumps(GUIDE), origin=sqlite_server.url).status_code == 200


@pytest.mark.full
def test_a_body_over_the_cap_is_413(start_server: object) -> None:
    rpc = start_server(env={"SKILLERY_MAX_BODY_MB": "1"}).rpc  # type: ignore[operator]
    large = json.dumps(GUIDE | {"pad": "x" * 1_100_000}).encode()

    def in_pieces() -> object:
        for start in range(0, len(large), 65536):
            yield large[start : start + 65536]

    assert rpc.raw(large).status_code == 413
    chunked = rpc.http.post("/rpc", content=in_pieces(), headers={"content-type": "application/json"})
    assert chunked.status_code == 413
    assert chunked.json()["error"]["code"] == -32005


@pytest.mark.parametrize("path", ["/nothing/here", "/blobsome", "/rpc/x"])
def test_an_address_that_is_not_there_is_404_as_json(sqlite_rpc: Rpc, path: str) -> None:
    response = sqlite_rpc.http.get(path)

    assert response.status_code == 404
    assert response.json()["error"]["data"]["type"] == "not_found"


def test_health_needs_no_token_and_readiness_checks_all_three(server: Server) -> None:
    assert server.rpc.http.get("/healthz", headers={"host": "probe.example"}).status_code == 200
    ready = server.rpc.http.get("/readyz", headers={"host": "probe.example"})
    assert ready.status_code == 200
    assert ready.json()["checks"] == {"database": "ok", "storage": "ok", "cache": "ok", "sandbox": "ok"}
