"""MCP: tools over HTTP and stdio, with the client of the SDK and with plain HTTP requests."""

from __future__ import annotations

import io
import json
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import httpx
import pytest

from skillery.app.home import Home
from skillery.cli.connection import client_of
from skillery.cli.mcp_bridge import McpBridge, RegistryAccess
from skillery.cli.options import Target
from skillery.errors import StartupError
from skillery.mcp.requests import MOST_OF_SDK
from tests.api.test_access import create_token
from tests.conftest import Rpc, Server, clean_environment, manifest
from tests.support.mcp_client import LEGACY, MODERN, Mcp, message_of, messages_of
from tests.support.people import Caller, Who
from tests.support.prefork import FORKED
from tests.support.processes import eventually, eventually_async

ERAS = (MODERN, LEGACY)
SLEEP = "import time\ndef main(args):\n    time.sleep(args['s'])\n    return 'slept'\n"
COUNT = {
    "name": "count_words",
    "description": "Count the words of a text.",
    "script": "scripts/count_words.py",
    "parameters": {
        "text": {"type": "string", "description": "The text"},
        "unit": {"type": "string", "description": "Of what", "enum": ["words", "lines"], "optional": True},
    },
}
COUNT_PY = "def handler(args):\n    return {'words': len(args['text'].split())}\n"


