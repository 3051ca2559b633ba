"""Each method returns the struct that its row of METHODS names, also if the server passes on stored JSON unchanged."""

from __future__ import annotations

import typing
from typing import Any

import msgspec

from skillery.api.rpc.discovery import CALLABLE
from skillery.formats.json_pieces import JsonPieces
from skillery.methods.table import METHODS
from tests.conftest import Rpc, manifest, publisher, skill_files

ENCODED = {msgspec.Raw, JsonPieces}
ANSWERED_AS_STORED = {"list_skills", "describe_skill", "read_skill_file", "list_tools"}
TOOLS = [{"name": "greet", "description": "Greets.", "parameters": {}, "script": "scripts/greet.py"}]


def test_a_handler_returns_the_result_of_its_row() -> None:
    wrong, stored = {}, set()
    for name, method in CALLABLE.items():
        returned = typing.get_type_hints(method.call)["return"]
        kinds = set(typing.get_args(returned)) or {returned}
        if not (kinds - ENCODED <= {method.result} and issubclass(method.result, msgspec.Struct)):
            wrong[name] = (returned, method.result)
        if kinds & ENCODED:
            stored.add(name)

    assert wrong == {}
    assert stored == ANSWERED_AS_STORED


def test_stored_json_is_answered_as_the_struct_says(rpc: Rpc, new_name: str) -> None:
    """Every member is known to the struct and has its type."""
    name = f"{new_name}.one"
    more = [
        {"path": "tools.json", "content": msgspec.json.encode(TOOLS).decode()},
        {"path": "scripts/greet.py", "content": "print('hello')"},
        {"path": "large.md", "content": "x" * 100_000},
    ]
    examples = [{"args": {}, "expect": {"got": {"x": 1}}}]
    inputs = {"x": {"type": "integer", "default": 1}}
    made = manifest(name, tags=["a"], examples=examples, inputs=inputs)
    rpc("create_skill", manifest=made, skill_md=f"# {name}\n", files=[*skill_files(), *more])
    publisher(rpc)(name, "1.1.0")
    rpc("yank_version", name=name, version="1.0.0", reason="It leaks.")
    rpc("deprecate_skill", name=name, message="Old.")
    rpc("set_label", name=name, label="stable", version="1.1.0")
    calls: list[tuple[str, dict[str, Any]]] = [
        *(("list_skills", {"namespace": new_name, "detail": detail}) for detail in ("names", "summary")),
        *(
            ("describe_skill", {"name": name, "version": version, "detail": detail})
            for detail in ("manifest", "summary", "full")
            for version in ("1.0.0", "1.1.0")
        ),
        *(("read_skill_file", {"name": name, "version": "1.0.0", "path": path}) for path in ("SKILL.md", "large.md")),
        ("list_tools", {"skill": f"{name}@1.0.0"}),
    ]

    for method, params in calls:
        check_strictly(method, rpc(method, **params))


def check_strictly(method: str, answer: Any) -> None:
    decoded = msgspec.json.decode(msgspec.json.encode(answer), type=METHODS[method].result)
    # Decoding skips unknown members, so encoding the struct again yields only the known members.
    assert msgspec.json.decode(msgspec.json.encode(decoded)) == answer
