"""The check of args before a run, so that each problem is shown at its field."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from skillery.formats.inputs import Input, InputInvalid, apply_inputs
from skillery.web.runs.fields import Field

MORE = "more"
"""The field for args without a field of their own."""


class Declared(NamedTuple):
    """The declared inputs of a call."""

    inputs: dict[str, Input]
    is_strict: bool
    """Whether undeclared args are refused."""


def refused(declared: Declared, fields: Sequence[Field], args: Mapping[str, Any]) -> dict[str, str]:
    """Return the problems of the args by the id of their field, in the words of the run that would fail."""
    ids = {field.name: field.id for field in fields}
    problems: dict[str, str] = {}
    try:
        apply_inputs(declared.inputs, args, strict=declared.is_strict)
    except InputInvalid as error:
        for name, problem in error.problems.items():
            problems.setdefault(ids.get(name, MORE), problem)
    return problems
