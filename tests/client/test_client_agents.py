"""client.tools and client.handle: tool calls in the formats of the SDKs, and invalid calls of models."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skillery.client import AsyncClient, Client, ConnectionFailed, NotAuthenticated, Retries
from skillery.client.tool_calls import ModelMistake, read_tool_call
from tests.conftest import Server, manifest

DIALECTS = ("openai", "openai-responses", "anthropic", "mcp")


@pytest.fixture
def client(sqlite_server: Server) -> Iterator[Client]:
    with Client(sqlite_server.url) as client:
        yield client


def openai_call(name: str, arguments: str = "{}") -> Any:
    from openai.types.chat import ChatCompletionMessageFunctionToolCall

    call = {"id": "call_1", "type": "function", "function": {"name": name, "arguments": arguments}}
    return ChatCompletionMessageFunctionToolCall.model_validate(call)


def anthropic_call(name: str, /, **arguments: Any) -> Any:
    from anthropic.types import ToolUseBlock

    return ToolUseBlock.model_validate({"id": "toolu_1", "type": "tool_use", "name": name, "input": arguments})


def responses_call(name: str, arguments: str = "{}") -> Any:
    from openai.types.responses import ResponseFunctionToolCall

    call = {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": name, "arguments": arguments}
    return ResponseFunctionToolCall.model_validate(call)


def error_in(message: dict[str, Any]) -> dict[str, Any]:
    error: dict[str, Any] = json.loads(message["content"])["error"]
    return error


# -- dialects ----------------------------------------------------------------------------------------------------------


def test_openai_gets_a_tool_message(client: Client) -> None:
    for call in (openai_call("list_skills", '{"limit": 1}'), openai_call("list_skills", '{"limit": 1}').model_dump()):
        message = client.handle(call)

        assert message.keys() == {"role", "tool_call_id", "content"}
        assert (message["role"], message["tool_call_id"]) == ("tool", "call_1")
        assert len(json.loads(message["content"])["skills"]) == 1


def test_openai_responses_get_a_function_call_output(client: Client) -> None:
    for call in (
        responses_call("list_skills", '{"limit": 1}'),
        responses_call("list_skills", '{"limit": 1}').model_dump(),
    ):
        item = client.handle(call)

        assert item.keys() == {"type", "call_id", "output"}
        assert (item["type"], item["call_id"]) == ("function_call_output", "call_1")
        assert len(json.loads(item["output"])["skills"]) == 1
    refused = client.handle(responses_call("list_skill"))
    assert json.loads(refused["output"])["error"]["data"]["type"] == "tool_not_found"


@pytest.mark.full
def test_anthropic_gets_a_tool_result_block(client: Client) -> None:
    for call in (anthropic_call("list_skills", limit=1), anthropic_call("list_skills", limit=1).model_dump()):
        message = client.handle(call)

        assert message.keys() == {"type", "tool_use_id", "content", "is_error"}
        assert (message["type"], message["tool_use_id"], message["is_error"]) == ("tool_result", "toolu_1", False)
        assert len(json.loads(message["content"])["skills"]) == 1


def test_mcp_gets_the_result_of_tools_call(client: Client) -> None:
    message = client.handle({"name": "list_skills", "arguments": {"limit": 1}})

    assert message["isError"] is False
    assert json.loads(message["content"][0]["text"]) == message["structuredContent"]
    assert client.handle({"name": "load_skills_protocol_guide"})["isError"] is False


@pytest.mark.full
async def test_the_client_that_awaits_does_the_same(sqlite_server: Server) -> None:
    async with AsyncClient(sqlite_server.url) as client:
        assert (await client.prompt()).startswith("You are connected to a Skills Runtime")
        assert next(tool["name"] for tool in await client.tools("anthropic")) == "list_skills"
        assert (await client.handle(anthropic_call("list_skills")))["is_error"] is False


DRAWS = """
import base64, os
def main(args):
    os.mkdir("out")
    open("out/plot.png", "wb").write(base64.b64decode(args["png"]))
    open("out/wrong.png", "w").write("no picture")
