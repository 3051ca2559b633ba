"""Large request bodies: the server refuses invalid ones without decoding them, and accepts valid ones."""

from __future__ import annotations

import base64
import json
import os
from typing import Any

import pytest

from tests.conftest import Rpc, manifest
from tests.support.mcp_client import LEGACY, MODERN, Mcp, message_of

MIB = 1024 * 1024
ERAS = (MODERN, LEGACY)


def body(method: str, params: bytes, reply_to: bytes = b"1") -> bytes:
    return b'{"jsonrpc":"2.0","id":%s,"method":"%s","params":%s}' % (reply_to, method.encode(), params)


def error_of(rpc: Rpc, content: bytes) -> dict[str, Any]:
    response = rpc.raw(content)
    assert response.status_code == 200
    error: dict[str, Any] = response.json()["error"]
    return error


MANY = b"[" + b"1," * 3_000_000 + b"1]"


@pytest.mark.parametrize(
    "content",
    [
        MANY,
        body("list_skills", b'{"a":' + MANY + b"}"),
        body("list_skills", b'{"a":' + MANY + b"}", b"true"),
        body("execute_skill", b'{"name":"a","args":{"a":' + MANY + b"}}"),
        body("create_skill", b'{"manifest":{"a":"\\"","b":' + MANY + b'},"skill_md":""}'),
        b"[" + body("list_skills", b'{"a":' + MANY + b"}") + b"]",
    ],
)
@pytest.mark.full(after=1)
def test_a_body_of_too_many_values_is_refused(sqlite_rpc: Rpc, content: bytes) -> None:
    error = error_of(sqlite_rpc, content)

    assert (error["code"], error["data"]["type"]) == (-32005, "too_many_values")
    assert "POST /blobs" in error["data"]["hint"]


@pytest.mark.parametrize("text", [",:[{" * MIB, '",\\"' * MIB, "\\" * 2 * MIB])
@pytest.mark.full(after=1)
def test_separators_in_texts_are_no_values(sqlite_rpc: Rpc, text: str) -> None:
    made = sqlite_rpc("create_blob", content=text, kind="text/plain")

    assert made["size_bytes"] == len(text)


def test_a_text_of_escapes_alone_is_refused(sqlite_rpc: Rpc) -> None:
    text = b"\\n" * 9_000_000

    error = error_of(sqlite_rpc, body("create_blob", b'{"kind":"text/plain","content":"' + text + b'"}'))

    assert (error["code"], error["data"]["type"]) == (-32005, "too_many_escapes")
    assert "POST /blobs" in error["data"]["hint"]


def test_elements_of_a_batch_are_counted_before_they_are_decoded(sqlite_rpc: Rpc) -> None:
    error = error_of(sqlite_rpc, b"[" + b"1," * 400_000 + b"1]")

    assert (error["code"], error["data"]["type"]) == (-32600, "invalid_request")


PAD = b"x" * 2 * MIB


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (body("list_skills", b'{"a":"' + PAD + b'"}', b"true"), -32600),
        (b'{"jsonrpc":"2.0","id":1,"params":{"a":"' + PAD + b'"}}', -32600),
        (b'["' + PAD + b'"]', -32600),
        (b'"' + PAD + b'"', -32600),
        (b'{"jsonrpc":"2.0","id":1,"method":"list_skills","params":{"a":"' + PAD, -32700),
        (b'[{"a":"' + PAD, -32700),
        (PAD, -32700),
        (body("list_skills", b'{"a":"\xff' + PAD + b'"}'), -32700),
        (body("create_blob", b'{"kind":"text/plain","content":"\\ud800' + PAD + b'"}'), -32602),
        (body("list_skills", b'{"limit":null,"cursor":null,"namspace":"' + PAD + b'"}'), -32602),
        (body("list_skills", b'{"limit":"' + PAD + b'"}'), -32602),
        (body("list_skills", b'["' + PAD + b'"]'), -32602),
    ],
)
@pytest.mark.full(after=6)
def test_large_bodies_get_the_same_errors_as_small_bodies(sqlite_rpc: Rpc, content: bytes, code: int) -> None:
    reply = sqlite_rpc.raw(content).json()
    error = (reply[0] if isinstance(reply, list) else reply)["error"]

    assert error["code"] == code, error
    assert len(json.dumps(error)) < 1000


