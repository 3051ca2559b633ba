"""The params of a call: decode them, and explain the errors of params that cannot be decoded."""

from __future__ import annotations

import re
from contextlib import nullcontext
from functools import cache
from typing import Any

import msgspec

from skillery.context.threads import without_collecting
from skillery.errors import InvalidParams
from skillery.formats.json_pieces import is_exactly
from skillery.formats.wording import nearest
from skillery.method import Method, Params, annotated_params
from skillery.methods.errors import encode
from skillery.runs.limits import ASKABLE

_MISSING = re.compile(r"missing required field `(\w+)`")
MOST_SHOWN = 40
"""Limit of the bytes of a value that an error message repeats."""
_STEP = re.compile(r"\w+|\[\d+\]")
_UNKNOWN = re.compile(r"Object contains unknown field `(.*)`", re.DOTALL)


@cache
def known_params(params: type[Params]) -> msgspec.json.Decoder[Any]:
    """Return a decoder that decodes only the top level: each known parameter as raw JSON.

    The decoder raises ValidationError at the first unknown parameter, because a body may contain a million of them.
    """
    fields = [
        (field.encode_name, msgspec.Raw | msgspec.UnsetType, msgspec.UNSET) for field in msgspec.structs.fields(params)
    ]
    return msgspec.json.Decoder(msgspec.defstruct(f"Known{params.__name__}", fields, forbid_unknown_fields=True))


def changed(params: Params) -> dict[str, Any]:
    """Return the params that differ from their defaults: a default such as "" may be outside the bounds of a param."""
    defaults = _defaults(type(params))
    return {name: value for name in defaults if (value := getattr(params, name)) != defaults[name]}


@cache
def _defaults(params: type[Params]) -> dict[str, Any]:
    return {
        field.name: field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
        for field in msgspec.structs.fields(params)
    }


def explain(error: Exception, params: type[Params], text: msgspec.Raw) -> InvalidParams:
    """Return the error for params that the decoder refused with `error`.

    The error names the parameter, its type, and its value if the value is short. For an unknown parameter, the error
    suggests the most similar known parameter.
    """
    known = [field.encode_name for field, _ in annotated_params(params)]
    try:
        values = msgspec.structs.asdict(known_params(params).decode(text))
    except msgspec.ValidationError as refused:
        unknown = _UNKNOWN.match(str(refused))
        if unknown is None:
            return InvalidParams(
                "params must be an object",
                hint=f"The params are {', '.join(known)}." if known else "The method has no params.",
            )
        return _unknown(unknown[1], known)
    reason, _, where = str(error).partition(" - at `$")
    where = where.removesuffix("`").lstrip(".")
    missing = _MISSING.search(reason)
    if missing:
        path = f"{where}.{missing[1]}" if where else missing[1]
        return InvalidParams(f"the parameter '{path}' is missing", hint=_takes(params, path), param=path)
    value = values.get(where, msgspec.UNSET)
    value = b"" if value is msgspec.UNSET or len(value) > MOST_SHOWN else bytes(value)
    shown = f"{value.decode()}, which is not valid" if value else "not valid"
    message = f"the parameter '{where}' is {shown}: {reason[:1].lower()}{reason[1:]}"
    return InvalidParams(message, hint=_takes(params, where), param=where)


def _unknown(key: str, known: list[str]) -> InvalidParams:
    if key in ASKABLE and "limits" in known:
        return InvalidParams(
            f"there is no parameter {key!r}", hint=f"'{key}' is a limit: write 'limits': {{'{key}': …}}.", param=key
        )
    near = nearest(key, known, cutoff=0.0)
    hint = f"Did you mean '{near}'? " if near else ""
    return InvalidParams(
        f"there is no parameter {key[:80]!r}",
        hint=f"{hint}The params are: {', '.join(known) or 'none'}.",
        param=key[:80],
    )


