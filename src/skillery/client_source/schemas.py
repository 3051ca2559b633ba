"""Tool schemas for LLMs in five formats, made from the structs of params."""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, Literal

import msgspec

from skillery.method import Params, annotated_params, is_hidden
from skillery.methods.table import FOR_MODELS

Format = Literal["openai", "openai-responses", "anthropic", "mcp", "jsonschema"]
FORMATS: tuple[Format, ...] = typing.get_args(Format)
_NOTHING: Mapping[str, Mapping[str, Any]] = types.MappingProxyType({})
_JSON_TYPES: dict[Any, str] = {str: "string", int: "integer", float: "number", bool: "boolean"}


def tool(
    name: str,
    params: type[Params],
    form: Format,
    more: Mapping[str, Mapping[str, Any]] = _NOTHING,
    explain: Callable[[str, dict[str, Any]], None] | None = None,
) -> dict[str, Any]:
    """Return the schema of the tool `name` in a format.

    `more` maps the name of a tool to additional properties of its params. `explain` changes the descriptions of the
    params.
    """
    description, schema = inspect.cleandoc(params.__doc__ or "").replace("\n", " "), parameters_schema(params)
    schema["properties"] |= more.get(name, {})
    for param, default in FOR_MODELS.get(name, {}).items():
        if param in schema["properties"]:
            schema["properties"][param]["default"] = default
    if explain is not None:
        explain(name, schema)
    match form:
        case "openai":
            return {"type": "function", "function": {"name": name, "description": description, "parameters": schema}}
        case "openai-responses":
            # The Responses API is strict by default, and a strict schema has no optional properties.
            flat = {"type": "function", "name": name, "description": description}
            return flat | {"parameters": schema, "strict": False}
        case "anthropic":
            return {"name": name, "description": description, "input_schema": schema}
        case "mcp":
            return {"name": name, "description": description, "inputSchema": schema}
        case "jsonschema":
            return {"name": name, "description": description, "parameters": schema}


def parameters_schema(struct: type[msgspec.Struct]) -> dict[str, Any]:
    """Return the JSON Schema of params as in the Skills Protocol: without `null` and without bounds."""
    shown = [(field, kind) for field, kind in annotated_params(struct) if not is_hidden(kind)]
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {field.encode_name: field_schema(kind) for field, kind in shown},
    }
    required = [field.encode_name for field, _ in shown if field.required]
    if required:
        schema["required"] = required
    return schema


def field_schema(annotated: Any) -> dict[str, Any]:
    """Return the JSON Schema of one param, hidden or not."""
    schema = _type_schema(annotated)
    for meta in _metas(annotated):
        extra = dict(meta.extra_json_schema or {})
        schema |= {key: value for key, value in extra.items() if key != "default"}
        if "default" in extra:
            schema["default"] = extra["default"]
        if meta.description:
            schema["description"] = meta.description
    return schema


def _type_schema(kind: Any) -> dict[str, Any]:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Annotated:
        return _type_schema(arguments[0])
    if origin in {typing.Union, types.UnionType}:
        (only,) = (argument for argument in arguments if argument is not msgspec.UnsetType)
        return _type_schema(only)
    if origin is Literal:
        return {"type": "string", "enum": list(arguments)}
    if origin is list:
        return {"type": "array", "items": _type_schema(arguments[0])}
    if origin is dict:
        return {"type": "object"}
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return parameters_schema(kind)
    return {"type": _JSON_TYPES[kind]}


def _metas(kind: Any) -> list[msgspec.Meta]:
    if typing.get_origin(kind) is not typing.Annotated:
        return []
    return [meta for meta in typing.get_args(kind)[1:] if isinstance(meta, msgspec.Meta)]
