"""Output schemas of tools, made from the structs of results."""

from __future__ import annotations

from functools import cache
from typing import Any

import msgspec

from skillery.api.operations import ErrorAnswer


@cache
def output_schema(result: type[msgspec.Struct]) -> dict[str, Any]:
    """Return the JSON Schema of the structured content of a tool: its result or an error.

    MCP requires `type: object` at the top. The schema includes errors, because some clients validate them too.
    """
    alternatives, parts = msgspec.json.schema_components([result, ErrorAnswer], ref_template="#/$defs/{name}")
    return {"type": "object", "anyOf": list(alternatives), "$defs": parts}