def _takes(params: type[Params], path: str) -> str:
    """Return a sentence about the valid values of the parameter at `path`, for example `limit` or
    `files[0].encoding`.
    """
    schema = schema_of(params, path)
    if "properties" in schema:
        return f"'{path}' takes {', '.join(schema['properties'])}."
    if "enum" in schema:
        return f"'{path}' is one of {', '.join(schema['enum'])}."
    kind = schema.get("type", "value")
    article = "an" if kind[0] in "aeiou" else "a"
    least, most = schema.get("minimum"), schema.get("maximum")
    bounds = "" if least is None else f" of at least {least}" if most is None else f" from {least} to {most}"
    description = f": {schema['description']}" if "description" in schema else ""
    return f"'{path}' is {article} {kind}{bounds}{description}."


def schema_of(params: type[Params], path: str) -> dict[str, Any]:
    """Return the JSON Schema of the parameter at `path`. If it has no schema, return the schema of its nearest
    parent.
    """
    schemas = _schemas(params)
    schema: dict[str, Any] = schemas[params.__name__]
    for step in _STEP.findall(path):
        below = schema.get("items") if step.startswith("[") else schema.get("properties", {}).get(step)
        if below is None:
            break
        schema = schemas[below["$ref"].rpartition("/")[2]] if "$ref" in below else below
    return schema


@cache
def _schemas(params: type[Params]) -> dict[str, Any]:
    schemas: dict[str, Any] = msgspec.json.schema(params)["$defs"]
    return schemas


REDUCED = frozenset({"limit", "max_bytes", "wait_ms"})
"""Integer params whose values over the maximum are reduced to the maximum."""
NULL = b"null"
BIG_PARAMS = 64 * 1024
RawParams = msgspec.Raw | msgspec.UnsetType


def decode_params(method: Method, raw: RawParams) -> Any:
    """Return the struct of the params. Raise InvalidParams if the params are not valid.

    The error names the parameter, and for an unknown parameter also the most similar known one. An empty array counts
    as no params.
    """
    text = msgspec.Raw(b"{}") if raw is msgspec.UNSET or is_exactly(raw, NULL) or _is_empty_array(raw) else raw
    if bytes(memoryview(text)[:1]) == b"[":
        raise InvalidParams(
            "params must be an object: positional params are not supported", hint='Write "params": {"name": value, …}.'
        )
    try:
        with without_collecting() if len(text) > BIG_PARAMS else nullcontext():
            return _decoder(method.params).decode(text)
    except (msgspec.ValidationError, RecursionError):
        try:
            text = _mended(method.params, text)
            return _decoder(method.params).decode(text)
        except (msgspec.ValidationError, RecursionError) as error:
            raise explain(error, method.params, text) from None


def _is_empty_array(text: msgspec.Raw) -> bool:
    return len(text) <= MOST_SHOWN and bytes(text).translate(None, b" \t\r\n") == b"[]"


def _mended(params: type[Params], text: msgspec.Raw) -> msgspec.Raw:
    """Return the params in the form that the decoder accepts. Unknown params raise ValidationError.

    A member that is null counts as omitted. A float without a fraction is an integer, as in JSON Schema. Values over
    the maximum of `limit`, `max_bytes` and `wait_ms` are reduced to the maximum.
    """
    values = msgspec.structs.asdict(known_params(params).decode(text))
    kept = {name: value for name, value in values.items() if value is not msgspec.UNSET and not is_exactly(value, NULL)}
    for name, most in _integers(params).items():
        if name in kept and len(kept[name]) <= MOST_SHOWN:
            number = msgspec.json.decode(kept[name])
            if isinstance(number, float) and number.is_integer():
                number = int(number)
            if isinstance(number, int) and not isinstance(number, bool):
                kept[name] = number if most is None else min(number, most)
    return msgspec.Raw(encode(kept))


@cache
def _integers(params: type[Params]) -> dict[str, int | None]:
    """Return the names of the integer params, with the maximum to which a greater value is reduced, or None."""
    schemas = {name: schema_of(params, name) for name in params.__struct_encode_fields__}
    return {
        name: schema.get("maximum") if name in REDUCED else None
        for name, schema in schemas.items()
        if schema.get("type") == "integer"
    }


@cache
def _decoder(struct: type[msgspec.Struct]) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(struct)
