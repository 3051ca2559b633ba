"""Checking values against a schema: every violation, with its path."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import Any, NamedTuple

from .schema import SchemaError, check_schema, resolve
from .values import FORMATS, TYPES, identity, is_number, shown, type_of

DEEPEST = 150


class Violation(NamedTuple):
    path: str
    """A JSON Pointer into the document; "" is the document itself."""
    keyword: str
    message: str


class Schema:
    """A schema ready to use. Raises SchemaError where it is wrong."""

    def __init__(self, schema: Any) -> None:
        check_schema(schema)
        self._root = schema

    def violations(self, value: Any) -> Iterator[Violation]:
        return self._check(value, self._root, "", 0)

    def _fits(self, value: Any, schema: Any, path: str, depth: int) -> bool:
        return next(self._check(value, schema, path, depth), None) is None

    def _check(self, value: Any, schema: Any, path: str, depth: int) -> Iterator[Violation]:
        if depth > DEEPEST:
            raise SchemaError(f"at {path[:80] or 'the document'}: deeper than {DEEPEST} levels, or a $ref in a circle")
        if schema is True:
            return
        if schema is False:
            yield Violation(path, "false", "is not allowed here")
            return
        yield from self._check_plain(value, schema, path)
        yield from self._check_combined(value, schema, path, depth + 1)
        if isinstance(value, dict):
            yield from self._check_object(value, schema, path, depth + 1)
        elif isinstance(value, list):
            yield from self._check_array(value, schema, path, depth + 1)

    def _check_plain(self, value: Any, schema: Mapping[str, Any], path: str) -> Iterator[Violation]:
        if "type" in schema:
            names = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
            if not any(TYPES[name](value) for name in names):
                message = f"is {type_of(value)} ({shown(value)}), expected is {' or '.join(names)}"
                yield Violation(path, "type", message)
        if "enum" in schema and identity(value) not in map(identity, schema["enum"]):
            yield Violation(path, "enum", f"is {shown(value)}, allowed are {shown(schema['enum'], 300)}")
        if "const" in schema and identity(value) != identity(schema["const"]):
            yield Violation(path, "const", f"is {shown(value)}, expected is {shown(schema['const'])}")
        if isinstance(value, str):
            yield from _check_text(value, schema, path)
        elif is_number(value):
            yield from _check_number(value, schema, path)

    def _check_combined(self, value: Any, schema: Mapping[str, Any], path: str, depth: int) -> Iterator[Violation]:
        if "$ref" in schema:
            yield from self._check(value, resolve(self._root, schema["$ref"]), path, depth)
        for each in schema.get("allOf", ()):
            yield from self._check(value, each, path, depth)
        if "anyOf" in schema and not any(self._fits(value, each, path, depth) for each in schema["anyOf"]):
            yield Violation(path, "anyOf", f"fits none of the {len(schema['anyOf'])} alternatives")
        if "oneOf" in schema:
            count = sum(self._fits(value, each, path, depth) for each in schema["oneOf"])
            if count != 1:
                yield Violation(
                    path, "oneOf", f"fits {count} of the {len(schema['oneOf'])} alternatives, expected is one"
                )
        if "not" in schema and self._fits(value, schema["not"], path, depth):
            yield Violation(path, "not", f"is {shown(value)}, which the schema excludes")
        if "if" in schema:
            branch = "then" if self._fits(value, schema["if"], path, depth) else "else"
            yield from self._check(value, schema.get(branch, True), path, depth)

    def _check_object(
        self, value: dict[str, Any], schema: Mapping[str, Any], path: str, depth: int
    ) -> Iterator[Violation]:
        for name in schema.get("required", ()):
            if name not in value:
                yield Violation(path, "required", f"lacks {name!r:.80}")
        yield from _check_size(len(value), schema, path, ("minProperties", "maxProperties"), "properties")
        for name, item in value.items():
            where = f"{path}/{name.replace('~', '~0').replace('/', '~1')}"
            declared = [schema["properties"][name]] if name in schema.get("properties", {}) else []
            declared += [
                each for pattern, each in schema.get("patternProperties", {}).items() if re.search(pattern, name)
            ]
            if not declared and schema.get("additionalProperties") is False:
                yield Violation(where, "additionalProperties", "is not in the schema, which allows no other properties")
                continue
            for each in declared or [schema.get("additionalProperties", True)]:
                yield from self._check(item, each, where, depth)

    def _check_array(self, value: list[Any], schema: Mapping[str, Any], path: str, depth: int) -> Iterator[Violation]:
        yield from _check_size(len(value), schema, path, ("minItems", "maxItems"), "items")
        if schema.get("uniqueItems"):
            yield from _check_unique(value, path)
        leading = schema.get("prefixItems", [])
        for position, item in enumerate(value):
            each = leading[position] if position < len(leading) else schema.get("items", True)
            yield from self._check(item, each, f"{path}/{position}", depth)


def _check_text(value: str, schema: Mapping[str, Any], path: str) -> Iterator[Violation]:
    yield from _check_size(len(value), schema, path, ("minLength", "maxLength"), "characters")
    if "pattern" in schema and not re.search(schema["pattern"], value):
        yield Violation(path, "pattern", f"is {shown(value)}, which does not match {schema['pattern']}")
    if "format" in schema and not FORMATS[schema["format"]](value):
        yield Violation(path, "format", f"is {shown(value)}, which is no {schema['format']}")


def _check_number(value: float, schema: Mapping[str, Any], path: str) -> Iterator[Violation]:
    bounds = (
        ("minimum", "at least", lambda bound: value >= bound),
        ("maximum", "at most", lambda bound: value <= bound),
        ("exclusiveMinimum", "more than", lambda bound: value > bound),
        ("exclusiveMaximum", "less than", lambda bound: value < bound),
    )
    for keyword, words, holds in bounds:
        if keyword in schema and not holds(schema[keyword]):
            yield Violation(path, keyword, f"is {shown(value)}, expected is {words} {schema[keyword]}")
    if "multipleOf" in schema and not _is_multiple(value, schema["multipleOf"]):
        yield Violation(path, "multipleOf", f"is {shown(value)}, expected is a multiple of {schema['multipleOf']}")


def _is_multiple(value: float, of: float) -> bool:
    """As the decimals they are written as: 19.99 is a multiple of 0.01, whatever floats say."""
    return math.isfinite(value) and (Fraction(str(value)) / Fraction(str(of))).denominator == 1


def _check_size(
    size: int, schema: Mapping[str, Any], path: str, keywords: tuple[str, str], what: str
) -> Iterator[Violation]:
    least, most = keywords
    if size < schema.get(least, 0):
        yield Violation(path, least, f"has {size} {what}, expected are at least {schema[least]}")
    if size > schema.get(most, size):
        yield Violation(path, most, f"has {size} {what}, expected are at most {schema[most]}")


def _check_unique(value: list[Any], path: str) -> Iterator[Violation]:
    places: dict[str, int] = {}
    for position, item in enumerate(value):
        first = places.setdefault(identity(item), position)
        if first != position:
            yield Violation(f"{path}/{position}", "uniqueItems", f"is {shown(item)}, as item {first} is")
