"""Stored JSON that the server passes on unchanged is the struct that the method declares."""

from __future__ import annotations

from typing import Any

import msgspec

from skillery.methods.table import METHODS
from tests.conftest import Rpc, manifest, publisher, skill_files

TOOLS = [{"name": "greet", "description": "Greets.", "parameters": {}, "script": "scripts/greet.py"}]


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
