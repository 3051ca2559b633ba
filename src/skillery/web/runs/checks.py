"""The check of args before a run, so that each problem is shown at its field."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from skillery.formats.inputs import Input, InputInvalid, apply_inputs
from skillery.web.runs.fields import Field

MORE = "more"
"""The field for args without a field of their own."""


class Declared(NamedTuple):
    """The declared inputs of a call."""

    inputs: dict[str, Input]
    is_strict: bool
    """Whether undeclared args are refused."""


def inputs_in(table: Mapping[str, Mapping[str, Any]]) -> dict[str, Input]:
    """Return the inputs in `[inputs]` of a manifest, or in the parameters of a tool. Unknown forms are left out."""
    found = {}
    for name, one in table.items():
        try:
            found[name] = msgspec.convert({"type": "any", **_known(one)}, Input)
        except msgspec.ValidationError:
            continue  # the run itself checks this input
    return found


def _known(one: Mapping[str, Any]) -> dict[str, Any]:
    fields = {field.name for field in msgspec.structs.fields(Input)}
    known = {key: value for key, value in one.items() if key in fields}
    return known | ({"has_default": True} if "default" in one and "has_default" in fields else {})


def refused(declared: Declared, fields: Sequence[Field], args: Mapping[str, Any]) -> dict[str, str]:
    """Return the problems of the args by the id of their field, in the words of the run that would fail."""
    ids = {field.name: field.id for field in fields}
    problems: dict[str, str] = {}
    for name, one in declared.inputs.items():
        try:
            apply_inputs({name: one}, {name: args[name]} if name in args else {})
        except InputInvalid as error:
            problems.setdefault(ids.get(name, MORE), str(error))
    if declared.is_strict and not problems:
        try:
            apply_inputs(declared.inputs, args, strict=True)
        except InputInvalid as error:
            problems[MORE] = str(error)
    return problems
