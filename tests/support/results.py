"""Results of methods in tests: each has the types of the server, of its OpenRPC document and of the client."""

from __future__ import annotations

import copy
from collections import Counter
from functools import cache
from typing import Any

import jsonschema
import msgspec

VALIDATED = 3
"""Results of one method that a process validates with the OpenRPC document, which takes a millisecond. The types check
every result.
"""
_validated = Counter[str]()


def check_result(method: str, result: Any) -> None:
    """Raise ValidationError if the result has a member or a value that its types do not have.

    Methods that the server of this tree does not have are not checked.
    """
    kinds = _kinds().get(method)
    if kinds is None:
        return
    text = msgspec.json.encode(result)
    for kind in kinds:
        # Decoding skips unknown members, so encoding again yields only the known members.
        known = msgspec.json.decode(msgspec.json.encode(msgspec.json.decode(text, type=kind)))
        assert known == result, f"the result of {method} differs from {kind.__module__}.{kind.__name__}"
    _validated[method] += 1
    if _validated[method] <= VALIDATED:
        validate(method, result)


@cache
def _kinds() -> dict[str, tuple[Any, ...]]:
    """Return the struct of the server and the TypedDict of the client for the result of each method."""
    from skillery.client import generated
    from skillery.methods.table import METHODS

    results = {name: method.result for name, method in METHODS.items()}
    return {name: (result, getattr(generated, result.__name__)) for name, result in results.items()}


def validate(method: str, result: Any) -> None:
    """Raise ValidationError if the result differs from the OpenRPC document."""
    _validator(method).validate(result)


@cache
def _validator(method: str) -> jsonschema.Draft7Validator:
    document = _strict()
    [schema] = [row["result"]["schema"] for row in document["methods"] if row["name"] == method]
    return jsonschema.Draft7Validator({"allOf": [schema], "components": document["components"]})


@cache
def _strict() -> dict[str, Any]:
    """Return the document with `additionalProperties: false` in every schema with properties."""
    from skillery.client_source.openrpc import document

    strict = copy.deepcopy(document())
    for schema in strict["components"]["schemas"].values():
        if schema.get("type") == "object" and "properties" in schema:
            schema["additionalProperties"] = False
    return strict
