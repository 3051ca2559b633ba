"""Checks of JSON-RPC 2.0 over HTTP."""

from __future__ import annotations

from typing import Any

from skills_protocol_conformance.connection import Reply
from skills_protocol_conformance.session import INVALID_PARAMS, METHODS, UNKNOWN_METHOD, Session, error_of, result_of
from skills_protocol_conformance.statement import Check, expect

NO_SUCH_METHOD = "conformance_no_such_method"


def _guide(session: Session, **more: Any) -> Reply:
    call = {"jsonrpc": "2.0", "id": "1", "method": "load_skills_protocol_guide", "params": {}, **more}
    reply: Reply = session.once(("guide", str(more)), lambda: session.connection.post(call))
    return reply


def answers_json_rpc(session: Session) -> None:
    """The answer to a call is a JSON object with `jsonrpc`: "2.0"."""
    reply = _guide(session)
    expect(isinstance(reply.message, dict), "the answer is not a JSON object", reply.text)
    expect(reply.message.get("jsonrpc") == "2.0", '`jsonrpc` is not "2.0"', reply.text)


def answers_with_http_200(session: Session) -> None:
    """The HTTP status of a successful call is 200."""
    reply = _guide(session)
    expect(reply.status == 200, f"the status is {reply.status}", reply.text)


def answers_as_json(session: Session) -> None:
    """The Content-Type of an answer is that of JSON."""
    reply = _guide(session)
    expect("json" in reply.kind, f"the Content-Type is {reply.kind!r}")


def echoes_a_string_id(session: Session) -> None:
    """The answer has the `id` of the request, a string."""
    reply = _guide(session, id="conformance-7")
    expect(reply.message and reply.message.get("id") == "conformance-7", '`id` is not "conformance-7"', reply.text)


def echoes_a_number_id(session: Session) -> None:
    """The answer has the `id` of the request, a number."""
    reply = _guide(session, id=4711)
    expect(reply.message and reply.message.get("id") == 4711, "`id` is not 4711", reply.text)


def success_has_a_result_only(session: Session) -> None:
    """A successful answer has `result`, and no `error`."""
    reply = _guide(session)
    result_of(reply)
    expect("error" not in reply.message, "the answer has both `result` and `error`", reply.text)


def error_has_no_result(session: Session) -> None:
    """An error has `error`, and no `result`."""
    reply = session.ask(NO_SUCH_METHOD, {})
    error_of(reply)
    expect("result" not in reply.message, "the answer has both `error` and `result`", reply.text)


def error_echoes_id(session: Session) -> None:
    """An error has `jsonrpc` and the `id` of the request."""
    call = {"jsonrpc": "2.0", "id": "e-1", "method": NO_SUCH_METHOD, "params": {}}
    reply = session.connection.post(call)
    error_of(reply)
    expect(reply.message.get("id") == "e-1", '`id` is not "e-1"', reply.text)
    expect(reply.message.get("jsonrpc") == "2.0", '`jsonrpc` is not "2.0"', reply.text)


def error_has_code_and_message(session: Session) -> None:
    """An error has an integer `code` and a text `message`."""
    error = session.error(NO_SUCH_METHOD)
    code, message = error.get("code"), error.get("message")
    expect(isinstance(code, int) and not isinstance(code, bool), "`code` is not an integer", error)
    expect(isinstance(message, str) and message, "`message` is not a text", error)


def unknown_method_is_an_error(session: Session) -> None:
    """An invalid method name is a JSON-RPC error -32601."""
    error = session.error(NO_SUCH_METHOD)
    expect(error.get("code") == UNKNOWN_METHOD, f"`code` is not {UNKNOWN_METHOD}", error)


def invalid_params_have_their_code(session: Session) -> None:
    """Missing params are a JSON-RPC error -32602."""
    error = session.error("read_blob")
    expect(error.get("code") == INVALID_PARAMS, f"`code` is not {INVALID_PARAMS}", error)


def broken_json_is_a_parse_error(session: Session) -> None:
    """A body that is not JSON is a JSON-RPC error -32700 with `id`: null."""
    reply = session.connection.post('{"jsonrpc": "2.0", "id": 1, "method": ')
    expect(error_of(reply).get("code") == -32700, "`code` is not -32700", reply.text)
    expect(reply.message.get("id") is None, "`id` is not null", reply.text)


def no_request_is_an_invalid_request(session: Session) -> None:
    """An object without `method` is a JSON-RPC error -32600."""
    reply = session.connection.post({"jsonrpc": "2.0", "id": 1, "params": {}})
    expect(error_of(reply).get("code") == -32600, "`code` is not -32600", reply.text)


def notification_has_no_answer(session: Session) -> None:
    """A call without `id` has no JSON-RPC answer."""
    reply = session.connection.post({"jsonrpc": "2.0", "method": "load_skills_protocol_guide", "params": {}})
    expect(not reply.text.strip(), "the server answers a notification", reply.text)


def params_may_be_omitted(session: Session) -> None:
    """A call without the member `params` works, if the method needs no params."""
    reply = session.connection.post({"jsonrpc": "2.0", "id": 1, "method": "load_skills_protocol_guide"})
    result_of(reply)


def single_endpoint(session: Session) -> None:
    """One URL knows all eight methods."""
    unknown = [method for method in METHODS if not knows(session, method)]
    expect(not unknown, f"the server does not know: {', '.join(unknown)}")


def offers(method: str) -> Check:
    """Make a check: the server knows this method."""

    def check(session: Session) -> None:
        expect(knows(session, method), "the method is unknown", session.ask(method, {}).text)

    check.__doc__ = f"The server knows the method `{method}`."
    return check


def knows(session: Session, method: str) -> bool:
    """Return whether the server knows the method. The call has no params."""
    reply = session.ask(method, {})
    return isinstance(reply.message, dict) and (reply.error is None or reply.error.get("code") != UNKNOWN_METHOD)
