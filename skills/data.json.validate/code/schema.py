"""A schema, checked before anything is checked against it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from .values import FORMATS, TYPES, is_number, shown

SIMPLE = {
    "type": "a type or a list of types",
    "enum": "a list",
    "const": "any value",
    "required": "a list of names",
    "minItems": "a number",
    "maxItems": "a number",
    "uniqueItems": "true or false",
    "minLength": "a number",
    "maxLength": "a number",
    "minProperties": "a number",
    "maxProperties": "a number",
    "pattern": "a regular expression",
    "format": "a format",
    "minimum": "a number",
    "maximum": "a number",
    "exclusiveMinimum": "a number",
    "exclusiveMaximum": "a number",
    "multipleOf": "a number",
    "$ref": "a reference such as '#/$defs/name'",
}
OF_ONE = ("items", "additionalProperties", "not", "if", "then", "else")
OF_MANY = ("anyOf", "oneOf", "allOf", "prefixItems")
OF_NAMES = ("properties", "patternProperties", "$defs", "definitions")
REMARKS = frozenset(
    {"$schema", "$id", "$comment", "title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly"}
)


class SchemaError(ValueError):
    """The schema itself is wrong, or uses what is not supported."""


def check_schema(schema: Any) -> None:
    """Raises SchemaError for the first thing that is wrong, with its place."""
    left = [("#", schema)]
    while left:
        where, part = left.pop()
        if isinstance(part, bool):
            continue
        if not isinstance(part, Mapping):
            raise SchemaError(f"schema {where} is {shown(part)}: a schema is an object, true or false")
        for keyword, value in part.items():
            left += _check_keyword(schema, f"{where}/{keyword}", keyword, value)


def _check_keyword(root: Any, where: str, keyword: str, value: Any) -> list[tuple[str, Any]]:
    """The schemas inside."""
    if keyword in OF_ONE:
        return [(where, value)]
    if keyword in OF_MANY:
        _need(isinstance(value, list) and value, where, value, "a list of schemas")
        return [(f"{where}/{position}", each) for position, each in enumerate(value)]
    if keyword in OF_NAMES:
        _need(isinstance(value, Mapping), where, value, "an object of schemas")
        for pattern in value if keyword == "patternProperties" else ():
            _need(_is_pattern(pattern), where, pattern, "a regular expression")
        return [(f"{where}/{name}", each) for name, each in value.items()]
    if keyword in SIMPLE:
        _need(_is_simple(keyword, value), where, value, SIMPLE[keyword])
        if keyword == "$ref":
            resolve(root, value)
    elif keyword not in REMARKS:
        supported = ", ".join(sorted([*SIMPLE, *OF_ONE, *OF_MANY, *OF_NAMES]))
        raise SchemaError(f"schema {where}: this keyword is not supported; those are {supported}")
    return []


def _is_simple(keyword: str, value: Any) -> bool:
    match keyword:
        case "type":
            names = value if isinstance(value, list) else [value]
            return bool(names) and all(isinstance(name, str) and name in TYPES for name in names)
        case "enum":
            return isinstance(value, list) and bool(value)
        case "required":
            return isinstance(value, list) and all(isinstance(name, str) for name in value)
        case "uniqueItems":
            return isinstance(value, bool)
        case "pattern":
            return _is_pattern(value)
        case "format":
            return isinstance(value, str) and value in FORMATS
        case "$ref":
            return isinstance(value, str)
        case "multipleOf":
            return is_number(value) and value > 0
        case "const":
            return True
    return is_number(value)


def _is_pattern(value: Any) -> bool:
    try:
        re.compile(value)
    except (re.error, TypeError):
        return False
    return True


def _need(fine: Any, where: str, value: Any, expected: str) -> None:
    if fine:
        return
    known = {"/type": ", ".join(TYPES), "/format": ", ".join(FORMATS)}.get(where[where.rfind("/") :])
    more = f" (one of {known})" if known else ""
    raise SchemaError(f"schema {where} is {shown(value)}, expected is {expected}{more}")


def resolve(root: Any, reference: str) -> Any:
    """What a reference within the schema points to. Raises SchemaError."""
    if reference != "#" and not reference.startswith("#/"):
        raise SchemaError(f"schema $ref {reference!r:.120}: only references within the schema, '#/$defs/name', work")
    found = root
    for step in _steps(reference):
        if isinstance(found, list) and step.isdecimal() and int(step) < len(found):
            found = found[int(step)]
        elif isinstance(found, Mapping) and step in found:
            found = found[step]
        else:
            raise SchemaError(f"schema $ref {reference!r:.120}: there is nothing at {step!r:.80}")
    if not isinstance(found, bool | Mapping):
        raise SchemaError(f"schema $ref {reference!r:.120}: what is there is no schema")
    return found


def _steps(reference: str) -> Iterator[str]:
    for step in reference.split("/")[1:]:
        yield step.replace("~1", "/").replace("~0", "~")