def test_an_unknown_param_among_many_names_the_nearest(sqlite_rpc: Rpc) -> None:
    keys = b",".join(b'"namspace%d":1' % number for number in range(80_000))

    error = error_of(sqlite_rpc, body("list_skills", b"{" + keys + b"}"))

    assert error["code"] == -32602
    assert "'namespace'" in error["data"]["hint"]


def test_nulls_in_a_large_call_are_params_left_out(sqlite_rpc: Rpc) -> None:
    params = b'{"encoding":null,"ttl":null,"kind":"text/plain","content":"' + PAD + b'"}'

    assert sqlite_rpc.raw(body("create_blob", params)).json()["result"]["size_bytes"] == len(PAD)


def test_the_args_of_a_run_may_hold_many_values(sqlite_rpc: Rpc) -> None:
    code = "def main(args):\n    return len(args['rows']) + len(args['rows'][0])\n"
    rows = [{"id": number, "name": "n", "price": 1.5} for number in range(60_000)]

    run = sqlite_rpc("run_code", language="python", code=code, args={"rows": rows})

    assert run["output"] == 60_003


def tool_call(arguments: bytes) -> bytes:
    return body("tools/call", b'{"name":"a","arguments":%s}' % arguments)


# -- MCP ---------------------------------------------------------------------------------------------------------------


@pytest.fixture(params=ERAS)
def mcp(request: pytest.FixtureRequest, sqlite_rpc: Rpc) -> Mcp:
    return Mcp(sqlite_rpc, request.param, tools="create_skill")


def test_large_arguments_of_a_tool_are_taken(mcp: Mcp) -> None:
    code = "def main(args):\n    return len(args['text'])\n"

    answer = mcp.tool("run_code", language="python", code=code, args={"text": "é" * MIB})

    assert answer["structuredContent"]["output"] == MIB


@pytest.mark.full
def test_a_bundle_at_its_limit_is_published_by_mcp(mcp: Mcp, new_name: str) -> None:
    skill_md = "# x\n"
    made = manifest(f"{new_name}.s{mcp.era[:4]}", kind="instruction")
    content = base64.b64encode(os.urandom(16 * MIB - 4096)).decode()
    files = [{"path": "large.bin", "content": content, "encoding": "base64"}]

    answer = mcp.tool("create_skill", manifest=made, skill_md=skill_md, files=files)

    assert answer["isError"] is False, answer
    assert answer["structuredContent"]["status"] == "published"


def test_a_body_that_no_bundle_needs_is_413(mcp: Mcp) -> None:
    response = mcp.send("tools/call", {"name": "run_code", "arguments": {"code": "x" * 24 * MIB}})

    assert response.status_code == 413
    assert response.json()["error"]["code"] == -32005


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("tools/list", {"cursor": "x" * 100_000}),
        ("tools/call", {"name": "x" * 100_000, "arguments": {}}),
        ("tools/call", {"name": "run_code", "_meta": {"x": "x" * 100_000}, "arguments": {}}),
        ("resources/read", {"uri": "skill://" + "x" * 100_000}),
    ],
)
def test_a_message_that_is_large_without_arguments_is_413(sqlite_rpc: Rpc, method: str, params: dict[str, Any]) -> None:
    response = Mcp(sqlite_rpc, LEGACY).send(method, params)

    assert response.status_code == 413
    assert response.json()["error"]["data"]["type"] == "body_too_large"