@pytest.fixture(params=ERAS)
def era(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


@pytest.fixture
def mcp(sqlite_rpc: Rpc) -> Mcp:
    return Mcp(sqlite_rpc)


def publish_tools(rpc: Rpc, name: str, *tools: dict[str, Any]) -> None:
    files = [
        {"path": "tools.json", "content": json.dumps(list(tools))},
        {"path": "scripts/count_words.py", "content": COUNT_PY},
    ]
    made = {"name": name, "version": "1.0.0", "description": "Words."}
    rpc("create_skill", manifest=made, skill_md=f"# {name}\n", files=files)


def test_hints_name_only_tools_that_the_model_has(mcp: Mcp, sqlite_rpc: Rpc, new_name: str) -> None:
    sqlite_rpc("create_skill", manifest=manifest(new_name, kind="instruction"), skill_md="# S")
    calls: dict[str, dict[str, str]] = {
        "read_blob": {"blob_id": "blob:none"},
        "describe_skill": {"name": new_name, "version": "9.9.9"},
        "list_skills": {"cursor": "x"},
    }
    hints = {
        name: (
            mcp.tool(name, **params)["structuredContent"]["error"]["data"].get("hint", ""),
            sqlite_rpc.error(name, **params)["data"].get("hint", ""),
        )
        for name, params in calls.items()
    }
    wrong = {name: hint for name, (hint, _) in hints.items() if "list_versions" in hint or "POST" in hint}

    assert wrong == {}
    assert hints["read_blob"] == ("create_blob stores one.", "create_blob or POST /blobs stores one.")


# -- the client of the SDK -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_the_client_of_the_sdk_gets_the_eight_tools_and_calls_them(sqlite_server: Server, mode: str) -> None:
    from mcp.client import Client
    from mcp_types import ResourceTemplateReference

    expected = httpx.get(f"{sqlite_server.url}/tools?format=mcp").json()

    async with Client(f"{sqlite_server.url}/mcp", mode=mode) as client:
        listed = (await client.list_tools()).tools
        called = await client.call_tool(
            "run_code", {"language": "python", "code": "def main(args): return args['x'] + 1", "args": {"x": 1}}
        )
        templates = (await client.list_resource_templates()).resource_templates
        template = ResourceTemplateReference(uri=templates[0].uri_template)
        names = (await client.complete(template, {"name": "skill", "value": "text/csv/"})).completion.values

    assert [(tool.name, tool.description, tool.input_schema) for tool in listed] == [
        (tool["name"], tool["description"], tool["inputSchema"]) for tool in expected
    ]
    assert len(listed) == 8
    assert called.is_error is False
    assert called.structured_content is not None
    assert called.structured_content["output"] == 2
    assert json.loads(called.content[0].text) == called.structured_content  # type: ignore[union-attr]
    assert [one.uri_template for one in templates] == ["skill://{+skill}/{+path}", "skill://{+skill}@{version}/{+path}"]
    assert names == ["text/csv/profile", "text/csv/query"]


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_the_client_of_the_sdk_gets_the_progress_of_a_long_run(sqlite_server: Server, mode: str) -> None:
    from mcp.client import Client

    told: list[tuple[float, str | None]] = []

    async def hear(progress: float, total: float | None, message: str | None) -> None:
        told.append((progress, message))

    async with Client(f"{sqlite_server.url}/mcp", mode=mode) as client:
        arguments = {"language": "python", "code": SLEEP, "args": {"s": 1.5}}
        called = await client.call_tool("run_code", arguments, progress_callback=hear)

    assert called.structured_content is not None
    assert called.structured_content["output"] == "slept"
    assert told
    assert "run_code" in str(told[0][1])


# -- tools -----------------------------------------------------------------------------------------------------------


def test_an_error_is_a_result_that_a_model_can_act_on(sqlite_rpc: Rpc, era: str) -> None:
    expected = sqlite_rpc.error("list_skills", limt=3)

    answer = Mcp(sqlite_rpc, era).tool("list_skills", limt=3)

    assert answer["isError"] is True
    assert answer["structuredContent"] == {"error": expected}
    assert json.loads(answer["content"][0]["text"]) == answer["structuredContent"]
    assert "limit" in expected["data"]["hint"]


def test_a_failed_run_is_a_tool_error_with_structured_content(mcp: Mcp) -> None:
    answer = mcp.tool("run_code", language="python", code="def main(args): return 1 / 0")

    assert answer["isError"] is True
    assert answer["structuredContent"]["status"] == "failed"
    assert answer["structuredContent"]["error"]["type"] == "ZeroDivisionError"


def test_a_failed_run_with_a_large_result_is_an_error(mcp: Mcp) -> None:
    code = """
import pathlib
def main(args):
    folder = pathlib.Path("out", *["d" * 250] * 4)
    folder.mkdir(parents=True)
    for number in range(100):
        (folder / f"{number}.txt").write_text("x")
    return args["number"] / args["by"]
"""

    def run(by: int) -> dict[str, Any]:
        return mcp.tool("run_code", language="python", code=code, args={"number": 1, "by": by})

    failed, completed = run(0), run(1)

    results = failed["structuredContent"], completed["structuredContent"]
    assert min(len(json.dumps(result)) for result in results) > MOST_OF_SDK
    assert [result["status"] for result in results] == ["failed", "completed"]
    assert [failed["isError"], completed["isError"]] == [True, False]


def test_a_tool_that_is_not_there_is_an_error_of_the_protocol(mcp: Mcp) -> None:
    error = mcp.error("tools/call", name="list_labels", arguments={"name": "x"})
    publishing = mcp.error("tools/call", name="create_skill", arguments={})

    assert (error["code"], error["data"]["type"]) == (-32602, "tool_not_found")
    assert "execute_skill" in error["data"]["hint"]
    assert "?tools=create_skill, or skillery mcp --tools create_skill" in publishing["data"]["hint"]


def test_search_skills_is_a_tool_of_connections_that_ask_for_it(sqlite_rpc: Rpc, new_name: str) -> None:
    sqlite_rpc("create_skill", manifest=manifest(new_name, kind="instruction"), skill_md=f"# {new_name}\n", files=[])
    plain, mcp = Mcp(sqlite_rpc), Mcp(sqlite_rpc, tools="search_skills,create_skill")
    error = plain.error("tools/call", name="search_skills", arguments={"query": new_name})

    assert "?tools=search_skills" in error["data"]["hint"]
    assert {one["name"] for one in mcp("tools/list")["tools"]} - {
        one["name"] for one in plain("tools/list")["tools"]
    } == {
        "search_skills",
        "create_skill",
    }
    found = mcp.tool("search_skills", query=new_name)["structuredContent"]["skills"]
    assert [(one["name"], "score" in one) for one in found] == [(new_name, False)]


def test_tools_have_output_schemas_only_on_request(sqlite_rpc: Rpc) -> None:
    plain, asking = (Mcp(sqlite_rpc, tools=tools).all("tools/list", "tools") for tools in ("", "output_schemas"))

    assert [one["name"] for one in plain] == [one["name"] for one in asking]
    assert ["outputSchema" in one for one in plain] == [False] * 8
    assert {one["outputSchema"]["type"] for one in asking} == {"object"}


def test_the_instructions_have_the_guide_in_short(sqlite_rpc: Rpc) -> None:
    greetings = {
        LEGACY: (
            "initialize",
            {"protocolVersion": LEGACY, "capabilities": {}, "clientInfo": {"name": "a", "version": "1"}},
        ),
        MODERN: ("server/discover", {}),
    }
    for era, (method, params) in greetings.items():
        plain, searching = (
            Mcp(sqlite_rpc, era, tools=tools)(method, **params)["instructions"] for tools in ("", "search_skills")
        )
        assert "def main(args):" in plain
        assert ("search_skills" in plain, "`search_skills`" in searching) == (False, True)


def test_create_skill_is_a_tool_of_connections_that_ask_for_it(sqlite_rpc: Rpc, new_name: str) -> None:
    asking = Mcp(sqlite_rpc, tools="create_skill")

    names = [tool["name"] for tool in asking("tools/list")["tools"]]
    answer = asking.tool("create_skill", manifest=manifest(new_name, kind="instruction"), skill_md="# Hello\n")

    assert names[8:] == ["create_skill"]
    assert answer["structuredContent"]["name"] == new_name
    assert sqlite_rpc("describe_skill", name=new_name)["skill"]["version"] == "1.0.0"


@pytest.mark.full
def test_skill_tools_of_named_skills_are_tools_of_their_own(rpc: Rpc, new_name: str) -> None:
    publish_tools(rpc, f"{new_name}.words", COUNT)
    mcp = Mcp(rpc, tools=f"{new_name}.words")

    listed = mcp("tools/list")["tools"][8:]
    answer = mcp.tool("count_words", text="two words")
    wrong = mcp.tool("count_words")

    assert [tool["name"] for tool in listed] == ["count_words"]
    assert listed[0]["description"] == COUNT["description"]
    assert listed[0]["inputSchema"] == {
        "type": "object",
        "properties": {
            "text": {"type": "string", "description": "The text"},
            "unit": {"type": "string", "description": "Of what", "enum": ["words", "lines"]},
        },
        "required": ["text"],
    }
    assert answer["isError"] is False
    assert json.loads(answer["content"][0]["text"]) == {"words": 2}
    assert answer["structuredContent"]["skill"]["name"] == f"{new_name}.words"
    assert wrong["isError"] is True
    assert "text" in wrong["content"][0]["text"]


def test_array_params_of_skill_tools_have_an_item_schema(sqlite_rpc: Rpc, new_name: str) -> None:
    lists = {
        "ids": {"type": "array", "description": "Which", "items": {"type": "integer"}},
        "any": {"type": "array", "description": "What", "optional": True},
    }
    publish_tools(sqlite_rpc, new_name, COUNT | {"parameters": lists})

    [tool] = Mcp(sqlite_rpc, tools=new_name)("tools/list")["tools"][8:]

    properties = tool["inputSchema"]["properties"]
    assert (properties["ids"]["items"], properties["any"]["items"]) == ({"type": "integer"}, {})


def test_tools_with_the_same_name_are_prefixed_with_their_skill(sqlite_rpc: Rpc, new_name: str) -> None:
    publish_tools(sqlite_rpc, f"{new_name}.a", COUNT)
    publish_tools(sqlite_rpc, f"{new_name}.b-c", COUNT, COUNT | {"name": "run_code"})
    mcp = Mcp(sqlite_rpc, tools=f"{new_name}.a,{new_name}.b-c")

    listed = [tool["name"] for tool in mcp("tools/list")["tools"][8:]]
    answer = mcp.tool(f"{new_name}_b_c__count_words", text="a b c")

    assert listed == [f"{new_name}_a__count_words", f"{new_name}_b_c__count_words", f"{new_name}_b_c__run_code"]
    assert answer["structuredContent"]["skill"]["name"] == f"{new_name}.b-c"


def test_no_tool_takes_the_place_of_another(sqlite_rpc: Rpc, new_name: str) -> None:
    """The skill names are chosen to collide: `a.b` and `a-b`, and a tool with the name of another tool."""
    skills = [f"{new_name}.b", f"{new_name}-b", f"{new_name}.evil", f"{new_name}.{'n' * 110}"]
    forged = COUNT | {"name": f"{new_name.replace('-', '_').replace('.', '_')}_b__count_words"}
    for skill in skills:
        publish_tools(sqlite_rpc, skill, COUNT, *([forged] if skill.endswith("evil") else []))
    mcp = Mcp(sqlite_rpc, tools=",".join([skills[2], *skills]))

    listed = [tool["name"] for tool in mcp("tools/list")["tools"][8:]]
    served = [mcp.tool(name, text="a")["structuredContent"]["skill"]["name"] for name in listed]
    assert len(set(listed)) == 5
    assert all(len(name) <= 128 for name in listed)
    assert served == [skills[2], skills[2], skills[0], skills[1], skills[3]]
    assert f"{new_name.replace('-', '_').replace('.', '_')}_b__count_words" == listed[2]


def test_a_connection_that_asks_for_unknown_tools_gets_an_error(sqlite_rpc: Rpc) -> None:
    missing = Mcp(sqlite_rpc, tools="no.such.skill").error("tools/list")
    wrong = Mcp(sqlite_rpc, tools="No Name").send("tools/list", {})
    unknown = sqlite_rpc.http.post("/mcp?tool=x", json={}, headers={"accept": "*/*"})

    assert missing["code"] == -32602
    assert "no.such.skill" in missing["message"]
    assert (wrong.status_code, unknown.status_code) == (400, 400)
    assert "tools" in unknown.json()["error"]["data"]["hint"]


def test_a_call_with_a_key_is_made_once(sqlite_rpc: Rpc, new_name: str, era: str) -> None:
    mcp = Mcp(sqlite_rpc, era)
    arguments = {"name": "create_blob", "arguments": {"content": "x", "kind": "text/plain"}}

    by_header = [message_of(mcp.send("tools/call", arguments, **{"idempotency-key": new_name})) for _ in range(2)]
    meta = {"_meta": {"skillery/idempotency-key": f"{new_name}-2"}}
    by_meta = [mcp("tools/call", **arguments, **meta)["structuredContent"]["blob_id"] for _ in range(2)]

    first, second = (one["result"]["structuredContent"]["blob_id"] for one in by_header)
    assert first == second
    assert by_meta[0] == by_meta[1] != first


@pytest.mark.full
def test_the_sdk_is_imported_only_for_mcp() -> None:
    code = (
        "import sys, skillery.app.composition, skillery.cli.connect, skillery.cli.mcp_bridge; "
        "print([name for name in ('mcp', 'pydantic', 'httpx2') if name in sys.modules])"
    )

    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert ended.stdout == "[]\n"


# -- the endpoint ----------------------------------------------------------------------------------------------------


def test_only_post_is_answered(sqlite_rpc: Rpc) -> None:
    for verb in ("GET", "DELETE", "PUT"):
        response = sqlite_rpc.http.request(verb, "/mcp", headers={"accept": "text/event-stream"})
        assert response.status_code == 405
        assert response.headers["allow"] == "POST"


def test_foreign_hosts_origins_and_content_types_are_refused(mcp: Mcp) -> None:
    refused = {
        "host": mcp.send("tools/list", {}, host="evil.example"),
        "origin": mcp.send("tools/list", {}, origin="http://evil.example"),
        "type": mcp.send("tools/list", {}, **{"content-type": "text/plain"}),
    }

    assert {key: one.status_code for key, one in refused.items()} == {"host": 403, "origin": 403, "type": 415}
    assert refused["host"].json()["error"]["data"]["type"] == "host_not_allowed"
    assert all("x-request-id" in one.headers for one in refused.values())


def test_requests_without_a_token_get_a_bearer_challenge(tokens_server: Server) -> None:
    response = Mcp(tokens_server.rpc).send("tools/list", {})

    assert response.status_code == 401
    assert response.headers["www-authenticate"] == "Bearer"
    assert response.json()["error"]["code"] == -32001


def test_scopes_hold_and_refusals_are_on_record(org: Server, new_name: str) -> None:
    reader = Mcp(Caller(org.url, Who(new_name, "read")), tools="create_skill")
    runner = Mcp(Caller(org.url, Who(f"{new_name}-r", "run")))

    listed = reader.tool("list_skills")
    run = reader.tool("run_code", language="python", code="def main(args): return 1")
    created = reader.tool("create_skill", manifest=manifest(f"{new_name}.x"), skill_md="# x\n")
    resources = [runner.error(method) for method in ("resources/list", "skills/list")]

    assert listed["isError"] is False
    assert run["structuredContent"]["error"]["code"] == -32002
    assert created["structuredContent"]["error"]["data"]["type"] == "not_allowed"
    assert {error["data"]["type"] for error in resources} == {"not_allowed"}
    admin = Caller(org.url, Who("admin", "admin"))

    def actions() -> list[str]:
        return [
            entry["action"]
            for who in (new_name, f"{new_name}-r")
            for entry in admin("list_audit", identity=who, outcome="refused")["entries"]
        ]

    # The server writes the entries shortly after the response.
    found = eventually(lambda: len(found := actions()) == 4 and found, problem=actions)
    assert set(found) == {"run_code", "create_skill", "resources/list", "skills/list"}


def test_calls_are_counted_as_those_of_rpc_are(sqlite_rpc: Rpc, mcp: Mcp) -> None:
    def counted(method: str) -> float:
        lines = sqlite_rpc.http.get("/metrics").text.splitlines()
        found = [line for line in lines if line.startswith(f'skillery_rpc_calls_total{{code="0",method="{method}"}}')]
        return float(found[0].rpartition(" ")[2]) if found else 0.0

    before = counted("load_skills_protocol_guide"), counted("resources/list")
    mcp.tool("load_skills_protocol_guide")
    answered = mcp.send("resources/list", {}, **{"x-request-id": "mine"})

    assert (counted("load_skills_protocol_guide"), counted("resources/list")) == (before[0] + 1, before[1] + 1)
    assert answered.headers["x-request-id"] == "mine"


def test_calls_need_no_handshake_and_accept_any_session_id(sqlite_rpc: Rpc) -> None:
    mcp = Mcp(sqlite_rpc, LEGACY)

    response = mcp.send(
        "tools/call", {"name": "list_skills", "arguments": {}}, **{"mcp-session-id": "of-another-server"}
    )

    assert message_of(response)["result"]["isError"] is False


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"[[[[", b'{"jsonrpc":"2.0"}', b'"x"', b"\xff", b'{"id":1}', b"[" * 100_000]
)
def test_malformed_messages_are_refused(sqlite_rpc: Rpc, era: str, body: bytes) -> None:
    _, headers = Mcp(sqlite_rpc, era).request("tools/list", {})

    response = sqlite_rpc.http.post("/mcp", content=body, headers=headers)

    assert response.status_code in {400, 202 if body == b'{"jsonrpc":"2.0"}' else 400}
    assert "error" in response.json()


