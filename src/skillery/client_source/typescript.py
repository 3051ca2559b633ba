"""Writes the methods and types of the JavaScript client from the OpenRPC document. `make client-js` runs this module.

Git ignores the written file.
"""

from __future__ import annotations

import json
import os
import re
import textwrap
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from skillery.client_source.openrpc import document_of
from skillery.client_source.python import ABOUT_MODELS, tables
from skillery.methods.table import FOR_MODELS, METHODS

TARGET = Path(__file__).parents[3] / "packages" / "skillery-client-js" / "src" / "methods.ts"
UPLOADED = "RunFile[]"
"""A param type. Callers may also pass an object of contents by path, which are uploaded."""
HEAD = """\
// Made by `make client-js` from the OpenRPC document: do not edit.
import type { CallOptions } from "./connection.ts";
import type { Content } from "./blobs.ts";
"""
CALL = "abstract call(method: string, params?: object, options?: CallOptions): Promise<any>;"
_SIMPLE = {
    "string": "string",
    "integer": "number",
    "number": "number",
    "boolean": "boolean",
    "null": "null",
    None: "unknown",
}
_WIDTH = 116


def source(document: Mapping[str, Any], lists: Mapping[str, tuple[str, list[str]]]) -> str:
    """Return the TypeScript module for the methods of an OpenRPC document.

    `lists` are lists of method names, each with a description.
    """
    methods = document["methods"]
    parts = [
        HEAD,
        *(_interface(name, schema) for name, schema in document["components"]["schemas"].items()),
        *(_params(method) for method in methods),
        "\n".join(
            f"{_comment(description)}export const {name}: readonly string[] = {json.dumps(names, indent=2)};"
            for name, (description, names) in lists.items()
        ),
        f"{_comment(ABOUT_MODELS)}export const FOR_MODELS: Record<string, object> = {json.dumps(FOR_MODELS)};",
        "/** Every method of the server. */\nexport abstract class Methods {",
        f"  {CALL}\n",
        *(_method(method) for method in methods),
    ]
    return "\n".join(parts).rstrip() + "\n}\n"


def _method(method: Mapping[str, Any]) -> str:
    params, (name, answer) = method["params"], (method["name"], _type(method["result"]["schema"]))
    call = f"params: {_params_name(method)}" + ("" if any(param["required"] for param in params) else " = {}")
    return (
        f"{_comment(method['summary'], '  ')}"
        f"  {_camel(name)}({call}, options?: CallOptions): Promise<{answer}> {{\n"
        f'    return this.call("{name}", params, options);\n'
        "  }\n"
    )


def _params(method: Mapping[str, Any]) -> str:
    fields = [
        _field(param["name"], param["schema"], param.get("description", ""), is_required=param["required"], params=True)
        for param in method["params"]
    ]
    return _object(_params_name(method), f"Params of `{method['name']}`.", fields)


def _interface(name: str, schema: Mapping[str, Any]) -> str:
    required = schema.get("required", ())
    fields = [
        _field(field, kind, kind.get("description", ""), is_required=field in required)
        for field, kind in schema.get("properties", {}).items()
    ]
    return _object(name, schema.get("description", ""), fields)


def _object(name: str, description: str, fields: Iterable[str]) -> str:
    return f"{_comment(description)}export interface {name} {{\n{''.join(fields)}}}\n"


def _field(name: str, schema: Mapping[str, Any], description: str, *, is_required: bool, params: bool = False) -> str:
    kind = _type(schema)
    if params and kind == UPLOADED:
        kind = f"{UPLOADED} | Record<string, Content>"
    key = name if name.isidentifier() else f'"{name}"'
    return f"{_comment(description, '  ')}  {key}{'' if is_required else '?'}: {kind};\n"


def _type(schema: Mapping[str, Any]) -> str:
    """Return a JSON Schema as a TypeScript type."""
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    if "enum" in schema:
        return " | ".join(map(json.dumps, schema["enum"]))
    if "anyOf" in schema:
        return " | ".join(map(_type, schema["anyOf"]))
    kind = schema.get("type")
    if kind == "array":
        item = _type(schema.get("items", {}))
        return f"({item})[]" if " | " in item else f"{item}[]"
    if kind == "object":
        values = schema.get("additionalProperties")
        return f"Record<string, {_type(values) if isinstance(values, dict) else 'unknown'}>"
    return _SIMPLE[kind]


def _params_name(method: Mapping[str, Any]) -> str:
    name = _camel(method["name"])
    return f"{name[0].upper()}{name[1:]}Params"


def _camel(name: str) -> str:
    """Return the JavaScript name of a method: `listSkills` for `list_skills`."""
    return re.sub(r"_(\w)", lambda match: match[1].upper(), name)


def _comment(text: str, indent: str = "") -> str:
    """Return the text as a comment above a declaration, or "" if there is no text."""
    text = text.replace("*/", "* /")
    if not text:
        return ""
    if len(text) + len(indent) < _WIDTH - 6:
        return f"{indent}/** {text} */\n"
    lines = textwrap.wrap(text, _WIDTH - len(indent) - 3, break_long_words=False)
    return "".join([f"{indent}/**\n", *(f"{indent} * {line}\n" for line in lines), f"{indent} */\n"])


def main() -> None:
    new = TARGET.with_suffix(f".{os.getpid()}")
    new.write_text(source(document_of(METHODS), tables()), "utf-8")
    new.replace(TARGET)  # in one step: processes of the tests read the file


if __name__ == "__main__":
    main()