@pytest.mark.parametrize(
    ("content", "status"),
    [
        (b"[" * 100_000, 400),
        (b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":["' + PAD + b'"]}', 400),
        (tool_call(b'["' + PAD + b'"]'), 400),
        (tool_call(b'{"a":"' + PAD), 400),
        (
            b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a","arguments":{"a":"\xff'
            + PAD
            + b'"}}}',
            400,
        ),
        (tool_call(b'{"a":' + MANY + b"}"), 413),
    ],
)
@pytest.mark.full(after=5)
def test_a_large_message_that_is_none_is_refused(mcp: Mcp, content: bytes, status: int) -> None:
    _, headers = mcp.request("tools/list", {})

    response = mcp.http.post(mcp.address, content=content, headers=headers)

    assert response.status_code == status
    assert response.json()["error"]["message"]


def test_of_a_name_that_comes_twice_both_readers_take_the_same(sqlite_rpc: Rpc) -> None:
    arguments = b'{"name":"skills.protocol.guide","path":"SKILL.md"}'
    large = b'{"pad":"' + PAD + b'"}'
    twice = b'{"name":"create_skill","name":"read_skill_file","arguments":%s,"arguments":%s}'
    _, headers = Mcp(sqlite_rpc, LEGACY).request("tools/list", {})

    answers = [
        message_of(sqlite_rpc.http.post("/mcp", content=body("tools/call", twice % pair), headers=headers))["result"]
        for pair in ((large, arguments), (arguments, large))
    ]

    assert answers[0]["structuredContent"]["encoding"] == "utf-8"
    assert "there is no parameter 'pad'" in answers[1]["structuredContent"]["error"]["message"]


def test_a_connection_that_asks_for_too_many_tools_gets_an_error(sqlite_rpc: Rpc, new_name: str) -> None:
    names = [f"{new_name}.s{number}" for number in range(3)]
    for name in names:
        tools = [{"name": f"t{number}", "description": "d" * 900, "parameters": {}} for number in range(500)]
        files = [{"path": "tools.json", "content": json.dumps(tools)}]
        sqlite_rpc("create_skill", manifest=manifest(name, kind="instruction"), skill_md="# x\n", files=files)

    error = Mcp(sqlite_rpc, tools=",".join(names)).error("tools/list")

    assert error["data"]["type"] == "answer_too_large"
    assert "fewer skills" in error["data"]["hint"]
    assert len(Mcp(sqlite_rpc, tools=names[0])("tools/list")["tools"]) == 508


HUGE = b"1e308"


@pytest.mark.parametrize(
    ("number", "times"), [(HUGE, 3_000), (b"1E+0308", 3_000), (b"-9.5e-307", 3_000), (b"0." + b"0" * 310 + b"1", 1_000)]
)
def test_many_numbers_that_are_slow_to_decode_are_refused(sqlite_rpc: Rpc, number: bytes, times: int) -> None:
    """Decoding one such number takes as long as 300 short ones: one MB of them blocked other clients for seconds."""
    args = b'{"name":"nowhere","args":{"a":[' + b",".join([number] * times) + b"]}}"
    error = error_of(sqlite_rpc, body("execute_skill", args))
    assert (error["code"], error["data"]["type"]) == (-32005, "too_many_values")


def test_a_few_numbers_that_are_slow_to_decode_are_taken(sqlite_rpc: Rpc) -> None:
    args = b'{"language":"python","code":"def main(args): return len(args[\'a\'])","args":{"a":[%s]}}'
    answer = sqlite_rpc.raw(body("run_code", args % b",".join([HUGE] * 1_000))).json()
    assert answer["result"]["output"] == 1_000


def test_texts_that_look_like_such_numbers_are_taken(sqlite_rpc: Rpc) -> None:
    answer = sqlite_rpc.raw(body("create_blob", b'{"kind":"text/plain","content":"%s"}' % (b"1e308," * 50_000))).json()
    assert answer["result"]["size_bytes"] == 300_000


def test_a_manifest_holds_few_numbers_that_are_slow_to_decode(sqlite_rpc: Rpc) -> None:
    numbers = manifest("slow.numbers", kind="instruction", extra=[1e308] * 17)
    error = sqlite_rpc.error("create_skill", manifest=numbers, skill_md="# x\n")
    assert error["code"] == -32602
    assert "16 numbers with exponents of three digits" in error["message"]


def test_a_run_may_return_such_numbers(sqlite_rpc: Rpc) -> None:
    result = sqlite_rpc("run_code", language="python", code="def main(args): return [1e308] * 20_000")
    assert result["status"] == "completed"
    assert result["output"]["size_bytes"] == 7 * 20_000 + 1


def test_the_id_of_a_call_has_a_bounded_length(sqlite_rpc: Rpc) -> None:
    """Each response repeats the id, so a long id uses memory even if the client never reads the response."""
    for text in (b"i" * 2_000, b"i" * 2_000_000):
        error = error_of(sqlite_rpc, b'{"jsonrpc":"2.0","id":"%s","method":"nope"}' % text)
        assert error["code"] == -32600
        assert "at most 1024" in error["message"]
