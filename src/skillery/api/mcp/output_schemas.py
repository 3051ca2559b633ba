"""Output schemas of the tools of MCP, made from the structs of results."""

from __future__ import annotations

from functools import cache
from typing import Any

import msgspec

from skillery.edge.operations import ErrorAnswer


@cache
def output_schema(result: type[msgspec.Struct]) -> dict[str, Any]:
    """Return the JSON Schema of a tool's structured content: the struct `result`, or an error.

    MCP requires `type: object` at the top. Errors are part of the schema, because some clients check the content of
    errors too.
    """
    alternatives, parts = msgspec.json.schema_components([result, ErrorAnswer], ref_template="#/$defs/{name}")
    return {"type": "object", "anyOf": list(alternatives), "$defs": parts}
