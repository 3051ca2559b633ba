"""Messages of MCP that the SDK does not see: their answers equal those of the SDK, and unusual ones reach the SDK."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import product
from pathlib import Path
from typing import Any

import httpx
import pytest

from skillery.authoring.packages import open_temporary_home
from skillery.backends import Identity
from skillery.mcp.requests import ActiveCalls, TaskTerms, Visit
from skillery.mcp.responder import respond
from skillery.settings.load import Settings
from tests.conftest import Rpc, Server, manifest
from tests.support.mcp_client import LEGACY, MODERN, PREFIX, Mcp

# The server passes every message with a header of MCP that it does not know to the SDK. The SDK ignores this header.
BY_SDK = {"mcp-param-unused": "1"}
VERSIONS = (MODERN, LEGACY, "2025-03-26", "2024-11-05", "", "1999-01-01")
TOOLS = "?tools=search_skills,code_contract,output_schemas"
IDS = (
    "1",
    "0",
    "-7",
    '"abc"',
    '""',
    '"a b~"',
    '"é"',
    '"\\u0041"',
    '"q\\"q"',
    "1.0",
    "-0",
    "1e3",
    "null",
    "true",
    "[1]",
)
LARGE_IDS = (str(2**53), str(2**70), json.dumps("x" * 200))
SKILL_MD = '---\nname: x\ndescription: é€😀\n---\n# Ünï\x7f "quoted" \\ back\n'
_http = httpx.Client(timeout=300)
Request = tuple[bytes, dict[str, str], str]


@pytest.mark.full
def test_direct_answers_equal_those_of_the_sdk(sqlite_server: Server, new_name: str) -> None:
    publish(sqlite_server.rpc, new_name)
    requests = [*ordinary(new_name), *with_ids(), *with_arguments(new_name), *with_meta(), *odd_messages(new_name)]

    different = [
        (body, headers, address, direct, by_sdk)
        for body, headers, address in requests
        for by_sdk in [answer(sqlite_server.url, body, headers | BY_SDK, address)]
        for direct in [answer(sqlite_server.url, body, headers, address)]
        if direct != by_sdk
    ]

    assert len(requests) > 150
    assert different == []


def test_large_results_are_equal_too(sqlite_server: Server, new_name: str) -> None:
    files = [{"path": "large.txt", "content": "é\n" * 50_000}]
    made = manifest(new_name, kind="instruction")
    sqlite_server.rpc("create_skill", manifest=made, skill_md="# Large\n", files=files)
    asked = {"name": "read_skill_file", "arguments": {"name": new_name, "path": "large.txt"}}

    for version in (MODERN, LEGACY):
        body, headers = request("tools/call", asked, version)
        by_sdk = answer(sqlite_server.url, body, headers | BY_SDK, "/mcp")
        assert [answer(sqlite_server.url, body, headers, "/mcp") for _ in range(3)] == [by_sdk] * 3
        assert len(str(by_sdk[2])) > 100_000


def test_calls_are_refused_and_counted_like_those_of_the_sdk(tokens_sqlite: Server) -> None:
    body, headers = request("tools/list", {}, MODERN)

    for more in ({}, BY_SDK):
        assert answer(tokens_sqlite.url, body, headers | more, "/mcp")[0] == 401
        foreign = {"origin": "https://elsewhere.example"}
        assert answer(tokens_sqlite.url, body, headers | more | foreign, "/mcp")[0] == 403


async def test_the_responder_answers_tool_lists_and_reads(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path)
    async with open_temporary_home(settings, []) as (core, _):

        async def is_answered(method: str, params: dict[str, Any], version: str) -> bool:
            body, headers = request(method, params, version)
            raw = [(name.encode(), value.encode()) for name, value in headers.items()]
            scope = {"type": "http", "method": "POST", "path": "/mcp", "headers": raw, "query_string": b""}
            caller = Identity("local", scopes=frozenset({"admin"}))
            visit = Visit(core, caller, ActiveCalls(), headers, (), TaskTerms(30.0, None))
            return await respond(visit, scope, headers, body, _dropped)

        answered = {
            (method, version): await is_answered(method, params, version)
            for version in (MODERN, LEGACY, "2025-06-18", "")
            for method, params in (("tools/list", {}), ("tools/call", {"name": "list_skills", "arguments": {}}))
        }
        run = await is_answered("tools/call", {"name": "run_code", "arguments": {"language": "python"}}, MODERN)

    assert answered == dict.fromkeys(answered, True)
    assert not run


async def _dropped(_: Any) -> None:
    return


def answer(url: str, body: bytes, headers: Mapping[str, str], address: str) -> tuple[int, dict[str, str], Any]:
    """Return the status, the headers and the decoded body of a response, without what differs between equal requests
    or depends on how the JSON is written.
    """
    response = _http.post(f"{url}{address}", content=body, headers=dict(headers))
    ignored = {"date", "x-request-id", "content-length"}
    kept = {name: value for name, value in response.headers.items() if name not in ignored}
    event, _, data = response.text.partition("data: ")
    text = data if kept.get("content-type") == "text/event-stream" else response.text
    try:
        return response.status_code, kept, (event if text is data else "", json.loads(text))
    except ValueError:
        return response.status_code, kept, response.content


def request(method: str, params: dict[str, Any], version: str, call_id: str = "1") -> tuple[bytes, dict[str, str]]:
    text, headers = Mcp(Rpc("http://127.0.0.1"), version).request(method, params)
    headers["mcp-protocol-version"] = version
    if not version:
        del headers["mcp-protocol-version"]
    return text.replace('"id": 1,', f'"id": {call_id},').encode(), headers


def ordinary(name: str) -> Iterator[Request]:
    """Yield the calls of every version of the protocol, with and without further tools."""
    calls: list[tuple[str, dict[str, Any]]] = [
        ("tools/list", {}),
        ("tools/call", {"name": "list_skills", "arguments": {"limit": 3, "namespace": name}}),
        ("tools/call", {"name": "describe_skill", "arguments": {"name": f"{name}.tricky", "detail": "full"}}),
        ("tools/call", {"name": "describe_skill", "arguments": {"name": "nobody.has.this"}}),
        ("tools/call", {"name": "search_skills", "arguments": {"query": name}}),
        ("ping", {}),
    ]
    for version, (method, params), query in product(VERSIONS, calls, ("", TOOLS)):
        yield *request(method, params, version), f"/mcp{query}"


def with_ids() -> Iterator[Request]:
    for version, call_id in product((MODERN, LEGACY), IDS + LARGE_IDS):
        yield *request("tools/call", {"name": "load_skills_protocol_guide"}, version, call_id), "/mcp"


def with_arguments(name: str) -> Iterator[Request]:
    odd: list[Any] = [
        {},
        None,
        [],
        "text",
        {"limit": 1.0},
        {"limit": 1.5},
        {"limit": 2**70},
        {"limit": "5"},
        {"limit": None, "namespace": name},
        {"limt": 5},
        {"tags": ["a"]},
        {"counts": True, "namespace": name},
        {"namespace": "é"},
        {"namespace": "\ud800"},
        {"namespace": {"a": [1, 2.5, None]}},
    ]
    for version, arguments in product((MODERN, LEGACY), odd):
        yield *request("tools/call", {"name": "list_skills", "arguments": arguments}, version), "/mcp"
    for version in (MODERN, LEGACY):
        yield *request("tools/call", {"name": "no_such_tool", "arguments": {}}, version), "/mcp"
        yield *request("tools/list", {"cursor": "x"}, version), "/mcp"
        yield *request("tools/list", {"name": "x"}, version), "/mcp"


def with_meta() -> Iterator[Request]:
    client = {"name": "a client", "version": "1"}
    metas: list[Any] = [
        {},
        {f"{PREFIX}/clientInfo": client},
        {f"{PREFIX}/clientInfo": "no object"},
        {f"{PREFIX}/clientCapabilities": "no object"},
        {f"{PREFIX}/clientCapabilities": {"extensions": {"x": True}}},
        {f"{PREFIX}/clientCapabilities": {"experimental": {"x": 1}}},
        {f"{PREFIX}/clientCapabilities": {"elicitation": {"form": True}, "roots": {"listChanged": True}}},
        {f"{PREFIX}/clientCapabilities": {"elicitation": {"form": {}}, "extensions": {"x": {"y": 1}}}},
        {"traceparent": "00-1-2-03"},
        {"progressToken": 7},
        {f"{PREFIX}/logLevel": "info"},
        {f"{PREFIX}/logLevel": "loud"},
        {"skillery/idempotency-key": "k1"},
    ]
    for version, meta, method in product((MODERN, LEGACY), metas, ("tools/list", "tools/call")):
        params = {
            "_meta": meta,
            **({"name": "list_skills", "arguments": {"limit": 1}} if method == "tools/call" else {}),
        }
        body, headers = request(method, params, version)
        if version == MODERN:
            # `request` puts its own members into `_meta`, and so would hide wrong ones.
            sent = json.loads(body)
            sent["params"]["_meta"] |= meta
            body = json.dumps(sent).encode()
        yield body, headers, "/mcp"


def odd_messages(name: str) -> Iterator[Request]:
    asked = {"name": "list_skills", "arguments": {"limit": 1, "namespace": name}}
    accepts = ("application/json", "text/event-stream", "*/*", "application/*, text/*", "text/html", "")
    for version in (MODERN, LEGACY):
        body, headers = request("tools/call", asked, version)
        for accept in accepts:
            yield body, headers | {"accept": accept}, "/mcp"
        for kind in ("application/json; charset=utf-8", "Application/JSON"):
            yield body, headers | {"content-type": kind}, "/mcp"
        for header, value in product(
            ("mcp-method", "mcp-name"), ("", "other", "tools/call", "=?base64?bGlzdF9za2lsbHM=?=")
        ):
            yield body, headers | {header: value}, "/mcp"
        yield body, headers | {"mcp-session-id": "abc"}, "/mcp"
        sent = json.loads(body)
        without_id = {key: value for key, value in sent.items() if key != "id"}
        for changed in ([sent], [sent, sent], without_id, sent | {"jsonrpc": "1.0"}, sent | {"more": 1}, [], {}, 7):
            yield json.dumps(changed).encode(), headers, "/mcp"
        twice = b'{"id": 5, ' + body[1:]
        for odd in (body + b"x", b"", b"{", b"\xef\xbb\xbf" + body, body.replace(b"1", b"\xff", 1), twice, b" " + body):
            yield odd, headers, "/mcp"
        yield body, headers, f"/mcp?tools={name}.tricky"


def publish(rpc: Rpc, name: str) -> None:
    inputs = {
        "number": {"type": "number", "default": 1e16, "description": "Zahl é"},
        "small": {"type": "number", "default": 1e-7},
    }
    made = manifest(
        f"{name}.tricky", kind="instruction", inputs=inputs, description="é€😀 'x'", more={"a": [0.1, 2**60]}
    )
    rpc("create_skill", manifest=made, skill_md=SKILL_MD, files=[])
