"""Named environments for skills that declare no dependencies, and the error of a run that misses a module."""

from __future__ import annotations

from typing import Any

import pytest

from tests.cli.test_cli import skillery
from tests.conftest import Rpc, Server, manifest
from tests.importing.test_importing import sent
from tests.support.archives import skill_md, zipped
from tests.support.needing import create, needing

CODE = "import frames\ndef main(args): return frames.VERSION\n"
SCRIPT = "import frames\nprint(frames.VERSION)\n"
TOOLS = """[{"name": "%s", "description": "Shows.", "script": "show.py", "parameters": {}}]"""
HANDLER = "import frames\ndef handler(args): return frames.VERSION\n"


@pytest.fixture
def scripts(named_rpc: Rpc, new_name: str) -> str:
    """Publish a skill without declared dependencies and return its name."""
    files = {"SKILL.md": skill_md(new_name), "show.py": SCRIPT, "show.sh": "echo sh\n"}
    sent(named_rpc, zipped({f"{new_name}/{path}": text for path, text in files.items()}))
    return new_name


def run(rpc: Rpc, name: str, script: str = "show.py", **more: Any) -> dict[str, Any]:
    ran: dict[str, Any] = rpc("execute_skill", name=name, script=script, **more)
    return ran


@pytest.mark.full
def test_a_script_has_the_environment_that_it_names(named_rpc: Rpc, scripts: str) -> None:
    default, old = run(named_rpc, scripts), run(named_rpc, scripts, environment="old")
    without = run(named_rpc, scripts, environment="")

    assert [one["output"]["stdout"] for one in (default, old, without)] == ["1.5\n", "1.0\n", ""]
    assert (default["environment"]["name"], old["environment"]["name"]) == ("data", "old")
    assert "environment" not in without
    assert named_rpc("get_run", run_id=old["run_id"])["environment"]["name"] == "old"


def test_an_entrypoint_has_the_default_and_may_import_it(named_rpc: Rpc, new_name: str) -> None:
    create(named_rpc, manifest(new_name, runtime={"entrypoint": "code/main.py"}), CODE)

    assert named_rpc("execute_skill", name=new_name)["output"] == "1.5"
    assert named_rpc("execute_skill", name=new_name, environment="old")["output"] == "1.0"


def test_a_tool_has_the_environment_that_it_names(named_rpc: Rpc, new_name: str) -> None:
    tool = f"show-{new_name.rpartition('.')[2]}".replace("-", "_")
    files = {"SKILL.md": skill_md(new_name), "show.py": HANDLER, "tools.json": TOOLS % tool}
    sent(named_rpc, zipped({f"{new_name}/{path}": text for path, text in files.items()}))
    [found] = named_rpc("list_tools", skill=new_name)["tools"]

    answers = [
        named_rpc("call_tool", name=found["name"], skill=new_name, **more) for more in ({}, {"environment": "old"})
    ]

    assert [(one["is_error"], one["result"]) for one in answers] == [(False, "1.5"), (False, "1.0")]
    assert answers[1]["environment"]["name"] == "old"
    without = named_rpc("call_tool", name=found["name"], skill=new_name, environment="")
    assert without["is_error"]
    assert "three ways to have it" in without["result"]["error"]


def test_an_environment_that_a_skill_cannot_use_is_refused(named_rpc: Rpc, scripts: str) -> None:
    create(named_rpc, needing(f"{scripts}.own", "frames"), CODE)

    own = named_rpc.error("execute_skill", name=f"{scripts}.own", environment="old")
    shell = named_rpc.error("execute_skill", name=scripts, script="show.sh", environment="old")
    unknown = named_rpc.error("execute_skill", name=scripts, script="show.py", environment="dat")

    assert [one["data"]["param"] for one in (own, shell, unknown)] == ["environment"] * 3
    assert "declares its own packages" in own["message"]
    assert "is not a Python file" in shell["message"]
    assert "Did you mean 'data'" in unknown["data"]["hint"]
    assert named_rpc("execute_skill", name=f"{scripts}.own", environment="")["output"] == "2.0"
    assert "environment" not in run(named_rpc, scripts, "show.sh")


def test_a_module_has_the_environment_that_it_names(named_rpc: Rpc, scripts: str) -> None:
    ran = named_rpc("execute_skill", name=scripts, module="show", environment="old")

    assert ran["output"]["stdout"] == "1.0\n"


def test_the_command_names_it(named: Server, scripts: str) -> None:
    ran = skillery("run", scripts, "--script", "show.py", "--environment", "old", "--url", named.url)

    assert ran.code == 0
    assert "stdout: 1.0\n" in ran.out


def test_models_see_it_where_there_are_environments(named: Server, sqlite_server: Server) -> None:
    def properties(server: Server) -> dict[str, Any]:
        tools = server.rpc.http.get("/tools", params={"format": "jsonschema"}).json()
        found: dict[str, Any] = next(one for one in tools if one["name"] == "execute_skill")["parameters"]["properties"]
        return found

    assert properties(named)["environment"]["enum"] == ["broken", "data", "growing", "old", ""]
    assert "environment" not in properties(sqlite_server)


def test_the_error_of_a_missing_module_names_the_package_and_three_ways(sqlite_rpc: Rpc, new_name: str) -> None:
    code = "def main(args):\n    import yaml\n"
    create(sqlite_rpc, manifest(f"{new_name}.code", runtime={"entrypoint": "code/main.py"}), code)
    files = {
        "SKILL.md": skill_md(new_name),
        "a.py": "import yaml\n",
        "b.py": "try:\n    import yaml\nexcept ImportError as e:\n    print(e)\n",
    }
    sent(sqlite_rpc, zipped({f"{new_name}/{path}": text for path, text in files.items()}))

    theirs = sqlite_rpc("execute_skill", name=f"{new_name}.code")["error"]["message"]
    ours = sqlite_rpc("run_code", language="python", code=f"import yaml\n{code}")["error"]["message"]
    ran, fine = run(sqlite_rpc, new_name, "a.py"), run(sqlite_rpc, new_name, "b.py")

    for said in (theirs, ours, ran["output"]["hint"], ran["summary"], ran["logs_preview"]):
        assert "pyyaml provides it; three ways to have it: " in said
        assert "runtime.dependencies" in said
        assert "environment" in said
    assert "--packages infer" in theirs
    assert "list_environments" in ours
    assert "hint" not in fine["output"]