@pytest.mark.parametrize("value", ['"\\ud800"', '"\\u0000"', "1" * 400, "NaN", "1e999", "[" * 900 + "]" * 900])
def test_arguments_that_no_json_has_are_invalid_params(sqlite_rpc: Rpc, era: str, value: str) -> None:
    body, headers = Mcp(sqlite_rpc, era).request(
        "tools/call", {"name": "describe_skill", "arguments": {"name": "HERE"}}
    )

    response = sqlite_rpc.http.post("/mcp", content=body.replace('"HERE"', value), headers=headers)

    said = message_of(response)
    error = said["error"] if "error" in said else said["result"]["structuredContent"]["error"]
    assert error["code"] in {-32602, -32700}


# -- cancelling ------------------------------------------------------------------------------------------------------


class Background:
    """A call in a thread, over its own connection that the test can close."""

    def __init__(self, mcp: Mcp, who: str, seconds: float, **headers: str) -> None:
        self.rpc = mcp.http
        given = {"language": "python", "code": SLEEP, "args": {"s": seconds}}
        body, own = mcp.request("tools/call", {"name": "run_code", "arguments": given})
        self.request_id = json.loads(body)["id"]
        self.answers: list[httpx.Response] = []
        self._client = httpx.Client(base_url=mcp.http.base_url, timeout=300, verify=Rpc.tls)
        self._headers, self._body = {**own, "x-who": who, **headers}, body
        self._thread = threading.Thread(target=self._call)
        self._thread.start()

    def _call(self) -> None:
        try:
            self.answers.append(self._client.post("/mcp", content=self._body, headers=self._headers, timeout=300))
        except httpx.TransportError:
            return

    def join(self) -> None:
        self._thread.join(300)


