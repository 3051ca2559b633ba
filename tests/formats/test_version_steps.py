"""The step of a new version, derived from the changes that its callers notice."""

from __future__ import annotations

from typing import Any

import pytest

from skillery.formats.version_diffs import Facts, derived_step

OLD: dict[str, Any] = {
    "runtime": {"entrypoint": "main.py"},
    "inputs": {"a": {"type": "string", "required": True}, "b": {"type": "integer"}},
    "permissions": {"network": ["https://*.example.com"]},
}
TOOL = {"text": {"type": "string", "description": "The text"}}


def facts(manifest: dict[str, Any], tools: dict[str, Any], *paths: str) -> Facts:
    return Facts(manifest, tools, frozenset({"skill.toml", "main.py", *paths}))


@pytest.mark.parametrize(
    ("change", "tools", "paths", "part", "reason"),
    [
        ({"inputs": {"a": OLD["inputs"]["a"]}}, {"t": TOOL}, (), "major", "the input 'b' is removed"),
        (
            {"inputs": {**OLD["inputs"], "b": {"type": "integer", "required": True}}},
            {"t": TOOL},
            (),
            "major",
            "the input 'b' is newly required",
        ),
        (
            {"inputs": {**OLD["inputs"], "b": {"type": "string"}}},
            {"t": TOOL},
            (),
            "major",
            "the input 'b' is string instead of integer",
        ),
        ({}, {}, (), "major", "the tool 't' is removed"),
        ({}, {"t": {**TOOL, "n": {"type": "number"}}}, (), "major", "the parameter of 't' 'n' is newly required"),
        ({"permissions": {"secrets": ["K"]}}, {"t": TOOL}, (), "major", "the permission 'K' is new"),
        ({"runtime": {}}, {"t": TOOL}, (), "major", "the entrypoint is removed"),
        ({"permissions": {"network": ["https://a.example.com"]}}, {"t": TOOL}, (), "patch", "are the same"),
        ({"inputs": {**OLD["inputs"], "c": {"type": "any"}}}, {"t": TOOL}, (), "minor", "the input 'c' is new"),
        (
            {"inputs": {**OLD["inputs"], "c": {"type": "string", "required": True, "default": "x"}}},
            {"t": TOOL},
            (),
            "minor",
            "the input 'c' is new",
        ),
        ({}, {"t": TOOL, "u": TOOL}, (), "minor", "the tool 'u' is new"),
        ({}, {"t": {**TOOL, "n": {"optional": True}}}, (), "minor", "the parameter 'n' of 't' is new"),
        ({}, {"t": TOOL}, ("resources/a.txt",), "minor", "the file 'resources/a.txt' is new"),
        ({"description": "Other."}, {"t": TOOL}, ("requirements.lock",), "patch", "are the same"),
    ],
)
def test_the_step_follows_from_the_changes(
    change: dict[str, Any], tools: dict[str, Any], paths: tuple[str, ...], part: str, reason: str
) -> None:
    step = derived_step(facts(OLD, {"t": TOOL}), facts({**OLD, **change}, tools, *paths))
    assert step.part == part
    assert reason in step.reasons[0]
