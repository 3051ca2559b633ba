"""Error messages for params that cannot be decoded."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import msgspec

from skillery.errors import InvalidParams
from skillery.formats.wording import nearest
from skillery.method import Params
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


def explain(error: Exception, params: type[Params], text: msgspec.Raw) -> InvalidParams:
    """Return the error for params that the decoder refused with `error`.

    The error names the parameter, its type, and its value if the value is short. For an unknown parameter, the error
    suggests the most similar known parameter.
    """
    known = [field.encode_name for field in msgspec.structs.fields(params)]
    try:
        given = msgspec.structs.asdict(known_params(params).decode(text))
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
    value = given.get(where, msgspec.UNSET)
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
    found: dict[str, Any] = msgspec.json.schema(params)["$defs"]
    return found
