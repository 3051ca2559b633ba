"""Write OpenRPC documents from the params and result structs of methods."""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Mapping
from functools import cache
from typing import Annotated, Any

import msgspec

from skillery import __version__
from skillery.backends import Identity
from skillery.formats.file_schemas import SkillToml
from skillery.method import Method, Params, annotated_params
from skillery.methods.core import Core
from skillery.methods.errors import CODES, INTERNAL_ERROR, INVALID_REQUEST, METHOD_NOT_FOUND, PARSE_ERROR
from skillery.methods.table import METHODS

OPENRPC = "1.3.2"
TEMPLATE = "#/components/schemas/{name}"
_BOUNDS = ("gt", "ge", "lt", "le", "multiple_of", "pattern", "min_length", "max_length", "title", "description")
_PRINTED = {"enum", "default"}
"""Keys of tool schemas with the values of the Skills Protocol. The decoder may accept other values."""


def document_of(methods: Mapping[str, Method]) -> dict[str, Any]:
    """Return the OpenRPC document of the given methods."""
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
    return [
        (field, Annotated[(SkillToml, *kind.__metadata__)] if field.name == "manifest" else kind)
        for field, kind in annotated_params(method.params)
    ]


def _plain(kind: Any) -> Any:
    """Return the type that the decoder accepts: without the keys in _PRINTED, and without the alternative `UNSET`."""
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
    extra = {key: value for key, value in (meta.extra_json_schema or {}).items() if key not in _PRINTED}
    return msgspec.Meta(**{name: getattr(meta, name) for name in _BOUNDS}, extra_json_schema=extra or None)


def _descriptor(field: msgspec.structs.FieldInfo, schema: dict[str, Any]) -> dict[str, Any]:
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


# CALLABLE, the table of everything that a client can call: METHODS, and `rpc.discover`, which describes all
# methods.


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
"""Methods of JSON-RPC itself. JSON-RPC reserves names with the prefix `rpc.` for such methods."""
CALLABLE = METHODS | SYSTEM


@cache
def document() -> dict[str, Any]:
    """Return the OpenRPC document of all methods in CALLABLE. The document is the same for every caller."""
    return document_of(CALLABLE)
