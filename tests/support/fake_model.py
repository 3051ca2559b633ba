"""A scripted model behind the HTTP endpoints of OpenAI (chat completions) and Anthropic (messages).

Like the real endpoints, it refuses a tool call without a result, a result without a call, and a tool with an invalid
schema.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import threading
from collections.abc import Callable, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

import jsonschema


class Wanted(NamedTuple):
    """A tool call: its name, and its arguments as an object or as the text that a faulty model writes."""

    name: str
    arguments: dict[str, Any] | str = {}


class Heard(NamedTuple):
    """The result of a tool call, as the model reads it."""

    content: Any
    is_error: bool | None


Turn = Callable[[Sequence[Heard]], "Sequence[Wanted] | str"]
"""Returns the next tool calls, or the final text, for all results until now."""


class Fault(NamedTuple):
    """An answer of a faulty endpoint. `cut` sends half of the body, and `endless` repeats it without an end."""

    status: int
    body: bytes = b""
    kind: str = ""
    headers: Sequence[tuple[str, str]] = ()


Play = Callable[[dict[str, Any], Sequence[Heard]], "Sequence[Wanted] | str | Fault"]
"""Returns what the model does for a request, without a script of turns: for requests at the same time."""


class FakeModel(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, *turns: Turn, play: Play | None = None) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.turns = list(turns)
        self.play = play
        self.headers: list[dict[str, str]] = []
        self.heard: list[Heard] = []
        self.requests: list[dict[str, Any]] = []
        self.ids = itertools.count(1)
        self.url = f"http://127.0.0.1:{self.server_port}"
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()

    def next(self, asked: dict[str, Any], heard: Sequence[Heard]) -> Sequence[Wanted] | str:
        self.heard = list(heard)
        if self.play is None:
            return self.turns.pop(0)(heard)
        wanted = self.play(asked, heard)
        if isinstance(wanted, Fault):
            raise Faulty(wanted)
        return wanted

    def completion(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Respond to `POST /v1/chat/completions`."""
        for tool in asked.get("tools", ()):
            assert tool["type"] == "function"
            jsonschema.Draft202012Validator.check_schema(tool["function"]["parameters"])
        assert asked["messages"][0]["role"] == "system"
        heard: list[Heard] = []
        waiting: list[str] = []
        for message in asked["messages"]:
            if message["role"] == "tool":
                waiting.remove(message["tool_call_id"])
                heard.append(Heard(_value(message["content"]), None))
                continue
            assert not waiting, f"no tool message for {waiting}"
            waiting = [call["id"] for call in message.get("tool_calls") or ()]
        assert not waiting, f"no tool message for {waiting}"
        wanted = self.next(asked, heard)
        message = {"role": "assistant", "content": wanted if isinstance(wanted, str) else None, "refusal": None}
        if not isinstance(wanted, str):
            message["tool_calls"] = [
                {"id": f"call_{next(self.ids)}", "type": "function", "function": {"name": one.name, "arguments": text}}
                for one in wanted
                for text in [one.arguments if isinstance(one.arguments, str) else json.dumps(one.arguments)]
            ]
        reason = "stop" if isinstance(wanted, str) else "tool_calls"
        choice = {"index": 0, "message": message, "finish_reason": reason, "logprobs": None}
        usage = {"prompt_tokens": 7, "completion_tokens": 3}
        head = {"id": "x", "object": "chat.completion", "created": 1, "model": asked["model"]}
        return {**head, "choices": [choice], "usage": usage}

    def message(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Respond to `POST /v1/messages`."""
        assert asked["max_tokens"] > 0
        for tool in asked.get("tools", ()):
            jsonschema.Draft202012Validator.check_schema(tool["input_schema"])
        heard: list[Heard] = []
        waiting: list[str] = []
        for number, message in enumerate(asked["messages"]):
            assert message["role"] == ("assistant" if number % 2 else "user")
            blocks = [] if isinstance(message["content"], str) else message["content"]
            results = [block for block in blocks if block["type"] == "tool_result"]
            assert [block["tool_use_id"] for block in results] == waiting
            heard += [Heard(_value(block["content"]), block["is_error"]) for block in results]
            waiting = [block["id"] for block in blocks if block["type"] == "tool_use"]
        wanted = self.next(asked, heard)
        content: list[dict[str, Any]] = [{"type": "text", "text": wanted if isinstance(wanted, str) else "Let me see."}]
        if not isinstance(wanted, str):
            content += [
                {"type": "tool_use", "id": f"toolu_{next(self.ids)}", "name": one.name, "input": one.arguments}
                for one in wanted
            ]
        reason = "end_turn" if isinstance(wanted, str) else "tool_use"
        usage = {"input_tokens": 7, "output_tokens": 3}
        told = {"id": "x", "type": "message", "role": "assistant", "model": asked["model"], "content": content}
        return told | {"stop_reason": reason, "stop_sequence": None, "usage": usage}


class Faulty(Exception):
    """Raised in place of an answer."""

    def __init__(self, fault: Fault) -> None:
        super().__init__()
        self.fault = fault


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


class _Handler(BaseHTTPRequestHandler):
    server: FakeModel

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.server.requests.append(asked)
        self.server.headers.append({name.lower(): value for name, value in self.headers.items()})
        answer = {"/v1/chat/completions": self.server.completion, "/v1/messages": self.server.message}[self.path]
        try:
            status, told = 200, answer(asked)
        except Faulty as error:
            self.fail(error.fault)
            return
        except (AssertionError, ValueError, jsonschema.SchemaError) as error:
            status, told = 400, {"error": {"type": "invalid_request_error", "message": str(error) or repr(error)}}
        body = json.dumps(told).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def fail(self, fault: Fault) -> None:
        self.send_response(fault.status)
        for name, value in fault.headers:
            self.send_header(name, value)
        if fault.kind != "endless":
            self.send_header("content-length", str(len(fault.body) * (2 if fault.kind == "cut" else 1)))
        self.end_headers()
        self.close_connection = True
        with contextlib.suppress(OSError):
            self.wfile.write(fault.body)
            while fault.kind == "endless":
                self.wfile.write(fault.body)

    def log_message(self, *_: Any) -> None:
        """Log nothing."""
