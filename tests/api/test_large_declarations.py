"""Large enums, manifests and arguments cost a server little time and memory, and work like small ones."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.conftest import Rpc, Server, manifest, skill_files
from tests.support.growth import spent
from tests.support.processes import resident_bytes

Start = Callable[..., Server]
RUNTIME = {"language": "python", "entrypoint": "code/main.py"}
SLACK_SECONDS = 0.2
MANY_KEYS = {f"{number:x}": 0 for number in range(90_000)}


@pytest.fixture
def fresh(start_server: Start) -> Server:
    """Return a server whose memory and processor time no other test has used."""
    return start_server()


def define(rpc: Rpc, name: str, enum: list[Any], type_: str = "object") -> None:
    parameters = json.dumps({"a": {"type": type_, "description": "x", "enum": enum}}, separators=(",", ":"))
    rpc("define_tool", name=name, description="x", parameters=parameters, code="echo 1", language="bash")


def publish_large(rpc: Rpc, name: str, **more: Any) -> None:
    """Publish a skill with a required input. Calls that omit this input start no sandbox."""
    inputs = {"needed": {"type": "any", "required": True}, **more.pop("inputs", {})}
    rpc("create_skill", **_skill(name, inputs, more))


def _skill(name: str, inputs: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    return {
        "manifest": manifest(name, runtime=RUNTIME, inputs=inputs, **more),
        "skill_md": f"---\nname: {name}\ndescription: x\n---\n# x\n",
        "files": skill_files(),
    }


def refused(rpc: Rpc, name: str) -> None:
    assert rpc("execute_skill", name=name)["error"]["type"] == "ValidationError"


@pytest.mark.full
def test_many_enum_entries_cost_no_more_with_a_large_argument(fresh: Server) -> None:
    rpc = Rpc(fresh.url)
    define(rpc, "few", [{}] * 2)
    define(rpc, "many", [{}] * 2_000)
    few = spent(fresh.process.pid, lambda: rpc("call_tool", name="few", args={"a": MANY_KEYS}))
    many = spent(fresh.process.pid, lambda: rpc("call_tool", name="many", args={"a": MANY_KEYS}))
    assert many < 2 * few + SLACK_SECONDS


@pytest.mark.full
def test_unknown_keys_of_a_manifest_cost_no_more_than_other_values(fresh: Server) -> None:
    rpc = Rpc(fresh.url)
    names = [f"dinam{number:x}" for number in range(18_000)]
    publish_large(rpc, "att.plain", tests=names)
    publish_large(rpc, "att.unknown", inputs={"a": {"type": "any"} | dict.fromkeys(names, 0)})
    plain = spent(fresh.process.pid, lambda: refused(rpc, "att.plain"))
    unknown = spent(fresh.process.pid, lambda: refused(rpc, "att.unknown"))
    assert unknown < 2 * plain + SLACK_SECONDS


@pytest.mark.full
def test_manifests_that_were_run_do_not_stay_in_memory(fresh: Server) -> None:
    rpc = Rpc(fresh.url)
    names = [f"att.lists{number}" for number in range(12)]
    for name in names:
        publish_large(rpc, name, tests=[[]] * 80_000)
    refused(rpc, names[0])
    before = resident_bytes(fresh.process.pid)
    for name in names:
        refused(rpc, name)
    assert resident_bytes(fresh.process.pid) - before < 40 * 1024 * 1024


@pytest.mark.parametrize(
    ("value", "fits"),
    [
        ({"x": 1.0, "y": [1, {"z": None}]}, True),
        ({"y": [1.0, {"z": None}], "x": 1}, True),
        ({"x": True, "y": [1, {"z": None}]}, False),
        ({"x": 1, "y": [1, {"z": False}]}, False),
        ({"x": 1, "w": [1, {"z": None}]}, False),
        ({"x": 1, "y": {"0": 1, "1": 2}}, False),
        ({"x": 1, "y": [1, {"z": 0}, 2]}, False),
        ({"x": 1}, False),
        ({}, False),
    ],
)
@pytest.mark.parametrize("more", [0, 3_000])
@pytest.mark.full(after=14)
def test_enum_compares_values_as_json(value: Any, fits: bool, more: int, sqlite_rpc: Rpc) -> None:
    inputs = {"a": {"type": "any", "enum": [*([0.5] * more), {"x": 1, "y": [1, {"z": 0}]}]}}
    wanted = json.loads(json.dumps(value).replace("null", "0"))
    name = f"enum.n{abs(hash((json.dumps(value), more))):x}"
    sqlite_rpc("create_skill", **_skill(name, inputs, {}))
    run = sqlite_rpc("execute_skill", name=name, args={"a": wanted})
    assert (run["status"] == "completed") is fits, run
