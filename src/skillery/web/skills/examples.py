"""The examples of a version: the expected results, and the results of the last check."""

from __future__ import annotations

from typing import Any, NamedTuple

from skillery.formats.check_results import CheckedExample
from skillery.method import or_none
from skillery.web.frame import PageRequest
from skillery.web.skills.inputs import as_json
from skillery.web.skills.opened import Opened


class ShownExample(NamedTuple):
    name: str
    expected: str
    status: str
    duration_ms: float | None
    run_id: str | None
    """None if the caller may not see the run."""


def examples_of(request: PageRequest, opened: Opened) -> list[ShownExample]:
    """Return the examples of a version with the results of the last check."""
    checked = {example.name: example for example in or_none(opened.skill.examples) or ()}
    sees_runs = request.known is not None and (
        "admin" in request.known.scopes or request.known.name == opened.facts.publisher.name
    )
    shown = []
    for number, example in enumerate(opened.skill.manifest.get("examples") or (), 1):
        name = str(example.get("name") or f"Example {number}")
        result = checked.get(name) or CheckedExample(name, "not_run")
        run_id = result.run_id if sees_runs else None
        shown.append(ShownExample(name, _expected(example), result.status, result.duration_ms, run_id))
    return shown


def _expected(example: dict[str, Any]) -> str:
    if "expect_error" in example:
        return f"fails with {example['expect_error']}, as expected"
    for key in ("expect", "expect_subset"):
        if key in example:
            value = example[key]
            if isinstance(value, dict):
                return ", ".join(f"{name} {as_json(part)}" for name, part in value.items())
            return as_json(value)
    return "completes"
