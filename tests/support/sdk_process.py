"""The other side of tests/support/sdks.py: a program that lends its SDKs. Its environment has no package of the tests.

Each request is a pickle on stdin: an action, the number of an object, and arguments. Each response is a pickle on
stdout. Values of built-in types are sent as they are. Other objects stay here, and the response has their number.
"""

import importlib
import pickle
import sys
from typing import Any, BinaryIO

PLAIN = (type(None), bool, int, float, str, bytes)
lent: list[Any] = []


def is_plain(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return all(is_plain(one) for one in value)
    if isinstance(value, dict):
        return all(is_plain(one) for one in (*value, *value.values()))
    return isinstance(value, PLAIN)


def response_for(value: Any) -> tuple[str, Any]:
    if is_plain(value):
        return "value", value
    lent.append(value)
    return "object", len(lent) - 1


def act(action: str, number: int, args: tuple[Any, ...], named: dict[str, Any]) -> tuple[str, Any]:
    match action:
        case "import":
            return response_for(importlib.import_module(args[0]))
        case "get":
            return response_for(getattr(lent[number], args[0]))
        case "call":
            return response_for(lent[number](*args, **named))
        case _:
            return "values", [response_for(one) for one in lent[number]]


def serve(requests: BinaryIO, responses: BinaryIO) -> None:
    while True:
        try:
            request = pickle.load(requests)
        except EOFError:
            return
        try:
            response = act(*request)
        except Exception as error:
            response = "error", (type(error).__name__, str(error), getattr(error, "status_code", None))
        pickle.dump(response, responses)
        responses.flush()


if __name__ == "__main__":
    serve(sys.stdin.buffer, sys.stdout.buffer)