"""
PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


@pytest.mark.full
def test_models_that_accept_images_see_the_pictures_of_a_run(client: Client) -> None:
    given = {"language": "python", "code": DRAWS, "entrypoint": "main", "args": {"png": PNG}}
    of_mcp = client.handle({"name": "run_code", "arguments": given})
    of_anthropic = client.handle(anthropic_call("run_code", **given))

    assert of_mcp["content"][1:] == [{"type": "image", "data": PNG, "mimeType": "image/png"}]
    source = {"type": "base64", "media_type": "image/png", "data": PNG}
    assert of_anthropic["content"][1:] == [{"type": "image", "source": source}]
    assert json.loads(of_anthropic["content"][0]["text"])["status"] == "completed"
    assert isinstance(client.handle(anthropic_call("run_code", **given), images=False)["content"], str)
    assert isinstance(client.handle(openai_call("run_code", json.dumps(given)))["content"], str)
    assert isinstance(client.handle(responses_call("run_code", json.dumps(given)))["output"], str)


@pytest.mark.parametrize("form", [*DIALECTS, "jsonschema"])
def test_tools_are_those_of_the_server(client: Client, form: Any) -> None:
    found = client.tools(form, include=["create_skill"])

    assert [(one.get("function") or one)["name"] for one in found][7:] == [
        "load_skills_protocol_guide",
        "create_skill",
        "search_skills",
    ]


def test_tools_of_openai_responses_are_flat(client: Client) -> None:
    from openai.types.responses import FunctionTool

    nested = {one["function"]["name"]: one["function"] for one in client.tools("openai")}
    tools = [FunctionTool.model_validate(one, strict=True) for one in client.tools("openai-responses")]

    assert [tool.name for tool in tools] == list(nested)
    for tool in tools:
        assert tool.strict is False  # a strict schema has no optional properties
        assert tool.parameters == nested[tool.name]["parameters"]
        assert tool.description == nested[tool.name]["description"]


def test_a_model_finds_skills_with_search_skills(client: Client) -> None:
    client.tools("mcp")

    message = client.handle({"name": "search_skills", "arguments": {"query": "how does the protocl guide work"}})

    found = [one["name"] for one in message["structuredContent"]["skills"]]
    assert "skills.protocol.guide" in found
    assert "score" not in message["structuredContent"]["skills"][0]
    assert "`search_skills`" in client.prompt()


def test_handle_raises_type_error_if_the_value_is_no_tool_call(client: Client) -> None:
    for call in ({}, "list_skills", None, {"type": "text", "text": "hello"}, {"type": "tool_result"}):
        with pytest.raises(TypeError, match="is not a tool call"):
            client.handle(call)


# -- errors that a model can correct -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments", ["{", "[]", "null", "1", '"x"', "{'limit': 1}", '{"limit": NaN}', "[" * 100_000, '{"a": \ud800}']
)
def test_arguments_that_are_no_json_object_are_reported_to_the_model(client: Client, arguments: str) -> None:
    error = error_in(client.handle(_raw("list_skills", arguments)))

    assert (error["code"], error["data"]["type"]) == (-32602, "invalid_arguments")
    assert "JSON object" in error["data"]["hint"]


def _raw(name: str, arguments: Any) -> dict[str, Any]:
    return {"id": "call_1", "type": "function", "function": {"name": name, "arguments": arguments}}


@pytest.mark.parametrize("arguments", ["", None])
def test_no_arguments_at_all_are_an_empty_object(client: Client, arguments: Any) -> None:
    assert "content" in json.loads(client.handle(_raw("load_skills_protocol_guide", arguments))["content"])


def test_refusals_of_the_server_are_reported_with_their_hint(client: Client) -> None:
    message = client.handle(anthropic_call("describe_skill", name="text.csv.profil"))

    assert message["is_error"] is True
    assert error_in(message)["data"]["type"] == "skill_not_found"
    assert "text.csv.profile" in error_in(message)["data"]["hint"]
    error = error_in(client.handle(anthropic_call("list_skills", limits=5)))
    assert "limit" in error["message"] + error["data"]["hint"]


def test_a_run_that_failed_is_an_error_to_the_model(client: Client) -> None:
    message = client.handle(anthropic_call("run_code", language="python", code="def main(args): 1 / 0"))

    assert message["is_error"] is True
    assert json.loads(message["content"])["error"]["type"] == "ZeroDivisionError"


def test_a_tool_that_there_is_not_names_those_that_there_are(client: Client) -> None:
    error = error_in(client.handle(openai_call("list_skill")))

    assert error["data"]["type"] == "tool_not_found"
    assert "Did you mean list_skills?" in error["data"]["hint"]
    assert "execute_skill" in error_in(client.handle(openai_call("text.csv.profile")))["data"]["hint"]


@pytest.mark.parametrize("name", ["list_tokens", "create_token", "collect_garbage", "create_skill", "rpc.discover", ""])
def test_handle_refuses_methods_outside_the_tool_list(client: Client, name: str) -> None:
    assert error_in(client.handle(openai_call(name)))["data"]["type"] == "tool_not_found"


def test_a_model_calls_additional_tools(client: Client, new_name: str) -> None:
    client.tools("openai", include=["create_skill"])

    made = manifest(new_name, kind="instruction")
    message = client.handle(openai_call("create_skill", json.dumps({"manifest": made, "skill_md": "# x\n"})))
    assert json.loads(message["content"])["status"] == "published"


def test_arguments_arrive_as_the_model_wrote_them(client: Client) -> None:
    code = "def main(args): return args"
    written = f'{{"language": "python", "code": "{code}", "args": {{"n": 12345678901234567890123, "s": "\\u00e9"}}}}'

    assert json.loads(client.handle(openai_call("run_code", written))["content"])["output"] == {
        "n": 12345678901234567890123,
        "s": "é",
    }


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(exclude_categories=())),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters(exclude_categories=())), inner),
    max_leaves=5,
)


@given(arguments=st.text(st.characters(exclude_categories=())) | st.builds(json.dumps, _JSON) | _JSON)
def test_whatever_a_model_writes_is_an_object_or_its_mistake(arguments: Any) -> None:
    for call in (_raw("x", arguments), {"type": "tool_use", "id": "1", "name": "x", "input": arguments}):
        asked = read_tool_call(call)
        try:
            assert isinstance(asked.params(), dict)
        except ModelMistake as mistake:
            asked.refused(mistake.error)


@pytest.mark.parametrize(
    "arguments", ['{"name": "\\ud800"}', '{"name": "\\u0000"}', '{"name": null}', '{"name": {"a": [[]]}}', "{}"]
)
def test_odd_names_come_back_as_errors(client: Client, arguments: str) -> None:
    assert error_in(client.handle(openai_call("describe_skill", arguments)))["code"] in {-32602, -32003}


# -- errors that a model cannot correct --------------------------------------------------------------------------------


def test_a_connection_that_fails_is_raised() -> None:
    with Client("http://127.0.0.1:9", retries=Retries(attempts=1)) as client, pytest.raises(ConnectionFailed):
        client.handle(openai_call("list_skills"))


@pytest.mark.parametrize("database_kind", ["sqlite"], indirect=True)
def test_a_token_that_is_not_good_is_raised(tokens_server: Server) -> None:
    with Client(tokens_server.url, "no-such-token") as client, pytest.raises(NotAuthenticated):
        client.handle(openai_call("list_skills"))