def hang_up_on(who: Caller, mcp: Mcp, seconds: float) -> None:
    """Make a call and close the connection once the run has begun."""
    given = {"language": "python", "code": SLEEP, "args": {"s": seconds}}
    body, headers = mcp.request("tools/call", {"name": "run_code", "arguments": given})
    request = who.http.build_request("POST", "/mcp", content=body, headers=headers)
    head = b"".join(b"%b: %b\r\n" % line for line in request.headers.raw)
    with socket.create_connection((request.url.host, request.url.port or 80)) as line:
        line.sendall(b"POST /mcp HTTP/1.1\r\n" + head + b"\r\n" + request.content)
        started(who)


def ended(rpc: Rpc) -> dict[str, Any]:
    """Return the caller's only run, once it has ended."""

    def newest() -> list[dict[str, Any]]:
        return [run for run in rpc("list_runs")["runs"][:1] if run["status"] not in {"started", "queued"}]

    [run] = eventually(newest)
    found: dict[str, Any] = rpc("get_run", run_id=run["run_id"])
    return found


def started(rpc: Rpc) -> None:
    """Wait until the caller's only run has begun. On a loaded machine, a short run may have ended when this returns."""
    eventually(lambda: [run for run in rpc("list_runs")["runs"] if run["status"] != "queued"])


