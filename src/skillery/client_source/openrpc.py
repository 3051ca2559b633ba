"""Write OpenRPC documents from the params and result structs of methods."""

from __future__ import annotations

import inspect
import re
import sys
import types
import typing
from collections.abc import Callable, Mapping
from functools import cache
from typing import Annotated, Any, Literal

import msgspec

from skillery import __version__
from skillery.backends import FailureType, Identity
from skillery.client_source.python import Field, fields_of, parts_of
from skillery.formats.file_schemas import SkillToml
from skillery.method import Method, Params, annotated_params, is_hidden
from skillery.methods.core import Core
from skillery.methods.errors import CODES, INTERNAL_ERROR, INVALID_REQUEST, METHOD_NOT_FOUND, PARSE_ERROR
from skillery.methods.table import FOR_MODELS, METHODS

OPENRPC = "1.3.2"
TEMPLATE = "#/components/schemas/{name}"
_BOUNDS = ("gt", "ge", "lt", "le", "multiple_of", "pattern", "min_length", "max_length", "title", "description")
_PRINTED = {"enum", "default"}
"""Keys of tool schemas whose values are those of the Skills Protocol. The decoder may accept other values."""


def document_of(methods: Mapping[str, Method]) -> dict[str, Any]:
    """Return the OpenRPC document of `methods`, by name."""
    params = {name: _params(method) for name, method in methods.items()}
    kinds = [_plain(kind) for fields in params.values() for _, kind in fields]
    results = [method.result for method in methods.values()]
    schemas, components = msgspec.json.schema_components([*kinds, *results], ref_template=TEMPLATE)
    of_params, of_results = iter(schemas[: len(kinds)]), iter(schemas[len(kinds) :])
    described = [
        {
            "name": name,
            "summary": _summary(method),
            "tags": [{"name": method.needs or "any token"}],
            "paramStructure": "by-name",
            "params": [_descriptor(field, next(of_params)) for field, _ in params[name]],
            "result": {"name": "result", "schema": next(of_results)},
            "errors": [{"$ref": f"#/components/errors/{kind.__name__}"} for kind in CODES],
        }
        for name, method in methods.items()
    ]
    return {
        "openrpc": OPENRPC,
        "info": {
            "title": "Skillery",
            "version": __version__,
            "description": "The Skills Protocol and the other methods of the registry: JSON-RPC 2.0 at POST /rpc. The "
            "tag of a method is the scope that it requires. A param that is null counts as omitted.",
            "license": {"name": "Apache-2.0"},
        },
        "methods": described,
        "components": {"schemas": components, "errors": _errors()},
    }


def _summary(method: Method) -> str:
    return inspect.cleandoc(method.params.__doc__ or "").replace("\n", " ")


def _params(method: Method) -> list[tuple[msgspec.structs.FieldInfo, Any]]:
    """Return the fields of a method's params with their types."""
    return [
        (field, Annotated[(SkillToml, *kind.__metadata__)] if field.name == "manifest" else kind)
        for field, kind in annotated_params(method.params)
    ]


def _plain(kind: Any) -> Any:
    """Return the type that the decoder accepts: without the keys in _PRINTED, and without `UNSET`."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is Annotated:
        metas = [
            _as_decoded(argument) if isinstance(argument, msgspec.Meta) else argument for argument in arguments[1:]
        ]
        return Annotated[(_plain(arguments[0]), *metas)]
    if origin in {typing.Union, types.UnionType}:
        return typing.Union[tuple(_plain(argument) for argument in arguments if argument is not msgspec.UnsetType)]  # noqa: UP007
    return kind


def _as_decoded(meta: msgspec.Meta) -> msgspec.Meta:
    """Return the metadata without the keys in _PRINTED."""
    extra = {key: value for key, value in (meta.extra_json_schema or {}).items() if key not in _PRINTED}
    return msgspec.Meta(**{name: getattr(meta, name) for name in _BOUNDS}, extra_json_schema=extra or None)


def _descriptor(field: msgspec.structs.FieldInfo, schema: dict[str, Any]) -> dict[str, Any]:
    """Return the OpenRPC description of a param."""
    described = {"description": schema.pop("description")} if "description" in schema else {}
    if isinstance(field.default, str | int | bool) and field.default != "":
        schema["default"] = field.default
    return {"name": field.encode_name, **described, "required": field.required, "schema": schema}


def _errors() -> dict[str, Any]:
    """Return the error codes by name: first the errors of methods, then the errors of JSON-RPC."""
    kinds = {kind.__name__: (code, kind.type.replace("_", " ")) for kind, (code, _) in CODES.items()}
    protocol = {
        "ParseError": (PARSE_ERROR, "parse error"),
        "InvalidRequest": (INVALID_REQUEST, "invalid request"),
        "MethodNotFound": (METHOD_NOT_FOUND, "method not found"),
        "InternalError": (INTERNAL_ERROR, "internal error"),
    }
    return {name: {"code": code, "message": message} for name, (code, message) in (kinds | protocol).items()}


# -- CALLABLE, the table of all methods that a client can call: METHODS, and `rpc.discover`, which describes them ------


class OpenRpcDocument(msgspec.Struct, frozen=True):
    """The OpenRPC document of this server."""

    openrpc: str
    info: dict[str, Any]
    methods: list[dict[str, Any]]
    components: dict[str, Any]


class Discover(Params, frozen=True, kw_only=True):
    """Describe every method as an OpenRPC document."""


async def discover(_: Core, __: Identity, ___: Discover) -> OpenRpcDocument:
    return OpenRpcDocument(**document())


SYSTEM: dict[str, Method] = {
    "rpc.discover": Method(discover, None, audits=""),
}
"""Methods of JSON-RPC itself, which reserves names with the prefix `rpc.` for them."""
CALLABLE = METHODS | SYSTEM


@cache
def document() -> dict[str, Any]:
    """Return the OpenRPC document of all methods in CALLABLE. It is the same for all callers."""
    return document_of(CALLABLE)


def words_of_type(schema: dict[str, Any]) -> str:
    """Return the type of a JSON Schema in words, for example "integer, 1 to 1000" or "read or write"."""
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    if "enum" in schema:
        return " or ".join(map(str, schema["enum"]))
    if "anyOf" in schema:
        return " or ".join(map(words_of_type, schema["anyOf"]))
    if schema.get("type") == "array":
        return f"array of {words_of_type(schema['items'])}" if schema.get("items") else "array"
    least, most = schema.get("minimum"), schema.get("maximum")
    bounds = f", {least} to {most}" if least is not None and most is not None else ""
    bounds = bounds or (f", at least {least}" if least is not None else "")
    length = f", at most {schema['maxLength']:,} characters" if "maxLength" in schema else ""
    return f"{schema.get('type', 'any')}{bounds}{length}"


# -- Tool schemas for LLMs in five formats, made from the structs of params --------------------------------------------


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
    """Return the schema of the tool `name` in the given format.

    `more` has additional properties of params by tool name. `explain` changes the descriptions of params.
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
    """Return the JSON Schema of params in the form of the Skills Protocol: without `null` and without bounds."""
    visible_fields = [(field, kind) for field, kind in annotated_params(struct) if not is_hidden(kind)]
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {field.encode_name: field_schema(kind) for field, kind in visible_fields},
    }
    required = [field.encode_name for field, _ in visible_fields if field.required]
    if required:
        schema["required"] = required
    return schema


def field_schema(annotated: Any) -> dict[str, Any]:
    """Return the JSON Schema of one param, also of a hidden one."""
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
    """Return the JSON Schema of a type, without its metadata."""
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


# -- The tables of docs/ that come from code. `make docs` writes them into the site ------------------------------------
# `python -m skillery.client_source.openrpc` reads a page from stdin, and prints the page with its tables.


MOST_FIELDS = 7
"""Fields of a result that the table of methods lists. For a result with more fields, the table has only a link."""


def filled(text: str) -> str:
    """Return the text of a page with its tables (`<!-- table: NAME -->`). Raise KeyError for another name."""
    return re.sub(r"^<!-- table: (.+) -->$", lambda line: TABLES[line[1]](), text, flags=re.MULTILINE)


def _methods() -> str:
    rows = "".join(_method_row(name, method) for name, method in CALLABLE.items())
    return f"| method | scope | params | result |\n|---|---|---|---|\n{rows}"


def _method_row(name: str, method: Method) -> str:
    params = ", ".join(field.encode_name for field, _ in annotated_params(method.params))
    shown = f"`{params}`" if params else ""
    return f"| `{name}` | {method.needs or 'any token'} | {shown} | {_result(method.result)} |\n"


def _filters() -> str:
    """Return the table of the params of list_skills that tool schemas do not show."""
    params = METHODS["list_skills"].params
    hidden = {field.encode_name for field, kind in annotated_params(params) if is_hidden(kind)}
    rows = "".join(
        _field_row(field._replace(is_always_there=True)) for field in fields_of(params) if field.name in hidden
    )
    return f"| param | type | |\n|---|---|---|\n{rows}"


def _result(result: type[msgspec.Struct]) -> str:
    names = [field.name for field in fields_of(result)]
    link = f"[{result.__name__}](results.md#{result.__name__.lower()})"
    return link if len(names) > MOST_FIELDS else f"{link}: `{', '.join(names)}`"


def _results() -> str:
    """Return the sections of results.md: one for each struct of a result, with its fields."""
    parts = sorted(parts_of([method.result for method in CALLABLE.values()]), key=lambda part: part.__name__)
    return "\n".join(_struct(part) for part in parts)


def _struct(struct: type[msgspec.Struct]) -> str:
    about = " ".join(inspect.cleandoc(struct.__doc__ or "").split())
    rows = "".join(_field_row(field) for field in fields_of(struct))
    paragraph = "" if about.startswith(f"{struct.__name__}(") else f"{about}\n\n"
    return f"## {struct.__name__}\n\n{paragraph}| field | type | |\n|---|---|---|\n{rows}"


def _field_row(field: Field) -> str:
    text = ". ".join(part for part in ("" if field.is_always_there else "optional", field.description) if part)
    return f"| `{field.name}` | `{_json_words(field.type)}` | {text} |\n"


def _json_words(kind: str) -> str:
    """Return a Python type of the client in the words of JSON, without the character `|`, which would end a cell of
    a table.
    """
    values = re.sub(r"\bLiteral\[([^\]]++)\]", lambda literal: literal[1].replace("'", '"').replace(", ", " or "), kind)
    return values.replace("None", "null").replace(" | ", " or ")


def _failure_types() -> str:
    rows = "".join(f"| `{failure}` | {failure.cause} |\n" for failure in FailureType)
    return f"| type | cause |\n|---|---|\n{rows}"


def _failure_remedies() -> str:
    return "\n".join(f"### `{failure}`\n\n{failure.cause}\n{failure.remedy}\n" for failure in FailureType)


TABLES = {
    "methods": _methods,
    "filters": _filters,
    "results": _results,
    "failure types": _failure_types,
    "failure remedies": _failure_remedies,
}


if __name__ == "__main__":
    sys.stdout.write(filled(sys.stdin.read()))