def test_closing_the_answer_takes_a_call_back_since_2026(org: Server, new_name: str) -> None:
    who = Caller(org.url, Who(new_name, "read run"))

    hang_up_on(who, Mcp(who), 600)

    run = ended(who)
    assert (run["status"], run["error"]["type"]) == ("failed", "Cancelled")


def test_before_2026_a_client_that_is_gone_ends_nothing(org: Server, new_name: str) -> None:
    who = Caller(org.url, Who(new_name, "read run"))

    hang_up_on(who, Mcp(who, LEGACY), 2)

    assert ended(who)["status"] == "completed"


def test_before_2026_a_notification_takes_a_call_back_within_its_session(org: Server, new_name: str) -> None:
    who = Caller(org.url, Who(new_name, "read run"))
    mcp = Mcp(who, LEGACY)
    hello = {"protocolVersion": LEGACY, "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
    session = {"mcp-session-id": mcp.send("initialize", hello).headers["mcp-session-id"]}
    call = Background(mcp, who.http.headers["x-who"], 600, **session)
    started(who)
    body = json.dumps({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": call.request_id}})
    _, headers = mcp.request("ping", {})

    other = who.http.post("/mcp", content=body, headers={**headers, "mcp-session-id": "another"})
    still = who("list_runs", status="started")["runs"]
    own = who.http.post("/mcp", content=body, headers={**headers, **session})

    call.join()
    assert (other.status_code, own.status_code) == (202, 202)
    assert len(still) == 1
    run = ended(who)
    assert run["error"]["type"] == "Cancelled"
    assert message_of(call.answers[0])["result"]["isError"] is True


def test_progress_is_sent_to_callers_with_a_progress_token(mcp: Mcp) -> None:
    arguments = {"language": "python", "code": SLEEP, "args": {"s": 1.3}}
    asked = {"name": "run_code", "arguments": arguments, "_meta": {"progressToken": "p"}}

    said = messages_of(mcp.send("tools/call", asked))

    assert {one.get("method") for one in said[:-1]} == {"notifications/progress"}  # on a loaded machine, more than one
    assert "result" in said[-1]
    assert said[0]["params"]["progressToken"] == "p"
    assert said[0]["params"]["progress"] > 0.9  # seconds; a timer of the event loop may fire a millisecond early


# -- stdio -----------------------------------------------------------------------------------------------------------


def stdio(*flags: str) -> Any:
    from mcp.client.stdio import StdioServerParameters, stdio_client

    command = StdioServerParameters(command=FORKED, args=["mcp", *flags], env=clean_environment())
    return stdio_client(command)


@pytest.mark.smoke
async def test_a_home_without_a_server_is_spoken_to_over_stdio(tmp_path: Path) -> None:
    from mcp.client import Client

    async with Client(stdio("--home", str(tmp_path / "home"), "--tools", "create_skill")) as client:
        tools = (await client.list_tools()).tools
        made = await client.call_tool(
            "create_skill", {"manifest": manifest("a.b", kind="instruction"), "skill_md": "# Grüße\u2028\n"}
        )
        read = await client.read_resource("skill://a/b/SKILL.md")
        run = await client.call_tool("run_code", {"language": "python", "code": "def main(args): return 'ran'"})

    assert len(tools) == 9
    assert made.is_error is False
    assert read.contents[0].text.endswith("# Grüße\u2028\n")  # type: ignore[union-attr]
    assert run.structured_content is not None
    assert run.structured_content["output"] == "ran"


@pytest.mark.full
async def test_an_idle_bridge_releases_the_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Usually, an idle bridge keeps the home for seconds.
    monkeypatch.setattr("skillery.cli.mcp_bridge.LINGER_SECONDS", 0.05)
    target = Target(home=str(tmp_path / "home"))
    first, second = RegistryAccess(target), RegistryAccess(target)

    for reach in (first, second, first):
        async with reach.client() as client, reach.client() as again:
            assert client is again
            await client.create_blob("x", "text/plain")

    await first.close()
    await second.close()
    Home(tmp_path / "home").close()


@pytest.mark.full
async def test_a_problem_of_a_home_is_reported_and_checked_again(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    wrong = tmp_path / "home" / "skillery.toml"
    wrong.write_text("no_such_setting = 1\n")
    reach = RegistryAccess(Target(home=str(tmp_path / "home")))

    with pytest.raises(StartupError, match="no_such_setting"):
        async with reach.client():
            pass
    wrong.unlink()
    async with reach.client() as client:
        assert (await client.list_skills())["skills"]
    await reach.close()


@pytest.mark.full
async def test_a_server_elsewhere_is_spoken_to_over_stdio_with_a_token(
    shared_server: Callable[..., Server], new_name: str
) -> None:
    from mcp.client import Client

    more = {"SKILLERY_BACKENDS_AUTHENTICATOR_TOKENS_FAILURES_PER_MINUTE": "100000"}
    server = shared_server("tokens", "sqlite", SKILLERY_AUTH="tokens", **more)
    token = create_token(server, new_name, "--scope", "read")["token"]

    async with Client(stdio("--url", server.url, "--token", token)) as client:
        listed = await client.call_tool("list_skills", {})
        refused = await client.call_tool("run_code", {"language": "python", "code": "x"})

    assert listed.is_error is False
    assert refused.is_error is True
    assert "scope" in str(refused.structured_content)


async def test_a_bridge_says_why_it_cannot_be_crossed(tmp_path: Path) -> None:
    lines = [
        b'{"jsonrpc":"2.0","id":1,"method":"ping"}\n',
        b"no message\n",
        b"\n",
        b'{"jsonrpc":"2.0","method":"notifications/initialized"}\n',
    ]
    said = io.BytesIO()
    async with client_of("http://127.0.0.1:9", None) as client:
        await McpBridge(lambda: nullcontext(client), [], io.BytesIO(b"".join(lines)), said).run()

    answers = {one["id"]: one["error"] for one in map(json.loads, said.getvalue().splitlines())}
    assert set(answers) == {1, None}
    assert "http://127.0.0.1:9" in answers[1]["message"]
    assert answers[None]["code"] == -32700


async def test_no_line_breaks_a_bridge(sqlite_server: Server) -> None:
    def said_with(version: str, **more: Any) -> bytes:
        params = {"_meta": {"io.modelcontextprotocol/protocolVersion": version}}
        return json.dumps({"jsonrpc": "2.0", "method": "tools/list", "params": params, **more}).encode()

    lines = [
        b"\xff\xfe",
        b"[" * 10_000,
        said_with("\u4e2d"),
        said_with("\u4e2d", id=1),
        said_with("x\r\ny: z", id=2),
        said_with("x", id=10**30),
        b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":[1]}}',
        b'{"jsonrpc":"2.0","id":"last","method":"resources/templates/list"}',
    ]
    said = io.BytesIO()
    async with client_of(sqlite_server.url, None) as client:
        await McpBridge(lambda: nullcontext(client), [], io.BytesIO(b"\n".join(lines)), said).run()

    answers = {one["id"]: one for one in map(json.loads, said.getvalue().splitlines())}
    assert set(answers) == {None, 1, 2, 10**30, "last"}
    assert "result" in answers["last"]


async def test_a_bridge_forwards_unicode_in_requests_and_errors(sqlite_server: Server, new_name: str) -> None:
    meta = {"io.modelcontextprotocol/protocolVersion": MODERN, "io.modelcontextprotocol/clientCapabilities": {}}
    asked = {"name": "nø such\u2028tool", "arguments": {}, "_meta": meta}
    line = json.dumps({"jsonrpc": "2.0", "id": "é", "method": "tools/call", "params": asked}) + "\n"
    old = json.dumps({"jsonrpc": "2.0", "id": 2, "method": "skills/get", "params": {"uri": "skill://\u2028"}}) + "\n"
    said = io.BytesIO()
    async with client_of(sqlite_server.url, None) as client:
        await McpBridge(lambda: nullcontext(client), ["no.skill"], io.BytesIO((line + old).encode()), said).run()
        wrong = io.BytesIO()
        await McpBridge(lambda: nullcontext(client), ["No Skill"], io.BytesIO(line.encode()), wrong).run()

    answers = {one["id"]: one["error"] for one in map(json.loads, said.getvalue().decode().split("\n")[:-1])}
    assert "no.skill" in answers["é"]["message"]
    assert "\\u2028" in answers[2]["message"]
    assert json.loads(wrong.getvalue())["id"] == "é"


def newest_run(rpc: Rpc) -> str:
    """Return the id of the run that began last, or "" if there is none."""
    return next((str(run["run_id"]) for run in rpc("list_runs", limit=1)["runs"]), "")


@pytest.mark.full
async def test_old_clients_speak_over_stdio_and_take_calls_back(sqlite_server: Server) -> None:
    import anyio
    from mcp.client import Client

    async with Client(stdio("--url", sqlite_server.url), mode="legacy") as client:
        arguments = {"language": "python", "code": SLEEP, "args": {"s": 600}}
        before = newest_run(sqlite_server.rpc)
        async with anyio.create_task_group() as calls:
            calls.start_soon(client.call_tool, "run_code", arguments)
            await eventually_async(lambda: newest_run(sqlite_server.rpc) != before)
            calls.cancel_scope.cancel()
        resources = (await client.list_resources()).resources

    assert resources
    run_id = newest_run(sqlite_server.rpc)
    ended = eventually(lambda: (run := sqlite_server.rpc("get_run", run_id=run_id))["status"] != "started" and run)
    assert ended["error"]["type"] == "Cancelled"
